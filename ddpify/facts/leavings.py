"""An event in, what it leaves outside the process out: a file that it writes, a line that it logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddpify.facts.frames import Event
from ddpify.facts.talk import find_talk
from ddpify.facts.values import Dict, Module, Seq, Wrapped
from ddpify.facts.writes import find_writes

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: methods of open files and of what writes rows to them
_ON_FILES = frozenset({"write", "writelines", "writerow", "writerows", "writestr", "create_dataset"})


def left_by(facts: Facts, e: Event) -> str:
    """What is there once for each batch: `writes a file`, `logs`; "" where nothing is."""
    if e.kind == "method" and e.name in _ON_FILES and not isinstance(e.obj, (Module, Wrapped, Seq, Dict)):
        return "writes to a file"
    return facts.cached("left", _left).get(id(e), "")


def _left(facts: Facts) -> dict[int, str]:
    found = {id(e): "writes a file" for w in find_writes(facts) for e in w.call.events}
    found.update({id(e): "logs" for t in find_talk(facts) if t.kind in ("log", "tracker") for e in t.call.events})
    found.update({id(e): "prints" for t in find_talk(facts) if t.kind == "print" for e in t.call.events})
    return found
