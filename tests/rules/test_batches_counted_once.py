"""DDP309: what is added up of batches that are dealt out whole counts each of them once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.convert import convert_source
from ddpify.source import Source

SCRIPT = """\
import torch
from torch import nn
import torch.nn.functional as F

{before}
x, y = torch.rand(40, 4), torch.rand(40, 1)
pairs = [(x[i:i + 8], y[i:i + 8]) for i in range(0, 40, 8)]
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def learn(a, b):
    loss = F.mse_loss(net(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss

for epoch in range(2):
    {start}
    for {loop}:
        loss = learn(xb, yb)
        {body}
    {end}
"""


def converted(start: str, body: str, end: str, loop: str = "xb, yb in pairs", before: str = "") -> tuple[str, str]:
    """The text, and what is left to the user."""
    text = SCRIPT.format(start=start, body=body, end=end, loop=loop, before=before)
    found = convert_source(Source(Path("train.py"), text.encode()))
    return found.text, " ".join(f.message for f in found.left)


@pytest.mark.parametrize(
    ("body", "becomes"),
    [
        ("total += loss.item()", "total += weight * loss.item()"),
        ("total = total + loss.item()", "total = total + weight * loss.item()"),
        ("total += loss.item() - 1", "total += weight * (loss.item() - 1)"),
        ("total += (loss.item() - 1)", "total += (weight * (loss.item() - 1))"),
        ("total += loss.item() if epoch else 0", "total += weight * (loss.item() if epoch else 0)"),
        ("total += 1", "total += weight"),
    ],
)
def test_what_is_added_has_a_weight(body: str, becomes: str) -> None:
    text, left = converted("total = 0", body, "print(total / len(pairs))")
    assert "    for (xb, yb), weight in share_with_weights(pairs):" in text
    assert f"        {becomes}\n    [total] = all_reduce_sum(total)" in text
    assert not left


@pytest.mark.parametrize(
    ("loop", "becomes"),
    [
        ("n, (xb, yb) in enumerate(pairs)", "n, ((xb, yb), weight) in enumerate(share_with_weights(pairs))"),
        ("(xb, yb) in pairs", "(xb, yb), weight in share_with_weights(pairs)"),
        ("xb, yb in zip(x, y)", "(xb, yb), weight in share_with_weights(zip(x, y))"),
    ],
)
def test_the_weight_stands_beside_the_batch(loop: str, becomes: str) -> None:
    text, _ = converted("total = 0", "total += loss.item()", "print(total)", loop)
    assert f"    for {becomes}:" in text


def test_a_name_of_the_script_is_none_of_the_weights() -> None:
    text, _ = converted("total = 0", "total += loss.item()", "print(total)", before="weight = 3")
    assert "    for (xb, yb), weight_2 in share_with_weights(pairs):" in text
    assert "total += weight_2 * loss.item()" in text


def test_without_sums_there_are_no_weights() -> None:
    text, _ = converted("pass", "last = loss.item()", "pass")
    assert "    for xb, yb in share_of_rank(pairs):" in text
    assert "weight" not in text


def test_a_list_gets_no_entry_of_a_batch_that_comes_again() -> None:
    text, left = converted("kept = []", "kept.append(loss.item())", "print(sum(kept) / len(pairs))")
    assert "        if weight:\n            kept.append(loss.item())\n    kept[:] = gather_in_order(kept)" in text
    assert not left


def test_what_trains_is_not_left_out() -> None:
    text, _ = converted("kept = []", "kept.append(learn(xb, yb).item())", "print(sum(kept) / len(kept))")
    assert "        kept.append(learn(xb, yb).item())\n" in text
    assert "if weight:" not in text


def test_a_counter_that_a_test_asks_for_counts_every_pass() -> None:
    """All ranks make the step of their third batch."""
    text, left = converted("n = 0", "n += 1\n        if n % 3 == 0:\n            print(n)", "print(n)")
    assert "        n += 1\n        if n % 3 == 0:" in text
    assert "    [n] = all_reduce_sum(n - 1 + weight)\n" in text
    assert not left


def test_a_sum_that_a_test_asks_for_is_left_to_the_user() -> None:
    body = "total += loss.item()\n        if total > 1e9:\n            print(total)"
    _, left = converted("total = 0", body, "print(total)")
    assert "`total` counts the first batches twice where `pairs` does not divide" in left


@pytest.mark.parametrize(
    ("loop", "divisor", "becomes"),
    [
        ("n, (xb, yb) in enumerate(pairs)", "(n + 1)", "num_batches"),
        ("n, (xb, yb) in enumerate(pairs)", "max(n, 1)", "max((num_batches - 1), 1)"),
        ("n, (xb, yb) in enumerate(pairs, 1)", "n", "num_batches"),
        ("n, (xb, yb) in enumerate(pairs, start=1)", "(n + 1)", "(num_batches + 1)"),
    ],
)
def test_the_last_number_says_how_many_batches_there_were(loop: str, divisor: str, becomes: str) -> None:
    before = "batches = 0"
    text, _ = converted("total = 0", "total += loss.item()", f"print(total / {divisor})", loop, before)
    assert f"print(total / {becomes})" in text


def test_two_loops_that_call_one_step_are_dealt_out_both() -> None:
    more = "print(total)\n    for a, b in reversed(pairs):\n        learn(a, b)"
    text, _ = converted("total = 0", "total += loss.item()", more)
    assert "in share_with_weights(pairs):" in text
    assert "    for a, b in share_of_rank(reversed(pairs)):" in text


def test_a_loop_that_several_phases_run_has_one_weight() -> None:
    text = """
import torch
from torch import nn

x = torch.rand(40, 4)
batches = [x[i:i + 8] for i in range(0, 40, 8)]

def fit(net, optimizer, epochs=2):
    for epoch in range(epochs):
        for phase in ["train", "val"]:
            if phase == "train":
                net.train()
            else:
                net.eval()
            total = 0.0
            for xb in batches:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    loss = net(xb).mean()
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                total += loss.item() * xb.size(0)
            print(phase, total / 40)
    return net

net = nn.Linear(4, 1)
net = fit(net, torch.optim.SGD(net.parameters(), lr=0.1), epochs=3)
"""
    found = convert_source(Source(Path("train.py"), text.encode()))
    assert "                total += weight * loss.item() * xb.size(0)\n" in found.text
