"""A class of the project that derives from DataLoader in, whether its calls are calls of DataLoader out."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.source import dotted, walk

#: what the call that makes the loader has to be able to say
_SAID = frozenset({"sampler", "shuffle", "batch_sampler", "batch_size", "dataset", "drop_last"})


def hands_on_all(init: cst.FunctionDef) -> bool:
    """`def __init__(self, *args, **kwargs): super().__init__(*args, **kwargs)`: the arguments are DataLoader's own.

    A dataset may be named in front, and the class may set options of its own that do not choose samples.
    """
    params = init.params
    front = [p.name.value for p in params.params[1:]]
    named = params.star_kwarg
    rest = params.star_arg.name.value if isinstance(params.star_arg, cst.Param) else ""
    if named is None or front not in ([], ["dataset"]) or not (rest or front):
        return False
    if any(p.name.value in _SAID for p in params.kwonly_params) or _changes(init, named.name.value):
        return False
    calls = list(_beginnings(init))
    return len(calls) == 1 and _is_whole(calls[0], front, rest, named.name.value)


def _beginnings(init: cst.FunctionDef) -> Iterator[cst.Call]:
    """`super().__init__(...)`"""
    for node in walk(init.body):
        match node:
            case cst.Call(func=cst.Attribute(value=cst.Call(func=cst.Name(value="super")), attr=cst.Name("__init__"))):
                yield node


def _is_whole(call: cst.Call, front: list[str], rest: str, named: str) -> bool:
    plain = [dotted(a.value) for a in call.args if not a.star and a.keyword is None and isinstance(a.value, cst.Name)]
    said = [a.keyword.value for a in call.args if a.keyword is not None]
    stars = [(a.star, a.value.value) for a in call.args if a.star and isinstance(a.value, cst.Name)]
    handed = [("*", rest), ("**", named)] if rest else [("**", named)]
    whole = plain == front and stars == handed and not _SAID.intersection(said)
    return whole and len(call.args) == len(plain) + len(said) + len(stars)


def _changes(init: cst.FunctionDef, named: str) -> bool:
    """`kwargs["shuffle"] = True`, `kwargs.update(...)`, `kwargs = ...`"""
    for node in walk(init.body):
        match node:
            case cst.AssignTarget(target=cst.Name(value=name)) if name == named:
                return True
            case cst.AssignTarget(target=cst.Subscript(value=cst.Name(value=name), slice=[cst.SubscriptElement(at)])):
                key = at.value if isinstance(at, cst.Index) else None
                if name == named and not (isinstance(key, cst.SimpleString) and key.evaluated_value not in _SAID):
                    return True
            case cst.Call(func=cst.Attribute(value=cst.Name(value=name), attr=cst.Name(value=method))) if name == named:
                if method not in ("get", "items", "keys", "values", "copy"):
                    return True
    return False
