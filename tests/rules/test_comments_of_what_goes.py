"""A statement that is taken out goes with the comments that speak of it alone."""

from __future__ import annotations

import pytest

from tests.rules.edited import clean, edited

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
model = nn.Linear(4, 1)
{taken_out}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    model(x).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("taken_out", "stays"),
    [
        ("\n# Use all GPUs.\nmodel = nn.DataParallel(model)\n", False),
        ("\n# Use all GPUs.\nif torch.cuda.device_count() > 1:\n    model = nn.DataParallel(model)\n", False),
        ("# Use all GPUs.\nmodel = nn.DataParallel(model)\n# Build the rest.", False),
        ("# Use all GPUs.\nmodel = nn.DataParallel(model)", True),
        ("\n# ---- Use all GPUs. ----\nmodel = nn.DataParallel(model)\n", True),
    ],
)
def test_comments_that_speak_of_it_alone(taken_out: str, stays: bool) -> None:
    text = edited(SCRIPT.format(taken_out=clean(taken_out) if taken_out[0] != "\n" else taken_out), "DDP209").text
    assert "DataParallel(" not in text
    assert ("Use all GPUs." in text) is stays
    assert ("# Build the rest." in text) is ("Build" in taken_out)
