"""DDP107: what the launcher says, overwritten by the script."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from ddpify.edits import Delete
from ddpify.facts import Facts
from ddpify.facts.contents import constants
from ddpify.facts.frames import Event
from ddpify.facts.ranks import ranks
from ddpify.facts.values import Ext
from ddpify.rules._base import Bad, Finding, Good, Rule

_SET = frozenset({"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"})
_GIVEN = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"})
_READS = frozenset({"os.environ.get", "os.getenv"})


class LauncherOverwritten(Rule):
    """The script sets an address that torchrun has set.

    ## What it does
    Finds `os.environ["MASTER_PORT"] = "29500"` and its kin (MASTER_ADDR, WORLD_SIZE, each with a fixed value, under no
    test) in scripts that take their rank from torchrun's environment.

    ## Why is this bad?
    torchrun holds the port that it chose: ranks that look for another one wait for each other until the timeout. On
    several nodes `localhost` is another machine on each.

    ## Fix
    Take it out: torchrun sets all of these.
    """

    code = "DDP107"
    references = ("https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables",)
    good = (
        Good("""
            os.environ.setdefault("MASTER_PORT", "29500")
            rank = int(os.environ["RANK"])
            """),
        Good("""
            if "RANK" not in os.environ:
                os.environ["RANK"] = "0"
                os.environ["MASTER_PORT"] = "29500"
            rank = int(os.environ["RANK"])
            """),
        Good("""
            import os
            import torch.distributed as dist
            import torch.multiprocessing as mp
            def worker(rank, world):
                os.environ["MASTER_ADDR"] = "localhost"
                os.environ["MASTER_PORT"] = "29500"
                dist.init_process_group("gloo", rank=rank, world_size=world)
                dist.destroy_process_group()
            if __name__ == "__main__":
                mp.spawn(worker, args=(2,), nprocs=2)
            """),
    )
    bad = (Bad('os.environ["MASTER_PORT"] = "29500"\nlocal_rank = int(os.environ["LOCAL_RANK"])'),)

    def check(self, facts: Facts) -> Iterator[Finding]:
        if facts.converting or ranks(facts.flow).spawns or not self.is_launched(facts):
            return
        seen: set[int] = set()
        if any(self.key(facts, e) in ("RANK", "LOCAL_RANK") for e in facts.flow.log.of("store")):
            return  # started by hand, on each machine with its own number
        for e in facts.flow.log.of("store"):
            key = self.key(facts, e)
            value = getattr(e.stmt, "value", None)
            if key not in _SET or id(e.stmt) in seen or not isinstance(value, cst.SimpleString):
                continue
            inner = set(e.frame.source.ancestors(e.stmt))
            if any(u in inner for u in e.under) or not facts.editable(e.frame.source) or self.under_test(e):
                continue
            seen.add(id(e.stmt))
            code = e.frame.source.code(e.stmt)
            yield self.finding(
                e.frame.source,
                e.stmt,
                f"`{code}` takes the place of what torchrun sets, and the script reads its rank from torchrun",
                Delete(e.frame.source, e.stmt),
                unsafe=True,
            )

    def under_test(self, e: Event) -> bool:
        return any(isinstance(a, (cst.If, cst.Try)) for a in e.frame.source.ancestors(e.stmt)) or any(
            isinstance(a, (cst.If, cst.Try))
            and not _is_main_guard(a, entry.frame.source.code(a.test) if isinstance(a, cst.If) else "")
            for chain in e.frame.chains()
            for entry in chain
            for a in entry.frame.source.ancestors(entry.call)
        )

    def key(self, facts: Facts, e: Event) -> object:
        if not isinstance(e.obj, Ext) or e.obj.name != "os.environ" or not isinstance(e.node, cst.Subscript):
            return None
        index = e.node.slice[0].slice
        known = constants(facts.flow.values.get(index.value, ())) if isinstance(index, cst.Index) else None
        return known[0] if known is not None and len(known) == 1 else None

    def is_launched(self, facts: Facts) -> bool:
        """`os.environ["LOCAL_RANK"]` is read."""
        values = facts.flow.values
        for node, source in ((n, s) for s in facts.looked_at for n in s.of(cst.Subscript, cst.Call)):
            if isinstance(node, cst.Subscript) and isinstance(node.slice[0].slice, cst.Index):
                base, key = values.get(node.value, ()), node.slice[0].slice.value
                target = isinstance(source.parents.get(node), cst.AssignTarget)
                read = not target and any(isinstance(o, Ext) and o.name == "os.environ" for o in base)
            elif isinstance(node, cst.Call) and len(node.args) == 1:
                called, key = values.get(node.func, ()), node.args[0].value
                read = any(isinstance(o, Ext) and o.name in _READS for o in called)
            else:
                continue
            if read and isinstance(key, cst.SimpleString) and key.evaluated_value in _GIVEN:
                return True
        return False


def _is_main_guard(node: cst.CSTNode, test: str) -> bool:
    return isinstance(node, cst.If) and "__name__" in test
