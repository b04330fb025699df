"""DDP404: nobody reads what rank 0 has not finished to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.edits import InsertBefore
from tests.rules.edited import edited, linted, script

CODES = ("DDP401", "DDP402", "DDP404")
SAVE = "torch.save(model.state_dict(), 'best.pt')"
START = "out, truth = 'runs', zoo.truth()"


@pytest.mark.parametrize(
    ("save", "read"),
    [
        (SAVE, "model.load_state_dict(torch.load('best.pt'))"),
        ("path = 'best.pt'\ntorch.save(model.state_dict(), path)", "state = torch.load(path)"),
        ("torch.save(model.state_dict(), f'{out}/best.pt')", "state = torch.load(os.path.join(out, 'best.pt'))"),
        (SAVE, "state = torch.load(sys.argv[1])"),
        ("best = sys.argv[1]\nopen(best, 'w').write('x')", "rows = Path(best).resolve().read_text()"),
        (
            "import json\nwith open('a.json', 'w') as f:\n    json.dump([1], f)",
            "with open('a.json') as f:\n    rows = f.read()",
        ),
        ("import numpy as np\nnp.save('a.npy', 1)", "rows = np.load('a.npy')"),
        ("Path('a.txt').write_text('x')", "rows = Path('a.txt').read_text()"),
        ("import json\njson.dump([1], open('boxes.json', 'w'))", "found = truth.loadRes('boxes.json')"),
        ("import pycocotools\nopen('v.txt', 'w').write('x')", "words = pycocotools.Vocabulary.from_file('v.txt')"),
    ],
)
def test_all_ranks_meet_before_they_read(save: str, read: str) -> None:
    text = script(
        imports="import sys\nimport zoo\nfrom pathlib import Path",
        before="out, truth = 'runs', zoo.truth()",
        inside=save,
        after=read,
    )
    result = edited(text, *CODES)
    assert result.has("dist.barrier()\n" + read)
    assert "dist" in result.needs


@pytest.mark.parametrize(
    "after",
    [
        "state = torch.load('other.pt')",
        "rows = open('a.txt').read()",
        "print(torch.load('best.pt'))",  # read by rank 0 alone
        "rows = sorted([1])",
    ],
)
def test_other_reads_need_no_barrier(after: str) -> None:
    assert "barrier" not in edited(script(inside=SAVE, after=after), *CODES).text


def test_a_checkpoint_that_is_read_before_any_save_needs_no_barrier() -> None:
    text = script(
        imports="import sys",
        before="if len(sys.argv) > 1:\n    model.load_state_dict(torch.load(sys.argv[1]))",
        inside=SAVE,
    )
    assert "barrier" not in edited(text, *CODES).text


def test_the_question_whether_it_is_there_comes_after_the_barrier() -> None:
    after = (
        "if epoch > 7:\n    pass\nelif os.path.exists('best.pt'):\n"
        "    if True:\n        model.load_state_dict(torch.load('best.pt'))"
    )
    assert edited(script(inside=SAVE, after=after), *CODES).has("dist.barrier()\n" + after)


@pytest.mark.parametrize(
    "listed",
    ["found = glob.glob('best*.pt')", "found = [n for n in os.listdir('.') if n.endswith('.pt')]"],
)
def test_the_listing_that_names_the_file_comes_after_the_barrier(listed: str) -> None:
    """The rank that lists before rank 0 has written finds nothing, and would not come to a barrier behind it."""
    read = "if found:\n    newest = max(found, key=os.path.getmtime)\n    state = torch.load(newest)"
    result = edited(script(imports="import glob", inside=SAVE, after=f"{listed}\n{read}"), *CODES)
    assert result.text.count("barrier()") == 1
    assert result.text.index("barrier()") < result.text.index("found = ")


@pytest.mark.parametrize(
    "asked",
    [
        "assert os.path.exists('best.pt'), 'nothing was saved'",
        "if not os.path.isfile('best.pt'):\n    raise SystemExit('nothing was saved')",
        "if not Path('best.pt').exists():\n    sys.exit(1)\n    raise RuntimeError",
        "size = os.path.getsize('best.pt')",
    ],
)
def test_who_asks_whether_the_file_is_there_waits_for_it(asked: str) -> None:
    text = script(imports="import sys\nfrom pathlib import Path", inside=SAVE, after=asked)
    assert edited(text, *CODES).has("dist.barrier()\n" + asked)


def test_a_question_that_ends_nothing_needs_no_barrier() -> None:
    after = "if os.path.exists('best.pt'):\n    print('saved')\nprint(os.path.getsize('best.pt'))"
    assert "barrier" not in edited(script(inside=SAVE, after=after), *CODES).text


def test_what_rank_0_reads_alone_is_no_meeting_for_the_reads_behind_it() -> None:
    functions = """
        def save(state, best):
            torch.save(state, os.path.join("runs", "last.pt"))
            if best:
                shutil.copyfile(os.path.join("runs", "last.pt"), "best.pt")
            for old in sorted(glob.glob(os.path.join("runs", "*.pt")))[:-2]:
                os.remove(old)
        """
    read = "state = torch.load('best.pt')"
    save = "save(model.state_dict(), epoch == 1)"
    text = script(imports="import glob, shutil", functions=functions, inside=save, after=read)
    assert edited(text, *CODES).has("dist.barrier()\n" + read)


def test_one_barrier_does_for_several_reads() -> None:
    result = edited(script(inside=SAVE, after="a = torch.load('best.pt')\nb = torch.load('best.pt')"), *CODES)
    assert result.text.count("dist.barrier()") == 1


def test_a_file_that_is_read_in_the_next_epoch() -> None:
    text = script(before="state = None", inside="if epoch:\n    state = torch.load('best.pt')\n" + SAVE)
    assert edited(text, *CODES).has("if epoch:\n    dist.barrier()\n    state = torch.load('best.pt')")


def test_the_barrier_stands_in_the_function_that_reads() -> None:
    functions = "def restore(model):\n    state = torch.load('best.pt')\n    model.load_state_dict(state)"
    assert edited(script(functions=functions, inside=SAVE, after="restore(model)"), *CODES).has(
        "dist.barrier()\nstate = torch.load('best.pt')"
    )


@pytest.mark.parametrize("removal", ["os.remove('best.pt')", "Path('best.pt').unlink()"])
def test_a_file_that_rank_0_removes_is_gone_for_all(removal: str) -> None:
    before = removal + "\ntry:\n    state = torch.load('best.pt')\nexcept FileNotFoundError:\n    pass"
    text = script(imports="from pathlib import Path", before=before)
    assert edited(text, *CODES).has("dist.barrier()\ntry:\n    state = torch.load('best.pt')")
    early = script(imports=f"from pathlib import Path\n{removal}", before="state = torch.load('best.pt')")
    assert "barrier" not in edited(early, *CODES).text  # all ranks join the group in between
    other = script(before="os.remove(sys.argv[1])\nstate = torch.load('best.pt')", imports="import sys")
    assert "barrier" not in edited(other, *CODES).text


def test_a_function_that_is_called_before_and_after_the_save() -> None:
    """The second call is like the first one, which the flow has followed."""
    functions = """
        def restore(path):
            if os.path.exists(path):
                model.load_state_dict(torch.load(path))
        """
    text = script(functions=functions, before="restore('best.pt')", inside=SAVE, after="restore('best.pt')")
    assert edited(text, *CODES).has("dist.barrier()\nif os.path.exists(path):")
    assert "barrier" not in edited(script(functions=functions, before="restore('best.pt')", inside=SAVE), *CODES).text


def test_a_read_in_a_package_has_its_barrier_at_the_call(tmp_path: Path) -> None:
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").write_text(
        "import torch\ndef restore(path):\n    return torch.load(path)\nHERE = __path__\n"
    )
    text = script(imports="from helpers import restore", inside=SAVE, after="state = restore('best.pt')")
    result = edited(text, *CODES, path=tmp_path / "train.py")
    assert result.has("dist.barrier()\nstate = restore('best.pt')")


def test_a_read_in_another_file_has_its_barrier_there(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(
        "import torch\ndef restore(path):\n    return torch.load(path)\nHERE = __path__\n"
    )
    text = script(imports="from helpers import restore", inside=SAVE, after="state = restore('best.pt')")
    result = edited(text, *CODES, path=tmp_path / "train.py")
    (edit,) = [e for f in result.plan.findings for e in f.edits if isinstance(e, InsertBefore)]
    assert edit.source.code(edit.node) == "return torch.load(path)"


def test_a_dataset_that_reads_in_its_workers_has_no_barrier() -> None:
    functions = """
        class Files(torch.utils.data.Dataset):
            def __len__(self):
                return 3

            def __getitem__(self, i):
                return torch.load('best.pt')
        """
    assert "barrier" not in edited(script(functions=functions, inside=SAVE, after="Files()[0]"), *CODES).text


DDP = """
import torch
import torch.distributed as dist

rank = dist.get_rank()
"""


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("if rank == 0:\n    torch.save(1, 'a.pt')\nx = torch.load('a.pt')", 1),
        ("if rank == 0:\n    torch.save(1, 'a.pt')\ndist.barrier()\nx = torch.load('a.pt')", 0),
        ("if rank == 0:\n    torch.save(1, 'a.pt')\n    x = torch.load('a.pt')", 0),
        ("if rank == 0:\n    torch.save(1, 'a.pt')\ndist.get_world_size()\nx = torch.load('a.pt')", 1),
        ("if rank == 0:\n    torch.save(1, 'a.pt')\nx = torch.load('b.pt')", 0),
        ("dist.barrier()\nif rank == 0:\n    torch.save(1, 'a.pt')\nx = torch.load('a.pt')", 1),
        (
            (
                "def load():\n    return torch.load('a.pt')\nif rank > 7:\n    load()\ny = load()\n"
                "if rank == 0:\n    torch.save(1, 'a.pt')\nx = load()"
            ),
            1,
        ),
        (
            (
                "def load():\n    return torch.load('a.pt')\ny = load()\n"
                "if rank == 0:\n    torch.save(1, 'a.pt')\ndist.barrier()\nx = load()"
            ),
            0,
        ),
        (
            (
                "for e in range(9):\n    if e:\n        x = torch.load('a.pt')\n"
                "    if rank == 0:\n        torch.save(1, 'a.pt')\n    dist.barrier()"
            ),
            0,
        ),
    ],
)
def test_lint(code: str, count: int) -> None:
    assert len(linted(DDP + code, "DDP404")) == count


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        ("if len(sys.argv) > 1:\n    save()\nelse:\n    load()", False),
        ("save()\nif len(sys.argv) > 1:\n    load()", True),
    ],
)
def test_one_branch_or_the_other(call: str, waits: bool) -> None:
    functions = "def save():\n    torch.save(model.state_dict(), 'a.pt')\n\ndef load():\n    return torch.load('a.pt')"
    result = edited(script(imports="import sys", functions=functions, after=call), "DDP101", "DDP404")
    assert ("barrier()" in result.text) is waits


def test_commands_of_a_group() -> None:
    functions = """
@click.group()
def cli():
    pass

@cli.command()
def save():
    torch.save(model.state_dict(), 'a.pt')

@cli.command()
def load():
    return torch.load('a.pt')
"""
    assert "barrier()" not in edited(script(imports="import click", functions=functions, after="cli()"), "DDP404").text


def test_one_of_the_functions_that_a_call_may_run() -> None:
    functions = """
def save(path):
    for i in range(2):
        torch.save(model.state_dict(), path)

def load(path):
    return torch.load(path)

parser = argparse.ArgumentParser()
commands = parser.add_subparsers()
commands.add_parser('save').set_defaults(run=save)
commands.add_parser('load').set_defaults(run=load)
"""
    once = "args = parser.parse_args()\nargs.run('a.pt')"
    assert "barrier()" not in edited(script(imports="import argparse", functions=functions, after=once), "DDP404").text
    often = "args = parser.parse_args()\nfor _ in range(2):\n    args.run('a.pt')"
    result = edited(script(imports="import argparse", functions=functions, after=often), "DDP101", "DDP404")
    assert "barrier()" in result.text or result.left


WORKERS = """
def read(path):
    return torch.load(path)

def lengths(path):
    return len(read(path))

class Recordings(torch.utils.data.Dataset):
    def __init__(self, paths):
        self.paths = paths
        {first}

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, at):
        return {item}
"""


@pytest.mark.parametrize(
    ("first", "item", "meets"),
    [
        ("self.sizes = [len(read(p)) for p in paths]", "torch.ones(4)", True),
        ("self.first = read(paths[0])", "read(self.paths[at])", False),  # loader workers run it, too
        ("self.sizes = Pool(4).map(lengths, paths)", "torch.ones(4)", False),
        ("with Pool(4) as pool:\n            self.sizes = pool.map(lengths, paths)", "torch.ones(4)", False),
    ],
)
def test_processes_that_are_no_ranks_meet_nobody(first: str, item: str, meets: bool) -> None:
    text = script(
        imports="import sys\nfrom multiprocessing import Pool",
        functions=WORKERS.format(first=first, item=item),
        inside="torch.save(model.state_dict(), sys.argv[1])",
        after="held_out = DataLoader(Recordings(sys.argv[2:]))",
    )
    result = edited(text, "DDP101", "DDP404")
    assert ("barrier()" in result.text or bool(result.left)) is meets


@pytest.mark.parametrize("made", ["Net", "type(net)", "type(keeper.net)"])
def test_a_class_method_that_reads_what_the_model_saved(made: str) -> None:
    functions = """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.out = nn.Linear(4, 1)

            def forward(self, x):
                return self.out(x)

            def save_pretrained(self, folder):
                torch.save(self.state_dict(), os.path.join(folder, "net.bin"))

            @classmethod
            def from_pretrained(cls, folder):
                net = cls()
                net.load_state_dict(torch.load(os.path.join(folder, "net.bin")))
                return net

        class Keeper:
            def __init__(self, net):
                self.net = net
        """
    text = script(
        functions=functions,
        before="net = Net()\nkeeper = Keeper(net)",
        inside="net.save_pretrained('best')",
        after=f"again = {made}.from_pretrained('best')",
    )
    result = edited(text, *CODES)
    assert result.text.count("dist.barrier()\n") == 1


CACHE = """
def build(root):
    for i in range(9):
        os.makedirs(f"{root}/{i % 3}", exist_ok=True)
        torch.save(torch.ones(4), f"{root}/{i % 3}/{i}.pt")
build(os.environ["CACHE"])
"""


@pytest.mark.parametrize(
    "listed",
    ["sorted(pathlib.Path(sys.argv[1]).glob('*/*.pt'))", "sorted(folder.iterdir())", "sorted(os.listdir(sys.argv[1]))"],
)
def test_ranks_wait_for_the_cache_before_they_list_it(listed: str) -> None:
    imports = "import pathlib\nimport sys\nfolder = pathlib.Path(sys.argv[1])\ntorch.cuda.is_available()"
    text = script(imports=imports, before=f"torch.manual_seed(0)\n{CACHE}files = {listed}")
    assert edited(text, *CODES).has(f"dist.barrier()\nfiles = {listed}")


def test_one_file_beside_the_data_is_not_waited_for() -> None:
    before = "torch.manual_seed(0)\nopen('settings.json', 'w').write('x')\nfiles = sorted(os.listdir('data'))"
    assert "barrier" not in edited(script(before=before), *CODES).text
