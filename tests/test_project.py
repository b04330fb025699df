"""An entry script in, the local modules that it imports out, found as Python would find them."""

from __future__ import annotations

from pathlib import Path

import libcst as cst
import pytest

from ddpify.facts import Facts, collect
from ddpify.project import Project, _is_installed
from ddpify.source import Source, read_source, walk

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
"""
TRAIN = """
loader = DataLoader(data, batch_size=4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
"""
NET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)
"""


def write(folder: Path, files: dict[str, str]) -> Project:
    """Write files (the first is the entry); the project over them."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Project(read_source(folder / next(iter(files))))


def understood(folder: Path, files: dict[str, str]) -> Facts:
    return collect(write(folder, files), converting=True)


def names(project: Project) -> list[str]:
    root = project.entry.path.parent
    return sorted(str(s.path.relative_to(root)) for s in project.files())


# ---- finding ------------------------------------------------------------------------------------------

TREE = {
    "train.py": "",
    "nets.py": "",
    "pack/__init__.py": "",
    "pack/inner.py": "",
    "pack/deep/__init__.py": "",
    "pack/deep/leaf.py": "",
    "bare/part.py": "",
    "both.py": "",
    "both/__init__.py": "",
}


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("nets", "nets.py"),
        ("pack", "pack/__init__.py"),
        ("pack.inner", "pack/inner.py"),
        ("pack.deep", "pack/deep/__init__.py"),
        ("pack.deep.leaf", "pack/deep/leaf.py"),
        ("bare.part", "bare/part.py"),
        ("train", "train.py"),
        ("bare", None),
        ("torch", None),
        ("pack.nothing", None),
        ("nets.inner", None),
    ],
)
def test_find(name: str, file: str | None, tmp_path: Path) -> None:
    found = write(tmp_path, TREE).find(name)
    assert (found.path.relative_to(tmp_path) if found else None) == (Path(file) if file else None)


def test_a_package_goes_before_a_module_of_its_name(tmp_path: Path) -> None:
    """As in Python: of `both.py` and `both/__init__.py` the folder is imported."""
    found = write(tmp_path, TREE).find("both")
    assert found is not None
    assert found.path == tmp_path / "both" / "__init__.py"


@pytest.mark.parametrize(
    ("importer", "name", "level", "file"),
    [
        ("pack/inner.py", "deep", 1, "pack/deep/__init__.py"),
        ("pack/inner.py", "deep.leaf", 1, "pack/deep/leaf.py"),
        ("pack/inner.py", "", 1, "pack/__init__.py"),
        ("pack/__init__.py", "inner", 1, "pack/inner.py"),
        ("pack/deep/leaf.py", "inner", 2, "pack/inner.py"),
        ("pack/deep/leaf.py", "", 2, "pack/__init__.py"),
        ("pack/deep/__init__.py", "leaf", 1, "pack/deep/leaf.py"),
        ("pack/inner.py", "nothing", 1, None),
    ],
)
def test_find_relative(importer: str, name: str, level: int, file: str | None, tmp_path: Path) -> None:
    project = write(tmp_path, TREE)
    found = project.find(name, level, read_source(tmp_path / importer))
    assert (found.path.relative_to(tmp_path) if found else None) == (Path(file) if file else None)


def test_files_are_read_once_and_only_when_asked_for(tmp_path: Path) -> None:
    project = write(tmp_path, TREE)
    assert names(project) == ["train.py"]
    assert project.find("nets") is project.find("nets")
    assert project.find("train") is project.entry
    assert names(project) == ["nets.py", "train.py"]


@pytest.mark.parametrize("text", ["def f(:\n", "print 'x'\n", "x = 1\0", "# coding: klingon\n"])
def test_what_cannot_be_read_stays_unknown(text: str, tmp_path: Path) -> None:
    facts = understood(
        tmp_path, {"train.py": HEAD + "from data import data\nmodel = nn.Linear(2, 2)\n" + TRAIN, "data.py": text}
    )
    assert names(facts.project) == ["train.py"]
    assert len(facts.roles.training_loaders) == 1


# ---- followed -----------------------------------------------------------------------------------------


def trained(facts: Facts) -> list[tuple[str, str]]:
    """File and text of what made each trained module."""
    found = []
    for module in facts.roles.trained:
        site = module.site
        found.append((site.source.path.relative_to(facts.source.path.parent).as_posix(), site.source.code(site.node)))
    return found


@pytest.mark.parametrize(
    ("imports", "makes"),
    [
        ("import nets", "nets.Net()"),
        ("import nets as n", "n.Net()"),
        ("from nets import Net", "Net()"),
        ("from nets import Net as N", "N()"),
        ("from nets import *", "Net()"),
        ("import pack.inner", "pack.inner.Net()"),
        ("import pack.inner as pi", "pi.Net()"),
        ("from pack import inner", "inner.Net()"),
        ("from pack.inner import Net", "Net()"),
        ("from pack import Net", "Net()"),
        ("import pack", "pack.Net()"),
        ("from pack import Renamed", "Renamed()"),
        ("from pack.star import *", "Net()"),
        ("from bare.part import Net", "Net()"),
        ("import bare.part as part", "part.Net()"),
        ("from nets import registry", "registry['net']()"),
        ("from nets import build", "build()"),
        ("from pack.deep.leaf import build", "build()"),
        ("if True:\n    from nets import Net", "Net()"),
        ("try:\n    from nets import Net\nexcept ImportError:\n    Net = None", "Net()"),
    ],
)
def test_a_model_is_followed_into_another_file(imports: str, makes: str, tmp_path: Path) -> None:
    net = HEAD + NET
    facts = understood(
        tmp_path,
        {
            "train.py": f"{HEAD}{imports}\ndata = torch.randn(8, 2)\nmodel = {makes}\n{TRAIN}",
            "nets.py": net + "\nregistry = {'net': Net}\n\n\ndef build(**kw):\n    return Net(**kw)\n",
            "pack/__init__.py": "from .inner import Net\nfrom pack.inner import Net as Renamed\n",
            "pack/inner.py": net,
            "pack/star.py": "from .inner import *\n",
            "pack/deep/__init__.py": "",
            "pack/deep/leaf.py": "from ..inner import Net\n\n\ndef build():\n    model = Net()\n    return model\n",
            "bare/part.py": net,
        },
    )
    assert len(facts.roles.trained) == 1
    assert facts.roles.trained[0].cls is not None
    assert facts.roles.trained[0].cls.name == "Net"
    assert [p.target for p in facts.wrap_points] == ["model"]


def test_star_import_leaves_private_names_alone(tmp_path: Path) -> None:
    facts = understood(
        tmp_path,
        {
            "train.py": HEAD
            + "model = nn.Linear(2, 2)\ndata = torch.randn(8, 2)\n_x = model\nfrom names import *\nmodel = _x\n"
            + TRAIN,
            "names.py": "_x = None\ny = 1\n",
        },
    )
    assert trained(facts) == [("train.py", "nn.Linear(2, 2)")]


@pytest.mark.parametrize("listed", ["__all__ = ['model']", "__all__ = ('model',)"])
def test_star_import_takes_what_is_listed(listed: str, tmp_path: Path) -> None:
    facts = understood(
        tmp_path,
        {
            "train.py": HEAD
            + "model = None\nhidden = nn.Linear(2, 2)\nfrom names import *\ndata = torch.randn(8, 2)\n"
            + TRAIN,
            "names.py": HEAD + f"{listed}\nmodel = nn.Linear(3, 3)\nhidden = None\n",
        },
    )
    assert trained(facts) == [("names.py", "nn.Linear(3, 3)")]


LOOP = """
import torch


def fit(net, batches):
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(3):
        for x in batches:
            net(x).sum().backward()
            optimizer.step()
"""


def test_a_loop_in_another_file(tmp_path: Path) -> None:
    made = "data = torch.randn(8, 2)\nmodel = nn.Linear(2, 2)\nloader = DataLoader(data)\n"
    train = f"{HEAD}from loop import fit\n{made}fit(model, loader)\n"
    facts = understood(tmp_path, {"train.py": train, "loop.py": LOOP})
    assert trained(facts) == [("train.py", "nn.Linear(2, 2)")]
    assert [loader.site.source.path.name for loader in facts.roles.training_loaders] == ["train.py"]
    loops = [e.loop for e in facts.roles.epoch_loops]
    assert [loop and loop.frame.source.path.name for loop in loops] == ["loop.py"]


def test_files_that_import_each_other(tmp_path: Path) -> None:
    facts = understood(
        tmp_path,
        {
            "train.py": HEAD + "from a import make\ndata = torch.randn(8, 2)\nmodel = make()\n" + TRAIN,
            "a.py": "import b\n\n\ndef make():\n    return b.make()\n",
            "b.py": "import a\nfrom torch import nn\n\n\ndef make():\n    return nn.Linear(2, 2)\n",
        },
    )
    assert trained(facts) == [("b.py", "nn.Linear(2, 2)")]


def test_the_entry_imported_by_another_file(tmp_path: Path) -> None:
    facts = understood(
        tmp_path,
        {
            "train.py": HEAD
            + "import a\nSIZE = 2\ndata = torch.randn(8, 2)\nif __name__ == '__main__':\n    model = a.make()\n"
            + TRAIN.replace("\n", "\n    ").rstrip()
            + "\n",
            "a.py": "from torch import nn\n\n\ndef make():\n    import train\n    return nn.Linear(train.SIZE, 2)\n",
        },
    )
    assert trained(facts) == [("a.py", "nn.Linear(train.SIZE, 2)")]


def test_guarded_code_of_an_imported_file_does_not_run(tmp_path: Path) -> None:
    facts = understood(
        tmp_path,
        {
            "train.py": HEAD + "import other\ndata = torch.randn(8, 2)\nmodel = nn.Linear(2, 2)\n" + TRAIN,
            "other.py": HEAD
            + "if __name__ == '__main__':\n    data = 1\n    model = nn.Linear(3, 3)\n"
            + TRAIN.replace("\n", "\n    "),
        },
    )
    assert trained(facts) == [("train.py", "nn.Linear(2, 2)")]


def test_the_same_text_in_two_files_is_two_files(tmp_path: Path) -> None:
    project = write(tmp_path, {"train.py": "x = 1\n", "a.py": "x = 1\n"})
    a = project.find("a")
    assert a is not None
    assert {type(n) for n in walk(a.module)} == {type(n) for n in walk(project.entry.module)}
    assert isinstance(a.module, cst.Module)
    assert a is not project.entry


def test_standard_input_has_no_folder() -> None:
    project = Project(Source(Path("<stdin>"), b"import nowhere_at_all\n"))
    assert project.find("nowhere_at_all") is None


def test_what_lies_beside_an_installed_package_is_no_module_of_it(tmp_path: Path) -> None:
    """`import torch`, in a package in site-packages, is what it is elsewhere: another project."""
    for name in ("mine/__init__.py", "mine/train.py", "mine/tools.py", "torch/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("from . import tools\n" if name == "mine/train.py" else "")
    project = Project(read_source(tmp_path / "mine/train.py"))
    assert project.find("torch") is not None
    (tmp_path / "torch-2.9.0.dist-info").mkdir()
    _is_installed.cache_clear()
    project = Project(read_source(tmp_path / "mine/train.py"))
    assert project.find("torch") is None
    assert project.find("mine.tools") is not None
