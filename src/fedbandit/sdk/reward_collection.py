"""Collecting rewards that were reported to the server for decisions of this agent.

Each reward is booked on its pending decision, through the journal, and answered only when the journal is on disk. A
kill in between finds the decision settled and the reward still waiting, and answers it then: it counts once.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from fedbandit.errors import AlreadyObserved, InvalidInput, LiveError, UnknownDecision
from fedbandit.pauses import pause_point

if TYPE_CHECKING:
    from fedbandit.sdk.durable_agent import DurableAgent
    from fedbandit.sdk.sync_client import SyncClient

logger = logging.getLogger("fedbandit.sdk")
MAX_ROUNDS = 100  # of one collection, with at most 1000 rewards each
AGAIN_AFTER_S = 60.0  # where the server keeps rewards, none of them ours
Answer = tuple[str, str]


class CollectedRewards(NamedTuple):
    """Rewards by the ids of their decisions, and the key of this agent's decision tokens."""

    rewards: list[tuple[str, float]]
    token_key: bytes


@runtime_checkable
class RewardTransport(Protocol):
    """A transport that also carries rewards; `n_rewards` is how many the server said it keeps for the model."""

    n_rewards: int

    def collect(self, prefix: str, answers: list[Answer], *, timeout_s: float) -> CollectedRewards:
        """Say what became of the last rewards, and get the next ones."""
        ...

    def report(self, decision: str, reward: float, *, timeout_s: float) -> dict[str, Any]:
        """Report a reward of any agent's decision, by its id or token."""
        ...


class Collector:
    """When to collect, and the key that comes with it; calls come one at a time."""

    def __init__(self) -> None:
        self.token_key: bytes | None = None
        self._empty_at = (-AGAIN_AFTER_S, 0)  # when nothing was ours, and how many the server kept

    def is_due(self, n_rewards: int, now: float) -> bool:
        """Whether some of the rewards at the server may be ours."""
        at, n_kept = self._empty_at
        return n_rewards > 0 and (n_rewards > n_kept or now - at >= AGAIN_AFTER_S)

    def collect(self, client: SyncClient, timeout_s: float) -> int:
        """Book everything that waits; how many. The caller holds the turn."""
        transport, durable = client.transport, client.durable
        if not isinstance(transport, RewardTransport):
            return 0
        n_found, n_booked, answers = 0, 0, list[Answer]()
        for _ in range(MAX_ROUNDS):
            pause_point()
            found = transport.collect(durable.decision_prefix, answers, timeout_s=client._left_s(timeout_s))
            self.token_key = found.token_key
            if not found.rewards:
                break
            answers = [(decision, _book(durable, decision, reward)) for decision, reward in found.rewards]
            n_found += len(answers)
            n_booked += sum(outcome == "booked" for _, outcome in answers)
            if durable.journal is not None:
                durable.journal.sync_log()
        self._empty_at = (client.clock(), 0 if n_found else transport.n_rewards)
        return n_booked

    def collect_quietly(self, client: SyncClient, timeout_s: float) -> None:
        """The same after an exchange, which has succeeded whatever comes of this."""
        # Not `isinstance`, which takes ten microseconds with a protocol: `collect` asks that.
        if not self.is_due(getattr(client.transport, "n_rewards", 0), client.clock()):
            return
        try:
            n_booked = self.collect(client, timeout_s)
        except LiveError as error:
            logger.info("agent %s: rewards were not collected: %s", client.durable.agent.agent_id, error)
            return
        if n_booked:
            logger.debug("agent %s: %d rewards from elsewhere", client.durable.agent.agent_id, n_booked)


def _book(durable: DurableAgent, decision_id: str, reward: float) -> str:
    """Book a reward if its decision is pending; what became of it."""
    decision = durable.find(decision_id)
    if decision is None:
        return "not_pending"
    try:
        durable.observe(decision, reward)
    except (AlreadyObserved, UnknownDecision):
        return "not_pending"
    except InvalidInput as error:
        logger.warning("agent %s: the reward of %s is refused: %s", durable.agent.agent_id, decision_id, error)
        return "refused"
    if durable.log is not None:
        durable.log.rewarded(decision_id, reward)
    return "booked"
