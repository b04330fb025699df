"""Calls that make callables in, what those give when they are called out: `partial(f, x)`, `namedtuple("N", "a b")`."""

from __future__ import annotations

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.frames import Frame
from ddpify.facts.networks import Networks
from ddpify.facts.state import Given
from ddpify.facts.values import Obj, Seq, Thing, Value


class Factories(Networks):
    """What functools.partial and collections.namedtuple make."""

    def make_factory(
        self, role: str, node: cst.Call, given: list[Given], named: dict[str, Given], frame: Frame
    ) -> Value:
        """A thing that holds what it was made of: by place, and by name."""
        made = Thing(self.site(node, frame), name=role)
        (kept,) = self.made(node, frame, made, role)
        assert isinstance(kept, Thing)
        kept.fields.update({str(at): value for at, (_, value) in enumerate(given)})
        kept.fields.update({name: value for name, (_, value) in named.items()})
        return (kept,)

    def held(self, partial: Thing) -> tuple[Value, list[Given], dict[str, Given]]:
        """What a partial calls, and the arguments that it puts before and beside those of the call."""
        places = [name for name in partial.fields if name.isdigit()]
        named: dict[str, Given] = {n: (None, v) for n, v in partial.fields.items() if not n.isdigit()}
        given: list[Given] = [(None, partial.fields[at]) for at in places[1:]]
        return partial.fields.get("0", ()), given, named

    def named_tuple(
        self, factory: Thing, node: cst.CSTNode, given: list[Given], named: dict[str, Given], frame: Frame
    ) -> Value:
        """`Loaders(train, test=test)`: a tuple whose elements have names."""
        names = self.field_names(factory)
        fields = {name: value for name, (_, value) in zip(names, given, strict=False)}
        fields.update({name: value for name, (_, value) in named.items()})
        (kept,) = self.made(node, frame, Seq(self.site(node, frame)), "named tuple")
        assert isinstance(kept, Seq)
        kept.fields = {name: fields[name] for name in names if name in fields} or fields
        kept.elements = [fields[name] for name in names] if set(names) == set(fields) else None
        kept.joined = () if kept.elements is not None else tuple(o for v in fields.values() for o in v)
        return (kept,)

    def field_names(self, factory: Thing) -> list[str]:
        """`"train test"`, `"train, test"` or `["train", "test"]`."""
        said = factory.fields.get("1") or factory.fields.get("field_names", ())
        found: list[str] = []
        for obj in said:
            texts: list[Obj] = [o for part in obj.elements or () for o in part] if isinstance(obj, Seq) else [obj]
            for text in constants(tuple(texts)) or ():
                found.extend(str(text).replace(",", " ").split())
        return found
