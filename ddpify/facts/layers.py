"""Modules in, what their layers do out: draw random numbers, keep statistics of the batches."""

from __future__ import annotations

from ddpify.facts.buffers import changes_buffers
from ddpify.facts.contents import modules, with_parts
from ddpify.facts.values import Data, Module, Parameters, Thing

#: Layers that draw random numbers, and layers that keep statistics of the batches.
NOISE = (
    "Dropout",
    "dropout",
    "DropPath",
    "drop_path",
    "RReLU",
    "randn",
    "rand_like",
    "bernoulli",
    "normal_",
    "rsample",
    "gumbel_softmax",
)
BUFFERS = (
    "BatchNorm",
    "track_running_stats",
    "register_buffer",
    "SyncBatchNorm",
    "SpectralNorm",
    "spectral_norm",
    "EMA",
)


def mentions(module: Module, words: tuple[str, ...], written: bool = False) -> bool:
    """Whether the class of a module or of one of its parts has one of the words in its text; unknown modules do.

    `written`: buffers that no method writes (a mask, a table of positions) are left out.
    """
    seen: set[int] = set()

    def look(m: Module) -> bool:
        if id(m) in seen:
            return False
        seen.add(id(m))
        if m.cls is not None:
            texts = [c.source.code(c.node) for c in m.cls.lineage()]
            found = {w for w in words for t in texts if w in t} | {w for w in words for b in m.cls.outside() if w in b}
            if written and found == {"register_buffer"} and not any(changes_buffers(c) for c in m.cls.lineage()):
                found = set()
            if found:
                return True
            outside = {b for b in m.cls.outside() if not b.startswith("torch.nn.")}
            if outside:
                return True
        elif m.name and any(w in m.name for w in words):
            return True
        elif not m.name.startswith("torch.nn."):
            return m.inner is None or look(m.inner)  # a library's model: take it to have both
        parts = [p for v in (*m.fields.values(), *m.parts) for p in v]
        if any(isinstance(p, Thing) and not p.name for p in parts):
            return True  # a layer of a library that is not known
        if m.cls is None and any(isinstance(p, Data) and p.form == "any" for value in m.parts for p in value):
            return True  # nn.Sequential(*layers)
        taken = [p for part in parts if isinstance(part, Parameters) for p in part.modules]
        return any(look(p) for p in (*taken, *(p for part in parts for p in modules((part,)))))

    return look(module)


def minds_its_mode(module: Module) -> bool:
    """Whether `train()` and `eval()` give other outputs."""
    return mentions(module, (*NOISE, *BUFFERS), written=True)


def draws(module: Module) -> bool:
    """Whether a layer that draws random numbers is seen in a module; what cannot be seen is not accused."""
    texts = [c.source.code(c.node) for m in with_parts(module) if m.cls is not None for c in m.cls.lineage()]
    names = [m.name for m in with_parts(module)]
    return any(word in text for word in NOISE for text in (*texts, *names)) or any(
        name.startswith("transformers.") for name in names
    )


def normalises(module: Module) -> bool:
    """Whether BatchNorm is seen in a module or in one of its parts; what cannot be seen is not accused."""
    return any(
        "BatchNorm" in m.name
        or (m.cls is not None and any("BatchNorm" in c.source.code(c.node) for c in m.cls.lineage()))
        for m in with_parts(module)
    )
