"""Loaders and states that a comprehension makes, and classes that are looked up in globals()."""

from __future__ import annotations

import pytest

from tests.cases import convert_bytes

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parts = {{"train": torch.ones(8, 4), "val": torch.ones(4, 4)}}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        return self.out(x)


class Trainer:
    def __init__(self, name):
        self.model = {net}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loaders = {loaders}

    def fit(self):
        for (x,) in self.loaders["train"]:
            self.model(x).mean().backward()
            self.optimizer.step()
        torch.save({{key: getattr(self, key).state_dict() for key in ("model", "optimizer")}}, "all.pt")


Trainer("Net").fit()
"""


@pytest.mark.parametrize(
    ("loader", "gives"),
    [
        (
            "DataLoader(TensorDataset(d), batch_size=2, shuffle=k == 'train')",
            "DataLoader(train_set := TensorDataset(d), batch_size=2, sampler=DistributedSampler(train_set",
        ),
        (
            "DataLoader(dataset=TensorDataset(d), batch_size=2, shuffle=k == 'train')",
            "DataLoader(dataset=(train_set := TensorDataset(d)), batch_size=2, sampler=DistributedSampler(train_set",
        ),
        (
            "DataLoader(shuffle=k == 'train', dataset=TensorDataset(d), batch_size=2)",
            "DataLoader(sampler=DistributedSampler(TensorDataset(d)",
        ),
    ],
)
def test_a_dataset_of_each_turn_of_a_comprehension_is_named_in_it(loader: str, gives: str) -> None:
    text = SCRIPT.format(net="Net()", loaders=f"{{k: {loader} for k, d in parts.items()}}")
    assert gives in convert_bytes(text.encode()).text


@pytest.mark.parametrize("net", ["Net()", "globals()['Net']()", "globals()[name]()"])
def test_what_has_no_wrapper_is_asked_as_it_is(net: str) -> None:
    loaders = "{k: DataLoader(TensorDataset(d), batch_size=2) for k, d in parts.items()}"
    text = convert_bytes(SCRIPT.format(net=net, loaders=loaders).encode()).text
    assert '{key: unwrap(getattr(self, key)).state_dict() for key in ("model", "optimizer")}' in text


def test_models_that_a_comprehension_makes_are_made_in_the_function_around_it() -> None:
    script = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make(width):
    return nn.Linear(4, width)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
    nets = [make(width).to(device) for width in (1, 2)]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    for (x,) in loader:
        for net, optimizer in zip(nets, optimizers):
            net(x.to(device)).mean().backward()
            optimizer.step()


main()
"""
    text = convert_bytes(script.encode()).text
    assert "    device = setup_distributed()\n" in text
    assert 'torch.device("cuda" if' not in text
