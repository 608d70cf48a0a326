"""A world that changes, as FedLinUCB's agents and server see it: epochs, alarms, silence and the age of sums.

An epoch ends with a restart of the server: sums go back to (λI, 0). An upload of an earlier epoch is discarded, and its
observations are counted as discarded, so that merged + discarded + unsent = observed at any time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from fedbandit.algorithms.messages import CHANGE_ALARM, OLDER_EPOCH, Download, Upload
from fedbandit.algorithms.server import BaseServer, LedgerEntry
from fedbandit.core.arrays import Vector, frozen
from fedbandit.core.change import ChangeDetector
from fedbandit.core.drift import OLD, Discount, Restart
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.structure import ridge_model

if TYPE_CHECKING:
    from fedbandit.algorithms.fedlinucb import FedLinUCB, FedLinUCBAgent


class AgentEpoch:
    """The epoch as an agent knows it, and the own round at which it contacts the server whatever it has learnt."""

    __slots__ = (
        "_age_due_at",
        "_gained",
        "_limit",
        "_played",
        "_seen_at",
        "_silence_due_at",
        "clock",
        "detector",
        "due_at",
        "epoch",
        "has_alarm",
        "max_silence",
        "n_discarded",
        "n_dropped",
        "watches_time",
    )

    def __init__(self, rule: FedLinUCB) -> None:
        self.epoch = 0
        self.clock = 0  # of the model in use, where sums are discounted
        self.has_alarm = False  # a change was found, and the server does not know yet
        self.n_discarded = 0  # observations of this agent that the server counts as discarded
        self.n_dropped = 0  # observations of an earlier epoch that were discarded here, and not reported yet
        self.max_silence = rule.max_silence
        self.detector: ChangeDetector | None = None
        if isinstance(rule.drift, Restart):
            self.detector = rule.drift.agent_detector(rule.dim, rule.lam, rule.blocks)
        self._limit = OLD * rule.drift.horizon if isinstance(rule.drift, Discount) else math.inf
        # Whether time alone can make a contact due; otherwise only a restart of the server changes anything here.
        self.watches_time = rule.drift is not None or math.isfinite(rule.max_silence)
        self._silence_due_at = self.max_silence
        self._age_due_at = math.inf
        self._seen_at: tuple[int, int] | None = None  # own rounds and clock at the last model
        self._gained = self._played = 0.0  # the fleet's and the own observations, recent ones weighted more
        self.due_at = self.max_silence

    def use(self, rule: FedLinUCB, n_rounds: int, *, is_other_drift: bool) -> None:
        """Continue under another rule; with another response to change, tests begin anew."""
        if is_other_drift:
            self.detector = rule.drift.agent_detector(rule.dim, rule.lam) if isinstance(rule.drift, Restart) else None
            self.has_alarm = False
        if rule.max_silence != self.max_silence:
            self.max_silence = rule.max_silence
            self._silence_due_at = n_rounds + self.max_silence
        self._due()

    # -- contact

    def sent(self, n_rounds: int) -> None:
        """An upload was made."""
        self.has_alarm, self.n_dropped = False, 0
        self._silence_due_at = n_rounds + self.max_silence
        self._due()

    def begin(self, download: Download, agent: FedLinUCBAgent) -> None:
        """The epoch of a download that is adopted; what was gathered in an earlier one is dropped."""
        if self.detector is not None:
            self.detector.clear()
        n_dropped = self.n_dropped + (0 if agent._local is None else agent._local.n_obs)
        # Without a call in between: a signal handler that raises must not leave rows that are dropped and kept.
        self.n_dropped, self.epoch, self.has_alarm, agent._local = n_dropped, download.epoch, False, None

    def adopted(self, download: Download, n_rounds: int) -> None:
        """A model of this epoch was adopted."""
        self.n_discarded = max(self.n_discarded, download.discarded)
        if math.isfinite(self._limit):
            self.clock = download.clock
            self._estimate_rate(n_rounds)
        self._due()

    def _estimate_rate(self, n_rounds: int) -> None:
        """How many observations the fleet makes per own one, and so when the model will be old."""
        if self._seen_at is not None and n_rounds > self._seen_at[0]:
            self._gained = 0.5 * self._gained + (self.clock - self._seen_at[1])
            self._played = 0.5 * self._played + (n_rounds - self._seen_at[0])
        if self._seen_at is None or n_rounds > self._seen_at[0]:
            self._seen_at = (n_rounds, self.clock)
        rate = max(self._gained / self._played, 1.0) if self._played > 0.0 else 1.0
        self._age_due_at = n_rounds + math.ceil(self._limit / rate)

    def _due(self) -> None:
        self.due_at = 0.0 if self.has_alarm else min(self._silence_due_at, self._age_due_at)

    # -- detection

    def observe(self, x: Vector, reward: float, model: RidgeModel) -> None:
        """Test what the agent observes."""
        if self.detector is not None and self.detector.observe(x, reward, model) is not None:
            self.has_alarm, self.due_at = True, 0.0

    def observe_batch(self, stats: SufficientStats, model: RidgeModel) -> None:
        """Test many observations at once."""
        if self.detector is not None and self.detector.add(stats, model, model) is not None:
            self.has_alarm, self.due_at = True, 0.0

    # -- saving

    def state(self) -> dict[str, Any]:
        """Plain values and statistics."""
        plain = ("epoch", "clock", "has_alarm", "n_discarded", "n_dropped")
        state: dict[str, Any] = {name: getattr(self, name) for name in plain}
        state["due"] = [self._silence_due_at, self._age_due_at, self._gained, self._played]
        state["seen_at"] = None if self._seen_at is None else list(self._seen_at)
        if self.detector is not None:
            state["detector"] = self.detector.state()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        if not state:
            return
        self.epoch, self.clock = int(state["epoch"]), int(state["clock"])
        self.has_alarm = bool(state["has_alarm"])
        self.n_discarded, self.n_dropped = int(state["n_discarded"]), int(state["n_dropped"])
        self._silence_due_at, self._age_due_at, self._gained, self._played = map(float, state["due"])
        seen_at = state["seen_at"]
        self._seen_at = None if seen_at is None else (int(seen_at[0]), int(seen_at[1]))
        if self.detector is not None and "detector" in state:
            self.detector.restore(state["detector"])
        self._due()


class EpochServer(BaseServer):
    """A server that can restart, tests uploads for a change, and discounts sums by their age, as its rule says."""

    rule: FedLinUCB

    def __init__(self, rule: FedLinUCB, prior: SufficientStats) -> None:
        super().__init__(rule, prior)
        self.epoch = 0
        self.clock = 0  # observations merged, over all epochs
        self.discarded: dict[str, int] = {}  # observations of each agent that count for nothing
        self.detector: ChangeDetector | None = None
        if isinstance(rule.drift, Restart):
            self.detector = rule.drift.server_detector(rule.dim, rule.lam, rule.blocks)
        self._discount = rule.drift if isinstance(rule.drift, Discount) else None
        self._sums: SufficientStats | None = None  # without λI, and discounted; only where sums are discounted

    @property
    def n_discarded(self) -> int:
        """Observations that were discarded, over all agents and epochs."""
        return sum(self.discarded.values())

    def restart(self) -> None:
        """Begin a new epoch at the prior, as after a change; uploads of earlier epochs are discarded from now on."""
        self._restart(self.epoch + 1)

    def _restart(self, epoch: int) -> None:
        if self.detector is not None:
            self.detector.clear()
        self._sums = None
        self.stats, self.epoch = self.rule.prior, epoch
        self.version += 1

    def _count(self, upload: Upload, entry: LedgerEntry) -> str:
        """Merge the upload, or discard it; why it was discarded."""
        if upload.epoch > self.epoch:  # this server was restored to a state before the restart
            self._restart(upload.epoch)
        outcome = self._outcome(upload)
        n_discarded = upload.dropped + (upload.stats.n_obs if outcome else 0)
        if n_discarded:
            self.discarded[upload.agent_id] = self.discarded.get(upload.agent_id, 0) + n_discarded
        if outcome:
            self.ledger[upload.agent_id] = entry
            if outcome == CHANGE_ALARM:
                self.restart()
            return outcome
        before, clock = self.stats, self.clock + upload.stats.n_obs
        merged = self._merged(upload, clock)
        # Without a call in between: a signal handler that raises must not leave the entry without the sums.
        self.ledger[upload.agent_id] = entry
        self.stats = merged
        self.clock = clock
        self.version += 1
        self.groups += upload.groups
        if self.detector is not None and self.detector.add(upload.stats, ridge_model(before), ridge_model(merged)):
            self.restart()
        return outcome

    def _outcome(self, upload: Upload) -> str:
        if upload.epoch < self.epoch:
            return OLDER_EPOCH
        return CHANGE_ALARM if upload.alarm else ""

    def _merged(self, upload: Upload, clock: int) -> SufficientStats:
        if self._discount is None:
            return self.stats + upload.stats
        sums = discounted(upload.stats, self._discount.weight(clock - upload.clock))
        if self._sums is not None:
            sums = discounted(self._sums, self._discount.weight(clock - self.clock)) + sums
        self._sums = sums
        return self.rule.prior + sums

    def _download(self, agent_id: str, incarnation: str | None = None, outcome: str = "") -> Download:
        plain = super()._download(agent_id, incarnation)
        return Download(
            agent_id,
            plain.version,
            plain.stats,
            plain.acknowledged,
            epoch=self.epoch,
            clock=self.clock if self._discount is not None else 0,
            discarded=self.discarded.get(agent_id, 0),
            outcome=outcome,
        )

    # -- saving

    def _state(self) -> dict[str, Any]:
        if not (self.epoch or self.discarded or self.rule.drift):
            return {}
        state: dict[str, Any] = {"epoch": self.epoch, "clock": self.clock, "discarded": self.discarded}
        if self.detector is not None:
            state["detector"] = self.detector.state()
        if self._discount is not None:
            state["sums"] = self._sums
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        self.epoch, self.clock = int(state.get("epoch", 0)), int(state.get("clock", self.stats.n_obs))
        self.discarded = {str(agent): int(n) for agent, n in state.get("discarded", {}).items()}
        if self.detector is not None:
            self.detector.restore(state["detector"])
        self._sums = state.get("sums")


def discounted(stats: SufficientStats, weight: float) -> SufficientStats:
    """Σ and b times the weight; counts and sums of rewards stay as they are."""
    return SufficientStats(
        frozen(weight * stats.Sigma),
        frozen(weight * stats.b),
        stats.n_obs,
        stats.reward_sum,
        stats.reward_sq_sum,
    )
