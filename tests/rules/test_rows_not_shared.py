"""DDP308: what is said and named where whole tensors are shared out by rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.errors import Refused
from ddpify.source import Source
from tests.rules.edited import edited

SCRIPT = """\
import torch
from torch import nn

x, y = torch.rand(12, 4), torch.rand(12, 2)
net = nn.Sequential(nn.Linear(4, 2){layer})
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def fit(net, steps):
    for step in range(steps):
        loss = (net(x) - y).pow(2).{form}()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {back}


print(fit(net, 3))
"""


def text_of(layer: str = "", form: str = "mean", back: str = "loss.item()") -> str:
    return edited(SCRIPT.format(layer=layer, form=form, back=back), "DDP308").text


def test_tensors_of_an_outer_scope_get_names_of_their_own() -> None:
    text = text_of()
    assert "    x_rows, y_rows, row_weight = rows_of_rank(x, y)\n    for step in range(steps):" in text
    assert "loss = (net(x_rows) - y_rows).pow(2).mean()" in text


def test_a_number_behind_the_loop_is_of_all_rows() -> None:
    assert "    [mean_loss] = all_reduce_mean(loss.item() * row_weight)\n    return mean_loss" in text_of()
    text = text_of(back="loss")
    assert "    [mean_loss] = all_reduce_mean(loss.item() * row_weight)\n    return torch.tensor(mean_loss)" in text


def test_a_sum_is_made_one_over_all_rows() -> None:
    text = text_of(form="sum")
    assert "(loss * dist.get_world_size()).backward()" in text
    assert "[total_loss] = all_reduce_sum(loss.item())" in text


def test_batch_norm_is_named() -> None:
    told = edited(SCRIPT.format(layer=", nn.BatchNorm1d(2)", form="mean", back="loss.item()"), "DDP308").left
    assert [t[:45] for t in told] == ["BatchNorm takes its statistics of each rank's"]
    assert edited(SCRIPT.format(layer="", form="mean", back="loss.item()"), "DDP308").left == []


@pytest.mark.parametrize("rows", ["12", "rows"])
def test_a_view_of_a_fixed_number_of_rows_is_refused(rows: str) -> None:
    """A rank has fewer: `x.view(batch_size, steps, -1)`"""
    net = f"""\
rows = 12
class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)
    def forward(self, x):
        return self.out(x.view({rows}, -1))
net = Flat()
"""
    text = SCRIPT.format(layer="", form="mean", back="loss.item()").replace("optimizer =", f"{net}optimizer =", 1)
    with pytest.raises(Refused, match=r"fixes the number of rows"):
        convert_source(Source(Path("train.py"), text.encode()))
    fine = text.replace(f"x.view({rows}, -1)", "x.view(x.size(0), -1)")
    assert "rows_of_rank" in convert_source(Source(Path("train.py"), fine.encode())).text
