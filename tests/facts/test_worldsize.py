"""What counts the ranks is told by where a value comes from and goes to; names tell only where nobody passes it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import libcst as cst
import pytest

from ddpify.facts import collect
from ddpify.facts.worldsize import counts_ranks
from ddpify.project import Project
from ddpify.source import Source

HEAD = """\
import argparse
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

data = TensorDataset(torch.ones(64, 4))
"""
#: how the batch size of a loader is made -> whether it is divided by the number of ranks
CASES = {
    "asked of the group": ("n = dist.get_world_size()\nDataLoader(data, 64 // n)", True),
    "asked of the environment": ('n = int(os.environ["WORLD_SIZE"])\nDataLoader(data, 64 // n)', True),
    "given to the group": (
        'n = 4\ndist.init_process_group("gloo", world_size=n, rank=0)\nDataLoader(data, 64 // n)',
        True,
    ),
    "given to the sampler": ("n = 4\nDataLoader(data, 64 // n, sampler=DistributedSampler(data, n, 0))", True),
    "given to a function that joins with it": (
        """
        def run(at, many):
            dist.init_process_group("gloo", rank=at, world_size=many)
            DataLoader(data, 64 // many)

        mp.spawn(run, args=(4,), nprocs=4)
        """,
        True,
    ),
    "an argument that says how many are spawned": (
        """
        def run(at, args):
            DataLoader(data, 64 // args.cards)

        parser = argparse.ArgumentParser()
        parser.add_argument("--cards", type=int, default=4)
        args = parser.parse_args()
        mp.spawn(run, args=(args,), nprocs=args.cards)
        """,
        True,
    ),
    "another number of that name": ("world_size = 4\nDataLoader(data, 64 // world_size)", False),
    "another argument of that name": (
        """
        parser = argparse.ArgumentParser()
        parser.add_argument("--num_gpus", type=int, default=4)
        args = parser.parse_args()
        DataLoader(data, 64 // args.num_gpus)
        """,
        False,
    ),
    "a parameter that nobody passes": ("def make(world_size):\n    return DataLoader(data, 64 // world_size)", True),
    "a parameter of another name that nobody passes": ("def make(n):\n    return DataLoader(data, 64 // n)", False),
    "a parameter that somebody passes": (
        "def make(world_size):\n    return DataLoader(data, 64 // world_size)\n\n\nmake(len(data.tensors))",
        False,
    ),
    "a field of a parameter that nobody passes": (
        "def make(args):\n    return DataLoader(data, 64 // args.world_size)",
        True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_divides_a_batch(name: str) -> None:
    body, expected = CASES[name]
    source = Source(Path("train.py"), (HEAD + dedent(body).strip("\n") + "\n").encode())
    facts = collect(Project(source), converting=False)
    (made,) = [n for n in source.of(cst.Call) if isinstance(n.func, cst.Name) and n.func.value == "DataLoader"]
    frame = next(e.frame for e in facts.flow.log.of("loader") if e.node is made)
    assert counts_ranks(facts, made.args[1].value, frame) is expected
