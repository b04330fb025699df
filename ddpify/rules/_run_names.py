"""Calls that make or read paths in, expressions out that name a path by time or chance on each rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.asked import asked_before
from ddpify.facts.caches import in_cache
from ddpify.facts.chance import by_chance, makes_chance, named_chance, ways_of_chance
from ddpify.facts.contents import origins
from ddpify.facts.definitions import Definition, Definitions, definitions
from ddpify.facts.frames import Event, Frame
from ddpify.facts.outside import Outside, holding
from ddpify.facts.ranks import guarded, ranks
from ddpify.facts.reads import asks_files, find_reads
from ddpify.facts.values import Ext, FromWorld, Thing
from ddpify.facts.workers import in_workers
from ddpify.facts.writes import find_writes
from ddpify.rules._guards import guards, joined_group
from ddpify.source import Source, walk

_DRAWS = ("random.", "numpy.random.", "torch.")
#: what gives all ranks the same: rank 0's value, or the greatest, the least, all of them
_AGREES = re.compile(r"torch\.distributed\.(\w+\.)*(broadcast|all_reduce|all_gather)\w*")
#: one of those that are there
_PICKS = re.compile(r"(numpy\.)?random\.(choices?|sample|randint|randrange|permutation|shuffle)")


@dataclass(frozen=True, eq=False)
class Named:
    """`node` is the expression to broadcast; `what` the call that makes it differ; `problem` why it cannot be."""

    node: cst.BaseExpression
    source: Source
    what: str
    problem: str = ""


def named_by_chance(facts: Facts, calls: list[Outside]) -> Iterator[Named]:
    """The expressions behind the paths that all ranks use, each once."""
    seen: set[int] = set()
    reads = {id(r.call.node) for r in find_reads(facts)}
    for event, path in _paths(facts, calls):
        held = facts.flow.values.get(path, ())
        if not by_chance(held) or _named_by_one(facts, path, event) or in_cache(event, facts):
            continue
        if not facts.converting and id(event.node) in reads and named_chance(held).startswith(_DRAWS):
            continue  # a file of the data, which each rank is meant to draw for itself
        if not facts.converting and named_chance(held).startswith("tempfile.") and not _left_by_one(facts):
            continue  # each rank has a folder of its own, and finds in it what it has put there
        found = _spot(facts, path, event)
        if found is not None and id(found.node) not in seen:
            seen.add(id(found.node))
            yield found
    for event in facts.flow.log.of("method"):
        default = event.extra.get("default", ())
        if (
            isinstance(event.node, cst.Call)
            and isinstance(event.obj, Thing)
            and event.obj.name == "parser"
            and event.name == "add_argument"
            and by_chance(default)
            and (facts.converting or not _read_by_one(facts, event.node))
            and (facts.converting or not named_chance(default).startswith(_DRAWS))
        ):
            yield Named(event.node, event.frame.source, named_chance(default), "it is the default of an argument")


def _left_by_one(facts: Facts) -> bool:
    """Whether rank 0 alone writes into a temporary folder: the others look for it in theirs."""
    for write in find_writes(facts):
        held = facts.flow.values.get(write.path, ()) if write.path is not None else ()
        temporary = by_chance(held) and named_chance(held).startswith("tempfile.")
        if temporary and any(guarded(e, facts.flow) for e in write.call.events):
            return True
    return False


def _paths(facts: Facts, calls: list[Outside]) -> Iterator[tuple[Event, cst.BaseExpression]]:
    """The paths of directories that are made, and of files that are read, on all ranks."""
    made = [(c, c.argument(0, "name", "path")) for c in calls if c.name in ("os.makedirs", "os.mkdir")]
    made += [(c, c.node.func.value) for c in calls if c.method == "mkdir" and isinstance(c.node.func, cst.Attribute)]
    made += [(r.call, r.path) for r in find_reads(facts)]
    for call, path in made:
        for event in call.events:
            if path is not None and _is_of_step(facts, event, path):
                continue
            done = facts.converting and any(id(a) in guards(facts).done for a in call.source.ancestors(call.node))
            if path is not None and not done and not guarded(event, facts.flow) and not in_workers(facts, event):
                yield event, path


def _is_of_step(facts: Facts, event: Event, path: cst.BaseExpression) -> bool:
    """`pickle.load(open(random.choice(files), "rb"))` in a training step: a batch for each rank."""
    steps = {id(n) for n in facts.roles.training_loops}
    inside = any(id(lp.node) in steps for loops in event.all_loops() for lp in loops)
    return inside and _PICKS.fullmatch(named_chance(facts.flow.values.get(path, ()))) is not None


def _named_by_one(facts: Facts, path: cst.BaseExpression, event: Event) -> bool:
    """`if rank == 0: self.folder = time.strftime(...)`: the other ranks have no such name."""
    if facts.converting:
        return False
    way = ways_of_chance(facts.flow, definitions(facts.flow), path, event.frame)
    return any(d is not None and d.event is not None and guarded(d.event, facts.flow) for _, _, d in way)


def _read_by_one(facts: Facts, call: cst.Call) -> bool:
    """Whether an argument of the command line is read on one rank only, in every place: `wandb.init(name=args.tag)`."""
    names = [str(a.value.evaluated_value) for a in call.args if isinstance(a.value, cst.SimpleString) and not a.keyword]
    given = next((a.value for a in call.args if a.keyword is not None and a.keyword.value == "dest"), None)
    names = [str(given.evaluated_value)] if isinstance(given, cst.SimpleString) else names
    name = names[-1].lstrip("-").replace("-", "_") if names else ""
    reads = [(s, n) for s in facts.project.files() for n in s.of(cst.Attribute) if n.attr.value == name]
    homes = [(facts.flow.modules.get(s), n) for s, n in reads]
    limited = ranks(facts.flow).limited
    return bool(name and homes) and all(h is not None and limited(n, h) for h, n in homes)


def _spot(facts: Facts, path: cst.BaseExpression, event: Event) -> Named | None:
    """From the path back to where chance comes in: the last assignment on the way that can be broadcast."""
    known = definitions(facts.flow)
    way = list(ways_of_chance(facts.flow, known, path, event.frame))
    if any(_is_broadcast(facts, known, node, frame) for node, frame, _ in way):
        return None
    if not facts.converting and not any(makes_chance(facts.flow, node) for node, _, _ in way):
        return None  # the way from the clock to the path is not seen, nor what makes the name alike on it
    what = named_chance(facts.flow.values.get(path, ()))
    best: Named | None = None
    origin = False  # it is where time or chance comes in
    for _, _, d in way:
        if d is None or d.event is None or not facts.editable(d.frame.source) or not _assigns(d):
            continue
        if not origin and (not facts.converting or (joined_group(facts, d.event) and _by_all(facts, d.frame, d.node))):
            best, origin = Named(d.node, d.frame.source, what), makes_chance(facts.flow, d.node)
    if best is not None:
        return best
    source, joined = event.frame.source, joined_group(facts, event)
    direct = facts.editable(source) and not any(d is not None for _, _, d in way) and joined
    alike = not facts.converting or _by_all(facts, event.frame, path)
    if direct and alike:
        return Named(path, source, what)
    why = "it is made before the process group is set up, or in another file"
    if joined and not alike:
        why = "ranks may answer the test around it differently, and not all would come to a broadcast"
    return Named(path, source, what, why if facts.converting else "")


def _by_all(facts: Facts, frame: Frame, node: cst.CSTNode) -> bool:
    """Whether no question for a file, which the ranks may answer differently, decides that an expression is reached."""
    stmt = holding(frame.source, node)
    around = frame.source.ancestors(stmt) if stmt is not None else ()
    tests = [a.test for a in around if isinstance(a, (cst.If, cst.While)) and asks_files(a.test, facts)]
    answered = facts.cached("answered by rank 0", _answered) if tests else set()
    return all(any(id(n) in answered for n in walk(test)) for test in tests)


def _answered(facts: Facts) -> set[int]:
    """The questions that rank 0 answers for all."""
    asked = (a for a in asked_before(facts) if facts.editable(a.source) and joined_group(facts, a.event))
    return {id(a.node) for a in asked}


def _assigns(d: Definition) -> bool:
    """`folder = ...`, the whole of the right side; a bare reading of the clock may be wanted for other things."""
    stmt = d.event.stmt if d.event is not None else None
    return isinstance(stmt, (cst.Assign, cst.AnnAssign)) and stmt.value is d.node and d.index is None


def _is_broadcast(facts: Facts, known: Definitions, node: cst.CSTNode, frame: Frame) -> bool:
    """A value that went through a broadcast: by a function of the project, or in a list that was handed to one."""
    for part in walk(node):
        if isinstance(part, cst.Call):
            for func in known.callees(part, frame):
                if any(_broadcasts(facts, n) for n in walk(func.node)):
                    return True
        elif isinstance(part, cst.Name):
            for e in facts.flow.log.of("external"):
                if e.name.startswith("torch.distributed.") and "broadcast" in e.name and isinstance(e.node, cst.Call):
                    given = [a.value.value for a in e.node.args if isinstance(a.value, cst.Name)]
                    if part.value in given and e.frame.scope.holder(part.value) is frame.scope.holder(part.value):
                        return True
    return False


def _broadcasts(facts: Facts, node: cst.CSTNode) -> bool:
    values = facts.flow.values.get(node.func, ()) if isinstance(node, cst.Call) else ()
    return any(isinstance(o, Ext) and _AGREES.fullmatch(o.name) for o in values)


#: what no two processes get alike
_OWN = re.compile(r"uuid\.|tempfile\.|os\.getpid")


def of_own_name(facts: Facts, call: Outside) -> bool:
    """`shutil.rmtree(f"build-{uuid.uuid4().hex}")`: no other rank has that directory."""
    path = call.node.args[0].value if call.node.args else None
    held = origins(facts.flow.values.get(path, ())) if path is not None else frozenset()
    return any(isinstance(o, FromWorld) and _OWN.match(o.what) is not None for o in held)
