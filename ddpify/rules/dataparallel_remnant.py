"""DDP209: nn.DataParallel in a distributed script."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from ddpify.edits import AddHelper, AddImport, Delete, Edit, Hoist, InsertBefore, Replace, Surround
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.frames import Event
from ddpify.facts.gpus import multiplied
from ddpify.facts.prefixes import cut_keys, saves_bare
from ddpify.facts.ranks import guarded
from ddpify.facts.values import Module, Thing, Wrapped
from ddpify.rules._base import Bad, Converts, Finding, Good, Rule, Severity
from ddpify.source import Source

_NAMES = frozenset(
    {"torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "torch.nn.parallel.data_parallel.DataParallel"}
)


#: argument of DataLoader, what the report calls it, why it is taken apart
_SIZES = (
    ("batch_size", "the batch size", "each process loads the batch of its own GPU"),
    ("num_workers", "the number of workers", "each process has workers of its own"),
)
_PUBLISHED = re.compile(r"\.(load_url|load_state_dict_from_url|get_state_dict)$")


class DataparallelRemnant(Rule):
    """nn.DataParallel drives several GPUs from one process.

    ## What it does
    Takes `nn.DataParallel(...)` out of a script that becomes distributed, and finds it in one that is.

    ## Why is this bad?
    One process drives one GPU under DDP: `DDP(DataParallel(model))` constructs without complaint, and its keys start
    with `module.module.`.

    ## Fix
    Take `nn.DataParallel` out: under DDP one process drives one GPU.

    ## Edit
    The module stands in the place of the call. `.module` stays where the name holds the DDP wrapper by then, and goes
    where it does not. Checkpoints lose `module.` from their keys: the report says so, and states that are loaded may
    have it or not.
    """

    code = "DDP209"
    severity = Severity.WARNING
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html",)
    good = (Good("ddp = DDP(model)"),)
    bad = (Bad("ddp = DDP(nn.DataParallel(model))"),)
    converts = (
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.DataParallel(nn.Linear(4, 1))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            torch.save(net.module.state_dict(), "net.pt")
            """,
            gives=("net = nn.Linear(4, 1)\nnet = DDP(net)", 'torch.save(net.module.state_dict(), "net.pt")'),
            drops=("DataParallel(nn",),
        ),
        Converts(
            """
            import torch
            from torch import nn
            from torch.utils.data import DataLoader, TensorDataset
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)
            net = nn.DataParallel(nn.Linear(4, 1))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for (x,) in loader:
                net(x).mean().backward()
                optimizer.step()
            torch.save(net.state_dict(), "net.pt")
            plain, fixed = nn.Linear(4, 1), {}
            for key, value in torch.load("net.pt").items():
                name = key[7:]
                fixed[name] = value
            plain.load_state_dict(fixed)
            """,
            gives=('    name = key[7:] if key.startswith("module.") else key',),
        ),
    )

    def check(self, facts: Facts) -> Iterator[Finding]:
        done: set[int] = set()
        for e in facts.flow.log.of("dataparallel"):
            if id(e.node) in done or not isinstance(e.node, cst.Call) or not facts.editable(e.frame.source):
                continue
            done.add(id(e.node))
            source = e.frame.source
            code = source.code(e.node).split("\n")[0]
            if not facts.converting and (guarded(e, facts.flow) or self.is_choice(facts, e)):
                continue
            if not facts.converting:
                yield self.finding(source, e.node, f"`{code}` drives several GPUs from each process")
                continue
            yield self.finding(
                source,
                e.node,
                f"`{code}` is taken out",
                self.take_out(facts, source, e),
                reason="one process drives one GPU",
            )
        if facts.converting and done:
            yield from self.around(facts)

    def is_choice(self, facts: Facts, e: Event) -> bool:
        """`if args.n_gpu > 1: model = nn.DataParallel(model)` in a script that wraps with DDP elsewhere."""
        wraps = any(isinstance(w.obj, Wrapped) for w in facts.flow.log.of("new"))
        return wraps and any(isinstance(a, cst.If) for a in e.frame.source.ancestors(e.node))

    def take_out(self, facts: Facts, source: Source, e: Event) -> Edit:
        """`model = nn.DataParallel(model)` goes as a whole; else the module stands in the place of the call."""
        assert isinstance(e.node, cst.Call)
        given = next((a.value for a in e.node.args if a.keyword is None or a.keyword.value == "module"), None)
        text = source.code(given) if given is not None else "None"
        stmt = e.stmt
        if self.goes(source, e):
            whole = self.whole(facts, source, stmt)
            return Delete(source, whole, comments=source.owns_comments(whole))
        return Replace(source, e.node, text)

    def goes(self, source: Source, e: Event) -> bool:
        """`model = nn.DataParallel(model)`: nothing is left of the statement."""
        if not isinstance(e.node, cst.Call) or not isinstance(e.stmt, cst.Assign) or e.stmt.value is not e.node:
            return False
        given = next((a.value for a in e.node.args if a.keyword is None or a.keyword.value == "module"), None)
        return given is not None and source.code(e.stmt.targets[0].target) == source.code(given)

    def whole(self, facts: Facts, source: Source, stmt: cst.CSTNode) -> cst.CSTNode:
        """`if torch.cuda.device_count() > 1: model = nn.DataParallel(model)` goes with what is in it."""
        line = source.parents.get(stmt)
        block = source.parents.get(line) if line is not None else None
        above = source.parents.get(block) if block is not None else None
        here = (d for d in facts.flow.log.of("dataparallel") if d.frame.source is source)
        taken = {id(d.stmt) for d in here if self.goes(source, d)}
        lines = block.body if isinstance(block, cst.IndentedBlock) else ()
        alone = bool(lines) and all(
            isinstance(s, cst.SimpleStatementLine) and len(s.body) == 1 and id(s.body[0]) in taken for s in lines
        )
        if isinstance(line, cst.SimpleStatementSuite):
            above, alone = source.parents.get(line), len(line.body) == 1
        return above if alone and isinstance(above, cst.If) and above.orelse is None else stmt

    def around(self, facts: Facts) -> Iterator[Finding]:
        """`.module`, isinstance tests, batch sizes and checkpoints that went with it."""
        flow = facts.after
        for e in flow.log.of("attribute"):
            if e.name != "module" or not isinstance(e.node, cst.Attribute) or not facts.editable(e.frame.source):
                continue
            held = flow.values.get(e.node.value, ())
            raw, wrapped = any(isinstance(o, Module) for o in held), any(isinstance(o, Wrapped) for o in held)
            source = e.frame.source
            name = source.code(e.node.value)
            if raw and not any("module" in m.fields for m in held if isinstance(m, Module)):
                unwrap = facts.names_of(source)["unwrap"]
                edit = Replace(source, e.node, f"{unwrap}({name})" if wrapped else name)
                more: tuple[Edit, ...] = (AddHelper(source, "unwrap"),) if wrapped else ()
                yield self.finding(
                    source,
                    e.node,
                    f"`{name}` is the module itself here",
                    edit,
                    *more,
                    reason="nothing stands around it",
                )
        for source in facts.project.files():
            if facts.editable(source):
                yield from self.mentions(facts, source)
        first = facts.flow.log.of("dataparallel")[0]
        if saves_bare(facts):
            return
        yield self.finding(
            first.frame.source,
            first.node,
            'the keys of new checkpoints have no "module." any more: the old script cannot read them',
            note=True,
        )

    def mentions(self, facts: Facts, source: Source) -> Iterator[Finding]:
        values = facts.flow.values
        for node in source.of(cst.Name, cst.Attribute):
            names = {getattr(o, "name", "") for o in values.get(node, ())}
            parent = source.parents.get(node)
            if names & _NAMES and isinstance(parent, cst.Arg):
                if not isinstance(source.parents.get(parent), cst.Call):
                    continue  # class Mine(nn.DataParallel): a kind of it, which the script may not use
                if any(isinstance(a, cst.Assert) for a in source.ancestors(node)):
                    yield from self.insists(facts, source, node)
                    continue
                ddp = facts.names_of(source)["DDP"]
                yield self.finding(
                    source,
                    node,
                    f"`{source.code(node)}` is looked for in a test",
                    Replace(source, node, ddp),
                    AddImport(source, "DDP"),
                    reason="what stands around the model now is DDP",
                )
        yield from self.sizes(facts, source)
        yield from self.loads(facts, source)
        yield from self.cuts(source)

    def cuts(self, source: Source) -> Iterator[Finding]:
        """`state[k[7:]] = v`: new checkpoints have no `module.` to cut off."""
        for node, name in cut_keys(source):
            one = isinstance(source.parents.get(node), (cst.Assign, cst.Index))
            tail = f' if {name}.startswith("module.") else {name}'
            yield self.finding(
                source,
                node,
                f'`{source.code(node)}` cuts "module." off',
                Surround(source, node, "" if one else "(", tail if one else f"{tail})"),
                reason='new checkpoints have no "module." in their keys',
            )

    def insists(self, facts: Facts, source: Source, node: cst.CSTNode) -> Iterator[Finding]:
        """`assert isinstance(model, nn.DataParallel)`: whoever calls that has no business there any more."""
        inside = [e for e in facts.flow.log.of("call") if e.callee is not None and e.callee.source is source]
        calls = [e for e in inside if e.callee is not None and e.callee.node in source.ancestors(node)]
        for e in calls[:1]:
            code = e.frame.source.code(e.node).split("\n")[0]
            yield self.finding(
                e.frame.source,
                e.node,
                f"`{code}` insists on nn.DataParallel (line {source.line(node)} of {source.path.name}), which is gone",
                left="take the call out, or make it do the same for DDP",
            )

    def sizes(self, facts: Facts, source: Source) -> Iterator[Finding]:
        """`batch_size=8 * n_gpu, num_workers=2 * n_gpu`, which nn.DataParallel dealt out to the GPUs."""
        for argument, what, why in _SIZES:
            if argument == "batch_size" and facts.global_batch == "keep":
                continue  # that is the batch of all GPUs, which is divided by the number of processes
            for node, size in multiplied(facts, source, argument):
                yield self.finding(
                    source,
                    node,
                    f"{what} is multiplied by the number of GPUs, and is per process now",
                    self.divided(source, node, size),
                    reason=why,
                )

    def divided(self, source: Source, node: cst.CSTNode, size: cst.BaseExpression | None) -> Edit:
        """Without the number of GPUs; `args.workers = args.workers * n_gpu` goes."""
        if size is None:
            return Delete(source, node)
        stmt = source.parents.get(node)
        if isinstance(stmt, cst.Assign) and [source.code(t.target) for t in stmt.targets] == [source.code(size)]:
            return Delete(source, stmt)
        return Replace(source, node, source.code(size))

    def published(self, facts: Facts, load: cst.Call) -> bool:
        """`load_state_dict(load_url(...))`: weights that a library gives out, not the old script's."""
        given = facts.flow.values.get(load.args[0].value, ()) if load.args else ()
        makers = [constants(o.fields.get("__name__", ())) for o in given if isinstance(o, Thing)]
        return bool(makers) and all(m is not None and _PUBLISHED.search(str(m[0])) for m in makers)

    def loads(self, facts: Facts, source: Source) -> Iterator[Finding]:
        """States that may have been saved by the old script."""
        done: set[int] = set()
        for e in facts.flow.log.of("method") if not saves_bare(facts) else ():
            if id(e.node) in done:
                continue
            if (
                e.name == "load_state_dict"
                and isinstance(e.obj, Module)
                and e.obj.parallel
                and e.frame.source is source
                and isinstance(e.node, cst.Call)
                and not self.published(facts, e.node)
            ):
                done.add(id(e.node))
                consume = f"{facts.names_of(source)['torch']}.nn.modules.utils.consume_prefix_in_state_dict_if_present"
                state = e.node.args[0].value if e.node.args else None
                if isinstance(state, (cst.Name, cst.Subscript, cst.Attribute)):
                    line = f'{consume}({source.code(state)}, "module.")'
                    yield self.finding(
                        source,
                        e.node,
                        f"`{source.code(state)}` may come from the old script",
                        InsertBefore(source, e.stmt, (line,)),
                        AddImport(source, "torch"),
                        reason='its keys may start with "module."',
                    )
                elif state is not None:
                    name = facts.names_of(source).fresh("saved")
                    yield self.finding(
                        source,
                        e.node,
                        "the state that is loaded may come from the old script",
                        Hoist(source, state, name, e.stmt),
                        InsertBefore(source, e.stmt, (f'{consume}({name}, "module.")',), last=True),
                        reason='its keys may start with "module."',
                    )
