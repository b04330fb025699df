"""Flow in, the place of the set-up out: the block in which the script works, and its first sensitive statement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.caches import caches
from ddpify.facts.chance import dated_paths
from ddpify.facts.devices import (
    DeviceChoice,
    device_choices,
    device_uses,
    only_availability,
    unread_devices,
    uses_cuda,
)
from ddpify.facts.drawing import unseeded_data
from ddpify.facts.externals import role_of
from ddpify.facts.fetches import is_fetch
from ddpify.facts.frames import Event, Frame
from ddpify.facts.placing import Step, blocks, common_block, import_on, in_block, is_guard, steps, ways
from ddpify.facts.redrawn import redrawn
from ddpify.facts.reimports import first_that_needs_group, started_workers
from ddpify.facts.roles import root
from ddpify.facts.searched import searched_paths
from ddpify.facts.several_gpus import several_gpus
from ddpify.facts.splits import unseeded_orders
from ddpify.facts.values import Data, Ext, Instance, Loader, Module, Thing, Value
from ddpify.source import Source, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True, eq=False)
class SetUp:
    """`first` is the first statement of `block` that must find the process group in place.

    `device` is the choice that the set-up takes the place of, None where the script has none there; `parsed` an
    argument that holds it (`args.gpu`), with the statement that parses (None: a parameter of the function itself).
    """

    source: Source
    frame: Frame
    block: cst.CSTNode
    first: cst.CSTNode
    device: DeviceChoice | None
    cuda: bool
    accelerator: bool
    parsed: tuple[str, cst.CSTNode | None, str] | None = None
    #: whether the script may work on the CPU although there are GPUs, decided where the set-up cannot know of it
    either: bool = False
    #: what needs the group at the top of a file that spawned workers import again
    again: Event | None = None
    #: how many GPUs a process drives
    gpus: int = 1


def find_setup(facts: Facts) -> SetUp | None:
    """Where the set-up belongs, or None where nothing was found that needs it."""
    choices = facts.cached("device_choices", device_choices)
    events = [e for e in facts.flow.log.events if e.seq < facts.flow.main_end and _sensitive(e)]
    if facts.converting:
        # made alike on all ranks, by rank 0
        events += [e for d in unseeded_data(facts) if not d.looped for e in d.events]
        events += unseeded_orders(facts)
        events += [e for r in redrawn(facts) for e in r.events]
    events += [c.event for c in caches(facts) if c.event.seq < facts.flow.main_end] if facts.converting else []
    choosing = {s for c in choices for s in c.stmts}
    bound = [e for e in facts.flow.log.of("bind", "set") if e.seq < facts.flow.main_end]
    events += [e for e in bound if e.stmt in choosing or _holds_model(facts, e.value)]
    events.sort(key=lambda e: e.seq)
    # what a comprehension does, the function around it does
    placed = [
        (e, [(frame.home, stmt, loops) for frame, stmt, loops in way])
        for e in events
        for way in (ways(e) if e.kind in ("loader", "forward") else [steps(e)])
    ]
    placed = [(e, s) for e, s in placed if s[0][0].source is facts.source]
    # what happens in a module when it is imported happens before the script's own statements, whatever they are
    placed = [(e, s) for e, s in placed if import_on(s) is None]
    guarded = [(e, s) for e, s in placed if any(is_guard(a) for a in facts.source.ancestors(s[0][1]))]
    # seeds and a device at the top of a module may stay there (DataLoader workers import it again); data and models
    # need the group
    held = {id(e) for e, _ in guarded}
    again: Event | None = None
    if guarded and all(id(e) in held for e, _ in placed if e.stmt not in choosing and role_of(e.name) != "seed"):
        placed = guarded
    elif guarded and (how := started_workers(facts)):
        again = first_that_needs_group(facts)
        placed = guarded if again is None else placed
        again = again if how == "spawn" else None
    if not placed:
        return None
    frame, stmts = _meeting(facts, placed)
    named = _named_above(facts, frame) if facts.converting and again is None else []
    if placed is guarded:  # DataLoader workers import the script again
        named = [(e, s) for e, s in named if any(is_guard(a) for a in facts.source.ancestors(s[0][1]))]
    if named:
        placed = sorted((*placed, *named), key=lambda one: one[0].seq)
        frame, stmts = _meeting(facts, placed)
    block = common_block(frame.source, stmts)
    if block is None:
        return None
    block = _outside_loops(frame.source, block)
    first = in_block(frame.source, stmts[0], block)
    device = _device_there(facts, choices, frame, block)
    if device is not None and not _in_time(facts, device, block, first, frame, events, choosing):
        device = None
    parsed = _parsed(facts, frame, bool(choices)) if device is None else None
    if parsed is None:
        first = _before_names(facts, device, block, first, frame)
    several = facts.cached("several_gpus", several_gpus) if facts.converting else None
    if several is not None:
        device = parsed = None  # each of them is this process's own, by its number
    either = several is not None or (device is None and parsed is None and _flagged(facts, choices))
    accelerator = any(c.accelerator for c in choices) or bool(facts.external("torch.accelerator.current_accelerator"))
    cuda = uses_cuda(facts)
    accelerator = accelerator and not either
    return SetUp(
        frame.source,
        frame,
        block,
        first,
        device,
        cuda,
        accelerator,
        parsed,
        either and cuda,
        again,
        several.count if several is not None else 1,
    )


_Placed = tuple[Event, list[Step]]


def _meeting(facts: Facts, placed: list[_Placed]) -> tuple[Frame, list[cst.CSTNode]]:
    """The innermost function that all of it happens in, and the statements of it that lead there."""
    depth = 0
    while True:
        here = {(id(s[depth][0]), id(s[depth][1])) for _, s in placed if len(s) > depth}
        if len(here) != 1 or any(len(s) == depth + 1 for _, s in placed) or placed[0][1][depth][2]:
            break
        following = placed[0][1][depth + 1][0]
        if (
            any(s[depth + 1][0] is not following for _, s in placed)  # `Trainer(args).fit()` runs two functions
            or following.func is None
            or not facts.editable(following.source)
            or not isinstance(following.node, cst.FunctionDef)
        ):
            break
        depth += 1
    return placed[0][1][depth][0], [s[depth][1] for _, s in placed]


def _path_names(facts: Facts) -> Iterator[Event]:
    """Where a path is named by the time or by chance, or by what is there."""
    yield from dated_paths(facts.flow)
    yield from (s.event for s in searched_paths(facts.flow))


def _named_above(facts: Facts, frame: Frame) -> list[_Placed]:
    """`run = time.strftime(...)` in the function that calls the one which trains: the group has to be there by then."""
    found: list[_Placed] = []
    for event in _path_names(facts):
        way = [(f.home, stmt, loops) for f, stmt, loops in steps(event)]
        inside = any(f is frame for f, _, _ in way) or any(
            isinstance(s, (cst.Import, cst.ImportFrom)) for _, s, _ in way
        )
        if event.seq < facts.flow.main_end and way[0][0].source is facts.source and not inside:
            found.append((event, way))
    return found


def _holds_model(facts: Facts, value: Value) -> bool:
    """`net = make("small")`, of a library that could not be read: a model by what becomes of it."""
    known = [o.module for o in value if isinstance(o, Thing) and o.module is not None]
    return any(root(m) in facts.roles.trained for m in known)


def _before_names(
    facts: Facts, choice: DeviceChoice | None, block: cst.CSTNode, first: cst.CSTNode, frame: Frame
) -> cst.CSTNode:
    """The first statement, or one before it that names a path by the time, or by what is there.

    Every rank has to have rank 0's name.
    """
    source = frame.source
    for event in _path_names(facts):
        stmt = next((s for f, s, _ in steps(event) if f is frame), None)
        if stmt is None or block not in blocks(source, stmt):
            continue
        place = in_block(source, stmt, block)
        start = source.span(place).start
        can_move = choice is None or (choice.form != "other" and names_known(facts, choice, frame, start))
        if start < source.span(first).start and can_move:
            first = place
    return first


def _in_time(
    facts: Facts,
    choice: DeviceChoice,
    block: cst.CSTNode,
    first: cst.CSTNode,
    frame: Frame,
    events: list[Event],
    choosing: set[cst.CSTNode],
) -> bool:
    """Whether the choice of device can stand before all that needs the group: it is first, moves up, or only seeds come
    before it."""
    source = frame.source
    owner = in_block(source, choice.owner, block)
    if owner is first or (choice.form != "other" and names_known(facts, choice, frame, source.span(first).start)):
        return True
    limit = source.span(choice.owner).start
    for e in events:
        if e.stmt in choosing or role_of(e.name) == "seed":
            continue
        stmt = next((s for f, s, _ in steps(e) if f is frame), None)
        if stmt is not None and source.span(stmt).start < limit:
            return False
    return True


def names_known(facts: Facts, choice: DeviceChoice, frame: Frame, limit: int) -> bool:
    """Whether the names that a choice's test needs are bound before an offset."""
    if choice.test is None or only_availability(facts, choice.test):
        return True
    needed = {n.value for n in walk(choice.test) if isinstance(n, cst.Name)}
    bound = [e for e in facts.flow.log.of("bind") if e.frame is frame and e.name in needed]
    return all(frame.source.span(e.stmt).start < limit for e in bound)


def _flagged(facts: Facts, choices: list[DeviceChoice]) -> bool:
    """`if args.cuda: model.cuda()`, or a device that comes from more than what is available: a flag decides."""
    if any(
        c.form in ("other", "ifexp", "if") and c.test is not None and not only_availability(facts, c.test)
        for c in choices
    ):
        return True
    if any(c.form == "other" for c in choices) or any(isinstance(o, Data) for _, v in device_uses(facts) for o in v):
        return True
    return by_flag(facts) or bool(unread_devices(facts))


def by_flag(facts: Facts) -> bool:
    """`if args.cuda: model.cuda()`: an option says whether the model goes to a GPU."""
    for e in facts.flow.log.of("method"):
        if e.name == "cuda" and isinstance(e.obj, (Module, Data, Thing)) and e.seq < facts.flow.main_end:
            for test in (u.test for u in e.under if isinstance(u, cst.If)):
                if not only_availability(facts, test) and any(isinstance(n, cst.Name) for n in walk(test)):
                    return True
    return False


def _outside_loops(source: Source, block: cst.CSTNode) -> cst.CSTNode:
    """A block that does not repeat: the body of a loop, `with` or `try` gives way to the block around it."""
    while True:
        parent = source.parents.get(block)
        if isinstance(parent, (cst.For, cst.While, cst.With, cst.Try, cst.If, cst.Else)) and not is_guard(parent):
            around = next((a for a in source.ancestors(parent) if isinstance(a, (cst.IndentedBlock, cst.Module))), None)
            if around is None:
                return block
            block = around
            continue
        return block


def _sensitive(event: Event) -> bool:
    """Seeds, data, models, CUDA: what has to come after the set-up."""
    if event.kind in ("loader", "forward") or is_fetch(event):
        return True
    if event.kind == "new":
        return isinstance(event.obj, (Module, Loader)) or (
            isinstance(event.obj, Instance) and event.obj.cls is not None and bool(event.obj.cls.member("__getitem__"))
        )
    if event.kind == "method":
        return event.name == "cuda" and isinstance(event.obj, (Module, Data, Thing))
    if event.kind == "external" and isinstance(event.obj, Ext):
        name = event.name
        if role_of(name) in ("seed", "dataset", "module", "random-split"):
            return True
        return name.startswith("torch.cuda.") and not name.endswith(("is_available", "device_count"))
    return False


def _device_there(facts: Facts, choices: list[DeviceChoice], frame: Frame, block: cst.CSTNode) -> DeviceChoice | None:
    """The choice of device that stands in the block of the set-up."""
    for choice in choices:
        if choice.frame is frame and choice.source is frame.source and choice.form != "cpu":
            owner = choice.owner
            line = frame.source.parents.get(owner)
            inside = block in (line, frame.source.parents.get(line) if line is not None else None)
            if inside:
                return choice
    return None


def _parsed(facts: Facts, frame: Frame, chosen: bool) -> tuple[str, cst.CSTNode | None, str] | None:
    """`args.gpu` or `args.device`: an argument that is used as a device, and where the arguments are parsed."""
    for event, value in device_uses(facts):
        if not isinstance(event.node, cst.Call) or not event.node.args or not any(isinstance(o, Data) for o in value):
            continue
        if event.name == "torch.cuda.device" and chosen:
            continue  # which GPU is the current one: the device is chosen elsewhere
        node = event.node.args[0].value
        how = "index" if event.name in ("cuda", "torch.cuda.set_device") else "device"
        if isinstance(node, cst.Name) and event.frame is frame and _is_option(frame, node.value):
            return node.value, None, how
        if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name):
            holders = [
                o for o in facts.flow.values.get(node.value, ()) if isinstance(o, Thing) and o.name == "namespace"
            ]
            parsed = [e for e in facts.flow.log.of("parsed") if e.obj in holders]
            # args = parser.parse_args(), args = Options().parse()
            kept = [e for e in facts.flow.log.of("bind") if e.frame is frame and any(o in holders for o in e.value)]
            if parsed and kept and isinstance(kept[0].stmt, cst.Assign):
                name = frame.source.code(kept[0].stmt.targets[0].target)
                return f"{name}.{node.attr.value}", kept[0].stmt, how
    return None


def _is_option(frame: Frame, name: str) -> bool:
    """Whether a name is a parameter that the command line gives: no call of the script's own does."""
    params = frame.func.node.params if frame.func is not None else None
    if params is None or name in frame.assigned or any(isinstance(e.call, cst.Call) for e in frame.entries):
        return False
    return any(p.name.value == name for p in (*params.params, *params.kwonly_params))


def moves_up(facts: Facts, setup: SetUp) -> bool:
    """Whether the device can be chosen before the first sensitive statement: the names in its test are known there."""
    choice = setup.device
    if choice is None or choice.form == "other":
        return False
    return names_known(facts, choice, setup.frame, setup.source.span(setup.first).start)


def reduce_options(facts: Facts) -> frozenset[str]:
    """The form of `all_reduce_sum` that the script's devices ask for."""
    setup = facts.cached("setup", find_setup)
    if not isinstance(setup, SetUp):
        return frozenset()
    chosen = (("cpu", not setup.cuda), ("accelerator", setup.accelerator), ("either", setup.either))
    return frozenset(name for name, on in chosen if on)
