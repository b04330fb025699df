"""A script and its modules -> which files a conversion writes, what they are called, and who imports whom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddpify.cli import cli

NETS = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 1)

    def forward(self, x):
        return self.a(x)
"""
UTILS = """\
import torch


def save(model, path):
    torch.save(model.state_dict(), path)
    print("saved", path)


def train_epoch(model, loader, optimizer, device):
    total = 0.0
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x.to(device)).pow(2).mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print("loss", total / len(loader))
"""
TRAIN = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from nets import Net
from utils import save, train_epoch

if __name__ == "__main__":
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=4, shuffle=True)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        train_epoch(model, loader, optimizer, device)
    save(model, "net.pt")
"""
FILES = {"nets.py": NETS, "train.py": TRAIN, "utils.py": UTILS}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args), prog_name="ddpify")


def imports(name: str) -> list[str]:
    """The imports of a file that name other files of the project."""
    lines = Path(name).read_text().splitlines()
    return [s for s in lines if s.startswith("from") and "torch" not in s]


def test_changed_modules_get_copies_and_imports_name_them() -> None:
    result = run("train.py", "-o", "train_ddp.py")
    assert result.exit_code == 0, result.stderr
    assert sorted(os.listdir()) == [
        "distributed_helpers.py",
        "nets.py",
        "train.py",
        "train_ddp.py",
        "utils.py",
        "utils_ddp.py",
    ]
    assert all(Path(name).read_text() == text for name, text in FILES.items())
    assert imports("train_ddp.py") == [
        "from nets import Net",
        "from utils_ddp import save, train_epoch",
        "from distributed_helpers import setup_distributed",
    ]
    assert imports("utils_ddp.py") == ["from distributed_helpers import is_main_process, all_reduce_mean"]
    assert "train.py -> train_ddp.py, utils_ddp.py, distributed_helpers.py" in result.stderr
    assert "utils.py:5  DDP401" in result.stderr


def test_copies_have_the_suffix_of_the_output() -> None:
    run("train.py", "-o", "train_multi.py")
    assert {"utils_multi.py", "distributed_helpers.py"} <= set(os.listdir())
    assert "from utils_multi import save, train_epoch" in imports("train_multi.py")


def test_a_second_time_gives_the_same_files() -> None:
    run("train.py", "-o", "train_ddp.py")
    first = {name: Path(name).read_text() for name in os.listdir()}
    assert run("train.py", "-o", "train_ddp.py").exit_code == 0
    assert {name: Path(name).read_text() for name in os.listdir()} == first


def test_a_module_of_that_name_is_left_alone() -> None:
    Path("distributed_helpers.py").write_text("mine = 1\n")
    run("train.py", "-o", "train_ddp.py")
    assert Path("distributed_helpers.py").read_text() == "mine = 1\n"
    assert "from ddp_helpers import setup_distributed" in imports("train_ddp.py")


def test_standard_output_takes_one_file_only() -> None:
    result = run("train.py")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "writes other files too (utils_ddp.py, distributed_helpers.py)" in result.stderr
    assert sorted(os.listdir()) == sorted(FILES)


def test_the_diff_shows_all_files() -> None:
    result = run("train.py", "--diff")
    heads = [s for s in result.stdout.splitlines() if s.startswith(("--- ", "+++ "))]
    names = [s[4:] for s in heads]
    assert names == ["train.py", "train_ddp.py", "utils.py", "utils_ddp.py", "/dev/null", "distributed_helpers.py"]
    assert sorted(os.listdir()) == sorted(FILES)


def test_in_place_changes_them_all() -> None:
    result = run("train.py", "--in-place")
    assert result.exit_code == 0, result.stderr
    assert sorted(os.listdir()) == sorted([*FILES, "distributed_helpers.py"])
    assert Path("nets.py").read_text() == NETS
    assert "if is_main_process():\n        torch.save(" in Path("utils.py").read_text()
    assert "from utils import save, train_epoch" in imports("train.py")


@pytest.mark.torchrun
def test_they_run_together(project: Path) -> None:
    result = run("train.py", "-o", "train_ddp.py", "--verify")
    assert result.exit_code == 0, result.stderr


def test_an_output_that_would_not_find_its_modules(project: Path) -> None:
    (project / "out").mkdir()
    done = run("train.py", "-o", "out/train_ddp.py")
    assert done.exit_code != 0
    assert "nets.py from its own folder" in done.stderr or "utils.py from its own folder" in done.stderr
    assert sorted(p.name for p in project.rglob("*.py")) == sorted(FILES)
