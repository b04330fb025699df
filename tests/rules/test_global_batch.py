"""`--global-batch keep`: the number in `batch_size` is divided where it stands, or said to be left."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import Conversion, convert_source
from ddpify.source import Source
from tests.ranks import Job, run_batch

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(16, 4))
options = {{"batch_size": 8, "shuffle": True}}
size = 8
loader = DataLoader({arguments})
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        {loss}.backward()
        optimizer.step()
"""


def kept(arguments: str, loss: str = "net(x).mean()") -> Conversion:
    text = SCRIPT.format(arguments=arguments, loss=loss)
    return convert_source(Source(Path("nowhere", "before.py"), text.encode()), global_batch="keep")


@pytest.mark.parametrize(
    ("arguments", "divided"),
    [
        ("data, batch_size=8, shuffle=True", "batch_size=per_process(8)"),
        ("data, size, True", "DataLoader(data, per_process(size), "),
        ("data, batch_size=size + 8", "batch_size=per_process(size + 8)"),
        ("data, **options", 'options = {"batch_size": per_process(8), "shuffle": True}'),
    ],
)
def test_the_number_is_divided(arguments: str, divided: str) -> None:
    found = kept(arguments)
    assert divided in found.text
    assert not found.plan.left


def test_a_number_that_stands_elsewhere_is_left() -> None:
    found = kept("data, shuffle=True, **dict(batch_size=options['batch_size'])")
    assert "per_process" not in found.text
    assert [f.message for f in found.plan.left] == [
        "the batch size of this loader does not stand in its call, so it was not divided"
    ]


def test_a_sum_is_multiplied() -> None:
    assert "(net(x).sum() * dist.get_world_size()).backward()" in kept("data, batch_size=8", "net(x).sum()").text


def test_a_sum_that_is_divided_by_a_sum_of_its_batch_is_none() -> None:
    found = kept("data, batch_size=8", "(net(x).sum() / (x > 0).sum())")
    assert "(net(x).sum() / (x > 0).sum()).backward()" in found.text
    assert any("divides by `(x > 0).sum()`" in f.message for f in found.plan.notes)


def test_the_number_of_an_evaluation_stays() -> None:
    text = SCRIPT.format(arguments="data, batch_size=8", loss="net(x).mean()")
    both = """loaders = {x: DataLoader(data, batch_size=8, shuffle=x == "fit") for x in ["fit", "check"]}"""
    text = text.replace("loader = DataLoader(data, batch_size=8)", both).replace("in loader:", 'in loaders["fit"]:')
    text += """
    hits = 0
    for (x,) in loaders["check"]:
        hits += (net(x) > 0).sum().item()
    print(hits)
"""
    found = convert_source(Source(Path("nowhere", "before.py"), text.encode()), global_batch="keep")
    assert "batch_size=per_process(8) if x == 'fit' else 8" in found.text.replace('"', "'")


@pytest.mark.torchrun
def test_a_batch_that_cannot_be_divided_ends_the_run_with_both_numbers(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(kept("data, batch_size=9").text)
    result = run_batch([Job(script, world=2, cwd=tmp_path)])[0]
    assert not result.ok
    assert "ValueError: a batch of 9 cannot be divided among 2 processes" in result.ranks[0].stderr


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        ("x = rows[torch.randint(64, (8,))]", "each step draws its batch"),
        ("x = rows[i * 8 : i * 8 + 8]", "the loop cuts its batches by hand"),
    ],
)
def test_the_size_of_batches_that_come_from_no_loader_is_left(batch: str, what: str) -> None:
    """Of drawn ones nothing was said, and a step saw as many times the samples as there are ranks."""
    text = f"""
import torch
from torch import nn
rows = torch.ones(64, 4)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for i in range(8):
    {batch}
    net(x).mean().backward()
    optimizer.step()
"""
    found = convert_source(Source(Path("nowhere", "before.py"), text.encode()), global_batch="keep")
    (message,) = [f.message for f in found.plan.left]
    assert message.startswith(f"{what}, and which number is")
