"""The facts in, whether loggers are quiet on the other ranks, or set up where nobody sees it, out."""

from __future__ import annotations

import ast
import itertools
import re
from pathlib import Path

import libcst as cst

from ddpify.facts import Facts
from ddpify.facts.externals import LOGGER
from ddpify.facts.frames import Event
from ddpify.facts.outside import made_by
from ddpify.facts.ranks import depends_on_rank, guarded
from ddpify.facts.talk import Talk
from ddpify.facts.values import Value
from ddpify.rules._quiet import is_given_rank

#: what sets up loggers, besides the functions of logging
_SETTINGS = frozenset(
    {
        *("setLevel", "addHandler", "basicConfig", "disable", "addFilter"),
        *("loguru.logger.add", "loguru.logger.remove", "loguru.logger.configure", "loguru.logger.disable"),
    }
)
#: handlers whose argument is the file
_FILES = re.compile(r"logging\.FileHandler|logging\.handlers\.\w+FileHandler|loguru\.logger\.add")

#: what marks the folder of a project, what is none of its files, and how many are read at most
_MARKS, _HIDDEN, _MOST = (".git", "pyproject.toml", "setup.py", "setup.cfg"), {".git", ".venv", "site-packages"}, 4000
_SETS = frozenset({"setLevel", "disable"})
_LEVELS = re.compile(rb"\.(setLevel|disable)\b")
_RANKS = re.compile(r"rank|main_process|is_main|is_master|master_process", re.I)


def logging_by_rank(facts: Facts, talk: list[Talk]) -> bool:
    """Whether levels, handlers or formats are set by rank somewhere, or all that is said goes to a file of the rank."""
    files = False
    for e in facts.flow.log.of("external", "method"):
        settings = e.name.startswith("logging.") or e.name in _SETTINGS
        if not settings or not isinstance(e.node, cst.Call):
            continue
        if any(depends_on_rank(a.value, e.frame, facts.flow) for a in e.node.args if _is(a, "level")):
            return True  # basicConfig(level=level, filename="train.log")
        loguru = e.name.startswith("loguru.")
        path = _path_of(e, e.node)
        if path is not None and not loguru:
            # a file of the rank, or of rank 0 alone: what no other handler shows, nobody sees
            files = files or depends_on_rank(path, e.frame, facts.flow) or guarded(e, facts.flow)
        if not loguru and any(e in t.call.events for t in talk):
            continue  # what is said sets up nothing, on whatever rank
        if e.name == "addHandler" and any(_FILES.fullmatch(made_by(o)) for o in _given(facts, e.node)):
            continue
        others = [a for a in e.node.args if a.value is not path]
        named = any(depends_on_rank(a.value, e.frame, facts.flow) or _asks_first(a, e) for a in others)
        if named or guarded(e, facts.flow) or is_given_rank(facts, e):
            return True
    return (files and not any(map(_shows, facts.flow.log.of("external")))) or _is_disabled(facts)


def set_up_elsewhere(facts: Facts, t: Talk) -> bool:
    """In functions that nothing here calls: whoever does so has set up the loggers, on which rank nobody knows."""
    chains = [list(chain) for e in t.call.events for chain in e.frame.chains()]
    if not chains or not all(c and isinstance(c[0].call, (cst.FunctionDef, cst.ClassDef)) for c in chains):
        return False
    # logger.setLevel(logging.INFO) of the module itself comes behind the caller's; basicConfig gives way to it
    levels = (e for e in facts.flow.log.of("method") if e.name == "setLevel" and e.seq < facts.flow.main_end)
    if any(e.obj is not None and LOGGER.fullmatch(made_by(e.obj)) for e in levels):
        return False
    return facts.cached("levels by rank", _levels_by_rank)


def _levels_by_rank(facts: Facts) -> bool:
    """Whether any file of the project, one that is not imported here, gives loggers their level by rank."""
    folder = facts.source.path.absolute().parent
    folder = next((f for f in (folder, *folder.parents) if any((f / m).exists() for m in _MARKS)), folder)
    paths = itertools.islice((p for p in folder.rglob("*.py") if not _HIDDEN & set(p.parts)), _MOST)
    return any(_sets_level(path) for path in paths)


def _sets_level(path: Path) -> bool:
    """`if rank == 0: logger.setLevel(INFO)`, of a logger and not of one of its handlers."""
    try:
        data = path.read_bytes()
        if not _LEVELS.search(data) or not _RANKS.search(data.decode("utf-8", "replace")):
            return False
        tree = ast.parse(data)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    made = (n for n in ast.walk(tree) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call))
    handlers = {
        ast.unparse(t) for n in made for t in n.targets if ast.unparse(n.value).split("(")[0].endswith("Handler")
    }
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp)) and _RANKS.search(ast.unparse(node.test)):
            called = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
            methods = [f for f in called if isinstance(f, ast.Attribute) and f.attr in _SETS]
            if any(ast.unparse(f.value) not in handlers for f in methods):
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SETS:
            chosen = (n for a in node.args for n in ast.walk(a) if isinstance(n, ast.IfExp))
            if any(_RANKS.search(ast.unparse(n.test)) for n in chosen) and ast.unparse(node.func.value) not in handlers:
                return True
    return False


def _is(arg: cst.Arg, keyword: str) -> bool:
    return arg.keyword is not None and arg.keyword.value == keyword


def _given(facts: Facts, call: cst.Call) -> Value:
    return facts.flow.values.get(call.args[0].value, ()) if call.args else ()


def _path_of(e: Event, call: cst.Call) -> cst.BaseExpression | None:
    """`"log.txt"` of `logging.FileHandler("log.txt")`, `basicConfig(filename="log.txt")`."""
    named = next((a.value for a in call.args if _is(a, "filename") or _is(a, "sink")), None)
    first = call.args[0].value if call.args and call.args[0].keyword is None else None
    return named or (first if _FILES.fullmatch(e.name) else None)


def _shows(e: Event) -> bool:
    """A handler for the terminal; of loguru there is one until it is taken away."""
    call = e.node
    shown = e.name == "logging.StreamHandler" or (
        e.name == "logging.basicConfig" and isinstance(call, cst.Call) and _path_of(e, call) is None
    )
    return shown and not (isinstance(call, cst.Call) and any(_is(a, "handlers") for a in call.args))


def _is_disabled(facts: Facts) -> bool:
    """`logger.disabled = rank != 0`"""
    for e in facts.flow.log.of("set"):
        value = e.stmt.value if isinstance(e.stmt, (cst.Assign, cst.AnnAssign)) and e.name == "disabled" else None
        if value is not None and (depends_on_rank(value, e.frame, facts.flow) or guarded(e, facts.flow)):
            return True
    return False


def _asks_first(arg: cst.Arg, e: Event) -> bool:
    """`logger.setLevel(level if rank == 0 else "ERROR")`, of a parameter: who says so means the rank."""
    if not isinstance(arg.value, cst.IfExp) or e.frame.func is None:
        return False
    params = {p.name.value for p in e.frame.func.node.params.params}
    match arg.value.test:
        case cst.Comparison(
            left=cst.Name(value=name), comparisons=[cst.ComparisonTarget(comparator=cst.Integer(value="0"))]
        ):
            return name in params
    return False
