"""Flow in, seeds and noise out: where the script fixes its random numbers, and whether training draws any."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.externals import role_of
from ddpify.facts.frames import Event
from ddpify.facts.handmade import Draws, hand_fed
from ddpify.facts.layers import NOISE, draws, mentions
from ddpify.facts.values import Class, Data, Dataset, Instance, Obj, Thing, Value
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True, eq=False)
class Seed:
    """`torch.manual_seed(args.seed)`: the call, the text of the seed, and which generator it seeds."""

    event: Event
    text: str
    what: str

    @property
    def call(self) -> cst.Call:
        assert isinstance(self.event.node, cst.Call)
        return self.event.node


_KINDS = {
    "torch.manual_seed": "torch",
    "torch.random.manual_seed": "torch",
    "numpy.random.seed": "numpy",
    "random.seed": "random",
}


#: what draws the numbers of a training step; orders and choices are looked at where batches come from
_NUMBERS = re.compile(r"(rand(n|int)?|randn?_like|randperm|(standard_)?normal|bernoulli|uniform|beta)")
_IN_PLACE = re.compile(r"((log_)?normal|uniform|bernoulli|exponential|cauchy|geometric|random)_")
#: `torch.randn_like(x)` in the methods of a dataset or of a transform
_SAMPLES = re.compile(r"rand(n|int|perm)?(_like)?|multinomial|bernoulli|normal")
_GIVES = ("__getitem__", "__getitems__", "__iter__", "__call__", "forward")
#: a generator of its own with a seed draws alike on all ranks, whatever the global seed
_SEEDED = re.compile(r"\brandom\.(RandomState|default_rng|Random)\((?=[^)\s])")


def seeds(facts: Facts) -> list[Seed]:
    """The calls that fix a seed, in the order of time."""
    found = []
    for e in facts.flow.log.of("external"):
        if e.name in _KINDS and isinstance(e.node, cst.Call) and e.node.args and e.seq < facts.flow.main_end:
            found.append(Seed(e, e.frame.source.code(e.node.args[0].value), _KINDS[e.name]))
    return found


def is_noisy(facts: Facts) -> str:
    """What draws random numbers while training, "" where nothing does. In a conversion what is not known counts."""
    if any(isinstance(h, Draws) for h in hand_fed(facts)):
        return "every rank draws batches of its own"
    for module in facts.roles.trained:
        if mentions(module, NOISE) if facts.converting else draws(module):
            return "the model draws random numbers (dropout or noise)"
    if draws_in_loop(facts):
        return "the training loop draws random numbers"
    for loader in facts.roles.training_loaders:
        why = _augments(facts, loader.dataset)
        if why:
            return why
    return ""


def _draws(event: Event) -> bool:
    """`torch.randn(8)`, `np.random.beta(a, a)`, `noise.normal_(0, 1)`"""
    if event.kind == "method":
        return _IN_PLACE.fullmatch(event.name) is not None and isinstance(event.obj, (Data, Thing))
    last = event.name.rsplit(".", 1)[-1]
    return role_of(event.name) == "random" and _NUMBERS.fullmatch(last) is not None


def draws_in_loop(facts: Facts) -> bool:
    """Whether the training steps draw numbers themselves: batches, a generator's noise."""
    training = facts.roles.training_loops
    return any(
        _draws(e) and any(lp.node in training for loops in e.all_loops() for lp in loops)
        for e in facts.flow.log.of("external", "method")
    )


def _augments(facts: Facts, value: Value, depth: int = 4) -> str:
    for obj in value:
        if isinstance(obj, Dataset):
            if depth and obj.of:
                why = _augments(facts, obj.of, depth - 1)
                if why:
                    return why
            if not obj.name.startswith("torch.utils.data") and _random_transform(facts, obj):
                return "the training data are augmented at random"
        elif isinstance(obj, Instance):
            text = _SEEDED.sub("", _class_text(obj.cls))
            if "random" in text.lower() or _samples(obj.cls):
                return "the training data are drawn or augmented at random"
            for field in obj.fields.values():
                why = _augments(facts, field, depth - 1) if depth else ""
                if why:
                    return why
            if _random_transform(facts, obj):
                return "the training data are augmented at random"
    return ""


def _random_transform(facts: Facts, obj: Obj) -> bool:
    """A transform with a random part is made anywhere in the files: it may be this dataset's."""
    names = [e.name for e in facts.flow.log.of("external")]
    return any(
        n.startswith(("torchvision.transforms", "albumentations"))
        and ("Random" in n or "ColorJitter" in n or "AutoAugment" in n or "RandAugment" in n)
        for n in names
    )


def _class_text(cls: Class | None) -> str:
    return "\n".join(c.source.code(c.node) for c in cls.lineage()) if cls is not None else ""


def _samples(cls: Class | None) -> bool:
    """Whether what gives a sample (`__getitem__`, a transform's `__call__`) draws with torch's global generator."""
    methods: dict[str, cst.FunctionDef] = {}
    for c in reversed(list(cls.lineage()) if cls is not None else []):
        methods |= {n.name.value: n for n in c.node.body.body if isinstance(n, cst.FunctionDef)}
    todo, seen = [n for n in _GIVES if n in methods], set[str]()
    while todo:
        name = todo.pop()
        seen.add(name)
        for n in walk(methods[name].body):
            match n:
                case cst.Attribute(value=cst.Name(), attr=cst.Name(value=other)) if other in methods:
                    todo += [other] if other not in seen else []
                case cst.Call(func=cst.Attribute(value=owner, attr=cst.Name(value=what)), args=args):
                    drawn = isinstance(owner, cst.Name) and owner.value == "torch" and _SAMPLES.fullmatch(what)
                    of_its_own = any(a.keyword is not None and a.keyword.value == "generator" for a in args)
                    if (drawn or _IN_PLACE.fullmatch(what)) and not of_its_own:
                        return True
    return False
