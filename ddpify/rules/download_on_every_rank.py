"""DDP303: downloads that every rank starts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Guard, InsertAfter
from ddpify.facts import Facts
from ddpify.facts.caches import Cache, caches, in_cache
from ddpify.facts.definitions import argument_of
from ddpify.facts.evaluation import evaluations
from ddpify.facts.fetches import is_fetch, makes_dataset
from ddpify.facts.first import by_one
from ddpify.facts.frames import Event, Frame
from ddpify.facts.outside import holding
from ddpify.facts.reads import asks_files
from ddpify.facts.work import work
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity
from ddpify.rules._guards import joined_group, same_on_all_ranks
from ddpify.source import Source

#: Functions that write their file anew although it is there.
#: The hub's own libraries take a lock: one process of a node downloads, the others wait and find the files.
_LOCKED = re.compile(r"(huggingface_hub\.(\w+\.)*)?(hf_hub_download|snapshot_download)|datasets\.(load\.)?load_dataset")
_OVERWRITES = (".urlretrieve", "wget.download", "gdown.download", ".unpack_archive")


class DownloadOnEveryRank(Rule):
    """Every rank downloads the data, or builds the cache.

    ## What it does
    Finds `download=True`, `urlretrieve`, `load_dataset`, `extractall` and their kin on all ranks. In a conversion also
    `if not os.path.exists(cache): build(cache)`, where every rank reads what was built, and calls of a function that
    builds it and begins with `if os.path.exists(cache): return`.

    ## Why is this bad?
    The ranks of a node write the same files at once; one of them reads an archive that another one has only
    half written.

    ## Fix
    Let one process per node download (`if local_rank == 0:`), and the others wait at `dist.barrier()`.

    ## Edit
    `with main_process_first():` around the smallest statement, or around the `if not os.path.exists(...)` that
    it stands under: one process per node goes ahead, the others find the files. The statement itself stays.
    """

    code = "DDP303"
    severity = Severity.WARNING
    references = ("https://github.com/pytorch/vision/issues/1480",)
    good = (
        Good("""
            import torch
            from torch import nn
            import torch.distributed as dist
            from torch.nn.parallel import DistributedDataParallel as DDP
            from torchvision import datasets
            dist.init_process_group("gloo")
            if dist.get_rank() == 0:
                datasets.MNIST("data", download=True)
            dist.barrier()
            data = datasets.MNIST("data")
            ddp = DDP(nn.Linear(8, 1))
            dist.destroy_process_group()
            """),
    )
    bad = (
        Bad("""
            import torch
            from torch import nn
            import torch.distributed as dist
            from torch.nn.parallel import DistributedDataParallel as DDP
            from torchvision import datasets
            dist.init_process_group("gloo")
            data = datasets.MNIST("data", download=True)
            ddp = DDP(nn.Linear(8, 1))
            dist.destroy_process_group()
            """),
    )
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader
            from torchvision import datasets, transforms
            train = datasets.MNIST("data", train=True, download=True, transform=transforms.ToTensor())
            loader = DataLoader(train, batch_size=2, shuffle=True)
            net = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x, y in loader:
                nn.functional.cross_entropy(net(x), y).backward()
                optimizer.step()
            """,
            gives=(
                "with main_process_first():",
                '    train = datasets.MNIST("data", train=True, download=True, transform=transforms.ToTensor())',
            ),
        ),
        Converts(
            """
            import os
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            if not os.path.exists("rows.pt"):
                print("building")
                torch.save(torch.ones(8, 4), "rows.pt")
            rows = torch.load("rows.pt")
            loader = DataLoader(TensorDataset(rows), batch_size=2, shuffle=True)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=(
                "with main_process_first():",
                '    if not os.path.exists("rows.pt"):',
                '        torch.save(torch.ones(8, 4), "rows.pt")',
            ),
        ),
        Converts(
            """
            import os
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, Dataset
            class Rows(Dataset):
                def __init__(self, path, download=False):
                    if download and not os.path.exists(path):
                        torch.save(torch.ones(8, 4), path)
                    self.rows = torch.load(path)
                def __len__(self):
                    return len(self.rows)
                def __getitem__(self, i):
                    return self.rows[i]
            rows = Rows("rows.pt", download=True)
            loader = DataLoader(rows, batch_size=2, shuffle=True)
            net = nn.Linear(4, 1)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for x in loader:
                net(x).mean().backward()
                optimizer.step()
            """,
            gives=(
                "def __init__(self, path, download=False):\n        if download and not os.path.exists(path):",
                'with main_process_first():\n    rows = Rows("rows.pt", download=True)\n',
            ),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        seen: set[int] = set()
        held: set[int] = set()  # calls that one process per node passes first
        for event in facts.flow.log.events:
            if not (is_fetch(event) or makes_dataset(event, facts.flow.values)):
                continue
            if by_one(facts, event) or (not facts.converting and _LOCKED.fullmatch(event.name)):
                continue
            if in_cache(event, facts, asks_inside=True):
                continue
            for frame, call in self.places(facts, event):
                if id(call) not in seen:
                    seen.add(id(call))
                    found = list(self.one(facts, frame, call, event))
                    held |= set() if any(f.left for f in found) else {id(call)}
                    yield from found
        for cache in caches(facts) if facts.converting else ():
            if not cache.frame.reached_through(lambda entry: id(entry.call) in held):
                yield self.build(facts, cache)

    def one(self, facts: Facts, frame: Frame, call: cst.Call, event: Event) -> Iterator[Finding]:
        source = frame.source
        what = source.code(call.func).split("\n")[0]
        message = f"every rank downloads with `{what}`"
        if not facts.converting:
            if facts.editable(source):
                yield self.finding(source, call, message)
            return
        stmt = holding(source, call)
        if stmt is not None and any(self.is_changed(facts, a) for a in source.ancestors(call)):
            return  # the dataset gets a statement of its own by the rule for loaders, under the same guard
        place = same_on_all_ranks(source, stmt, lambda test: asks_files(test, facts)) if stmt is not None else None
        why = self.obstacle(facts, frame, place, event)
        if why or place is None:
            yield self.finding(source, call, f"{message}; {why}", left="let one process per node do it first")
            return
        if isinstance(place, cst.Expr) and place is stmt and self.overwrites(event):
            yield from self.by_one(facts, source, place, message)
            return
        header = f"with {facts.names_of(source)['main_process_first']}()"
        yield self.finding(
            source,
            place,
            message,
            Guard(source, place, header),
            AddHelper(source, "main_process_first"),
            reason="one process per node downloads, the others find the files",
        )

    def build(self, facts: Facts, cache: Cache) -> Finding:
        source, place, write = cache.source, cache.place, cache.write
        path = write.call.source.code(write.path).split("\n")[0] if write.path is not None else ""
        message = f"every rank builds `{path}` where it is missing"
        if not joined_group(facts, cache.frame.events[0], place):
            return self.finding(
                source,
                place,
                f"{message}, before the process group is set up",
                left="let one process per node do it first",
            )
        return self.finding(
            source,
            place,
            message,
            Guard(source, place, f"with {facts.names_of(source)['main_process_first']}()"),
            AddHelper(source, "main_process_first"),
            reason="one process per node builds it, the others read it",
        )

    def overwrites(self, event: Event) -> bool:
        """`urlretrieve(url, path)` and `archive.extractall(path)` do it again although the files are there."""
        return event.kind == "method" or event.name.endswith(_OVERWRITES)

    def by_one(self, facts: Facts, source: Source, place: cst.CSTNode, message: str) -> Iterator[Finding]:
        """One process per node does it, and all wait: the others would write over what is being read."""
        names = facts.names_of(source)
        edits = (
            Guard(source, place, f"if {names['is_local_main_process']}()"),
            InsertAfter(source, place, (f"{names['dist']}.barrier()",)),
            AddHelper(source, "is_local_main_process"),
            AddImport(source, "dist"),
        )
        reason = "one process per node does it, the others wait for the files"
        yield self.finding(source, place, message, *edits, reason=reason)

    def obstacle(self, facts: Facts, frame: Frame, place: cst.CSTNode | None, event: Event) -> str:
        if not facts.editable(frame.source):
            return "it stands in a package's `__init__.py`, which gets no copy"
        if place is None:
            return "it stands in a lambda"
        if isinstance(place, (cst.FunctionDef, cst.ClassDef)) or work(facts.flow).meets(place):
            return "the statement does other work too"
        inner = (
            event
            if event.frame is frame
            else next((e for e in frame.events if e.callee is not None and e.stmt is place), event)
        )
        return (
            ""
            if joined_group(facts, inner, place if inner.frame is frame else None)
            else "it runs before the process group is set up"
        )

    # -- which call to guard ---------------------------------------------------------------------------------

    def places(self, facts: Facts, event: Event) -> list[tuple[Frame, cst.Call]]:
        """The calls to guard: the one that downloads, or the callers that ask for it or stand where it can be done."""
        assert isinstance(event.node, cst.Call)
        found = self.asking(event.node, event.frame)
        for _ in range(4):  # what a lambda does is done by its call
            inner = [p for p in found if isinstance(p[0].node, cst.Lambda)]
            outer = [(e.frame, e.call) for frame, _ in inner for e in frame.entries]
            found = [p for p in found if p not in inner]
            found += [(frame, call) for frame, call in outer if isinstance(call, cst.Call)]
        if not facts.converting:
            return [p for p in found if facts.editable(p[0].source)]
        return [p for place in found for p in self.editable(facts, *place)]

    def asking(self, node: cst.Call, frame: Frame) -> list[tuple[Frame, cst.Call]]:
        """Where `download` is a parameter: the callers that give it as True."""
        flag = next((a.value for a in node.args if a.keyword is not None and a.keyword.value == "download"), None)
        if isinstance(flag, cst.Name) and flag.value in frame.arguments and flag.value not in frame.assigned:
            found = []
            for entry in frame.entries:
                given = argument_of(entry.call, frame, flag.value)
                if isinstance(entry.call, cst.Call) and not (isinstance(given, cst.Name) and given.value == "False"):
                    found.append((entry.frame, entry.call))
            if found:
                return found
        return [(frame, node)]

    def editable(self, facts: Facts, frame: Frame, call: cst.Call) -> list[tuple[Frame, cst.Call]]:
        """The call itself, or where its file stays as it is, the calls in other files that lead there."""
        if facts.editable(frame.source):
            return [(frame, call)]
        ways = [next((e for e in reversed(c) if facts.editable(e.frame.source)), None) for c in frame.chains()]
        calls = [(e.frame, e.call) for e in ways if e is not None and isinstance(e.call, cst.Call)]
        return calls if ways and len(calls) == len(ways) else [(frame, call)]

    def is_changed(self, facts: Facts, node: cst.CSTNode) -> bool:
        """Whether a call makes a loader that is dealt out; an evaluation that runs in full keeps its statement."""
        if not isinstance(node, cst.Call):
            return False
        shared = [e.loader for e in facts.cached("evaluations", evaluations) if e.mode != "all"]
        return any(loader.call is node for loader in (*facts.roles.training_loaders, *shared))
