"""Edits inside a statement: replaced, appended, surrounded, given an argument; and conflicts."""

from __future__ import annotations

import ast

import pytest

from ddpify.edits import AddHelper, AddImport, DropArguments, Guard, Hoist, Replace
from ddpify.rewrite import Conflict, Rewriter
from tests.rewrite.script import Script, check, rewritten


@pytest.mark.parametrize(
    "text", ["", "\n", "x = 1", "x = 1\n\n\n", "\tif 1:\n" * 0 + "if 1:\n\tx = 1 ; y = 2\\\n+ 3\r\n"]
)
def test_no_edits_no_change(text: str) -> None:
    assert rewritten(text, lambda s: []) == text


def test_imports_and_helpers_are_not_written_here() -> None:
    text = "x = 1\n"
    assert rewritten(text, lambda s: [AddImport(s.source, "os"), AddHelper(s.source, "unwrap")]) == text


def test_replace_an_expression() -> None:
    check("x = f( a ,b )  # why", lambda s: [s.replace("a", "c")], "x = f( c ,b )  # why")


def test_replace_a_statement() -> None:
    check(
        "a = 1; device = 'cuda'; b = 2",
        lambda s: [Replace(s.source, s.stmt("device"), "device = setup()")],
        "a = 1; device = setup(); b = 2",
    )


def test_replace_one_node_twice_alike() -> None:
    check("f(a)", lambda s: [s.replace("a", "b"), s.replace("a", "b")], "f(b)")


@pytest.mark.parametrize(
    ("code", "gives"),
    [
        ("model", "model.module"),
        ("self.model", "self.model.module"),
        ("models[0]", "models[0].module"),
        ("make()", "make().module"),
        ("a or b", "(a or b).module"),
        ("a if c else b", "(a if c else b).module"),
        ("not a", "(not a).module"),
        ("lambda: a", "(lambda: a).module"),
    ],
)
def test_append(code: str, gives: str) -> None:
    check(f"f({code})", lambda s: [s.append(code)], f"f({gives})")


def test_append_to_what_stands_in_parentheses() -> None:
    result = rewritten("x = (a or b)\n", lambda s: [s.append("a or b")])
    assert ast.dump(ast.parse(result)) == ast.dump(ast.parse("x = (a or b).module"))


def test_append_to_what_was_replaced() -> None:
    check("f(a.b)", lambda s: [s.replace("a", "c"), s.append("a.b")], "f(c.b.module)")


def test_surround_nested() -> None:
    check(
        "x = net(inputs)",
        lambda s: [
            s.surround("net(inputs)", "DDP(", ")"),
            s.surround("net", "wrap(", ")"),
            s.append("inputs", ".to(d)"),
        ],
        "x = DDP(wrap(net)(inputs.to(d)))",
    )


def test_surround_the_same_place_twice() -> None:
    check(
        "x = net",
        lambda s: [s.surround("net", "outer(", ")"), s.surround("net", "inner(", ")")],
        "x = outer(inner(net))",
    )


def test_append_inside_surround_of_the_same_node() -> None:
    assert rewritten("f(model)\n", lambda s: [s.surround("model", "g(", ")"), s.append("model")]) in (
        "f(g(model.module))\n",
        "f(g(model).module)\n",
    )


SAMPLER = ("sampler", "S(d)")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("L()", "L(sampler=S(d))"),
        ("L(d)", "L(d, sampler=S(d))"),
        ("L(d, shuffle=True)", "L(d, sampler=S(d))"),
        ("L(d, shuffle=True, batch_size=4)", "L(d, sampler=S(d), batch_size=4)"),
        ("L(d, shuffle = True,)", "L(d, sampler=S(d),)"),
        ("L(d, sampler=None)", "L(d, sampler=S(d))"),
        ("L(d, shuffle=True, sampler=None)", "L(d, sampler=S(d))"),
        ("L(d, sampler=None, shuffle=True, x=1)", "L(d, sampler=S(d), x=1)"),
        ("L(d, **kw)", "L(d, sampler=S(d), **kw)"),
        ("L(**kw)", "L(sampler=S(d), **kw)"),
        ("L(d, *rest)", "L(d, *rest, sampler=S(d))"),
        ("L(d,)", "L(d, sampler=S(d),)"),
        ("L(d, (1, 2))", "L(d, (1, 2), sampler=S(d))"),
    ],
)
def test_set_argument(before: str, after: str) -> None:
    check(f"x = {before}  # c", lambda s: [s.argument("L(", *SAMPLER, ("shuffle",))], f"x = {after}  # c")


def test_set_argument_in_the_layout_of_the_call() -> None:
    check(
        """
        x = L(
            d,
            batch_size=4,  # small
            shuffle=True,  # each epoch
        )
        y = M(
            d,
            batch_size=4,  # small
        )
        """,
        lambda s: [s.argument("L(", *SAMPLER, ("shuffle",)), s.argument("M(", *SAMPLER)],
        """
        x = L(
            d,
            batch_size=4,  # small
            sampler=S(d),  # each epoch
        )
        y = M(
            d,
            batch_size=4,
            sampler=S(d),  # small
        )
        """,
    )


def test_set_argument_over_lines_with_kwargs() -> None:
    result = rewritten("x = L(\n    d,\n    **kw,\n)\n", lambda s: [s.argument("L(", *SAMPLER)])
    assert [line.strip() for line in result.replace("sampler=S(d), **kw", "sampler=S(d),\n**kw").splitlines()] == [
        "x = L(",
        "d,",
        "sampler=S(d),",
        "**kw,",
        ")",
    ]


def test_positional_arguments_give_way() -> None:
    check(
        "x = L(d, 4, True)",
        lambda s: [s.argument("L(", *SAMPLER, ("shuffle",), ((2, "False"),))],
        "x = L(d, 4, False, sampler=S(d))",
    )
    check(
        "x = L(d, 4, True)",
        lambda s: [s.argument("L(", *SAMPLER, ("shuffle",), ((2, "sampler=S(d)"),))],
        "x = L(d, 4, sampler=S(d))",
    )


def test_two_arguments_of_one_call() -> None:
    check(
        "x = L(d)",
        lambda s: [s.argument("L(", "sampler", "S(d)"), s.argument("L(", "drop_last", "True")],
        "x = L(d, sampler=S(d), drop_last=True)",
    )
    check(
        "x = L(d, shuffle=True)",
        lambda s: [
            s.argument("L(", *SAMPLER, ("shuffle",)),
            s.argument("L(", "drop_last", "True"),
            s.replace("d", "e"),
        ],
        "x = L(e, sampler=S(d), drop_last=True)",
    )


def test_two_texts_for_one_node() -> None:
    with pytest.raises(Conflict, match=r"train\.py:1"):
        rewritten("f(a)\n", lambda s: [s.replace("a", "b"), s.replace("a", "c")])


def test_what_is_replaced_takes_the_edits_inside_it_with_it() -> None:
    check("f(a(b), c)", lambda s: [s.replace("a(b)", "d"), s.replace("b", "e"), s.append("c")], "f(d, c.module)")
    check("f(a(b), c)", lambda s: [s.replace("a", "e"), s.replace("a(b)", "d"), s.append("c")], "f(d, c.module)")
    check("f(a(b), c)", lambda s: [s.replace("a(b)", "d"), s.append("b")], "f(d, c)")
    check("f(a(b), c)", lambda s: [s.append("b"), s.surround("b", "g(", ")"), s.replace("a(b)", "d")], "f(d, c)")


def test_a_dropped_argument_takes_the_edits_inside_it_with_it() -> None:
    check(
        "x = L(d, shuffle=a(b), sampler=None)",
        lambda s: [s.replace("b", "c"), s.argument("L(", *SAMPLER, ("shuffle",))],
        "x = L(d, sampler=S(d))",
    )


def test_two_overlapping_texts() -> None:
    script = Script("a + b + c\n")
    rewriter = Rewriter(script.source)
    rewriter.change(0, 5, "x")
    rewriter.change(4, 9, "y")
    with pytest.raises(Conflict, match=r"train\.py:1"):
        rewriter.result()


# ---- arguments dropped, expressions taken out -------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "gives"),
    [
        ((0,), "f(b, c, k=1)"),
        ((1,), "f(a, c, k=1)"),
        ((2,), "f(a, b, k=1)"),
        ((0, 2), "f(b, k=1)"),
        ((0, 1, 2), "f(k=1)"),
    ],
)
def test_drop_arguments(places: tuple[int, ...], gives: str) -> None:
    check("x = f(a, b, c, k=1)", lambda s: [DropArguments(s.source, s.call("f("), places)], f"x = {gives}")


def test_drop_the_only_argument() -> None:
    check("x = f(a)", lambda s: [DropArguments(s.source, s.call("f("), (0,))], "x = f()")


def test_hoist_takes_the_edits_inside_with_it() -> None:
    check(
        """
        if best:
            # told
            print("best",
                  evaluate(model,
                           loader), 1)
        """,
        lambda s: [
            Hoist(s.source, s.call("evaluate("), "result", s.stmt("print")),
            Guard(s.source, s.stmt("print"), "if is_main_process()"),
            s.append("model"),
            s.replace("1", "2"),
        ],
        """
        if best:
            result = evaluate(model.module,
                              loader)
            if is_main_process():
                # told
                print("best",
                      result, 2)
        """,
    )


def test_hoist_out_of_a_suite_on_one_line() -> None:
    check(
        "if best: print(f(x))",
        lambda s: [
            Hoist(s.source, s.call("f("), "result", s.stmt("print")),
            Guard(s.source, s.stmt("print"), "if is_main_process()"),
        ],
        """
        if best:
            result = f(x)
            if is_main_process():
                print(result)
        """,
    )
