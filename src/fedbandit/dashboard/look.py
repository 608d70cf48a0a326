"""A look at a view: where to, with what options, and what the view may read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from fedbandit.dashboard.frame import Frame
from fedbandit.dashboard.runs import Runs
from fedbandit.dashboard.sources import Sources


@dataclass(frozen=True, slots=True)
class Look:
    """What a view gets."""

    sources: Sources
    runs: Runs
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def now(self) -> float:
        """The server's clock."""
        return self.sources.parts.clock()


View = Callable[[Look], Awaitable[Frame]]
