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


PLACED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)

{comment}
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
{next}model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    model(x.to(device)).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("comment", "following", "goes"),
    [
        ("# Use the GPU where there is one.", "", True),
        ("# Where it runs.", "\n", True),
        ("# Model", "", False),
        ("# ------ step 2: model ------", "", False),
        ("# ── 3. Device, model, optimizer ──", "\n", False),
    ],
)
def test_the_device_moves_up_with_the_comments_that_speak_of_it(comment: str, following: str, goes: bool) -> None:
    """Headings stood above the set-up, before the sections that come first."""
    text = edited(PLACED.format(comment=comment, next=following), "DDP101").text
    lines = text.split("\n")
    at = next(i for i, line in enumerate(lines) if line.startswith("device = setup_distributed("))
    assert (lines[at - 1] == comment) is goes
    assert text.count(comment) == 1
    assert text.index("device = setup") < text.index("torch.manual_seed")
