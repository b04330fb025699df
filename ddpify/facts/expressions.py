"""Expressions to abstract values: names, attributes, arithmetic, containers."""

from __future__ import annotations

import ast
import builtins
import functools

import libcst as cst

from ddpify.facts.containers import Containers
from ddpify.facts.contents import all_parameters, constants, join, origins
from ddpify.facts.frames import Frame, Loop, Scope
from ddpify.facts.narrowing import is_bare, narrowed, unwrapped
from ddpify.facts.operators import Operators
from ddpify.facts.values import UNKNOWN, Const, Data, Dict, Ext, Func, Iteration, Obj, Parameters, Seq, Value
from ddpify.source import walk


@functools.lru_cache(maxsize=4096)  # the same loops are gone through again and again
def _literal(text: str) -> object:
    return ast.literal_eval(text)


#: who evaluates the most frequent kinds of node; asking each of them by `isinstance` is slow for these classes
_BY_KIND: dict[type[cst.CSTNode], str] = {
    cst.Name: "name",
    cst.Attribute: "attribute",
    cst.Call: "call",
    cst.Integer: "number_or_text",
    cst.Float: "number_or_text",
    cst.SimpleString: "number_or_text",
    cst.ConcatenatedString: "text",
    cst.FormattedString: "text",
    cst.Comparison: "comparison",
    cst.Subscript: "subscript",
    cst.ListComp: "comprehension",
    cst.SetComp: "comprehension",
    cst.GeneratorExp: "comprehension",
    cst.DictComp: "comprehension",
}


class Expressions(Operators, Containers):
    """Every kind of expression, its value kept by node."""

    def expr(self, node: cst.CSTNode, frame: Frame) -> Value:
        self.spend()
        value = self.evaluate(node, frame)
        self.note(node, value)
        return value

    def evaluate(self, node: cst.CSTNode, frame: Frame) -> Value:
        how = _BY_KIND.get(type(node))
        if how is not None:
            found: Value = getattr(self, how)(node, frame)
            return found
        match node:
            case cst.BinaryOperation(left=left, right=right, operator=operator):
                one, two = self.expr(left, frame), self.expr(right, frame)
                return self.arithmetic(type(operator).__name__, one, two, node, frame)
            case cst.BooleanOperation(left=left, right=right, operator=operator):
                return self.boolean(operator, self.expr(left, frame), self.expr(right, frame))
            case cst.UnaryOperation(expression=expression, operator=operator):
                return self.unary(operator, self.expr(expression, frame))
            case cst.IfExp(test=test, body=body, orelse=orelse):
                known = self.truth(self.expr(test, frame))
                if known is not None and isinstance(test, cst.Call):
                    return self.expr(body if known else orelse, frame)  # hasattr(model, "module"), of the wrapper
                one, two = self.sides(test, body, orelse, frame)
                if (
                    known is not None or self.planned
                ):  # the wrapper that the plan puts in is there whatever the test says
                    return one if known is True else two if known is False else join(one, two)
                return unwrapped(body, orelse, one, two)
            case cst.Tuple(elements=elements) | cst.List(elements=elements) | cst.Set(elements=elements):
                return self.sequence(node, elements, frame)
            case cst.Dict(elements=elements):
                return self.dictionary(node, elements, frame)
            case cst.NamedExpr(target=target, value=value):
                held = self.expr(value, frame)
                self.bind(target, held, frame)
                return held
            case cst.Lambda():
                return self.made(node, frame, Func(node, frame.source, frame.scope))
            case cst.Await(expression=inner):
                return self.expr(inner, frame)
            case cst.Yield(value=value) if value is not None:
                self.hand_on(node, value, frame)
        return UNKNOWN

    def number_or_text(self, node: cst.Integer | cst.Float | cst.SimpleString, _frame: Frame) -> Value:
        return (Const(_literal(node.value)),)

    def sides(
        self, test: cst.BaseExpression, body: cst.BaseExpression, orelse: cst.BaseExpression, frame: Frame
    ) -> tuple[Value, Value]:
        """`model.module if isinstance(model, DDP) else model`: each side with what the variable holds there."""
        known = narrowed(test, self.expr, frame)
        names = frame.scope.names
        held = {name: names[name] for name in known}
        names.update({name: yes for name, (yes, _) in known.items()})
        one = () if is_bare(test, self.expr, frame) else self.expr(body, frame)
        names.update({name: no for name, (_, no) in known.items()})
        two = self.expr(orelse, frame)
        names.update(held)
        return one, two

    def hand_on(self, node: cst.Yield, value: cst.BaseExpression | cst.From, frame: Frame) -> None:
        """`for x in loader: yield x`: who iterates over the result reads the loader."""
        held = self.expr(value.item if isinstance(value, cst.From) else value, frame)
        how = "iter" if isinstance(value, cst.From) else "yield"
        (made,) = self.made(node, frame, Iteration(self.site(node, frame), how=how, of=(held,)))
        loops = [loop for loop in self.loops if loop.frame.home is frame.home]
        self.handed.extend(loops if not self.quiet else [])
        if how == "yield" and loops and isinstance(made, Iteration) and not leaves_early(loops[0].node):
            # with a loop around it (`while True`) it is no single pass
            made.fields["over"] = loops[0].iterates
        self.returned[-1] = join(self.returned[-1], (made,))

    def text(self, node: cst.ConcatenatedString | cst.FormattedString, frame: Frame) -> Value:
        if isinstance(node, cst.ConcatenatedString):
            whole = node.evaluated_value
            self.expr(node.left, frame), self.expr(node.right, frame)
            return (Const(whole),) if isinstance(whole, str) else (Data("str"),)
        inner = [self.expr(p.expression, frame) for p in node.parts if isinstance(p, cst.FormattedStringExpression)]
        return (Data("str", "other", frozenset().union(*map(origins, inner))),)

    def name(self, node: cst.Name, frame: Frame) -> Value:
        name = node.value
        if name in ("True", "False", "None"):
            return (Const({"True": True, "False": False}.get(name)),)
        holder = frame.scope.holder(name)
        if holder is not None:
            return holder.names.get(name, UNKNOWN)
        stars = self.star_imports.get(frame.source, [])
        if len(stars) == 1 and not hasattr(builtins, name):  # `enumerate` is Python's own there, too
            return (Ext(f"{stars[0]}.{name}"),)
        return (Ext(f"builtins.{name}"),)

    def comprehension(self, node: cst.BaseComp, frame: Frame) -> Value:
        if isinstance(node, (cst.DictComp, cst.ListComp)) and node.for_in.inner_for_in is None and not node.for_in.ifs:
            elements = self.literals(self.expr(node.for_in.iter, frame))
            if elements is not None and len(elements) <= 6:
                return self.unrolled(node, elements, frame)
        inner = _inner_frame(node, frame)
        depth = 0
        part: cst.CompFor | None = node.for_in
        while part is not None:
            over = self.expr(part.iter, frame if depth == 0 else inner)
            self.event("loop", node, frame, value=over, name="start")
            self.loops.append(Loop(node, frame, over))
            depth += 1
            self.bind(part.target, join(*(self.element_of(o, node) for o in over)) if over else UNKNOWN, inner)
            for condition in part.ifs:
                self.expr(condition.test, inner)
            part = part.inner_for_in
        with self.may_happen():
            if isinstance(node, cst.DictComp):
                self.expr(node.key, inner)
                held = self.expr(node.value, inner)
                made: Obj = Dict(self.site(node, frame), joined=held, closed=False)
            else:
                assert isinstance(node, cst.BaseSimpleComp)
                held = self.expr(node.elt, inner)
                known = [o for o in held if isinstance(o, Parameters)]
                made = Seq(self.site(node, frame), joined=held)
                if known:
                    made = known[0] if len(held) == 1 else all_parameters(made.site, held)
        for _ in range(depth):
            self.loops.pop()
        (kept,) = self.made(node, frame, made)
        if isinstance(kept, (Seq, Dict)):
            kept.joined = join(kept.joined, held)
        return (kept,)

    def unrolled(self, node: cst.DictComp | cst.ListComp, elements: list[Value], frame: Frame) -> Value:
        """`{x: make(x) for x in ['train', 'val']}`: one object for each literal."""
        keys: list[Value] = []
        held: list[Value] = []
        for at, element in enumerate(elements):
            key = (id(node), id(frame), f"element {at}")
            if key not in self.inner_frames:
                self.inner_frames[key] = _inner_frame(node, frame)
            inner = self.inner_frames[key]
            self.loops.append(Loop(node, frame, element, element))
            self.bind(node.for_in.target, element, inner)
            if isinstance(node, cst.DictComp):
                keys.append(self.expr(node.key, inner))
                held.append(self.expr(node.value, inner))
            else:
                held.append(self.expr(node.elt, inner))
            self.loops.pop()
        if isinstance(node, cst.ListComp):
            return self.made(node, frame, Seq(self.site(node, frame), elements=held))
        made_dict = Dict(self.site(node, frame))
        for k, v in zip(keys, held, strict=True):
            known = constants(k)
            if known is not None and len(known) == 1:
                made_dict.items[known[0]] = v
            else:
                made_dict.joined, made_dict.closed = join(made_dict.joined, v), False
        return self.made(node, frame, made_dict)


def _inner_frame(node: cst.BaseComp, frame: Frame) -> Frame:
    """The scope of a comprehension; what happens in it happens in the function around it."""
    inner = Frame(frame.source, Scope(frame.source, frame.scope, node), frame.func, frame.grad)
    inner.entries, inner.events = frame.entries, frame.events
    inner.arguments, inner.home = frame.arguments, frame.home
    return inner


def leaves_early(loop: cst.CSTNode) -> bool:
    """Whether a loop of a generator may end before what it reads does."""
    return any(isinstance(n, (cst.Break, cst.Return)) for n in walk(loop))
