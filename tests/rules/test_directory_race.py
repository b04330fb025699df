"""DDP403: directories that ranks make, remove and name."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ddpify.facts.chance import named_chance
from ddpify.facts.values import Data, FromBatch, FromWorld
from tests.cases import convert_bytes
from tests.rules.edited import edited, linted, script

CODE = "DDP403"
TIME = "import time\nfrom datetime import datetime"


@pytest.mark.parametrize(
    ("imports", "call", "gives"),
    [
        ("", "os.makedirs('out')", "os.makedirs('out', exist_ok=True)"),
        ("", "os.makedirs('out', 0o755)", "os.makedirs('out', 0o755, exist_ok=True)"),
        ("", "os.makedirs('out', exist_ok=False)", "os.makedirs('out', exist_ok=True)"),
        ("", "os.makedirs('out', 0o755, False)", "os.makedirs('out', 0o755, True)"),
        ("", "os.mkdir('out')", "os.makedirs('out', exist_ok=True)"),
        ("import os as o", "o.mkdir('out')", "o.makedirs('out', exist_ok=True)"),
        ("from os import mkdir", "mkdir('out')", "os.makedirs('out', exist_ok=True)"),
        ("from os import makedirs as make", "make('out')", "make('out', exist_ok=True)"),
        ("from pathlib import Path", "Path('out').mkdir()", "Path('out').mkdir(exist_ok=True)"),
        (
            "from pathlib import Path",
            "(Path('out') / 'a').mkdir(parents=True)",
            "(Path('out') / 'a').mkdir(parents=True, exist_ok=True)",
        ),
    ],
)
def test_a_directory_that_is_there_is_accepted(imports: str, call: str, gives: str) -> None:
    result = edited(script(imports=imports, before=f"if not os.path.exists('out'):\n    {call}"), CODE)
    assert result.has(f"if not os.path.exists('out'):\n    {gives}")
    assert not result.left


@pytest.mark.parametrize(
    "code",
    [
        "os.makedirs('out', exist_ok=True)",
        "os.makedirs('out', 0o755, True)",
        "try:\n    os.mkdir('out')\nexcept (OSError, ValueError):\n    pass",
        "path = 'out'.replace('o', 'a')",
    ],
)
def test_what_is_safe_stays(code: str) -> None:
    text = script(before=code)
    assert edited(text, CODE).text == text


def test_the_rank_that_removes_a_directory_makes_it_anew() -> None:
    before = (
        "if os.path.exists('out'):\n    shutil.rmtree('out')\nos.makedirs('out')\n"
        "os.makedirs(os.path.join('out', 'a'), exist_ok=True)\nos.makedirs('other')"
    )
    result = edited(script(imports="import shutil", before=before), CODE)
    assert result.has("if os.path.exists('out'):\n    if is_main_process():\n        shutil.rmtree('out')\n")
    assert result.has("if is_main_process():\n    os.makedirs('out')")
    assert result.has("os.makedirs('other', exist_ok=True)")


@pytest.mark.parametrize(
    ("before", "gives"),
    [
        (
            "stamp = time.strftime('%H%M%S')\nfolder = os.path.join('runs', stamp)\nos.makedirs(folder)",
            "stamp = broadcast_value(time.strftime('%H%M%S'))",
        ),
        (
            "stamp = time.strftime('%H%M%S')\nfolder = 'runs'\nif os.environ.get('RUN'):\n    folder += stamp\n"
            "else:\n    folder = os.path.join(folder, os.environ['NAME'])\nos.makedirs(folder)",
            "stamp = broadcast_value(time.strftime('%H%M%S'))",
        ),
        (
            "folder = f'runs/{datetime.now():%H%M}'\nos.makedirs(folder)",
            "folder = broadcast_value(f'runs/{datetime.now():%H%M}')",
        ),
        ("os.makedirs(f'runs/{time.time()}')", "os.makedirs(broadcast_value(f'runs/{time.time()}'), exist_ok=True)"),
        ("folder = name()\nos.makedirs(folder)", "folder = broadcast_value(name())"),
        (
            "folder = name()\nfor path in ['data', os.path.join(folder, 'a')]:\n    if not os.path.exists(path):\n"
            "        os.makedirs(path)",
            "folder = broadcast_value(name())",
        ),
        (
            "folder = 'runs'\nif os.path.exists(folder):\n    folder = folder + time.strftime('%S')\n"
            "os.makedirs(folder)",
            "if broadcast_value(os.path.exists(folder)):\n    folder = broadcast_value(folder + time.strftime('%S'))",
        ),
    ],
)
def test_the_name_of_a_run_is_that_of_rank_0(before: str, gives: str) -> None:
    functions = "def name():\n    return 'runs/' + time.strftime('%H%M%S')"
    result = edited(script(imports=TIME, functions=functions, before=before), CODE)
    assert gives in result.text
    assert "broadcast_value" in result.needs
    assert not result.left


@pytest.mark.parametrize(
    "makes",
    ["os.makedirs(f'runs/{time.time()}')", "pathlib.Path(f'runs/{time.time()}').mkdir()"],
)
def test_no_name_is_sent_where_not_all_ranks_may_come(makes: str) -> None:
    result = edited(
        script(imports=TIME + "\nimport pathlib", before=f"if not os.path.exists('runs'):\n    {makes}"), CODE
    )
    assert not result.has("broadcast_value")
    assert len(result.left) == 1
    assert "ranks may answer the test around it differently" in result.left[0]


def test_the_name_of_a_run_is_found_behind_a_property_of_a_configuration() -> None:
    result = edited(
        script(
            imports="import pathlib\n" + TIME,
            before="""
            class Settings:
                def __init__(self, values):
                    self.values = values
                    name = time.strftime("%H%M%S")
                    self._folder = pathlib.Path(self["root"]) / name
                    self.folder.mkdir()
                def __getitem__(self, name):
                    return self.values[name]
                @property
                def folder(self):
                    return self._folder
            settings = Settings({"root": input()})
            """,
        ),
        CODE,
    )
    assert result.has('name = broadcast_value(time.strftime("%H%M%S"))')


def test_a_name_that_only_rank_0_uses_stays() -> None:
    text = script(imports=TIME, before="path = time.strftime('%H%M%S.pt')", after="if True:\n    torch.save(1, path)")
    assert "broadcast_value" not in edited(text, "DDP401", CODE).text


def test_a_temporary_file_that_all_ranks_read_is_that_of_rank_0() -> None:
    before = (
        "with tempfile.TemporaryDirectory() as folder:\n    best = os.path.join(folder, 'best.pt')\n"
        "    torch.save(1, best)\n    state = torch.load(best)"
    )
    result = edited(script(imports="import tempfile", before=before), "DDP401", CODE)
    assert "best = broadcast_value(os.path.join(folder, 'best.pt'))" in result.text


def test_the_set_up_comes_before_the_name_of_a_run() -> None:
    text = script(imports=TIME + "\nfolder = time.strftime('%H%M%S')", before="os.makedirs(folder)")
    result = edited(text, "DDP101", CODE)
    assert result.has("device = setup_distributed()\nfolder = broadcast_value(time.strftime('%H%M%S'))")
    assert not result.left


TRAINS = """
import os
import random
import sys
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def train(folder):
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
    torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
"""


@pytest.mark.parametrize("name", ["time.strftime('%H%M%S')", "str(random.randint(1, 10000))"])
@pytest.mark.parametrize(
    ("head", "indent"), [("", ""), ("if __name__ == '__main__':\n", "    "), ("def main():\n", "    ")]
)
def test_the_set_up_comes_before_a_name_in_the_function_that_calls_the_training(
    name: str, head: str, indent: str
) -> None:
    lines = [f"folder = os.path.join(sys.argv[1], {name})", "os.makedirs(folder, exist_ok=True)", "train(folder)"]
    text = TRAINS + head + "".join(f"{indent}{line}\n" for line in lines) + ("main()\n" if "def" in head else "")
    result = edited(text, "DDP101", CODE)
    assert f"{indent}setup_distributed()\n{indent}folder = broadcast_value({lines[0][9:]})" in result.text
    assert not any("names a path" in message for message in result.left)


def test_the_set_up_stays_with_the_training_where_no_path_is_named_above_it() -> None:
    text = (
        TRAINS
        + "if __name__ == '__main__':\n    start = time.time()\n    train(sys.argv[1])\n    time.time() - start\n"
    )
    assert "    setup_distributed()\n    loader =" in edited(text, "DDP101", CODE).text


def test_a_name_made_before_the_set_up_is_left() -> None:
    imports = TIME + "\nclass Config:\n    folder = time.strftime('%H%M%S')"
    result = edited(script(imports=imports, before="os.makedirs(Config.folder)"), CODE)
    assert len(result.left) == 1
    assert "before the process group is set up" in result.left[0]


def test_a_default_of_an_argument_is_left() -> None:
    imports = TIME + (
        "\nimport argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--out', default=time.strftime('%H%M'))"
    )
    result = edited(script(imports=imports), CODE)
    assert len(result.left) == 1
    assert "default of an argument" in result.left[0]


DDP = """
import os
import time
import torch.distributed as dist

def broadcast_value(value):
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]

"""


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("os.mkdir('a')", 1),
        ("if dist.get_rank() == 0:\n    os.mkdir('a')", 0),
        ("os.mkdir(f'a{dist.get_rank()}')", 0),
        ("folder = time.strftime('%H')\nos.makedirs(folder, exist_ok=True)", 1),
        ("folder = broadcast_value(time.strftime('%H'))\nos.makedirs(folder, exist_ok=True)", 0),
        ("box = [time.strftime('%H')]\ndist.broadcast_object_list(box)\nos.makedirs(box[0], exist_ok=True)", 0),
    ],
)
def test_lint(code: str, count: int) -> None:
    assert len(linted(DDP + code, CODE)) == count


HYDRA = """
import torch
import hydra
from hydra.core.hydra_config import HydraConfig
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

@hydra.main(config_path="conf", config_name="config"{base})
def main(cfg):
    torch.manual_seed(cfg.seed)
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=cfg.batch_size)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in loader:
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
    path = HydraConfig.get().runtime.output_dir + "/net.pt"
    torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("base", "left"), [(', version_base="1.3"', 0), (", version_base=None", 0), ("", 1)])
def test_hydra_makes_one_run_directory(base: str, left: int) -> None:
    result = edited(HYDRA.format(base=base), "DDP101", CODE)
    quiet = '["hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=none"]'
    assert result.has(f"if not is_main_process():  # rank 0 has hydra's run directory\n    sys.argv += {quiet}\nmain()")
    assert result.has('path = broadcast_value(HydraConfig.get().runtime.output_dir + "/net.pt")')
    assert sum("run directory" in message for message in result.left) == left


def test_a_name_is_rank_0s_where_all_that_differs_comes_together() -> None:
    start = """
    class Args:
        root = "runs"
        shown = None

    args = Args()

    def prepare(test):
        if test:
            args.root = tempfile.mkdtemp()
        root = os.path.join(args.root, datetime.now().strftime("%H%M"))
        os.makedirs(root, exist_ok=True)
        args.shown = os.path.join(root, "shown")
        args.root = root

    def show(number):
        root = args.shown
        if number:
            root = os.path.join(root, str(number))
        os.makedirs(root, exist_ok=True)
    """
    result = edited(
        script(
            imports="import tempfile\nfrom datetime import datetime",
            functions=start,
            before="torch.distributed.is_available()\nprepare(epoch := 0)",
            inside="show(epoch)",
        ),
        CODE,
        "DDP101",
    )
    assert result.text.count("broadcast_value(") == 1
    assert 'root = broadcast_value(os.path.join(args.root, datetime.now().strftime("%H%M")))' in result.text


FREE = """
def free(root):
    n = 0
    while True:
        path = os.path.join(root, str(n))
        if not os.path.exists(path):
            os.makedirs(path)
            break
        n += 1
    return path

def increment(path):
    if Path(path).exists():
        for n in range(2, 99):
            other = f"{path}{n}"
            if not os.path.exists(other):
                break
        path = other
    Path(path).mkdir(parents=True, exist_ok=True)
    return path
"""


@pytest.mark.parametrize(
    ("before", "gives"),
    [
        ("out = free('runs')", "out = broadcast_value(free('runs') if is_main_process() else None)"),
        ("out = increment('runs')", "out = broadcast_value(increment('runs') if is_main_process() else None)"),
        (
            "n, out = 0, 'runs/0'\nwhile os.path.exists(out):\n    n += 1\n    out = f'runs/{n}'\nos.makedirs(out)",
            "    out = f'runs/{n}'\nout = broadcast_value(out)\nos.makedirs(out, exist_ok=True)",
        ),
        (
            "n = len(os.listdir('runs'))\nos.makedirs(f'runs/{n}')",
            "n = broadcast_value(len(os.listdir('runs')))\nos.makedirs(f'runs/{n}', exist_ok=True)",
        ),
    ],
)
def test_rank_0_searches_for_a_free_name(before: str, gives: str) -> None:
    result = edited(script(imports="from pathlib import Path", functions=FREE, before=before), CODE)
    assert result.has(gives)
    assert not result.left


def test_a_search_that_makes_the_directory_where_the_script_works_is_left() -> None:
    found = "    if not os.path.exists(out):\n        os.makedirs(out)\n        break"
    before = "for n in range(99):\n    out = f'runs/{n}'\n" + found
    (message,) = edited(script(before=before), CODE).left
    assert "`out` goes by what is there" in message


@pytest.mark.parametrize(
    ("asks", "gives"),
    [
        ("if os.path.exists('out'):\n    raise FileExistsError", "if broadcast_value(os.path.exists('out')):"),
        (
            "path = 'out'\nif len(sys.argv) > 1 and Path(path).is_dir():\n    sys.exit('there')",
            "if broadcast_value(len(sys.argv) > 1 and Path(path).is_dir()):",
        ),
        ("assert not os.path.isdir('out')", "assert broadcast_value(not os.path.isdir('out'))"),
        ("there = os.path.exists('out')\nn = 1 if there else 0", "there = broadcast_value(os.path.exists('out'))"),
        (
            "n = 0\nif os.path.exists('out'):\n    n = 1\nfirst = n",
            "if broadcast_value(os.path.exists('out')):",
        ),
        ("if os.listdir('out'):\n    input('go on?')", "if broadcast_value(os.listdir('out')):"),
    ],
)
def test_all_ranks_go_by_what_rank_0_finds_there(asks: str, gives: str) -> None:
    made = "os.makedirs(os.path.join('out', 'a'))" if "listdir" in asks else "os.makedirs('out')"
    text = script(imports="import sys\nfrom pathlib import Path", before=f"{asks}\n{made}")
    result = edited(text, "DDP101", CODE)
    assert gives in result.text
    assert not result.left


@pytest.mark.parametrize(
    "before",
    [
        "if not os.path.exists('out'):\n    os.makedirs('out')",  # nothing goes by it
        "if os.path.exists('data'):\n    raise ValueError\nos.makedirs('out')",
        "assert os.path.exists('data')\nwith open('data/index.txt', 'w') as f:\n    f.write('x')",  # it is there before
    ],
)
def test_a_question_that_nobody_answers_otherwise_stays(before: str) -> None:
    assert "broadcast_value" not in edited(script(before=before), "DDP101", "DDP401", CODE).text
    behind = script(before="if os.path.exists('out'):\n    raise ValueError", after="os.makedirs('out')")
    assert "broadcast_value" not in edited(behind, "DDP101", CODE).text  # all ranks have trained in between


def test_a_question_before_the_set_up_is_left_to_the_user() -> None:
    text = script(imports="if os.path.exists('out'):\n    raise ValueError\nos.makedirs('out')")
    assert len(edited(text, "DDP101", CODE).left) == 1


def test_a_directory_below_the_one_that_was_removed() -> None:
    before = "run = os.path.join('out', 'a')\nif os.path.exists('out'):\n    shutil.rmtree('out')\nos.makedirs(run)"
    result = edited(script(imports="import shutil", before=before), CODE)
    assert result.has("if is_main_process():\n    os.makedirs(run)")


def test_the_values_on_the_way_of_a_name_are_not_written_out() -> None:
    """What an accuracy comes from is as large as the script: as text it took minutes."""

    class Silent:
        def __repr__(self) -> str:
            raise AssertionError("written out")

    held = Data("any", "other", frozenset({FromWorld("time.time"), FromBatch(cast(Any, Silent()))}))
    assert named_chance((held,)) == "time.time"


LOG = """
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
if os.path.isfile("log.txt"):
    log = open("log.txt", "a")
else:
    log = open("log.txt", "w")
    log.write("epoch loss")
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for (x,) in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with open(f"loss_{epoch}.txt", "w") as f:
        f.write(str(epoch))
    log.write(f"{epoch} {loss.item()}")
log.close()
"""


def test_a_log_that_rank_0_goes_on_with_is_asked_for_by_rank_0() -> None:
    """The question to all ranks stood under rank 0's guard, and the script was refused."""
    assert "broadcast_value" not in convert_bytes(LOG.encode()).text
