"""What a loss is over the rows of whole tensors, and which losses need all rows at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.facts import Facts, collect
from ddpify.facts.handmade import hand_fed
from ddpify.facts.overrows import Over
from ddpify.facts.whole import Rows, Unshared
from ddpify.project import Project
from ddpify.source import Source

SCRIPT = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

x, y, kinds = torch.rand(12, 4), torch.rand(12, 2), torch.randint(0, 2, (12,))
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
{before}
for step in range(3):
    out = net(x)
    {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""


def found(loss: str, before: str = "", after: str = "") -> Rows | Unshared:
    text = SCRIPT.format(loss=loss, before=before, after=after)
    facts: Facts = collect(Project(Source(Path("train.py"), text.encode())), converting=True)
    (known,) = hand_fed(facts)
    assert isinstance(known, (Rows, Unshared))
    return known


@pytest.mark.parametrize(
    ("loss", "over"),
    [
        ("loss = F.mse_loss(out, y)", Over.MEAN),
        ("loss = F.cross_entropy(out, kinds)", Over.MEAN),
        ("loss = F.mse_loss(out, y, reduction='sum')", Over.SUM),
        ("loss = F.mse_loss(out, y, reduction='none').sum(1).mean()", Over.MEAN),
        ("loss = ((out - y) ** 2).sum()", Over.SUM),
        ("loss = ((out - y) ** 2).sum() / len(x)", Over.MEAN),
        ("loss = ((out - y) ** 2).sum() / 12", Over.SUM),
        ("loss = torch.mean(torch.abs(out - y)) * 0.5 + 0.1 * net.weight.norm()", Over.MEAN),
        ("loss = 0.0\n    for part in (out - y, out):\n        loss = (out - y).pow(2).mean()", Over.MEAN),
        ("first = F.l1_loss(out, y)\n    second = F.mse_loss(out, y)\n    loss = first + 2 * second", Over.MEAN),
        ("loss = F.cross_entropy(out, kinds, reduction='sum', ignore_index=0)", Over.SUM),
        ("loss = F.nll_loss(F.log_softmax(out, dim=1), kinds)", Over.MEAN),
    ],
)
def test_means_and_sums(loss: str, over: Over) -> None:
    known = found(loss)
    assert isinstance(known, Rows), known.why
    assert list(known.losses.values()) == [over]


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        ("loss = torch.sqrt(F.mse_loss(out, y))", "`torch.sqrt(F.mse_loss(out, y))` needs all rows at once"),
        ("loss = F.cross_entropy(out @ out.t(), torch.arange(12))", "`out @ out.t()` needs all rows"),
        ("loss = F.mse_loss(out - out.mean(0), y)", "`out - out.mean(0)` needs all rows"),
        ("loss = F.kl_div(F.log_softmax(out, dim=0), y)", "`F.log_softmax(out, dim=0)` needs all rows"),
        ("loss = torch.cdist(out, out).mean()", "`torch.cdist(out, out)` needs all rows"),
        ("loss = F.cross_entropy(out, kinds, weight=torch.ones(2))", "divides by the weights of its rows (`weight=`)"),
        ("loss = F.cross_entropy(out, kinds, ignore_index=1)", "(`ignore_index=`)"),
        ("loss = F.mse_loss(out[kinds > 0], y[kinds > 0])", "`out[kinds > 0]` picks rows"),
        ("loss = F.mse_loss(out[:6], y[:6])", "`out[:6]` takes some of the rows"),
        ("loss = ((out - y) ** 2).sum() + net.weight.norm()", "adds a sum over the rows and something that is none"),
        ("loss = F.mse_loss(out, y) ** 2", "needs all rows at once"),
        ("loss = 1 - F.cosine_similarity(out, y, dim=0).mean()", "needs all rows at once"),
        ("loss = F.mse_loss(out + torch.randn(12, 2), y)", "draws numbers for all rows at once"),
    ],
)
def test_losses_that_need_all_rows(loss: str, why: str) -> None:
    known = found(loss)
    assert isinstance(known, Unshared)
    assert why in known.why


def test_functions_and_losses_of_the_project_are_followed() -> None:
    before = """
class LogCosh(nn.Module):
    def forward(self, a, b):
        return torch.log(torch.cosh(a - b)).mean()
def correlation(a, b):
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / (a.norm() * b.norm())
log_cosh = LogCosh()
weighted = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0]))
"""
    assert isinstance(found("loss = log_cosh(out, y)", before), Rows)
    known = found("loss = log_cosh(out, y) - correlation(out, y)", before)
    assert isinstance(known, Unshared)
    assert "`a - a.mean()` needs all rows" in known.why
    known = found("loss = weighted(out, kinds)", before)
    assert isinstance(known, Unshared)
    assert "(`weight=`)" in known.why


def test_uses_of_the_loss_are_found_in_their_form() -> None:
    after = "print(loss.item(), f'{loss:.3f}'); losses.append(loss); best = min(best, float(loss))"
    known = found("loss = F.mse_loss(out, y)", "losses, best = [], 9.0", after)
    assert isinstance(known, Rows)
    (total,) = known.totals
    assert [u.tensor for u in total.uses] == [False, False, True, False]


def test_a_number_of_an_evaluation_is_not_that_of_the_step() -> None:
    after = "with torch.no_grad():\n        loss = F.mse_loss(net(y.repeat(1, 2)), y)\n    print(loss.item())"
    known = found("loss = F.mse_loss(out, y)", after=after)
    assert isinstance(known, Rows)
    assert known.totals == ()


def test_a_loop_that_ends_by_its_loss_is_refused() -> None:
    text = SCRIPT.format(loss="loss = F.mse_loss(out, y)", before="loss = 9.0", after="")
    text = text.replace("for step in range(3):", "while loss > 0.1:")
    (known,) = hand_fed(collect(Project(Source(Path("train.py"), text.encode())), converting=True))
    assert isinstance(known, Unshared)
    assert "the loop ends by the loss of one rank's rows (`loss > 0.1`)" in known.why


def test_tensors_of_a_closure_beside_the_loop() -> None:
    text = SCRIPT.format(loss="loss = F.mse_loss(out, y)", before="", after="")
    head, body = text.split("for step in range(3):\n")
    closure = "def closure():\n" + body + "    return loss\n"
    text = head + closure.replace("    optimizer.step()\n", "") + "for step in range(3):\n    optimizer.step(closure)\n"
    (known,) = hand_fed(collect(Project(Source(Path("train.py"), text.encode())), converting=True))
    assert isinstance(known, Rows), known
    assert known.names == ("x", "y")
    assert [known.level.frame.source.line(n) for n in known.reads] == [10, 11]


MODEL = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

x, y, state = torch.rand(12, 5, 4), torch.rand(12, 6), torch.zeros(1, 12, 6)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.first, self.out = nn.GRU(4, 6), nn.GRU(4, 6, batch_first=True), nn.Linear(6, 6)
        self.mix = nn.Parameter(torch.rand(6, 6))
        self.heads = nn.MultiheadAttention(6, 2)
    def forward(self, x, state=None):
        {forward}
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = F.mse_loss(net(x{state}), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def through(forward: str, state: str = "") -> Rows | Unshared:
    text = MODEL.format(forward=forward.replace("; ", "\n        "), state=state)
    (known,) = hand_fed(collect(Project(Source(Path("train.py"), text.encode())), converting=True))
    assert isinstance(known, (Rows, Unshared))
    return known


@pytest.mark.parametrize(
    "forward",
    [
        "steps, last = self.rnn(x.transpose(0, 1), state); return steps[-1]",
        "steps, last = self.rnn(x.permute(1, 0, 2), state); return self.out(last[0])",
        "steps, last = self.rnn(x.transpose(0, 1), state); return steps.mean(0)",
        "steps, last = self.rnn(x.transpose(0, 1), state); return steps.permute(1, 2, 0).sum(-1)",
        "steps, last = self.rnn(x.transpose(0, 1), state); return last.squeeze(0)",
        "begin = torch.zeros(1, len(x), 6); return self.rnn(x.transpose(0, 1), begin)[0][-1]",
        "s = self.first(x)[0]; w = torch.bmm(s, s.transpose(1, 2)); return torch.bmm(w, s).sum(1)",
        "s = self.first(x)[0]; return torch.einsum('bti,ij->bj', s, self.mix)",
        "s = self.first(x)[0]; return torch.cat([part for part in s.chunk(5, dim=1)], dim=1).mean(1)",
        "s = self.rnn(x.transpose(0, 1))[0]; return self.heads(s, s, s)[0].transpose(0, 1)[:, -1]",
        "seen = []; s = self.first(x)[0]; seen.append(s[:, 0]); seen.append(s[:, 1]); return torch.stack(seen).mean(0)",
    ],
)
def test_the_rows_are_followed_through_the_dimensions_of_a_model(forward: str) -> None:
    known = through(forward)
    assert isinstance(known, Rows), known.why


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (
            "return self.rnn(x)[0][:, -1]",
            "`self.rnn(x)` takes dimension 1 for the batch, and the rows lie along dimension 0",
        ),
        (
            "return self.first(x.transpose(0, 1))[0][-1]",
            "takes dimension 0 for the batch, and the rows lie along dimension 1",
        ),
        ("return self.first(x.unsqueeze(0)[0])[0].mean(0)", "`F.mse_loss(net(x), y)` needs all rows"),
        ("h = self.rnn(x.transpose(0, 1))[1]; return h.view(-1, 6)[:, 0]", "may make one row of parts of several"),
        ("return self.rnn(x.transpose(0, 1))[0][:, 0]", "takes some of the rows"),
        ("return self.rnn(x.transpose(0, 1))[0][-1].squeeze(0)", "takes the rows' own dimension away"),
        ("s = self.rnn(x.transpose(0, 1))[0][-1]; return s + s.t()", "takes rows that lie along different dimensions"),
        (
            "s = self.rnn(x.transpose(0, 1))[0]; return F.softmax(s, dim=1)[-1]",
            "`F.softmax(s, dim=1)` in `Net.forward`",
        ),
        ("s = self.first(x)[0][:, -1]; return s @ s.t()", "`s @ s.t()` in `Net.forward`"),
        ("s = self.first(x)[0]; return torch.einsum('bti,cti->ci', s, s)", "`torch.einsum('bti,cti->ci', s, s)`"),
        ("s = self.first(x)[0][:, -1]; return torch.cat([s, s])", "`torch.cat([s, s])` in `Net.forward`"),
        ("begin = torch.zeros(1, 12, 6); return self.rnn(x.transpose(0, 1), begin)[0][-1]", "as many rows for every"),
        ("return nn.Linear(4, 6)(x)[:, -1]", "draws the weights of a layer anew in each pass"),
    ],
)
def test_models_that_compute_one_row_from_another(forward: str, why: str) -> None:
    known = through(forward)
    assert isinstance(known, Unshared)
    assert why in known.why


@pytest.mark.parametrize("state", [", state", ", torch.zeros(1, 12, 6)", ", state=state.clone()"])
def test_a_state_of_the_script_has_a_part_for_each_row(state: str) -> None:
    known = through("return self.rnn(x.transpose(0, 1), state)[0][-1]", state)
    assert isinstance(known, Rows), known.why
    assert known.names == ("x", "y")
    assert len(known.states) == 1


def test_a_sum_in_a_loop_over_the_rows() -> None:
    known = found("loss = 0\n    for i in range(len(y)):\n        loss = loss + F.mse_loss(out[i], y[i])")
    assert isinstance(known, Rows), known.why
    assert list(known.losses.values()) == [Over.SUM]
    known = found("loss = 0\n    for a, b in zip(out, y):\n        loss += F.mse_loss(a, b)\n    loss = loss / len(y)")
    assert isinstance(known, Rows), known.why
    assert list(known.losses.values()) == [Over.MEAN]
    known = found("for i in range(len(y)):\n        loss = F.mse_loss(out[i], y[i])")
    assert isinstance(known, Unshared)
