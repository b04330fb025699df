"""DDP302: set_epoch gets the epoch itself, so that a resumed run goes on with new orders."""

from __future__ import annotations

import pytest

from tests.rules.edited import edited

CODE = "DDP302"
SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
start = int(sys.argv[1])


def train_epoch():
    for (x,) in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


{rest}
"""


@pytest.mark.parametrize(
    "loop",
    [
        "epoch = start\nwhile epoch < 9:\n    {here}\n    train_epoch()\n    epoch += 1",
        "epoch = start\nwhile epoch < 9:\n    {here}\n    train_epoch()\n    sys.argv[epoch] = ''\n    epoch += 1",
        "epoch = start\nwhile True:\n    {here}\n    epoch += 1\n    train_epoch()\n    if epoch > 9:\n        break",
        "def fit():\n    for epoch in range(start, 9):\n        {here}\n        train_epoch()\n\nfit()",
        (
            "class Trainer:\n    def __init__(self):\n        self.epoch = start\n\n    def fit(self):\n"
            "        while self.epoch < 9:\n            {here}\n            train_epoch()\n"
            "            self.epoch += 1\n\n"
            "Trainer().fit()"
        ),
    ],
)
def test_the_absolute_epoch_is_used(loop: str) -> None:
    name = "self.epoch" if "self.epoch" in loop else "epoch"
    lines = [line for line in loop.split("\n") if "{here}" not in line]
    result = edited(SCRIPT.format(rest="\n".join(lines)), CODE)
    assert result.has(loop.format(here=f"loader.sampler.set_epoch({name})"))


@pytest.mark.parametrize(
    ("loop", "epoch"),
    [
        ("for k in range(9):\n    print('epoch', start + k + 1)", "start + k"),
        ("for k in range(0, 9):\n    print(f'epoch {k + start}')", "k + start"),
        ("start = torch.load(sys.argv[2])['epoch']\nfor k in range(9):\n    print(start + k)", "start + k"),
        ("for k in range(start, 9):\n    print('epoch', start + k)", "k"),
        ("for k in range(9):\n    print('epoch', k + 1)", "k"),
        ("for k in range(9):\n    print(0.5 + k, rate + k)", "k"),
        ("for k in range(9):\n    print(start + k)\n    start = 0", "k"),
    ],
)
def test_a_loop_that_counts_anew_in_a_resumed_run_tells_the_epoch_of_all_runs(loop: str, epoch: str) -> None:
    text = SCRIPT.format(rest=f"rate = float(sys.argv[2])\n{loop}\n    train_epoch()")
    assert f"    loader.sampler.set_epoch({epoch})\n" in edited(text, CODE).text


@pytest.mark.parametrize(
    "loop",
    [
        "left = 9\nwhile left:\n    train_epoch()\n    left -= 1",
        "n = start\nwhile True:\n    train_epoch()\n    if n > 9:\n        n += 1",
        "n = start\nwhile True:\n    train_epoch()\n    n += 1\n    if n > 9:\n        n = 0",
        "def fit(loader):\n    while True:\n        train_epoch()\n\nfit(None)",
    ],
)
def test_what_does_not_count_the_epochs_is_no_epoch(loop: str) -> None:
    result = edited(SCRIPT.format(rest=loop), CODE)
    assert "loader.sampler.set_epoch(loader.sampler.epoch + 1)" in result.text


BRANCHES = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make(name):
    if name == "small":
        return DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True), 1
    elif name == "large":
        return DataLoader(TensorDataset(torch.ones(80, 4)), batch_size=2, shuffle={large}), 2
    raise NotImplementedError


class Trainer:
    def __init__(self):
        self.batches, outputs = make(sys.argv[1])
        self.model = nn.Linear(4, outputs)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self, epoch):
        for (x,) in self.batches:
            self.optimizer.zero_grad()
            self.model(x).mean().backward()
            self.optimizer.step()


trainer = Trainer()
for epoch in range(9):
    trainer.train(epoch)
"""


def test_loaders_of_two_branches_get_one_line() -> None:
    result = edited(BRANCHES.format(large=True), CODE)
    assert result.text.count("set_epoch") == 1
    assert result.has("self.batches.sampler.set_epoch(epoch)\nfor (x,) in self.batches:")
    assert not result.left


SEVERAL = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loaders, passes = [], []
for size in (2, 4):
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=size, shuffle=True)
    loaders.append(loader)
    passes.append(iter(loader))


def draw():
    parts = []
    for i, one in enumerate(passes):
        try:
            (x,) = next(one)
        except StopIteration:
            passes[i] = iter({again})
            (x,) = next(passes[i])
        parts.append(x)
    return torch.cat(parts)


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    loss = model(draw()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_each_pass_over_several_loaders_has_another_order() -> None:
    result = edited(SEVERAL.format(again="loaders[i]"), CODE)
    assert not result.left
    assert result.has("loader.sampler.set_epoch(loader.sampler.epoch + 1)\npasses.append(iter(loader))")
    assert result.has("loaders[i].sampler.set_epoch(loaders[i].sampler.epoch + 1)\npasses[i] = iter(loaders[i])")


def test_a_pass_whose_loader_has_no_name_is_left() -> None:
    (message,) = edited(SEVERAL.format(again="list(loaders)[i]"), CODE).left
    assert "another pass over the loader begins here" in message


REMADE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def draw(data):
    loader = DataLoader(data, batch_size=2, shuffle=True)
    loader = iter(loader)
    while True:
        try:
            yield next(loader)
        except StopIteration:
            loader = DataLoader(data, batch_size=2, shuffle=True)
            loader = iter(loader)
            yield next(loader)


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = draw(TensorDataset(torch.ones(8, 4)))
for step in range(9):
    (x,) = next(batches)
    model(x).mean().backward()
    optimizer.step()
"""


def test_a_loader_that_is_made_anew_for_each_pass_has_its_passes_counted() -> None:
    result = edited(REMADE, CODE)
    assert not result.left
    assert result.has("loader = iter(loader)\npasses = 0\nwhile True:")
    assert result.has("passes += 1\nloader.sampler.set_epoch(passes)\nloader = iter(loader)")


ITERATOR = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = iter(loader)
for step in range(9):
    {take}
    model(x).mean().backward()
    optimizer.step()
"""


def test_the_first_pass_is_epoch_0_and_only_those_behind_it_are_numbered() -> None:
    again = "        batches = iter(loader)\n        (x,) = next(batches)"
    take = f"try:\n        (x,) = next(batches)\n    except StopIteration:\n{again}"
    text = edited(ITERATOR.format(take=take), CODE).text
    assert text.count("set_epoch") == 1
    assert "        loader.sampler.set_epoch(loader.sampler.epoch + 1)\n        batches = iter(loader)" in text


def test_a_pass_that_is_alone_needs_no_number() -> None:
    assert "set_epoch" not in edited(ITERATOR.format(take="(x,) = next(batches)"), CODE).text


PEEKED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)

def some(least):
    rows = []
    while len(rows) < least:
        (x,) = next(iter(loader))
        rows.extend(x)
    return torch.stack(rows)


model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    loss = model(some(2)).mean() + model(some(3)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_function_that_is_called_twice_counts_its_passes_once() -> None:
    text = edited(PEEKED, CODE).text
    assert text.count("loader.sampler.set_epoch(loader.sampler.epoch + 1)") == 1


IN_A_FUNCTION = """
def train_epoch({given}):
    loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
    for (x,) in loader:
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


for epoch in range(start, 9):
    train_epoch({given})
"""


@pytest.mark.parametrize(
    ("given", "number"),
    [("epoch", "epoch"), ("", "broadcast_value(torch.randint(2**31, ()).item())")],
)
def test_a_loader_that_a_function_makes_in_each_epoch_has_another_order_each_time(given: str, number: str) -> None:
    """Its sampler is new in each call, so it cannot count the passes."""
    head = "".join(line for line in SCRIPT.partition("def train_epoch")[0].splitlines(True) if "loader =" not in line)
    text = edited(head + IN_A_FUNCTION.format(given=given), CODE).text
    assert f"    loader.sampler.set_epoch({number})\n    for (x,) in loader:" in text


ENSEMBLE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def train(net, optimizer):
    for (x,) in loader:
        optimizer.zero_grad()
        net(x).mean().backward()
        optimizer.step()

loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
nets, optimizers = [], []
for _ in range(3):
    nets.append(nn.Linear(4, 1))
    optimizers.append(torch.optim.SGD(nets[-1].parameters(), lr=0.1))
for epoch in range(4):
    for i, (net, optimizer) in enumerate(zip(nets, optimizers)):
        train(net, optimizer)
"""


def test_a_loop_that_counts_from_0_in_each_epoch_counts_no_passes() -> None:
    """Each model would see the same order in every epoch."""
    text = edited(ENSEMBLE, CODE).text
    assert "        loader.sampler.set_epoch(loader.sampler.epoch + 1)\n        train(net, optimizer)" in text


def test_a_training_for_each_rate_has_epochs_of_its_own() -> None:
    loops = "for rate in (0.1, 0.01):\n    net = nn.Linear(4, 1)\n    for epoch in range(4):\n        train(net, "
    made = "torch.optim.SGD(net.parameters(), lr=rate))\n"
    text = edited(ENSEMBLE[: ENSEMBLE.index("nets,")] + loops + made, CODE).text
    assert "        loader.sampler.set_epoch(epoch)\n        train(net, " in text


def test_two_loaders_of_one_function_are_both_shuffled_anew() -> None:
    head, _, rest = SCRIPT.partition("loader = ")
    made = "def load(n):\n    return DataLoader(TensorDataset(torch.ones(n, 4)), batch_size=2, shuffle=True)\n\n"
    loops = "for epoch in range(3):\n    for (x,), (z,) in zip(first, second):\n"
    loops += "        loss = model(x).mean() - model(z).mean()\n"
    rest = "model" + rest.partition("\nmodel")[2].partition("start =")[0]
    steps = "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"
    text = edited(f"{head}{made}first = load(8)\nsecond = load(12)\n{rest}{loops}{steps}", CODE).text
    assert "    first.sampler.set_epoch(epoch)\n    second.sampler.set_epoch(epoch)\n    for " in text


FETCHER = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Fetcher:
    def __init__(self, loader):
        self.loader = loader

    def reset(self):
        self.batches = iter(self.loader)

    def next(self):
        return next(self.batches, None)

def run(fetcher):
    fetcher.reset()
    batch = fetcher.next()
    while batch is not None:
        loss = model(batch[0]).mean()
        if torch.is_grad_enabled():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        batch = fetcher.next()

train = Fetcher(DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True))
held_out = Fetcher(DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle={shuffle}))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    run(train)
    with torch.no_grad():
        run(held_out)
"""


@pytest.mark.parametrize("shuffle", ["False", "len(sys.argv) > 1"])
def test_a_class_that_reads_train_and_test_loaders_asks_for_a_sampler_with_epochs(shuffle: str) -> None:
    """The test loader's sampler has no set_epoch: the script stopped where its reader was made."""
    sampler = "self.loader.sampler"
    found = edited(FETCHER.format(shuffle=shuffle), CODE)
    assert found.has(f"""
        if isinstance({sampler}, DistributedSampler):
            {sampler}.set_epoch({sampler}.epoch + 1)
        self.batches = iter(self.loader)
        """)


def test_a_loop_that_begins_one_pass_in_each_turn_counts_the_passes() -> None:
    loop = """
for epoch in range(start, 9):
    batches = iter(loader)
    for i in range(len(loader)):
        (x,) = next(batches)
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
    script = SCRIPT.partition("def train_epoch")[0]
    found = edited(script + loop, CODE)
    assert found.has("loader.sampler.set_epoch(epoch)\nbatches = iter(loader)")
    again = loop.replace("    for i in", "    extra = next(iter(loader))\n    for i in")
    assert "set_epoch(epoch)" not in edited(script + again, CODE).text


ANEW = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def loader_of(n):
    return DataLoader(TensorDataset(torch.ones(n, 4)), batch_size=2, shuffle=True)

def train(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for (x,) in loader:
        net(x).mean().backward()
        optimizer.step()

def main():
    net = nn.Linear(4, 1)
    for epoch in range(3):
        {made}
        train(net, anew)

main()
"""


@pytest.mark.parametrize(
    "made",
    ["anew = loader_of(8)", "anew = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)"],
    ids=["by-a-function", "there"],
)
def test_a_loader_that_each_epoch_makes_anew_is_told_before_it_is_handed_on(made: str) -> None:
    text = edited(ANEW.format(made=made), "DDP301", "DDP302").text
    assert "        anew.sampler.set_epoch(epoch)\n        train(net, anew)\n" in text
    assert text.count("set_epoch") == 1


BALANCED = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

data = TensorDataset(torch.ones(8, 4))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if len(sys.argv) > 1:
    loader = DataLoader(data, batch_size=2, sampler=WeightedRandomSampler(torch.ones(8), 8))
else:
    loader = DataLoader(data, batch_size=2, shuffle=True)


def fit(loader):
    {head}
        {turn}
        for (x,) in loader:
            model(x).mean().backward()
            optimizer.step()


fit(loader)
"""


@pytest.mark.parametrize(
    ("head", "turn", "epoch"),
    [
        ("for epoch in range(3):", "pass", "epoch"),
        ("epoch = 0\n    while epoch < 3:", "epoch += 1", "epoch"),
    ],
)
def test_a_loader_that_shuffles_or_draws_by_weights_gets_its_epoch_where_it_shuffles(
    head: str, turn: str, epoch: str
) -> None:
    """What draws by weights has no epoch; it was left to the user, as if nothing had a name there."""
    found = edited(BALANCED.format(head=head, turn=turn), CODE)
    sampler = "loader.sampler"
    assert found.has(f"""
        if isinstance({sampler}, DistributedSampler):
            {sampler}.set_epoch({epoch})
        """)
    assert not found.left


def test_passes_that_nothing_counts_over_a_loader_that_may_draw_are_left() -> None:
    found = edited(BALANCED.format(head="while True:", turn="pass"), CODE)
    assert "set_epoch" not in found.text
    assert len(found.left) == 1


KEPT_IN_THE_OBJECT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Trainer:
    def __init__(self):
        self.loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2, shuffle=True)
        self.net = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.epoch = 0

    def fit(self):
        for self.epoch in range(self.epoch, 4):
            for (x,) in self.loader:
                self.net(x).mean().backward()
                self.optimizer.step()

Trainer().fit()
"""


def test_an_epoch_that_the_object_keeps_is_the_sampler_s() -> None:
    """It was said that nothing counts the passes, and a resumed run began with the first order again."""
    assert "            self.loader.sampler.set_epoch(self.epoch)\n" in edited(KEPT_IN_THE_OBJECT, CODE).text
