"""Scripts whose project has packages: run by their path or with -m, and how the copies import each other."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ddpify.cli import cli
from ddpify.package import package_of

LOADERS = """
from torch.utils.data import DataLoader, TensorDataset
import torch

def loaders(batch):
    data = TensorDataset(torch.arange(23.0).unsqueeze(1))
    return DataLoader(data, batch_size=batch, shuffle=True)
"""
LOOP = """
from ..tools import say

def epoch_of(model, loader, optimizer):
    for (x,) in loader:
        loss = model(x / 23).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    say("done")
"""
TOOLS = """
def say(*words):
    print("[app]", *words)
"""
ENTRY = """
import torch
{imports}

def main():
    torch.manual_seed(0)
    loader = {D}loaders(4)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        {E}epoch_of(model, loader, optimizer)
    {T}say("end")

if __name__ == "__main__":
    main()
"""
RELATIVE = "from .data.points import loaders\nfrom .engine.loop import epoch_of\nfrom .tools import say"
ABSOLUTE = "from app.data.points import loaders\nfrom app.engine.loop import epoch_of\nfrom app.tools import say"
DOTTED = "import app.data.points\nimport app.engine.loop\nimport app.tools"
ALIASES = "import app.data.points as D\nfrom app.engine import loop as E\nfrom app import tools"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {"data/points.py": LOADERS, "engine/loop.py": LOOP, "tools.py": TOOLS}
    files |= {"__init__.py": "", "data/__init__.py": "", "engine/__init__.py": ""}
    for name, text in files.items():
        path = tmp_path / "app" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def convert(name: str, imports: str, *, d: str = "", e: str = "", t: str = "") -> Result:
    path = Path(name)
    path.write_text(ENTRY.format(imports=imports, D=d, E=e, T=t))
    result = CliRunner().invoke(cli, [name, "-o", str(path.with_name(f"{path.stem}_ddp.py"))], prog_name="ddpify")
    assert result.exit_code == 0, result.stderr
    return result


def imports(name: str) -> list[str]:
    """The imports of a file that name other files of the project."""
    lines = Path(name).read_text().splitlines()
    return [s for s in lines if s.startswith(("from", "import")) and "torch" not in s and s != "import os"]


def test_a_script_above_its_package() -> None:
    result = convert("train.py", ABSOLUTE)
    assert "torchrun --standalone --nproc-per-node=N train_ddp.py" in result.stderr
    assert imports("train_ddp.py") == [
        "from app.data.points_ddp import loaders",
        "from app.engine.loop_ddp import epoch_of",
        "from app.tools_ddp import say",
        "from distributed_helpers import setup_distributed",
    ]
    assert imports("app/engine/loop_ddp.py") == ["from ..tools_ddp import say"]
    assert imports("app/tools_ddp.py") == ["from distributed_helpers import is_main_process"]


def test_aliases() -> None:
    convert("train.py", ALIASES, d="D.", e="E.", t="tools.")
    assert imports("train_ddp.py")[:3] == [
        "import app.data.points_ddp as D",
        "from app.engine import loop_ddp as E",
        "from app import tools_ddp as tools",
    ]


def test_dotted_imports() -> None:
    convert("train.py", DOTTED, d="app.data.points.", e="app.engine.loop.", t="app.tools.")
    text = Path("train_ddp.py").read_text()
    assert imports("train_ddp.py")[:3] == [
        "import app.data.points_ddp",
        "import app.engine.loop_ddp",
        "import app.tools_ddp",
    ]
    assert "loader = app.data.points_ddp.loaders(4)" in text
    assert "app.engine.loop_ddp.epoch_of(model, loader, optimizer)" in text


def test_a_dotted_name_that_would_be_left_behind() -> None:
    """`importlib` and the like name modules in texts."""
    Path("train.py").write_text(
        ENTRY.format(imports=DOTTED, D="app.data.points.", E="app.engine.loop.", T="print('app.tools'), app.tools.")
    )
    result = CliRunner().invoke(cli, ["train.py", "-o", "train_ddp.py"], prog_name="ddpify")
    assert result.exit_code == 2
    assert "`import app.tools` names a module that has to change" in result.stderr
    assert not Path("train_ddp.py").exists()


def test_an_entry_that_is_run_as_a_module() -> None:
    result = convert("app/train.py", RELATIVE)
    assert "torchrun --standalone --nproc-per-node=N -m app.train_ddp" in result.stderr
    assert imports("app/train_ddp.py")[-1] == "from .distributed_helpers import setup_distributed"
    assert imports("app/tools_ddp.py") == ["from .distributed_helpers import is_main_process"]
    assert Path("app/distributed_helpers.py").exists()


def test_a_module_that_imports_its_package_by_name() -> None:
    result = convert("app/train.py", ABSOLUTE)
    assert "-m app.train_ddp" in result.stderr
    assert imports("app/train_ddp.py")[-1] == "from app.distributed_helpers import setup_distributed"


def test_from_inside_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("app")
    Path("sub").mkdir()
    Path("sub/__init__.py").write_text("")
    result = convert("sub/train.py", RELATIVE.replace("from .", "from .."))
    assert "-m app.sub.train_ddp" in result.stderr
    assert imports("sub/train_ddp.py")[-1] == "from .distributed_helpers import setup_distributed"
    assert imports("tools_ddp.py") == ["from .sub.distributed_helpers import is_main_process"]


def test_from_inside_the_package_whose_part_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`data_ddp.py` beside `data/` names its modules from there, whatever folder the whole lies in."""
    monkeypatch.chdir("app")
    Path("sub").mkdir()
    Path("sub/__init__.py").write_text("")
    Path("data/sizes.py").write_text("SIZE = 23\n")
    Path("data/__init__.py").write_text(f"from .sizes import SIZE\nfrom ..tools import say\n{LOADERS}")
    convert("sub/train.py", RELATIVE.replace("from .data.points", "from .data").replace("from .", "from .."))
    assert "from ..data_ddp import loaders" in imports("sub/train_ddp.py")
    assert {"from .data.sizes import SIZE", "from .tools_ddp import say"} <= set(imports("data_ddp.py"))


@pytest.mark.parametrize("within", ["app/", ""])
def test_a_module_that_imports_from_its_package_whose_init_changes(within: str) -> None:
    """`from . import SIZE` in `data/points.py`, and the loader is made in `data/__init__.py`."""
    if not within:
        Path("app/data").rename("data")
    Path(f"{within}data/__init__.py").write_text(f"SIZE = 23\nfrom .points import shown\n{LOADERS}")
    Path(f"{within}data/points.py").write_text("from . import SIZE\n\ndef shown():\n    print(SIZE)\n")
    name = f"{within}data".replace("/", ".")
    script = ABSOLUTE.replace("app.data.points import loaders", f"{name} import loaders, shown")
    convert("train.py", f"{script}\nshown()")
    assert f"from {'..' if within else ''}data_ddp import SIZE" in imports(f"{within}data/points_ddp.py")
    assert f"from {name}_ddp import loaders, shown" in imports("train_ddp.py")
    subprocess.run([sys.executable, "-c", f"import {name}_ddp"], check=True, cwd=".")


def test_a_script_in_a_folder_beside_what_it_imports() -> None:
    Path("tools").mkdir()
    result = convert("tools/train.py", ABSOLUTE)
    assert "torchrun --standalone --nproc-per-node=N -m tools.train_ddp" in result.stderr
    assert "from app.data.points_ddp import loaders" in imports("tools/train_ddp.py")
    assert imports("tools/train_ddp.py")[-1] == "from tools.distributed_helpers import setup_distributed"
    assert imports("app/tools_ddp.py") == ["from tools.distributed_helpers import is_main_process"]


def test_a_script_with_a_search_path_of_its_own() -> None:
    Path("tools").mkdir()
    result = convert("tools/train.py", f"import sys\nsys.path.append('.')\n{ABSOLUTE}")
    assert "torchrun --standalone --nproc-per-node=N tools/train_ddp.py" in result.stderr
    assert "from app.data.points_ddp import loaders" in imports("tools/train_ddp.py")
    assert imports("app/tools_ddp.py") == ["from distributed_helpers import is_main_process"]


def test_a_script_in_a_folder_that_is_no_package() -> None:
    """`PYTHONPATH=. python experiments/wide-net/train.py`: a hyphen is in no module's name."""
    Path("experiments/wide-net").mkdir(parents=True)
    Path("app/data/__init__.py").write_text(f"from .points import torch\n{LOADERS}")
    result = convert("experiments/wide-net/train.py", PACKAGE)
    assert "PYTHONPATH=. torchrun --standalone --nproc-per-node=N experiments/wide-net/train_ddp.py" in result.stderr
    assert "from app.data_ddp import loaders" in imports("experiments/wide-net/train_ddp.py")
    assert "from app.data.points import torch" in Path("app/data_ddp.py").read_text()
    assert imports("app/tools_ddp.py") == ["from distributed_helpers import is_main_process"]


def test_a_script_that_imports_from_beside_itself_and_from_above() -> None:
    """`python -m experiments.train` would not find `settings`."""
    Path("experiments").mkdir()
    Path("experiments/settings.py").write_text("RATE = 0.1\n")
    result = convert("experiments/train.py", f"from settings import RATE\n{ABSOLUTE}")
    assert "PYTHONPATH=. torchrun --standalone --nproc-per-node=N experiments/train_ddp.py" in result.stderr
    assert "from app.data.points_ddp import loaders" in imports("experiments/train_ddp.py")
    assert imports("app/tools_ddp.py") == ["from distributed_helpers import is_main_process"]
    assert Path("experiments/distributed_helpers.py").exists()


def test_names_that_come_by_a_star_from_above() -> None:
    """`from shared import *` of a file above the script's folder: the loader was said not to be there."""
    Path("experiments").mkdir()
    Path("experiments/nets.py").write_text("from torch import nn\n")
    Path("shared.py").write_text(ABSOLUTE + "\n")
    result = convert("experiments/train.py", "from nets import *\nfrom shared import *")
    assert "PYTHONPATH=. torchrun --standalone --nproc-per-node=N experiments/train_ddp.py" in result.stderr
    assert "DistributedSampler(data)" in Path("app/data/points_ddp.py").read_text()
    assert "from app.tools_ddp import say" in Path("shared_ddp.py").read_text()


PACKAGE = ABSOLUTE.replace("app.data.points", "app.data")


@pytest.mark.parametrize("where", ["os.path.join(here, '..', 'lib')", "os.path.abspath('../lib')", "'../lib'"])
def test_a_module_beside_the_script_that_sets_the_search_path(project: Path, where: str) -> None:
    """`import _init_paths`: what lies in `lib` was not found, and the script was said to train nothing."""
    (project / "app").rename(project / "lib")
    (project / "lib" / "__init__.py").unlink()
    (project / "lib" / "engine" / "loop.py").write_text(LOOP.replace("..tools", "tools"))
    (project / "tools").mkdir()
    paths = f"import os\nimport sys\nhere = os.path.dirname(__file__)\nsys.path.insert(0, {where})\n"
    (project / "tools" / "_init_paths.py").write_text(paths)
    convert("tools/train.py", "import _init_paths\n" + ABSOLUTE.replace("app.", ""))
    assert "DistributedSampler(data)" in (project / "lib" / "data" / "points_ddp.py").read_text()
    assert "from engine.loop_ddp import epoch_of" in (project / "tools" / "train_ddp.py").read_text()


def test_a_package_beside_the_script_whose_init_changes() -> None:
    """`app/data/__init__.py` makes the loader, and the script is in `tools/`."""
    Path("tools").mkdir()
    Path("app/data/__init__.py").write_text(LOADERS)
    convert("tools/train.py", PACKAGE)
    assert "from app.data_ddp import loaders" in imports("tools/train_ddp.py")
    assert "DistributedSampler(data)" in Path("app/data_ddp.py").read_text()


@pytest.mark.torchrun
@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("app/train", RELATIVE),
        ("app/train", ABSOLUTE),
        ("app/train", PACKAGE.replace("app.", ".")),
        ("tools/train", ABSOLUTE),
        ("tools/train", PACKAGE),
        ("tools/train", f"import sys\nsys.path.append('.')\n{ABSOLUTE}"),
    ],
)
def test_it_runs(script: str, text: str) -> None:
    Path("tools").mkdir()
    Path("app/data/__init__.py").write_text(f"from ..tools import say\nfrom .points import torch\n{LOADERS}")
    convert(f"{script}.py", text)
    result = CliRunner().invoke(cli, ["verify", f"{script}_ddp.py"], prog_name="ddpify")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("head", ["# Generated by the schema compiler.", "#!/usr/bin/env python\n# DO NOT EDIT!"])
def test_generated_files_stay(head: str) -> None:
    Path("app/data/points.py").write_text(f"{head}\n{LOADERS}")
    Path("train.py").write_text(ENTRY.format(imports=ABSOLUTE, D="", E="", T=""))
    result = CliRunner().invoke(cli, ["train.py", "--in-place"], prog_name="ddpify")
    assert result.exit_code == 2
    assert "`DataLoader(data, batch_size=batch, shuffle=True)` is made in points.py:" in result.stderr
    assert Path("app/data/points.py").read_text() == f"{head}\n{LOADERS}"


def test_words_about_generated_things_are_no_mark() -> None:
    Path("app/data/points.py").write_text(f'"""Points that are generated by a rule."""\n{LOADERS}')
    convert("train.py", ABSOLUTE)
    assert Path("app/data/points_ddp.py").exists()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from . import tools", "app"),
        ("from .. import app", "above.app"),
        ("import app.tools", "app"),
        ("import tools", None),
        ("import torch", None),
        ("from . import (", None),
    ],
)
def test_package_of(tmp_path: Path, text: str, name: str | None) -> None:
    script = tmp_path / "above" / "app" / "train.py"
    script.parent.mkdir(parents=True)
    (script.parent / "__init__.py").write_text("")
    found = package_of(script, textwrap.dedent(text))
    assert (found.name if found is not None else None) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import points", None),  # beside it
        ("import nets", "deep.tools"),
        ("from nets.wide import Net", "deep.tools"),
        ("from nets import wide", "deep.tools"),
        ("from nets.tall import Net", None),
        ("import json", None),
        ("import sys\nsys.path.append('../..')\nimport nets", None),
    ],
)
def test_what_lies_above(tmp_path: Path, text: str, name: str | None) -> None:
    script = tmp_path / "deep" / "tools" / "train.py"
    script.parent.mkdir(parents=True)
    script.with_name("points.py").write_text("")
    (tmp_path / "nets").mkdir()
    for path in ("nets/__init__.py", "nets/wide.py", "points.py", "json.py"):
        (tmp_path / path).write_text("")
    found = package_of(script, text)
    assert (found.name if found is not None else None) == name
