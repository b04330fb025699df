"""DDP503: what decides is rank 0's number, made so where it is computed, however it travels to the decision."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited, script

#: an evaluation that is no sum over samples: every rank runs it in full
WORST = """
held_out = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)

def worst(model):
    found = []
    with torch.no_grad():
        for (x,) in held_out:
            found.append(model(x.to(device)).mean().item())
    return max(found)
"""
STOPPER = """
class Stopper:
    def __init__(self):
        self.best, self.bad = None, 0

    def better(self, metric):
        return self.best is None or metric < self.best

    def step(self, metric):
        score = -metric
        if self.best is None or score > self.best:
            self.best, self.bad = score, 0
        else:
            self.bad += 1

    def plain(self, metric):
        self.now = metric
        if self.now == 0:
            self.bad += 1

stopper = Stopper()
"""


@pytest.mark.parametrize(
    ("inside", "gives"),
    [
        ("now = worst(model)\nstopper.step(now)", "now = worst(model)\nnow = broadcast_value(now)\nstopper.step(now)"),
        ("stopper.step(worst(model))", "stopper.step(broadcast_value(worst(model)))"),
        ("stopper.step(metric=worst(model))", "stopper.step(metric=broadcast_value(worst(model)))"),
        ("stopper.plain(worst(model))", "stopper.plain(broadcast_value(worst(model)))"),
        ("if worst(model) > 3:\n    break", "if broadcast_value(worst(model)) > 3:\n    break"),
        ("if max([worst(model)]) > 3:\n    break", "if max([broadcast_value(worst(model))]) > 3:\n    break"),
        (
            "history = []\nhistory.append(worst(model))\nif history[-1] > 3:\n    break",
            "history = []\nhistory.append(broadcast_value(worst(model)))",
        ),
        (
            "log = {'loss': worst(model)}\nif log['loss'] > 3:\n    break",
            "log = {'loss': worst(model)}\nlog = broadcast_value(log)",
        ),
        (
            "now = worst(model)\ncopied = now\nif copied < 3:\n    break",
            "now = worst(model)\nnow = broadcast_value(now)\ncopied = now",
        ),
    ],
)
def test_the_number_is_rank_0_s_where_it_is_computed(inside: str, gives: str) -> None:
    result = edited(script(before=WORST + STOPPER, inside=inside), "DDP503")
    assert result.has(gives)
    assert result.text.count("broadcast_value") == 1


@pytest.mark.parametrize(
    "inside",
    [
        "now = worst(model)\nif now < 3:\n    print('fine')",
        "now = worst(model)\nif now < 3:\n    print('fine')\n    torch.save(model.state_dict(), 'fine.pt')",
        "now = worst(model)\nprint(now)",
    ],
)
def test_what_rank_0_alone_goes_by_is_not_sent(inside: str) -> None:
    assert "broadcast_value" not in edited(script(before=WORST, inside=inside), "DDP503").text


DECODES = """
held_out = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)

def decode(model, x):
    while True:
        x = model(x).repeat(1, 4)
        if x.max() < 1 or x.size(1) == 9:
            break
    return x

def words(model):
    found = []
    with torch.no_grad():
        for (x,) in held_out:
            if model(x.to(device)).isfinite().all():
                found.append(decode(model, x.to(device)).max().item())
    return max(found)
"""


def test_a_loop_inside_of_an_evaluation_is_no_matter_of_all_ranks() -> None:
    result = edited(script(functions=DECODES, inside="print(words(model))"), "DDP503")
    assert not result.left
    assert "broadcast_value" not in result.text


def test_what_comes_out_of_it_is() -> None:
    result = edited(script(functions=DECODES, inside="if words(model) < 3:\n    break"), "DDP503")
    assert result.has("if broadcast_value(words(model)) < 3:")


BOTH = """
held_out = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)

def loss_of(model, x):
    out = model(x)
    rows, width = out.size()
    if width != x.size(1):
        out = out.expand(rows, x.size(1))
    return out.mean()

def worst(model):
    found = []
    with torch.no_grad():
        for (x,) in held_out:
            found.append(loss_of(model, x.to(device)).item())
    return max(found)
"""


def test_what_training_decides_by_the_same_function_is_not_rank_0s() -> None:
    text = script(functions=BOTH, inside="if worst(model) > 3:\n    break").replace(
        "loss = model(x.to(device)).mean()", "loss = loss_of(model, x.to(device))"
    )
    result = edited(text, "DDP503")
    assert not result.left
    assert result.text.count("broadcast_value(") == 1
    assert result.has("if broadcast_value(worst(model)) > 3:")


@pytest.mark.parametrize(
    ("test", "together"),
    [
        ("step % 3 == 0", True),
        ("loss.item() < 1", False),  # of this rank's own batch: only some ranks would come
        ("time.time() > 9", False),
    ],
)
def test_an_evaluation_between_the_batches_decides_where_all_ranks_come_to_it(test: str, together: bool) -> None:
    held = f"step += 1\nif {test}:\n    now = worst(model)\n    plateau.step(now)"
    before = f"{WORST}\nplateau, step = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), 0"
    text = script(imports="import time", before=before).replace(
        "        optimizer.step()", "        optimizer.step()\n        " + held.replace("\n", "\n        ")
    )
    result = edited(text, "DDP503")
    assert result.has("now = worst(model)\nnow = broadcast_value(now)\nplateau.step(now)") is together
    assert bool(result.left) is not together
