"""A model in, whether it computes every row of its input by itself out: then the rows can be shared out over ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants, modules
from ddpify.facts.values import Class, Ext, Func, Module, Thing
from ddpify.source import Source, dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts


@dataclass(frozen=True)
class Mixed:
    """What was found that mixes rows, or may: where, and in words."""

    source: Source
    node: cst.CSTNode
    why: str


#: layers that take each row by itself (BatchNorm too: its statistics are each rank's own, as in every DDP training)
_LAYERS = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?(Linear|Bilinear|Embedding(Bag)?|Conv(Transpose)?[123]d|\w*Pool[123]d|\w*Pad[123]d|"
    r"\w*Norm([123]d)?|Identity|Flatten|Unflatten|\w*Dropout[123]?d?|RNNCell|LSTMCell|GRUCell|PReLU|\w*(ReLU6?|ELU|GELU|"
    r"SiLU|Mish|Tanh|[sS]igmoid|Softplus|Softmax(2d)?|Softsign|swish|shrink|GLU)|Upsample\w*|PixelShuffle|"
    r"CosineSimilarity|Fold|Unfold|ChannelShuffle|Threshold)"
)
_HOLDERS = re.compile(r"torch\.nn\.(modules\.\w+\.)?(Sequential|ModuleList|ModuleDict)")
#: layers that do so where they are told that rows come first
_BATCH_FIRST = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?(RNN|LSTM|GRU|MultiheadAttention|Transformer(Encoder|Decoder)?(Layer)?)"
)
_RECURRENT = re.compile(r"torch\.nn\.(modules\.\w+\.)?(RNN|LSTM|GRU)")
_ALONG_FEATURES = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?(Linear|Embedding|Identity|LayerNorm|RMSNorm|\w*Dropout|\w*(ReLU6?|ELU|GELU|SiLU|Mish|"
    r"Tanh|[sS]igmoid|Softplus))"
)
_PICTURES = re.compile(r"torchvision\.models\..*|timm\.(models\.)?create_model")
_ENTRIES = """
relu relu6 leaky_relu elu gelu silu selu tanh sigmoid softplus hardtanh mish logsigmoid dropout exp log log1p sqrt pow
abs square sin cos clamp clip neg add sub mul div mul_ add_ float double long int half bool to cuda cpu type type_as
contiguous clone detach size dim numel zeros ones empty full zeros_like ones_like randn_like rand_like randn rand
new_zeros tensor arange range len append linear conv1d conv2d conv3d embedding layer_norm batch_norm max_pool1d
max_pool2d avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d interpolate pad one_hot isinstance print
enumerate zip Variable squeeze_ detach_ str max_unpool2d expm1 erf reciprocal where logical_not
"""
#: functions and methods that work entry by entry, or only make new tensors
BY_ENTRY = frozenset(_ENTRIES.split())
_DIMENSIONS = """
softmax log_softmax cat concat stack chunk split sum mean max min argmax argmin norm normalize std var cumsum
logsumexp squeeze unsqueeze flip select narrow unbind amax amin prod sort topk gather flatten
"""
#: functions and methods that work along a dimension: not the first
BY_DIM = frozenset(_DIMENSIONS.split())
SHAPES = frozenset({"view", "reshape", "expand", "repeat", "view_as", "reshape_as"})
PRODUCTS = frozenset({"mm", "matmul", "addmm", "dot", "mv"})


def mixes_rows(facts: Facts, module: Module) -> Mixed | None:
    """The first thing in a model that does not keep its rows apart, or that is not known to."""
    return next(_mixed(facts, module, set()), None)


def _mixed(facts: Facts, module: Module, seen: set[int]) -> Iterator[Mixed]:
    if id(module) in seen:
        return
    seen.add(id(module))
    site = module.site
    if module.inner is not None:
        yield from _mixed(facts, module.inner, seen)
        return
    parts = [p for value in (*module.fields.values(), *module.parts) for p in value]
    if module.cls is not None:
        if any(isinstance(p, Thing) and not p.name for p in parts):
            yield Mixed(site.source, site.node, f"`{module.cls.name}` has a part that could not be followed")
        yield from _in_forward(facts, module.cls)
    elif _BATCH_FIRST.fullmatch(module.name):
        if not _told(site.node):
            name = module.name.rsplit(".", 1)[-1]
            yield Mixed(
                site.source, site.node, f"nn.{name} without batch_first=True takes its first dimension for time"
            )
    elif not (_LAYERS.fullmatch(module.name) or _HOLDERS.fullmatch(module.name) or _PICTURES.fullmatch(module.name)):
        yield Mixed(site.source, site.node, f"{module.name or 'a part of the model'} may compute one row from another")
    for part in parts:
        for inner in modules((part,)):
            yield from _mixed(facts, inner, seen)


def is_recurrent(module: Module) -> bool:
    """`nn.LSTM(...)`"""
    return _RECURRENT.fullmatch(module.name) is not None


def batch_dimension(module: Module) -> int:
    """0 for a recurrent layer that takes (batch, time, feature), 1 for one that takes (time, batch, feature)."""
    return 0 if _told(module.site.node) else 1


def keeps_columns(module: Module, batch: int) -> bool:
    """A layer that takes time and batch (which is dimension `batch`), and each entry of the batch by itself."""
    if _BATCH_FIRST.fullmatch(module.name):
        return batch_dimension(module) == batch
    return _ALONG_FEATURES.fullmatch(module.name) is not None or _HOLDERS.fullmatch(module.name) is not None


def _told(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Call) and any(
        a.keyword is not None
        and a.keyword.value == "batch_first"
        and isinstance(a.value, cst.Name)
        and a.value.value == "True"
        for a in node.args
    )


def _in_forward(facts: Facts, cls: Class) -> Iterator[Mixed]:
    """Forward, and the methods of its own that it calls."""
    todo, done = ["forward"], set[str]()
    while todo:
        name = todo.pop()
        for func in cls.member(name):
            if not isinstance(func, Func) or name in done:
                continue
            done.add(name)
            me = func.node.params.params[0].name.value if func.node.params.params else "self"
            for node in walk(func.node.body):
                if isinstance(node, cst.Call) and dotted(node.func) and dotted(node.func).startswith(f"{me}."):
                    member = dotted(node.func).split(".")[1]
                    if any(isinstance(f, Func) for f in cls.member(member)):
                        todo.append(member)
                    continue  # a layer: looked at by itself
                if _keeps_apart(facts, node, me):
                    continue
                text = func.source.code(node).split("\n")[0]
                yield Mixed(func.source, node, f"`{text}` in `{cls.name}.{name}` may compute one row from another")


def _keeps_apart(facts: Facts, node: cst.CSTNode, me: str) -> bool:
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.MatrixMultiply):
        return _own(node.right, me)
    if isinstance(node, cst.Subscript):
        return _whole_rows(facts, node, me)
    if not isinstance(node, cst.Call):
        return True
    func = node.func
    name = func.attr.value if isinstance(func, cst.Attribute) else func.value if isinstance(func, cst.Name) else ""
    called = facts.flow.values.get(func, ())
    function = any(isinstance(o, Ext) for o in called)
    if any(isinstance(o, Ext) and o.name.startswith(("builtins.", "random.")) for o in called):
        return name not in ("sum", "max", "min", "sorted")
    if name in SHAPES:
        return name not in ("view", "reshape") or not _fixed_rows(facts, node, function)
    if name == "permute":
        return number(node.args[0].value) == 0 if node.args else False
    if name == "transpose":
        return all(number(a.value) not in (0, None) for a in node.args[-2:])
    if name in PRODUCTS:
        return any(_own(a.value, me) for a in node.args[-1:])
    if name == "squeeze" and not node.args[int(function) :]:
        return True  # a single row would have to be all there is
    if name in BY_DIM:
        return dimension(node, function) not in (0, None)
    return name in BY_ENTRY


def _fixed_rows(facts: Facts, node: cst.Call, function: bool) -> bool:
    """`x.view(batch_size, 6, -1)`, where `batch_size` is a number of the script's: a rank has fewer rows."""
    first = next((a.value for a in node.args[int(function) :]), None)
    if first is None:
        return False
    known = [number(first)] if number(first) is not None else constants(facts.flow.values.get(first, ())) or []
    return any(isinstance(n, int) and n >= 0 for n in known)


def _own(node: cst.BaseExpression, me: str) -> bool:
    """`self.weight`, `self.weight.t()`: a parameter, not another tensor of rows."""
    while isinstance(node, (cst.Call, cst.Attribute)):
        if dotted(node).startswith(f"{me}."):
            return True
        node = node.func if isinstance(node, cst.Call) else node.value
    return False


def dimension(node: cst.Call, function: bool) -> object:
    """The `dim` of a call, 1 where the function's own choice is not the first."""
    for a in node.args:
        if a.keyword is not None and a.keyword.value in ("dim", "axis", "start_dim"):
            return number(a.value)
    rest = [a for a in node.args if a.keyword is None]
    rest = rest[1:] if function else rest
    numbers = [number(a.value) for a in rest]
    name = node.func.attr.value if isinstance(node.func, cst.Attribute) else ""
    if name in ("split", "chunk", "topk", "sort") and len(numbers) > 1:
        return numbers[1]
    if name in ("softmax", "log_softmax", "normalize") and not numbers:
        return 1  # without a dim, softmax of a matrix works along the rows
    return numbers[0] if numbers and name not in ("split", "chunk", "topk", "sort") else None


def number(node: cst.BaseExpression) -> object:
    if isinstance(node, cst.Integer):
        return int(node.value)
    if isinstance(node, cst.UnaryOperation) and isinstance(node.expression, cst.Integer):
        return -int(node.expression.value)
    return None


def _whole_rows(facts: Facts, node: cst.Subscript, me: str) -> bool:
    """`x[:, -1]`, `self.layers[i]`, `x.shape[1]`: all rows, or no rows at all."""
    if _own(node.value, me) or (isinstance(node.value, cst.Attribute) and node.value.attr.value == "shape"):
        return True
    first = node.slice[0].slice
    return isinstance(first, cst.Slice) and first.lower is None and first.upper is None and first.step is None
