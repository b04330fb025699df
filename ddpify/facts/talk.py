"""Calls in, talk out: what prints, logs, draws, reports to a tracker or asks the user."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddpify.facts.externals import LOGGER, role_of
from ddpify.facts.outside import Outside, made_by, outside_calls
from ddpify.facts.values import Iteration, Thing

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
    (r"logging\.FileHandler|logging\.handlers\.\w*RotatingFileHandler|loguru\.logger\.add", "log-file"),
    (r"torchsummary\.summary|torchsummaryX\.summary|torchinfo\.summary|torchscan\.summary", "summary"),
    (r"wandb\.init", "run"),
    (r"comet_ml\.(\w+\.)*(Experiment|ExistingExperiment|start)", "run-disabled"),
    (
        r"wandb\.(login|agent|sweep)|mlflow\.\w+(\.\w+)*|neptune\.\w+|clearml\.Task\.\w+|aim\.Run|swanlab\.init",
        "tracker",
    ),
    (r"builtins\.input|getpass\.getpass", "input"),
    (r"os\.system|subprocess\.(run|call|check_call|Popen)", "shell"),
    (r"builtins\.exec|runpy\.run_(path|module)", "code"),
)
_COMPILED = tuple((re.compile(p), kind) for p, kind in _ROWS)
_LEVEL = re.compile(_LEVELS)


@dataclass(frozen=True, eq=False)
class Talk:
    """A call that an observer of the script notices, by kind."""

    call: Outside
    kind: str


def find_talk(facts: Facts) -> list[Talk]:
    """All of it, in the order of the text."""
    calls = facts.cached("outside", outside_calls)
    return [Talk(c, kind) for c in calls if (kind := kind_of(c))]


def kind_of(call: Outside) -> str:
    if call.method:
        return _kind_of_method(call)
    for pattern, kind in _COMPILED:
        if pattern.fullmatch(call.name):
            if kind == "log-config" and call.argument(None, "filename") is None:
                return ""  # it only sets formats and levels
            return kind
    role = role_of(call.name)
    if role in ("progress", "progress-range") and not call.name.startswith("fastprogress"):
        return "bar"
    return "writer" if role == "writer" and call.name.endswith(("Writer", ".Logger", ".Visdom")) else ""


def _kind_of_method(call: Outside) -> str:
    made = [made_by(o) for o in call.obj]
    if _LEVEL.fullmatch(call.method) and any(LOGGER.fullmatch(m) for m in made):
        return "log"
    if call.method in ("print", "log", "rule", "print_json") and any(m.startswith("rich.console") for m in made):
        return "print"
    if call.method == "write" and any(isinstance(o, Iteration) and o.how in ("progress", "range") for o in call.obj):
        return "print"  # bar.write(...) prints, with the bar disabled too
    if call.method in ("add_file", "add_dir") and "wandb.Artifact" in made:
        return "tracker"  # it reads the file, which one rank has written
    if call.method == "show" and not call.node.args and not any(isinstance(o, Thing) and o.name for o in call.obj):
        return "print"
    return ""
