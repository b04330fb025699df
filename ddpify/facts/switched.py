"""A model in, a parameter out that its forward uses by a switch alone which the command line may leave off."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.facts.contents import constants, modules
from ddpify.facts.values import Class, Func, Module, Thing
from ddpify.source import Source, dotted, walk

_CHOICES = (cst.If, cst.IfExp, cst.BooleanOperation)
#: A switch of the model (`self.learn_eps`), and whether it is on there.
Switch = tuple[str, bool]


def switched(module: Module, cls: Class) -> Iterator[str]:
    """`self.eps` that is made in any case and read under `if self.learn_eps:` alone."""
    methods = {n.name.value: n for n in walk(cls.node) if isinstance(n, cst.FunctionDef)}
    if "forward" not in methods:
        return
    known = _Switches(module, cls, methods)
    for name, value in module.fields.items():
        has_weights = any(m.has_parameters for m in modules(value)) or any(
            isinstance(o, Thing) and o.name == "parameter" for o in value
        )
        if has_weights and is_always_made(cls, name):
            reads = [known.around(node) for node in known.reads(name)]
            if reads and frozenset.intersection(*reads):
                yield f"self.{name}"


class _Switches:
    def __init__(self, module: Module, cls: Class, methods: dict[str, cst.FunctionDef]) -> None:
        self.module, self.source, self.methods = module, cls.source, methods
        self._busy: set[str] = set()

    def reads(self, name: str) -> list[cst.Attribute]:
        """Where the methods read an attribute."""
        found = [n for m in self.methods.values() if m.name.value != "__init__" for n in walk(m.body)]
        return [n for n in found if isinstance(n, cst.Attribute) and dotted(n) == f"self.{name}"]

    def around(self, node: cst.CSTNode) -> frozenset[Switch]:
        """What is on, or off, wherever a node runs: by the tests around it, and around the calls of its method."""
        found: set[Switch] = set()
        inner: cst.CSTNode = node
        for above in self.source.ancestors(node):
            if isinstance(above, (cst.If, cst.IfExp)) and inner is above.body:
                found |= set(self.asked(above.test))
            elif isinstance(above, (cst.If, cst.IfExp)) and inner is above.orelse:
                found |= {(name, not on) for name, on in self.asked(above.test, whole=True)}
            elif isinstance(above, cst.FunctionDef):
                return frozenset(found | self.calls(above.name.value))
            inner = above
        return frozenset(found)

    def calls(self, name: str) -> frozenset[Switch]:
        if name == "forward" or name in self._busy or self.methods.get(name) is None:
            return frozenset()
        self._busy.add(name)
        ways = [self.around(node) for node in self.reads(name)]
        self._busy.discard(name)
        return frozenset.intersection(*ways) if ways else frozenset()

    def asked(self, test: cst.BaseExpression, whole: bool = False) -> Iterator[Switch]:
        """`self.learn_eps`, `not self.plain`, one of several that `and` joins."""
        if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And) and not whole:
            yield from self.asked(test.left)
            yield from self.asked(test.right)
            return
        on = True
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            test, on = test.expression, False
        name = dotted(test).removeprefix("self.")
        if dotted(test) == f"self.{name}" and name.isidentifier() and self.may_be(name, not on):
            yield name, on

    def may_be(self, name: str, on: bool) -> bool:
        """Whether a run may have a switch on, or off: nothing in the script says what it is."""
        value = self.module.fields.get(name, ())
        said = constants(value)
        return bool(value) and not modules(value) and (said is None or any(bool(v) is on for v in said))


def is_always_made(cls: Class, name: str) -> bool:
    """Whether `__init__` makes a layer under no test."""
    for func in cls.member("__init__"):
        if isinstance(func, Func) and func.node.params.params:
            full = f"{func.node.params.params[0].name.value}.{name}"
            targets = [n for n in walk(func.node.body) if isinstance(n, cst.AssignTarget)]
            makes = [n for n in targets if full in map(dotted, walk(n.target))]
            if makes:  # self.scale = None; if scaled: self.scale = nn.Parameter(torch.zeros(1))
                return not any(isinstance(a, _CHOICES) for n in makes for a in _made_by(func.source, n))
    return False


def _made_by(source: Source, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """What stands around the target of an assignment in its own function, and what it is given."""
    stmt = source.parents.get(node)
    if isinstance(stmt, cst.Assign):
        yield stmt.value
    for above in source.ancestors(node):
        if isinstance(above, cst.FunctionDef):
            return
        yield above
