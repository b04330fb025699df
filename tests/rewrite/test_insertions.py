"""Statements put in and taken out, in every layout that Python allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpify.edits import Delete, Edit, InsertAfter
from ddpify.rewrite import Rewriter
from ddpify.source import Source
from tests.rewrite.script import Script, check, rewritten


def test_insert_before_goes_above_the_comments() -> None:
    check(
        """
        a = 1

        # about b
        # and more
        b = 2  # behind b
        """,
        lambda s: [s.before("b = 2", "one()", "two()")],
        """
        a = 1

        one()
        two()
        # about b
        # and more
        b = 2  # behind b
        """,
    )


def test_insert_before_a_cell_mark_and_a_coding_line() -> None:
    text = "# -*- coding: utf-8 -*-\nx = 1\n# In[2]:\ny = 2\n"
    after = "# -*- coding: utf-8 -*-\none()\nx = 1\n# In[2]:\ntwo()\ny = 2\n"
    assert rewritten(text, lambda s: [s.before("x", "one()"), s.before("y", "two()")]) == after


def test_insert_before_what_is_decorated() -> None:
    check(
        """
        # about f
        @cached
        @torch.no_grad()
        def f():
            return 1
        """,
        lambda s: [s.before("def f", "one()"), s.before("return", "two()")],
        """
        one()
        # about f
        @cached
        @torch.no_grad()
        def f():
            two()
            return 1
        """,
    )


def test_insert_with_lines_inside() -> None:
    check(
        """
        def f():
            x = 1
        """,
        lambda s: [s.before("x", "if a:\n    b()"), s.after("x", "if c:\n    d()")],
        """
        def f():
            if a:
                b()
            x = 1
            if c:
                d()
        """,
    )


def test_lines_inside_take_the_unit_of_the_file() -> None:
    def make(s: Script) -> list[Edit]:
        return [s.before("x", "if a:\n    b()"), s.after("x", "if c:\n    if d:\n        e()")]

    after = "if f:\n\tif a:\n\t\tb()\n\tx = 1\n\tif c:\n\t\tif d:\n\t\t\te()\n"
    check("if f:\n\tx = 1\n", make, after, clean=False)
    check("if f:\n  x = 1\n", make, after.replace("\t", "  "), clean=False)


def test_insert_after_a_block() -> None:
    check(
        """
        def f():
            for x in y:
                if x:
                    a()  # deep

            # about b
            b()
        """,
        lambda s: [s.after("for", "one()"), s.after("a()", "two()")],
        """
        def f():
            for x in y:
                if x:
                    a()  # deep
                    two()
            one()

            # about b
            b()
        """,
    )


@pytest.mark.parametrize(
    "block",
    [
        "while a:\n    b()\nelse:\n    c()",
        "try:\n    b()\nexcept E:\n    pass\nelse:\n    b()\nfinally:\n    c()",
        "try:\n    b()\nexcept E as e:\n    c()",
        "with a as b, c as d:\n    c()",
        "match a:\n    case 1:\n        b()\n    case _:\n        c()",
        "if a: b()\nelif d: b()\nelse: c()",
        "class A:\n    def f(self):\n        c()",
        "async def f():\n    c()",
        "f(\n    a,\n)",
        '"""a\nb\n"""',
        "x = a + \\\n    b",
    ],
)
def test_insert_after_every_kind_of_block(block: str) -> None:
    start = block.split("\n")[0]
    check(f"{block}\nz()\n", lambda s: [s.after(start, "new()")], f"{block}\nnew()\nz()\n", clean=False)
    check(f"{block}\n", lambda s: [s.after(start, "new()")], f"{block}\nnew()\n", clean=False)


def test_insert_behind_the_last_line() -> None:
    assert rewritten("a()  # c", lambda s: [s.after("a", "b()", "c()")]) == "a()  # c\nb()\nc()"
    assert rewritten("if a:\n\tb()\n", lambda s: [s.after("b", "c()"), s.after("if", "d()")]) == (
        "if a:\n\tb()\n\tc()\nd()\n"
    )


def test_insert_between_the_statements_of_a_line() -> None:
    check(
        "a = 1; b = 2; c = 3  # all",
        lambda s: [s.before("b", "new()")],
        """
        a = 1
        new()
        b = 2
        c = 3  # all
        """,
    )
    check(
        "    a = 1; b = 2".strip(),
        lambda s: [s.after("a", "new()")],
        """
        a = 1
        new()
        b = 2
        """,
    )


def test_insert_into_a_suite_on_one_line() -> None:
    check(
        """
        for x in y: a(); b()  # loop
        else: c()
        """,
        lambda s: [s.before("b", "one()"), s.after("c", "two()")],
        """
        for x in y:
            a()
            one()
            b()  # loop
        else:
            c()
            two()
        """,
    )


def test_a_colon_in_a_suite_on_one_line() -> None:
    check(
        'if a[1:2] == {"x": 1}: b("c: d")',
        lambda s: [s.before("b", "one()")],
        """
        if a[1:2] == {"x": 1}:
            one()
            b("c: d")
        """,
    )


def test_several_insertions_keep_their_order() -> None:
    check(
        """
        a()
        b()
        """,
        lambda s: [s.after("a", "one()"), s.after("a", "two()"), s.before("b", "three()"), s.before("b", "four()")],
        """
        a()
        one()
        two()
        three()
        four()
        b()
        """,
    )


def test_tabs_stay_tabs() -> None:
    text = "if a:\n\tif b:\n\t\tc()\n"
    after = "if a:\n\tif b:\n\t\tone()\n\t\tif is_main_process():\n\t\t\tc()\n\t\ttwo()\n"
    check(text, lambda s: [s.before("c", "one()"), *s.guard("c"), s.after("c", "two()")], after, clean=False)


def test_two_spaces_stay_two() -> None:
    check("if a:\n  b()\n", lambda s: s.guard("b"), "if a:\n  if is_main_process():\n    b()\n", clean=False)


def test_delete_a_line_with_its_comment() -> None:
    check(
        """
        a()
        # about b
        b()  # behind
        c()
        """,
        lambda s: [s.delete("b", comments=True)],
        """
        a()
        c()
        """,
    )


def test_delete_keeps_the_comment_above() -> None:
    check("a()\n# about b\nb()\nc()\n", lambda s: [s.delete("b")], "a()\n# about b\nc()\n", clean=False)


def test_delete_takes_one_of_two_blank_lines() -> None:
    check("a()\n\nb()\n\nc()\n", lambda s: [s.delete("b")], "a()\n\nc()\n", clean=False)


def test_delete_the_only_statement_of_a_block() -> None:
    check("if a:\n    b()\nc()\n", lambda s: [s.delete("b")], "if a:\n    pass\nc()\n", clean=False)


def test_delete_in_a_suite_on_one_line() -> None:
    check("if a: b()\nc()\n", lambda s: [s.delete("b")], "if a:\n    pass\nc()\n", clean=False)


def test_delete_a_block() -> None:
    check("a()\nif b:\n    c()\nelse:\n    d()\ne()\n", lambda s: [s.delete("if b")], "a()\ne()\n", clean=False)


@pytest.mark.parametrize("which", ["a()", "b()", "c()"])
def test_delete_one_of_several_on_a_line(which: str) -> None:
    result = rewritten("a(); b(); c()\nd()\n", lambda s: [s.delete(which)])
    left = [line for line in result.split("\n") if line.strip()]
    assert left == [x for x in ("a()", "b()", "c()", "d()") if x != which]


def test_delete_the_last_line() -> None:
    assert rewritten("a()\nb()", lambda s: [s.delete("b")]).rstrip("\n") == "a()"


def test_inserted_lines_take_the_place_of_a_statement_that_goes() -> None:
    check(
        """
        def train():
            net = Net()

            # all GPUs
            if count() > 1:
                net = Parallel(net)

            fit(net)
        """,
        lambda s: [s.delete("if count"), s.after("net = Parallel", "net = DDP(net)"), s.before("if count", "log()")],
        """
        def train():
            net = Net()

            # all GPUs
            net = DDP(net)
            log()

            fit(net)
        """,
    )


def test_what_stands_in_the_place_of_a_statement_stays_where_its_comment_goes_too() -> None:
    source = Source(Path("train.py"), b"a = 1\n# several GPUs\nb = 2\n\nc = 3\n")
    stmt = source.module.body[1].body[0]  # type: ignore[index]
    edits: list[Edit] = [InsertAfter(source, stmt, ("b = wrap(b)",)), Delete(source, stmt, comments=True)]
    assert Rewriter(source).apply(edits) == "a = 1\nb = wrap(b)\n\nc = 3\n"


def test_what_stands_behind_a_block_whose_last_line_goes() -> None:
    check(
        """
        if use_cuda:
            net.cuda()
            # all GPUs
            net = Parallel(net)
        fit(net)
        """,
        lambda s: [s.delete("net = Parallel"), s.after("if use_cuda", "net = DDP(net)")],
        """
        if use_cuda:
            net.cuda()
            # all GPUs
        net = DDP(net)
        fit(net)
        """,
    )


def test_delete_all_statements_of_a_block() -> None:
    check("if a:\n    b = 1\n    c = 2\nd = 3\n", lambda s: [s.delete("b"), s.delete("c")], "if a:\n    pass\nd = 3\n")
