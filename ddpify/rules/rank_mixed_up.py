"""DDP108: ranks compared with what they are not, and taken for what they are not."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import Surround
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.definitions import argument_of, definitions
from ddpify.facts.frames import Event, Frame
from ddpify.facts.ranks import ranks
from ddpify.facts.values import Ext, Thing
from ddpify.facts.writes import find_writes
from ddpify.rules._base import Bad, Finding, Good, Rule, Severity
from ddpify.source import Source, walk

_VARIABLES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"})
_READS = frozenset({"os.environ.get", "os.getenv"})


class RankMixedUp(Rule):
    """A rank is taken for what it is not.

    ## What it does
    Finds `os.environ["LOCAL_RANK"] == 0` (the value is a string), a `--local_rank` argument in a script that never
    reads LOCAL_RANK, the rank of the whole job as the index of a GPU, a rank that is asked for before there is a
    process group, and (as a remark) checkpoints that the first rank of each node writes.

    ## Why is this bad?
    A string never equals a number, so that no rank does what rank 0 should. torchrun gives no `--local_rank`: it keeps
    its default on every rank, and torch.distributed.launch writes it `--local-rank` since torch 2.0. Rank 8 is GPU 0 of
    the second node, where there is no GPU 8; and one rank per node writes the same file on a shared disk.

    ## Fix
    Read both as numbers, `rank = int(os.environ["RANK"])` and `local_rank = int(os.environ["LOCAL_RANK"])`; choose the
    GPU by local_rank, and let the one rank write that is 0.
    """

    code = "DDP108"
    references = (
        "https://docs.pytorch.org/docs/stable/elastic/run.html#transitioning-from-torch-distributed-launch-to-torchrun",
        "https://github.com/NVIDIA/apex/issues/886",
    )
    good = (
        Good('local_rank = int(os.environ["LOCAL_RANK"])\nif local_rank == 0:\n    print("start")'),
        Good("rank = dist.get_rank()\ntorch.cuda.set_device(rank % torch.cuda.device_count())"),
        Good("""
            import argparse
            import os
            import torch
            import torch.distributed as dist
            parser = argparse.ArgumentParser()
            parser.add_argument("--local_rank", type=int, default=-1)
            args = parser.parse_args()
            if "LOCAL_RANK" in os.environ:
                args.local_rank = int(os.environ["LOCAL_RANK"])
            torch.cuda.set_device(args.local_rank)
            dist.init_process_group("nccl")
            dist.destroy_process_group()
            """),
    )
    bad = (
        Bad('if os.environ["LOCAL_RANK"] == 0:\n    torch.save(model.state_dict(), "w.pt")'),
        Bad('rank = os.environ.get("RANK", 0)\nif rank == 0:\n    torch.save(model.state_dict(), "w.pt")'),
        Bad("torch.cuda.set_device(dist.get_rank())"),
        Bad("""
            import torch
            import torch.distributed as dist
            rank = dist.get_rank() if dist.is_initialized() else 0
            dist.init_process_group("gloo")
            dist.destroy_process_group()
            """),
        Bad("""
            import argparse
            import torch
            import torch.distributed as dist
            parser = argparse.ArgumentParser()
            parser.add_argument("--local_rank", type=int, default=-1)
            args = parser.parse_args()
            torch.cuda.set_device(args.local_rank)
            dist.init_process_group("nccl")
            dist.destroy_process_group()
            """),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting:
            return
        yield from self.texts(facts)
        yield from self.arguments(facts)
        yield from self.devices(facts)
        yield from self.nodes(facts)
        yield from self.early(facts)

    def early(self, facts: Facts) -> Iterator[Finding]:
        """`rank = dist.get_rank() if dist.is_initialized() else 0`, before the group is set up in the same place."""
        setups = [e for n, es in facts.identifiers.items() if n.endswith(".init_process_group") for e in es]
        first = min(setups, key=lambda e: e.seq, default=None)
        for e in facts.external("torch.distributed.is_initialized"):
            source = e.frame.source
            above = next((a for a in source.ancestors(e.node) if isinstance(a, cst.IfExp)), None)
            if first is None or above is None or e.seq > first.seq or not facts.editable(source):
                continue
            here = e.frame is first.frame or e.frame.func is None
            asks = any(isinstance(n, cst.Call) and _gives_rank(facts, n) for n in walk(above.body))
            if here and asks and e.node in set(walk(above.test)) and isinstance(source.parents.get(above), cst.Assign):
                code = source.code(above)
                message = f"`{code}` is the same on every rank: there is no process group yet"
                yield self.finding(source, above, message)

    # -- a text that is compared with a number --------------------------------------------------------------------

    def texts(self, facts: Facts) -> Iterator[Finding]:
        for source in facts.looked_at:
            yield from self.texts_of(facts, source)

    def texts_of(self, facts: Facts, source: Source) -> Iterator[Finding]:
        for node in source.of(cst.Comparison):
            if len(node.comparisons) != 1:
                continue
            right = node.comparisons[0]
            if not isinstance(right.operator, (cst.Equal, cst.NotEqual)) or not isinstance(
                right.comparator, cst.Integer
            ):
                continue
            variable = self.text_of(facts, node.left, _frame_of(facts, source, node))
            if variable:
                what = "never" if isinstance(right.operator, cst.Equal) else "always"
                yield self.finding(
                    source,
                    node,
                    f"`{source.code(node)}` is {what} true: {variable} in the environment is a string",
                    Surround(source, node.left, "int(", ")"),
                )

    def text_of(self, facts: Facts, node: cst.CSTNode, frame: Frame | None) -> str:
        """The variable of the environment that an expression is the text of."""
        if frame is None:
            return ""
        names = set()
        for n, _ in definitions(facts.flow).sources(node, frame):
            name = self.variable(facts, n)
            if not name:
                return ""
            names.add(name)
        return names.pop() if len(names) == 1 else ""

    def variable(self, facts: Facts, node: cst.CSTNode) -> str:
        values = facts.flow.values
        match node:
            case cst.Subscript(value=base, slice=[cst.SubscriptElement(slice=cst.Index(value=key))]):
                read = any(isinstance(o, Ext) and o.name == "os.environ" for o in values.get(base, ()))
            case cst.Call(func=func, args=[cst.Arg(value=key), *_]):
                read = any(isinstance(o, Ext) and o.name in _READS for o in values.get(func, ()))
            case _:
                return ""
        known = constants(values.get(key, ())) or []
        return str(known[0]) if read and len(known) == 1 and known[0] in _VARIABLES else ""

    # -- an argument that nobody gives ------------------------------------------------------------------------------

    def arguments(self, facts: Facts) -> Iterator[Finding]:
        if any("LOCAL_RANK" in s.text for s in facts.project.files()) or ranks(facts.flow).spawns:
            return
        if any(e.name == "local_rank" and not _is_itself(e) for e in facts.flow.log.of("set")):
            return
        if not any(map(_reads_it, facts.project.files())):
            return  # an argument that nothing asks for does no harm
        inits = [e for e in facts.flow.log.of("external") if e.name.endswith(".init_process_group")]
        if any("rank" in e.extra for e in inits):
            return  # started by hand, each rank with its own number
        if any(e.name.startswith("deepspeed.") for e in facts.flow.log.of("external")):
            return  # its launcher gives the argument
        for e in facts.flow.log.of("method"):
            if e.name != "add_argument" or not isinstance(e.node, cst.Call) or not facts.editable(e.frame.source):
                continue
            given = [
                str(c)
                for a in e.node.args
                if not a.keyword
                for c in constants(facts.flow.values.get(a.value, ())) or ()
            ]
            if "--local_rank" in given and "--local-rank" not in given and isinstance(e.obj, Thing):
                yield self.finding(
                    e.frame.source,
                    e.node,
                    "torchrun gives no `--local_rank`, and nothing here reads LOCAL_RANK: every rank has the default",
                    severity=Severity.WARNING,
                )

    # -- the job's rank as a GPU ------------------------------------------------------------------------------------

    def devices(self, facts: Facts) -> Iterator[Finding]:
        seen: set[int] = set()
        if self.on_one_node(facts):
            return
        for e in facts.flow.log.of("external"):
            if e.name not in ("torch.cuda.set_device", "torch.device") or not isinstance(e.node, cst.Call):
                continue
            given = e.node.args[-1].value if e.node.args else None
            if given is None or id(e.node) in seen or not facts.editable(e.frame.source):
                continue
            if self.is_global(facts, given, e.frame):
                seen.add(id(e.node))
                code = e.frame.source.code(e.node)
                yield self.finding(
                    e.frame.source,
                    e.node,
                    f"`{code}` takes the rank of the whole job for a GPU of this node",
                    severity=Severity.WARNING,
                )

    def on_one_node(self, facts: Facts) -> bool:
        """`mp.spawn(work)` and `init_process_group(rank=rank)` in it: the job has the ranks of this node, no others."""
        inits = [e for e in facts.flow.log.of("external") if e.name.endswith(".init_process_group")]
        given = [(a.value, e.frame) for e in inits if isinstance(e.node, cst.Call) for a in e.node.args if _names(a)]
        return bool(given) and len(given) == len(inits) and all(self.is_spawned(facts, n, f) for n, f in given)

    def is_spawned(self, facts: Facts, node: cst.CSTNode, frame: Frame, depth: int = 4) -> bool:
        """The number that mp.spawn gives, as it is: `node * gpus + rank` is one of several nodes."""
        if not isinstance(node, cst.Name) or depth == 0 or node.value in frame.assigned:
            return False
        if ranks(facts.flow).spawned_rank(node.value, frame):
            return True
        given = [(argument_of(e.call, frame, node.value), e.frame) for e in frame.entries]
        return bool(given) and all(a is not None and self.is_spawned(facts, a, f, depth - 1) for a, f in given)

    def is_global(self, facts: Facts, node: cst.CSTNode, frame: Frame) -> bool:
        """`dist.get_rank()`, `int(os.environ["RANK"])`, by whatever names."""
        found = list(definitions(facts.flow).sources(node, frame))
        return bool(found) and all(self.tells_rank(facts, n) for n, _ in found)

    def tells_rank(self, facts: Facts, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Call):
            names = [o.name for o in facts.flow.values.get(node.func, ()) if isinstance(o, Ext)]
            if "builtins.int" in names and node.args:
                return self.variable(facts, node.args[0].value) == "RANK"
            return any(n.startswith("torch.distributed.") and n.endswith(".get_rank") for n in names) and not node.args
        return False

    # -- one writer per node ----------------------------------------------------------------------------------------

    def nodes(self, facts: Facts) -> Iterator[Finding]:
        known = ranks(facts.flow, strict=True)
        seen: set[int] = set()
        for write in facts.cached("writes", find_writes):
            if write.call.name != "torch.save" or not facts.editable(write.call.source):
                continue
            for e in write.call.events:
                ways = [(e.node, e.frame), *((x.call, x.frame) for chain in e.frame.chains() for x in chain)]
                limits = [(by, frame) for node, frame in ways for by, passing in known.limits(node, frame) if passing]
                tests = [(by.test, frame) for by, frame in limits if isinstance(by, cst.If)]
                text = next((f.source.code(t) for t, f in tests if self.is_local(facts, t, f)), "")
                if text and id(e.node) not in seen:
                    seen.add(id(e.node))
                    message = f"`{text}` holds on every node: on several nodes, each writes this file"
                    yield self.finding(write.call.source, e.node, message, severity=Severity.INFO)

    def is_local(self, facts: Facts, test: cst.BaseExpression, frame: Frame) -> bool:
        """`local_rank == 0`"""
        match test:
            case cst.BooleanOperation(left=left, operator=cst.And(), right=right):
                return self.is_local(facts, left, frame) or self.is_local(facts, right, frame)
            case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(cst.Equal(), cst.Integer(value="0"))]):
                launched = (
                    isinstance(left, cst.Attribute)
                    and left.attr.value == "local_rank"
                    and ranks(facts.flow).launched(left)
                    and not definitions(facts.flow).of(left, frame)  # args.local_rank = dist.get_rank()
                )
                found = [n for n, _ in definitions(facts.flow).sources(left, frame)]
                return launched or (bool(found) and all(self.tells_local(facts, n) for n in found))
        return False

    def tells_local(self, facts: Facts, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Call) and node.args:
            names = [o.name for o in facts.flow.values.get(node.func, ()) if isinstance(o, Ext)]
            inner = node.args[0].value if "builtins.int" in names else node
            return self.variable(facts, inner) == "LOCAL_RANK"
        return False


def _frame_of(facts: Facts, source: Source, node: cst.CSTNode) -> Frame | None:
    owner = next((a for a in source.ancestors(node) if isinstance(a, cst.FunctionDef)), None)
    if owner is None:
        return facts.flow.modules.get(source)
    return next(iter(definitions(facts.flow).frames.get(id(owner), ())), None)


def _gives_rank(facts: Facts, call: cst.Call) -> bool:
    held = facts.flow.values.get(call.func, ())
    return any(isinstance(o, Ext) and o.name == "torch.distributed.get_rank" for o in held)


def _names(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value == "rank"


def _is_itself(e: Event) -> bool:
    """`comm.local_rank = args.local_rank`, `self.local_rank = 0`: no other place that the number comes from."""
    stmt = e.stmt
    value = stmt.value if isinstance(stmt, (cst.Assign, cst.AnnAssign)) else None
    return isinstance(value, cst.Integer) or (isinstance(value, cst.Attribute) and value.attr.value == "local_rank")


def _reads_it(source: Source) -> bool:
    """`args.local_rank` where it is asked for, or all arguments together: `vars(args)`, `train(**args)`."""
    if "local_rank" not in source.text:
        return False
    asked = (n for n in source.of(cst.Attribute) if n.attr.value == "local_rank")
    if any(not isinstance(source.parents.get(n), cst.AssignTarget) for n in asked):
        return True
    words = (n for n in source.of(cst.SimpleString) if n.evaluated_value == "local_rank")
    return any(True for _ in words) or "vars(" in source.text
