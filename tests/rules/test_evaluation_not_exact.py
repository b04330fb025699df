"""DDP304: how an evaluation is shared out, or why every rank does all of it."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited, script

HELD = """
held_set = TensorDataset(torch.ones(9, 4), torch.ones(9, dtype=torch.long))
held = DataLoader(held_set, batch_size=4{more})

def right(model):
    model.eval()
    {start}
    with torch.no_grad():
        for x, y in held:
            {add} += (model(x).argmax(1) == y).sum().item()
    return {end}
"""
SHARED = "sampler=range(dist.get_rank(), len(held_set), dist.get_world_size())"


@pytest.mark.parametrize(
    ("start", "add", "end"),
    [
        ("total = 0", "total", "total / len(held.dataset)"),
        ("sums = {'right': 0}", "sums['right']", "sums['right'] / len(held.dataset)"),
        ("sums = [0, 0.0]", "sums[0]", "sums[0] / len(held.dataset)"),
    ],
)
def test_numbers_in_a_dict_are_shared_out_like_any(start: str, add: str, end: str) -> None:
    before = HELD.format(start=start, add=add, end=end, more="")
    result = edited(script(before=before, inside="print(right(model))"), "DDP304", "DDP501")
    assert SHARED in result.text
    assert f"[{add}] = all_reduce_sum({add})" in result.text


@pytest.mark.parametrize("more", ["", ", shuffle=True"])
def test_a_loader_of_which_one_batch_is_taken_is_read_in_full(more: str) -> None:
    """A rank without a batch would end in a StopIteration, and a shard has another first batch."""
    before = HELD.format(start="total = 0", add="total", end="total", more=more)
    text = script(before=before, inside="x, y = next(iter(held))\nprint(right(model), model(x))")
    result = edited(text, "DDP304", "DDP501")
    assert SHARED not in result.text
    assert "batch_sampler" not in result.text
    assert "all_reduce_sum" not in result.text


BATCHES = """
from math import log10
from tqdm import tqdm
held_set = TensorDataset(torch.ones(9, 4), torch.ones(9, 1))
held = DataLoader(held_set, batch_size=4)

def score(model, loader):
    model.eval()
    total = run = 0.0
    {start}
    with torch.no_grad():
        for {loop}:
            {step}
    return {end}
"""
BY_BATCH = "BatchSampler(range(len(held_set)), 4, drop_last=False))[dist.get_rank()::dist.get_world_size()]"
ADD = "total += nn.functional.mse_loss(model(x), y).item()"


@pytest.mark.parametrize(
    ("start", "loop", "step", "end", "gives"),
    [
        ("", "i, (x, y) in enumerate(loader)", ADD, "total / (i + 1)", ("total, batches", "total, len(loader)")),
        ("", "i, (x, y) in enumerate(tqdm(loader))", ADD, "total / (1 + i)", ("total, batches", "total, len(loader)")),
        ("", "i, (x, y) in enumerate(loader, 1)", ADD, "total / i", ("total, batches", "total, len(loader)")),
        (
            "bar = tqdm(loader)",
            "i, (x, y) in enumerate(bar)",
            f"{ADD}; bar.desc = f'{{total / (i + 1)}}'",
            "total / (i + 1)",
            ("total, batches", "total, len(bar)"),
        ),
        ("n = len(loader)", "x, y in tqdm(loader, total=n)", ADD, "total / max(n, 1)", ("total, n", "total, n")),
        (
            "",
            "x, y in tqdm(loader, total=len(loader))",
            ADD,
            "total / max(1, len(loader))",
            ("total, batches", "total, len(loader)"),
        ),
        (
            "",
            "x, y in loader",
            "total += 10 * log10(1 / nn.functional.mse_loss(model(x), y).item())",
            "total / len(loader)",
            ("total, batches", "total, len(loader)"),
        ),
    ],
)
def test_the_number_of_batches_is_added_up_with_what_it_divides(
    start: str, loop: str, step: str, end: str, gives: tuple[str, str]
) -> None:
    text = script(before=BATCHES.format(start=start, loop=loop, step=step, end=end), inside="print(score(model, held))")
    result = edited(text, "DDP304", "DDP501")
    assert BY_BATCH in result.text
    assert f"{gives[0]} = all_reduce_sum({gives[1]})" in result.text
    counted = gives[0].split()[1]
    for old in ("(i + 1)", "(1 + i)", "len(loader)", "/ i"):
        end = end.replace(old, f"/ {counted}" if old == "/ i" else counted)
    assert f"return {end}" in result.text


@pytest.mark.parametrize(
    ("rest", "left"),
    [
        ("4, False", ""),
        ("4, False, None, None, 2, pad, False", "num_workers=2, collate_fn=pad, pin_memory=False, "),
        ("4, False, num_workers=2", "num_workers=2, "),
    ],
)
def test_options_of_a_loader_dealt_out_by_batch_stay(rest: str, left: str) -> None:
    """`batch_size` and `shuffle` go into the batch sampler; a collate function in its place was lost with them."""
    before = BATCHES.format(start="", loop="x, y in loader", step=ADD, end="total / len(loader)")
    before = before.replace("held_set, batch_size=4", f"held_set, {rest}")
    result = edited(script(functions="pad = None", before=before, inside="print(score(model, held))"), "DDP304")
    assert f"held = DataLoader(held_set, {left}batch_sampler=val_batches)" in result.text


@pytest.mark.parametrize(
    ("step", "end"), [(ADD, "total / len(loader)"), ("total += (model(x) - y).abs().sum().item()", "total / 9")]
)
def test_a_loader_whose_options_are_known_at_run_time_is_made_again(step: str, end: str) -> None:
    """Whole batches of it, whatever its options say of their size, their order and the last one."""
    before = BATCHES.format(start="", loop="x, y in loader", step=step, end=end)
    before = before.replace("held_set, batch_size=4", "held_set, **json.load(open('options.json'))")
    result = edited(
        script(imports="import json", before=before, inside="print(score(model, held))"), "DDP304", "DDP501"
    )
    assert "held = batches_of_rank(DataLoader(held_set, **json.load(open('options.json'))))" in result.text
    assert "all_reduce_sum(total" in result.text


def test_a_loader_that_is_asked_for_its_batch_size_is_not_made_again() -> None:
    """With a batch sampler of its own it knows of none, and `len(loader) * None` ends the run."""
    before = BATCHES.format(start="", loop="x, y in loader", step=ADD, end="total / (len(loader) * loader.batch_size)")
    before = before.replace("held_set, batch_size=4", "held_set, **json.load(open('options.json'))")
    result = edited(
        script(imports="import json", before=before, inside="print(score(model, held))"), "DDP304", "DDP501"
    )
    assert "batches_of_rank" not in result.text
    assert any("asks for `loader.batch_size`" in message for message in result.left), result.left


def test_a_loader_of_a_class_of_the_scripts_own_is_not_made_again() -> None:
    own = "class Reader(DataLoader):\n    pass"
    before = BATCHES.format(start="", loop="x, y in loader", step=ADD, end="total / len(loader)")
    before = before.replace(
        "= DataLoader(held_set, batch_size=4", "= Reader(held_set, **json.load(open('options.json'))"
    )
    text = script(imports="import json", functions=own, before=before, inside="print(score(model, held))")
    assert "batches_of_rank" not in edited(text, "DDP304").text


def test_a_loader_with_unknown_places_is_read_in_full() -> None:
    before = BATCHES.format(start="", loop="x, y in loader", step=ADD, end="total / len(loader)")
    before = before.replace("held_set, batch_size=4", "held_set, *map(int, os.environ['SIZE'].split())")
    result = edited(script(before=before, inside="print(score(model, held))"), "DDP304")
    assert "held = DataLoader(held_set, *map(int" in result.text
    assert result.left == ["every rank evaluates the whole of `held_set`: its arguments are known at run time only"]


@pytest.mark.parametrize(
    ("loop", "step", "end", "inside", "why"),
    [
        ("i, (x, y) in enumerate(loader)", ADD, "total / i", "print(score(model, held))", "`i` of the last batch"),
        (
            "i, (x, y) in enumerate(loader, 3)",
            ADD,
            "total / (i + 1)",
            "print(score(model, held))",
            "`i` of the last batch",
        ),
        (
            "i, (x, y) in enumerate(loader)",
            f"{ADD}; print(i)",
            "total / (i + 1)",
            "print(score(model, held))",
            "prints in the loop",
        ),
        (
            "i, (x, y) in enumerate(loader)",
            f"{ADD}; last = i",
            "total",
            "print(score(model, held))",
            "the index of the batch is used",
        ),
        (
            "x, y in loader",
            "run = 0.9 * run + model(x).norm().item(); total += run",
            "total / len(loader)",
            "print(score(model, held))",
            "`total` adds up values that could not be followed",
        ),
        ("x, y in loader", ADD, "total", "print(score(model, held) / len(held))", "uses the number of its batches"),
        (
            "x, y in loader",
            f"{ADD}; total *= 1 / len(loader)",
            "total",
            "print(score(model, held))",
            "the number of batches is used for more",
        ),
    ],
)
def test_numbers_of_batches_that_could_not_be_brought_together_are_made_in_full(
    loop: str, step: str, end: str, inside: str, why: str
) -> None:
    text = script(before=BATCHES.format(start="", loop=loop, step=step, end=end), inside=inside)
    result = edited(text, "DDP304", "DDP501")
    assert BY_BATCH not in result.text
    assert any(why in message for message in result.left), result.left


KEPT = """
import numpy as np

class Average:
    def __init__(self):
        self.val = self.sum = self.n = self.avg = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.n += n
        self.avg = self.sum / self.n

held_set = TensorDataset(torch.ones(9, 4), torch.ones(9, dtype=torch.long))
held = DataLoader(held_set, batch_size=4)
NAMES = ["a", "b"]

def score(model, loader):
    model.eval()
    total, {start}
    with torch.no_grad():
        for x, y in {over}:
            out = model(x)
            {step}
    return total, {end}
"""
BOTH = "a, b = [], []"
IN_ORDER = "a[:] = gather_in_order(a)"
ROWS = "a = gather_rows(a, loader.batch_sampler)"
APPEND = "a = np.append(a, y.numpy())"
#: the first batch is put in otherwise than the others
NOT_ALIKE = """if a is None:
                a = out.cpu().numpy()
            else:
                a = np.append(a, y.cpu().numpy(), axis=0)"""
FROM_NONE = """if a is None:
                a = out.cpu().numpy()
                b = y.cpu().numpy()
            else:
                a = np.append(a, out.cpu().numpy(), axis=0)
                b = np.append(b, y.cpu().numpy(), axis=0)"""


@pytest.mark.parametrize(
    ("start", "step", "end", "shared", "lines"),
    [
        (BOTH, "a.extend(y.tolist()); b += out.argmax(1).tolist()", "a, b", SHARED, ["a[:] = gather_in_order(a)"]),
        (BOTH, "a += y.tolist(); b += out.argmax(1).tolist()", "a, b", SHARED, ["b[:] = gather_in_order(b)"]),
        (BOTH, "a.append(out.mean().item()); b.append(y.numpy())", "a, b", BY_BATCH, ["b[:] = gather_in_order(b)"]),
        (
            BOTH,
            "total += out.mean().item(); a.extend(y.tolist()); b += out.argmax(1).tolist()",
            "a, b",
            BY_BATCH,
            ["a[:] = gather_by_index(a, loader.batch_sampler)", "b[:] = gather_by_index(b, loader.batch_sampler)"],
        ),
        (
            "a = {n: 0 for n in NAMES}",
            "for t in y:\n                a[NAMES[t]] += 1",
            "a",
            SHARED,
            ["a.update(zip(a, all_reduce_sum(*a.values())))"],
        ),
        ("a = [0, 0]", "for t in y:\n                a[t] += 1", "a", SHARED, ["a[:] = all_reduce_sum(*a)"]),
        (
            "a = np.zeros((2, 2))",
            "for t, p in zip(y, out.argmax(1)):\n                a[t, p] += 1",
            "a",
            SHARED,
            ["dist.all_reduce(torch.from_numpy(a))"],
        ),
        ("a = torch.zeros(2)", "a += out.softmax(1).sum(0)", "a", BY_BATCH, ["dist.all_reduce(a)"]),
        ("a = Average()", "a.update(out.mean().item(), len(x))", "a.avg", BY_BATCH, ["a.all_reduce()"]),
        ("a = {'t': []}", "a['t'].extend(y.tolist())", "a", SHARED, ["a['t'][:] = gather_in_order(a['t'])"]),
        (BOTH, "for i in range(len(y)):\n                a.append((y[i].item(), 1))", "a", SHARED, [IN_ORDER]),
        (BOTH, "for i in range(y.size(0)):\n                a.append(y[i].item())", "a", SHARED, [IN_ORDER]),
        ("a = np.array([])", "a = np.append(a, y.numpy())", "a", SHARED, [ROWS]),
        ("a = np.empty((0, 3))", "a = np.concatenate([a, out.cpu().numpy()], axis=0)", "a", SHARED, [ROWS]),
        ("a = np.array([])", "a = np.hstack((a, y.numpy()))", "a", SHARED, [ROWS]),
        ("a = torch.tensor([]).to(DEVICE)", "a = torch.cat((a, out), dim=0)", "a", SHARED, [ROWS]),
        ("a = None", "a = y.cpu() if a is None else torch.cat([a, y.cpu()])", "a", SHARED, [ROWS]),
        ("a, b = None, None", FROM_NONE, "a, b", SHARED, [ROWS, "b = gather_rows(b, loader.batch_sampler)"]),
        ("a = np.empty((0, 3))", "a = np.vstack((a, out.cpu().numpy()))", "a", SHARED, [ROWS]),
        (BOTH, "a.extend(NAMES[t] for t in y.tolist())", "a", SHARED, [IN_ORDER]),
        (BOTH, "a.extend(y.tolist()); b.append(out)", "a", SHARED, [IN_ORDER]),  # nobody looks at b
        ("a = np.array([])", f"total += out.mean().item(); {APPEND}", "a", BY_BATCH, [ROWS]),
    ],
)
def test_what_an_evaluation_keeps_is_brought_together(
    start: str, step: str, end: str, shared: str, lines: list[str]
) -> None:
    names, _, value = start.partition(" = ")
    text = KEPT.format(start=f"{names} = 0.0, {value}", over="loader", step=step, end=end)
    result = edited(script(before=text, inside="print(score(model, held))"), "DDP304", "DDP501")
    assert shared in result.text
    assert all(f"        {line}\n" in result.text for line in lines)


@pytest.mark.parametrize(
    ("start", "step", "end"),
    [
        ("a = []", "a.append(out)", "a"),  # may lie on the GPU
        ("a = []", "a.extend(out.view(-1).tolist())", "a"),  # not one for each sample
        ("a = []", "a.extend(out.argmax(0).tolist())", "a"),
        ("a = []", "a.extend(out[y == 1].argmax(1).tolist())", "a"),
        ("a = []", "a.extend(y.tolist()); print(len(a))", "a"),
        ("a = []", "if total < 1:\n                a.extend(y.tolist())", "a"),
        ("a = [0, 0]", "for t in y:\n                a[t] = max(a[t], 1)", "a"),
        ("a = [0, 0]", "for t in y:\n                a[t] += a[0]", "a"),
        ("a = Average()", "a.update(out.mean().item(), len(x))", "a"),  # its last value
        ("a = Average()", "a.update(out.mean().item(), len(x))", "a.val"),
        ("a = Average()", "a.update(out.mean().item() + a.avg, len(x))", "a.avg"),
    ],
)
def test_what_could_not_be_brought_together_is_made_in_full(start: str, step: str, end: str) -> None:
    names, _, value = start.partition(" = ")
    text = KEPT.format(start=f"{names} = 0.0, {value}", over="loader", step=step, end=end)
    result = edited(script(before=text, inside="print(score(model, held))"), "DDP304", "DDP501")
    assert any("every rank evaluates the whole of `held_set`" in message for message in result.left)
    assert not any(helper in result.text for helper in ("gather_", "all_reduce", "val_batches"))


BY_KEY = """
from torch.utils.data import Dataset
CACHE = {{"n": 0, "parts": []}}

class Titles(Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, i):
        return {{"x": torch.ones(4), "y": torch.tensor(i % 2)}}

held_set = Titles()
held = DataLoader(held_set, batch_size=4)

def move(batch, device):
    batch["x"] = batch["x"].to(device)
    return batch

def remember(batch):
    known = CACHE
    known["n"] = len(batch)
    return batch

def kept(batch):
    CACHE["x"] = batch["x"]
    return CACHE

def score(model, loader):
    model.eval()
    a = []
    with torch.no_grad():
        for batch in loader:
            {step}
            a.extend(model(batch["x"]).argmax(-1).tolist())
    return a
"""


@pytest.mark.parametrize(
    "step",
    [
        "batch['x'] = batch['x'].to(device)",
        "batch = move(batch, device)",
        "move(batch, device)",
        "batch = {k: v.to(device) for k, v in batch.items()}",
        "batch = {k: batch[k].to(device) for k in batch}",
        "for k in batch:\n                batch[k] = batch[k].to(device)",
        "for k, v in batch.items():\n                batch[k] = v.to(device)",
        "more = dict(batch)\n            more['z'] = 1\n            batch = move(more, device)",
    ],
)
def test_what_is_changed_of_a_batch_ends_with_its_pass(step: str) -> None:
    result = edited(script(before=BY_KEY.format(step=step), inside="print(score(model, held))"), "DDP304", "DDP501")
    assert SHARED in result.text
    assert "        a[:] = gather_in_order(a)\n" in result.text


@pytest.mark.parametrize(
    "step",
    [
        "known = CACHE\n            known['n'] = len(batch)",
        "known = CACHE['parts']\n            known[0] = len(batch)",
        "batch = remember(batch)",
        "batch = kept(batch)\n            batch['x'] = batch['x'].to(device)",
        "batch['x'] = torch.cat([batch['x'], batch['x']])",  # other rows
        "batch['x'] = batch['x'][1:]",
    ],
)
def test_what_outlives_a_pass_and_other_rows_are_made_in_full(step: str) -> None:
    result = edited(script(before=BY_KEY.format(step=step), inside="print(score(model, held))"), "DDP304", "DDP501")
    assert any("every rank evaluates the whole of `held_set`" in message for message in result.left)
    assert "gather_" not in result.text


@pytest.mark.parametrize(
    ("start", "step", "why"),
    [
        ("a = 0.0, Average()", "a.update(out.mean().item(), len(x)); print(a.val)", "uses `a` while the loop runs"),
        (
            "a = 0.0, Average()",
            "a.update(out.mean().item(), len(x)); held_set.seen = str(a.val)",
            "uses `a` while the loop runs",
        ),
        ("a = 0.0, None", "a = y if a is None else torch.cat([a, y])", "`a` goes on from batch to batch"),
        ("a = 0.0, np.array([])", "a = np.append(y.numpy(), a)", "`a` goes on from batch to batch"),
        ("a = 0.0, np.array([])", "a = np.append(a, y[y > 0].numpy())", "`a` goes on from batch to batch"),
        ("a = 0.0, np.array([])", "a = np.append(a, out.mean().item())", "`a` goes on from batch to batch"),
        ("a = 0.0, np.zeros((9, 0))", "a = np.append(a, out.cpu().numpy(), axis=1)", "`a` goes on"),
        ("a = 0.0, np.empty((0, 3))", "a = np.hstack((a, out.cpu().numpy()))", "`a` goes on from batch to batch"),
        ("a = 0.0, torch.zeros(1, 3)", "a = torch.cat([a, out])", "`a` goes on from batch to batch"),
        ("a = 0.0, np.array([])", f"if y.sum() > 1:\n                {APPEND}", "`a` goes on from batch to batch"),
        ("a = 0.0, np.array([])", f"for _ in range(2):\n                {APPEND}", "`a` goes on from batch to batch"),
        ("a = 0.0, np.array([])", f"{APPEND}; x[0] = len(a)", "`a` goes on from batch to batch"),
        ("a = 0.0, np.array([])", "a = np.vstack((a, y.numpy()))", "`a` goes on from batch to batch"),
        ("a = 0.0, []", "a.extend(NAMES[t] for t in y.tolist() if t)", "collects values"),
        ("a = 0.0, []", "a.append(out); x[0] = len(a)", "collects values"),
        ("a = 0.0, None", NOT_ALIKE, "`a` goes on from batch to batch"),
        ("a = 0.0, {'t': [], 'n': []}", "a['t'].extend(y.tolist()); a['n'].append(out)", "collects values"),
        ("a = 0.0, []", "for i in range(3):\n                a.append(y[i].item())", "collects values"),
    ],
)
def test_why_an_evaluation_is_made_in_full(start: str, step: str, why: str) -> None:
    """The reasons were that `update` changes something, and that `a` of the last batch is used."""
    text = KEPT.format(start=start, over="loader", step=step, end="a")
    result = edited(script(before=text, inside="print(score(model, held))"), "DDP304", "DDP501")
    assert any(why in message for message in result.left), result.left


def test_samples_kept_in_order_need_a_name_for_the_loader_where_batches_are_dealt_out() -> None:
    """`bar = tqdm(loader)`: its batches are not the bar's."""
    step = "total += out.mean().item(); a.extend(y.tolist())"
    text = "from tqdm import tqdm\n" + KEPT.format(start="a = 0.0, []", over="tqdm(loader)", step=step, end="a")
    result = edited(script(before=text, inside="print(score(model, held))"), "DDP304", "DDP501")
    assert "a[:] = gather_by_index(a, loader.batch_sampler)" in result.text
    text = text.replace("    model.eval()", "    model.eval()\n    bar = tqdm(loader)").replace(
        "in tqdm(loader)", "in bar"
    )
    result = edited(script(before=text, inside="print(score(model, held))"), "DDP304", "DDP501")
    assert any("`a` gets an entry for each sample" in message for message in result.left)


SIZED = """
size = 4
held_set = TensorDataset(torch.ones(9, 4), torch.ones(9, dtype=torch.long))
held = DataLoader(held_set, batch_size={size})

def right(model):
    model.eval()
    hits, total = [0, 0], 0
    with torch.no_grad():
        for x, y in held:
            out = model(x).argmax(1)
            total += (out == y).sum().item()
            {step}
    return total, hits
"""


@pytest.mark.parametrize(
    ("size", "step", "how"),
    [
        ("size", "for i in range(size): hits[y[i]] += (out == y)[i].item()", "batch"),
        (
            "4",
            "for i in range(4):\n                same = out[i] == y[i]\n                total += same.item()",
            "batch",
        ),
        ("size", "pairs = out.view(size, 1)", "batch"),
        ("4", "for i in range(len(y)): hits[y[i]] += (out == y)[i].item()", "sample"),
        ("4", "for i in range(2): total += (out == i).sum().item()", "sample"),
        ("4", "for i in range(2): hits[i] += ((out == i) & (y == i)).sum().item()", "sample"),
    ],
)
def test_a_loop_that_counts_on_full_batches_is_given_whole_ones(size: str, step: str, how: str) -> None:
    """A shard may end in a batch of another size, where all batches of the set are full."""
    text = edited(script(before=SIZED.format(size=size, step=step), inside="print(right(model))"), "DDP304").text
    assert ("batch_sampler=" in text) is (how == "batch")
    assert (SHARED in text) is (how == "sample")


LEFT = """
import csv
import logging
held_set = TensorDataset(torch.ones(9, 4), torch.ones(9, dtype=torch.long))
held = DataLoader(held_set, batch_size=4)
log = open("log.txt", "w")
rows = csv.writer(log)

def keep(x):
    torch.save(x, "x.pt")

def right(model):
    model.eval()
    total = 0
    with torch.no_grad():
        for x, y in held:
            out = model(x).argmax(1)
            total += (out == y).sum().item()
            {left}
    {after}
    return total / len(held.dataset)
"""


@pytest.mark.parametrize(
    ("left", "what"),
    [
        ('torch.save(out, "out.pt")', "writes a file in the loop"),
        ("keep(out)", "calls `keep`, which changes something outside itself"),
        ("log.write(str(out))", "writes to a file in the loop"),
        ("rows.writerow(out.tolist())", "writes to a file in the loop"),
        ('logging.info("a batch")', "logs in the loop"),
        ('(open("all.txt", "a")).write(str(out))', "writes a file in the loop"),
    ],
)
def test_what_each_batch_leaves_is_left_of_all_batches(left: str, what: str) -> None:
    """Rank 0 alone writes: of a share, the others' batches would be missing in the file."""
    result = edited(script(before=LEFT.format(left=left, after="pass"), inside="print(right(model))"), "DDP304")
    assert SHARED not in result.text
    assert any(what in message for message in result.left)


@pytest.mark.parametrize("after", ['torch.save(total, "out.pt")', "keep(total)", 'logging.info("a pass")'])
def test_what_is_left_behind_the_loop_asks_for_nothing(after: str) -> None:
    result = edited(script(before=LEFT.format(left="pass", after=after), inside="print(right(model))"), "DDP304")
    assert SHARED in result.text


SQUEEZED = """
held_set = TensorDataset(torch.ones(9, 4), torch.ones(9))
held = DataLoader(held_set, batch_size={size})

class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x):
        return {given}

scorer = Scorer()

def right(model):
    total = 0
    with torch.no_grad():
        for x, y in held:
            total += ({asked} > y).sum().item()
    return total / len(held_set)
"""


@pytest.mark.parametrize(
    ("given", "asked", "size", "shared"),
    [
        ("self.fc(x)", "model(x).squeeze()", "4", False),
        ("self.fc(x)", "torch.squeeze(model(x))", "4", False),
        ("self.fc(x).squeeze()", "model(x)", "4", False),
        ("self.fc(x)", "model(x).squeeze(1)", "4", True),
        ("self.fc(x)", "torch.squeeze(model(x), dim=-1)", "4", True),
        ("self.fc(x)", "model(x).squeeze()", "1", True),
    ],
)
def test_a_batch_whose_own_dimension_may_be_squeezed_is_no_rank_s_share(
    given: str, asked: str, size: str, shared: bool
) -> None:
    """A rank's share may end in a batch of one sample where the whole set does not."""
    text = script(before=SQUEEZED.format(given=given, asked=asked, size=size), inside="print(right(scorer))")
    result = edited(text, "DDP304", "DDP501")
    assert (SHARED in result.text) == shared
