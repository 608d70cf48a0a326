"""What the SQLite writer knows already: the rows that exchanges change, so that it need not read what it wrote itself.

Only one process may use a data directory, and all its writes go through one connection; should another connection write
all the same, SQLite says so (`data_version`), and nothing that was known counts any more.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from fedbandit.service.exchange.ledger import AgentRow
from fedbandit.service.model import Model

MAX_BYTES = 64 << 20
ROW_BYTES = 1024  # of an agent besides its sums


@dataclass(slots=True)
class KnownModel:
    """A model's row and those of its agents that were heard of lately."""

    id: int
    model: Model
    packed: bytes
    agents: dict[str, AgentRow] = field(default_factory=dict)


class RowCache:
    """Rows as the last commit left them. Whoever changes them, or fails to, calls `clear`."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._models: dict[str, KnownModel] = {}
        self._data_version: int | None = None

    def clear(self) -> None:
        """Nothing is known."""
        self._models.clear()
        self._n_bytes = 0

    def refresh(self, connection: sqlite3.Connection) -> None:
        """At the beginning of a transaction: forget everything if somebody else wrote."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version != self._data_version:
            self.clear()
            self._data_version = version

    def get(self, name: str) -> KnownModel | None:
        """What is known of a model."""
        return self._models.get(name)

    def put(self, known: KnownModel) -> KnownModel:
        """Remember a model."""
        self._n_bytes += len(known.packed)
        self._models[known.model.settings.name] = known
        return known

    def require_room(self, known: KnownModel, n_agents: int) -> None:
        """Before this many agents of a model are added: when there are too many, all those of before go."""
        n_bytes = n_agents * (ROW_BYTES + len(known.packed))
        if self._n_bytes + n_bytes > self._max_bytes:
            self.clear()
            known.agents.clear()
            self.put(known)
        self._n_bytes += n_bytes
