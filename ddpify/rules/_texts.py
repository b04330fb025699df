"""An expression in, an answer out: is it a text, or does it hold texts? Their hash is another one in every process.

words = open("words.txt").read().split()
kinds = list(set(words))  # in another order in every process
ages = list(set(int(w) for w in words))  # numbers have the same hash everywhere
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.values import Const, Data, Dict, Ext, Func, Iteration, Seq, Value
from ddpify.source import Source, dotted, walk

#: methods and functions that give a text, or several, whatever they are given
_GIVE = (
    frozenset({"strip", "lstrip", "rstrip", "lower", "upper", "title", "casefold", "capitalize", "replace"})
    | {"format", "join", "read", "readline", "readlines", "splitlines", "read_text", "decode"}
    | {"listdir", "glob", "iglob", "rglob", "iterdir", "basename", "dirname", "as_posix"}
    | {"hexdigest", "getenv", "open"}
)
#: functions that hand on what is in their argument
_PASS = frozenset({"list", "tuple", "set", "frozenset", "sorted", "reversed", "iter", "next", "enumerate"}) | {
    "zip",
    "filter",
    "chain",
    "reader",
}
_ADD = frozenset({"add", "update", "append", "extend"})
_NUMBERS = frozenset({"int", "float", "len", "bool", "ord"})


def may_hold_texts(facts: Facts, source: Source, node: cst.CSTNode) -> bool:
    """Whether texts are in it as far as the script says; numbers, and what nothing is known of, are none."""
    return _Texts(facts).holds(source, node, 6)


class _Texts:
    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.seen: set[int] = set()

    def holds(self, source: Source, node: cst.CSTNode, depth: int) -> bool:
        if not depth or id(node) in self.seen:
            return False
        self.seen.add(id(node))
        return _is_text(self.facts.flow.values.get(node, ())) or self.written(source, node, depth - 1)

    def written(self, source: Source, node: cst.CSTNode, depth: int) -> bool:
        """By how it is written."""
        match node:
            case cst.BaseString():
                return True
            case cst.List() | cst.Tuple() | cst.Set():
                return any(self.holds(source, e.value, depth) for e in node.elements)
            case cst.ListComp() | cst.SetComp() | cst.GeneratorExp():
                return self.holds(source, node.elt, depth)
            case cst.DictComp():
                return self.holds(source, node.key, depth)
            case cst.Dict():
                return any(self.holds(source, e.key, depth) for e in node.elements if isinstance(e, cst.DictElement))
            case cst.BinaryOperation(left=left, operator=operator, right=right):
                if isinstance(operator, (cst.Subtract, cst.BitAnd)):
                    return self.holds(source, left, depth)
                return self.holds(source, left, depth) or self.holds(source, right, depth)
            case cst.IfExp(body=one, orelse=other):
                return self.holds(source, one, depth) or self.holds(source, other, depth)
            case cst.Subscript(value=held):
                return self.holds(source, held, depth)
            case cst.Call():
                return self.called(source, node, depth)
            case cst.Name() | cst.Attribute():
                return any(self.holds(of, given, depth) for of, given in self.given(source, node))
        return False

    def called(self, source: Source, call: cst.Call, depth: int) -> bool:
        name = dotted(call.func).rpartition(".")[2] or (
            call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        )
        first = call.args[0].value if call.args else None
        if name == "map" and first is not None:
            return dotted(first) not in _NUMBERS and any(self.holds(source, a.value, depth) for a in call.args[1:])
        if name == "str" or name in _GIVE:
            return True
        if name in ("split", "rsplit"):  # tensor.split(4)
            return first is None or self.holds(source, first, depth)
        if name in _PASS:
            return any(self.holds(source, a.value, depth) for a in call.args)
        if name in ("keys", "items", "copy", "union") and isinstance(call.func, cst.Attribute):
            return self.holds(source, call.func.value, depth)
        functions = (o for o in self.facts.flow.values.get(call.func, ()) if isinstance(o, Func))
        returns = (
            (f.source, n) for f in functions for n in walk(f.node.body) if isinstance(n, (cst.Return, cst.Yield))
        )
        return any(self.holds(of, n.value, depth) for of, n in returns if isinstance(n.value, cst.BaseExpression))

    def given(self, source: Source, node: cst.Name | cst.Attribute) -> Iterator[tuple[Source, cst.CSTNode]]:
        """What a variable or an attribute gets: by `=`, as the variable of a loop, by `add`, as an argument."""
        name, inside = source.code(node), _home(source, node)
        for n in walk(inside):
            match n:
                case cst.Assign(targets=targets, value=value) if any(_binds(source, t.target, name) for t in targets):
                    yield source, value
                case cst.AnnAssign(target=target, value=cst.BaseExpression() as value) if source.code(target) == name:
                    yield source, value
                case cst.AugAssign(target=target, value=value) if source.code(target) == name:
                    yield source, value
                case cst.For(target=target, iter=over) | cst.CompFor(target=target, iter=over) if _binds(
                    source, target, name
                ):
                    yield source, over
                case cst.With(items=items):
                    yield from ((source, i.item) for i in items if i.asname and source.code(i.asname.name) == name)
                case cst.Call(func=cst.Attribute(value=held, attr=cst.Name(value=how)), args=[cst.Arg(value=value)]):
                    if how in _ADD and source.code(held) == name:
                        yield source, value
        if isinstance(node, cst.Name) and isinstance(inside, cst.FunctionDef):
            for frame in self.facts.flow.frames:
                argument = frame.arguments.get(name) if frame.node is inside else None
                if argument is not None:
                    yield from ((entry.frame.source, argument) for entry in frame.entries)


def _home(source: Source, node: cst.CSTNode) -> cst.CSTNode:
    """Where a name is looked for: its function, for an attribute its class, else the file."""
    kinds = (cst.ClassDef,) if isinstance(node, cst.Attribute) else (cst.FunctionDef,)
    home = next((a for a in source.ancestors(node) if isinstance(a, kinds)), None)
    if home is None or isinstance(home, cst.ClassDef) or not isinstance(node, cst.Name):
        return home or source.module
    own = any(isinstance(n, cst.Name) and n.value == node.value and n is not node for n in walk(home))
    return home if own else source.module


def _binds(source: Source, target: cst.CSTNode, name: str) -> bool:
    if isinstance(target, (cst.Tuple, cst.List)):
        return any(_binds(source, e.value, name) for e in target.elements)
    return source.code(target) == name


def _is_text(value: Value, depth: int = 3) -> bool:
    for obj in value:
        match obj:
            case Const(value=str()) | Data(form="str"):
                return True
            case Seq(elements=elements, joined=joined) if depth:
                if _is_text(joined, depth - 1) or any(_is_text(e, depth - 1) for e in elements or ()):
                    return True
            case Iteration(of=of) if depth:
                if any(_is_text(o, depth - 1) for o in of):
                    return True
            case Dict(items=items) if any(isinstance(k, str) for k in items):
                return True
            case Ext(name="os.environ"):
                return True
    return False
