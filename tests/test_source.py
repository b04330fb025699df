"""Bytes in, a Source out: encodings, line ends, positions, and one sentence for every file that is no Python 3."""

from __future__ import annotations

import ast
import codecs
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import libcst as cst
import pytest

from ddpify.errors import DdpifyError
from ddpify.positions import offsets, outline
from ddpify.source import Source, children, read_source, walk
from tests.cases import CASES, CONVERTED, Case, each

TEXTS = {
    "plain": b"x = 1\n",
    "empty": b"",
    "no-last-line-break": b"x = 1",
    "windows": b"if x:\r\n\ty = 1\r\n",
    "mixed": b"x = 1\r\ny = 2\nz = '''a\r\nb\n'''\n",
    "form-feed": b"x = 1\n\x0c\ny = 2\n",
    "bom": codecs.BOM_UTF8 + "größe = 1\n".encode(),
    "bom-and-coding": codecs.BOM_UTF8 + "# coding: utf-8\ngröße = 1\n".encode(),
    "latin-1": "# -*- coding: latin-1 -*-\ngröße = 'ü'\n".encode("latin-1"),
    "cp1252": "#!/usr/bin/env python\n# vim: set fileencoding=cp1252 :\nx = '€'\n".encode("cp1252"),
    "shift-jis": "# coding: shift_jis\nx = '学習'\n".encode("shift_jis"),
    "wide": "x = '🔥'  # 🔥\ny = 'é'\n".encode(),
}


def source(data: bytes | str) -> Source:
    return Source(Path("train.py"), data.encode() if isinstance(data, str) else data)


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in TEXTS.items()])
def test_bytes_come_back(data: bytes) -> None:
    read = source(data)
    assert read.encode(read.text) == data
    assert not read.text.startswith("\ufeff")


@each(c for c in CASES if c.name not in ("refused_python2", "refused_syntax_error"))
def test_bytes_of_fixtures_come_back(case: Case) -> None:
    data = case.before.read_bytes()
    read = source(data)
    assert read.encode(read.text) == data
    assert read.module.code == read.text


@pytest.mark.parametrize(
    ("data", "newline"), [(b"x = 1\r\ny = 2\r\n", "\r\n"), (b"x = 1\ny = 2\n", "\n"), (b"x = 1", "\n"), (b"", "\n")]
)
def test_newline(data: bytes, newline: str) -> None:
    assert source(data).newline == newline


def test_what_is_inserted_takes_the_encoding() -> None:
    read = source(TEXTS["latin-1"])
    assert read.encode(read.text + "ä = 1\n") == TEXTS["latin-1"] + b"\xe4 = 1\n"
    read = source(TEXTS["bom"])
    assert read.encode(read.text + "ä = 1\n") == TEXTS["bom"] + "ä = 1\n".encode()


# ---- positions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in TEXTS.items()])
def test_every_node_stands_where_its_text_is(data: bytes) -> None:
    read = source(data)
    for node in walk(read.module):
        if isinstance(node, (cst.Name, cst.SimpleString, cst.Integer)):
            assert read.code(node) == node.value
            span = read.span(node)
            assert read.line_at(span.start) == span.line == read.line(node)
            assert read.line_start(span.line) + span.column == span.start


@each(c for c in CASES if c.converts)
def test_every_node_of_fixtures_stands_where_its_text_is(case: Case) -> None:
    read = source(case.before.read_bytes())
    for node in walk(read.module):
        if isinstance(node, (cst.Name, cst.SimpleString, cst.Integer, cst.Float)):
            assert read.code(node) == node.value
    statements = [n for n in walk(read.module) if isinstance(n, cst.BaseSmallStatement)]
    as_python = [n for n in ast.walk(ast.parse(read.text)) if isinstance(n, ast.stmt) and not hasattr(n, "body")]
    as_python = [n for n in as_python if not isinstance(n, ast.Match)]
    as_python.sort(key=lambda n: (n.lineno, n.col_offset))
    for ours, theirs in zip(statements, as_python, strict=True):
        assert read.code(ours) == ast.get_source_segment(read.text, theirs)


@pytest.mark.parametrize("data", [*TEXTS.values(), *(case.before.read_bytes() for case in CONVERTED[::9])])
def test_places_are_those_of_libcst(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = source(data)
    spans = [quick.span(n) for n in reversed(list(walk(quick.module)))]  # one statement after the other, then the rest
    assert offsets(quick.module, quick.text) is not None
    assert offsets(quick.module, quick.text + "\n\n\n") is None
    monkeypatch.setattr("ddpify.parsing.outline", lambda body: ())
    whole = source(data)
    assert [whole.span(n) for n in reversed(list(walk(whole.module)))] == spans
    monkeypatch.setattr("ddpify.positions.offsets", lambda module, text: None)
    slow = source(data)
    assert [slow.span(n) for n in reversed(list(walk(slow.module)))] == spans


SEVERAL = """\
# of the file
a = 1; b = 2

# of the class
@first
@second
class Net:
\t# of the method
\tdef forward(self, x):
\t\treturn [
  x, last]

\t@third
\tdef loss(self): pass
if a: c = "ä" ; d = inner
"""


def test_the_place_of_a_node_takes_its_own_statement_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpify.positions.offsets", lambda module, text: pytest.fail("the whole file was written"))
    read = source(SEVERAL)
    names = {n.value: n for n in walk(read.module) if isinstance(n, cst.Name)}
    for name in ("last", "inner", "third", "b", "loss", "second"):
        assert read.text[read.span(names[name]).start :].startswith(name)


def test_a_statement_that_the_parsers_see_in_other_places_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ddpify.parsing.outline", lambda body: tuple(replace(o, line=o.line + 1) for o in outline(body))
    )
    read = source(SEVERAL)
    names = [n for n in walk(read.module) if isinstance(n, cst.Name)]
    assert [read.text[read.span(n).start :][: len(n.value)] for n in names] == [n.value for n in names]


def test_past_the_end_of_the_text() -> None:
    read = source("x = 1\ny = 2")
    assert read.line_start(3) == len(read.text)
    assert read.line_start(99) == len(read.text)
    assert read.line_at(len(read.text)) == 2


def test_walk_gives_code_in_the_order_of_the_text() -> None:
    read = source("def f(a, b=1, *c, d=2, **e):\n    return [x for x in a if x]\n")
    names = [n.value for n in walk(read.module) if isinstance(n, cst.Name)]
    assert names[:6] == ["f", "a", "b", "c", "d", "e"]
    assert sorted(names[6:]) == ["a", "x", "x", "x"]


def test_every_name_is_walked() -> None:
    text = """
@deco(arg1)
async def f1(a1: ann1 = def1, /, b1=def2, *rest1: ann2, k1: ann3, **kw1) -> ann4:
    global g1
    nonlocal n1
    async with ctx1(x1) as y1, ctx2 as (z1, z2):
        await w1
    try:
        raise e1 from e2
    except (t1, t2) as h1:
        del d1, d2[i1]
    x2: ann5 = y2 if c1 else y3
    x3 += f"{v1!r:>{v2}} {v3=}"
    assert a2, m1
    yield from q1
    print(*s1, **s2, sep=s3)
    lambda l1, *l2: l1 + l2
    {k2: v4, **v5}; {e3, *e4}; [e5, *e6]; (e7, *e8)
    {k3: v6 for v6, k3 in it1 if c2 if c3}
    o1[sl1:sl2:sl3, sl4] = (w2 := 3)
    not u1, -u2, b2 < b3 <= b4, b5 and b6
    match m2:
        case cls1(p1, attr1=p2) if c4:
            pass
        case {"k": p3, **p4}:
            pass
        case [p5, *p6]:
            pass
        case p7.p8 | 1:
            pass
        case _ as p9:
            pass
    import im1.im2 as im3
    from im4.im5 import im6 as im7
    while c5:
        break
    else:
        return r1
"""
    compile(
        text.replace("    nonlocal n1\n", "").replace("yield from q1", "yield q1").replace("return r1", "r1"),
        "",
        "exec",
    )
    read = source(text.replace("    nonlocal n1\n", ""))
    walked = sorted(n.value for n in walk(read.module) if isinstance(n, cst.Name))
    found: list[str] = []

    class Every(cst.CSTVisitor):
        def visit_Name(self, node: cst.Name) -> None:
            found.append(node.value)

    read.module.visit(Every())
    assert walked == sorted(found)


def test_parents_are_the_inverse_of_children() -> None:
    read = source("if a:\n    b = [c for c in d]\nelse: e()\n")
    for node in walk(read.module):
        for child in children(node):
            assert read.parents[child] is node
    name = next(n for n in walk(read.module) if isinstance(n, cst.Name) and n.value == "e")
    assert [type(n).__name__ for n in read.ancestors(name)][-3:] == ["Else", "If", "Module"]


def test_comments_above() -> None:
    read = source("#! no\n# -*- coding: utf-8 -*-\n# a\n# b\nx = 1\n\n# In[1]:\n# c\ny = 2\n    # d\nz = 3\n")
    starts = [read.span(n).start for n in walk(read.module) if isinstance(n, cst.Assign)]
    assert [read.comments_above(s) for s in starts] == [["# a\n", "# b\n"], ["# c\n"], []]


# ---- what is no Python 3 ------------------------------------------------------------------------------

WRONG = {
    "syntax": (b"x = 1\ny = = 2\n", r"train\.py:2:\d+: syntax error, ddpify converts Python 3$"),
    "print": (b"x = 1\nprint 'hello'\n", r"train\.py:2:\d+: Python 2 print statement; .*2to3"),
    "print-between": (b"x = 1\nprint 'hello'\ny = 2\n", r"train\.py:2:1: Python 2 print statement"),
    "print-of-a-name": (b"print x\n", r"train\.py:1:\d+: Python 2 print statement"),
    "except": (b"try:\n    x()\nexcept IOError, e:\n    pass\n", r"train\.py:3:\d+: Python 2 syntax"),
    "exec": (b"exec 'x = 1'\n", r"train\.py:1:\d+: Python 2 syntax"),
    "async": (
        b"import a\nx.cuda(async=True)\nimport b\n",
        r"train\.py:2:8: `async=` is a syntax error since Python 3\.7",
    ),
    "binary": (b"\x7fELF\x00\x00\x00", r"train\.py: a binary file, not Python source$"),
    "not-utf-8": (b"x = '\xff\xfe'\n", r"train\.py: .*(not utf-8 text \(byte 5\)|invalid or missing encoding)"),
    "not-what-it-says": (b"# coding: ascii\nx = 1\n\n\nprint('\xe9')\n", r"train\.py: not ascii text \(byte \d+\)"),
    "unknown-coding": (b"# coding: klingon\nx = 1\n", r"train\.py: unknown encoding: klingon"),
    "bom-and-latin": (codecs.BOM_UTF8 + b"# coding: latin-1\nx = 1\n", r"train\.py: encoding problem"),
    "utf-16": ("x = 1\n".encode("utf-16"), r"train\.py: a binary file"),
    "carriage-returns-alone": (b"if x:\r    y = 1\rz = (\r", r"train\.py.*: "),
    "not-closed": (b"x = (1,\n", r"train\.py:\d+:\d+: syntax error"),
    "tabs-and-spaces": (b"if x:\n        y\n\tz\n", r"train\.py(:\d+:\d+)?: "),
}


@pytest.mark.parametrize(("data", "says"), [pytest.param(d, s, id=n) for n, (d, s) in WRONG.items()])
def test_one_sentence(data: bytes, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("train.py")
    path.write_bytes(data)
    from ddpify.convert import convert

    with pytest.raises(DdpifyError, match=says) as raised:
        convert(path)
    assert "\n" not in str(raised.value)


def test_a_missing_colon_is_found_where_it_is_missing() -> None:
    with pytest.raises(DdpifyError, match=r"train\.py:2:5: "):
        source("x = 1\nif x\n    y = 2\n")


@pytest.mark.parametrize("text", ["x = " + "(" * 3000 + ")" * 3000, "x = " + "-" * 30000 + "1"])
def test_deep_nesting(text: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import torch\n{text}\n")
    command = [sys.executable, "-m", "ddpify", "train.py"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "train.py" in done.stderr


def test_a_line_that_looks_like_python_2_only_there(tmp_path: Path) -> None:
    """A syntax error elsewhere is not called Python 2 for the word `print` in a text."""
    with pytest.raises(DdpifyError, match="syntax error, ddpify converts Python 3"):
        source("print('print x')\nx = 1\n\n\ny = = 2\n")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(DdpifyError, match=r"nothing\.py: no such file$"):
        read_source(tmp_path / "nothing.py")


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(DdpifyError, match=r"a folder; give the script that trains$"):
        read_source(tmp_path)


def test_a_file_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(DdpifyError, match="Not a directory"):
        read_source(tmp_path / "a" / "train.py")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="this user may read everything")
def test_not_readable(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = 1\n")
    path.chmod(0)
    with pytest.raises(DdpifyError, match="not readable"):
        read_source(path)


def test_names_with_spaces_and_letters(tmp_path: Path) -> None:
    path = tmp_path / "mein Übungs skript.py"
    path.write_text("x = 1\n")
    assert read_source(path).text == "x = 1\n"


def test_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.py").write_text("x = 1\n")
    (tmp_path / "link.py").symlink_to(tmp_path / "real.py")
    assert read_source(tmp_path / "link.py").path == tmp_path / "link.py"
