"""One text, two phases: what tells training from evaluation where the same statement does both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.frames import Event, Frame, Loop
from ddpify.facts.summaries import loader_argument
from ddpify.facts.told import Told, told_apart
from ddpify.facts.values import Const, Data, Instance, Loader, Obj, Value
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


def loops_around(event: Event) -> list[tuple[Loop, ...]]:
    return list(event.all_loops())


def phase_test(facts: Facts, training: Event, evaluating: Event) -> str | None:
    """The Python test that is true while training, None where nothing tells the two apart.

    `phase == 'train'` (a loop over literals) or `train` (a parameter).
    """
    if training.frame is evaluating.frame:
        for one in (lp for loops in loops_around(training) for lp in loops):
            for two in (lp for loops in loops_around(evaluating) for lp in loops):
                if (
                    one.node is two.node
                    and one.element is not None
                    and two.element is not None
                    and one.element != two.element
                ):
                    return _literal(facts, one, training.frame)
    return _parameter(training.frame, evaluating.frame)


def _literal(facts: Facts, loop: Loop, frame: Frame) -> str | None:
    target, known = getattr(loop.node, "target", None), constants(loop.element or ())
    if not isinstance(target, cst.Name) or not known or len(known) != 1 or loop.frame is not frame:
        return None
    quote = "'" if "'" in frame.source.code(getattr(loop.node, "iter", target)) else '"'
    value = known[0]
    return f"{target.value} == {quote}{value}{quote}" if isinstance(value, str) else f"{target.value} == {value!r}"


def _parameter(one: Frame, two: Frame) -> str | None:
    """A parameter that is True in the one call and False in the other, or a name that is set by one."""
    if one.node is not two.node or one.func is None:
        return None
    text: str | None = None
    parameters = _parameters(one)  # also those that a call leaves at their default: run(loader, train=True)
    for name in [*parameters, *_set_once(one)]:
        if name in one.assigned and name in parameters:
            continue
        a, b = constants(one.scope.names.get(name, ())), constants(two.scope.names.get(name, ()))
        if a is not None and b is not None and len(a) == len(b) == 1 and a != b:
            if {a[0], b[0]} == {True, False} and isinstance(a[0], bool):
                return name if a[0] else f"not {name}"
            if isinstance(a[0], str):
                text = text or f"{name} == {a[0]!r}"  # a description may be another one some day
    return text or _given(one, two) or _field(one, two)


def _field(one: Frame, two: Frame) -> str | None:
    """`self.stage == "train"`: an attribute with one literal in the object that trains, another in the other's."""
    assert one.func is not None
    mine, other = (getattr(f.func, "bound", None) for f in (one, two))
    if not isinstance(mine, Instance) or not isinstance(other, Instance) or mine is other:
        return None
    me = one.func.node.params.params[0].name.value
    for name, value in mine.fields.items():
        a, b = constants(value), constants(other.fields.get(name, ()))
        if a is None or b is None or len(a) != 1 or len(b) != 1 or a == b:
            continue
        if {a[0], b[0]} == {True, False} and isinstance(a[0], bool):
            return f"{me}.{name}" if a[0] else f"not {me}.{name}"
        if isinstance(a[0], str):
            return f"{me}.{name} == {a[0]!r}"
    return None


def _set_once(frame: Frame) -> list[str]:
    """`is_train = optimizer is not None`: the names that a function's first statements set, and nothing else does."""
    if frame.func is None or not isinstance(frame.func.node.body, cst.IndentedBlock):
        return []
    names = []
    for line in frame.func.node.body.body:
        if isinstance(line, cst.SimpleStatementLine):
            for small in line.body:
                match small:
                    case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))]):
                        names.append(name)
    bound = [
        n.target.value
        for n in walk(frame.func.node)
        if isinstance(n, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.For, cst.NamedExpr))
        and isinstance(n.target, cst.Name)
    ]
    return [name for name in names if bound.count(name) == 1]


def _given(one: Frame, two: Frame) -> str | None:
    """`optimizer is not None`: a parameter that the training call gives, and the other leaves at None."""
    for name in one.scope.names:
        if name in one.assigned or name not in _parameters(one):
            continue
        a, b = one.scope.names[name], two.scope.names.get(name, ())
        if constants(b) == [None] and a and not any(isinstance(o, (Const, Data)) for o in a):
            return f"{name} is not None"
    return None


def _parameters(frame: Frame) -> list[str]:
    if frame.func is None:
        return []
    params = frame.func.node.params
    return [p.name.value for p in (*params.posonly_params, *params.params, *params.kwonly_params)]


def training_key(facts: Facts, call: cst.Call | None) -> tuple[str, str] | None:
    """What is true where one call makes the training loader, and its opposite, which holds for the other loaders.

    `shuffle` (a parameter of a factory), `x == 'train'` (a comprehension), `dataset is train_set`; `distributed`, which
    is still to be made a parameter, where only the calls of the factory differ.
    """
    training = [x for x in facts.roles.training_loaders if x.call is call]
    others = [x for x in facts.roles.evaluation_loaders if x.call is call]
    if call is None or not training or not others:
        return None
    made = (*training, *others)
    source = training[0].site.source
    given = {loader_argument(at, arg): arg.value for at, arg in enumerate(call.args)}
    shuffle = given.get("shuffle")
    if shuffle is not None and _apart([x.arguments.get("shuffle", ()) for x in made], len(training)) == [True]:
        code = source.code(shuffle)
        return _test(f"({code})" if isinstance(shuffle, cst.IfExp) else code, [True], source.text)
    for name in _names_at(training[0], call):
        found = _apart([x.site.frame.scope.names.get(name, ()) for x in made], len(training))
        if found is not None and len(found) == 1 and (isinstance(found[0], (bool, str)) or found[0] is None):
            return _test(name, found, source.text)
    new = told_apart(facts, call)
    return (new.name, f"not {new.name}") if new is not None else _identity(training, others, given.get("dataset"))


def told(facts: Facts, call: cst.Call) -> Told | None:
    """The parameter that `training_key` goes by, where it is a new one."""
    found = told_apart(facts, call)
    return found if found is not None and training_key(facts, call) == (found.name, f"not {found.name}") else None


def _apart(values: list[Value], training: int) -> list[object] | None:
    """The literals of the first values, where all values are literals and the others are different ones."""
    known = [constants(v) for v in values]
    if any(k is None or len(k) != 1 for k in known):
        return None
    mine, theirs = ([k[0] for k in part if k] for part in (known[:training], known[training:]))
    return list(dict.fromkeys(mine)) if not set(mine) & set(theirs) else None


def _names_at(loader: Loader, call: cst.Call) -> list[str]:
    """The names that differ from call to call there: parameters that keep their value, targets of a comprehension."""
    frame = loader.site.frame
    comp = next((a for a in loader.site.source.ancestors(call) if isinstance(a, cst.BaseComp)), None)
    targets = [n for n in frame.scope.names if comp is frame.scope.node]
    return [*targets, *(n for n in _parameters(frame) if n not in frame.home.assigned)]


def _test(code: str, values: list[object], text: str) -> tuple[str, str]:
    value = values[0]
    if isinstance(value, bool):
        simple = code.isidentifier()
        yes, no = code, f"not {code}" if simple else f"not ({code})"
        return (yes, no) if value else (no if simple else f"(not ({code}))", yes)
    if value is None:
        return f"{code} is None", f"{code} is not None"
    literal = f"'{value}'" if isinstance(value, str) and f"'{value}'" in text else f'"{value}"'
    literal = literal if isinstance(value, str) else repr(value)
    return f"{code} == {literal}", f"{code} != {literal}"


def _identity(
    training: list[Loader], others: list[Loader], dataset: cst.BaseExpression | None
) -> tuple[str, str] | None:
    """`s is train_set`, where the training set has a name that the call sees, too."""
    mine: list[Obj] = [o for x in training for o in x.dataset]
    if not isinstance(dataset, cst.Name) or len(set(map(id, mine))) != 1:
        return None
    if any(o is mine[0] for x in others for o in x.dataset):
        return None
    scope = training[0].site.frame.scope.parent
    while scope is not None:
        for name, value in scope.names.items():
            if value == (mine[0],) and name != dataset.value:
                return f"{dataset.value} is {name}", f"{dataset.value} is not {name}"
        scope = scope.parent
    return None
