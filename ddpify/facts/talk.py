"""Calls in, talk out: what prints, logs, draws, reports to a tracker or asks the user."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from ddpify.facts.contents import constants
from ddpify.facts.externals import LOGGER, role_of
from ddpify.facts.outside import Outside, made_by, outside_calls
from ddpify.facts.values import Const, Dict, Ext, Iteration, Method, Seq, Thing
from ddpify.source import walk

if TYPE_CHECKING:
    from ddpify.facts import Facts

_LEVELS = r"(debug|info|warning|warn|error|critical|exception|fatal|log)"
#: qualified name -> kind of talk; the first that matches counts
_ROWS: tuple[tuple[str, str], ...] = (
    (
        r"builtins\.(print|display)|pprint\.(pprint|pp)|rich\.(print|inspect|print_json)|sys\.(stdout|stderr|__stdout__|__stderr__)\.write(lines)?",
        "print",
    ),
    (
        r"matplotlib\.pyplot\.(show|pause)|IPython\.(core\.)?display\.(display|clear_output)|cv2\.(imshow|waitKey|destroyAllWindows)",
        "print",
    ),
    (r"tqdm(\.\w+)*\.write|prettytable\.print|(click|typer)\.s?echo|builtins\.help", "print"),
    (rf"(absl\.)?logging\.{_LEVELS}|loguru\.logger\.{_LEVELS}", "log"),
    (r"logging\.basicConfig", "log-config"),
    (r"logging\.config\.(dict|file)Config", "log-files"),
    (r"logging\.FileHandler|logging\.handlers\.\w*RotatingFileHandler|loguru\.logger\.add", "log-file"),
    (r"torchsummary\.summary|torchsummaryX\.summary|torchinfo\.summary|torchscan\.summary", "summary"),
    (r"wandb\.init", "run"),
    (r"comet_ml\.(\w+\.)*(Experiment|ExistingExperiment|start)", "run-disabled"),
    (r"mlflow\.start_run|neptune\.init(_run)?|clearml\.Task\.init|aim\.Run|swanlab\.init", "run-object"),
    (r"wandb\.(login|agent|sweep)|mlflow\.\w+(\.\w+)*|neptune\.\w+|clearml\.Task\.\w+", "tracker"),
    (r"rich\.console\.Console", "console"),
    (r"rich\.progress\.Progress", "bar"),
    (r"rich\.live\.Live|rich\.status\.Status", "live"),
    (r"builtins\.input|getpass\.getpass|rich\.prompt\.\w+\.ask", "input"),
    (r"os\.system|subprocess\.(run|call|check_call|Popen)", "shell"),
    (r"builtins\.exec|runpy\.run_(path|module)", "code"),
)
_COMPILED = tuple((re.compile(p), kind) for p, kind in _ROWS)
_LEVEL = re.compile(_LEVELS)
_WRITERS = ("Writer", ".Logger", ".Visdom", ".create_file_writer")
_PROCESS = frozenset({"os.getpid", "socket.gethostname", "platform.node", "multiprocessing.current_process"})
#: what a console of rich does
_ON_CONSOLES = frozenset({"print", "log", "rule", "print_json", "input", "status", "print_exception"})
#: loggers that say nothing on other ranks, by themselves
_BY_RANK = re.compile(r"(mmcv|mmengine|mmdet|mmseg|mmcls|mmpretrain|mmpose|mmaction|mmdet3d)\.")


@dataclass(frozen=True, eq=False)
class Talk:
    """A call that an observer of the script notices, by kind."""

    call: Outside
    kind: str


def find_talk(facts: Facts) -> list[Talk]:
    """All of it, in the order of the text."""
    calls = facts.cached("outside", outside_calls)
    found = [Talk(c, kind) for c in calls if (kind := kind_of(c))]
    return [t for t in found if t.kind != "log-files" or _names_files(facts, t.call)]


def kind_of(call: Outside) -> str:
    if call.method:
        return _kind_of_method(call)
    for pattern, kind in _COMPILED:
        if pattern.fullmatch(call.name):
            if kind == "log-config" and call.argument(None, "filename") is None:
                return ""  # it only sets formats and levels
            if kind == "console" and call.argument(None, "file") is not None:
                return ""  # the place that opens the file is looked at
            return kind
    role = role_of(call.name)
    if role in ("progress", "progress-range") and not call.name.startswith("fastprogress"):
        return "bar"
    return "writer" if role == "writer" and call.name.endswith(_WRITERS) else ""


def _is_console(made: str) -> bool:
    """A console of rich, or what has one: `progress.print(...)`."""
    return made.startswith(("rich.console", "rich.get_console", "rich.progress.Progress", "rich.live.Live"))


def _kind_of_method(call: Outside) -> str:
    # progress.console.print(...)
    made = [made_by(o.obj if isinstance(o, Method) and o.name == "console" else o) for o in call.obj]
    if any(map(_BY_RANK.match, made)):
        return ""
    if _LEVEL.fullmatch(call.method) and any(LOGGER.fullmatch(m) for m in made):
        return "log"
    if call.method in _ON_CONSOLES and any(map(_is_console, made)):
        return "input" if call.method == "input" else "live" if call.method == "status" else "print"
    if call.method == "write" and any(isinstance(o, Iteration) and o.how in ("progress", "range") for o in call.obj):
        return "print"  # bar.write(...) prints, with the bar disabled too
    if call.method in ("add_file", "add_dir") and "wandb.Artifact" in made:
        return "tracker"  # it reads the file, which one rank has written
    if call.method == "show" and not call.node.args and not any(isinstance(o, Thing) and o.name for o in call.obj):
        return "print"
    return ""


def _names_files(facts: Facts, call: Outside) -> bool:
    """`logging.config.dictConfig(settings)`, unless these are known and have no file in them."""
    if call.name == "logging.config.fileConfig":
        return facts.converting
    given = call.argument(0, "config")
    todo, seen = list(facts.flow.values.get(given, ())) if given is not None else [], set[int]()
    known = bool(todo)
    while todo:
        obj = todo.pop()
        if isinstance(obj, Dict) and id(obj) not in seen:
            seen.add(id(obj))
            if "filename" in obj.items:
                return True
            known = known and obj.closed
            todo.extend(o for value in obj.items.values() for o in value)
        elif not isinstance(obj, (Dict, Const, Seq, Ext)):
            known = False
    return facts.converting and not known


def is_quiet(facts: Facts, t: Talk) -> bool:
    """`console.print(...)` of a console of rich that says nothing on the other ranks, or will not."""
    found = [o.site.node for o in t.call.obj if isinstance(o, Thing) and made_by(o) == "rich.console.Console"]
    made = found[0] if t.kind in ("print", "live") and len(found) == len(t.call.obj) == 1 else None
    if not isinstance(made, cst.Call):
        return False
    given = {a.keyword.value for a in made.args if a.keyword is not None}
    return "file" not in given and (facts.editable(facts.source_of(made)) if facts.converting else "quiet" in given)


def is_off(facts: Facts, t: Talk) -> bool:
    """`tqdm(steps, disable=True)`, or `disable=not self.bars` where all that is given for it is False."""
    given = t.call.argument(None, "disable")
    return given is not None and _always(facts, given, True)


def _always(facts: Facts, node: cst.BaseExpression, wanted: bool) -> bool:
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        return _always(facts, node.expression, not wanted)
    if isinstance(node, cst.Name) and node.value in ("True", "False"):
        return node.value == str(wanted)
    known = constants(facts.flow.values.get(node, ()))
    return bool(known) and all(k is wanted for k in known or ())


def is_below_level(facts: Facts, t: Talk) -> bool:
    """`logging.debug(...)` where nothing asks for that level: it is not shown."""
    name = t.call.method or t.call.name.rpartition(".")[2]
    hidden = t.kind == "log" and name == "debug" and not t.call.name.startswith("loguru.")
    return hidden and not any(re.search(r"\bDEBUG\b", s.text) for s in facts.project.files())


def may_be_a_file(facts: Facts, t: Talk) -> bool:
    """`self.file.write(line)` of a sink that is given sys.stdout, or a file: who gives it knows on which rank."""
    func = t.call.node.func
    if not t.call.name.startswith("sys.") or not isinstance(func, cst.Attribute):
        return False
    held = facts.flow.values.get(func.value, ())
    return any(not (isinstance(o, Ext) and o.name.startswith("sys.")) for o in held)


def names_process(facts: Facts, node: cst.BaseExpression) -> bool:
    """`print(f"[{os.getpid()}] ...")`, which every process is meant to say."""
    known = (o for n in walk(node) for o in facts.flow.values.get(n, ()))
    return any(isinstance(o, Ext) and o.name in _PROCESS for o in known)
