"""DDP201: where the wrap stands, by what holds the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.source import Source
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
