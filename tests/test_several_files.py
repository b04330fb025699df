"""A script and its modules -> which files a conversion writes, what they are called, and who imports whom."""

from __future__ import annotations

import os
import subprocess
import sys
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


# ---- packages -------------------------------------------------------------------------------------------------


@pytest.fixture
def package(project: Path) -> Path:
    """utils.py in a package that hands on its names, beside a module that needs no change."""
    (project / "tools").mkdir()
    (project / "utils.py").rename(project / "tools" / "loops.py")
    (project / "tools" / "names.py").write_text('NAME = "net.pt"\n')
    (project / "tools" / "__init__.py").write_text(
        "from .loops import (  # the loop\n    save,\n    train_epoch,\n)\n"
        "from .names import NAME\nfrom . import loops\n"
    )
    return project


def converted(imports: str, save: str = "save", train: str = "train_epoch") -> Result:
    text = TRAIN.replace("from utils import save, train_epoch", imports)
    text = text.replace("save(model", f"{save}(model").replace("train_epoch(model", f"{train}(model")
    Path("train.py").write_text(text)
    return run("train.py", "-o", "train_ddp.py")


def test_a_package_that_hands_on_names_gets_a_copy_beside_it(package: Path) -> None:
    result = converted("from tools import save, train_epoch")
    assert result.exit_code == 0, result.stderr
    assert "from tools_ddp import save, train_epoch" in imports("train_ddp.py")
    assert Path("tools_ddp.py").read_text() == (
        "from tools.loops_ddp import (  # the loop\n    save,\n    train_epoch,\n)\nfrom tools.names import NAME\n"
        "from tools import loops_ddp as loops\n"
    )
    assert {p.name for p in Path("tools").iterdir()} == {"__init__.py", "loops.py", "loops_ddp.py", "names.py"}


@pytest.mark.parametrize(
    ("before", "name", "after"),
    [
        ("import tools", "tools.", "import tools_ddp as tools"),
        ("import tools as t", "t.", "import tools_ddp as t"),
        ("import tools as t", "t.loops.", "import tools_ddp as t"),
        ("from tools import *", "", "from tools_ddp import *"),
        ("from tools import loops", "loops.", "from tools_ddp import loops"),
    ],
)
def test_however_the_package_is_imported(package: Path, before: str, name: str, after: str) -> None:
    result = converted(before, f"{name}save", f"{name}train_epoch")
    assert result.exit_code == 0, result.stderr
    assert after in Path("train_ddp.py").read_text().splitlines()
    assert Path("tools_ddp.py").exists()


def test_a_package_whose_names_nobody_imports_gets_none(package: Path) -> None:
    result = converted("from tools.loops import save, train_epoch")
    assert result.exit_code == 0, result.stderr
    assert "from tools.loops_ddp import save, train_epoch" in imports("train_ddp.py")
    assert not Path("tools_ddp.py").exists()


@pytest.mark.parametrize(
    ("before", "name", "says"),
    [
        ("import tools.loops", "tools.loops.", "train.py:4: `import tools.loops` names a module that has to change"),
        ("import tools, tools.names\ntools.names.NAME", "tools.", "train.py:4: `tools.names` is a module of a"),
        (
            "import tools\ntools.more.x",
            "tools.",
            "train.py:5: `tools.more` is a module of a package that has to change",
        ),
        (
            "from tools import (save, train_epoch,  # of the package\n    more)",
            "",
            "imports names and modules of a package that has to change",
        ),
    ],
)
def test_what_the_copy_of_a_package_would_not_have(package: Path, before: str, name: str, says: str) -> None:
    Path("tools/more.py").write_text("x = 1\n")
    result = converted(before, f"{name}save", f"{name}train_epoch")
    assert result.exit_code == 2
    assert says in result.stderr
    assert "--in-place" in result.stderr
    assert not Path("train_ddp.py").exists()


def test_what_an_init_does_itself_is_changed_in_its_copy(package: Path) -> None:
    """`def save` in `tools/__init__.py`, as in `dataloaders/__init__.py` of many repositories."""
    loops = Path("tools/loops.py")
    loops.rename("tools/__init__.py")
    before = Path("tools/__init__.py").read_text()
    result = converted("from tools import save, train_epoch")
    assert result.exit_code == 0, result.stderr
    assert "if is_main_process():" in Path("tools_ddp.py").read_text()
    assert Path("tools/__init__.py").read_text() == before


def test_an_init_that_nobody_gets_names_from_stays(package: Path) -> None:
    Path("tools/__init__.py").write_text('print("tools")\n')
    result = converted("from tools.loops import save, train_epoch")
    assert result.exit_code == 0, result.stderr
    assert not Path("tools_ddp.py").exists()


def test_a_package_that_looks_at_its_own_path_is_refused(package: Path) -> None:
    with Path("tools/__init__.py").open("a") as file:
        file.write("HERE = __path__\n")
    result = converted("from tools import save, train_epoch")
    assert result.exit_code == 2
    assert "tools/__init__.py:7: it has to change, and uses `__path__`" in result.stderr


def test_the_copy_of_a_package_knows_where_the_package_is(package: Path) -> None:
    """`sys.path.append(os.path.join(os.path.dirname(__file__), "progress"))` in `utils/__init__.py`"""
    with Path("tools/__init__.py").open("a") as file:
        file.write("import os\nHERE = os.path.dirname(os.path.abspath(__file__))\n")
    result = converted("from tools import save, train_epoch")
    assert result.exit_code == 0, result.stderr
    script = "import tools, tools_ddp; print(tools.HERE, tools_ddp.HERE, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(Path("tools").resolve())] * 2


@pytest.mark.torchrun
def test_a_package_runs(package: Path) -> None:
    converted("from tools import save, train_epoch")
    result = run("verify", "train_ddp.py")
    assert result.exit_code == 0, result.stderr


SAVED = {
    "net.py": """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
    def forward(self, x):
        return self.layer(x)
    def save(self, path):
        torch.save(self.state_dict(), path)
    def load(self, path):
        self.load_state_dict(torch.load(path))
""",
    "files.py": """
import os
import torch

def keep(model, name=None):
    def helper(path):
        model.save(path)
    helper("latest.pt")
    if name:
        helper(name + ".pt")

def restore(model):
    if os.path.exists("latest.pt"):
        model.load("latest.pt")
    else:
        keep(model)
""",
    "train.py": """
import torch
from torch.utils.data import DataLoader, TensorDataset
from files import keep, restore
from net import Net

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
model = Net()
restore(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
    keep(model, "best")
""",
}


def test_a_model_that_saves_itself_is_unwrapped_where_it_may_be_either(tmp_path: Path) -> None:
    """Before the wrap and behind it one function calls `model.save(path)`: rank 0 writes, in the method."""
    for name, text in SAVED.items():
        (tmp_path / name).write_text(text)
    result = CliRunner().invoke(cli, [str(tmp_path / "train.py"), "-o", str(tmp_path / "train_ddp.py")])
    assert result.exit_code == 0, result.output
    assert "        unwrap(model).save(path)\n" in (tmp_path / "files_ddp.py").read_text()
    guarded = "        if is_main_process():\n            torch.save(self.state_dict(), path)\n"
    assert guarded in (tmp_path / "net_ddp.py").read_text()


def test_a_module_that_trains_and_is_no_python_3_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script was said to apply a model only."""
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    Path("utils.py").write_text(UTILS.replace("x.to(device)", "x.cuda(async=True)"))
    Path("train.py").write_text(TRAIN)
    result = CliRunner().invoke(cli, ["train.py"], prog_name="ddpify")
    assert result.exit_code == 2
    assert "utils.py:13:" in result.stderr
    assert "this file could not be read: `async=` is a syntax error" in result.stderr
