"""Calls in, writers out: which calls write, move or remove files, and which open one to be written."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants, origins
from ddpify.facts.definitions import definitions
from ddpify.facts.outside import Outside, made_by, outside_calls
from ddpify.facts.values import Const, Data, Ext, FromWorld, Func, Instance, Module

if TYPE_CHECKING:
    from ddpify.facts import Facts

#: qualified name -> place and keywords of the path
_FUNCTIONS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    (r"torch\.save|torch\.jit\.save", 1, ("f",)),
    (r"torch\.onnx\.export", 2, ("f",)),
    (r"numpy\.(save|savez|savez_compressed)", 0, ("file",)),
    (r"numpy\.savetxt", 0, ("fname",)),
    (r"joblib\.dump|torch\.export\.save|faiss\.write_index", 1, ("filename", "f")),
    (r"torch\.onnx\.export", 2, ("f",)),
    (r"shutil\.make_archive|scipy\.io\.wavfile\.write", 0, ("base_name", "filename")),
    (r"safetensors\.torch\.(save_file|save_model)|safetensors\.numpy\.save_file", 1, ("filename",)),
    (r"torchvision\.utils\.save_image|torchvision\.io\.write_\w+", 1, ("fp", "filename")),
    (
        r"torchaudio\.save|soundfile\.write|scipy\.io\.savemat|imageio\.(\w+\.)?(imwrite|imsave|mimsave|mimwrite)",
        0,
        ("uri",),
    ),
    (
        r"scipy\.sparse\.save_npz|tifffile\.(imwrite|imsave)|librosa\.output\.write_wav|nrrd\.write|meshio\.write"
        r"|dgl\.(\w+\.)*save_(graphs|info)",
        0,
        ("file", "filename", "path"),
    ),
    (r"nibabel\.save|networkx\.write_\w+|SimpleITK\.WriteImage", 1, ("filename", "path", "fileName")),
    (r"matplotlib\.pyplot\.(savefig|imsave)", 0, ("fname",)),
    (r"cv2\.imwrite|skimage\.io\.imsave|scipy\.misc\.imsave", 0, ("filename", "fname")),
    (r"shutil\.(copy|copy2|copyfile|copytree|move)", 1, ("dst",)),
    (r"os\.(rename|replace|symlink|link|renames)", 1, ("dst",)),
    (r"os\.(remove|unlink|rmdir|removedirs|truncate|mkfifo)", 0, ("path", "name")),
    (r"tensorboard_logger\.(?!Logger\b)\w+", 0, ()),
)
#: What opens a file: place of the path, place of the mode (None: it always writes).
_OPENERS: tuple[tuple[str, int, int | None], ...] = (
    (r"builtins\.open|io\.open|codecs\.open|gzip\.open|bz2\.open|lzma\.open", 0, 1),
    (r"zipfile\.ZipFile|tarfile\.open|tarfile\.TarFile|h5py\.File|netCDF4\.Dataset", 0, 1),
    (r"cv2\.VideoWriter|pandas\.ExcelWriter", 0, None),
)
#: Of these, the ones to which os.devnull means nothing is written.
_PLAIN_FILES = re.compile(r"builtins\.open|io\.open|codecs\.open|gzip\.open|bz2\.open|lzma\.open|logging\.FileHandler")
_METHODS = re.compile(
    r"save_pretrained|push_to_hub|to_(csv|excel|pickle|parquet|hdf|feather|json|html|latex)|savefig|write_(text|bytes|image|html|json|png)|tofile"
    r"|save|save_weights|save_model|export_chrome_trace|unlink|touch|symlink_to|hardlink_to|rmdir|savemat"
)
#: Methods that write where they are given a place, and give back a text where they are not.
_NEEDS_ARGUMENT = re.compile(r"to_\w+|save|tofile|savefig")
#: go with the process that made them
PRIVATE = frozenset({"tempfile.NamedTemporaryFile", "tempfile.TemporaryDirectory", "tempfile.TemporaryFile"})
_IN_MEMORY = re.compile(
    r"io\.(BytesIO|StringIO)|os\.devnull|tempfile\.\w+|sys\.(stdout|stderr)|builtins\.open|io\.open|codecs\.open|gzip\.open|bz2\.open|lzma\.open"
)
_COMPILED = tuple((re.compile(p), at, names) for p, at, names in _FUNCTIONS)
_OPENING = tuple((re.compile(p), at, mode) for p, at, mode in _OPENERS)


@dataclass(frozen=True, eq=False)
class Write:
    """A call that writes; `path` says where, `opens` that it gives back what is written to later."""

    call: Outside
    path: cst.BaseExpression | None
    opens: bool = False
    #: the mode it opens with, where that is known
    mode: str = ""

    @property
    def can_be_null(self) -> bool:
        return (
            self.opens
            and self.path is not None
            and not set(self.mode) & set("x+r")
            and _PLAIN_FILES.fullmatch(self.call.name) is not None
        )


def find_writes(facts: Facts) -> list[Write]:
    """Every call of the project that writes a file, in the order of the text."""
    calls = facts.cached("outside", outside_calls)
    return [w for w in map(write_of, calls) if w is not None and not _elsewhere(w, facts)]


def write_of(call: Outside) -> Write | None:
    if call.method:
        return _by_method(call)
    name = re.sub(r"^np\.", "numpy.", call.name)
    opening, row = _known(name)
    if opening is not None:
        return _opening(call, *opening)
    if row is not None:
        return Write(call, call.argument(row[0], *row[1]))
    if name in ("lmdb.open", "lmdb.Environment") and call.argument(None, "map_size") is not None:
        told = call.argument(None, "readonly")
        reads = isinstance(told, cst.Name) and told.value == "True"
        return None if reads else Write(call, call.argument(0, "path"), opens=True)
    return None


@functools.lru_cache(maxsize=4096)  # a script calls few functions, many times
def _known(name: str) -> tuple[tuple[int, int | None] | None, tuple[int, tuple[str, ...]] | None]:
    """The row of a function that opens a file, and that of one that writes it."""
    opening = next(((at, mode_at) for p, at, mode_at in _OPENING if p.fullmatch(name)), None)
    return opening, next(((at, names) for p, at, names in _COMPILED if p.fullmatch(name)), None)


def _opening(call: Outside, at: int, mode_at: int | None) -> Write | None:
    path = call.argument(at, "file", "filename", "name")
    if mode_at is None:
        return Write(call, path, opens=True)
    mode = call.argument(mode_at, "mode")
    known: list[object] | None = [mode.evaluated_value] if isinstance(mode, cst.SimpleString) else None
    if known is None and mode is not None:
        known = next((constants(e.extra.get("mode") or e.extra.get(str(mode_at), ())) for e in call.events), None)
    if mode is None or not any(isinstance(k, str) and set(k) & set("wax+") for k in known or ()):
        return None
    return Write(call, path, opens=True, mode="".join(str(k) for k in known or ()))


def _by_method(call: Outside) -> Write | None:
    if any(isinstance(o, (Func, Instance)) for o in call.obj) and not call.method.startswith("save"):
        return None
    if call.method == "open":
        mode = call.argument(0, "mode")
        writes = isinstance(mode, cst.SimpleString) and bool(set(str(mode.evaluated_value)) & set("wax+"))
        path = call.node.func.value if isinstance(call.node.func, cst.Attribute) else None
        return Write(call, path, opens=True, mode="+") if writes else None
    if call.method in ("rename", "replace"):
        return Write(call, call.argument(0, "target")) if is_path(call) else None
    if not _METHODS.fullmatch(call.method) or (_NEEDS_ARGUMENT.fullmatch(call.method) and not call.node.args):
        return None
    if call.method in ("save", "rmdir", "touch") and any(isinstance(o, Module) and o.cls is not None for o in call.obj):
        return None
    path = call.argument(0, "path", "save_directory", "fname", "path_or_buf", "fp")
    if call.method in ("write_text", "write_bytes", "touch", "unlink", "rmdir") and isinstance(
        call.node.func, cst.Attribute
    ):
        path = call.node.func.value
    return Write(call, path)


def is_path(call: Outside) -> bool:
    """A method of a pathlib.Path, for certain."""
    return any(made_by(obj).startswith("pathlib.") for obj in call.obj)


def _elsewhere(write: Write, facts: Facts) -> bool:
    """What is written goes to memory, or into a file that is opened by another call, which is the one to look at."""
    if not facts.converting and (_may_be_none(write, facts) or _is_private(write, facts)):
        return True
    null = write.path is not None and facts.flow.values.get(write.path, ())
    if null and any(isinstance(o, Ext) and o.name == "os.devnull" for o in null):
        return True
    if write.opens or write.path is None or not isinstance(write.path, (cst.Name, cst.Attribute, cst.Call)):
        return False
    if any(isinstance(o, Ext) and _IN_MEMORY.fullmatch(o.name) for o in facts.flow.values.get(write.path, ())):
        return True
    held = facts.flow.values.get(write.path, ())
    if held and all(_IN_MEMORY.fullmatch(made_by(o)) for o in held):
        return True  # image.save(buffer, format="png"), of a buffer that each turn of a loop makes
    known = definitions(facts.flow)
    for event in write.call.events[:1]:
        for node, _ in known.sources(write.path, event.frame):
            callee = facts.flow.values.get(node.func, ()) if isinstance(node, cst.Call) else ()
            if any(isinstance(o, Ext) and _IN_MEMORY.fullmatch(o.name) for o in callee):
                return True
    return False


def _may_be_none(write: Write, facts: Facts) -> bool:
    """`model.save(epoch)`, of an object of which nothing is known: only a text is a path for certain."""
    call = write.call
    if call.method != "save" or not all(o == Data() for o in call.obj):
        return False
    if write.path is None:
        return all(a.keyword is not None for a in call.node.args)  # model.save(epoch=-1)
    held = facts.flow.values.get(write.path, ())
    return not any(_is_text(o) for o in held)


def _is_text(obj: object) -> bool:
    if isinstance(obj, Data):
        return obj.form == "str"
    return isinstance(obj, Const) and isinstance(obj.value, str)


def _is_private(write: Write, facts: Facts) -> bool:
    """`with NamedTemporaryFile() as f: torch.save(state, f.name)`: each process has a file of its own."""
    if write.path is None:
        return False
    what = {o.what for o in origins(facts.flow.values.get(write.path, ())) if isinstance(o, FromWorld)}
    return bool(what & PRIVATE)


def file_of(node: cst.BaseExpression, call: Outside, facts: Facts) -> set[int]:
    """The calls (by id of the node) that opened what an expression holds."""
    found: set[int] = set()
    for event in call.events[:1]:
        for source, _ in definitions(facts.flow).sources(node, event.frame):
            found.add(id(source))
    return found
