"""Flow in, the calls out by which libraries draw a split, a fold or an order of the data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants, origins
from ddpify.facts.counting import counts
from ddpify.facts.drawing import is_seeded, remade_behind
from ddpify.facts.frames import Event
from ddpify.facts.handmade import drawn_by_steps
from ddpify.facts.outside import made_by
from ddpify.facts.values import Data, FromWorld
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_TORCH = re.compile(r"torch\.utils\.data(\.dataset)?\.random_split")
_ALWAYS = re.compile(
    r"sklearn\.model_selection\.((Stratified|Group)?ShuffleSplit|Repeated(Stratified)?KFold)"
    r"|sklearn\.utils\.(\w+\.)?(shuffle|resample)"
)
_UNLESS_OFF = re.compile(r"sklearn\.model_selection\.train_test_split")
_IF_ASKED = re.compile(r"sklearn\.model_selection\.(Stratified|Group|StratifiedGroup)?KFold")
#: each turn of a loop over their splits draws again, from the generator as it is then
_IN_TURNS = re.compile(r"sklearn\.model_selection\.((Stratified|Group)?ShuffleSplit|Repeated(Stratified)?KFold)")
_GENERATORS = re.compile(r"numpy\.random\.(default_rng|RandomState)|random\.Random")
_DRAWS = ("numpy.random.shuffle", "numpy.random.permutation", "random.shuffle", "random.sample", "torch.randperm")
_PER_SAMPLE = frozenset({"__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "forward"})
_ORDERS = frozenset({"permutation", "permuted", "shuffle", "choice", "sample"})


@dataclass(frozen=True, eq=False)
class Split:
    """`random_split(data, [80, 20])`, `KFold(5, shuffle=True)`, `df.sample(frac=0.8)`: nothing given fixes it."""

    event: Event
    node: cst.Call
    #: the keyword that fixes it: `generator` or `random_state`
    keyword: str

    def variable(self, facts: Facts) -> str:
        """`for run in range(3):` around it: the name that counts the turns."""
        loops = [lp.node for lp in self.event.loops if isinstance(lp.node, cst.For)]
        if not loops or not counts(facts, loops[-1]):
            return ""
        target: cst.BaseExpression = loops[-1].target
        if isinstance(target, cst.Tuple) and target.elements:
            target = target.elements[0].value
        return target.value if isinstance(target, cst.Name) and target.value != "_" else ""


def unseeded_splits(facts: Facts) -> Iterator[Split]:
    """The draws of libraries that no seed comes before."""
    for e in facts.flow.log.of("external", "method"):
        if not isinstance(e.node, cst.Call) or {"generator", "random_state"} & set(e.extra):
            continue
        if e.kind == "method":
            if _is_of_pandas(e) and not is_seeded(facts, "numpy", e) and not _trains_around(facts, e):
                yield Split(e, e.node, "random_state")
        elif _TORCH.fullmatch(e.name):
            by_place = [a for a in e.node.args if a.keyword is None and not a.star]
            if len(by_place) < 3 and not is_seeded(facts, "torch", e):  # the third is the generator
                yield Split(e, e.node, "generator")
        elif _shuffles(e) and _may_differ(facts, e):
            yield Split(e, e.node, "random_state")


def _may_differ(facts: Facts, event: Event) -> bool:
    if "utils" in event.name and _trains_around(facts, event):
        return False  # drawn anew in each epoch
    later = _IN_TURNS.fullmatch(event.name) is not None and _trained_in(facts, event)
    return later or not is_seeded(facts, "numpy", event)


def _shuffles(event: Event) -> bool:
    asked = constants(event.extra.get("shuffle", ()))
    if _IF_ASKED.fullmatch(event.name):
        return "shuffle" in event.extra and asked != [False]
    return bool(_ALWAYS.fullmatch(event.name) or (_UNLESS_OFF.fullmatch(event.name) and asked != [False]))


def _is_of_pandas(event: Event) -> bool:
    """`df.sample(frac=1)`: a fraction is asked of data frames only; a number (`n=100`) of what pandas gave."""
    if event.name != "sample" or event.loops:
        return False
    return "frac" in event.extra or ("n" in event.extra and made_by(event.obj).startswith("pandas."))


def _trains_around(facts: Facts, event: Event) -> bool:
    """Whether the loop over the epochs draws it anew each time."""
    trains = {id(n) for n in facts.roles.training_loops}
    return any(id(lp.node) in trains for loops in event.all_loops() for lp in loops)


def _trained_in(facts: Facts, event: Event) -> bool:
    """`for train, test in ShuffleSplit(5).split(x):` around a training: the later turns draw what is left behind it."""
    trains = {id(n) for n in facts.roles.training_loops}
    return any(
        isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute) and n.func.attr.value == "split"
        for b in facts.roles.backwards
        for loops in b.all_loops()
        for lp in loops
        if id(lp.node) in trains and isinstance(lp.node, cst.For)
        for n in walk(lp.node.iter)
    )


def unseeded_orders(facts: Facts) -> list[Event]:
    """`np.random.shuffle(indices)`, `torch.randperm(n)`, `rng.permutation(n)` before training, with no seed before."""
    return facts.cached("unseeded_orders", lambda f: list(_orders(f)))


def _orders(facts: Facts) -> Iterator[Event]:
    first = min((e.seq for e in facts.roles.backwards), default=0)
    done: set[int] = set()
    steps = drawn_by_steps(facts) if facts.converting else set()
    for e in (*facts.external(*_DRAWS), *_own_draws(facts)):
        late = e.seq > first or (e.loops and not remade_behind(facts, e))
        late = late or any(id(lp.node) in steps for loops in e.all_loops() for lp in loops)
        seeded = e.kind == "external" and is_seeded(facts, e.name.split(".")[0], e)
        if late or seeded or _for_samples(e) or "generator" in e.extra or id(e.node) in done:
            continue
        if isinstance(e.node, cst.Call) and facts.editable(e.frame.source):
            done.add(id(e.node))
            yield e


def _for_samples(event: Event) -> bool:
    """`__getitem__` and its kin draw anew for each sample; a method that nothing calls may be for samples, too."""
    if not any(isinstance(a, cst.ClassDef) for a in event.frame.source.ancestors(event.node)):
        return False
    frames = [event.frame, *(e.frame for chain in event.frame.chains() for e in chain)]
    names = {f.node.name.value for f in frames if isinstance(f.node, cst.FunctionDef)}
    return not event.frame.entries or bool(names & _PER_SAMPLE)


def _own_draws(facts: Facts) -> Iterator[Event]:
    """`rng = np.random.default_rng()` and `rng.permutation(n)`: a generator without a seed, which no seed reaches."""
    bare = {
        e.name
        for e in facts.flow.log.of("external")
        if _GENERATORS.fullmatch(e.name) and isinstance(e.node, cst.Call) and not e.node.args
    }
    for e in facts.flow.log.of("method") if bare else ():
        known = origins((e.obj,)) if isinstance(e.obj, Data) else frozenset()
        if e.name in _ORDERS and any(isinstance(o, FromWorld) and o.what in bare for o in known):
            yield e
