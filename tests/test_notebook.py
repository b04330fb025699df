"""A notebook -> the script that its cells make, and what its conversion is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from ddpify.cli import cli
from ddpify.notebook import read_notebook


def script(folder: Path, *cells: str) -> str:
    """The script of a notebook with these cells; those that begin with `#:` are text."""
    made = [new_markdown_cell(c[2:]) if c.startswith("#:") else new_code_cell(c) for c in cells]
    nbformat.write(new_notebook(cells=made), folder / "train.ipynb")
    return read_notebook(folder / "train.ipynb").text


@pytest.mark.parametrize(
    ("cell", "code"),
    [
        ("%matplotlib inline\nx = 1", "# %matplotlib inline\nx = 1"),
        ("%%time\nx = 1", "# %%time\nx = 1"),
        ("!pip install \\\n  torch\nx = 1", "# !pip install \\\n  # torch\nx = 1"),
        ("files = !ls data\nx = 1", "# files = !ls data\nx = 1"),
        ("net??", "# net??"),
        ("if True:\n    %timeit x = 1", "if True:\n    pass\n    # %timeit x = 1"),
        ("if True:\n    %time x = 1", "if True:\n    x = 1"),
        ("%time train(net, 3)", "train(net, 3)"),
        ("%time", "# %time"),
        ("%%bash\nls | wc", "# %%bash\n# ls | wc"),
    ],
)
def test_a_magic_becomes_a_comment(cell: str, code: str, tmp_path: Path) -> None:
    text = script(tmp_path, cell)
    assert text == f"# In[1]:\n\n\n{code}\n"


@pytest.mark.parametrize(
    "cell",
    [
        "print('Epoch: %d | Loss: %.2f'\n      %(epoch + 1,\n        loss))",
        "left = 7 \\\n    % 3",
        'text = """\n%s and\n!not a command\n"""',
        "x = [\n    5\n    % 3, 'it']\ny = x",
        "def f(x):\n    return (x\n            % 2)\n\ny = f(3)",
        "# it's a comment (\nx = 1",
    ],
)
def test_a_line_that_goes_on_is_no_magic(cell: str, tmp_path: Path) -> None:
    text = script(tmp_path, cell)
    assert text == f"# In[1]:\n\n\n{cell}\n"
    ast.parse(text)


def test_text_and_code_keep_their_order(tmp_path: Path) -> None:
    text = script(tmp_path, "#:# A net\nof one layer", "x = 1", "#:more", "y = 2")
    assert [line for line in text.splitlines() if line] == [
        "# # A net",
        "# of one layer",
        "# In[1]:",
        "x = 1",
        "# more",
        "# In[2]:",
        "y = 2",
    ]


def test_a_notebook_converts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script(
        tmp_path,
        "%load_ext autoreload\nimport torch\nfrom torch import nn\n"
        "from torch.utils.data import DataLoader, TensorDataset",
        "net = nn.Linear(4, 1)\nloader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)",
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for epoch in range(2):\n    for (x,) in loader:\n        loss = net(x).mean()\n        loss.backward()\n"
        "        optimizer.step()\n    print('epoch %d, loss %.2f'\n          % (epoch, loss.item()))",
    )
    result = CliRunner().invoke(cli, ["train.ipynb", "-o", "train_ddp.py"])
    assert result.exit_code == 0, result.stderr
    text = Path("train_ddp.py").read_text()
    assert "# %load_ext autoreload" in text
    assert (
        "    if is_main_process():\n        print('epoch %d, loss %.2f'\n              % (epoch, loss.item()))" in text
    )
    ast.parse(text)


def test_the_report_names_what_is_no_python_and_what_it_no_longer_sets(tmp_path: Path) -> None:
    training = (
        "import torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset\n"
        "loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)\nnet = nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\nfor (x,) in loader:\n    net(x).mean().backward()\n"
        "    optimizer.step()"
    )
    fit = "def fit():\n" + "\n".join("    " + line for line in training.split("\n"))
    asked = "!pip install x\nfiles = !ls data"
    script(tmp_path, "#:# Train\n![a picture](net.png)", asked, fit, "%time fit()", "print(len(files))")
    shown = CliRunner().invoke(cli, [str(tmp_path / "train.ipynb"), "--diff"])
    said = " ".join(shown.stderr.split())
    assert "a comment now: `!pip install x` (8), `files = !ls data` (9); what that does in the notebook" in said
    assert "`files` is not set any more: it came from line 9" in said
    assert "picture" not in said
    assert re.search(r"\d+ `fit\(\)` runs as before, and is not timed", said)
