"""What a script contains: roles, wrap points, the flow before and after the wrap. Facts never decide."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import libcst as cst

from ddpify.facts.flow import Flow
from ddpify.facts.frames import Event
from ddpify.facts.roles import Roles, find_roles
from ddpify.facts.wraps import NoWrapPoint, WrapPoint, find_wraps
from ddpify.helpers import Names, names_for
from ddpify.project import Project, is_generated
from ddpify.repoint import can_be_copied
from ddpify.source import Source

T = TypeVar("T")


@dataclass
class Facts:
    """All that rules ask. `converting` means: the script is single-GPU and will be started by torchrun."""

    project: Project
    converting: bool
    global_batch: str = "scale"
    #: BatchNorm becomes SyncBatchNorm
    sync_bn: bool = False
    flow: Flow = field(init=False)
    roles: Roles = field(init=False)

    def __post_init__(self) -> None:
        self.flow = Flow(self.project, settings=self.converting).run()
        self.roles = find_roles(self.flow)

    @property
    def source(self) -> Source:
        return self.project.entry

    @functools.cached_property
    def names(self) -> Names:
        """The names that emitted code uses in the entry script."""
        return self.names_of(self.source)

    def names_of(self, source: Source) -> Names:
        """The names that emitted code uses in one file."""
        store = self.__dict__.setdefault("_names", {})
        if source not in store:
            store[source] = names_for(source)
        found: Names = store[source]
        return found

    def editable(self, source: Source) -> bool:
        """Whether a conversion may change a file, and lint looks at it: the entry and the project's modules.

        What a tool generates stays as it is (the tool would write it anew), and so does an `__init__.py` of which
        there can be no copy.
        """
        if source is self.source:
            return True
        known: dict[Source, bool] = self.__dict__.setdefault("_editable", {})
        if source not in known:
            known[source] = (
                source in self.project.files()
                and not is_generated(source)
                and (not self.converting or can_be_copied(self.project, source))
            )
        return known[source]

    @property
    def looked_at(self) -> list[Source]:
        """The files of which rules say anything."""
        return [s for s in self.project.files() if self.editable(s)]

    def source_of(self, node: cst.CSTNode) -> Source:
        """The file of the project that a node stands in."""
        return next((s for s in self.project.files() if node in s.parents), self.source)

    @functools.cached_property
    def wraps(self) -> list[WrapPoint | NoWrapPoint]:
        return find_wraps(self.flow, self.roles)

    @functools.cached_property
    def wrap_points(self) -> list[WrapPoint]:
        return [w for w in self.wraps if isinstance(w, WrapPoint)]

    @functools.cached_property
    def after(self) -> Flow:
        """The flow as it will be once the models are wrapped (the flow as it is, where nothing will be wrapped)."""
        if not self.converting or not self.wrap_points:
            return self.flow
        wrapped: dict[cst.CSTNode, list[cst.BaseExpression]] = {}
        doubtful: list[cst.BaseExpression] = []
        for point in self.wrap_points:
            if not point.is_before:
                target = cst.parse_expression(point.target)
                wrapped.setdefault(point.after, []).append(target)
                doubtful += [target] if point.may_be_frozen else []
        made = {node for point in self.wrap_points for node in (point.made, *point.uses) if node is not None}
        by_use = {m.site.node for point in self.wrap_points for m in point.modules if m.cls is None and not m.name}
        routed: dict[cst.CSTNode, cst.BaseExpression] = {r.call: r.base for p in self.wrap_points for r in p.routes}
        return Flow(
            self.project,
            settings=self.converting,
            inserted=wrapped,
            doubtful=doubtful,
            around=made,
            models=by_use,
            routed=routed,
        ).run()

    @functools.cached_property
    def after_roles(self) -> Roles:
        return self.roles if self.after is self.flow else find_roles(self.after)

    def external(self, *names: str, flow: Flow | None = None) -> list[Event]:
        """Calls of functions outside the project, by qualified name."""
        return [e for e in (flow or self.flow).log.of("external") if e.name in names]

    @functools.cached_property
    def identifiers(self) -> dict[str, list[Event]]:
        """External calls by qualified name."""
        found: dict[str, list[Event]] = {}
        for e in self.flow.log.of("external"):
            found.setdefault(e.name, []).append(e)
        return found

    def cached(self, key: str, make: Callable[[Facts], T]) -> T:
        """A fact that several rules share, computed once."""
        store = self.__dict__.setdefault("_store", {})
        if key not in store:
            store[key] = make(self)
        found: T = store[key]
        return found


def collect(project: Project, *, converting: bool, global_batch: str = "scale", sync_bn: bool = False) -> Facts:
    """Everything that rules ask about a project."""
    return Facts(project, converting, global_batch, sync_bn)
