"""Calls in, readers out: what reads a file that the script may have written before, and when two paths can be one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.definitions import definitions
from ddpify.facts.frames import Event, Frame
from ddpify.facts.moments import Moment, moments
from ddpify.facts.outside import Outside, outside_calls
from ddpify.facts.placing import ends_in_a_way_out, exclusive
from ddpify.facts.values import Class, Instance, Module
from ddpify.facts.writes import Write, find_writes, is_path, write_of
from ddpify.source import dotted, walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_CHECKPOINTS = re.compile(r"torch\.load|safetensors\.torch\.load_(file|model)|joblib\.load|torch\.jit\.load")
_SAVES = re.compile(r"torch\.save|torch\.jit\.save|safetensors\.torch\.save_\w+|joblib\.dump")
_OTHERS = re.compile(
    r"builtins\.open|io\.open|codecs\.open|gzip\.open|numpy\.(load|loadtxt|genfromtxt)|np\.(load|loadtxt|genfromtxt)|pandas\.read_\w+|PIL\.Image\.open"
    r"|lmdb\.(open|Environment)|cv2\.imread|torchvision\.io\.read_\w+|os\.(listdir|scandir)|glob\.i?glob|torchvision\.datasets\.(ImageFolder|DatasetFolder)|.*\.from_pretrained"
)
#: What a library calls its readers: Tokenizer.from_file, coco.loadRes, spm.SentencePieceProcessor(model_file=...).
_LIKE_READING = re.compile(
    r"(load|read|parse|imread|from_(file|path|json|disk))([A-Z_].*|$)|(read|parse)s$|\w+(Reader|Processor)"
)
_FOLDERS = re.compile(r"torchvision\.datasets\.(ImageFolder|DatasetFolder)|os\.(listdir|scandir)|glob\.i?glob")
#: What changes a folder as a whole.
_REMOVES = re.compile(r"os\.(remove|unlink|rmdir|removedirs)")
_MOVES = re.compile(r"os\.(remove|unlink|rename|replace|symlink|link)|shutil\.\w+")
#: Questions to the file system whose answer may differ from rank to rank for a moment.
_ASKS = re.compile(
    r"os\.path\.(exists|isfile|isdir|lexists|getsize|getmtime|islink)|os\.(listdir|access|stat|scandir)|glob\.i?glob"
)
#: what gives the same path in another form
_SAME = frozenset(
    {"str", "Path", "pathlib.Path", "os.fspath", "os.path.abspath", "os.path.realpath", "os.path.normpath"}
)
#: methods of a path
LISTINGS = frozenset({"glob", "rglob", "iterdir"})
_ASKING_METHODS = LISTINGS | {"exists", "is_file", "is_dir"}
#: Of these, the ones that raise where the file is not there, and those that say whether it is.
_MEASURES = re.compile(r"os\.path\.get(size|[mac]time)|os\.stat")
_PRESENT = re.compile(r"os\.path\.(exists|isfile|lexists|islink)")


@dataclass(frozen=True, eq=False)
class Read:
    """A call that reads; `checkpoint` where it reads what torch.save writes."""

    call: Outside
    path: cst.BaseExpression
    checkpoint: bool


def find_reads(facts: Facts) -> list[Read]:
    """Every call of the project that reads a file, in the order of the text."""
    calls = facts.cached("outside", outside_calls)
    found = []
    for call in calls:
        if call.method in LISTINGS | {"read_text", "read_bytes"} and isinstance(call.node.func, cst.Attribute):
            found.append(Read(call, call.node.func.value, False))
        elif call.method == "load_state_dict" or write_of(call) is not None:
            continue
        elif not call.name and _LIKE_READING.fullmatch(call.method):
            found.extend(_of_library(call))
        elif _CHECKPOINTS.fullmatch(call.name) or _OTHERS.fullmatch(call.name):
            path = call.argument(
                0, "f", "file", "filename", "path", "root", "pretrained_model_name_or_path", "filepath_or_buffer"
            )
            if path is not None:
                found.append(Read(call, path, _CHECKPOINTS.fullmatch(call.name) is not None))
        elif _LIKE_READING.fullmatch(call.name.rpartition(".")[2]):
            found.extend(_of_library(call))
    return found


def find_questions(facts: Facts) -> list[Read]:
    """Every call after whose answer no rank goes on as another: it asks whether a file is there, or how large it is."""
    calls = facts.cached("outside", outside_calls)
    return [Read(call, path, False) for call in calls if (path := _asked_for(call)) is not None]


def _asked_for(call: Outside) -> cst.BaseExpression | None:
    """The path of `assert os.path.exists(path)`, `if not path.exists(): raise ...`, `os.path.getsize(path)`."""
    path: cst.BaseExpression | None = None
    if _MEASURES.fullmatch(call.name) or _PRESENT.fullmatch(call.name):
        path = call.argument(0, "path", "filename")
    elif call.method in ("exists", "is_file", "stat") and isinstance(call.node.func, cst.Attribute):
        path = call.node.func.value if is_path(call) else None
    if path is None or _MEASURES.fullmatch(call.name) or call.method == "stat":
        return path
    inner: cst.CSTNode = call.node
    for above in call.source.ancestors(call.node):
        if isinstance(above, cst.Assert):
            return path
        if isinstance(above, cst.If) and inner is above.test:
            sides = [above.body, *([above.orelse.body] if isinstance(above.orelse, cst.Else) else [])]
            return path if any(ends_in_a_way_out(side) for side in sides) else None
        if isinstance(above, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return None
        inner = above
    return None


def _of_library(call: Outside) -> list[Read]:
    path = call.argument(0, "file", "filename", "path", "fname", "model_file")
    return [Read(call, path, False)] if path is not None else []


def asks_files(test: cst.CSTNode, facts: Facts) -> bool:
    """Whether an expression asks the file system: ranks may get different answers."""
    for node in walk(test):
        if isinstance(node, cst.Call):
            for obj in facts.flow.values.get(node.func, ()):
                if _ASKS.fullmatch(str(getattr(obj, "name", ""))):
                    return True
            if isinstance(node.func, cst.Attribute) and node.func.attr.value in _ASKING_METHODS:
                return True
    return False


class Paths:
    """What is known of the paths in a flow."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.definitions = definitions(facts.flow)
        self._keys: dict[tuple[int, int], tuple[frozenset[object], frozenset[str]]] = {}

    def same(self, one: tuple[cst.BaseExpression, Frame], two: tuple[cst.BaseExpression, Frame]) -> bool | None:
        """True where two expressions name one file, False where they cannot, None where that is not known."""
        a, names_a = self.keys(*one)
        b, names_b = self.keys(*two)
        if a & b or names_a & names_b:
            return True
        return False if names_a and names_b else None

    def inside(self, folder: tuple[cst.BaseExpression, Frame], file: tuple[cst.BaseExpression, Frame]) -> bool:
        """Whether a file is written into a folder: `os.path.join(root, name)`, `root / name`, `f"{root}/{name}"`."""
        wanted = self.keys(*folder)[0]
        known = self.definitions.of(*file)
        places = [file, *((d.node, d.frame) for d in known)]
        return any(wanted & self.keys(part, frame)[0] for node, frame in places for part in _folders(node))

    def keys(self, node: cst.BaseExpression, frame: Frame) -> tuple[frozenset[object], frozenset[str]]:
        """Tokens that equal paths share, and the file names in it that are literal."""
        key = (id(node), id(frame))
        if key not in self._keys:
            self._keys[key] = (frozenset(), frozenset())
            self._keys[key] = self._find(node, frame)
        return self._keys[key]

    def _find(self, node: cst.BaseExpression, frame: Frame) -> tuple[frozenset[object], frozenset[str]]:
        tokens: set[object] = set()
        names: set[str] = set()
        for value in constants(self.facts.flow.values.get(node, ())) or ():
            tokens.add(("text", str(value)))
        tokens.update(self._cells(node, frame))
        for part in walk(node):
            if isinstance(part, cst.SimpleString):
                names.update(_file_names(str(part.evaluated_value)))
            elif isinstance(part, cst.FormattedStringText):
                names.update(_file_names(part.value))
        same = _same_path(node)
        if same is not None:
            more, others = self.keys(same, frame)
            tokens |= more
            names |= others
        for d in self.definitions.of(node, frame):
            tokens.add(("node", id(d.node)))
            more, others = self.keys(d.node, d.frame)
            tokens |= more
            names |= others
        return frozenset(tokens), frozenset(names)

    def _cells(self, node: cst.BaseExpression, frame: Frame) -> set[object]:
        """The variable or attribute itself: what is saved and loaded by one name in one scope."""
        match node:
            case cst.Name(value=name):
                holder = frame.scope.holder(name)
                return {("name", id(holder.names), name)} if holder is not None else set()
            case cst.Attribute(value=base, attr=attr):
                held = self.facts.flow.values.get(base, ())
                return {("attribute", id(o), attr.value) for o in held if isinstance(o, (Instance, Module, Class))} | {
                    ("code", id(frame.func.node if frame.func else frame.source), frame.source.code(node))
                }
            case cst.SimpleString():
                return set()
        return {("code", id(frame.func.node if frame.func else frame.source), frame.source.code(node))}


def _same_path(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """`Path(path)`, `str(path)`, `os.path.abspath(path)`, `path.resolve()`: the path that it is of."""
    match node:
        case cst.Call(func=func, args=[cst.Arg(value=inner, star="")]):
            return inner if dotted(func) in _SAME else None
        case cst.Call(
            func=cst.Attribute(value=inner, attr=cst.Name(value="resolve" | "absolute" | "as_posix")), args=[]
        ):
            return inner
    return None


def _folders(path: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What a path begins with, before its last part."""
    match path:
        case cst.Call(func=cst.Attribute(value=base, attr=cst.Name(value="joinpath"))):
            return [base]
        case cst.Call(func=cst.Attribute(attr=cst.Name(value="join")), args=args):
            return [a.value for a in args[: max(1, len(args) - 1)]]
        case cst.Call(func=cst.Name(value="str"), args=[cst.Arg(value=inner)]):
            return _folders(inner)
        case cst.BinaryOperation(left=left, operator=cst.Divide() | cst.Add()):
            return [left, *_folders(left)]
        case cst.FormattedString(parts=[cst.FormattedStringExpression(expression=first), *_]):
            return [first]
    return []


def _file_names(text: str) -> set[str]:
    """`runs/best.pt` -> best.pt: only what ends like the name of a file."""
    last = re.split(r"[/\\]", text)[-1]
    return {last} if re.fullmatch(r"[^{}%*]*\w\.\w{1,10}(\.\w{1,6})?", last) else set()


def written_before(
    facts: Facts, read: Read, event: Event, moment: Moment, paths: Paths, certain: bool
) -> list[tuple[Write, Event, Moment]]:
    """The writes that can have made what a read finds: earlier in time, or in an earlier turn of a shared loop.

    Each with the last moment before the read, or with its first one where it comes later in the loop.
    """
    writes = facts.cached("writes", find_writes)
    when = moments(facts.flow)
    around = {id(loop.node) for loops in event.all_loops() for loop in loops}
    trained = min((b.seq for b in facts.roles.backwards), default=0)
    found = []
    for write in writes:
        if write.path is None:
            continue
        for w in write.call.events:
            same = paths.same((read.path, event.frame), (write.path, w.frame))
            listed = read.call.method in LISTINGS or _FOLDERS.fullmatch(read.call.name) is not None
            if listed and paths.inside((read.path, event.frame), (write.path, w.frame)):
                same = True
            folder = listed and _MOVES.fullmatch(write.call.name) is not None
            kin = folder or (read.checkpoint and _SAVES.fullmatch(write.call.name) is not None)
            # for i, clip in enumerate(clips): torch.save(clip, cache / f"{i}.pt"), and a folder is read behind it
            kin = kin or (listed and event.seq < trained and any(w.all_loops()) and w.seq < event.seq)
            removes = _REMOVES.fullmatch(write.call.name) is not None or write.call.method == "unlink"
            if removes and not folder and same is not True:
                continue
            if same is False or (same is None and (certain or not kin)):
                continue
            before = [m for m in when.of(w) if m < moment]
            cyclic = same is True and any(id(loop.node) in around for loops in w.all_loops() for loop in loops)
            if (before or cyclic) and not exclusive(w, event):
                found.append((write, w, before[-1] if before else (w.seq,)))
    return found
