"""DDP209 where its examples are too small."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert
from ddpify.helpers import names_for
from ddpify.source import Source
from tests.rules.edited import edited, script

CODE = "DDP209"
SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Patched(nn.DataParallel):
    pass


def patch(net):
    assert isinstance(net, nn.DataParallel)


loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
net = nn.DataParallel(nn.Linear(4, 1))
patch(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (x,) in loader:
    net(x).mean().backward()
    optimizer.step()
"""


def test_what_insists_on_it_is_left_with_the_call() -> None:
    result = edited(SCRIPT, CODE)
    assert result.has("assert isinstance(net, nn.DataParallel)")
    assert result.has("class Patched(nn.DataParallel):")
    assert any(f.left for f in result.plan.left)
    assert result.left[0].startswith("`patch(net)` insists on nn.DataParallel (line 12 of train.py)")


@pytest.mark.parametrize(
    ("line", "name"),
    [("from tools import *", "torch"), ("import torch as t", "t"), ("torch = 3", "torch_"), ("import os", "torch")],
)
def test_torch_that_comes_by_a_star_is_used(line: str, name: str) -> None:
    source = Source(Path("train.py"), f"{line}\nprint(torch.ones(2))\n".encode())
    assert names_for(source)["torch"] == name


@pytest.mark.parametrize("test", ["", "if torch.cuda.device_count() > 1:\n    "])
def test_the_wrap_takes_its_place_and_its_comments_go(test: str) -> None:
    text = SCRIPT.replace(
        "net = nn.DataParallel(nn.Linear(4, 1))",
        f"net = zoo.make()\n# several GPUs\n{test}net = nn.DataParallel(net)\n",
    )
    result = edited(
        text.replace("import torch\n", "import torch\nimport zoo\n", 1).replace("patch(net)\n", ""), "DDP201", CODE
    )
    assert "net = DDP(net)\n" in result.text
    assert "several GPUs" not in result.text
    assert "nn.DataParallel(net)" not in result.text


@pytest.mark.parametrize(("made", "old"), [("load_url('https://host/net.pth')", False), ("read('net.pth')", True)])
def test_weights_that_a_library_gives_out_are_not_the_old_scripts(made: str, old: bool) -> None:
    start = f"model.load_state_dict(model_zoo.{made}, strict=False)\nmodel = nn.DataParallel(model)"
    result = edited(script(imports="from torch.utils import model_zoo", before=start), "DDP201", CODE)
    assert ("consume_prefix_in_state_dict_if_present" in result.text) is old


@pytest.mark.parametrize(
    ("saved", "gives"),
    [
        ("{'net': model.module if use_cuda else model}", "{'net': model.module}"),
        ("(model.module if use_cuda else model).state_dict()", "(model.module).state_dict()"),
    ],
)
def test_the_module_of_either(saved: str, gives: str) -> None:
    start = "use_cuda = torch.cuda.is_available()\nif use_cuda:\n    model.cuda()\n    model = nn.DataParallel(model)"
    text = script(before=start, after=f"torch.save({saved}, 'net.pt')")
    result = edited(text, "DDP201", "DDP202", "DDP203", CODE)
    assert "    model.cuda()\nmodel = DDP(model, " in result.text
    assert f"torch.save({gives}, 'net.pt')" in result.text


def test_what_is_multiplied_by_the_number_of_gpus() -> None:
    start = """
    class Options:
        pass

    opt = Options()
    opt.size = 2
    opt.workers = 1
    count = torch.cuda.device_count()
    if count > 1:
        opt.size = opt.size * count
        opt.workers = opt.workers * count
    points = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=opt.size, num_workers=int(opt.workers))
    model = nn.DataParallel(model)
    """
    text = script(before=start).replace("for (x,) in loader:\n        loss", "for (x,) in points:\n        loss")
    assert "if count > 1:\n    pass\npoints = DataLoader(" in edited(text, CODE).text


@pytest.mark.parametrize(
    ("loop", "cut"),
    [
        ("for k, v in state.items():\n    new[k[7:]] = v", True),
        ("for k in list(state):\n    new[k.split('.', 1)[1]] = state[k]", True),
        ("for k, v in state.items():\n    new['layer.' + k.split('.', 2)[1]] = v", False),
        ("for name in os.listdir('data'):\n    new[name[7:]] = name", False),
    ],
)
def test_only_keys_lose_their_prefix(loop: str, cut: bool) -> None:
    load = f"state, new = torch.load('old.pt'), {{}}\n{loop}\n"
    text = SCRIPT.replace("import torch\n", "import os\nimport torch\n", 1).replace(
        "net = nn.Data", load + "net = nn.Data"
    )
    assert ("startswith" in edited(text, CODE).text) == cut


def test_a_test_around_several_wraps_goes_with_them() -> None:
    text = SCRIPT.replace(
        "net = nn.DataParallel(nn.Linear(4, 1))",
        "net, other = zoo.make(), zoo.make()\nif several:\n    net = nn.DataParallel(net)\n"
        "    other = nn.DataParallel(other)\nprint(other)\n",
    )
    result = edited(text, CODE)
    assert "several" not in result.text
    assert result.has("net, other = zoo.make(), zoo.make()\nprint(other)")


def test_the_name_of_another_ddp_is_left_alone() -> None:
    text = script(imports="from apex.parallel import DistributedDataParallel as DDP").encode()
    source = Source(Path("train.py"), text)
    assert names_for(source).line("DDP") == "from torch.nn.parallel import DistributedDataParallel"


def test_wraps_in_two_files(tmp_path: Path) -> None:
    made = "from torch import nn\n\ndef make():\n    net = nn.DataParallel(nn.Linear(4, 1))\n    return net\n"
    (tmp_path / "nets.py").write_text(made)
    text = SCRIPT.replace("patch(net)\n", "").replace("import torch\n", "import torch\nimport nets\n", 1)
    text = text.replace("net = nn.DataParallel(nn.Linear(4, 1))", "net = nets.make()\nnet = nn.DataParallel(net)")
    (tmp_path / "train.py").write_text(text)
    assert "net = nn.DataParallel(net)" not in convert(tmp_path / "train.py").text


@pytest.mark.parametrize(
    ("save", "bare"),
    [
        ("torch.save(net.module.state_dict(), 'net.pt')", True),
        ("inner = net.module if hasattr(net, 'module') else net\ntorch.save(inner.state_dict(), 'net.pt')", True),
        ("torch.save(net.state_dict(), 'net.pt')", False),
        ("torch.save(net.module.state_dict(), 'net.pt')\ntorch.save(net.state_dict(), 'all.pt')", False),
    ],
)
def test_a_script_that_saves_the_bare_model_has_no_prefix_to_lose(save: str, bare: bool) -> None:
    """Its checkpoints are as they were: nothing is cut off when they are loaded, and the old script reads the new."""
    text = (
        "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)\nnet = nn.Linear(4, 1)\n"
        "net.load_state_dict(torch.load('net.pt'))\nnet = nn.DataParallel(net)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for (x,) in loader:\n    net(x).mean().backward()\n    optimizer.step()\n" + save + "\n"
    )
    result = edited(text, CODE)
    assert ("consume_prefix_in_state_dict_if_present" in result.text) is not bare
    notes = [message for message in result.left if "old script" in message]
    assert bool(notes) is not bare
