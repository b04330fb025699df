"""DDP102: every way to a normal end destroys the process group, once."""

from __future__ import annotations

import textwrap

import pytest

from tests.rules.edited import edited

CODE = "DDP102"
DESTROY = "dist.destroy_process_group()"
TRAINING = """
import os
import sys
import click
import torch
import typer
from absl import app
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fit(epochs=2):
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        for (x,) in loader:
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
{rest}
"""


def destroyed(rest: str, inside: str = "") -> str:
    """What stands behind the loop of `fit` and behind `fit`, with what DDP102 puts in."""
    inside = textwrap.indent(inside, "    ")
    text = edited(TRAINING.format(rest=f"{inside}\n\n{rest}"), CODE).text
    return text.split("            optimizer.step()\n")[1].strip("\n")


@pytest.mark.parametrize("leave", ["sys.exit(0)", "sys.exit()", "raise SystemExit(0)", "os._exit(0)", "exit()"])
def test_an_exit_at_the_end_comes_behind_it(leave: str) -> None:
    assert destroyed("fit()", leave) == f"    {DESTROY}\n    {leave}\n\nfit()"


@pytest.mark.parametrize("call", ["sys.exit(fit())", "raise SystemExit(fit())", "sys.exit(0 if fit() else 1)"])
def test_a_call_inside_an_exit_ends_with_it(call: str) -> None:
    """The set-up stands before the seed; what is written behind an exit would never run."""
    result = destroyed(f"torch.manual_seed(0)\n{call}", "print(loss)\nreturn 0")
    assert result == f"    print(loss)\n    {DESTROY}\n    return 0\n\ntorch.manual_seed(0)\n{call}"


@pytest.mark.parametrize(
    ("decorate", "call"), [("@click.command()\n", "main()"), ("", "typer.run(main)"), ("", "app.run(main)")]
)
def test_a_command_line_does_not_come_back(decorate: str, call: str) -> None:
    main = f"{decorate}def main(epochs=2):\n    fit(epochs)"
    assert destroyed(f"{main}\n\ntorch.manual_seed(0)\n{call}").endswith(
        f"{main}\n    {DESTROY}\n\ntorch.manual_seed(0)\n{call}"
    )


def test_each_command_of_a_group_has_its_own() -> None:
    rest = """
@click.group()
def cli():
    torch.manual_seed(0)

@cli.command()
def train():
    fit()

@cli.command()
def show():
    print(nn.Linear(4, 1))

cli()"""
    result = destroyed(rest)
    assert f"    fit()\n    {DESTROY}\n" in result
    assert f"    print(nn.Linear(4, 1))\n    {DESTROY}\n" in result
    assert result.count(DESTROY) == 2


def test_an_exit_in_the_midst() -> None:
    main = "def main(a):\n    torch.manual_seed(0)\n    if a:\n        sys.exit({code})\n    fit()\n\nmain(sys.argv)"
    assert f"        {DESTROY}\n        sys.exit(0)" in destroyed(main.format(code="0"))
    assert destroyed(main.format(code="3")).count(DESTROY) == 1  # a failure is no normal end


def test_an_exit_behind_the_end() -> None:
    """`main` sets up and tears down; its caller's exit is not another end."""
    assert destroyed("fit()\nsys.exit(0)", "print(loss)").count(DESTROY) == 1


def test_what_is_returned_is_computed_first() -> None:
    result = destroyed("def main():\n    torch.manual_seed(0)\n    return fit()\n\nmain()", "return loss.item()")
    assert f"    result = fit()\n    {DESTROY}\n    return result" in result
