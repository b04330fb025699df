"""DDP201: where the wrap stands, by what holds the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.errors import Refused
from ddpify.source import Source
from tests.cases import convert_bytes
from tests.rules.edited import clean, edited

HEAD = """
import types
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader

loader = DataLoader(torch.ones(8, 4))
"""


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        pytest.param(
            """
            def stepper(net, optimizer):
                def step(x):
                    net(x).mean().backward()
                    optimizer.step()
                return step
            model = nn.Linear(4, 1)
            step = stepper(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for x in loader:
                step(x)
            """,
            "model = nn.Linear(4, 1)\nmodel = DDP(model)",
            id="a-closure",
        ),
        pytest.param(
            """
            @dataclass
            class Config:
                rounds: int
                net: nn.Module
            def run(cfg):
                optimizer = torch.optim.SGD(cfg.net.parameters(), lr=0.1)
                for x in loader:
                    cfg.net(x).mean().backward()
                    optimizer.step()
            model = nn.Linear(4, 1)
            run(Config(2, model))
            """,
            "model = nn.Linear(4, 1)\nmodel = DDP(model)",
            id="a-dataclass",
        ),
        pytest.param(
            """
            def build():
                net = nn.Linear(4, 1)
                return types.SimpleNamespace(net=net)
            it = build()
            optimizer = torch.optim.SGD(it.net.parameters(), lr=0.1)
            for x in loader:
                it.net(x).mean().backward()
                optimizer.step()
            """,
            "    net = nn.Linear(4, 1)\n    net = DDP(net)\n    return types.SimpleNamespace(net=net)",
            id="a-namespace",
        ),
        pytest.param(
            """
            def train(net, data):
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                for x in data:
                    net(x).mean().backward()
                    optimizer.step()
                return net
            net = train(nn.Linear(4, 1), loader)
            """,
            "net = DDP(nn.Linear(4, 1))\nnet = train(net, loader)",
            id="one-statement",
        ),
        pytest.param(
            """
            net = 3
            def train(net, data):
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                for x in data:
                    net(x).mean().backward()
                    optimizer.step()
            train(nn.Linear(4, 1), loader)
            print(net)
            """,
            "net_2 = DDP(nn.Linear(4, 1))\ntrain(net_2, loader)",
            id="one-statement-and-the-name-is-taken",
        ),
        pytest.param(
            """
            model = nn.Linear(4, 1)
            if len(loader) > 3:
                if torch.cuda.is_available():
                    model = model.cuda()
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for x in loader:
                    model(x).mean().backward()
                    optimizer.step()
            else:
                model.load_state_dict(torch.load("net.pt"))
                if torch.cuda.is_available():
                    model = model.cuda()
                print(model(torch.ones(1, 4)))
            """,
            "        model = model.cuda()\n    model = DDP(model)\n    optimizer",
            id="moved-in-the-branch-that-trains",
        ),
        pytest.param(
            """
            if len(loader) > 3:
                model = nn.Linear(4, 1)
            else:
                model = nn.Sequential(nn.Linear(4, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for x in loader:
                model(x).mean().backward()
                optimizer.step()
            """,
            "    model = nn.Sequential(nn.Linear(4, 1))\nmodel = DDP(model)\n",
            id="either-of-two",
        ),
    ],
)
def test_the_wrap(body: str, lines: str) -> None:
    found = edited(HEAD + clean(body) + "\n", "DDP201")
    assert lines in found.text
    assert found.text.count("DDP(") == 1
    assert not found.left


ITSELF = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

    def forward(self, x):
        return self.layer(x)

    def fit(self, data):
        for x in data:
            self(x).mean().backward()
            self.optimizer.step()

    def check(self, data):
        with torch.no_grad():
            return [self(x) for x in data]

"""


def test_a_module_that_trains_itself() -> None:
    """Its own training calls the wrapper; all else is done with the module as it is."""
    found = edited(HEAD + ITSELF + "net = Net()\nnet.fit(loader)\nnet.check(loader)\n", "DDP201")
    assert found.has("""
        model = DDP(self)
        for x in data:
            model(x).mean().backward()
        """)
    assert "[self(x) for x in data]" in found.text
    assert not found.left


def test_a_module_that_trains_itself_in_a_loop_of_others_is_refused() -> None:
    body = "net = Net()\nfor epoch in range(3):\n    net.fit(loader)\n"
    assert ["is called in a loop" in message for message in edited(HEAD + ITSELF + body, "DDP201").left] == [True]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("train(load(), nn.Linear(4, 1))", id="something-is-evaluated-before-it"),
        pytest.param("[train(loader, nn.Linear(4, 1)) for _ in range(2)]", id="it-is-made-in-a-comprehension"),
        pytest.param("train(loader, nn.Linear(4, 1), 'cuda')", id="it-is-moved-in-the-function"),
    ],
)
def test_a_model_in_a_statement_whose_order_would_change_is_refused(call: str) -> None:
    body = f"""
    def load():
        return DataLoader(torch.rand(8, 4))
    def train(data, net, device=None):
        {"net.to(device)" if "cuda" in call else "pass"}
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x in data:
            net(x).mean().backward()
            optimizer.step()
    {call}
    """
    found = edited(HEAD + clean(body) + "\n", "DDP201")
    assert ["made and trained in one statement" in message for message in found.left] == [True]


UNKNOWN = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from zoo import Net
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
net = Net(width=4).to("cpu")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        net(x).mean().backward()
        optimizer.step()
    print(net.sample(3))
torch.save(net.state_dict(), "net.pt")
"""


def test_a_model_of_an_unknown_library_is_one_like_others() -> None:
    """It is known by its use alone, behind the wrap: set-up comes before it, and what is asked of it is asked of it."""
    text = convert_source(Source(Path("train.py"), UNKNOWN.encode())).text
    assert text.index("\nsetup_distributed()\n") < text.index("net = Net(width=4)") < text.index("net = DDP(net)")
    assert "net.module.sample(3)" in text
    assert 'torch.save(net.module.state_dict(), "net.pt")' in text


PARTS = """
import torch
from torch.utils.data import DataLoader
{imports}
device = torch.device("cuda")
net = {net}.to(device)
{freezing}
loader = DataLoader(torch.ones(8, 4))
optimizer = torch.optim.SGD([{{"params": net.head.parameters()}}], lr=0.1)
for epoch in range(2):
    for x in loader:
        net(x.to(device)).mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("imports", "net"),
    [
        ("from torchvision.models import resnet18", "resnet18()"),
        ("from somewhere import Net", "Net(width=4)"),
        ("import somewhere", "somewhere.build({})"),
    ],
)
@pytest.mark.parametrize(
    "freezing",
    [
        "for p in net.body.layer1.parameters():\n    p.requires_grad = False",
        "for name, p in net.body.named_parameters():\n    p.requires_grad = 'fc' in name",
        "net.body.requires_grad_(False)",
        "for p in net.parameters():\n    p.requires_grad = False\n"
        "for p in net.get_classifier().parameters():\n    p.requires_grad = True",
    ],
)
def test_parts_of_a_model_that_is_not_there_are_frozen_before_the_wrap(imports: str, net: str, freezing: str) -> None:
    """DDP waits for the gradients of all that trained when it was made: it raises in the second step.

    And an optimizer that has parts of such a model trains it.
    """
    script = PARTS.format(imports=imports, net=net, freezing=freezing)
    text = convert_source(Source(Path("train.py"), script.encode())).text
    assert f"{freezing}\nnet = DDP(net, " in text
    assert "net.module.head.parameters()" in text


def test_a_forward_that_gives_a_loss_on_one_way_and_more_on_another() -> None:
    body = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)
        def forward(self, x, all=False):
            out = self.layer(x)
            if all:
                return out.mean(), out
            return out.mean()
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in loader:
        net(x).backward()
        optimizer.step()
    """
    assert "net = DDP(net)" in edited(HEAD + clean(body) + "\n", "DDP201").text


FROZEN = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
parser = argparse.ArgumentParser()
parser.add_argument("--tune", action="store_true")
args = parser.parse_args()
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
head = nn.Linear(4, 1)
{switch}
optimizer = torch.optim.SGD({parameters}, lr=0.1)
for (x,) in loader:
    {step}
    optimizer.step()
torch.save(body.state_dict(), "body.pt")
"""
BOTH = "[*body.parameters(), *head.parameters()]"
TOGETHER = "head(body(x)).mean().backward()"


@pytest.mark.parametrize(
    ("switch", "parameters", "step", "doubt"),
    [
        pytest.param("body.requires_grad_(args.tune)", BOTH, TOGETHER, True, id="a-flag"),
        pytest.param(
            "for p in body.parameters():\n    p.requires_grad = args.tune", BOTH, TOGETHER, True, id="each-parameter"
        ),
        pytest.param("if not args.tune:\n    body.requires_grad_(False)", BOTH, TOGETHER, True, id="under-a-test"),
        pytest.param(
            "body[0].requires_grad_(False)\nbody[2].requires_grad_(args.tune)", BOTH, TOGETHER, True, id="part-by-part"
        ),
        pytest.param("body[0].requires_grad_(args.tune)", BOTH, TOGETHER, False, id="a-part"),
        pytest.param(
            "for x in list(body.children())[:1]:\n    for p in x.parameters():\n        p.requires_grad_(False)",
            BOTH,
            TOGETHER,
            False,
            id="a-slice",
        ),
        pytest.param(
            'for n, p in body.named_parameters():\n    if "2" in n:\n        p.requires_grad = False',
            BOTH,
            TOGETHER,
            False,
            id="by-name",
        ),
        pytest.param("body.requires_grad_(False)\nbody[2].requires_grad_()", BOTH, TOGETHER, False, id="freed-again"),
        pytest.param(
            "body.requires_grad_(False)\nbody.last = nn.Linear(4, 4)", BOTH, TOGETHER, False, id="a-new-layer"
        ),
        pytest.param(
            "body.requires_grad_(args.tune)",
            "filter(lambda p: p.requires_grad, body.parameters())",
            "body(x).mean().backward()",
            False,
            id="a-loss-of-it-alone",
        ),
    ],
)
def test_a_model_that_may_be_frozen_is_wrapped_where_it_trains(
    switch: str, parameters: str, step: str, doubt: bool
) -> None:
    """DDP refuses a module without a parameter that is trained; the script itself would raise in the last case."""
    script = FROZEN.format(switch=switch, parameters=parameters, step=step)
    text = convert_source(Source(Path("train.py"), script.encode())).text
    asked = "if any(p.requires_grad for p in body.parameters()):\n    body = DDP(body)\n"
    assert (asked in text) is doubt
    assert "body = DDP(body)" in text
    assert ("unwrap(body).state_dict()" in text) is doubt


NORM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
{device}
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
{model}
optimizer = torch.optim.SGD({parameters}, lr=0.1)
for (x,) in loader:
    x = x{to}
    {loss}.backward()
    optimizer.step()
"""
CHOICE = 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")'


@pytest.mark.parametrize(
    ("device", "model", "parameters", "loss", "to", "line"),
    [
        pytest.param(
            CHOICE,
            "one = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to(device)",
            "one.parameters()",
            "one(x).mean()",
            ".to(device)",
            'if device.type == "cuda":\n    one = torch.nn.SyncBatchNorm.convert_sync_batchnorm(one)\n',
            id="the-device",
        ),
        pytest.param(
            "",
            "nets = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda() for _ in range(2)]",
            "[p for net in nets for p in net.parameters()]",
            "sum(net(x).mean() for net in nets)",
            ".cuda()",
            "nets = [torch.nn.SyncBatchNorm.convert_sync_batchnorm(net) if next(net.parameters()).is_cuda else net "
            "for net in nets]\nnets = [DDP(net) for net in nets]",
            id="a-list",
        ),
    ],
)
def test_sync_bn_stands_before_the_wrap(
    device: str, model: str, parameters: str, loss: str, to: str, line: str
) -> None:
    script = NORM.format(device=device, model=model, parameters=parameters, loss=loss, to=to).encode()
    assert line in convert_source(Source(Path("train.py"), script), sync_bn=True).text
    assert "SyncBatchNorm" not in convert_source(Source(Path("train.py"), script)).text


@pytest.mark.parametrize(
    ("device", "model", "to", "why"),
    [
        (CHOICE, "one = nn.Linear(4, 4).to(device)", ".to(device)", "no trained model has BatchNorm"),
        ("", "one = nn.BatchNorm1d(4)", "", "trains on the CPU"),
    ],
)
def test_sync_bn_says_where_it_changes_nothing(device: str, model: str, to: str, why: str) -> None:
    one = {"parameters": "one.parameters()", "loss": "one(x).mean()"}
    script = NORM.format(device=device, model=model, to=to, **one).encode()
    made = convert_source(Source(Path("train.py"), script), sync_bn=True)
    assert "SyncBatchNorm" not in made.text
    assert any(why in note.message for note in made.plan.notes)


LOSSES = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Learned(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))
    def forward(self, out):
        return (out * self.scale.exp()).pow(2).mean()

def run(net, loader, optimizer, criterion, train=True):
    net = net.train() if train else net.eval()
    total = 0.0
    for (x,) in loader:
        loss = criterion(net(x))
        if train:
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total

net = nn.Linear(4, 1)
criterion = Learned() if "learned" in sys.argv else LOSS
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
if isinstance(criterion, nn.Module):
    optimizer.add_param_group({"params": list(criterion.parameters())})
for epoch in range(2):
    run(net, DataLoader(TensorDataset(torch.ones(8, 4)), 2), optimizer, criterion)
    with torch.no_grad():
        run(net, DataLoader(TensorDataset(torch.ones(6, 4)), 2), optimizer, criterion, train=False)
"""


@pytest.mark.parametrize("loss", ["lambda out: out.mean()", "torch.sum"])
def test_what_may_be_a_function_is_wrapped_where_it_is_a_module(loss: str) -> None:
    text = convert_source(Source(Path("train.py"), LOSSES.replace("LOSS", loss).encode())).text
    test = "if isinstance(criterion, torch.nn.Module) and any(p.requires_grad for p in criterion.parameters()):"
    assert f"\n{test}\n    criterion = DDP(criterion)\n" in text
    assert "unwrap(criterion), train=False)" in text


def test_a_parameter_that_is_put_into_train_mode_is_wrapped_by_the_caller() -> None:
    text = convert_source(Source(Path("train.py"), LOSSES.replace("LOSS", "torch.sum").encode())).text
    assert "\nnet = nn.Linear(4, 1)\nnet = DDP(net)\n" in text
    assert "    if train:\n        [total] = all_reduce_mean(total)\n" in text


TRAINER = """
import torch
from torch import nn
from torch.utils.data import DataLoader

class Trainer:
    def __init__(self, cuda):
        self.net = nn.Linear(4, 1)
        if cuda:
            self.net = self.net.cuda()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def run(self, loader):
        for x in loader:
            self.net(x).mean().backward()
            self.optimizer.step()

Trainer(torch.cuda.is_available()).run(DataLoader(torch.ones(8, 4)))
"""


def test_a_model_that_some_runs_move_is_wrapped_in_all_runs() -> None:
    text = convert_source(Source(Path("train.py"), TRAINER.encode())).text
    assert "            self.net = self.net.cuda()\n        self.net = DDP(self.net)\n" in text


APPLIED = """
import torch
from torch import nn
from torch.utils.data import DataLoader

def adjust(layer):
    if isinstance(layer, nn.BatchNorm1d):
        layer.momentum *= 0.5

loader = DataLoader(torch.ones(8, 4))
net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    net = net.apply(adjust)
    net = net.train()
    for x in loader:
        net(x).mean().backward()
        optimizer.step()
"""


def test_what_apply_gives_back_is_the_wrapper_still() -> None:
    text = convert_source(Source(Path("train.py"), APPLIED.encode())).text
    assert "\nnet = DDP(net)\n" in text
    assert "    net = net.apply(adjust)\n    net = net.train()\n" in text


REGISTRY = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader

{classes}
class Trainer:
    def __init__(self, args, kind):
        if "large" in args.name:
            body = nn.Linear(4, 4)
            self.net = kind(body).to("cpu")
        else:
            table = torch.zeros(3)
            self.net = kind(table).to("cpu")

    def run(self):
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        for x in DataLoader(torch.ones(8, 4)):
            self.net(x).mean().backward()
            optimizer.step()

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="large1")
args = parser.parse_args()
kinds = {{{kinds}}}
Trainer(args, kinds[args.name]).run()
"""
KIND = """class Kind{0}(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.layer = nn.Linear(4, {0} + 1)

    def forward(self, x):
        return self.layer(x)

"""


@pytest.mark.parametrize("number", [1, 2, 15])
def test_models_of_two_branches_are_wrapped_behind_both_however_many_kinds_there_are(number: int) -> None:
    classes = "".join(KIND.format(i) for i in range(number))
    script = REGISTRY.format(classes=classes, kinds=", ".join(f'"large{i}": Kind{i}' for i in range(number)))
    text = convert_source(Source(Path("train.py"), script.encode())).text
    assert '            self.net = kind(table).to("cpu")\n        self.net = DDP(self.net)\n' in text
    assert text.count("DDP(self") == 1


SWITCHED = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader

class Net(nn.Module):
    def __init__(self, scaled):
        super().__init__()
        self.scaled = scaled
        self.layer = nn.Linear(4, 1)
        {makes}

    def one(self, x):
        return self.layer(x) * (1 + self.scale)

    def other(self, x):
        return self.layer(x)

    def forward(self, x):
        {forward}

parser = argparse.ArgumentParser()
parser.add_argument("--scaled", action="store_true")
args = parser.parse_args()
net = Net({given})
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in DataLoader(torch.ones(8, 4)):
    net(x).mean().backward()
    optimizer.step()
"""
SCALE = "self.scale = nn.Parameter(torch.zeros(1))"


@pytest.mark.parametrize(
    ("makes", "forward", "given", "looked_for"),
    [
        pytest.param(SCALE, "return self.one(x) if self.scaled else self.other(x)", "args.scaled", True, id="a-choice"),
        pytest.param(
            SCALE,
            "if self.scaled: return self.one(x)\n        return self.other(x)",
            "args.scaled",
            True,
            id="a-way-out",
        ),
        pytest.param(
            SCALE,
            "if not self.scaled: y = self.other(x)\n        elif x.ndim > 1 and self.scaled: y = self.one(x)\n"
            "        return y",
            "args.scaled",
            True,
            id="a-chain",
        ),
        pytest.param(
            f"if scaled: {SCALE}",
            "if self.scaled: return self.one(x)\n        return self.other(x)",
            "args.scaled",
            False,
            id="made-by-the-same-switch",
        ),
        pytest.param(
            f"self.scale = None\n        if scaled: {SCALE}",
            "if self.scaled: return self.one(x)\n        return self.other(x)",
            "args.scaled",
            False,
            id="none-where-it-is-off",
        ),
        pytest.param(
            f"{SCALE} if scaled else None",
            "if self.scaled: return self.one(x)\n        return self.other(x)",
            "args.scaled",
            False,
            id="made-or-none",
        ),
        pytest.param(
            SCALE,
            "if self.scaled: return self.one(x)\n        return self.one(-x)",
            "args.scaled",
            False,
            id="either-way",
        ),
        pytest.param(
            SCALE,
            "if self.scaled: y = self.one(x)\n        else: y = self.scale * x\n        return y",
            "args.scaled",
            False,
            id="on-both-sides",
        ),
        pytest.param(
            SCALE,
            "if self.scaled: return self.one(x)\n        return self.other(x)",
            "True",
            False,
            id="on-for-certain",
        ),
    ],
)
def test_a_parameter_that_a_switch_may_leave_out_is_looked_for(
    makes: str, forward: str, given: str, looked_for: bool
) -> None:
    script = SWITCHED.format(makes=makes, forward=forward, given=given)
    text = convert_source(Source(Path("train.py"), script.encode())).text
    assert f"net = DDP(net{', find_unused_parameters=True' * looked_for})\n" in text


KEYED = """
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--aux", action="store_true")
parser.add_argument("--load")
args = parser.parse_args()
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
models = {{}}
models["body"] = nn.Linear(4, 3)
{made}
optimizer = torch.optim.SGD([p for m in models.values() for p in m.parameters()], lr=0.1)
{late}
for (x,) in loader:
    h = models["body"](x)
    loss = h.square().mean()
    if args.aux:
        loss = loss + models["aux"](h).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ONE = "if args.aux:\n    models['aux'] = nn.Linear(3, 1)"


@pytest.mark.parametrize(
    ("made", "late", "wrap"),
    [
        (ONE, "", '    models[\'aux\'] = nn.Linear(3, 1)\n    models["aux"] = DDP(models["aux"])\n'),
        (
            ONE,
            "for key in models:\n    models[key].to('cpu')",
            'if "aux" in models:\n    models["aux"] = DDP(models["aux"])\n',
        ),
        (
            ONE + "\nelse:\n    models['aux'] = nn.Sequential(nn.Linear(3, 1))",
            "",
            '    models[\'aux\'] = nn.Sequential(nn.Linear(3, 1))\nmodels["aux"] = DDP(models["aux"])\n',
        ),
    ],
)
def test_a_model_that_some_runs_do_not_put_into_the_dict(made: str, late: str, wrap: str) -> None:
    text = convert_bytes(KEYED.format(made=made, late=late).encode()).text
    assert wrap in text
    assert text.count('models["aux"] = DDP') == 1


def test_the_best_of_several_objects_has_a_wrapped_model() -> None:
    body = """
        class Learner:
            def __init__(self, width):
                self.net = nn.Linear(4, width)
                self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
                self.loss = 0.0

            def step(self, x):
                loss = self.net(x).square().mean()
                loss.backward()
                self.optimizer.step()
                self.loss += loss.item()

        learners = [Learner(width) for width in (2, 3)]
        for x in loader:
            for one in learners:
                one.step(x)
        best = min(learners, key=lambda one: one.loss)
        first = sorted(learners, key=lambda one: one.loss)[0]
        torch.save([best.net.state_dict(), first.net.state_dict()], "best.pt")
        """
    text = convert_source(Source(Path("train.py"), f"{HEAD}{clean(body)}\n".encode())).text
    assert "torch.save([best.net.module.state_dict(), first.net.module.state_dict()]" in text


COLLECTED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
student, embed, teacher = nn.Linear(4, 3), nn.Linear(3, 2), nn.Linear(4, 2)
{frozen}
gathered = nn.ModuleList([student, embed])
{more}
gathered.to("cpu")
optimizer = torch.optim.SGD(gathered.parameters(), lr=0.1)
for (x,) in loader:
    loss = (embed(student(x)) - teacher(x)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(gathered.state_dict(), "both.pt")
"""


@pytest.mark.parametrize("more", ["", "gathered.append(teacher)"])
def test_models_that_a_list_gathers_for_an_optimizer_are_wrapped_each(more: str) -> None:
    text = convert_bytes(COLLECTED.format(frozen="teacher.requires_grad_(False)", more=more).encode()).text
    for name in ("student", "embed"):
        assert text.index('gathered.to("cpu")') < text.index(f"\n{name} = DDP({name})\n")
    assert "DDP(teacher)" not in text
    assert "DDP(gathered)" not in text
    assert 'torch.save(gathered.state_dict(), "both.pt")' in text


def test_a_model_that_a_list_gathers_and_nothing_calls_is_refused() -> None:
    text = COLLECTED.format(frozen="idle = nn.Linear(2, 2)", more="gathered.append(idle)")
    with pytest.raises(Refused, match="no training forward calls"):
        convert_bytes(text.encode())


@pytest.mark.parametrize(("part", "made"), [("fc", "resnet18"), ("classifier", "squeezenet1_1")])
def test_a_model_whose_exchanged_head_alone_is_trained_is_wrapped_whole(part: str, made: str) -> None:
    """The head was taken for a model by itself, and the script was refused."""
    body = f"""
from torchvision.models import {made}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = {made}()
        self.net.{part} = nn.Linear(4, 2)

    def forward(self, x):
        return self.net(x)

    def head(self):
        return torch.optim.SGD(self.net.{part}.parameters(), lr=0.1)

model = Net()
optimizer = model.head()
for x in loader:
    model(x).mean().backward()
    optimizer.step()
"""
    assert edited(HEAD + body, "DDP201").has("model = Net()\nmodel = DDP(model)\n")


TRAINERS = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Fitting:
    def loaders(self, part):
        train = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
        return (train, None) if part == "train" else (DataLoader(TensorDataset(torch.ones(4, 4))), None)

    def fit(self, epochs=2):
        loader, _ = self.loaders("train")
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        for epoch in range(epochs):
            for (x,) in loader:
                optimizer.zero_grad()
                self.model(x).mean().backward()
                optimizer.step()


class Trainer(Fitting):
    def __init__(self, model):
        self.model = model


def small():
    Trainer(nn.Linear(4, 1)).fit()


def deep():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    Trainer(model).fit()


def wide():
    model = nn.Linear(4, 100)
    Trainer(model).fit()


if __name__ == "__main__":
    deep()
    {called}
"""


def test_a_training_function_that_nothing_calls_is_named_and_stands_in_no_other_s_way() -> None:
    found = convert_bytes(TRAINERS.format(called="small()").encode())
    assert found.text.count("DDP(") == 2  # of deep() and of small()
    assert "sampler=DistributedSampler(" in found.text
    assert "distributed=" not in found.text
    assert [f.message for f in found.plan.notes if "nothing calls it" in f.message] == [
        "`wide` trains, but nothing calls it: no model of it is wrapped, no loader of it shared"
    ]


def test_nothing_is_said_of_training_functions_that_are_called() -> None:
    found = convert_bytes(TRAINERS.format(called="small(), wide()").encode())
    assert found.text.count("DDP(") == 3
    assert not [f for f in found.plan.notes if "nothing calls it" in f.message]


@pytest.mark.parametrize(
    "trunk",
    [
        "nn.Sequential(*list(resnet.children())[:-2])",
        "nn.Sequential(*list(resnet.children()))",
        "nn.Sequential(*resnet.children(), nn.Flatten(2))",
        "Trunk()",
        "Trunk(tune=False)",
    ],
)
def test_layers_of_another_model_are_trained_where_they_are_taken_over(trunk: str) -> None:
    """A trunk without a layer of its own was held to have no parameters, and each rank trained its own."""
    text = f"""{HEAD}
import torchvision

class Trunk(nn.Module):
    def __init__(self, tune=True):
        super().__init__()
        resnet = torchvision.models.resnet18()
        layers = list(resnet.children())[:-2]
        self.net = nn.Sequential(*layers)
        for p in self.net.parameters():
            p.requires_grad = False
        for child in list(self.net.children())[5:]:
            for p in child.parameters():
                p.requires_grad = tune

    def forward(self, x):
        return self.net(x)

resnet = torchvision.models.resnet18()
encoder = {trunk}
decoder = nn.Linear(512, 1)
optimizers = [torch.optim.Adam(net.parameters()) for net in (encoder, decoder)]
for x in loader:
    loss = decoder(encoder(x).mean((2, 3))).mean()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
"""
    result = convert_bytes(text.encode()).text
    assert "encoder = DDP(encoder)" in result
    assert "decoder = DDP(decoder)" in result


@pytest.mark.parametrize(
    ("made", "step"),
    [
        ("torch.zeros(4, 5, 1)", "outs[:, t] = head(state)"),
        ("torch.empty(5, 4, 1)", "outs[t] = head(state)"),
        ("torch.zeros(len(x), 5, 1)", "outs[:, t] = head(state)"),
        ("torch.zeros_like(x[..., :1])", "outs[:, t, :] = head(state)"),
    ],
)
def test_outputs_that_a_loop_writes_into_a_tensor_lead_back_to_the_model(made: str, step: str) -> None:
    text = f"""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 5, 4)), batch_size=4)
cell, head = nn.GRUCell(4, 6), nn.Linear(6, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
for (x,) in loader:
    state, outs = torch.zeros(len(x), 6), {made}
    for t in range(5):
        state = cell(x[:, t], state)
        {step}
    loss = outs.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    result = convert_bytes(text.encode()).text
    assert "head = DDP(head)" in result
    assert "cell = DDP(cell)" in result


def test_outputs_without_gradients_in_a_tensor_lead_back_to_no_model() -> None:
    text = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)
net, teacher = nn.Linear(4, 1), nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (x,) in loader:
    wanted = torch.zeros(4, 1)
    with torch.no_grad():
        wanted[:] = teacher(x)
    loss = (net(x) - wanted).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    result = convert_bytes(text.encode()).text
    assert "net = DDP(net)" in result
    assert "DDP(teacher)" not in result
