"""A model in, a layer of it that some or all forwards leave out out: DDP has to look for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants, modules, with_parts
from ddpify.facts.dependencies import bindings, read_names
from ddpify.facts.externals import role_of
from ddpify.facts.heads import asks_for, given_none, idle_head
from ddpify.facts.switched import is_always_made, switched
from ddpify.facts.values import Class, Ext, Func, Module, Thing
from ddpify.source import Source, dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: methods that make a number of a tensor, by which a forward may decide
_NUMBERS = frozenset({"item", "any", "all", "sum", "mean", "max", "min", "norm"})
#: Ways to reach a layer without its name.
_BY_NAME = ("getattr(", "children()", "modules()", "_modules", "__dict__", "vars(")
_ENDS = (cst.Return, cst.Break, cst.Continue)


def left_out(facts: Facts, module: Module) -> str | None:
    """The attribute of a layer that forward leaves out by chance, by its data or by a switch, None where none is.

    Also one whose output a loss does not use.
    """
    for m in with_parts(module):
        if m.cls is not None:
            found = next((n for n in _left_out_by(facts, m, m.cls) if facts.converting or _is_there(m.cls, n)), None)
            if found is not None:
                return found
    head = idle_head(facts, module)
    return head if head is None or facts.converting or (module.cls and _is_there(module.cls, head)) else None


def _left_out_by(facts: Facts, module: Module, cls: Class) -> Iterator[str]:
    yield from _in_forward(facts, module, cls)
    yield from _never_read(facts, module, cls)
    yield from switched(module, cls) if facts.converting else ()


def _is_there(cls: Class, layer: str) -> bool:
    """Whether every model of a class has a layer: lint says nothing of `if many: self.speaker = Embedding(...)`."""
    return is_always_made(cls, layer.split(".")[1])


def _never_read(facts: Facts, module: Module, cls: Class) -> Iterator[str]:
    """A layer that `__init__` makes and nothing in the project reads: no forward can call it."""
    own = [c.source.code(c.node) for c in cls.lineage()]
    if any(word in text for word in _BY_NAME for text in own) or any(
        not b.startswith("torch.nn.") for b in cls.outside()
    ):
        return
    for name, value in module.fields.items():
        if not name.isidentifier() or not any(m.has_parameters and m.name != "" for m in modules(value)):
            continue
        read = (
            isinstance(n, cst.Attribute) and n.attr.value == name and not _is_target(s, n)
            for s in facts.project.files()
            if f".{name}" in s.text
            for n in s.nodes
        )
        if any(f"self.{name}" in text for text in own) and not any(read):
            yield f"self.{name}"


def _is_target(source: Source, node: cst.CSTNode) -> bool:
    """`self.first, self.second = ...`"""
    above = source.parents.get(node)
    while isinstance(above, (cst.Element, cst.Tuple, cst.List)):
        above = source.parents.get(above)
    return isinstance(above, cst.AssignTarget)


def _in_forward(facts: Facts, module: Module, cls: Class) -> Iterator[str]:
    for func in cls.member("forward"):
        if not isinstance(func, Func) or not func.node.params.params:
            continue
        me = func.node.params.params[0].name.value
        calls: dict[str, list[cst.Call]] = {}
        for node in walk(func.node.body):
            if isinstance(node, cst.Call) and dotted(node.func).startswith(f"{me}."):
                name = dotted(node.func).split(".")[1]
                if any(m.has_parameters and has_weights(m) for m in modules(module.fields.get(name, ()))):
                    calls.setdefault(name, []).append(node)
        empty = given_none(facts, module, func)
        open_tests = [n for n in walk(func.node.body) if _is_open(facts, func, n) or _is_given_or_not(empty, n)]
        for name, nodes in calls.items():
            tests = [t for t in open_tests if not _on_both_sides(func.source, nodes, t)]
            if (
                all(any(_depends(func.source, call, test) for test in tests) for call in nodes)
                or all(_is_never_given(empty, func.source, call) for call in nodes)
                or (all(is_off(module, func.source, call, me) for call in nodes) and is_always_made(cls, name))
            ):
                yield f"{me}.{name}"


def has_weights(module: Module, depth: int = 4) -> bool:
    """Whether a layer of the project has parameters for certain: one with a buffer alone may be left out."""
    if module.cls is None or depth == 0 or any(b != "torch.nn.Module" for b in module.cls.outside()):
        return True
    parts = [o for value in (*module.fields.values(), *module.parts) for o in value]
    held = [m for o in parts for m in modules((o,))]
    return any(has_weights(m, depth - 1) for m in held if m.has_parameters) or any(isinstance(o, Thing) for o in parts)


def _is_given_or_not(empty: dict[str, set[bool]], node: cst.CSTNode) -> bool:
    """`if y is not None: h = h + self.label(y)`, of a `y` that training gives at times"""
    asked = asks_for(node.test) if isinstance(node, cst.If) else None
    return asked is not None and len(empty.get(asked[0], ())) > 1


def _is_never_given(empty: dict[str, set[bool]], source: Source, call: cst.Call) -> bool:
    """The same, of a `y` that training never gives."""
    inner: cst.CSTNode = call
    for above in source.ancestors(call):
        if isinstance(above, cst.If) and inner in (above.body, above.orelse):
            asked = asks_for(above.test)
            if asked is not None and empty.get(asked[0]) == {True} and (inner is above.body) is not asked[1]:
                return True
        inner = above
    return False


def _on_both_sides(source: Source, calls: list[cst.Call], test: cst.CSTNode) -> bool:
    """Whether a layer is called however a test decides."""
    if not isinstance(test, cst.If) or test.orelse is None:
        return False
    return all(any(part in source.ancestors(c) for c in calls) for part in (test.body, test.orelse))


def is_off(module: Module, source: Source, call: cst.Call, me: str) -> bool:
    """`if self.use_norm: x = self.norm(x)` of a model that was made with `use_norm=False`"""
    inner: cst.CSTNode = call
    for above in source.ancestors(call):
        if isinstance(above, cst.If) and inner in (above.body, above.orelse):
            test, wanted = above.test, inner is above.body
            if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
                test, wanted = test.expression, not wanted
            base, _, switch = dotted(test).partition(".")
            known = constants(module.fields.get(switch, ())) if base == me and switch else None
            if known and all(bool(v) is not wanted for v in known):
                return True
        inner = above
    return False


def _is_open(facts: Facts, func: Func, node: cst.CSTNode) -> bool:
    """`if torch.rand(1) < 0.5`, `for _ in range(random.randint(0, 3))`, `if x.mean() > 0`"""
    if isinstance(node, cst.If):
        test: cst.BaseExpression = node.test
    elif isinstance(node, cst.For):
        test = node.iter
    else:
        return False
    parts, names = [test], set(read_names(test))
    for binding in bindings(func.node.body):
        value = getattr(binding.node, "value", None)
        if binding.targets & names and isinstance(value, cst.BaseExpression):
            parts.append(value)
    for part in parts:
        for inner in (part, *walk(part)):
            if not isinstance(inner, cst.Call):
                continue
            called = facts.flow.values.get(inner.func, ())
            if any(isinstance(o, Ext) and role_of(o.name) == "random" for o in called):
                return True
            method = inner.func.attr.value if isinstance(inner.func, cst.Attribute) else ""
            if part is test and isinstance(node, cst.If) and method in _NUMBERS:
                return True
    return False


def _depends(source: Source, call: cst.Call, test: cst.CSTNode) -> bool:
    """Whether a call runs only as a test decides: it stands under it, or behind a way out that does."""
    if any(a is test for a in source.ancestors(call)):
        return True
    body = test.body if isinstance(test, cst.If) else None
    leaves = body is not None and any(isinstance(n, _ENDS) for n in walk(body))
    return leaves and source.span(call).start > source.span(test).end
