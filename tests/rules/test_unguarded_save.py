"""DDP401: every way to write a file is kept to rank 0, and nothing that other ranks need goes with it."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from tests.rules.edited import edited, linted, script

GUARD = "if is_main_process():\n    "


@pytest.mark.parametrize(
    ("imports", "statement"),
    [
        ("", "torch.save(model.state_dict(), 'm.pt')"),
        ("import torch as t", "t.save(model.state_dict(), 'm.pt')"),
        ("from torch import save as keep", "keep(model.state_dict(), 'm.pt')"),
        ("import numpy as np", "np.savez('a.npz', a=1)"),
        ("import json", "json.dump({'a': 1}, open('a.json', 'w'))"),
        ("import pickle", "pickle.dump({'a': 1}, open(mode='wb', file='a.pkl'))"),
        ("from safetensors.torch import save_file", "save_file(model.state_dict(), 'm.safetensors')"),
        ("from torchvision.utils import save_image", "save_image(x, 'x.png')"),
        ("import matplotlib.pyplot as plt", "plt.savefig('loss.png')"),
        ("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()", "fig.savefig('loss.png')"),
        ("import pandas as pd", "pd.DataFrame({'a': [1]}).to_csv('a.csv')"),
        ("from pathlib import Path", "Path('a.txt').write_text('a')"),
        ("from pathlib import Path", "(Path('out') / 'a.txt').unlink(missing_ok=True)"),
        ("import shutil", "shutil.copyfile('a.pt', 'b.pt')"),
        ("", "os.remove('old.pt')"),
        ("", "open('a.txt', 'a').write('line')"),
        ("from transformers import AutoModel\nbert = AutoModel.from_pretrained('bert')", "bert.save_pretrained('out')"),
    ],
)
def test_a_statement_that_writes_is_guarded(imports: str, statement: str) -> None:
    result = edited(script(imports=imports, after=statement), "DDP401")
    assert GUARD + statement in result.text
    assert not result.left


@pytest.mark.parametrize(
    "statement",
    [
        "x = open('a.txt').read()",
        "torch.save(model, io.BytesIO())",
        "text = json.dumps({'a': 1})",
        "table = frame.to_csv()",
        "names = 'a'.replace('a', 'b')",
    ],
)
def test_what_writes_no_file_stays(statement: str) -> None:
    text = script(imports="import io, json\nimport pandas as pd\nframe = pd.DataFrame()", after=statement)
    result = edited(text, "DDP401")
    assert result.text == text
    assert not result.left


def test_a_buffer_in_memory_is_no_file() -> None:
    text = script(
        imports="import io",
        after="buffer = io.BytesIO()\ntorch.save(model.state_dict(), buffer)\nsize = len(buffer.getvalue())",
    )
    assert edited(text, "DDP401").text == text


def test_a_with_block_that_only_writes_is_guarded_whole() -> None:
    result = edited(
        script(inside="with open('a.json', 'w') as f:\n    for i in range(3):\n        f.write(str(i))"), "DDP401"
    )
    assert result.has("""
        if is_main_process():
            with open('a.json', 'w') as f:
                for i in range(3):
                    f.write(str(i))
        """)


@pytest.mark.parametrize(
    "block",
    [
        "    best = epoch\n    f.write(str(best))",  # read behind the block
        "    history[epoch] = loss.item()\n    f.write('x')",
        "    f.write(str(evaluate(model, loader)))",
        "    if epoch > 1:\n        break\n    f.write('x')",
    ],
)
def test_a_with_block_that_does_more_writes_to_null_elsewhere(block: str) -> None:
    text = script(
        before="best = 0\nhistory = {}", inside="with open('log.txt', 'w') as f:\n" + block, after="total = best"
    )
    result = edited(text, "DDP401")
    assert "with open('log.txt' if is_main_process() else os.devnull, 'w') as f:" in result.text
    assert "if is_main_process():" not in result.text
    assert result.needs == {"is_main_process", "os"}


def test_a_path_that_is_a_choice_keeps_its_meaning() -> None:
    result = edited(
        script(inside="with open('a.txt' if epoch else 'b.txt', 'w') as f:\n    f.write(str(evaluate(model, loader)))"),
        "DDP401",
    )
    assert "open(('a.txt' if epoch else 'b.txt') if is_main_process() else os.devnull, 'w')" in result.text


def test_a_file_in_a_variable_is_guarded_wherever_it_is_used() -> None:
    text = script(
        imports="import csv",
        before="log = open('log.csv', 'w', newline='')\ntable = csv.writer(log)\ntable.writerow(['epoch'])",
        inside="table.writerow([epoch])\nlog.flush()\nprint('e', file=log)",
        after="log.close()",
    )
    result = edited(text, "DDP401")
    assert result.has(
        "if is_main_process():\n    log = open('log.csv', 'w', newline='')\n"
        "    table = csv.writer(log)\n    table.writerow(['epoch'])\n"
    )
    assert result.has(
        "    if is_main_process():\n        table.writerow([epoch])\n"
        "        log.flush()\n        print('e', file=log)\n"
    )
    assert result.has("if is_main_process():\n    log.close()")


@pytest.mark.parametrize(
    ("inside", "functions"),
    [
        ("show(log)", "def show(out):\n    out.write(str(evaluate(model, loader)))"),
        ("files = [log]", ""),
        ("count = log.write('x')", ""),
        ("if log:\n    pass", ""),
    ],
)
def test_a_file_in_a_variable_that_is_used_otherwise_writes_to_null(inside: str, functions: str) -> None:
    result = edited(script(functions=functions, before="log = open('log.txt', 'w')", inside=inside), "DDP401")
    assert "log = open('log.txt' if is_main_process() else os.devnull, 'w')" in result.text
    assert not result.left


def test_a_file_that_must_not_exist_cannot_write_to_null() -> None:
    result = edited(script(before="log = open('log.txt', 'x')", inside="files = [log]"), "DDP401")
    assert len(result.left) == 1
    assert "`'log.txt'`" in result.left[0]


def test_a_file_of_an_object_is_guarded_in_its_methods() -> None:
    functions = """
        class Log:
            def __init__(self, path):
                self.out = open(path, 'a')

            def line(self, text):
                self.out.write(text)
        """
    result = edited(script(functions=functions, before="log = Log('a.txt')", inside="log.line('x')"), "DDP401")
    assert result.has("if is_main_process():\n    self.out = open(path, 'a')")
    assert result.has("if is_main_process():\n    self.out.write(text)")


def test_a_forward_in_the_arguments_runs_on_every_rank() -> None:
    result = edited(
        script(inside="torch.save({'score': evaluate(model, loader), 'epoch': epoch}, 'last.pt')"), "DDP401"
    )
    assert result.has(
        "result = evaluate(model, loader)\nif is_main_process():\n"
        "    torch.save({'score': result, 'epoch': epoch}, 'last.pt')"
    )


def test_names_of_the_user_are_left_alone() -> None:
    text = script(before="result = 1\nis_main_process = None", inside="torch.save(evaluate(model, loader), 'last.pt')")
    result = edited(text, "DDP401")
    assert "result_2 = evaluate(model, loader)" in result.text
    assert "if is_rank_zero():" in result.text


def test_a_value_that_is_used_is_left() -> None:
    result = edited(script(imports="import shutil", after="target = shutil.copy('a', 'b')\nother = target"), "DDP401")
    assert result.left == ["every rank runs `shutil.copy`: its value is used"]
    assert "is_main_process" not in result.text


def test_a_lambda_is_left() -> None:
    result = edited(script(before="keep = lambda s: torch.save(s, 'a.pt')", after="keep(1)"), "DDP401")
    assert len(result.left) == 1
    assert "lambda" in result.left[0]


def test_code_that_is_never_reached_is_guarded_too() -> None:
    result = edited(script(before="DEBUG = False", after="if DEBUG:\n    torch.save(1, 'debug.pt')"), "DDP401")
    assert result.has("if DEBUG:\n    if is_main_process():\n        torch.save(1, 'debug.pt')")


def test_a_write_in_another_file_is_guarded_there(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").write_text(
        "import torch\ndef keep(state):\n    torch.save(state, 'a.pt')\nHERE = __path__\n"
    )
    text = script(imports="from helpers import keep", inside="keep(model.state_dict())")
    result = edited(text, "DDP401", path=tmp_path / "train.py")
    assert result.guarded("helpers.py") == ["if is_main_process(): torch.save(state, 'a.pt')"]
    assert not result.left


def test_a_write_in_a_package_is_guarded_at_the_call(tmp_path: Path) -> None:
    (tmp_path / "helpers").mkdir()
    keep = "import torch\ndef keep(state):\n    print('saving')\n    torch.save(state, 'a.pt')\n"
    (tmp_path / "helpers" / "__init__.py").write_text(f"{keep}\nHERE = __path__\n")
    text = script(imports="from helpers import keep", inside="keep(model.state_dict())")
    result = edited(text, "DDP401", path=tmp_path / "train.py")
    assert result.has("    if is_main_process():\n        keep(model.state_dict())")
    assert not result.left


def test_a_write_in_a_package_beside_training_is_listed(tmp_path: Path) -> None:
    (tmp_path / "helpers").mkdir()
    fit = "import torch\ndef fit(model, loader):\n    for (x,) in loader:\n        model(x).mean().backward()\n"
    (tmp_path / "helpers" / "__init__.py").write_text(
        fit + "    torch.save(model.state_dict(), 'a.pt')\nHERE = __path__\n"
    )
    result = edited(
        script(imports="from helpers import fit", inside="fit(model, loader)"), "DDP401", path=tmp_path / "train.py"
    )
    assert [f.span.line for f in result.plan.left] == [5]


DDP = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

def is_main():
    return dist.get_rank() == 0

def only_main(function):
    def wrapper(*args):
        if is_main():
            return function(*args)
    return wrapper


"""
SAFE = [
    "if is_main():\n    torch.save(1, 'a')",
    "if not is_main():\n    pass\nelse:\n    torch.save(1, 'a')",
    "rank = int(os.environ['RANK'])\nif rank == 0 and 1 > 0:\n    torch.save(1, 'a')",
    "main = os.environ.get('LOCAL_RANK') == '0'\nmain and torch.save(1, 'a')",
    "def f():\n    if dist.get_rank() > 0:\n        return\n    torch.save(1, 'a')\nf()",
    "def f():\n    torch.save(1, 'a')\nif is_main():\n    f()",
    "@only_main\ndef f():\n    torch.save(1, 'a')\nf()",
    (
        "def where(rank, world):\n    return rank, world\n"
        "r, w = where(dist.get_rank(), 4)\nif r == 0:\n    torch.save(1, 'a')"
    ),
    (
        "class T:\n    def __init__(self, gpu):\n        self.gpu = gpu\n    def go(self):\n"
        "        if self.gpu == 0:\n            torch.save(1, 'a')\nT(int(os.environ['LOCAL_RANK'])).go()"
    ),
    "path = os.path.join('out', 'rng_%d' % dist.get_rank())\ntorch.save(1, path)",
    (
        "def work(r, n):\n    if r == 0:\n        torch.save(1, 'a')\nif __name__ == '__main__':\n"
        "    mp.spawn(work, args=(2,), nprocs=2)\n    torch.save(1, 'b')"
    ),
    "def library(model, rank):\n    if rank == 0:\n        torch.save(1, 'a')",
    "with open('log' if is_main() else os.devnull, 'w') as f:\n    f.write('x')",
]
UNSAFE = [
    "torch.save(1, 'a')",
    "if dist.get_world_size() > 1:\n    torch.save(1, 'a')",
    (
        "def where(rank, world):\n    return rank, world\n"
        "r, w = where(dist.get_rank(), 4)\nif w == 4:\n    torch.save(1, 'a')"
    ),
    "def f():\n    torch.save(1, 'a')\nif is_main():\n    f()\nf()",
    "def work(r, n):\n    torch.save(1, 'a')\nif __name__ == '__main__':\n    mp.spawn(work, args=(2,), nprocs=2)",
    "rank = 0\nif rank == 0:\n    torch.save(1, 'a')",
    "model = nn.Linear(1, 1).to(dist.get_rank())\nif model.weight.sum() > 0:\n    torch.save(1, 'a')",
]


@pytest.mark.parametrize("code", SAFE)
def test_lint_knows_tests_of_the_rank(code: str) -> None:
    assert not linted(DDP + code, "DDP401")


@pytest.mark.parametrize("code", UNSAFE)
def test_lint_reports_writes_on_all_ranks(code: str) -> None:
    assert len(linted(DDP + code, "DDP401")) == 1


TIDIED = (
    "kept = sorted(glob.glob('*.pt'), key=os.path.getmtime)\nfor old in kept[:-2]:\n    os.remove(old)",
    "names = os.listdir('.')\nnames.sort()\nwhile len(names) > 3:\n    os.remove(names.pop(0))",
    "old = f'{epoch - 3}.pt'\nif os.path.exists(old):\n    os.remove(old)",
    "for path in sorted(Path('out').glob('*.pt'))[:-2]:\n    print('removed', path)\n    path.unlink()",
)


@pytest.mark.parametrize("lines", TIDIED)
def test_rank_0_alone_lists_what_it_removes(lines: str) -> None:
    """The other ranks would ask for the time of a file that is gone."""
    result = edited(script(imports="import glob\nfrom pathlib import Path", inside=lines), "DDP401", "DDP402")
    assert result.has("if is_main_process():\n" + indent(lines, "    "))


@pytest.mark.parametrize(
    ("lines", "guarded"),
    [
        (TIDIED[0] + "\ncount = len(kept)", "os.remove(old)"),
        ("for old in sorted(os.listdir('.')):\n    loss = model(x)\n    os.remove(old)", "os.remove(old)"),
        ("for old in ['a.pt', 'b.pt']:\n    os.remove(old)", "os.remove(old)"),
        ("if not os.path.exists('a'):\n    os.makedirs('a')\n    torch.save(1, 'a/b.pt')", "torch.save(1, 'a/b.pt')"),
        ("if os.path.exists('a'):\n    os.remove('a')\nelse:\n    epochs = 3", "os.remove('a')"),
    ],
)
def test_what_other_ranks_need_is_not_under_the_guard(lines: str, guarded: str) -> None:
    result = edited(script(imports="import glob", inside=lines), "DDP401")
    assert result.guarded("train.py") == [f"if is_main_process(): {guarded}"]


@pytest.mark.parametrize(
    ("imports", "line"),
    [
        ("import scipy.sparse as sp", "sp.save_npz('adjacency.npz', sp.eye(3))"),
        ("import nibabel as nib", "nib.save(x, 'mask.nii.gz')"),
        ("import networkx as nx", "nx.write_gpickle(x, 'graph.pkl')"),
        ("import tifffile", "tifffile.imwrite('mask.tif', x)"),
        ("import SimpleITK as sitk", "sitk.WriteImage(x, 'mask.nii')"),
    ],
)
def test_writers_of_matrices_graphs_and_scans(imports: str, line: str) -> None:
    assert edited(script(imports=imports, inside=line), "DDP401").guarded("train.py") == [
        f"if is_main_process(): {line}"
    ]
