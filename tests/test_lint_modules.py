"""`ddpify lint` over files that import each other: what is found in a module, by whom, and once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddpify.cli import cli

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
"""
SETUP = """\
dist.init_process_group("gloo")
model = DDP(nn.Linear(4, 1))
"""
TAIL = "dist.destroy_process_group()\n"
#: nothing in it says that it is distributed
KEEP = """\
import torch


def save(model, path):
    torch.save(model.module.state_dict(), path)


def load(path):
    return torch.load(path)
"""


def script(body: str, imports: str = "import keep") -> str:
    return f"{HEAD}{imports}\n\n{SETUP}{body}\n{TAIL}"


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(cli, ["lint", *map(str, args)], prog_name="ddpify")


def lint(*args: str | Path) -> list[str]:
    result = run("--format", "json", *args)
    return [f"{p['file']}:{p['line']} {p['rule']}" for p in json.loads(result.stdout)["problems"]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("keep.py").write_text(KEEP)
    Path("train.py").write_text(script('keep.save(model, "a.pt")'))
    return tmp_path


def test_a_module_is_linted_as_its_script_uses_it(here: Path) -> None:
    assert lint("train.py") == ["keep.py:5 DDP401"]
    Path("train.py").write_text(script('if dist.get_rank() == 0:\n    keep.save(model, "a.pt")'))
    assert lint("train.py") == []
    Path("train.py").write_text(script('model.module.load_state_dict(keep.load("a.pt"))\nmodel.cuda()'))
    assert lint("train.py") == ["keep.py:9 DDP105"]


def test_what_several_scripts_find_is_told_once_in_the_order_of_the_files(here: Path) -> None:
    for name in ("fit.py", "zoo.py"):
        Path(name).write_text(script('keep.save(model, "a.pt")\nprint(1)'))
    assert lint() == ["fit.py:10 DDP402", "keep.py:5 DDP401", "zoo.py:10 DDP402"]
    assert lint("--jobs", "2") == lint("--jobs", "1")
    assert lint("zoo.py", "fit.py") == ["zoo.py:10 DDP402", "fit.py:10 DDP402", "keep.py:5 DDP401"]


def test_a_module_by_itself_is_linted_with_the_scripts_that_import_it(here: Path) -> None:
    Path("train.py").write_text(script('keep.save(model, "a.pt")\nprint(1)'))
    assert lint("keep.py") == ["keep.py:5 DDP401"]
    Path("pyproject.toml").write_text("")
    tools, app = Path("app/tools"), Path("app")
    tools.mkdir(parents=True)
    Path("keep.py").rename(tools / "keep.py")
    (tools / "__init__.py").write_text("from .keep import save\n")
    Path("train.py").unlink()
    (app / "fit.py").write_text(script('save(model, "a.pt")\nprint(1)', "from tools import save"))
    (app / "other.py").write_text("from tools import save\nprint('not distributed')\n")
    assert lint("app/tools/keep.py") == ["app/tools/keep.py:5 DDP401"]
    assert lint(tools.absolute() / "keep.py") == [f"{tools.absolute() / 'keep.py'}:5 DDP401"]
    Path("pyproject.toml").write_text('[tool.ddpify]\nexclude = ["app/fit.py"]\n')
    assert lint("app/tools/keep.py") == []


def test_a_script_knows_better_than_a_module_by_itself(here: Path) -> None:
    wrapped = "\n\ndef wrapped(path):\n    model = DDP(nn.Linear(4, 1))\n    torch.save(model.module, path)\n"
    Path("keep.py").write_text(HEAD + wrapped)
    Path("train.py").unlink()
    assert lint() == ["keep.py:9 DDP401"]
    Path("train.py").write_text(script('if dist.get_rank() == 0:\n    keep.wrapped("a.pt")'))
    assert [c for c in lint() if "DDP401" in c] == []
    # what the module does when it is run by itself stays its own
    Path("keep.py").write_text(HEAD + wrapped + f'\n\nif __name__ == "__main__":\n    wrapped("b.pt")\n    {TAIL}')
    assert [c for c in lint() if "DDP401" in c] == ["keep.py:9 DDP401"]


def test_comments_and_settings_of_a_module_hold_for_what_scripts_find_in_it(here: Path) -> None:
    Path("keep.py").write_text(KEEP.replace("path)\n\n\n", "path)  # ddpify: ignore[DDP401]\n\n\n"))
    assert lint() == lint("keep.py") == lint("train.py") == []
    Path("train.py").write_text(script(""))
    assert lint() == ["keep.py:5 DDP001"]
    assert lint("train.py") == []
    Path("keep.py").write_text(KEEP)
    Path("train.py").write_text(script('keep.save(model, "a.pt")'))
    Path("pyproject.toml").write_text('[tool.ddpify]\n[tool.ddpify.per-file-ignores]\n"keep.py" = ["DDP401"]\n')
    assert lint("train.py") == []
    Path("pyproject.toml").write_text('[tool.ddpify]\nexclude = ["keep.py"]\n')
    assert lint("train.py") == lint() == []


def test_a_module_is_mended_once(here: Path) -> None:
    Path("keep.py").write_text('import os\n\n\ndef prepare():\n    os.makedirs("out")\n')
    for name in ("train.py", "fit.py"):
        Path(name).write_text(script("keep.prepare()"))
    mended = Path("keep.py").read_text().replace('"out")', '"out", exist_ok=True)')
    diff = run("--diff")
    assert diff.stdout.count("\n+++ ") == diff.stdout.count("exist_ok") == 1
    assert run("--fix", "train.py").exit_code == 0
    assert Path("keep.py").read_text() == mended
    Path("keep.py").write_text('import os\n\n\ndef prepare():\n    os.makedirs("out")\n')
    assert run("--fix", "keep.py").stderr.startswith("mended 1\nfound 0 in 1 file")
    assert Path("keep.py").read_text() == mended
    assert run("--diff").exit_code == 0


def test_generated_modules_and_those_that_cannot_be_read_are_left_alone(here: Path) -> None:
    Path("keep.py").write_text(f"# Generated by a tool. Do not edit.\n{KEEP}")
    assert lint("train.py") == []
    Path("keep.py").write_text(KEEP + "print 'two'\n")
    assert lint("train.py") == []
    assert lint("keep.py") == []


#: sets up, wraps and saves for whoever calls it; it cannot tell which ranks come to `save`
GROUP = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


class Keeper:
    def __init__(self, params):
        self.params = params

    def wrap(self, net):
        return DDP(net)

    def save(self, net):
        torch.save(net.module.state_dict(), "a.pt")


def join(params):
    dist.init_process_group("gloo")
    params.first = dist.get_rank() == 0


def leave():
    dist.destroy_process_group()
"""
#: nothing in it says so, and it is the script
QUIET = """\
import argparse

from torch import nn

from tools.group import Keeper, join, leave


def main(params):
    join(params)
    keeper = Keeper(params)
    net = keeper.wrap(nn.Linear(4, 1))
    {save}
    leave()


if __name__ == "__main__":
    main(argparse.ArgumentParser().parse_args())
"""


@pytest.mark.parametrize(
    ("save", "said"),
    [
        ("keeper.save(net)", ["tools/group.py:14 DDP401"]),
        ("if keeper.params.first:\n        keeper.save(net)", []),
        ("print(net)\n    if keeper.params.first:\n        keeper.save(net)", ["train.py:12 DDP402"]),
    ],
)
def test_a_script_that_names_nothing_distributed_tells_how_its_modules_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: str, said: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tools").mkdir()
    Path("tools/group.py").write_text(GROUP)
    Path("train.py").write_text(QUIET.format(save=save))
    assert lint(".") == said
