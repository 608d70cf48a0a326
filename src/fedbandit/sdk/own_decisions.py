"""What an agent does with its own decisions besides observing them: find, expire, give up, correct their rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedbandit.algorithms.decision import Decision
from fedbandit.core.arrays import as_reward
from fedbandit.core.statistics import RunningStats
from fedbandit.errors import FormatError
from fedbandit.sdk.corrections import Correction, RecentRewards, corrected_buffer, not_correctable
from fedbandit.sdk.journal.journal import Corrected, GivenUp, Journal
from fedbandit.sdk.journal.pending_ring import PendingDecision
from fedbandit.sdk.kept_rows import decision_of, fitted

if TYPE_CHECKING:
    from fedbandit.algorithms.fedlinucb import FedLinUCBAgent
    from fedbandit.wire.settings import ModelSettings

CorrectionStep = tuple[Correction, RunningStats, int]  # with the buffer after it, and the log's position before it


class OwnDecisions:
    """The part of a durable agent that finds its decisions, gives them up and corrects their rewards."""

    agent: FedLinUCBAgent
    journal: Journal | None
    saved_sequence: int
    _correction: CorrectionStep | None
    _recent: RecentRewards
    _now: Callable[[], float]

    if TYPE_CHECKING:

        @property
        def settings(self) -> ModelSettings: ...
        def check(self) -> None: ...
        def finish(self) -> None: ...

    def drop(self, numbers: list[int]) -> None:
        """Drop these pending decisions."""
        with self.agent._lock:
            self.finish()
            known = [number for number in numbers if number in self.agent._pending]
            if self.journal is not None:
                self.journal.forget(known)
            for number in known:
                self.agent._pending.pop(number, None)

    def expire(self, decision: Decision) -> None:
        """Drop a pending decision; a reward that comes later is an error."""
        self.drop([self.agent._number_of(decision)])

    def pending_decisions(self, older_than_s: float = 0.0) -> list[tuple[PendingDecision, Decision]]:
        """Pending decisions of at least this age, oldest first."""
        now, pending = self._now(), list(self.agent._pending.values())
        # Where the clock went back, those made later than now have age 0.
        return [(w, decision_of(self.agent, w)) for w in pending if max(now - w.made_at, 0.0) >= older_than_s]

    def find(self, decision_id: str) -> Decision | None:
        """The pending decision of this id."""
        number = self._own_number(decision_id)
        pending = None if number is None else self.agent._pending.get(number)
        return None if pending is None else decision_of(self.agent, pending)

    def is_own(self, decision_id: str) -> bool:
        """Whether the decision was made in this state directory."""
        return self._own_number(decision_id) is not None

    @property
    def decision_prefix(self) -> str:
        """How the ids of decisions made in this state directory begin."""
        return self.agent._prefix.removesuffix("-")

    def _own_number(self, decision_id: str) -> int | None:
        """The number in the id of a decision that was made in this state directory; None for another one's."""
        prefix, _, number = decision_id.rpartition("-")
        is_own = prefix + "-" == self.agent._prefix and number.isascii() and number.isdecimal()
        return int(number) if is_own else None

    def correct(self, decision_id: str, reward: float) -> None:
        """Replace the reward of an observation that is still in the buffer; journalled before it counts."""
        value = as_reward(reward)
        with self.agent._lock:
            self.check()
            self.finish()
            number = self._own_number(decision_id)
            found = None if number is None or self.counts_more_than_sums else self._recent.find(self.agent, number)
            if number is None or found is None:
                raise not_correctable(decision_id, is_pending=self.find(decision_id) is not None)
            x, old = found
            self.settings.check(x, value)
            correction = Correction(number, x, old, value)
            position = 0 if self.journal is None else self.journal.position
            buffer = corrected_buffer(self.agent, self._recent, correction)
            self._correction = (correction, buffer, position)  # `finish` brings it to its end
            try:
                if self.journal is not None:
                    self.journal.correct(number, x, old, value)
                else:
                    self._correction = (correction, buffer, -1)
            finally:
                self._finish_correction()

    def _finish_correction(self) -> None:
        """Put the corrected buffer in place if the log has the correction, else forget it."""
        if self._correction is None:
            return
        correction, buffer, position = self._correction
        if self.journal is not None:
            self.journal.take_back()
        if position < 0 or (self.journal is not None and self.journal.position > position):
            self.agent._local = buffer
            self._recent.change(correction.number, correction.new)
        self._correction = None

    def give_up(self, decisions: Sequence[Decision]) -> list[PendingDecision]:
        """Drop pending decisions for good, and on disk, so that somebody else may book them; what they were."""
        with self.agent._lock:
            self.check()
            self.finish()
            numbers = [self.agent._number_of(decision) for decision in decisions]
            for decision, number in zip(decisions, numbers, strict=True):
                self.agent._pending_row(fitted(decision, self.settings), number)
            if self.journal is not None:
                self.journal.give_up(numbers)
            return [self.agent._pending.pop(number) for number in numbers]

    @property
    def counts_more_than_sums(self) -> bool:
        """Whether an observation is more than its row and reward: own parameters, blocks, a control group."""
        return not self.settings.is_plain

    def _replay_change(self, journal: Journal, record: GivenUp | Corrected) -> None:
        if isinstance(record, GivenUp):
            self.agent._pending.pop(record.number, None)
            journal.settle(record.number)
            return
        self._replay_correction(Correction(record.number, record.x, record.old, record.new))

    def _replay_correction(self, correction: Correction) -> None:
        """The buffer held the observation; an upload that the replay has made of it was not sent, and is corrected."""
        if self.agent.blocks > 1 or len(correction.x) != self.agent.dim:
            raise FormatError(f"the journal is damaged: expected rows of {self.agent.dim} numbers in a correction")
        upload, is_recent = self.agent.in_flight, self._recent.find(self.agent, correction.number) is not None
        if upload is not None and upload.sequence > self.saved_sequence and not is_recent:
            self.agent.in_flight = replace(upload, stats=upload.stats + correction.difference)
            return
        self.agent._local = corrected_buffer(self.agent, self._recent, correction)
        if is_recent:
            self._recent.change(correction.number, correction.new)
