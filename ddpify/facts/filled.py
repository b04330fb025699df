"""An event in, an answer out: does it stand in a loop over what one rank alone has filled?"""

from __future__ import annotations

import libcst as cst

from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event, Frame
from ddpify.facts.ranks import guarded
from ddpify.facts.values import Dict, Obj, Seq

_FILLS = frozenset({"append", "extend", "insert", "update", "setdefault", "add", "appendleft"})
_VIEWS = frozenset({"items", "keys", "values"})
_OVER = frozenset({"sorted", "enumerate", "list", "reversed", "tqdm"})


def over_nothing(event: Event, flow: Flow) -> bool:
    """`for key in results: print(key)`, where `if rank == 0: results[key] = value`: the others have none."""
    ways = [[(e.frame, e.call) for e in chain] for chain in event.frame.chains()]
    own = _loops(event.node, event.frame, flow)
    return own or (bool(ways) and all(any(_loops(n, f, flow) for f, n in way) for way in ways))


def _loops(node: cst.CSTNode, frame: Frame, flow: Flow) -> bool:
    below = node
    for above in frame.source.ancestors(node):
        if isinstance(above, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            return False
        if isinstance(above, cst.For) and below is above.body:
            held = flow.values.get(_filled(above.iter), ())
            if held and all(_of_one(o, flow) for o in held):
                return True
        below = above
    return False


def _filled(node: cst.BaseExpression) -> cst.BaseExpression:
    """`results` of `sorted(results.items())`."""
    match node:
        case cst.Call(func=cst.Attribute(value=inner, attr=cst.Name(value=name)), args=[]) if name in _VIEWS:
            return _filled(inner)
        case cst.Call(func=cst.Name(value=name), args=[first, *_]) if name in _OVER:
            return _filled(first.value)
    return node


def _of_one(obj: Obj, flow: Flow) -> bool:
    """Whether a dict or a list is empty where it is made, and all that is put into it is one rank's."""
    if not isinstance(obj, (Dict, Seq)) or not _begins_empty(obj.site.node):
        return False
    put = [e for e in flow.log.of("store", "method") if e.obj is obj and (e.kind == "store" or e.name in _FILLS)]
    return bool(put) and all(guarded(e, flow) for e in put)


def _begins_empty(node: cst.CSTNode) -> bool:
    match node:
        case cst.Dict(elements=[]) | cst.List(elements=[]):
            return True
        case cst.Call(func=cst.Name(value="dict" | "list" | "OrderedDict"), args=[]):
            return True
        case cst.Call(func=cst.Name(value="defaultdict") | cst.Attribute(attr=cst.Name(value="defaultdict"))):
            return True
    return False
