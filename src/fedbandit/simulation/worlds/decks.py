"""Rows of data dealt to agents: each row once before any is repeated."""

from __future__ import annotations

import numpy as np

from fedbandit.errors import InvalidParameter
from fedbandit.simulation.worlds.base import Index


class Decks:
    """Each agent has a deck of its own rows; a row is repeated only after the agent's whole deck was dealt."""

    def __init__(self, agents: Index, rng: np.random.Generator, *, shuffle: bool) -> None:
        order = np.argsort(agents, kind="stable")
        ids, starts = np.unique(agents[order], return_index=True)
        self.rows = {int(m): part for m, part in zip(ids, np.split(order, starts[1:]), strict=True)}
        self.dealt = dict(self.rows)
        self.next = dict.fromkeys(self.rows, 0)
        self.rng = rng
        self.shuffle = shuffle

    def deal(self, active: Index) -> Index:
        """The next row of each active agent, (n,)."""
        return np.fromiter((self._one(int(m)) for m in active), dtype=np.int64, count=len(active))

    def _one(self, agent: int) -> int:
        if agent not in self.rows:
            raise InvalidParameter(f"the data has no rows for agent {agent}; it has {len(self.rows)} agents")
        place = self.next[agent] % len(self.rows[agent])
        if place == 0 and self.shuffle:
            self.dealt[agent] = self.rng.permutation(self.rows[agent])
        self.next[agent] = place + 1
        return int(self.dealt[agent][place])
