"""DDP301: one call that makes the loaders of training and evaluation, and arguments that stand elsewhere."""

from __future__ import annotations

import pytest

from tests.cases import convert_bytes
from tests.rules.edited import clean, edited, script

SCRIPT = """
import functools
from collections import namedtuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

train_set, test_set = TensorDataset(torch.ones(8, 4)), TensorDataset(torch.ones(6, 4))
{makes}
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in {train}:
        model(x).mean().backward()
        optimizer.step()
    with torch.no_grad():
        for (x,) in {test}:
            print(model(x))
"""


def gives(makes: str, train: str = "train", test: str = "test") -> str:
    """The script with its loaders made so, after the rule."""
    return edited(SCRIPT.format(makes=clean(makes), train=train, test=test), "DDP301").text


@pytest.mark.parametrize(
    ("makes", "line"),
    [
        pytest.param(
            """
            def load(dataset, shuffle=False):
                return DataLoader(dataset, 4, shuffle=shuffle)
            train, test = load(train_set, True), load(test_set)
            """,
            "DataLoader(dataset, 4, sampler=DistributedSampler(dataset) if shuffle else None)",
            id="shuffle-tells",
        ),
        pytest.param(
            """
            def load(is_train):
                dataset = train_set if is_train else test_set
                return DataLoader(dataset, 4, shuffle=True)
            train, test = load(True), load(False)
            """,
            "DataLoader(dataset, 4, sampler=DistributedSampler(dataset) if is_train else None, shuffle=not is_train)",
            id="a-flag-tells",
        ),
        pytest.param(
            """
            def load(part):
                dataset = train_set if part == 'fit' else test_set
                return DataLoader(dataset, 4, shuffle=True if part == 'fit' else False)
            train, test = load('fit'), load('check')
            """,
            "sampler=DistributedSampler(dataset) if (True if part == 'fit' else False) else None)",
            id="a-choice-is-put-in-brackets",
        ),
        pytest.param(
            """
            def load(part):
                dataset = train_set if part == 'fit' else test_set
                return DataLoader(dataset, 4)
            train, test = load('fit'), load('check')
            """,
            "sampler=DistributedSampler(dataset, shuffle=False) if part == 'fit' else None)",
            id="a-text-tells",
        ),
        pytest.param(
            "train, test = [DataLoader(s, 4, shuffle=True) for s in (train_set, test_set)]",
            "DataLoader(s, 4, sampler=DistributedSampler(s) if s is train_set else None, shuffle=s is not train_set)",
            id="the-dataset-itself-tells",
        ),
        pytest.param(
            "train, test = [DataLoader(s, 4, shuffle=b) for s, b in ((train_set, True), (test_set, False))]",
            "DataLoader(s, 4, sampler=DistributedSampler(s) if b else None)",
            id="a-pair-tells",
        ),
    ],
)
def test_one_call_makes_both_loaders(makes: str, line: str) -> None:
    assert line in gives(makes)


@pytest.mark.parametrize(
    ("makes", "lines"),
    [
        pytest.param(
            """
            def load(dataset: TensorDataset):
                return DataLoader(dataset, 4, shuffle=True)
            train, test = load(train_set), load(TensorDataset(torch.ones(6, 4)))
            """,
            (
                "def load(dataset: TensorDataset, distributed=False):",
                "DataLoader(dataset, 4, sampler=DistributedSampler(dataset) if distributed else None, "
                "shuffle=not distributed)",
                "train, test = load(train_set, distributed=True), load(TensorDataset(torch.ones(6, 4)))",
            ),
            id="a-function",
        ),
        pytest.param(
            """
            def load(dataset, size=4):
                return DataLoader(dataset, size)
            train, test = load(train_set, size=8), load(TensorDataset(torch.ones(6, 4)), 2)
            """,
            (
                "def load(dataset, size=4, distributed=False):",
                "size, sampler=DistributedSampler(dataset, shuffle=False) if distributed else None)",
                "load(train_set, size=8, distributed=True), load(TensorDataset(torch.ones(6, 4)), 2)",
            ),
            id="a-number-is-no-reason-to-tell-apart",
        ),
        pytest.param(
            """
            class Data:
                def __init__(self, rows):
                    self.loader = self.make(TensorDataset(torch.ones(rows, 4)))
                def make(self, dataset):
                    return DataLoader(dataset, 4)
            train, test = Data(8).loader, Data(6).loader
            """,
            (
                "def __init__(self, rows, distributed=False):",
                "self.make(TensorDataset(torch.ones(rows, 4)), distributed=distributed)",
                "def make(self, dataset, distributed=False):",
                "train, test = Data(8, distributed=True).loader, Data(6).loader",
            ),
            id="a-class-and-its-method",
        ),
    ],
)
def test_a_new_argument_tells_two_calls_apart(makes: str, lines: tuple[str, ...]) -> None:
    text = gives(makes)
    for line in lines:
        assert line in text


def test_one_call_that_nothing_tells_apart_is_refused() -> None:
    load = """
    def load(dataset):
        return DataLoader(dataset, 4, shuffle=True)
    """
    makes = "train, test = [load(s) for s in (TensorDataset(torch.ones(8, 4)), train_set)]"
    found = edited(SCRIPT.format(makes=f"{clean(load)}\n{makes}", train="train", test="test"), "DDP301")
    assert any("the same call, `DataLoader(dataset, 4, shuffle=True)`, makes" in m for m in found.left), found.text


def test_arguments_of_a_partial_count() -> None:
    """A loader that shuffles by its partial may not have the sampler beside that."""
    makes = """
    load = functools.partial(DataLoader, shuffle=True)
    train, test = load(train_set), load(test_set, shuffle=False)
    """
    text = gives(makes)
    assert (
        "load(train_set, sampler=DistributedSampler(train_set), shuffle=False), load(test_set, shuffle=False)" in text
    )


def test_a_named_tuple_holds_the_loaders() -> None:
    makes = """
    Loaders = namedtuple("Loaders", "train test")
    loaders = Loaders(test=DataLoader(test_set), train=DataLoader(train_set))
    """
    text = gives(makes, "loaders.train", "loaders.test")
    assert "train=DataLoader(train_set, sampler=DistributedSampler(train_set, shuffle=False))" in text


SUBSET = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

data = TensorDataset(torch.ones(9, 4))
mine, others = [0, 1, 2, 3, 4, 5], [6, 7, 8]
train, test = DataLoader(data, 2, sampler=SubsetRandomSampler(mine)), DataLoader(data, 2)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(len(train.sampler))
for epoch in range(2):
    total, off = 0.0, 0.0
    for (x,) in train:
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
        total += loss.item() * x.size(0)
    with torch.no_grad():
        for (x,) in test:
            off += model(x).sum().item()
    print({total}, off / len(test.sampler))
"""


@pytest.mark.parametrize(
    ("total", "mean"),
    [
        ("total / len(train.sampler)", "total / (len(train.sampler) * dist.get_world_size())"),
        ("total / len(train.dataset)", "total / len(train.dataset.dataset)"),
        ("total / len(mine)", "total / len(mine)"),
        ("total / len(data)", "total / len(data)"),
    ],
)
def test_numbers_of_samples_of_a_subset_stay(total: str, mean: str) -> None:
    """The sampler is one rank's, and the loader's data set is the subset, where they were all samples' before."""
    text = edited(SUBSET.replace("{total}", total), "DDP301", "DDP304", "DDP501").text
    assert "train_subset = torch.utils.data.Subset(data, mine)" in text
    assert "print(len(train.dataset))" in text
    assert f"print({mean}, off / len(test.dataset))" in text


def test_a_loader_class_with_an_init_of_its_own() -> None:
    """What it hands on to DataLoader counts, not what it is given itself; its attributes and methods are its own."""
    makes = """
    class Loader(DataLoader):
        def __init__(self, folder, size, shuffle=True):
            self.points = TensorDataset(torch.ones(size, 4))
            super().__init__(self.points, batch_size=4, shuffle=shuffle)

        def check(self):
            return DataLoader(self.points)
    train = Loader("points", 9)
    test = train.check()
    """
    text = gives(makes)
    assert "super().__init__(self.points, batch_size=4, sampler=DistributedSampler(self.points, sh" in text
    assert 'train = Loader("points", 9)' in text


def test_a_loader_class_that_could_not_be_followed_is_refused() -> None:
    makes = """
    class Loader(DataLoader):
        def __init__(self, *rest):
            DataLoader.__init__(self, *rest)
    train, test = Loader(train_set), DataLoader(test_set)
    """
    found = edited(SCRIPT.format(makes=clean(makes), train="train", test="test"), "DDP301")
    assert found.left == ["`Loader(train_set)` makes a DataLoader in a way that ddpify could not follow"]


SLICED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(30, 4))
order = torch.randperm(30).tolist()
part = SubsetRandomSampler(order[6:])
{between}
loader = DataLoader(data, batch_size=4, sampler=part)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        net(x).mean().backward()
        optimizer.step()
"""


def test_a_slice_of_indices_makes_a_subset() -> None:
    found = convert_bytes(SLICED.format(between="print(len(order))").encode())
    assert "train_subset = torch.utils.data.Subset(data, order[6:])\n" in found.text
    assert "sampler=DistributedSampler(train_subset)" in found.text


def test_indices_that_change_behind_the_sampler_are_not_computed_again() -> None:
    text = convert_bytes(SLICED.format(between="order = order[::-1]").encode()).text
    assert "DataLoader(data, batch_size=4, sampler=ShardedSampler(part))" in text


def test_a_second_training_on_data_of_no_loader_is_left() -> None:
    script = SLICED.format(between="") + "points = torch.ones(6, 4)\nfor step in range(3):\n"
    script += "    loss = net(points).mean()\n    loss.backward()\n    optimizer.step()\n"
    script = script.replace("sampler=part", "shuffle=True")
    (left,) = convert_bytes(script.encode()).plan.left
    assert "`loss.backward()` trains on data that come from no DataLoader" in left.message


def test_a_second_training_on_noise_that_each_step_draws_is_each_ranks_own() -> None:
    script = SLICED.format(between="") + "for step in range(3):\n    loss = net(torch.randn(6, 4)).mean()\n"
    script += "    loss.backward()\n    optimizer.step()\n"
    assert not convert_bytes(script.replace("sampler=part", "shuffle=True").encode()).plan.left


def test_a_dataset_in_a_loader_in_a_loop_is_made_once() -> None:
    """The sampler had one of its own."""
    made = "DataLoader(TensorDataset(torch.ones(8, 4)), shuffle=True)"
    text = script().replace("for (x,) in loader:", f"for (x,) in {made}:")
    done = convert_bytes(text.encode()).text
    assert "    train_set = TensorDataset(torch.ones(8, 4))\n" in done
    assert "DataLoader(train_set, sampler=DistributedSampler(train_set))\n" in done


@pytest.mark.parametrize(
    ("makes", "test"),
    [
        (
            """
            def load(stage):
                dataset = train_set if stage == "fit" else test_set
                loader = DataLoader(dataset, 4, shuffle=True, drop_last=True)
                return loader
            train, test = load("fit"), load("held out")
            """,
            'if stage == "fit" and len(loader) == 0:',
        ),
        ("train = DataLoader(train_set, 4, drop_last=True)\ntest = DataLoader(test_set, 4)", "if len(train) == 0:"),
    ],
)
def test_only_a_loader_that_trains_is_asked_whether_it_has_a_batch(makes: str, test: str) -> None:
    """An evaluation of fewer samples than one batch was no error before, and is none on ranks."""
    assert f"{test}\n" in gives(makes)


SETTING = """
{setting}
more = TensorDataset(torch.ones(18, 4))
if {test}:
    loader = DataLoader(more, batch_size=2, shuffle=True)
else:
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
"""


@pytest.mark.parametrize(
    ("setting", "test", "both"),
    [
        ("KIND = 'small'", "KIND == 'large'", True),
        ("LARGE = False", "LARGE", True),
        ("LARGE = True", "not LARGE", True),
        ("size = 3", "size > 5", True),
        ("LARGE = False\nLARGE = len('a') > 2", "False and LARGE", False),
        ("class Of:\n    LARGE = False", "Of.LARGE", False),
    ],
)
def test_both_ways_of_a_setting_are_converted(setting: str, test: str, both: bool) -> None:
    """`KIND = "small"` at the top of a file is there to be changed."""
    result = edited(script(before=SETTING.format(setting=setting, test=test)), "DDP301")
    assert ("loader = DataLoader(more, batch_size=2, sampler=DistributedSampler(more))" in result.text) == both
    assert result.text.count("DistributedSampler(") == 1 + both
