"""DDP501: what of a training loop's numbers is added up, what is named, what is left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddpify.convert import convert, convert_source
from ddpify.source import Source
from tests.rules.edited import edited, script

SCRIPT = """\
from collections import Counter, defaultdict

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Meter:
    def __init__(self):
        self.sum, self.n = 0.0, 0

    def update(self, value, n):
        self.sum += value * n
        self.n += n


loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,))), batch_size=8)
net = nn.Linear(8, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    START
    for x, y in loader:
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        STEP
    print(END)
"""


def said(tmp_path: Path, start: str, step: str, end: str) -> tuple[str, list[str], list[str]]:
    """The new text, the notes and what is left, of DDP501."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("START", start).replace("STEP", step).replace("END", end))
    done = convert(path)
    mine = [[f.message for f in found if f.code == "DDP501"] for found in (done.plan.notes, done.plan.left)]
    return done.text, mine[0], mine[1]


@pytest.mark.parametrize(
    ("start", "step", "end"),
    [
        ("hits = 0", "hits += (out.argmax(1) == y).sum().item()", "hits"),
        ("hits = torch.zeros(1)", "hits += (out.argmax(1) == y).sum()", "hits"),
        ("hits = torch.tensor(0.0)", "hits += (out.argmax(1) == y).sum()", "hits"),
        ("hits = 0", "hits += (out.topk(2).indices == y[:, None]).reshape(-1).float().sum(0)", "hits"),
        ("hits = 0", "hits += (out.argmax(1) == y).flatten().sum(0, keepdim=True)", "hits"),
    ],
)
def test_numbers_are_added_up(tmp_path: Path, start: str, step: str, end: str) -> None:
    text, notes, left = said(tmp_path, start, step, end)
    assert "    [hits] = all_reduce_sum(hits)\n" in text
    assert not notes
    assert not left


@pytest.mark.parametrize(
    ("start", "step", "line"),
    [
        ("kept = {'loss': 0.0}", "kept['loss'] += loss.item()", "[kept['loss']] = all_reduce_mean(kept['loss'])"),
        ("kept = {'n': 0}", "kept['n'] += len(y)", "[kept['n']] = all_reduce_sum(kept['n'])"),
        ("kept = dict(n=0)", "kept['n'] += len(y)", "[kept['n']] = all_reduce_sum(kept['n'])"),
        ("kept = [0.0, 0]", "kept[1] += len(y)", "[kept[1]] = all_reduce_sum(kept[1])"),
        ("kept = defaultdict(int)", "kept['n'] += len(y)", "[kept['n']] = all_reduce_sum(kept['n'])"),
        (
            "kept = defaultdict(float)",
            "for k, v in {'a': loss, 'b': 2 * loss}.items():\n            kept[k] += v.item()",
            "kept.update(zip(kept, all_reduce_mean(*kept.values())))",
        ),
        ("kept = [0] * 3", "for k in y.tolist():\n            kept[k] += 1", "kept[:] = all_reduce_sum(*kept)"),
        ("kept = [0 for _ in range(3)]", "for k in y:\n            kept[k] += 1", "kept[:] = all_reduce_sum(*kept)"),
        ("kept = torch.zeros(3)", "kept += (out > 0).sum(0)", "dist.all_reduce(kept)"),
        ("kept = np.zeros(3)", "kept += (out > 0).sum(0).numpy()", "dist.all_reduce(torch.from_numpy(kept))"),
        (
            "kept = np.zeros((3, 3), dtype=int)",
            "for k, p in zip(y.tolist(), out.argmax(1).tolist()):\n            kept[k, p] += 1",
            "dist.all_reduce(torch.from_numpy(kept))",
        ),
        ("kept = []", "kept.extend(out.argmax(1).tolist())", "kept[:] = gather_list(kept)"),
        ("kept = []", "kept += list(y.numpy())", "kept[:] = gather_list(kept)"),
        ("kept = {'loss': []}", "kept['loss'].append(loss.item())", "kept['loss'][:] = all_reduce_mean(*kept['loss'])"),
        ("kept = Meter()", "kept.update(loss.item(), len(y))", "kept.all_reduce()"),
    ],
)
def test_what_holds_numbers_is_added_up(tmp_path: Path, start: str, step: str, line: str) -> None:
    text, notes, left = said(tmp_path, start, step, "kept")
    assert f"    {line}\n    if is_main_process():" in text
    assert not notes
    assert not left


@pytest.mark.parametrize(
    ("start", "step"),
    [
        ("hits = np.array([0.0, 0.0, 0.0])", "hits += (out > 0).sum(0).numpy()"),
        ("hits = 0", "hits += (out > 0).sum(dim=0)"),
    ],
)
def test_a_number_for_each_class_is_left(tmp_path: Path, start: str, step: str) -> None:
    text, _, left = said(tmp_path, start, step, "hits")
    assert "all_reduce_sum" not in text
    assert [m for m in left if m.startswith("`hits` is used after the loop")]


@pytest.mark.parametrize(
    ("start", "step", "end"),
    [
        ("kept = []", "kept.append((loss.item(), len(y)))", "kept"),
        ("kept = []", "kept.append(out.max().item())", "max(kept)"),
        ("kept = {}", "kept[y[0].item()] = loss.item()", "kept"),
        ("kept = Counter()", "for k in y.tolist():\n            kept[k] += 1", "kept"),
        ("kept, n = [], 0", "kept.append(out.argmax(1).numpy())\n        n += len(kept)", "(kept, n)"),
        ("kept, truth = [], []", "kept.extend(out.argmax(1).tolist())\n        truth.append((y, 1))", "(kept, truth)"),
        ("kept = [Meter(), Meter()]", "for one in kept:\n            one.update(loss.item(), len(y))", "kept"),
        ("kept = 0.0", "kept = 0.9 * kept + 0.1 * loss.item()", "kept"),
        ("kept = None", "kept = loss.item() if kept is None else 0.9 * kept + 0.1 * loss.item()", "kept"),
    ],
)
def test_what_keeps_one_shard_is_named(tmp_path: Path, start: str, step: str, end: str) -> None:
    _, notes, _ = said(tmp_path, start, step, end)
    assert [m for m in notes if re.match(r"`kept`.* keeps? numbers of each rank's own training batches", m)]


@pytest.mark.parametrize(
    ("step", "end"),
    [
        ("kept.append(loss.item())", "np.mean(kept)"),
        ("kept.append(loss.item())", "kept[-1]"),
        ("kept.append(out.max().item())", "np.mean(kept)"),
        ("kept.append(out.max().item())", "sum(kept) / len(kept)"),
    ],
)
def test_a_list_of_batch_means_is_averaged(tmp_path: Path, step: str, end: str) -> None:
    text, notes, left = said(tmp_path, "kept = []", step, end)
    assert "    kept[:] = all_reduce_mean(*kept)\n" in text
    assert not notes
    assert not left


def test_what_no_one_reads_is_not_named(tmp_path: Path) -> None:
    assert said(tmp_path, "kept = []", "kept.append(loss.item())", "epoch")[1] == []


@pytest.mark.parametrize(
    ("step", "alike"),
    [
        ("step += 1", True),
        ("step += 1\n        if step % 2 == 0:\n            print(step)", True),
        ("if loss.item() > 0.5:\n            step += 1", False),
    ],
)
def test_a_count_of_batches_that_goes_on_is_alike_on_every_rank(tmp_path: Path, step: str, alike: bool) -> None:
    """`global_step`, as it is saved in a checkpoint."""
    path = tmp_path / "train.py"
    text = SCRIPT.replace("for epoch in", "step = 0\nfor epoch in", 1).replace("STEP", step).replace("END", "step")
    path.write_text(text.replace("    START\n", ""))
    done = convert(path)
    assert "all_reduce" not in done.text
    assert bool([f for f in done.plan.left if f.code == "DDP501"]) != alike


def test_what_is_weighed_by_its_batch_is_added_up() -> None:
    """`(mse + beta * kl) * len(x)`, later divided by the length of a tensor: no mean of the ranks."""
    source = Source(
        Path("train.py"),
        b"""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
data = torch.ones(8, 4)
loader = DataLoader(TensorDataset(data), batch_size=2)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    beta, total = min(1.0, epoch / 2), 0.0
    for (x,) in loader:
        out = net(x)
        loss = out.pow(2).mean() + beta * out.abs().max()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(x)
    print(total / len(data))
""",
    )
    assert "    [total] = all_reduce_sum(total)\n" in convert_source(source).text


GROWN = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8)), batch_size=2)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    seen = {start}
    for x, y in loader:
        out = net(x)
        out.mean().backward()
        optimizer.step()
        {grows}
    print(np.mean(seen))
"""


@pytest.mark.parametrize(
    ("start", "grows"),
    [
        ("[]", "seen += list(out)"),
        ("torch.zeros(0)", "seen = torch.cat([seen, out])"),
        ("np.array([])", "seen = np.append(seen, out.detach().numpy())"),
        ("None", "seen = out if seen is None else torch.cat((seen, out))"),
    ],
)
def test_what_grows_and_stays_one_rank_s_is_said(start: str, grows: str) -> None:
    done = convert_source(Source(Path("train.py"), GROWN.format(start=start, grows=grows).encode()))
    assert any("`seen` keeps numbers of each rank's own training batches" in f.message for f in done.plan.notes)


@pytest.mark.parametrize("grows", ["seen = seen + y.tolist()", "seen += y.tolist()", "seen.extend(y.tolist())"])
def test_a_list_of_samples_is_put_together_however_it_grows(grows: str) -> None:
    done = convert_source(Source(Path("train.py"), GROWN.format(start="[]", grows=grows).encode()))
    assert "    seen[:] = gather_list(seen)\n" in done.text


DIVERGENCE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 2)
    def forward(self, x):
        return self.fc(x)
    def losses(self, out, weight):
        spread = torch.mean(-0.5 * torch.sum(1 + out - out ** 2, dim=1), dim=0)
        fit = nn.functional.mse_loss(out, torch.zeros_like(out))
        return {"fit": fit, "spread": spread.detach(), "loss": fit + weight * spread}

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
held = DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2)
net = Coder()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    fit, spread, loss, later = 0.0, 0.0, 0.0, 0.0
    for (x,) in loader:
        found = net.losses(net(x), 0.1)
        found["loss"].backward()
        optimizer.step()
        fit += found["fit"].item() / len(loader)
        spread += found["spread"].item() / len(loader)
        loss += found["loss"].item() / len(loader)
    with torch.no_grad():
        for (x,) in held:
            later += net.losses(net(x), 0.1)["spread"].item()
    print(fit, spread, loss, later / len(held))
"""


def test_a_number_that_was_reduced_over_one_axis_after_the_other_is_no_sum_of_samples() -> None:
    """The divergence of a variational autoencoder was as many times too large as there are ranks."""
    done = convert_source(Source(Path("train.py"), DIVERGENCE.encode()))
    assert "    fit, spread, loss = all_reduce_mean(fit, spread, loss)\n" in done.text
    assert "held = DataLoader(val_set, batch_sampler=val_batches)\n" in done.text  # no batch is made up anew
    assert "    later, batches = all_reduce_sum(later, len(held))\n" in done.text
    assert "print(fit, spread, loss, later / batches)\n" in done.text


LAST = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8).long()), batch_size=2)
net = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    losses, total, right, seen, mean = [], 0.0, 0, 0, 0.0
    hits = np.zeros((2, 2))
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        {before}
        losses.append(loss.item())
        total += loss.item()
        right += (out.argmax(1) == y).sum().item()
        seen += len(x)
        for j in range(len(y)):
            hits[y[j].item(), out[j].argmax().item()] += 1
        {made}
    print(epoch, mean, {shown})
"""


def last(made: str, before: str = "pass", shown: str = "mean") -> tuple[str, list[str]]:
    done = convert_source(Source(Path("train.py"), LAST.format(made=made, before=before, shown=shown).encode()))
    return done.text, [f.message for f in done.plan.notes]


@pytest.mark.parametrize(
    ("made", "shown", "reduced"),
    [
        ("mean = np.mean(losses)", "losses", "losses[:] = all_reduce_mean(*losses)"),
        ("mean = np.mean(losses)", "mean", "losses[:] = all_reduce_mean(*losses)"),
        ("mean = total / (i + 1)", "mean", "[total] = all_reduce_mean(total)"),
        ("mean = 100.0 * right / seen", "mean", "right, seen = all_reduce_sum(right, seen)"),
        ("mean = hits.trace() / hits.sum()", "hits.shape", "dist.all_reduce(torch.from_numpy(hits))"),
    ],
)
def test_what_was_computed_in_the_loop_is_computed_again_behind_it(made: str, shown: str, reduced: str) -> None:
    """The last value was rank 0's own, although what it is made of was added up right behind."""
    text, notes = last(made, shown=shown)
    assert text.index(f"\n    {reduced}\n") < text.index(f"\n    {made}\n") < text.index("print(epoch")
    assert not any("`mean`" in note for note in notes)


@pytest.mark.parametrize(
    ("made", "before"),
    [
        ("mean = right / (i + 1)", "pass"),
        ("pass", "mean = np.mean(losses or [0.0])"),
        ("mean = smooth(losses, i)", "pass"),
        ("mean = right / len(loader)", "pass"),
    ],
)
def test_what_cannot_be_computed_again_is_said_to_be_one_rank_s(made: str, before: str) -> None:
    text, notes = last(made, before)
    assert f"\n    {made}\n" not in text
    assert f"\n    {before}\n" not in text
    assert any("`mean` keep" in note for note in notes)


FILTERED = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
def plain(net, x, y):
    return (net(x).squeeze(1) - y).pow(2).mean()
def masked(net, x, y):
    keep = net(x).detach().squeeze(1) < 0.5
    x, y = x[keep], y[keep]
    size = len(x)
    return (net(x).squeeze(1) - y).pow(2).mean(), size
kind = sys.argv[1]
loss_of = {"plain": plain, "masked": masked}[kind]
loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8)), batch_size=2)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    filtered = 0
    for x, y in loader:
        optimizer.zero_grad()
        if kind == "plain":
            loss = loss_of(net, x, y)
        else:
            loss, size = loss_of(net, x, y)
            filtered += x.size()[0] - size
        loss.backward()
        optimizer.step()
    print(filtered)
"""


def test_a_count_less_another_is_a_count() -> None:
    """It was averaged over the ranks."""
    done = convert_source(Source(Path("train.py"), FILTERED.encode()))
    assert "[filtered] = all_reduce_sum(filtered)" in done.text


TOTALS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(8, 4), torch.ones(8)), batch_size=2)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
def train(epochs):
    total, logged = 0.0, 0.0
    seen = high = steps = 0
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            out = net(x).squeeze(1)
            loss = (out - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            seen += len(x)
            if loss.item() > 0.5:
                high += 1
            if (i + 1) % 2 == 0:
                steps += 1
                if steps % 5 == 0:
                    print((total - logged) / 5)
                    logged = total
        {behind_each}
    return total / steps, high / seen
print(train(3))
"""


def totals(behind_each: str = "pass") -> tuple[str, list[str]]:
    done = convert_source(Source(Path("train.py"), TOTALS.format(behind_each=behind_each).encode()))
    return done.text, [f.message for f in (*done.left, *done.plan.notes)]


def test_what_goes_on_through_all_epochs_is_brought_together_behind_them() -> None:
    """It stayed rank 0's own, and so was `steps` said to be, which is the same on all ranks."""
    text, notes = totals()
    assert "\n    [total] = all_reduce_mean(total)\n" in text
    assert (
        "\n    high, seen = all_reduce_sum(high, seen)\n" in text or "seen, high = all_reduce_sum(seen, high)" in text
    )
    assert text.index("logged = total") < text.index("[total] = ") < text.index("return total")
    assert not any("used after the loop" in note for note in notes)


@pytest.mark.parametrize("behind_each", ["print(epoch, total / steps)", "total *= 0.9"])
def test_what_is_used_behind_each_epoch_is_left(behind_each: str) -> None:
    text, notes = totals(behind_each)
    assert "[total] = " not in text
    assert any("`total` is used after the loop" in note for note in notes)


def test_a_count_that_the_batches_decide_is_no_number_of_batches() -> None:
    """It was taken for one, alike on all ranks, because a constant is added."""
    script = TOTALS.replace("    seen = high", "    seen = steps").replace("= steps = 0", "= 0")
    script = script.replace("        for i, (x", "        high = 0\n        for i, (x").format(
        behind_each="print(high)"
    )
    done = convert_source(Source(Path("train.py"), script.encode()))
    assert "        [high] = all_reduce_sum(high)\n        if is_main_process():\n            print(high)" in done.text


VALIDATED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loaders = {{
    "train": DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True),
    "val": DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2),
}}
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for phase in ["train", "val"]:
        losses, answers = [], []
        for (x,) in loaders[phase]:
            with torch.set_grad_enabled(phase == "train"):
                found = model(x)
                loss = found.mean()
                if phase == "{phase}":
                    losses.append(loss.item())
                    answers.extend([row for row in found.detach()])
                if phase == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        if phase == "{phase}":
            print(sum(losses) / len(losses), torch.stack(answers).max())
"""


def test_what_one_phase_keeps_of_an_evaluation_is_nothing_of_the_training() -> None:
    """Empty lists were brought together behind the training, and said to be an estimate of it."""
    found = edited(VALIDATED.format(phase="val"), "DDP501")
    assert "gather" not in found.text
    assert "all_reduce" not in found.text
    assert not found.left
    assert edited(VALIDATED.format(phase="train"), "DDP501").left


CARRIED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Moved:
    def __init__(self, loader, device):
        self.loader, self.device = loader, device

    def __iter__(self):
        {iterates}

    def __len__(self):
        return len(self.loader)

loader = Moved(DataLoader(TensorDataset(torch.ones(9, 4)), batch_size=2, shuffle=True), "cpu")
held = Moved(DataLoader(TensorDataset(torch.ones(5, 4)), batch_size=2), "cpu")
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs=3, steps_per_epoch=len(loader))

def run(data, train):
    net.train(train)
    total, losses = 0.0, []
    for (x,) in data:
        loss = net(x).mean()
        if train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        total += loss.item()
        losses.append(loss)
    return total / len(data), losses

for epoch in range(3):
    print(run(loader, True)[0])
    {evaluates}
"""


@pytest.mark.parametrize(
    "iterates",
    ["for b in self.loader:\n            yield [t.to(self.device) for t in b]", "return iter(self.loader)"],
)
@pytest.mark.parametrize("evaluates", ["print(run(held, False)[0])", "pass"])
def test_numbers_of_a_loop_over_an_object_that_reads_the_loader(iterates: str, evaluates: str) -> None:
    """They were rank 0's own, without a word; and the schedule was said to count the steps of one process."""
    script = CARRIED.format(iterates=iterates, evaluates=evaluates)
    done = convert_source(Source(Path("train.py"), script.encode()))
    told = "    if train:\n        [total] = " if "held" in evaluates else "    [total] = "
    assert f"\n{told}all_reduce_mean(total)\n    return total / len(data), losses" in done.text
    assert any("`losses` keeps numbers of each rank" in f.message for f in done.plan.notes)
    assert not any("schedule" in f.message for f in done.left)


def test_what_is_given_the_result_of_an_evaluation_keeps_no_numbers_of_the_steps() -> None:
    functions = """
class Schedule:
    def __init__(self):
        self.best = self.last = 0.0

    def __call__(self, optimizer, i, best):
        self.best = max(self.best, best)

    def see(self, loss):
        self.last = loss
"""
    steps = "best = 0.0\nschedule = Schedule()\nheld = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)"
    for call, noted in (("schedule(optimizer, 0, best)", False), ("schedule.see(loss.item())", True)):
        text = script(functions=functions, before=steps, inside="best = evaluate(model, held)\nprint(schedule.last)")
        text = text.replace("        optimizer.step()\n", f"        optimizer.step()\n        {call}\n", 1)
        found = any("keeps numbers of each rank's own" in m for m in edited(text, "DDP501").left)
        assert found == noted, call


@pytest.mark.parametrize(
    ("start", "end", "helper"),
    [
        ("total, count = 0.0, len(loader.dataset) // 8", "total / count", "sum"),
        ("total = 0.0", "total / len(loader.dataset)", "sum"),
        ("total = 0.0", "total / int(len(loader.dataset) / loader.batch_size)", "sum"),
        ("total = 0.0", "total / len(loader)", "mean"),
        ("total, count = 0.0, len(loader)", "total / count", "mean"),
        ("total = 0.0", "total", "mean"),
    ],
)
def test_batch_means_go_by_what_they_are_divided_by(tmp_path: Path, start: str, end: str, helper: str) -> None:
    text, notes, left = said(tmp_path, start, "total += loss.item()", end)
    assert f"    [total] = all_reduce_{helper}(total)\n" in text
    assert f"print({end})" in text  # the divisor stays
    assert not left
    assert not notes


def test_who_calls_may_divide_by_the_whole_set(tmp_path: Path) -> None:
    body = (
        SCRIPT.replace("for epoch in range(2):\n", "def run(loader):\n")
        .replace("    START", "    first, second = 0.0, 0.0")
        .replace("        STEP", "        first += loss.item()\n        second += loss.item()")
        .replace("    print(END)", "    return first, second")
    )
    ways = "for epoch in range(2):\n    a, b = run(loader)\n    print(a / len(loader.dataset), b / len(loader))\n"
    path = tmp_path / "train.py"
    path.write_text(body + ways)
    text = convert(path).text
    assert "[second] = all_reduce_mean(second)" in text
    assert "[first] = all_reduce_sum(first)" in text


@pytest.mark.parametrize(
    ("start", "step", "end", "gives"),
    [
        (
            "kept = {'loss': Meter(), 'hits': Meter()}",
            "kept['loss'].update(loss.item(), len(x)); kept['hits'].update(loss.item(), len(x))",
            "kept['loss'].sum",
            "    kept['loss'].all_reduce()\n    kept['hits'].all_reduce()\n",
        ),
        ("kept = [Meter(), Meter()]", "kept[1].update(loss.item(), len(x))", "kept", "    kept[1].all_reduce()\n"),
    ],
)
def test_meters_in_a_dict_or_list_are_added_up_one_by_one(
    tmp_path: Path, start: str, step: str, end: str, gives: str
) -> None:
    text, notes, left = said(tmp_path, start, step, end)
    assert gives in text
    assert "def all_reduce(self):\n        self.sum, self.n = all_reduce_sum(self.sum, self.n)\n" in text
    assert not notes
    assert not left


@pytest.mark.parametrize(
    ("start", "step"),
    [
        # which of them a rank has made goes by its own batches
        ("kept = defaultdict(Meter)", "kept['loss'].update(loss.item(), len(x))"),
        ("kept = defaultdict(lambda: Meter())", "kept['loss'].update(loss.item(), len(x))"),
        (
            "kept = {'loss': Meter(), 'hits': Meter()}",
            "for name in kept:\n            kept[name].update(loss.item(), 1)",
        ),
        ("kept = {'loss': Meter(), 'last': 0}", "kept['loss'].update(loss.item(), 1); kept['last'] = loss.item()"),
        ("kept = Meters()", "kept.update('loss', loss.item(), len(x))"),
    ],
)
def test_meters_that_stay_a_rank_s_own_are_named(
    tmp_path: Path, start: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = """
class Meters:
    def __init__(self):
        self.held = {}

    def __getitem__(self, name):
        return self.held[name]

    def update(self, name, value, n):
        if name not in self.held:
            self.held[name] = Meter()
        self.held[name].update(value, n)


loader ="""
    monkeypatch.setitem(globals(), "SCRIPT", SCRIPT.replace("\nloader =", several, 1))
    text, notes, left = said(tmp_path, start, step, "kept['loss']")
    assert ".all_reduce()" not in text
    assert len(notes) == 1
    assert notes[0].startswith("`kept` keeps numbers of each rank's own training batches")
    assert not left


EPISODES = """
import argparse
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Episodes:
    def __init__(self, count, size):
        self.count, self.size = count, size

    def __iter__(self):
        for _ in range(self.count):
            yield torch.randperm(40)[: self.size].tolist()

    def __len__(self):
        return self.count

parser = argparse.ArgumentParser()
parser.add_argument("--episodes", type=int, default=6)
parser.add_argument("--window", type=int, default=50)
opt = parser.parse_args()
data = TensorDataset(torch.ones(40, 4))
loader = DataLoader(data, {loader})
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
losses = []
for epoch in range(2):
    for (x,) in loader:
        loss = net(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(np.mean(losses[-{steps}:]))
"""


@pytest.mark.parametrize(
    ("loader", "steps", "becomes"),
    [
        ("batch_sampler=Episodes(opt.episodes, 4)", "opt.episodes", "len(loader)"),
        ("batch_sampler=Episodes(size=4, count=opt.episodes)", "opt.episodes", "len(loader)"),
        ("batch_size=4, shuffle=True", "(len(data) // 4)", "(len(loader))"),
        ("batch_size=4, shuffle=True", "len(loader)", "len(loader)"),
        ("batch_sampler=Episodes(opt.episodes, 4)", "opt.window", "opt.window"),
        ("batch_sampler=Episodes(6, 4)", "100", "100"),
    ],
)
def test_an_epochs_part_of_a_list_is_as_long_as_a_ranks_epoch(loader: str, steps: str, becomes: str) -> None:
    result = convert_source(Source(Path("train.py"), EPISODES.format(loader=loader, steps=steps).encode()))
    assert "losses[:] = all_reduce_mean(*losses)" in result.text
    assert f"print(np.mean(losses[-{becomes}:]))" in result.text
    assert not result.plan.left
