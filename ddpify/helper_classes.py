"""The classes that ddpify may put into a user's file: they deal out what a sampler or a stream gives."""

from __future__ import annotations

#: class -> (the names that it uses, the helpers that it uses)
NEEDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ShardedSampler": (("dist", "DistributedSampler"), ()),
    "EndlessShardedSampler": (("dist",), ()),
    "ShardedStream": (("torch", "dist"), ()),
}
NAMES = {
    "ShardedSampler": ("ShardedSampler", "RankShardedSampler"),
    "EndlessShardedSampler": ("EndlessShardedSampler", "EndlessRankShardedSampler"),
    "ShardedStream": ("ShardedStream", "RankShardedStream"),
}


def sampler(options: frozenset[str]) -> str:
    """`ShardedSampler`: rank 0 draws, so that no seed has to be alike on all ranks."""
    drop, batches = "drop" in options, "batches" in options
    keep, given = (", drop_last=self.drop_last", ", drop_last=False") if drop else ("", "")
    rest = "the first ones again, or without the last ones," if drop else "the first ones again"
    more = "\n    The samples of a batch stay together." if batches else ""
    own = "        self.drop_last = drop_last\n" if drop else ""
    own += "        self.batch_size = batch_size\n" if batches else ""
    whole = " - self.drop_last * (self.batch_size - 1)" if drop else ""
    head = (
        "class <ShardedSampler>:\n"
        '    """Deals out what a sampler draws (samples, or whole batches): rank 0 draws for all processes.\n\n'
        f"    As many to each, {rest} where they do not divide.{more}\n"
        '    """\n\n'
        f"    def __init__(self, sampler{given}{', batch_size=1' if batches else ''}):\n"
        "        self.sampler = sampler\n"
        f"{own}\n"
        "    def __iter__(self):\n"
        "        draws = [list(self.sampler)]\n"
        "        <dist>.broadcast_object_list(draws, src=0)\n"
    )
    if not batches:
        return head + (
            f"        share = <DistributedSampler>(draws[0], shuffle=False{keep})\n"
            "        return iter([draws[0][i] for i in share])\n\n"
            "    def __len__(self):\n"
            f"        return len(<DistributedSampler>(self.sampler{keep}))\n"
        )
    return head + (
        "        return iter([i for start, end in self.batches(len(draws[0])) for i in draws[0][start:end]])\n\n"
        "    def __len__(self):\n"
        "        return sum(end - start for start, end in self.batches(len(self.sampler)))\n\n"
        "    def batches(self, total):\n"
        f"        starts = range(0, total{whole}, self.batch_size)\n"
        f"        share = <DistributedSampler>(starts, shuffle=False{keep})\n"
        "        return [(starts[i], min(starts[i] + self.batch_size, total)) for i in share]\n"
    )


def draws(options: frozenset[str]) -> str:
    """`same_draws`, for the generators that are drawn from there: of torch, numpy, or Python's own."""
    known = {
        "torch": ("<torch>.get_rng_state()", "<torch>.set_rng_state"),
        "np": ("<np>.random.get_state()", "<np>.random.set_state"),
        "random": ("<random>.getstate()", "<random>.setstate"),
    }
    used = [known[k] for k in known if k in options]
    own = [f"        {put}(states[{i}])\n" for i, (_, put) in enumerate(used)]
    shared = [f"    {put}(shared[{i}])\n" for i, (_, put) in enumerate(used)]
    return (
        "@<contextmanager>\n"
        "def <same_draws>():\n"
        '    """Every process draws the random numbers that rank 0 draws, and then goes on with its own."""\n'
        f"    states = [{', '.join(get for get, _ in used)}]\n"
        "    shared = list(states)\n"
        "    <dist>.broadcast_object_list(shared, src=0)\n"
        f"{''.join(shared)}"
        "    yield\n"
        "    if <dist>.get_rank() > 0:\n"
        f"{''.join(own)}"
    )


TEXTS = {
    "EndlessShardedSampler": '''
class <EndlessShardedSampler>:
    """Deals out what an endless sampler draws: rank 0 draws for all processes."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        rank, world_size = <dist>.get_rank(), <dist>.get_world_size()
        sampler = iter(self.sampler)
        while True:
            draws = [[next(sampler) for _ in range(100 * world_size)]]
            <dist>.broadcast_object_list(draws, src=0)
            yield from draws[0][rank::world_size]
''',
    "ShardedStream": '''
class <ShardedStream>(<torch>.utils.data.IterableDataset):
    """Deals out the items of a stream, as many to each process: the first ones again where they do not divide."""

    def __init__(self, stream):
        self.stream = stream
        self.rank, self.world_size = <dist>.get_rank(), <dist>.get_world_size()

    def __iter__(self):
        first, items = [], []
        for item in self.stream:
            items.append(item)
            if len(items) == self.world_size:
                first = first or items
                yield items[self.rank]
                items = []
        if items:
            yield (items + (first or items * self.world_size))[self.rank]

    def __len__(self):
        return -(-len(self.stream) // self.world_size)
''',
}
