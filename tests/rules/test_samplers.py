"""DDP301: samplers, batch samplers and streams of the script's own, and the seams at which they are dealt out."""

from __future__ import annotations

import functools
import types
from typing import Any

import pytest
from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler

from ddpify.errors import Refused
from ddpify.helper_classes import sampler
from tests.cases import convert_bytes
from tests.rules.edited import clean, edited

SCRIPT = """
import itertools
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler
from torch.utils.data import SubsetRandomSampler, TensorDataset, WeightedRandomSampler

flag = input() == "yes"
data, test_data = TensorDataset(torch.ones(9, 4)), TensorDataset(torch.ones(5, 4))

{makes}

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        model(x).mean().backward()
        optimizer.step()
"""


def gives(makes: str, *codes: str) -> str:
    return edited(SCRIPT.format(makes=clean(makes)), *(codes or ("DDP301", "DDP302"))).text


@pytest.mark.parametrize(
    ("makes", "line"),
    [
        pytest.param(
            "loader = DataLoader(data, 4, sampler=RandomSampler(data), drop_last=True)",
            "sampler=DistributedSampler(data, drop_last=True), drop_last=True)",
            id="a-random-sampler-gives-way",
        ),
        pytest.param(
            "order = SequentialSampler(data)\nloader = DataLoader(data, 4, False, order)",
            "order = DistributedSampler(data, shuffle=False)",
            id="a-sequential-one-where-it-is-made",
        ),
        pytest.param(
            "loader = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 4, True))",
            "batch_sampler=BatchSampler(DistributedSampler(data, drop_last=True), 4, True))",
            id="inside-a-batch-sampler",
        ),
        pytest.param(
            "loader = DataLoader(data, 4, sampler=RandomSampler(data, replacement=True))",
            "sampler=ShardedSampler(RandomSampler(data, replacement=True)))",
            id="with-replacement-it-stays",
        ),
        pytest.param(
            "loader = DataLoader(data, 4, sampler=RandomSampler(data, replacement=True, num_samples=int(1e10)))",
            "sampler=EndlessShardedSampler(RandomSampler(data, replacement=True, num_samples=int(1e10))))",
            id="more-draws-than-a-list-can-hold",
        ),
        pytest.param(
            "loader = DataLoader(data, 4, sampler=RandomSampler(data, num_samples=6))",
            "sampler=ShardedSampler(RandomSampler(data, num_samples=6)))",
            id="another-number-of-samples",
        ),
        pytest.param(
            "loader = DataLoader(data, 4, False, WeightedRandomSampler(torch.ones(9), 9), drop_last=flag)",
            "DataLoader(data, 4, False, ShardedSampler(WeightedRandomSampler(torch.ones(9), 9), drop_last=flag), "
            "drop_last=flag)",
            id="weights-by-position",
        ),
        pytest.param(
            """
            sampler = WeightedRandomSampler(torch.ones(9), 9) if flag else None
            loader = DataLoader(data, 4, shuffle=(sampler is None), sampler=sampler)
            """,
            "DataLoader(data, 4, sampler=ShardedSampler(sampler if sampler is not None else "
            "torch.utils.data.RandomSampler(data)))",
            id="a-sampler-or-none",
        ),
        pytest.param(
            """
            def load(dataset, fit):
                order = RandomSampler(dataset) if fit else SequentialSampler(dataset)
                return DataLoader(dataset, 4, sampler=order)
            loader, test_loader = load(data, True), load(test_data, False)
            with torch.no_grad():
                print([x.sum() for x, in test_loader])
                for (x,) in test_loader:
                    print(x.sum())
            """,
            "order = DistributedSampler(dataset) if fit else SequentialSampler(dataset)",
            id="one-call-for-both",
        ),
        pytest.param(
            "loader = DataLoader(data, batch_sampler=[[0, 1, 2], [3, 4], [5, 6, 7, 8]])",
            "batch_sampler=ShardedSampler([[0, 1, 2], [3, 4], [5, 6, 7, 8]]))",
            id="a-list-of-batches",
        ),
        pytest.param(
            """
            class Rounds(Sampler):
                def __init__(self, n):
                    self.n = n
                def __iter__(self):
                    while True:
                        yield from np.random.permutation(self.n)
            loader = DataLoader(data, 4, sampler=Rounds(9))
            """,
            "sampler=EndlessShardedSampler(Rounds(9)))",
            id="one-that-never-ends",
        ),
        pytest.param(
            """
            class Counted(Sampler):
                def __iter__(self):
                    while True:
                        if len(self.seen) > 9:
                            return
                        yield 1
            loader = DataLoader(data, 4, sampler=Counted())
            """,
            "sampler=ShardedSampler(Counted(), batch_size=4))",
            id="one-that-ends",
        ),
        pytest.param(
            "options = {'dataset': data, 'shuffle': True}\nloader = DataLoader(**options)",
            'DataLoader(sampler=DistributedSampler(options["dataset"], shuffle=options.get("shuffle", False), '
            'drop_last=options.get("drop_last", False)), **{**options, "shuffle": False})',
            id="all-in-a-dict",
        ),
        pytest.param(
            "loader = DataLoader(data, 4, True, None, None, 0, None, False, True)",
            "DataLoader(data, 4, False, DistributedSampler(data, drop_last=True), None, 0, None, False, True)",
            id="all-by-position",
        ),
    ],
)
def test_what_draws_is_dealt_out(makes: str, line: str) -> None:
    assert line in gives(makes)


@pytest.mark.parametrize(
    ("makes", "line"),
    [
        ("loader = DataLoader(data, 4, sampler=RandomSampler(data))", "    loader.sampler.set_epoch(epoch)"),
        (
            "loader = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 4, False))",
            "    loader.batch_sampler.sampler.set_epoch(epoch)",
        ),
        (
            "loader = DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), 4, False))",
            "    loader.sampler.sampler.set_epoch(epoch)",
        ),
    ],
)
def test_set_epoch_reaches_the_sampler_that_shuffles(makes: str, line: str) -> None:
    assert line in gives(makes).split("\n")


def test_what_the_script_asks_its_sampler_lies_deeper() -> None:
    makes = """
    loader = DataLoader(data, 4, sampler=WeightedRandomSampler(torch.ones(9), 9))
    loader.sampler.weights = torch.rand(9)
    """
    assert "loader.sampler.sampler.weights = torch.rand(9)" in gives(makes)


def test_each_loader_of_a_list_gets_set_epoch() -> None:
    """Not the first alone: the others would have one order for ever."""
    script = SCRIPT.replace("    for (x,) in loader:\n", "    for loader in loaders:\n      for (x,) in loader:\n")
    script = script.replace("        model(x)", "          model(x)").replace(
        "        optimizer", "          optimizer"
    )
    text = edited(
        script.format(makes="loaders = [DataLoader(d, 4, shuffle=True) for d in (data, test_data)]"), "DDP302"
    )
    assert "    for loader in loaders:\n      loader.sampler.set_epoch(epoch)\n      for (x,) in loader:" in text.text


def test_one_pass_that_is_repeated_needs_no_set_epoch() -> None:
    script = SCRIPT.replace("for (x,) in loader:", "for (x,) in itertools.islice(stream, 4):")
    makes = "loader = DataLoader(data, 4, shuffle=True)\nstream = itertools.cycle(loader)"
    assert not edited(script.format(makes=makes), "DDP302").left


STREAM = """
class Rows(IterableDataset):
    def __init__(self, n):
        self.n = n
        self.rng = random.Random({seed})
    def __iter__(self):
        order = list(range(self.n))
        {body}
        for i in order:
            yield (torch.full((4,), float(i)),)
loader = DataLoader(Rows(9), 4{more})
"""


@pytest.mark.parametrize("body", ["self.rng.shuffle(order)", "noise = torch.randn(4)", "pass"])
def test_a_stream_is_dealt_out(body: str) -> None:
    makes = STREAM.format(seed=1, body=body, more="")
    assert "DataLoader(ShardedStream(Rows(9)), 4)" in gives(makes)


def test_a_sum_of_streams_is_a_stream() -> None:
    makes = STREAM.format(seed=1, body="pass", more="").replace("DataLoader(Rows(9)", "DataLoader(Rows(9) + Rows(4)")
    assert "DataLoader(ShardedStream(Rows(9) + Rows(4)), 4)" in gives(makes)
    makes = STREAM.format(seed=1, body="random.shuffle(order)", more="").replace("(Rows(9)", "(Rows(9) + Rows(4)")
    with pytest.raises(Refused, match=r"is a stream, and `random\.shuffle"):
        convert_bytes(SCRIPT.format(makes=makes).encode())


def test_a_sum_of_datasets_is_none() -> None:
    assert "sampler=DistributedSampler(both" in gives("both = data + test_data\nloader = DataLoader(both, 4)")


HALF = """
class Half(Sampler):
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        return iter(torch.randperm(self.n)[: len(self)].tolist())
    def __len__(self):
        return self.n // 2
"""


@pytest.mark.parametrize(
    ("sampler", "divisor"),
    [
        ("Half(9)", "len(loader.dataset)"),
        ("WeightedRandomSampler(torch.ones(9), 4)", "len(loader.dataset)"),
        ("WeightedRandomSampler(torch.ones(9), len(data))", "(len(loader.sampler) * dist.get_world_size())"),
        ("RandomSampler(data, replacement=True)", "(len(loader.sampler) * dist.get_world_size())"),
    ],
)
def test_what_a_sum_is_divided_by_is_what_it_was(sampler: str, divisor: str) -> None:
    script = SCRIPT.replace("    for (x,)", "    total = 0.0\n    for (x,)") + "        total += x.sum().item()\n"
    script += "    print(total / len(loader.dataset))\n"
    makes = HALF + f"loader = DataLoader(data, 4, sampler={sampler})"
    assert f"print(total / {divisor})" in edited(script.format(makes=makes), "DDP301", "DDP501").text


@pytest.mark.parametrize(
    ("seed", "body", "more", "why"),
    [
        ("1", "random.shuffle(order)", "", "`random.shuffle(order)` draws another order on each rank"),
        ("1", "order = torch.randperm(9)", "", "`torch.randperm(9)` draws another order on each rank"),
        ("", "pass", "", "`random.Random()` has no seed"),
        ("1", "if random.random() < 0.5: return", "", "`random.random() < 0.5` leaves other items out on each rank"),
        ("1", "pass", ", worker_init_fn=part", "`part` gives each worker its part of Rows through `.dataset`"),
    ],
)
def test_a_stream_that_differs_from_rank_to_rank_is_refused(seed: str, body: str, more: str, why: str) -> None:
    part = "def part(i):\n    torch.utils.data.get_worker_info().dataset.n = i\n"
    script = SCRIPT.format(makes=part + clean(STREAM.format(seed=seed, body=body, more=more)))
    with pytest.raises(Refused) as refused:
        convert_bytes(script.encode(), {})
    assert why in str(refused.value)


HUB = """
from datasets import load_dataset
rows = load_dataset("rows", streaming=True)["train"].shuffle({seed}).map(tuple).with_format("torch")
loader = DataLoader(rows, 4)
"""


def test_a_stream_of_a_hub_is_dealt_out() -> None:
    assert "DataLoader(ShardedStream(rows), 4)" in gives(HUB.format(seed="seed=1"))
    with pytest.raises(Refused, match=r"its `\.shuffle\(\)` has no seed"):
        convert_bytes(SCRIPT.format(makes=HUB.format(seed="")).encode(), {})


def test_an_evaluation_in_sequence_is_shared_out() -> None:
    makes = """
    loader = DataLoader(data, 4, sampler=RandomSampler(data))
    order = SequentialSampler(test_data)
    test_loader = DataLoader(test_data, 4, sampler=order)
    """
    script = SCRIPT.format(makes=clean(makes))
    script += "    right = 0\n    with torch.no_grad():\n        for (x,) in test_loader:\n"
    script += "            right += (model(x) > 0).sum().item()\n    print(right)\n"
    text = convert_bytes(script.encode(), {}).text
    assert "order = range(dist.get_rank(), len(test_data), dist.get_world_size())" in text


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("total", [12, 13, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_samples_of_a_batch_stay_together(total: int, ranks: int, drop_last: bool) -> None:
    """A sampler of the script's own may draw pairs: each batch of a rank is one that one process would have made."""
    text = sampler(frozenset({"drop", "batches"}))
    for name in ("ShardedSampler", "DistributedSampler", "dist"):
        text = text.replace(f"<{name}>", name)
    shares = []
    for rank in range(ranks):
        alone = types.SimpleNamespace(broadcast_object_list=lambda *_, **__: None)
        dealt = functools.partial(DistributedSampler, num_replicas=ranks, rank=rank)
        names: dict[str, Any] = {"DistributedSampler": dealt, "dist": alone}
        exec(text, names)
        made = names["ShardedSampler"](range(total), drop_last=drop_last, batch_size=4)
        assert len(made) == len(list(made))
        shares.append(list(BatchSampler(made, 4, drop_last)))
    whole = list(BatchSampler(range(total), 4, drop_last))
    assert len({len(batches) for batches in shares}) == 1
    assert all(batch in whole for batches in shares for batch in batches)
    if not drop_last:
        assert all(batch in [b for batches in shares for b in batches] for batch in whole)
