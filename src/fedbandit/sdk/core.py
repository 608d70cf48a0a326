"""The library's agent with books under it: every decision and every observation is written down before it counts."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.fedlinucb import FedLinUCBAgent
from fedbandit.algorithms.messages import Reply, Upload, packed_bytes, stats_from_bytes
from fedbandit.algorithms.snapshot import agent_state, restore_agent
from fedbandit.core.arrays import Vector, as_reward
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import FormatError, JournalFailed, LiveError
from fedbandit.sdk.decisions import Waiting
from fedbandit.sdk.journal import Batch, Journal, Kept, Observation, Saved
from fedbandit.sdk.status import Counters
from fedbandit.sdk.terms import Terms

logger = logging.getLogger("fedbandit.sdk")
FORMAT = 1


class LiveCore(FedLinUCBAgent):
    """Algorithm 1's agent, journalled. `ended` is the error for whoever still uses it after the end."""

    def __init__(
        self,
        terms: Terms,
        agent_id: str,
        *,
        journal: Journal | None = None,
        incarnation: str | None = None,
        min_upload: int = 1,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(terms.rule, agent_id, incarnation)
        self.terms = terms
        self.journal = journal
        self.min_upload = min_upload
        self.counters = Counters()
        self.ended: LiveError | None = None
        self.birth = self.incarnation  # decisions keep the name of the first life that this directory saw
        self.saved_sequence = 0  # uploads up to this one are in the journal as they will travel
        self.durable_sequence = 0  # and up to this one they are on disk
        self._now = now
        self._issuing = threading.Lock()
        self._pending: dict[int, Waiting] = {}
        self._answered: list[Kept] = []  # since the last snapshot
        self._drop_kept = False

    def check(self) -> None:
        """An agent that has come to its end says so."""
        if self.ended is not None:
            raise type(self.ended)(str(self.ended))

    # -- decisions ---------------------------------------------------------------------------------------------

    def _issue(self, index: int | None, x: Vector, version: int) -> Decision:
        x.setflags(write=False)
        with self._issuing:
            if self.ended is not None:
                self.check()
            number = self._newest = next(self._decisions)
            waiting = Waiting(number, index, version, self._now(), x)
            self._pending[number] = waiting
            if self.journal is not None:
                try:
                    self.journal.note(waiting)
                except JournalFailed as error:  # decisions go on; this one would not survive a kill
                    logger.error("agent %s: %s", self.agent_id, error)
        if len(self._pending) > self.max_pending:
            self._drop_oldest()
        return Decision(f"{self._prefix}{number}", index, x, self.agent_id, version)

    def _drop_oldest(self) -> None:
        with self._lock:
            excess = list(itertools.islice(list(self._pending), max(len(self._pending) - self.max_pending, 0)))
            try:
                self.drop(excess)
            except JournalFailed as error:
                logger.error("agent %s: %s", self.agent_id, error)

    def drop(self, numbers: list[int]) -> None:
        """Give up waiting for these decisions."""
        with self._lock:
            known = [number for number in numbers if number in self._pending]
            if self.journal is not None:
                self.journal.forget(known)
            for number in known:
                del self._pending[number]

    def expire(self, decision: Decision) -> None:
        """Give up waiting for the reward of a decision; a reward that comes later is an error."""
        self.drop([self._number_of(decision)])

    def waiting_decisions(self, older_than_s: float = 0.0) -> list[tuple[Waiting, Decision]]:
        """Decisions that have waited this long for their reward, oldest first.

        Where the clock went back, those made later than now have waited for no time, but they do wait.
        """
        now = self._now()
        waiting = list(self._pending.values())
        return [(w, self._decision(w)) for w in waiting if max(now - w.made_at, 0.0) >= older_than_s]

    def find(self, decision_id: str) -> Decision | None:
        """The waiting decision of this id."""
        prefix, _, number = decision_id.rpartition("-")
        if prefix + "-" != self._prefix or not number.isdecimal():
            return None
        waiting = self._pending.get(int(number))
        return None if waiting is None else self._decision(waiting)

    def _decision(self, waiting: Waiting) -> Decision:
        name = f"{self._prefix}{waiting.number}"
        return Decision(name, waiting.choice, waiting.x, self.agent_id, waiting.model_version)

    # -- learning ----------------------------------------------------------------------------------------------

    def observe(self, decision: Decision | ArrayLike, reward: float) -> Upload | None:
        """Book the reward of a decision, at most once, or of any row; journalled before it counts."""
        value = as_reward(reward)
        with self._lock:
            if self.ended is not None:
                self.check()
            number, kept = None, None
            if isinstance(decision, Decision):
                number = self._number_of(decision)
                kept = self._pending.get(number)
                x = self._settle(decision, number)
            else:
                x = self._row(decision)
            try:
                self.terms.check(x, value)
                if self.journal is not None:
                    self.journal.book(number, x, value)
            except BaseException:
                if number is not None and kept is not None:
                    self._pending[number] = kept
                raise
            self.n_rounds += 1
            return self._absorb(x, value)

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Upload | None:
        """Learn from rows and rewards gathered elsewhere; the trigger is tested once, at the end."""
        rows = self._read(X)
        stats = SufficientStats.of(rows, y)
        rewards = np.asarray(y, dtype=np.float64)
        self.terms.check_all(rows, rewards)
        with self._lock:
            self.check()
            if self.journal is not None:
                self.journal.book_batch(packed_bytes(stats))
            self.n_rounds += stats.n_obs
            return self._absorb_batch(stats, rows, rewards)

    def begin_at_prior(self) -> None:
        """Give up a model that belongs to other settings; the buffer and the upload in flight stay."""
        with self._lock:
            self.model, self.model_version, self._judgement = self.rule.prior_model, 0, None
            self._recount()

    def want_model(self, wanted: bool) -> None:
        """Whether to join as soon as the server answers."""
        self._wants_model = wanted

    # -- uploads -----------------------------------------------------------------------------------------------

    @property
    def n_answered(self) -> int:
        """Uploads of this life that the server has acknowledged."""
        with self._lock:
            return self.sequence - (self.in_flight is not None)

    def adopt(self, message: Reply | Iterable[Reply]) -> Upload | None:
        """Take a reply; an upload that it answers is kept a while, in case the server is restored without it."""
        with self._lock:
            sent = self.in_flight
            following = super().adopt(message)
            if sent is not None and sent.sequence <= self.n_answered:
                self._answered.append(Kept(sent.sequence, sent.growth, packed_bytes(sent.stats)))
            return following

    def kept_after(self, sequence: int) -> list[Upload]:
        """Answered uploads beyond this one that the journal still has, in order."""
        if self.journal is None or self._drop_kept:
            return []
        stats = ((kept, stats_from_bytes(kept.packed, self.dim)) for kept in self.journal.kept_after(sequence))
        return [Upload(self.agent_id, self.incarnation, kept.sequence, sums, kept.growth) for kept, sums in stats]

    def drop_kept(self) -> None:
        """What was answered belongs to another model than there is now."""
        self._answered, self._drop_kept = [], True

    def begin_new_life(self, kept: Iterable[Upload]) -> None:
        """A new incarnation, with all that the server does not have in its buffer; waiting decisions stay."""
        with self._lock:
            sent = [] if self.in_flight is None else [self.in_flight]
            for upload in (*kept, *sent):
                self._gather_batch(upload.stats)
            self.incarnation, self.sequence, self.in_flight = uuid.uuid4().hex, 0, None
            self.durable_sequence = 0
            self.drop_kept()
            self.begin_at_prior()
            self.save()

    @property
    def n_waiting(self) -> int:
        """Observations that no upload holds yet."""
        return 0 if self._local is None else self._local.n_obs

    @property
    def n_in_flight(self) -> int:
        """Observations in an upload that is not answered yet."""
        upload = self.in_flight
        return 0 if upload is None else upload.stats.n_obs

    @property
    def n_merged(self) -> int:
        """Observations that the server has confirmed."""
        with self._lock:
            return self.n_rounds - self.n_waiting - self.n_in_flight

    @property
    def threshold(self) -> float:
        """log(1 + α)."""
        return self._threshold

    @property
    def should_upload(self) -> bool:
        """The trigger, for a buffer that holds at least `min_upload` observations."""
        return self.n_waiting >= self.min_upload and super().should_upload

    def upload_now(self) -> Upload | None:
        """The unanswered upload, or the buffer as one if it holds at least `min_upload` observations."""
        with self._lock:
            if self.in_flight is None and self.n_waiting < self.min_upload:
                return None
            return super().upload_now()

    # -- the journal -------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a snapshot; what the log held is in it."""
        with self._lock:
            if self.journal is not None and self.ended is None:
                with self._issuing:
                    mark, waiting = next(self._decisions), self.journal.waiting_numbers()
                state = {"format": FORMAT, "agent": agent_state(self, pending=False), "counters": asdict(self.counters)}
                state["birth"] = self.birth
                blob = msgspec.msgpack.encode({**state, "mark": mark, "waiting": waiting})
                terms = msgspec.json.encode(self.terms.to_dict())
                saved = Saved(self.terms.model, self.agent_id, self.incarnation, terms, blob)
                self.journal.save(saved, answered=self._answered, drop_kept=self._drop_kept)
            self._answered, self._drop_kept = [], False
            self.saved_sequence = self.sequence

    def compact(self) -> None:
        """Keep the journal short, whether or not the server answers."""
        self.save()
        if self.journal is not None:
            self.journal.tidy()

    def resume(self, saved: Saved) -> None:
        """Come back to the snapshot, then live through the log again."""
        journal = self.journal
        if journal is None:
            return
        try:
            state = msgspec.msgpack.decode(saved.snapshot, type=dict[str, Any])
            if state["format"] > FORMAT:
                raise FormatError(f"{journal.directory} was written by a newer fedbandit; nothing was changed")
            restore_agent(self, {**state["agent"], "features": state["agent"]["features"] or self.rule.features})
            self.counters = Counters(**state["counters"])
            self.birth = str(state.get("birth", self.incarnation))
            self._prefix = f"{self.birth[:12]}-"
            mark, known = int(state["mark"]), frozenset(state["waiting"])
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise FormatError(f"the snapshot in {journal.directory} is damaged: {error!r}") from None
        self.saved_sequence = self.sequence
        self.open_books(mark=mark, known=known)
        for record in journal.records():
            self._live_again(journal, record)

    def open_books(self, *, mark: int = 0, known: frozenset[int] = frozenset()) -> None:
        """Read which decisions wait, and go on numbering after the last that was ever given out."""
        if self.journal is not None:
            waiting, following = self.journal.open_decisions(self.dim, self.birth, mark=mark, known=known)
            self._pending = {item.number: item for item in waiting}
            first = max(following, next(self._decisions))
            self._decisions, self._newest = itertools.count(first), first - 1

    def _live_again(self, journal: Journal, record: Observation | Batch) -> None:
        if isinstance(record, Batch):
            stats = stats_from_bytes(record.packed, self.dim)
            self.n_rounds += stats.n_obs
            self._absorb_batch(stats, np.empty((0, self.dim)), np.empty(0))
            return
        if len(record.x) != self.dim:
            raise FormatError(f"the journal is damaged: expected rows of {self.dim} features, got {len(record.x)}")
        if record.number is not None:
            self._pending.pop(record.number, None)
            journal.settle(record.number)  # a kill may have come between the log and the ring
        self.n_rounds += 1
        self._absorb(record.x, record.reward)
