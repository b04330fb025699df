"""Findings that a script makes likely and not certain, which lint leaves out, beside those that it has to make."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from ddpify.linting.check import Task, check
from ddpify.linting.settings import Settings
from ddpify.source import Source

TOP = """
import os
from collections import OrderedDict

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
dataset = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))
"""


def lines(code: str, *rules: str) -> list[str]:
    """The lines at which lint finds something of some rules."""
    text = f"{TOP}\n{dedent(code)}"
    problems = check(Source(Path("train.py"), text.encode()), "train.py", Task(Settings(select=rules))).problems
    return [text.splitlines()[p.line - 1].strip() for p in problems]


@pytest.mark.parametrize("stepped", [True, False])
def test_another_model_beside_the_wrapper_counts_where_its_optimizer_steps(stepped: bool) -> None:
    found = lines(
        f"""
        net, head = nn.Linear(8, 8), nn.Linear(8, 2)
        ddp, wrapped_head = DDP(net), DDP(head)
        one = torch.optim.SGD(net.parameters(), lr=0.1)
        two = torch.optim.SGD(head.parameters(), lr=0.1)
        for x, y in loader:
            loss = F.cross_entropy(head(ddp(x)), y)
            one.zero_grad()
            loss.backward()
            one.step()
            {"two.step()" if stepped else "two.zero_grad()"}
        """,
        "DDP205",
    )
    assert found == (["loss = F.cross_entropy(head(ddp(x)), y)"] if stepped else [])


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("self.spare = nn.Linear(8, 8)", True),
        ("if many > 1:\n            self.spare = nn.Linear(8, 8)", False),
        ("self.spare = nn.Linear(8, 8) if many > 1 else None", False),
    ],
)
def test_a_layer_that_is_left_out_is_one_that_each_model_has(made: str, found: bool) -> None:
    code = f"""
class Net(nn.Module):
    def __init__(self, many=1):
        super().__init__()
        self.body = nn.Linear(8, 2)
        {made}

    def forward(self, x, who=None):
        if who is not None:
            x = x + self.spare(who)
        return self.body(x)

ddp = DDP(Net())
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(ddp(x), y).backward()
    optimizer.step()
"""
    assert lines(code, "DDP220") == (["ddp = DDP(Net())"] if found else [])


MET = """
def gather(only_first):
    rows = [1]
    if only_first:
        if rank != 0:
            dist.barrier()
            return None
    rows = rows * 2
    {behind}
    return rows

gather(True)
"""


def test_ranks_that_leave_early_may_meet_the_others_behind() -> None:
    assert lines(MET.format(behind="dist.barrier()"), "DDP512") == []
    assert lines(MET.format(behind="rows.sort()"), "DDP512") == ["dist.barrier()"]


def test_a_collective_of_the_training_is_not_met_in_an_evaluation() -> None:
    code = """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Linear(8, 2)

            def compare(self, x):
                out = self.body(x)
                if {test}:
                    dist.barrier()
                return out

        def evaluate(net):
            net.eval()
            with torch.no_grad():
                return net.compare(torch.randn(4, 8)).sum()

        net = Net()
        if rank == 0:
            evaluate(net)
        """
    assert lines(code.format(test="self.training"), "DDP512") == []
    assert lines(code.format(test="out.ndim == 2"), "DDP512") == ["dist.barrier()"]


@pytest.mark.parametrize("asked", ["length > 0 and i + 1 >= length", "length == 0"])
def test_a_number_of_a_caller_elsewhere_is_no_test_of_the_rank(asked: str) -> None:
    code = f"""
        def train(length, steps):
            for i in range(steps):
                if {asked}:
                    break
                dist.barrier()
        """
    assert lines(code, "DDP512") == []


COUNTED = """
count = 0
if rank == 0:
    count = len(os.listdir("."))
{between}
for i in range(count):
    dist.barrier()
"""


def test_a_loop_that_one_rank_counts_holds_no_collective() -> None:
    assert lines(COUNTED.format(between=""), "DDP512") == ["dist.barrier()"]
    told = "box = [count]\ndist.broadcast_object_list(box)\ncount = box[0]"
    assert lines(COUNTED.format(between=told), "DDP512") == []
    assert lines(COUNTED.format(between="").replace('len(os.listdir("."))', "0"), "DDP512") == []


TWO = """
class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 1)

    def forward(self, x):
        return self.body({given})

made, judge = DDP(nn.Linear(8, 8)), DDP(Judge())
one = torch.optim.SGD(made.parameters(), lr=0.1)
two = torch.optim.SGD(judge.parameters(), lr=0.1)
for x, y in loader:
    fake = made(x)
    fake.mean().backward()
    one.step()
    one.zero_grad()
    {second}
    two.step()
"""


@pytest.mark.parametrize(
    ("given", "second", "found"),
    [
        ("x", "judge(fake).mean().backward()", True),
        ("x.detach()", "judge(fake).mean().backward()", False),
        ("x", "judge(fake.detach()).mean().backward()", False),
        ("x", "unread(judge, fake).backward()", False),
        ("x", "sum(l.mean() for l in {'a': judge(fake)}.values()).backward()", True),
    ],
)
def test_a_second_backward_is_one_whose_gradient_is_seen_to_arrive(given: str, second: str, found: bool) -> None:
    code = "from losses import unread\n" + TWO.format(given=given, second=second)
    assert lines(code, "DDP207") == ([second] if found else [])


def test_a_backward_that_two_branches_call_is_one() -> None:
    code = """
        class Scaler:
            def __call__(self, loss, optimizer):
                loss.backward()
                optimizer.step()

        ddp, scaler = DDP(nn.Linear(8, 2)), Scaler()
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for x, y in loader:
            loss = F.cross_entropy(ddp(x), y)
            if os.environ.get("SECOND"):
                scaler(loss, optimizer)
            {other}:
                scaler(loss, optimizer)
        """
    assert lines(code.format(other="else"), "DDP207") == []
    assert lines(code.format(other="if os.environ.get('TWICE')"), "DDP207") == ["loss.backward()"]


@pytest.mark.parametrize(
    ("state", "found"),
    [
        ("state = ddp.state_dict()", True),
        ("state = ddp.state_dict()\nif plain:\n    state = OrderedDict([(k[7:], v) for k, v in state.items()])", False),
        ("state = ddp.state_dict()\nfor k in list(state):\n    state[k[7:]] = state.pop(k)", False),
        ("state = strip(ddp.state_dict())", False),
    ],
)
def test_keys_that_may_have_been_renamed_are_not_the_wrappers(state: str, found: bool) -> None:
    save = 'torch.save({"model": state, "epoch": 1}, "last.pt")'
    made = 'from tools import strip\nplain = bool(os.environ.get("PLAIN"))\nddp = DDP(nn.Linear(8, 2))\n'
    code = f"{made}{state}\nif rank == 0:\n    {save}\n"
    assert lines(code, "DDP203") == ([save] if found else [])


@pytest.mark.parametrize(("kept", "found"), [("held['optim'] = body", True), ("held[f'optim_{rank}'] = body", False)])
def test_a_dict_of_computed_keys_may_hold_something_else(kept: str, found: bool) -> None:
    code = f"""
        class Net(nn.Linear):
            size = 8

        held = {{}}
        ddp = DDP(Net(8, 2))
        body = torch.optim.SGD(ddp.parameters(), lr=0.1)
        held[{"'net'" if found else "f'net_{rank}'"}] = ddp
        {kept}
        print(held[{"'net'" if found else "f'net_{rank}'"}].size)
        """
    assert bool(lines(code, "DDP202")) is found


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("bad", True),
        ("'mask' in batch", False),
        ("'mask' not in batch", False),
        ("worst", False),
    ],
)
def test_a_batch_is_left_out_by_what_is_in_it(asked: str, found: bool) -> None:
    code = f"""
        class Pairs(torch.utils.data.Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, at):
                return {{"x": torch.randn(8), "y": at % 2}}

        pairs = Pairs()
        ddp = DDP(nn.Linear(8, 2))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for batch in DataLoader(pairs, sampler=DistributedSampler(pairs)):
            loss = F.cross_entropy(ddp(batch["x"]), batch["y"])
            every = [torch.zeros_like(loss) for _ in range(dist.get_world_size())]
            dist.all_gather(every, loss)
            bad = torch.isnan(loss)
            worst = torch.isnan(torch.stack(every)).any()
            if {asked}:
                continue
            loss.backward()
            optimizer.step()
        """
    assert lines(code, "DDP506") == ([f"if {asked}:"] if found else [])


@pytest.mark.parametrize(
    ("made", "found"),
    [("total / seen", True), ("shared(total / seen)", False), ("Mean.apply(total / seen)", False)],
)
def test_what_a_function_that_is_not_read_gives_is_nobodys_own(made: str, found: bool) -> None:
    code = f"""
from tools import shared

class Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x / dist.get_world_size()
        dist.all_reduce(x)
        return x

ddp = DDP(nn.Linear(8, 2))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
tests = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False))
best = 0
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    total, seen = 0, 0
    for x, y in tests:
        total += (ddp(x).argmax(1) == y).sum()
        seen += len(y)
    score = {made}
    if score > best:
        best = score
        if rank == 0:
            torch.save(ddp.module.state_dict(), "best.pt")
"""
    assert lines(code, "DDP506") == (["if score > best:"] if found else [])


@pytest.mark.parametrize("trained", [True, False])
def test_a_mean_over_a_mask_counts_where_a_loss_is_made_of_it(trained: bool) -> None:
    code = f"""
        def shown(out, mask):
            return {{"norm": (out.norm(dim=1) * mask).sum() / mask.sum()}}

        def step(net, x, y):
            out = net(x)
            mask = (y > 0).float()
            stats = shown(out, mask)
            return F.cross_entropy(out, y){" + stats['norm']" if trained else ""}, stats

        ddp = DDP(nn.Linear(8, 2))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for x, y in loader:
            loss, stats = step(ddp, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print({{k: v.item() for k, v in stats.items()}})
        """
    assert bool(lines(code, "DDP510")) is trained


def test_a_mean_times_a_setting_is_no_sum() -> None:
    code = """
        import argparse
        args = argparse.ArgumentParser().parse_args()
        ddp = DDP(nn.Linear(8, 2))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for x, y in loader:
            loss = F.cross_entropy(ddp(x), y{reduction})
            optimizer.zero_grad()
            (args.weight.loss * loss).backward()
            optimizer.step()
        """
    assert lines(code.format(reduction=""), "DDP505") == []
    assert lines(code.format(reduction=', reduction="sum"'), "DDP505") != []


@pytest.mark.parametrize("ready", [True, False])
def test_a_layer_that_is_set_from_the_start_sets_itself_from_no_batch(ready: bool) -> None:
    code = f"""
        class Norm(nn.Module):
            def __init__(self):
                super().__init__()
                self.bias = nn.Parameter(torch.zeros(8))
                self.ready = {ready}

            def start(self, x):
                with torch.no_grad():
                    self.bias.data.copy_(-x.mean(0))

            def forward(self, x):
                if not self.ready:
                    self.start(x)
                    self.ready = True
                return x + self.bias

        ddp = DDP(Norm())
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for x, y in loader:
            optimizer.zero_grad()
            ddp(x).mean().backward()
            optimizer.step()
        """
    assert bool(lines(code, "DDP211")) is not ready


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("Images()", True),
        ("torch.utils.data.Subset(Images(), range(8))", True),
        ("load('images')", False),
        ("Read('images')", False),
        ("torch.utils.data.Subset(load('images'), range(8))", False),
    ],
)
def test_a_dataset_that_is_not_read_may_be_the_share_of_a_rank(made: str, found: bool) -> None:
    code = f"""
        from images import Base, load

        class Images(torch.utils.data.Dataset):
            def __len__(self):
                return 64
            def __getitem__(self, at):
                return torch.randn(8)

        class Read(Base):
            def __len__(self):
                return 64

        ddp = DDP(nn.Linear(8, 2))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        whole = DataLoader({made}, shuffle=True)
        for x in whole:
            optimizer.zero_grad()
            ddp(x).mean().backward()
            optimizer.step()
        """
    assert bool(lines(code, "DDP301")) is found


@pytest.mark.parametrize(
    ("sampler", "found"),
    [("sampler=DistributedSampler(images)", True), ("shuffle=True", False), ("sampler=None", False)],
)
def test_an_order_counts_where_ranks_share_a_dataset_out(sampler: str, found: bool) -> None:
    code = f"""
        class Images(torch.utils.data.Dataset):
            def __init__(self):
                self.names = os.listdir("images")
            def __len__(self):
                return len(self.names)
            def __getitem__(self, at):
                return torch.load(self.names[at])

        ddp = DDP(nn.Linear(8, 2))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        images = Images()
        for x in DataLoader(images, {sampler}):
            optimizer.zero_grad()
            ddp(x).mean().backward()
            optimizer.step()
        """
    assert bool(lines(code, "DDP307")) is found


@pytest.mark.parametrize(
    ("kept", "found"),
    [("bank.append(x)", False), ("hits += x.sum()", True), ("meter.update(x)", True)],
)
def test_an_evaluation_that_pads_is_one_whose_numbers_are_reduced(kept: str, found: bool) -> None:
    code = f"""
        from meters import Meter

        ddp, meter, hits, bank = DDP(nn.Linear(8, 2)), Meter(), torch.zeros(()), []
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()
        tests = DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False))
        others = DataLoader(dataset)
        seen = torch.zeros(())
        for x, y in tests:
            {kept}
        for x, y in others:
            seen += len(x)
        sums = torch.stack([hits, seen])
        dist.all_reduce(sums)
        dist.all_reduce(meter.total)
        """
    assert bool(lines(code, "DDP304")) is found


def test_what_was_missing_in_a_checkpoint_is_no_wrapper() -> None:
    code = """
        ddp = DDP(nn.Linear(8, 2))
        missing = ddp.load_state_dict(torch.load("last.pt", map_location="cpu"), strict=False)
        print(missing.missing_keys, ddp.weight)
        """
    assert lines(code, "DDP202") == ["print(missing.missing_keys, ddp.weight)"]
    assert lines(code.replace(", ddp.weight", ""), "DDP202") == []


@pytest.mark.parametrize(
    ("size", "found"),
    [("n, width = x.shape", False), ("n = x.size(0)", False), ("n = int(x.sum())", True), ("_, n = x.shape", True)],
)
def test_how_many_samples_a_batch_has_is_the_same_on_all_ranks(size: str, found: bool) -> None:
    code = f"""
        ddp = DDP(nn.Linear(8, 2))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for x, y in loader:
            {size}
            if n < 4:
                continue
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()
        """
    assert bool(lines(code, "DDP506")) is found


@pytest.mark.parametrize(
    ("made", "found"),
    [("nn.Sequential(nn.Linear(8, 2), nn.Dropout(0.1))", True), ("nn.Linear(8, 2)", False), ("build()", False)],
)
def test_noise_is_seen_before_the_ranks_are_said_to_share_it(made: str, found: bool) -> None:
    code = f"""
        from models import build

        torch.manual_seed(1)
        ddp = DDP({made})
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()
        """
    assert bool(lines(code, "DDP306")) is found


@pytest.mark.parametrize(
    ("second", "found"), [("kind == 'b'", False), ("kind == 'a'", True), ("kind != 'c'", True), ("other == 'b'", True)]
)
def test_two_values_of_one_option_are_two_ways(second: str, found: bool) -> None:
    code = f"""
        def train(net, optimizer, kind, other):
            for x, y in loader:
                if kind == "a":
                    out = net(x)
                    loss = F.cross_entropy(out, y)
                if {second}:
                    out = net(x + 1)
                    loss = F.cross_entropy(out, y) + (0 if kind == "b" else loss)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        ddp = DDP(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        train(ddp, optimizer, os.environ["KIND"], os.environ["OTHER"])
        """
    assert bool(lines(code, "DDP207")) is found


@pytest.mark.parametrize("copied", [True, False])
def test_layers_of_a_copy_are_no_layers_of_the_wrapper(copied: bool) -> None:
    code = f"""
        from copy import deepcopy

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
            def forward(self, x):
                return self.head(self.body(x))

        def probe(net, x):
            net = {"deepcopy(net)" if copied else "net"}
            net.module.head = nn.Linear(8, 2)
            return net(x)

        ddp = DDP(Net())
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for x, y in loader:
            probe(ddp, x)
            optimizer.zero_grad()
            F.cross_entropy(ddp(x), y).backward()
            optimizer.step()
        """
    assert bool(lines(code, "DDP210")) is not copied


@pytest.mark.parametrize("ends", [True, False])
def test_what_an_option_does_instead_of_the_training_changes_no_wrapper(ends: bool) -> None:
    code = f"""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
            def forward(self, x):
                return self.head(self.body(x))

        def main(only_looks):
            ddp = DDP(Net())
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            if only_looks:
                ddp.module.head = nn.Linear(8, 2)
                print(ddp)
                {"return" if ends else "print(optimizer)"}
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(ddp(x), y).backward()
                optimizer.step()

        main(bool(os.environ.get("LOOK")))
        """
    assert bool(lines(code, "DDP210")) is not ends
