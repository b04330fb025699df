"""Classes that a script looks up by a name that it puts together, and settings that a file may replace."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ddpify.convert import convert
from ddpify.errors import Refused
from tests.cases import convert_bytes

SCRIPT = """\
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
{before}

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
net = {made}
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()
{after}
"""
NETS = """\
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        print("made")

    def forward(self, x):
        return self.layer(x)

def make():
    return Net()
"""


def script(before: str = "", made: str = "nn.Linear(4, 1)", after: str = "") -> str:
    return SCRIPT.format(before=textwrap.dedent(before).strip(), made=made, after=textwrap.dedent(after).strip())


@pytest.mark.parametrize(
    "made",
    [
        'eval("nets." + sys.argv[1] + ".make")()',
        'eval(f"nets.{sys.argv[1]}.Net")()',
        'eval("nets.{}.make".format(sys.argv[1]))()',
        'eval("nets.net.make")()',
        "eval(sys.argv[1]).make()",
        'eval("ma" + sys.argv[1])()',
    ],
)
def test_the_model_is_found_by_a_name_that_is_put_together(made: str, tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "__init__.py").write_text("import nets.net\nimport nets.other\n")
    (tmp_path / "nets" / "net.py").write_text(NETS)
    (tmp_path / "nets" / "other.py").write_text(NETS.replace('        print("made")\n', ""))
    before = "from nets import net as first\nfrom nets.net import make\nimport nets"
    (tmp_path / "train.py").write_text(script(before, made))
    found = convert(tmp_path / "train.py", suffix="_ddp")
    assert "net = DDP(net)" in found.text
    if "nets." in made:
        package = {path.name: changed.text for path, changed in found.files.items()}["nets_ddp.py"]
        # as attributes of the copy, where the name is looked up
        assert package == "import nets.net_ddp as net\nimport nets.other as other\n"


def test_a_text_that_is_no_name_stays_a_text() -> None:
    found = convert_bytes(script("size = eval(sys.argv[1])", "nn.Linear(size, 1)").encode())
    assert "net = DDP(net)" in found.text


def test_a_name_whose_module_the_copy_does_not_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "__init__.py").write_text("from .net import Net\n")
    (tmp_path / "nets" / "net.py").write_text(NETS)
    (tmp_path / "train.py").write_text(script("import nets", 'eval("nets." + sys.argv[1] + ".make")()'))
    with pytest.raises(Refused, match="names a module of a package that has to change"):
        convert(tmp_path / "train.py", suffix="_ddp")


@pytest.mark.parametrize(
    ("line", "copies"),
    [
        ("from tools import say, net, Other", "from tools_ddp import say, Other\nfrom tools import net_ddp as net"),
        (
            "if True:\n    from tools import (\n        net as n, say as tell,\n    )",
            "if True:\n    from tools_ddp import say as tell\n    from tools import net_ddp as n",
        ),
        ("import os; from tools import plain, say", "import os; from tools_ddp import say; from tools import plain"),
    ],
)
def test_names_and_modules_of_one_import(line: str, copies: str, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text('def say(x):\n    print(x)\n\nOther = 3\nprint("tools")\n')
    (tmp_path / "tools" / "net.py").write_text(NETS + 'print("nets")\n')
    (tmp_path / "tools" / "plain.py").write_text("WIDTH = 4\n")
    (tmp_path / "train.py").write_text(script(line))
    assert copies in convert(tmp_path / "train.py", suffix="_ddp").text


SHOW = """\
import torch
from settings import config

def save(x):
    torch.save(x, "x.pt")

def show(x):
    if not config{asks}:
        return
    save(x)
"""


@pytest.mark.parametrize(
    ("settings", "asks", "replaced"),
    [
        ('config = {"debug": False}', '["debug"]', "for k, v in json.load(open(p)).items():\n        config[k] = v"),
        ('config = {"debug": False}', '["debug"]', "config.update(json.load(open(p)))"),
        (
            'config = {"run": {"debug": False}}',
            '["run"]["debug"]',
            'for k, v in json.load(open(p)).items():\n        config["run"][k] = v',
        ),
        (
            "from easydict import EasyDict\nconfig = EasyDict()\nconfig.run = EasyDict()\nconfig.run.debug = False",
            ".run.debug",
            "for k, v in json.load(open(p)).items():\n        for n, w in v.items():\n            config[k][n] = w",
        ),
        (
            "from yacs.config import CfgNode\nconfig = CfgNode()\nconfig.run = CfgNode()\nconfig.run.debug = False",
            ".run.debug",
            "config.merge_from_file(p)",
        ),
    ],
)
@pytest.mark.parametrize("given", [True, False])
def test_what_a_file_may_turn_on_is_guarded(
    settings: str, asks: str, replaced: str, given: bool, tmp_path: Path
) -> None:
    (tmp_path / "settings.py").write_text(f"import json\n{settings}\n\ndef read(p):\n    {replaced}\n")
    (tmp_path / "shows.py").write_text(SHOW.format(asks=asks))
    call = "read(sys.argv[1])" if given else ""
    (tmp_path / "train.py").write_text(
        script(f"from settings import read\nfrom shows import show\n{call}", after="show(x)")
    )
    files = {path.name: changed.text for path, changed in convert(tmp_path / "train.py", suffix="_ddp").files.items()}
    # what nothing turns on is not written
    assert ("shows_ddp.py" in files) is given
    if given:
        assert 'if is_main_process():\n        torch.save(x, "x.pt")' in files["shows_ddp.py"]


def test_a_writer_in_a_dict_is_used_by_rank_0_alone() -> None:
    text = convert_bytes(
        script(
            'out = {"writer": SummaryWriter("runs"), "steps": 0}\nout["writer"].add_text("a", "b")',
            after='out["writer"].close()\nprint(out["steps"])',
        ).encode()
    ).text
    assert 'if is_main_process():\n    out["writer"].add_text("a", "b")' in text
    assert 'if is_main_process():\n    out["writer"].close()' in text


@pytest.mark.parametrize(
    ("ids", "size", "changed"),
    [
        ("gpus", "4 * len(gpus)", "4"),
        ("list(gpus)", "len(gpus) * 4", "4"),
        ("None", "4 * len(gpus)", "4 * len(gpus)"),
        ("[0]", "4 * len(sys.argv)", "4 * len(sys.argv)"),
    ],
)
def test_batches_for_all_gpus_of_a_process_become_one_gpu_s(ids: str, size: str, changed: str) -> None:
    text = script('gpus = [int(i) for i in sys.argv[1].split(",")]', f"nn.DataParallel(nn.Linear(4, 1), {ids})")
    text = text.replace("batch_size=2", f"batch_size={size}")
    assert f"batch_size={changed}, sampler=" in convert_bytes(text.encode()).text


MANY = "from torch import nn\n" + "".join(
    f"class Net{at}(nn.Module):\n    def __init__(self):\n        super(Net{at}, self).__init__()\n"
    "        self.layer = nn.Linear(4, 1)\n\n    def forward(self, x):\n        return self.layer(x)\n\n"
    for at in range(12)
)
FROM_FILE = """
import importlib.util
spec = importlib.util.spec_from_file_location("nets", sys.argv[2])
nets = importlib.util.module_from_spec(spec)
spec.loader.exec_module(nets)
"""


@pytest.mark.parametrize(
    ("before", "made"),
    [
        ("import nets", "getattr(nets, sys.argv[1])()"),
        ("from nets import *", "eval(sys.argv[1])().to('cpu')"),
        ("from nets import *", "globals()[sys.argv[1]]()"),
        (FROM_FILE, "nets.Net3()"),
    ],
)
def test_one_of_many_models_is_wrapped_and_named(before: str, made: str, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(MANY)
    (tmp_path / "train.py").write_text(script(before, made, "torch.save(net.state_dict(), 'net.pt')"))
    found = convert(tmp_path / "train.py")
    assert "net = DDP(net)" in found.text
    assert "torch.save(net.module.state_dict(), 'net.pt')" in found.text
    assert any("known at run time only: ddpify has not looked into" in f.message for f in found.plan.notes)


def test_of_many_things_that_train_nothing_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(MANY.replace("class Net", "class Loss"))
    (tmp_path / "train.py").write_text(script("import nets\nloss = getattr(nets, sys.argv[1])()", "nn.Linear(4, 1)"))
    assert "known at run time" not in " ".join(f.message for f in convert(tmp_path / "train.py").plan.notes)


def test_a_class_that_names_itself_is_looked_up_by_its_name(tmp_path: Path) -> None:
    nets = """\
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super(Block, self).__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(x)

    class Net(nn.Module):
        def __init__(self):
            super(Net, self).__init__()
            self.block, self.head = Block(), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(self.block(x))
    """
    settings = """\
    class Settings:
        def __init__(self, parts):
            self.parts = parts

        def __getitem__(self, name):
            return self.parts[name]

        def build(self, name, module, *args, **more):
            given = dict(self[name]["args"])
            given.update(more)
            return getattr(module, self[name]["type"])(*args, **given)
    """
    (tmp_path / "nets.py").write_text(textwrap.dedent(nets))
    (tmp_path / "settings.py").write_text(textwrap.dedent(settings))
    before = "import json\nimport nets\nfrom settings import Settings\nsettings = Settings(json.load(open('run.json')))"
    (tmp_path / "train.py").write_text(script(before, "settings.build('net', nets)"))
    found = convert(tmp_path / "train.py")
    assert "net = DDP(net)" in found.text
    assert "known at run time" not in " ".join(f.message for f in found.plan.notes)
