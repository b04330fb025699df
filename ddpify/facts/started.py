"""Flow in, the calls that start processes of the training out: `mp.spawn(train)`, not a process that saves images."""

from __future__ import annotations

import re

import libcst as cst

from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event

_STARTS = re.compile(
    r"torch\.multiprocessing\.(spawn(\.spawn)?|start_processes)|(torch\.)?multiprocessing\.(\w+\.)*Process"
    # of a module of the user's that is not there
    r"|(?!torch|gevent|eventlet|asyncio|pexpect|os\.)(\w+\.)+spawn"
)
#: what makes a process one of the training's
_JOINS = re.compile(r"torch\.distributed\..+|torch\.nn\.parallel\..+|torch\.optim\..+")


def starts_ranks(flow: Flow) -> list[Event]:
    """What starts processes that train, or of which it is not known what they do."""
    starts = [e for e in flow.log.of("external") if _STARTS.fullmatch(e.name)]
    if not starts:
        return []
    trains = [e.frame for e in flow.log.of("backward", "external") if e.kind == "backward" or _JOINS.fullmatch(e.name)]
    ways = {id(entry.call) for frame in set(trains) for chain in frame.chains() for entry in chain}
    entered = {id(entry.call) for frame in flow.frames for entry in frame.entries}
    return [e for e in starts if not _helps(e, ways, entered)]


def _helps(start: Event, ways: set[int], entered: set[int]) -> bool:
    """`Process(target=write_images, args=(queue,))`: a function of the project from which no training is reached."""
    if not start.name.endswith("Process") or not isinstance(start.node, cst.Call):
        return False
    handed = {id(start.node), *(id(arg.value) for arg in start.node.args)}
    return bool(handed & entered) and not handed & ways
