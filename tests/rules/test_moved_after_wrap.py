"""DDP208: a model that is on the CPU while a function saves it, and what else the function asks of it."""

from __future__ import annotations

import pytest

from ddpify.errors import Refused
from tests.cases import convert_bytes

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width, self.layer = width, nn.Linear(4, width)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        return self.layer(x)


def save(model, path):
    device = next(model.parameters()).device
    model.cpu()
    facts = {asks}
    torch.save(model.state_dict(), path)
    model.to(device)
    return facts


loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
net = Net(int(input())).to("cuda")
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        net(x.cuda()).mean().backward()
        optimizer.step()
    print(save(net, "net.pt"))
"""


@pytest.mark.parametrize("asks", ["{}", "dict(width=model.width)", "[model.width, len(str(model.width))]"])
def test_a_number_of_the_model_is_on_no_device(asks: str) -> None:
    text = convert_bytes(SCRIPT.replace("{asks}", asks).encode()).text
    assert "model.cpu()" not in text
    assert "torch.save({k: v.cpu() for k, v in model.state_dict().items()}, path)" in text
    assert "model.to(device)" not in text


@pytest.mark.parametrize("asks", ["model.layer.weight.numpy()", "model.seen.numpy()", "model(torch.ones(1, 4))"])
def test_what_was_moved_with_it_is(asks: str) -> None:
    with pytest.raises(Refused, match=r"`model.cpu\(\)` moves a wrapped model"):
        convert_bytes(SCRIPT.replace("{asks}", asks).encode())
