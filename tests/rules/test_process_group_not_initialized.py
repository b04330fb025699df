"""DDP101: where the set-up stands, by how the script is entered."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.errors import Refused
from ddpify.source import Source
from tests.cases import convert_bytes
from tests.rules.edited import edited, script

CODE = "DDP101"
SPAWNED = """
import multiprocessing
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.ones(8, 4))
model = nn.Linear(4, 1)
{top}

if __name__ == "__main__":
    multiprocessing.set_start_method("{how}")
    {guarded}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for (x,) in loader:
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
"""
LOADER = "loader = DataLoader(data, batch_size=2, num_workers=2)"


def test_a_file_that_workers_import_again_is_set_up_in_its_main_guard() -> None:
    result = edited(SPAWNED.format(top="", how="spawn", guarded=LOADER), CODE)
    assert result.has(f'multiprocessing.set_start_method("spawn")\nsetup_distributed()\n{LOADER}')


@pytest.mark.parametrize("top", [LOADER, 'model = model.to("cuda")'])
def test_what_workers_cannot_repeat(top: str) -> None:
    guarded = LOADER if top != LOADER else "pass"
    text = SPAWNED.format(top=top, how="forkserver", guarded=guarded)
    with pytest.raises(Refused, match=r"train\.py:10: worker processes that are spawned import this file again"):
        convert_source(Source(Path("train.py"), text.encode()))
    convert_source(Source(Path("train.py"), text.replace("forkserver", "fork").encode()))


COMMAND = """
import click
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

@click.command()
@click.option("--device", default="cuda:0")
def main(device):
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in loader:
        loss = model(x.to(device)).mean()
        loss.backward()
        optimizer.step()

main({given})
"""


@pytest.mark.parametrize("given", ["", "standalone_mode=False"])
def test_a_device_that_the_command_line_gives(given: str) -> None:
    result = edited(COMMAND.format(given=given), CODE)
    loader = "loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)"
    assert result.has(f'device = setup_distributed(torch.device(device).type == "cuda")\n{loader}')


TRAINER = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Options:
    def parse(self):
        parser = argparse.ArgumentParser()
        parser.add_argument("--device", default="cuda:0")
        self.args = parser.parse_args()
        return self.args

class Trainer:
    def __init__(self, args):
        self.device = torch.device(args.device)
        self.model = nn.Linear(4, 1).to(self.device)

    def fit(self):
        loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for (x,) in loader:
            loss = self.model(x.to(self.device)).mean()
            loss.backward()
            optimizer.step()

def main():
    opt = Options().parse()
    Trainer(opt).fit()

main()
"""


def test_one_statement_that_runs_two_functions() -> None:
    result = edited(TRAINER, CODE)
    assert result.has(
        "opt = Options().parse()\n"
        'opt.device = setup_distributed(torch.device(opt.device).type == "cuda")\n'
        "Trainer(opt).fit()"
    )


MOVED = """
import argparse
import importlib
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
parser.add_argument("--gpu", type=int, default=0)
parser.add_argument("--no-cuda", action="store_true")
args = parser.parse_args()
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
cuda = not args.no_cuda and torch.cuda.is_available()
model = nn.Linear(4, 1)
MOVES
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    model(x).mean().backward()
    optimizer.step()
"""


def test_a_device_that_a_file_chosen_at_run_time_names() -> None:
    """It may be a GPU: the process is bound to its own, and the group can do both."""
    moves = "config = importlib.import_module(args.kind).Config()\nmodel = model.to(config.device)"
    conversion = convert_source(Source(Path("train.py"), MOVED.replace("MOVES", moves).encode()))
    assert 'torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))' in conversion.text
    assert 'init_process_group("cpu:gloo,cuda:nccl"' in conversion.text
    assert not any("no device code" in f.message for f in conversion.plan.findings)


@pytest.mark.parametrize(("test", "backend"), [("cuda", "cpu:gloo,cuda:nccl"), ("torch.cuda.is_available()", "nccl")])
def test_a_number_of_a_gpu_beside_a_flag_that_leaves_gpus_alone(test: str, backend: str) -> None:
    moves = f"if {test}:\n    torch.cuda.set_device(args.gpu)\n    model = model.cuda()"
    text = convert_source(Source(Path("train.py"), MOVED.replace("MOVES", moves).encode())).text
    assert "args.gpu = setup_distributed()" in text
    assert f'init_process_group("{backend}", device_id=device, **alone)' in text


OPTION = """
import argparse
import json
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda:0"{kind})
args = parser.parse_args()
{before}
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
model = nn.Linear(4, 1).to(args.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        loss = model(x.to(args.device)).mean()
        loss.backward()
        optimizer.step()
        {inside}
"""


@pytest.mark.parametrize(
    ("kind", "before", "inside", "is_text"),
    [
        pytest.param("", "", "args.device.startswith('cuda') and torch.cuda.synchronize()", True, id="a-method"),
        pytest.param("", "amp = args.device == 'cuda'", "", True, id="compared"),
        pytest.param("", "autocast = torch.autocast(args.device)", "", True, id="the-type-that-autocast-takes"),
        pytest.param("", "json.dump(vars(args), open('args.json', 'w'))", "", True, id="written-with-all-options"),
        pytest.param("", "", "print(args.device)", False, id="shown-alone"),
        pytest.param(", type=torch.device", "amp = args.device.type == 'cuda'", "", False, id="a-device-already"),
    ],
)
def test_an_option_that_is_used_as_text_stays_text(kind: str, before: str, inside: str, is_text: bool) -> None:
    text = edited(OPTION.format(kind=kind, before=before, inside=inside or "pass"), CODE).text
    line = 'args.device = setup_distributed(torch.device(args.device).type == "cuda")'
    assert f"{line}{'.type' * is_text}\n" in text


def test_the_current_device_is_the_process_s_own() -> None:
    choice = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")'
    assert choice in script()
    later = "device = 'cpu'\nif torch.cuda.is_available():\n    device = torch.cuda.current_device()"
    text = convert_bytes(script().replace(choice, later).encode()).text
    assert '"cpu:gloo,cuda:nccl" if torch.cuda.is_available()' in text
    assert text.index("\nsetup_distributed()\n") < text.index(f"\n{later}\n")
    at_once = script().replace(choice, "device = torch.cuda.current_device()")
    assert "\ndevice = setup_distributed()\n" in convert_bytes(at_once.encode()).text


CURRENT = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--disable-cuda", action="store_true")
parser.add_argument("--gpu-index", default=0, type=int)

def main():
    args = parser.parse_args()
    if not args.disable_cuda and torch.cuda.is_available():
        args.device = torch.device("cuda")
    else:
        args.device = torch.device("cpu")
        args.gpu_index = -1
    loader = DataLoader(torch.ones(8, 4), batch_size=2)
    net = nn.Linear(4, 1).to(args.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.cuda.device(args.gpu_index):
        for x in loader:
            net(x.to(args.device)).mean().backward()
            optimizer.step()

main()
"""


def test_the_number_of_the_current_gpu_is_no_choice_of_a_device() -> None:
    """`args.gpu_index = setup_distributed(torch.device(args.gpu_index).type == "cuda")` took nccl without a GPU."""
    text = convert_bytes(CURRENT.encode()).text
    assert "\n    setup_distributed()\n" in text
    assert "with torch.cuda.device(torch.cuda.current_device() if torch.cuda.is_available() else -1):" in text


BY_COMMAND = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def train(args):
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in loader:
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), args.model)
    {also}

def evaluate(args):
    model = nn.Linear(4, 1)
    model.load_state_dict(torch.load(args.model))
    data = TensorDataset(torch.ones(7, 4))
    right = 0
    with torch.no_grad():
        for (x,) in DataLoader(data, batch_size=2):
            right += (model(x) > 0).sum().item()
    print(right / len(data))

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="net.pt")
    parser.add_argument("command")
    {ask}
    args = parser.parse_args()
    {run}

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("ask", "run"),
    [
        ("", "if args.command == 'train':\n        train(args)\n    else:\n        evaluate(args)"),
        ("", "{'train': train, 'evaluate': evaluate}[args.command](args)"),
        ("parser.set_defaults(run=train)\n    parser.set_defaults(run=evaluate)", "args.run(args)"),
    ],
)
def test_a_command_that_only_evaluates_has_the_group_too(ask: str, run: str) -> None:
    both = convert_bytes(BY_COMMAND.format(also="evaluate(args)", ask=ask, run=run).encode()).text
    assert (
        f"    args = parser.parse_args()\n    setup_distributed()\n    {run}\n    dist.destroy_process_group()" in both
    )
    assert "    dist.barrier()\n    model.load_state_dict(" in both


def test_a_command_that_trains_alone_keeps_its_set_up() -> None:
    run = "if args.command == 'train':\n        train(args)"
    alone = convert_bytes(BY_COMMAND.format(also="evaluate(args)", ask="", run=run).encode()).text
    assert "def train(args):\n    setup_distributed()" in alone
