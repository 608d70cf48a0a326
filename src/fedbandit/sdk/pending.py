"""Pending decisions: list them, expire them, or settle them with a default reward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from fedbandit.algorithms.decision import Decision
from fedbandit.errors import AlreadyObserved, UnknownDecision
from fedbandit.sdk.durable_agent import DurableAgent


class Pending:
    """`agent.pending`: a live view, oldest first; `pending[id]` finds a decision whose reward came by its id only."""

    def __init__(self, durable: DurableAgent, observe: Callable[[Decision, float], None]) -> None:
        self._durable = durable
        self._observe = observe

    def __len__(self) -> int:
        return self._durable.agent.n_pending

    def __iter__(self) -> Iterator[Decision]:
        return iter(self.older_than(0.0))

    def __contains__(self, decision_id: object) -> bool:
        return isinstance(decision_id, str) and self._durable.find(decision_id) is not None

    def __getitem__(self, decision_id: str) -> Decision:
        found = self._durable.find(decision_id)
        if found is None:
            raise UnknownDecision(
                f"no decision {decision_id!r} is pending; it has its reward, expired, or was never made"
            )
        return found

    def get(self, decision_id: str) -> Decision | None:
        """The pending decision of this id, if there is one."""
        return self._durable.find(decision_id)

    def older_than(self, seconds: float) -> list[Decision]:
        """Pending decisions of at least this age."""
        return [decision for _, decision in self._durable.pending_decisions(seconds)]

    def expire(self, *, older_than_s: float = 0.0) -> int:
        """Drop all that are this old; returns how many. A reward that comes later is an error."""
        self._durable.check()
        old = [pending.number for pending, _ in self._durable.pending_decisions(older_than_s)]
        self._durable.drop(old)
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
