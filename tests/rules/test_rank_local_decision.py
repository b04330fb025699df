"""DDP503: what decides is rank 0's number, made so where it is computed, however it travels to the decision."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited, script

#: an evaluation that is no sum over samples: every rank runs it in full
WORST = """
held_out = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)

def worst(model):
    found = [0.0]
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
        (  # a list that begins in a tuple, and a number that is computed by one call on another
            "history, count = [], 0\nhistory.append(torch.tensor([worst(model)]).mean().item())\n"
            "if history[-1] > 3:\n    break",
            "history, count = [], 0\nhistory.append(torch.tensor([broadcast_value(worst(model))]).mean().item())",
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
    found = [0.0]
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


#: evaluations of what no DataLoader gives out
HELD = """
held, truth = torch.ones(9, 4), torch.ones(9, 1)

def cut(model):
    total = 0.0
    with torch.no_grad():
        for i in range(0, len(held), 4):
            total += nn.functional.mse_loss(model(held[i:i + 4]), truth[i:i + 4]).item()
    return total / 3

def batches():
    for i in range(0, 9, 4):
        yield held[i:i + 4], truth[i:i + 4]

def spelled(model):
    row, found = held[:1], []
    with torch.no_grad():
        for _ in range(9):
            letter = model(row).argmax(1).item()
            if letter == 2:
                break
            found.append(letter)
    return found

def keep(rows):
    torch.save(scaled(rows), 'rows.pt')

def scaled(rows):
    if rows.max() > 1:
        rows = rows / rows.max()
    return rows

best, bad, lr = None, 0, 0.1
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
"""


@pytest.mark.parametrize(
    ("inside", "line"),
    [
        ("now = cut(model)\nplateau.step(now)", "now = broadcast_value(now)"),
        ("plateau.step(cut(model))", "plateau.step(broadcast_value(cut(model)))"),
        ("now = (model(held) - truth).abs().mean()\nif now < 1:\n    break", "now = broadcast_value(now)"),
        ("now = cut(model)\nif best is None or now < best:\n    best = now", "now = broadcast_value(now)"),
        ("now = cut(model)\nif now > 1:\n    bad += 1\nif bad > 2:\n    break", "now = broadcast_value(now)"),
        ("now = cut(model)\nstopper.step(now)\nif stopper.bad:\n    break", "now = broadcast_value(now)"),
        (
            "now = sum((model(a) - b).sum().item() for a, b in batches())\nif now < 1:\n    lr /= 4",
            "now = broadcast_value(now)",
        ),
    ],
)
def test_what_is_no_loader_decides_by_rank_0s_number(inside: str, line: str) -> None:
    result = edited(script(before=HELD + STOPPER, inside=inside), "DDP503", "DDP506")
    assert result.has(line)
    assert result.text.count("broadcast_value") == 1
    assert not result.left


@pytest.mark.parametrize(
    "inside",
    [
        "print(cut(model))",
        "now = cut(model)\nif now < 1:\n    print('fine')",
        "print(spelled(model))",
        "word = spelled(model)\nprint(word)",
        "now = model(held)\nif now is not None and isinstance(now, torch.Tensor):\n    best = now",
        "keep(model(held))",
    ],
)
def test_what_is_shown_or_spelled_is_not_sent(inside: str) -> None:
    result = edited(script(before=HELD, inside=inside), "DDP401", "DDP402", "DDP503", "DDP506")
    assert "broadcast_value" not in result.text


def test_a_loop_that_goes_on_while_an_evaluation_is_bad() -> None:
    text = script(before=f"{HELD}\nnow = 9.0", inside="now = cut(model)").replace(
        "for epoch in range(2)", "while now > 1"
    )
    result = edited(text, "DDP503", "DDP506")
    assert result.has("now = cut(model)\nnow = broadcast_value(now)")
    assert not result.left


COUNTED = """
held_out = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4)

class Share:
    def __init__(self):
        self.right, self.seen = 0, 0

    def update(self, out):
        self.right += int((out > 0).sum())
        self.seen += len(out)
        self.last = float(out[-1].sum())

    @property
    def value(self):
        if self.seen != 0:
            return self.right / self.seen
        return 0

def share(model):
    found = Share()
    with torch.no_grad():
        for (x,) in held_out:
            found.update(model(x.to(device)))
    return found
"""


def test_how_many_samples_there_were_is_alike_on_all_ranks() -> None:
    inside = "found = share(model)\nif found.value > 0.9:\n    break"
    result = edited(script(functions=COUNTED, inside=inside), "DDP503", "DDP506")
    assert result.has("if broadcast_value(found.value > 0.9):\n    break")
    assert result.text.count("broadcast_value") == 1
    assert not result.left


SHOW = """
def crop(image):
    if image.abs().max() > 1:
        image = image / image.abs().max()
    return image

def show(images, path):
    if rows(images) > 3:
        columns = 2
    else:
        columns = 1
    torch.save([crop(i) for i in images][:columns], path)

def rows(images):
    return int(images.mean())
"""


@pytest.mark.parametrize(
    ("call", "sent"), [("show(found, 'x.pt')", False), ("if crop(found).sum() > 1:\n    break", True)]
)
def test_what_only_leads_to_output_is_not_sent(call: str, sent: bool) -> None:
    look = "with torch.no_grad():\n    found = model(next(iter(held_out))[0])\n" + call
    result = edited(script(before=WORST + SHOW, inside=look), "DDP503")
    assert ("broadcast_value(" in result.text) == sent


INLINE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(8, 4))
loader, held = DataLoader(data, batch_size=2), DataLoader(data, batch_size=4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history, best = [], None
for epoch in range(3):
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
    found = []
    with torch.no_grad():
        for (x,) in held:
            worst = model(x).max()
            found.append(worst.item())
    print(worst)
    history.append(torch.tensor(found).mean().item())
    if history[-1] > 3:
        break
"""


def test_one_broadcast_is_around_the_whole_of_a_chain_of_calls() -> None:
    """It stood around each call of it, or behind `history, best = [], None`, where the list was still empty."""
    result = edited(INLINE, "DDP304", "DDP503")
    assert result.has("    history.append(broadcast_value(torch.tensor(found).mean().item()))")
    assert result.text.count("broadcast_value(") == 1


PHASES = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def score(answers, targets):
    same = np.sum(targets)
    if same == 0:
        return 0.0
    return float(np.sum(answers[targets > 0])) / float(same)

loaders = {
    part: DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8)), batch_size=2, shuffle=(part == "train"))
    for part in ("train", "val")
}
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for phase in ["train", "val"]:
        answers, targets = [], []
        for x, y in loaders[phase]:
            with torch.set_grad_enabled(phase == "train"):
                found = model(x).squeeze(1)
                loss = (found - y).square().mean()
                if phase == "train":
                    if len(np.where(found.detach().numpy() > 0)[0]) == 0:
                        continue
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            answers.append(found.detach().numpy())
            targets.append(np.ones(found.size(0)))
            answers.append(-found.detach().numpy())
            targets.append(np.zeros(found.size(0)))
        targets = np.array([t for part in targets for t in part])
        answers = np.array([a for part in answers for a in part])
        print(phase, score(answers, targets))
"""


def test_answers_and_labels_of_the_training_stay_together() -> None:
    """Rank 0's labels, beside the other rank's answers, were of another length there: the job ended."""
    found = edited(PHASES, "DDP503")
    assert "broadcast_value" not in found.text
    assert not found.left


ROWS = """
import random

def kept(model):
    rows = []
    with torch.no_grad():
        for (x,) in DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2):
            rows.append(model(x.to(device)) if random.random() > 0.5 else None)
    return rows
"""


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("if row is None:\n        continue\n    shown.append(row.sum())", False),
        ("if row is None:\n        break\n    shown.append(row.sum())", False),
        ("if row is None:\n        continue\n    optimizer.step()", True),
        ("if row is None:\n        continue\n    count = len(row)", True),
        ("if row is None:\n        continue\n    device.count = len(row)", True),
    ],
)
def test_each_rank_goes_by_its_own_rows_where_nobody_waits(body: str, told: bool) -> None:
    inside = f"shown, count = [], 0\nfor row in kept(model):\n    {body}\nprint(shown, count)"
    result = edited(script(functions=ROWS, inside=inside), "DDP503", "DDP506")
    assert ("broadcast_value" in result.text) is told or bool(result.left) is told
