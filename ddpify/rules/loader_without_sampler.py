"""DDP301: training loaders without a DistributedSampler."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Append, Edit, InsertBefore, Replace
from ddpify.facts import Facts
from ddpify.facts.handmade import Unshared, hand_fed
from ddpify.facts.phases import training_key
from ddpify.facts.ranks import never_with_others
from ddpify.facts.sharding import LoaderFacts, loader_facts, measured
from ddpify.facts.shards import draws_for_itself, in_another_way, is_whole
from ddpify.facts.trails import way_back, way_of_loader
from ddpify.facts.values import Loader, Sampler
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule
from ddpify.rules._besides import besides
from ddpify.rules._dealing import check_steps, dealt_out, from_splat, said_drop_last
from ddpify.rules._global_batch import divided
from ddpify.rules._hoisting import hoisted
from ddpify.rules._samplers import set_sampler, telling
from ddpify.source import Source

_OF_A_DRAW = "share out what it draws: the same draw on all ranks, then `[rank::world_size]` of it"


class LoaderWithoutSampler(Rule):
    """Every rank reads the whole training set.

    ## What it does
    Finds DataLoaders that training batches come from and that have no sampler which shares the samples out.

    ## Why is this bad?
    A DataLoader knows nothing of ranks: N GPUs do the same epoch N times, and nothing is gained.

    ## Fix
    Give the loader `sampler=DistributedSampler(dataset)` in the place of `shuffle=True`, and call `set_epoch` in
    every epoch.

    ## Edit
    `sampler=DistributedSampler(dataset)`; `shuffle` moves into the sampler, because a loader may not have both. A
    loader that drops its last batch gets a sampler that drops, too. A function that makes training and evaluation
    loaders alike gets a parameter that tells them apart: `make_loader(train_set, distributed=True)`. The number in
    `batch_size` stays and is per process; `--global-batch keep` divides it, and asks when it runs whether that can be
    done.

    A RandomSampler or SequentialSampler gives way to a DistributedSampler of the same data. Every other sampler, and a
    batch sampler, stays and is dealt out (`ShardedSampler`): rank 0 draws, and each rank gets as many of its samples or
    batches. A stream (IterableDataset) is read by every rank, which keeps its own items (`ShardedStream`).

    ## When not
    A stream that draws its order anew on each rank is refused, and a sampler that could not be followed.
    """

    code = "DDP301"
    references = ("https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",)
    good = (
        Good("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset, shuffle=False))
            for x, y in loader:
                ddp(x).mean().backward()
                optimizer.step()
            """),
        Good("""
            def loader(shared):
                if shared:
                    return DataLoader(dataset, sampler=DistributedSampler(dataset, shuffle=False))
                return DataLoader(dataset, shuffle=True)
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for x, y in loader(os.environ.get("SHARED") == "1"):
                ddp(x).mean().backward()
                optimizer.step()
            """),
    )
    bad = (
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            loader = DataLoader(dataset, batch_size=8, shuffle=True)
            for x, y in loader:
                ddp(x).mean().backward()
                optimizer.step()
            """),
        Bad("""
            ddp = DDP(model)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            draw = torch.utils.data.WeightedRandomSampler(torch.ones(64), 64)
            for x, y in DataLoader(dataset, sampler=draw):
                ddp(x).mean().backward()
                optimizer.step()
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            data = TensorDataset(torch.ones(8, 4))
            loader = DataLoader(data, 2, True, num_workers=0)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for epoch in range(3):
                for (x,) in loader:
                    net(x).mean().backward()
                    optimizer.step()
            """,
            gives=(
                "loader = DataLoader(data, 2, sampler=DistributedSampler(data), num_workers=0)",
                "    loader.sampler.set_epoch(epoch)",
            ),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision.datasets import FakeData
            loader = DataLoader(
                FakeData(
                    size=64,
                    num_classes=2,
                ),
                batch_size=2,
            )
            net = nn.Sequential(nn.Flatten(), nn.Linear(150528, 2))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x, y in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=(
                "train_set = FakeData(\n    size=64,\n    num_classes=2,\n)\nloader = DataLoader(\n    train_set,\n",
            ),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        for hand in hand_fed(facts) if facts.converting else ():
            if isinstance(hand, Unshared):
                yield self.finding(hand.source, hand.node, hand.why, refuse=hand.about, left=hand.remedy)
        if facts.converting and facts.roles.training_loaders:
            yield from besides(self, facts)
        done: set[cst.Call] = set()
        for loader in facts.roles.training_loaders:
            known = loader_facts(facts, loader)
            if known is None and facts.converting:
                site, about = loader.site, way_of_loader(facts.flow, facts.roles, loader)
                message = f"`{about.value}` makes a DataLoader in a way that ddpify could not follow"
                yield self.finding(site.source, site.node, message, refuse=about)
            if known is None or known.call in done:
                continue
            done.add(known.call)
            if not facts.converting:
                yield from self.lint(facts, known)
                continue
            if not facts.editable(known.source):
                place = f"{known.source.path.name}:{known.source.line(known.call)}"
                about = way_of_loader(facts.flow, facts.roles, loader)
                message = (
                    f"the training DataLoader `{about.value}` is made in {place}, and ddpify makes no changed copy of "
                    "that file"
                )
                yield self.finding(
                    facts.source,
                    facts.source.module,
                    message,
                    refuse=about,
                    left="Move the loader into a module of its own or into the script",
                )
            elif known.problem:
                yield self.finding(
                    known.source,
                    known.call,
                    f"the training DataLoader cannot be sharded: {known.problem}",
                    refuse=way_of_loader(facts.flow, facts.roles, loader, known.hindrance),
                )
            else:
                yield self.shard(facts, known)
                if facts.global_batch == "keep" and not divided(facts, known):
                    yield self.finding(
                        known.source,
                        known.call,
                        "the batch size of this loader does not stand in its call, so it was not divided",
                        left="divide it by dist.get_world_size() where it is set, or convert with --global-batch scale",
                    )
                yield from self.mixed(facts, known)

    def lint(self, facts: Facts, known: LoaderFacts) -> Iterator[Finding]:
        loader, what = known.loader, draws_for_itself(known.loader)
        made = [e for e in facts.flow.log.of("loader") if e.node is known.call]
        if not facts.editable(known.source) or (made and all(never_with_others(e, facts.flow) for e in made)):
            return
        # RandomSampler if local_rank == -1 else DistributedSampler
        calls = [o.call for o in loader.arguments.get("sampler", ()) if isinstance(o, Sampler) and o.call is not None]
        kinds = [getattr(o, "name", "") for call in calls for o in facts.flow.values.get(call.func, ())]
        if what and not any("Distributed" in kind for kind in kinds) and not in_another_way(facts, loader):
            message = f"the {what} of this DataLoader knows nothing of ranks: every rank draws the whole epoch"
            yield self.finding(known.source, known.call, message, left=_OF_A_DRAW)
        sampled = "sampler" in loader.arguments or "batch_sampler" in loader.arguments
        unclear = known.problem or known.draws is not None or loader.unknown_splat or not is_whole(facts, loader)
        if not (sampled or unclear or in_another_way(facts, loader)):
            edits = self.shard(facts, known).edits
            message = f"the DataLoader over `{self.dataset(known)}` gives every rank the whole training set"
            simple = not any(isinstance(e, AddHelper) for e in edits)
            yield self.finding(known.source, known.call, message, *(edits if simple else ()), unsafe=True)

    def dataset(self, known: LoaderFacts) -> str:
        return known.data.split("\n")[0]

    def shard(self, facts: Facts, known: LoaderFacts) -> Finding:
        if known.plain is not None or known.draws is not None:
            return self.dealt(facts, known)
        source = known.source
        key = training_key(facts, known.call)
        taken = facts.names_of(source).taken
        for_all = next((n for n in ("dataset", "samples") if n not in taken), "data")
        name, edits = hoisted(facts, known, "train_set" if key is None else for_all)
        if known.subset and known.dataset is not None:
            # sampler=SubsetRandomSampler(train_idx): the subset is a dataset of its own, and its sampler can be shared
            # out
            names = facts.names_of(source)
            subset = names.fresh("train_subset")
            line = f"{subset} = {names['torch']}.utils.data.Subset({name}, {known.subset})"
            edits += [InsertBefore(source, known.stmt, (line,)), AddImport(source, "torch")]
            edits.append(Replace(source, known.dataset, subset))
            name = subset
        options = ""
        if known.splat_shuffles and known.splat is not None:
            options, more = from_splat(known, known.splat)
            edits += more
        elif (
            (key is None or known.shuffles is None)
            and known.shuffle is not None
            and (known.shuffles is None or source.code(known.shuffle) not in ("True", "False", "1", "0"))
        ):
            options = f", shuffle={source.code(known.shuffle)}"
        elif known.shuffles is False:
            options = ", shuffle=False"
        if known.drop_last is not False and "drop_last" not in options:
            options += f", drop_last={said_drop_last(known)}"
        value = f"{facts.names_of(source)['DistributedSampler']}({name}{options})"
        if key is not None:
            # {x: DataLoader(sets[x], shuffle=True) for x in ["train", "val"]}: the others keep their own order
            shuffled = known.source.code(known.shuffle) if known.shuffle is not None else "False"
            both = key[1] if shuffled == "True" else f"{shuffled} and {key[1]}"
            same = shuffled in ("False", key[0], f"({key[0]})") or f"({shuffled})" == key[0]
            kept = "" if same else f", shuffle={both}"
            value = f"{value} if {key[0]} else None{kept}"
            edits += telling(facts, known)
        elif known.shuffle is None and not known.splat_shuffles and known.shuffles is not False and not known.subset:
            value += ", shuffle=False"  # partial(DataLoader, shuffle=True): said where the call does not show it
        edits.extend(set_sampler(known, value))
        edits.append(AddImport(source, "DistributedSampler"))
        edits.extend(self.lengths(facts, known))
        if known.drop_last:
            edits.extend(check_steps(facts, known))
        if facts.global_batch == "keep":
            edits.extend(divided(facts, known))
        moved = "shuffling moves into the sampler" if known.shuffles is not False else "the order stays"
        return self.finding(
            source,
            known.call,
            f"the DataLoader over `{self.dataset(known)}` is shared out over the ranks",
            *edits,
            reason=f"each rank gets its own shard; {moved}",
        )

    def dealt(self, facts: Facts, known: LoaderFacts) -> Finding:
        """What the script draws by itself: by RandomSampler, a sampler of its own, whole batches, a stream."""
        message, reason, edits = dealt_out(facts, known)
        if known.drop_last and (known.draws is None or known.draws.how == "sampler"):
            edits.extend(check_steps(facts, known))
        if facts.global_batch == "keep":
            edits.extend(divided(facts, known))
        return self.finding(known.source, known.call, message, *edits, reason=reason)

    def lengths(self, facts: Facts, known: LoaderFacts) -> Iterator[Edit]:
        """`len(loader.sampler)` was the number of samples of an epoch, and is one rank's share in a DistributedSampler.

        A subset that takes the place of a SubsetRandomSampler is the loader's data set then, and has the whole one.
        """
        for source, part in measured(facts, known):
            if part.attr.value == "sampler":
                if not _divides(source, part):  # behind a loop that is added up over the ranks, DDP501 has it
                    yield Replace(source, part.attr, "dataset")
            elif known.subset:
                yield Append(source, part, ".dataset")

    def mixed(self, facts: Facts, known: LoaderFacts) -> Iterator[Finding]:
        """`len(loader.sampler)` in a function that is given this loader and others with samplers of their own."""
        for source, part in measured(facts, known):
            others = [
                o for o in facts.flow.values.get(part.value, ()) if isinstance(o, Loader) and o.call is not known.call
            ]
            if any("sampler" in o.arguments and o not in facts.roles.training_loaders for o in others):
                message = f"`len({source.code(part)})` is asked of loaders with different samplers"
                yield self.finding(
                    source,
                    part,
                    message,
                    refuse=way_back(facts.flow, part, source, value=f"len({source.code(part)})"),
                    left="Give the number of samples to the function",
                )


def _divides(source: Source, part: cst.Attribute) -> bool:
    """`total / len(loader.sampler)`"""
    call = next(a for a in source.ancestors(part) if isinstance(a, cst.Call))
    match source.parents.get(call):
        case cst.BinaryOperation(operator=cst.Divide() | cst.FloorDivide(), right=right):
            return right is call
        case cst.AugAssign(operator=cst.DivideAssign()):
            return True
    return False
