"""Statements put under `if is_main_process():`, with edits inside and around."""

from __future__ import annotations

from tests.rewrite.script import check


def test_guard_alone() -> None:
    check("print(1)  # c\n", lambda s: s.guard("print"), "if is_main_process():\n    print(1)  # c\n", clean=False)


def test_guard_takes_the_comments_above_with_it() -> None:
    check(
        """
        a()

        # about b
        b()
        """,
        lambda s: s.guard("b"),
        """
        a()

        if is_main_process():
            # about b
            b()
        """,
    )


def test_neighbours_share_a_guard() -> None:
    check(
        """
        a()
        b()

        # about c
        c()
        d()
        """,
        lambda s: s.guard("a", "c", "b"),
        """
        if is_main_process():
            a()
            b()

            # about c
            c()
        d()
        """,
    )


def test_what_is_inserted_parts_neighbours() -> None:
    check(
        """
        a()
        b()
        """,
        lambda s: [*s.guard("a", "b"), s.before("b", "new()")],
        """
        if is_main_process():
            a()
        new()
        if is_main_process():
            b()
        """,
    )
    check(
        """
        a()
        b()
        """,
        lambda s: [*s.guard("a", "b"), s.after("a", "new()")],
        """
        if is_main_process():
            a()
        new()
        if is_main_process():
            b()
        """,
    )


def test_guards_with_different_headers_stay_apart() -> None:
    check(
        """
        a()
        b()
        """,
        lambda s: [*s.guard("a"), *s.guard("b", header="with main_process_first()")],
        """
        if is_main_process():
            a()
        with main_process_first():
            b()
        """,
    )


def test_a_guard_inside_a_guard_is_dropped() -> None:
    check(
        """
        if best:
            print(1)
            save()
        """,
        lambda s: s.guard("if best", "save"),
        """
        if is_main_process():
            if best:
                print(1)
                save()
        """,
    )


def test_a_guard_inside_another_guard() -> None:
    check(
        """
        for x in y:
            save()
        """,
        lambda s: [*s.guard("for", header="with main_process_first()"), *s.guard("save")],
        """
        with main_process_first():
            for x in y:
                if is_main_process():
                    save()
        """,
    )


def test_a_guarded_string_over_lines_keeps_its_text() -> None:
    check(
        '''
        if x:
            print("""
        one
            two %s
        """ % (
                a,
            ))
            f(f"""{
            b}
        three""")
        ''',
        lambda s: s.guard("print", "f("),
        '''
        if x:
            if is_main_process():
                print("""
        one
            two %s
        """ % (
                    a,
                ))
                f(f"""{
            b}
        three""")
        ''',
    )


def test_a_guarded_call_over_lines() -> None:
    check(
        """
        def f():
            print("a",
                  b,   # c

                  d)
            x = 1
        """,
        lambda s: s.guard("print"),
        """
        def f():
            if is_main_process():
                print("a",
                      b,   # c

                      d)
            x = 1
        """,
    )


def test_a_guard_in_a_suite_on_one_line() -> None:
    check(
        """
        if x: print(y)
        elif z: print(1); print(2); w = 3
        else: pass
        """,
        lambda s: s.guard("print(y)", "print(1)", "print(2)"),
        """
        if x:
            if is_main_process():
                print(y)
        elif z:
            if is_main_process():
                print(1)
                print(2)
            w = 3
        else: pass
        """,
    )


def test_guards_between_semicolons() -> None:
    check(
        "a = 1; print(a); b = 2; print(b)  # c",
        lambda s: s.guard("print(a)", "print(b)"),
        """
        a = 1
        if is_main_process():
            print(a)
        b = 2
        if is_main_process():
            print(b)  # c
        """,
    )
    check(
        """
        print(a); print(b);
        c = 1
        """,
        lambda s: s.guard("print(a)", "print(b)"),
        """
        if is_main_process():
            print(a)
            print(b);
        c = 1
        """,
    )


def test_a_guard_over_a_suite_on_one_line() -> None:
    check(
        "if x: print(y)",
        lambda s: s.guard("if x"),
        """
        if is_main_process():
            if x: print(y)
        """,
    )


def test_a_guard_over_a_decorated_function() -> None:
    check(
        """
        # about f
        @cached
        def f():
            return 1
        """,
        lambda s: s.guard("def f"),
        """
        if is_main_process():
            # about f
            @cached
            def f():
                return 1
        """,
    )


def test_edits_inside_a_guard() -> None:
    check(
        """
        if best:
            # keep it
            torch.save({"model": model.state_dict(),
                        "epoch": epoch}, path)
        """,
        lambda s: [*s.guard("torch.save"), s.append("model"), s.replace("epoch", "epoch + 1")],
        """
        if best:
            if is_main_process():
                # keep it
                torch.save({"model": model.module.state_dict(),
                            "epoch": epoch + 1}, path)
        """,
    )


def test_insertions_inside_a_guarded_block() -> None:
    check(
        """
        if best:
            a()
            save()
        """,
        lambda s: [*s.guard("if best"), s.before("save", "one()"), s.after("save", "two()")],
        """
        if is_main_process():
            if best:
                a()
                one()
                save()
        two()
        """.replace("\n        two()", "\n                two()"),
    )


def test_insertions_around_a_guard() -> None:
    check(
        """
        if best:
            # keep
            save()
        """,
        lambda s: [s.before("save", "one()"), *s.guard("save"), s.after("save", "two()")],
        """
        if best:
            one()
            if is_main_process():
                # keep
                save()
            two()
        """,
    )


def test_an_argument_added_inside_a_guard() -> None:
    check(
        """
        with main_process_first():
            pass
        data = CIFAR(
            root,
            train=True,
        )
        """,
        lambda s: [*s.guard("data", header="with main_process_first()"), s.argument("CIFAR", "download", "True")],
        """
        with main_process_first():
            pass
        with main_process_first():
            data = CIFAR(
                root,
                train=True,
                download=True,
            )
        """,
    )


def test_a_deletion_inside_a_guard() -> None:
    check(
        """
        if best:
            a()
            b()
            c()
        """,
        lambda s: [*s.guard("if best"), s.delete("b")],
        """
        if is_main_process():
            if best:
                a()
                c()
        """,
    )


def test_blank_lines_are_not_indented() -> None:
    before = "if a:\n    b()\n\n    c()\n"
    after = "if is_main_process():\n    if a:\n        b()\n\n        c()\n"
    check(before, lambda s: s.guard("if a"), after, clean=False)


def test_a_guard_in_a_method_with_tabs_and_windows_lines() -> None:
    check(
        "class A:\n\tdef f(self):\n\t\tif x: print(1)\n\t\treturn 2\n",
        lambda s: s.guard("print"),
        "class A:\n\tdef f(self):\n\t\tif x:\n\t\t\tif is_main_process():\n\t\t\t\tprint(1)\n\t\treturn 2\n",
        clean=False,
    )
