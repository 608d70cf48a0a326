"""Decisions that wait for their reward: look at them, give up on them, or give them a default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from fedbandit.algorithms.decision import Decision
from fedbandit.errors import AlreadyObserved, UnknownDecision
from fedbandit.sdk.durable_agent import DurableAgent


class Pending:
    """`agent.pending`: a live view, oldest first; `pending[id]` finds a decision whose reward came by its id only."""

    def __init__(self, core: DurableAgent, observe: Callable[[Decision, float], None]) -> None:
        self._core = core
        self._observe = observe

    def __len__(self) -> int:
        return self._core.n_pending

    def __iter__(self) -> Iterator[Decision]:
        return iter(self.older_than(0.0))

    def __contains__(self, decision_id: object) -> bool:
        return isinstance(decision_id, str) and self._core.find(decision_id) is not None

    def __getitem__(self, decision_id: str) -> Decision:
        found = self._core.find(decision_id)
        if found is None:
            raise UnknownDecision(f"no decision {decision_id!r} waits for a reward; it has one, expired, or never was")
        return found

    def get(self, decision_id: str) -> Decision | None:
        """The decision of this id, if it waits."""
        return self._core.find(decision_id)

    def older_than(self, seconds: float) -> list[Decision]:
        """Decisions that have waited at least this long."""
        return [decision for _, decision in self._core.waiting_decisions(seconds)]

    def expire(self, *, older_than_s: float = 0.0) -> int:
        """Stop waiting for all that are this old; returns how many. A reward that comes later is an error."""
        self._core.check()
        old = [waiting.number for waiting, _ in self._core.waiting_decisions(older_than_s)]
        self._core.drop(old)
        return len(old)

    def settle(self, reward: float, *, older_than_s: float = 0.0) -> int:
        """Book this reward for all that are this old (no click in an hour is a zero); returns how many.

        Not where another process books rewards of these decisions as rows: one decision would count twice. What gets a
        reward in another thread meanwhile, or expires there, is passed over.
        """
        n_booked = 0
        for decision in self.older_than(older_than_s):
            with suppress(AlreadyObserved):
                self._observe(decision, reward)
                n_booked += 1
        return n_booked

    def __repr__(self) -> str:
        return f"<Pending: {len(self)} decisions>"
