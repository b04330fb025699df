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
    drop = "drop" in options
    keep, given = ("drop_last=self.drop_last", ", drop_last=False") if drop else ("", "")
    rest = "the first ones again, or without the last ones," if drop else "the first ones again"
    return (
        "class <ShardedSampler>:\n"
        '    """Deals out what a sampler draws (samples, or whole batches): rank 0 draws for all processes.\n\n'
        f"    As many to each, {rest} where they do not divide.\n"
        '    """\n\n'
        f"    def __init__(self, sampler{given}):\n"
        "        self.sampler = sampler\n"
        f"{'        self.drop_last = drop_last' + chr(10) if drop else ''}\n"
        "    def __iter__(self):\n"
        "        draws = [list(self.sampler)]\n"
        "        <dist>.broadcast_object_list(draws, src=0)\n"
        f"        share = <DistributedSampler>(draws[0], shuffle=False{', ' + keep if drop else ''})\n"
        "        return iter([draws[0][i] for i in share])\n\n"
        "    def __len__(self):\n"
        f"        return len(<DistributedSampler>(self.sampler{', ' + keep if drop else ''}))\n"
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
