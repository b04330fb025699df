"""A layer of torch and what it is given over the rows in, what it gives over the rows out."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.overrows import Kind, Over, by_entry, joined
from ddpify.facts.reshaped import place, whole_number
from ddpify.facts.values import Module

if TYPE_CHECKING:
    from ddpify.facts import Facts

Arguments = list[tuple[str, Kind]]

_NAME = re.compile(r"torch\.nn\.(modules\.\w+\.)?(\w+)")
#: each entry by itself, or along the last dimension
_ENTRIES = re.compile(
    r"Identity|\w*Dropout[123]?d?|PReLU|Threshold|"
    r"\w*(ReLU6?|ELU|GELU|SiLU|Mish|Tanh|[sS]igmoid|Softplus|Softsign|swish|shrink)"
)
_LAST = re.compile(r"Linear|LayerNorm|RMSNorm|GLU")
#: rows first: the next dimension is the channels'
_FIRST = re.compile(
    r"Conv(Transpose)?[123]d|\w*Pool[123]d|\w*Pad[123]d|(Batch|Group|Instance|LocalResponse|SyncBatch)Norm([123]d)?|Flatten|"
    r"Unflatten|Bilinear|Upsample\w*|PixelShuffle|CosineSimilarity|PairwiseDistance|Fold|Unfold|ChannelShuffle|Softmax2d"
)
_CELLS = ("RNNCell", "LSTMCell", "GRUCell")
_RECURRENT = ("RNN", "LSTM", "GRU")
_PICTURES = re.compile(r"torchvision\.models\..*|timm\.(models\.)?create_model")


def of_layer(facts: Facts, layer: Module, given: Arguments, why: Kind) -> Kind:
    """What a layer computes of rows along one of the dimensions; mixed where it would compute one from another."""
    kinds = [k for _, k in given]
    mixed = next((k for k in kinds if k.mixed), None)
    if mixed is not None or not kinds:
        return mixed or why
    first, found = kinds[0], _NAME.fullmatch(layer.name)
    name = found[2] if found is not None else ""
    if _PICTURES.fullmatch(layer.name):
        return replace(first, rank=2) if first.axis == 0 and first.over is Over.ROWS else why
    if name in _RECURRENT:
        return _recurrent(_batch(facts, layer), name, given, why)
    if name in _CELLS:
        return _cell(name, given, why)
    if name.startswith("Transformer") or name == "MultiheadAttention":
        return _attention(_batch(facts, layer), name, given, why)
    if first.over is not Over.ROWS:
        return why
    if _ENTRIES.fullmatch(name):
        return first
    if name in ("Softmax", "LogSoftmax", "Softmin"):
        along = _option(facts, layer, "dim")
        return first if along is not None and place(first, along) != first.axis else why
    if name == "Embedding":
        return replace(first, rank=None if first.rank is None else first.rank + 1)
    if _LAST.fullmatch(name):
        inside = first.axis == 0 or (first.rank is not None and first.axis < first.rank - 1)
        return first if inside and first.rank != 1 else why
    if _FIRST.fullmatch(name) or name == "EmbeddingBag":
        flat = name in ("Flatten", "EmbeddingBag")
        aligned = first.axis == 0 and not first.steps
        return by_entry([replace(k, rank=None) for k in kinds] if flat else kinds, why) if aligned else why
    return why


def _batch(facts: Facts, layer: Module) -> int | None:
    """The batch's dimension of a recurrent or attention layer: 1, or 0 with `batch_first`; None if unknown."""
    call = layer.site.node
    if not isinstance(call, cst.Call) or any(a.star for a in call.args):
        return None
    told = next((a.value for a in call.args if a.keyword is not None and a.keyword.value == "batch_first"), None)
    known = constants(facts.flow.values.get(told, ())) if told is not None else [False]
    return 1 - int(known[0]) if known is not None and len(known) == 1 and isinstance(known[0], bool) else None


def _option(facts: Facts, layer: Module, name: str) -> int | None:
    call = layer.site.node
    for a in call.args[:1] if isinstance(call, cst.Call) else ():
        if a.keyword is None or a.keyword.value == name:
            known = whole_number(facts, a.value)
            return known if isinstance(known, int) else None
    return None


def _state(kind: Kind, axis: int, why: Kind) -> Kind | None:
    """What is wrong with a recurrent state; None where each row has one of its own, or there is none."""
    if kind.items:
        return next((w for part in kind.items if (w := _state(part, axis, why)) is not None), None)
    if kind.over is Over.ROWS:
        return None if kind.axis == axis else replace(why, given=kind.given)
    if kind.over is Over.NONE and kind.absent:
        return None
    text = "{} begins with a state of as many rows for every number of processes"
    return kind if kind.mixed else replace(why, why=text, given=kind.given)


def _recurrent(batch: int | None, name: str, given: Arguments, why: Kind) -> Kind:
    """`output, (h, c) = lstm(x, (h, c))`: the batch is one dimension of what it takes, and the second of its states."""
    first = given[0][1]
    if first.over is not Over.ROWS or first.rank not in (None, 3) or (first.flat and first.steps):
        return why
    if first.axis != batch or batch is None:
        text = "{} takes dimension %d for the batch, and the rows lie along dimension %d"
        return why if batch is None else replace(why, why=text % (batch, first.axis))
    for _, kind in given[1:]:
        wrong = _state(kind, 1, why)
        if wrong is not None:
            return wrong
    state = Kind(Over.ROWS, axis=1, rank=3)
    states = replace(state, items=(state, state)) if name == "LSTM" else state
    out = replace(first, rank=3, flat=False)
    return replace(out, items=(out, states))


def _cell(name: str, given: Arguments, why: Kind) -> Kind:
    first = given[0][1]
    if first.over is not Over.ROWS or first.axis != 0 or first.steps:
        return why
    for _, kind in given[1:]:
        wrong = _state(kind, 0, why)
        if wrong is not None:
            return wrong
    out = Kind(Over.ROWS, names=first.names, rank=2)
    return replace(out, items=(out, out)) if name == "LSTMCell" else out


def _attention(batch: int | None, name: str, given: Arguments, why: Kind) -> Kind:
    """Queries, keys and values along one dimension; masks of padding have rows, and other masks have none."""
    parts = list[Kind]()
    takes = 3 if name == "MultiheadAttention" else 1 if "Encoder" in name else 2
    for at, (keyword, kind) in enumerate(given):
        if keyword.endswith("key_padding_mask"):
            if not kind.absent and (kind.over is not Over.ROWS or kind.axis != 0):
                return why
        elif keyword in ("query", "key", "value", "src", "tgt", "memory") or (not keyword and at < takes):
            if kind.over is not Over.ROWS or kind.axis != batch or kind.rank not in (None, 3):
                return why
            parts.append(replace(kind, rank=3))
        elif kind.over is not Over.NONE:
            return why
    out = joined(parts, why) if parts else why
    if out.mixed or name != "MultiheadAttention":
        return out
    return replace(out, items=(out, Kind(Over.ROWS, rank=3)))
