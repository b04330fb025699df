"""DDP510: numbers that a step takes from its own batch, and that the next loss goes by."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited, script

CODE = "DDP510"


def trained(loss: str, behind: str) -> list[str]:
    text = script(before="balance = 0.0\nseen = 0.0")
    text = text.replace("loss = model(x.to(device)).mean()", loss)
    return edited(text.replace("        optimizer.step()\n", f"        optimizer.step()\n{behind}"), CODE).left


@pytest.mark.parametrize(
    "behind",
    [
        "        balance = balance + 0.1 * loss.item()\n",
        "        balance += 0.1 * loss.item()\n        balance = min(max(balance, 0), 1)\n",
        "        gap = loss.item() - 1\n        balance = 0.9 * balance + gap\n",
    ],
)
def test_a_number_that_the_next_loss_goes_by(behind: str) -> None:
    found = trained("loss = (1 - balance) * model(x.to(device)).mean()", behind)
    assert len(found) == 1
    assert "the next loss goes by `balance`, which `loss.item()` changes" in found[0]


@pytest.mark.parametrize(
    ("loss", "behind"),
    [
        ("loss = model(x.to(device)).mean()", "        seen += loss.item()\n"),  # a sum that is shown
        ("loss = (1 - balance) * model(x.to(device)).mean()", "        balance = min(balance + 0.1, 1)\n"),
        ("loss = (1 - balance) * model(x.to(device)).mean()", "        seen = loss.item()\n"),
    ],
)
def test_other_numbers(loss: str, behind: str) -> None:
    assert not trained(loss, behind)


LOSS = """
class BoxLoss(nn.Module):
    def forward(self, out, y):
        kept = y > 0
        count = COUNT
        return nn.functional.smooth_l1_loss(out[kept], y[kept], reduction="sum") / count
"""


@pytest.mark.parametrize(("count", "noted"), [("kept.long().sum()", 1), ("out.size(0)", 0), ("100", 0)])
def test_a_loss_of_the_script_s_own_that_divides_by_what_its_batch_holds(count: str, noted: int) -> None:
    text = script(functions=LOSS.replace("COUNT", count), before="criterion = BoxLoss()")
    text = text.replace("for (x,) in loader", "for x, y in loader")
    text = text.replace("loss = model(x.to(device)).mean()", "loss = criterion(model(x.to(device)), y.to(device))")
    found = [f.message for f in edited(text, CODE).plan.left]
    assert len(found) == noted
    assert all("/ count` divides by `count`" in m for m in found)
