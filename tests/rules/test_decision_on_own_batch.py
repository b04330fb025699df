"""DDP506 inside a batch loop: all ranks go the way of any of them, where all of them come to the test."""

from __future__ import annotations

import pytest

from tests.cases import convert_bytes
from tests.rules.edited import edited, linted

SCRIPT = """\
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
start = time.time()
for epoch in range(2):
    for step, (x,) in enumerate(loader):
        loss = model(x).mean()
{inside}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
CODE = "DDP506"


def inside(code: str) -> str:
    return SCRIPT.format(inside="\n".join("        " + line for line in code.split("\n")))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("if torch.isnan(loss):\n    continue", "if any_process(torch.isnan(loss)):\n    continue"),
        ("if not loss.item() < 9:\n    break", "if any_process(not loss.item() < 9):\n    break"),
        ("if bool(loss == 0):\n    continue", "if any_process(bool(loss == 0)):\n    continue"),
        ("if time.time() - start > 60:\n    break", "if any_process(time.time() - start > 60):\n    break"),
        (
            "if step > 2:\n    if loss.item() > 9:\n        continue",
            "if step > 2:\n    if any_process(loss.item() > 9):\n        continue",
        ),
        (
            "for k in range(2):\n    if loss.item() > 9:\n        break",
            "    if any_process(loss.item() > 9):\n        break",
        ),
    ],
)
def test_all_ranks_go_the_way_of_any(before: str, after: str) -> None:
    result = edited(inside(before), CODE)
    assert not result.left
    assert result.has(after)
    assert "any_process" in result.needs


@pytest.mark.parametrize(
    "code",
    [
        "hard = torch.nonzero(x > 0)\nif len(hard) == 0:\n    continue",
        "hard = np.where((x > 0).numpy())\nif len(hard[0]) == 0:\n    continue",
        "keep = x > 0\nhard = x[keep]\nif len(hard) < 2:\n    continue",
        "hard = [row for row in x if row.sum() > 0]\nif not len(hard):\n    continue",
        "if len(x.unique()) == 1:\n    break",
    ],
)
def test_how_many_are_picked_by_their_values_is_each_rank_s_own(code: str) -> None:
    """Hard triplets, boxes that are left: the others waited for the gradients of the rank that found none."""
    result = edited("import numpy as np\n" + inside(code), CODE)
    (test,) = [line.strip() for line in code.split("\n") if line.startswith("if ")]
    assert result.has(f"if any_process({test[3:-1]}):")


def test_a_test_that_not_all_ranks_come_to_is_left() -> None:
    result = edited(inside("if loss.item() > 9:\n    print(loss)\n    if x.max() > 3:\n        continue"), CODE)
    (message,) = result.left
    assert "`x.max() > 3` is this rank's own" in message
    assert "any_process(x.max() > 3)" not in result.text


@pytest.mark.parametrize("code", ["if step > 2:\n    break", "if len(x) < 2:\n    continue"])
def test_what_is_alike_on_all_ranks_stays(code: str) -> None:
    result = edited(inside(code), CODE)
    assert not result.left
    assert "any_process" not in result.text


KEPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Stopper:
    def __init__(self):
        self.best, self.bad, self.stop = 9.0, 0, False
    def step(self, value):
        self.best, self.bad = (value, 0) if value < self.best else (self.best, self.bad + 1)
        if self.bad > 2:
            self.stop = True
        return self.stop

class Tracker:
    def __init__(self, *keys):
        self.total, self.count = {{k: 0.0 for k in keys}}, {{k: 0 for k in keys}}
    def update(self, key, value):
        self.total[key] += value
        self.count[key] += 1
    def result(self):
        return {{k: self.total[k] / self.count[k] for k in self.total}}

def low(value):
    return value < 0.01

monitor = input()
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
log, history, stopper = {{}}, [], Stopper()
for epoch in range(2):
    tracker = Tracker("loss")
    for (x,) in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log["loss"] = loss.item()
        tracker.update("loss", loss.item())
    history.append(log)
{behind}
"""
STOP = ":\n        break"


@pytest.mark.parametrize(
    "behind",
    [
        "    if {stopper.step(loss.item())}" + STOP,
        "    stopper.step(loss.item())\n    if {stopper.stop}" + STOP,
        "    if {low(loss.item())}" + STOP,
        "    if {log[monitor] < 0.1}" + STOP,
        "    if {log.get(monitor) < 0.1}" + STOP,
        "    now = {k: v for k, v in log.items()}\n    if {now['loss'] < 0.1}" + STOP,
        "    if {history[-1]['loss'] < 0.1}" + STOP,
        "    if {tracker.result().get(monitor) < 0.1}" + STOP,
        "    if {max(history[-1].values()) < 0.1}:\n        optimizer.param_groups[0]['lr'] *= 0.1",
    ],
)
def test_a_number_that_went_through_objects_functions_and_dicts_is_rank_0s(behind: str) -> None:
    lines = [line for line in behind.split("\n") if "if {" in line]
    test = lines[0].split("{", 1)[1].rpartition("}")[0]
    plain = behind.replace("{" + test + "}", test)
    result = edited(KEPT.format(behind=plain), CODE)
    assert not result.left
    assert result.has(f"if broadcast_value({test}):")


def test_a_number_that_is_added_up_over_the_ranks_stays_as_it_is() -> None:
    script = KEPT.format(behind="    if total < 0.1:\n        break").replace(
        '    tracker = Tracker("loss")', "    total = 0.0"
    )
    result = edited(script.replace('tracker.update("loss", loss.item())', "total += loss.item()"), CODE)
    assert not result.left
    assert not result.needs


def test_a_list_that_is_averaged_over_the_ranks_decides_as_it_is() -> None:
    script = KEPT.format(behind="    if sum(losses) / len(losses) < 0.1" + STOP)
    script = script.replace('tracker = Tracker("loss")', "losses = []").replace(
        'tracker.update("loss", ', "losses.append("
    )
    result = edited(script, CODE)
    assert not result.left
    assert not result.needs


def test_whether_there_is_a_loss_is_alike_on_all_ranks() -> None:
    """`loss` is None where the model gives none, on every rank."""
    made = "extra = None\nif epoch > 0:\n    extra = loss\nif extra is None:\n    continue"
    result = edited(inside(made), CODE)
    assert "any_process" not in result.needs
    chosen = "extra = None\nif loss.item() > 9:\n    extra = loss\nif extra is None:\n    continue"
    assert "any_process" in edited(inside(chosen), CODE).needs


PATIENT = """\
import pandas
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Means:
    def __init__(self):
        {made}
    def add(self, name, value):
        {put}
    def means(self):
        return {given}

class Trainer:
    def __init__(self, model, loader, watched):
        self.model, self.loader, self.watched, self.best = model, loader, watched, 9.0
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.means = Means()
    def epoch(self):
        for x, y in self.loader:
            x, y = x.to(0), y.to(0)
            loss = nn.functional.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            self.means.add("loss", loss.item())
        return self.means.means()
    def train(self):
        without = 0
        for epoch in range(9):
            log = {{"epoch": epoch}}
            log.update(self.epoch())
            better = log[self.watched] < self.best
            if better:
                without = 0
            else:
                without += 1
            if without > 3:
                break

Trainer(nn.Linear(4, 1), DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8, 1)), 2), input()).train()
"""


@pytest.mark.parametrize(
    ("made", "put", "given"),
    [
        ("self.total = 0.0", "self.total += value", '{"loss": self.total}'),
        (
            'self.table = pandas.DataFrame(0.0, index=["loss"], columns=["total"])',
            "self.table.total[name] += value",
            "dict(self.table.total)",
        ),
    ],
)
def test_patience_that_counts_a_rank_s_own_numbers_ends_by_rank_0s(made: str, put: str, given: str) -> None:
    assert edited(PATIENT.format(made=made, put=put, given=given), CODE).has("if broadcast_value(without > 3):")


METER = b"""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Meter:
    def __init__(self):
        self.avg = self.sum = self.count = 0
    def update(self, val, n=1):
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

def right(model, loader):
    top, shown = Meter(), {}
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            top.update((out.argmax(1) == y).float().mean().item(), x.size(0))
            print(out.sum().item())
    return top.avg

data = TensorDataset(torch.ones(9, 4), torch.zeros(9, dtype=torch.long))
loader, held = DataLoader(data, batch_size=2), DataLoader(data, batch_size=4)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
best = 0
for epoch in range(2):
    losses = Meter()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        losses.update(loss.item(), len(x))
        loss.backward()
        optimizer.step()
    now = right(model, held)
    if now > best:
        torch.save(model.state_dict(), "best.pt")
    best = max(now, best)
    print(losses.avg)
"""


def test_a_meter_of_an_evaluation_in_full_is_no_shards_where_the_trainings_is_of_its_class() -> None:
    """`self.sum` is what was added to this object: the other one's losses had a say, and the user was asked."""
    done = convert_bytes(METER)
    assert "losses.all_reduce()" in done.text
    assert [f.message for f in done.plan.left] == []


IN_A_DICT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

def of_rank_zero(value):
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]

dist.init_process_group("gloo")
data = TensorDataset(torch.ones(8, 4))
loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
net = DDP(nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
best = 9.0
for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    totals = {"loss": 0.0}
    for (x,) in loader:
        loss = net(x).mean()
        loss.backward()
        optimizer.step()
        totals["loss"] += loss.item()
    AGREE
    if totals["loss"] < best:
        best = totals["loss"]
        if dist.get_rank() == 0:
            torch.save(net.module.state_dict(), "best.pt")
"""


@pytest.mark.parametrize(("agree", "found"), [("pass", 1), ("totals = of_rank_zero(totals)", 0)])
def test_an_entry_of_a_dict_that_is_rank_0s_is_alike_on_all_ranks(agree: str, found: int) -> None:
    assert len(linted(IN_A_DICT.replace("AGREE", agree), CODE)) == found


def converted(script: str) -> str:
    return convert_bytes(script.encode()).text


MEETS = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
held = DataLoader(TensorDataset(torch.ones(7, 4)), batch_size=2)
model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
teacher = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def check(net):
    net.eval()
    right = 0
    with torch.no_grad():
        for (x,) in held:
            right += (net(x) > 0).sum().item()
    net.train()
    return right

def show(net):
    with torch.no_grad():
        return net(torch.ones(1, 4)).item()

def keep(net):
    torch.save(net.state_dict(), "last.pt")
    return torch.load("last.pt")

last, shown = time.time(), 0
for epoch in range(4):
    for (x,) in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {batch}
    now = time.time()
    if {test}:
        {body}
        last = now
"""


@pytest.mark.parametrize("body", ["print(check(model))", "keep(model)", "model.eval()\n        shown = show(model)"])
@pytest.mark.parametrize("test", ["now - last > 60", "epoch % 2 == 0 or time.time() - last > 60", "loss.item() < 0.1"])
def test_ranks_come_to_a_meeting_by_rank_0s_clock_and_numbers(test: str, body: str) -> None:
    text = converted(MEETS.format(batch="pass", test=test, body=body))
    assert f"    if broadcast_value({test}):\n" in text


@pytest.mark.parametrize("inside", ["if time.time() - last > 60:\n            check(model)"])
def test_ranks_come_to_an_evaluation_between_two_batches(inside: str) -> None:
    text = converted(MEETS.format(batch=inside, test="epoch", body="pass"))
    assert "        if broadcast_value(time.time() - last > 60):\n" in text


@pytest.mark.parametrize(
    ("test", "body", "batch"),
    [
        ("now - last > 60", "print(now)", "pass"),
        ("now - last > 60", 'torch.save(model.state_dict(), "last.pt")', "pass"),
        ("epoch % 2 == 0", "print(check(model))", "pass"),
        ("epoch", "print(check(model))", "if time.time() - last > 60:\n            show(teacher)"),
    ],
)
def test_a_test_under_which_no_rank_waits_stays(test: str, body: str, batch: str) -> None:
    text = converted(MEETS.format(batch=batch, test=test, body=body))
    assert f"    if {test}:\n" in text
    assert "broadcast_value(" not in text.partition("last, shown =")[2]


STOPPER = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
held = DataLoader(TensorDataset(torch.ones(7, 4)), batch_size=2)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
log, steps, best = {"train": [], "held": []}, {"last": []}, None
for epoch in range(4):
    total = 0
    for (x,) in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    log["train"].append(total / len(loader))
    steps["last"].append(loss.item())
    total = 0
    with torch.no_grad():
        for (x,) in held:
            total += model(x).mean().item()
    log["held"].append(total / len(held))
    now = {TAKEN}
    if best is None or now < best:
        best = now
        torch.save(model.state_dict(), "best.pt")
    if now > 9:
        break
"""


@pytest.mark.parametrize(
    "taken",
    [
        '{k: v[-1] for k, v in log.items()}["held"]',
        'min(v for v in log["held"])',
        "[row[-1] for row in log.values()][1]",
    ],
)
def test_numbers_of_all_ranks_that_a_comprehension_takes_decide_as_they_are(taken: str) -> None:
    done = convert_bytes(STOPPER.replace("{TAKEN}", taken).encode())
    assert "    if now > 9:\n" in done.text
    assert not done.plan.left


def test_a_number_of_one_rank_that_a_comprehension_takes_is_rank_0s() -> None:
    done = convert_bytes(STOPPER.replace("{TAKEN}", '{k: v[-1] for k, v in steps.items()}["last"]').encode())
    assert "    if broadcast_value(now > 9):\n" in done.text


@pytest.mark.parametrize(
    "table",
    [
        "{u: 2 * held[u] for u in held}",
        "{u: held[u] for u in sorted(held)}",
        "dict((u, held[u]) for u in held)",
        "{k: [u for u in range(v)] for k, v in held.items()}",
    ],
)
def test_a_comprehension_has_names_of_its_own(table: str) -> None:
    """`u` was held to be the batch of the training loop, in the same file, and the answer one rank's own."""
    text = f"""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

held = {{k: k + 1 for k in range(5)}}
table = {table}
loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def evaluate(net):
    hits = []
    with torch.no_grad():
        for k in range(5):
            answer = net(torch.full((1, 4), float(k))).item()
            hits.append(1 if table[k] and answer > k else 0)
    return np.mean(hits)

best = 0
for epoch in range(2):
    for (u,) in loader:
        u = u.to("cpu")
        loss = net(u).mean()
        loss.backward()
        optimizer.step()
    now = evaluate(net)
    if now > best:
        best = now
        torch.save(net.state_dict(), "best.pt")
"""
    assert not convert_bytes(text.encode()).plan.left
