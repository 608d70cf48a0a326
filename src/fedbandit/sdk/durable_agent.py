"""An agent with a journal: every decision and every observation is written down before it counts."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from fedbandit.algorithms.contexts import Arms, Context, compact
from fedbandit.algorithms.control import check_defaults
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.fedlinucb import FedLinUCBAgent
from fedbandit.algorithms.messages import Receipt, Upload, packed_bytes
from fedbandit.algorithms.policies import Lottery
from fedbandit.algorithms.scoring import Scores
from fedbandit.algorithms.snapshot import agent_values, plain_values, restore_agent
from fedbandit.core.arrays import Vector, as_reward
from fedbandit.core.decision_sets import DecisionSet
from fedbandit.core.features import arm_columns
from fedbandit.core.statistics import RunningStats, SufficientStats
from fedbandit.errors import (
    DimensionMismatch,
    FormatError,
    JournalFailed,
    LiveError,
    UnsupportedFormat,
    UnusableModel,
)
from fedbandit.pauses import no_pauses, pause_point
from fedbandit.sdk.agent_snapshot import AgentSnapshot, kept_of, upload_of
from fedbandit.sdk.corrections import RecentRewards
from fedbandit.sdk.decision_log import DecisionLog
from fedbandit.sdk.epoch_changes import taken_over
from fedbandit.sdk.journal.journal import (
    Batch,
    Corrected,
    GivenUp,
    Journal,
    Observation,
    SavedState,
)
from fedbandit.sdk.journal.pending_ring import PendingDecision, pending_numbers
from fedbandit.sdk.kept_rows import decision_of, fitted, is_row, stats_of_batch, stats_of_row, widen_saved
from fedbandit.sdk.next_model import NextModel, require_usable, with_rows
from fedbandit.sdk.own_decisions import CorrectionStep, OwnDecisions
from fedbandit.sdk.recoverable_step import RecoverableStep, require_interrupted
from fedbandit.sdk.reward_groups import group_of, n_grouped
from fedbandit.sdk.status import Counters
from fedbandit.sdk.unnamed_arms import warn_of_unnamed_arms
from fedbandit.wire.settings import ModelDescription, ModelSettings

logger = logging.getLogger("fedbandit.sdk")
FORMAT = 1
MOST_EARLIER = 8  # incarnations that a backup may still bring back
NO_ROW: Vector = np.empty(0)


class DurableAgent(OwnDecisions):
    """An agent of Algorithm 1 and its journal. `ended` is the error of every call after the end."""

    def __init__(
        self,
        description: ModelDescription,
        agent_id: str,
        *,
        journal: Journal | None = None,
        incarnation: str | None = None,
        min_upload: int = 1,
        now: Callable[[], float] = time.time,
    ) -> None:
        rule = description.settings.rule(min_upload=min_upload)
        self.agent: FedLinUCBAgent = rule.agent(agent_id, incarnation=incarnation)
        self.description = description
        self.journal = journal
        self.counters = Counters()
        self.ended: LiveError | None = None
        self.birth = self.agent.incarnation  # decisions keep the name of the first incarnation in this directory
        self.saved_sequence = 0  # uploads up to this one are in the journal as they will travel
        self.durable_sequence = 0  # and up to this one they are on disk
        self._now = now
        self._issuing = threading.Lock()
        self._answered: list[Upload] = []  # since the last snapshot
        self._n_drops = 0  # how often `drop_kept` was called
        self._n_drops_saved = 0  # of these, those that the journal knows of
        self._unchecked_arms = arm_columns(description.settings.features)  # until a warning was given
        self._step: RecoverableStep | None = None  # under way
        self._correction: CorrectionStep | None = None  # under way
        self._recent = RecentRewards(self.agent.dim)
        self._new_incarnation: tuple[str, RunningStats, list[tuple[str, int]], int] | None = None  # about to begin
        self.earlier: list[tuple[str, int]] = []  # incarnations, and the uploads before those taken over from them
        self.log: DecisionLog | None = None
        self.building = threading.Lock()  # held while the next model or tracker is made
        self.rows_since: list[Vector] | None = None  # observed meanwhile; None: nothing is being made, or not by rows
        self._encoded_description: tuple[ModelDescription, bytes] | None = None  # as snapshots hold it

    def check(self) -> None:
        """Raise the error of an agent that was closed or belongs to another process."""
        if self.ended is not None:
            raise type(self.ended)(str(self.ended))

    def _warn_of_unnamed_arms(self, actions: Any) -> None:
        if self._unchecked_arms is not None and not hasattr(actions, "columns"):
            arms, self._unchecked_arms = self._unchecked_arms, None
            warn_of_unnamed_arms(self.settings.name, arms)

    @property
    def settings(self) -> ModelSettings:
        """What the model fixes."""
        return self.description.settings

    @property
    def settings_id(self) -> str:
        """Changes when the model's settings do."""
        return self.description.settings_id

    # -- decisions ---------------------------------------------------------------------------------------------

    def choose(
        self, actions: ArrayLike | DecisionSet, k: int | None, default: int | None = None
    ) -> Decision | list[Decision]:
        """The action with the largest upper bound; with `k`, the k best, best first."""
        if self._unchecked_arms is not None:
            self._warn_of_unnamed_arms(actions)
        if self.agent._draws is not None:
            return self._issue_draw(self.agent._offers([actions], k, [default])[0])
        if default is not None:
            self.agent._check_unused_default(actions, default)
        if k is None:
            return self._issue(*self.agent._select(actions))
        return [self._issue(*selection) for selection in self.agent._select_top(actions, k)]

    def choose_context(
        self, context: Context, arms: Arms | None, bias: bool, k: int | None
    ) -> Decision | list[Decision]:
        """The arm with the largest upper bound in this context; with `k`, the k best, best first."""
        best = [self._issue(*found) for found in self.agent._select_context(context, arms, bias, 1 if k is None else k)]
        return best[0] if k is None else best

    def choose_many(
        self, decision_sets: Sequence[ArrayLike], k: int | None, defaults: Sequence[int | None] | None = None
    ) -> list[Decision] | list[list[Decision]]:
        """What `choose` gives for each decision set, all by the same model."""
        if self._unchecked_arms is not None and hasattr(decision_sets, "__len__"):
            for actions in decision_sets:
                self._warn_of_unnamed_arms(actions)
        if self.agent._draws is not None:
            return [
                self._issue_draw(offer)
                for offer in self.agent._offers(self.agent._read_each(decision_sets), k, defaults)
            ]
        if defaults is not None:
            check_defaults(defaults, len(self.agent._read_each(decision_sets)))
        if k is None:
            return [self._issue(*selection) for selection in self.agent._select_each(decision_sets)]
        each = self.agent._select_top_of_each(decision_sets, k)
        return [[self._issue(*selection) for selection in top] for top in each]

    def predict(self, X: ArrayLike) -> Vector:
        """Estimated mean reward of each row."""
        self._warn_of_unnamed_arms(X)
        return self.agent.predict(X)

    def scores(self, X: ArrayLike) -> Scores:
        """Means, widths and upper bounds of each row."""
        self._warn_of_unnamed_arms(X)
        return self.agent.scores(X)

    def _issue(
        self,
        index: int | None,
        x: Vector,
        version: int,
        score: float | None,
        block: int | None = None,
        arm: str | None = None,
    ) -> Decision:
        agent, journal = self.agent, self.journal
        x.setflags(write=False)
        row = x if agent.blocks == 1 else compact(agent, x, block)
        with self._issuing:
            if self.ended is not None:
                self.check()
            number = agent._newest = next(agent._decisions)
            pending = PendingDecision(number, index, version, self._now(), row, 1.0, score)
            if journal is not None:
                try:
                    journal.note(pending)
                except JournalFailed as error:  # decisions go on; this one would not survive a kill
                    logger.error("agent %s: %s", agent.agent_id, error)
            agent._pending[number] = pending  # after the journal: whoever finds it here may book it at once
        if len(agent._pending) > agent.max_pending:
            self._drop_oldest()
        return Decision(f"{agent._prefix}{number}", index, x, agent.agent_id, version, block, arm, 1.0, score)

    def _issue_draw(self, offer: Lottery) -> Decision:
        with self._issuing:  # a snapshot takes numbers, too: a decision is noted before the next number is given out
            if self.ended is not None:
                self.check()
            number = self.agent._newest = next(self.agent._decisions)
            index, x, propensity, score, policy = offer.draw(number)
            x.setflags(write=False)
            row = x if self.agent.blocks == 1 else compact(self.agent, x, None)
            chance = propensity, score, policy or offer.policy
            pending = PendingDecision(number, index, offer.version, self._now(), row, *chance)
            if self.journal is not None:
                try:
                    self.journal.note(pending)
                except JournalFailed as error:
                    logger.error("agent %s: %s", self.agent.agent_id, error)
            self.agent._pending[number] = pending
        if len(self.agent._pending) > self.agent.max_pending:
            self._drop_oldest()
        return decision_of(self.agent, pending)

    def _drop_oldest(self) -> None:
        with self.agent._lock:
            with self._issuing:  # neither grows nor shrinks meanwhile
                oldest = list(itertools.islice(self.agent._pending, self.agent._n_to_drop()))
            try:
                self.drop(oldest)
            except JournalFailed as error:
                logger.error("agent %s: %s", self.agent.agent_id, error)

    # -- learning ----------------------------------------------------------------------------------------------

    def observe(self, decision: Decision | ArrayLike, reward: float) -> Upload | None:
        """Book the reward of a decision, at most once, or of any row; journalled before it counts."""
        value = as_reward(reward)
        with self.agent._lock:
            if self.ended is not None:
                self.check()
            self.finish()
            number = None
            if isinstance(decision, Decision):
                number = self.agent._number_of(decision)
                try:
                    x = self.agent._pending_row(decision, number)
                except DimensionMismatch:
                    x = self.agent._pending_row(fitted(decision, self.settings), number)
            else:
                x = self.agent._row(decision)
            self.settings.check(x, value)
            return self._run(RecoverableStep(self, 1, number, x, value, None, group_of(self.agent, number)))

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Upload | None:
        """Learn from rows and rewards gathered elsewhere; the trigger is tested once, at the end."""
        self._warn_of_unnamed_arms(X)
        rows = self.agent._read(X)
        stats = SufficientStats.of(rows, y, blocks=self.agent.blocks)
        self.settings.check_all(rows, np.asarray(y, dtype=np.float64))
        with self.agent._lock:
            self.check()
            self.finish()
            return self._run(RecoverableStep(self, stats.n_obs, None, NO_ROW, 0.0, stats))

    def _run(self, step: RecoverableStep) -> Upload | None:
        """Book, then count. A signal handler may raise at any point: `finish` then brings the step to one end."""
        self._step = step
        try:
            if self.journal is not None:
                if step.stats is None:
                    self.journal.book(step.number, step.x, step.reward, step.group)
                else:
                    self.journal.book_batch(packed_bytes(step.stats))
            step.is_booked = True
            if step.number is not None:
                self.agent._pending.pop(step.number, None)
            self.agent.n_rounds = step.n_rounds + step.n_obs
            sequence = self.agent.sequence
            upload = self._count(step)
            if step.number is not None:
                self._recent.note(self.agent, step.number, step.x, step.reward, sequence)
            self._step = None
            return upload
        except BaseException:
            self.finish()
            raise

    def _count(self, step: RecoverableStep) -> Upload | None:
        return self._learn(step.x, step.reward, step.group) if step.stats is None else self._learn_batch(step.stats)

    def finish(self) -> None:
        """Bring a step that an exception interrupted to its end: counted if the log has it, else as if never begun.

        Each public call begins with this, under the lock, in case that an exception interrupted `finish` as well.
        """
        if self._new_incarnation is not None:
            begun, self._step = self._new_incarnation, None
            self._begin(*begun)
            self._new_incarnation = None
        self._finish_correction()
        step = self._step
        if step is not None:
            require_interrupted(self, DurableAgent._run.__code__)
        self.agent._complete_upload()
        if step is None:
            return
        if self.journal is not None and not step.is_booked:
            self.journal.take_back()
        if step.is_booked or (self.journal is not None and self.journal.position > step.position):
            if step.number is not None:
                if self.journal is not None:
                    self.journal.settle(step.number)
                self.agent._pending.pop(step.number, None)
            self.agent.n_rounds = step.n_rounds + step.n_obs
            if step.group and n_grouped(self.agent) == step.n_grouped:
                self.agent._gather_group(step.group, step.reward)
            if self.n_unsent + self.n_in_flight == step.n_held:
                self.rows_since = None
                stats = stats_of_row(self.agent, step.x, step.reward) if step.stats is None else step.stats
                self.agent._gather_batch(stats)
            self.agent._recount()
        self._step = None

    def _learn(self, x: Vector, reward: float, group: str) -> Upload | None:
        if group:
            self.agent._gather_group(group, reward)
        if self.rows_since is not None:
            self.rows_since.append(x.copy())
        return self.agent._absorb(x, reward)

    def _learn_batch(self, stats: SufficientStats) -> Upload | None:
        self.rows_since = None  # rows no longer say all that was gathered
        return self.agent._absorb_batch(stats, np.empty((0, self.agent.dim)), np.empty(0))

    # -- models ------------------------------------------------------------------------------------------------

    def take_rows(self) -> list[Vector] | None:
        """Rows observed since `rows_since` was set; None if something else than rows was gathered, too."""
        rows, self.rows_since = self.rows_since, None
        return rows

    def adopt_prepared(self, following: NextModel) -> None:
        """Use a model that was made without the lock; `count_growth` follows, when this thread has let others go on."""
        download = following.download
        with self.agent._lock:
            self.finish()
            self._keep_answered(download.acknowledged)
            self.agent._acknowledge(download.acknowledged)
            self._take(following)

    def _take(self, following: NextModel) -> None:
        download, tracker, personal, rows = following.download, following.tracker, following.personal, self.take_rows()
        is_older = download.version < self.agent.model_version or download.epoch != self.agent.world.epoch
        if is_older or (personal is not None and rows is None):
            self.agent._take(download)  # another epoch drops the buffer, and the tracker that was made has it
            return
        self.agent._begin(download)
        if personal is not None and rows is not None:
            personal.use(rows)
        if tracker is not None and rows is not None:
            tracker = with_rows(self.agent, tracker, rows)
        self.agent._use(following.model, download.version, None if rows is None else tracker)

    def begin_at_prior(self) -> None:
        """Give up a model that belongs to other settings; the buffer and the upload in flight stay."""
        with self.agent._lock:
            self.rows_since = None
            self.agent._begin_at_prior()

    def use_settings(self, description: ModelDescription) -> None:
        """Continue under settings that the server has changed; the model, the buffer and pending decisions stay."""
        rule = description.settings.rule(min_upload=self.agent.rule.min_upload)
        with self.agent._lock:
            self.finish()
            self.description = replace(description, agent_id=self.description.agent_id)
            self.agent.use_rule(rule, birth=self.birth)

    def want_model(self, wanted: bool) -> None:
        """Whether to join as soon as the server answers."""
        self.agent._wants_model = wanted

    # -- uploads -----------------------------------------------------------------------------------------------

    @property
    def n_answered(self) -> int:
        """Uploads of this incarnation that the server has acknowledged."""
        with self.agent._lock:
            return self.agent.sequence - (self.agent.in_flight is not None)

    def adopt(self, message: Receipt) -> Upload | None:
        """Take a reply without a model."""
        with self.agent._lock:
            self.finish()
            self._keep_answered(message.acknowledged)
            return self.agent.adopt(message)

    def _keep_answered(self, acknowledged: int) -> None:
        """Keep the upload that is answered now, in case the server is restored without it."""
        sent = self.agent.in_flight
        if sent is not None and sent.sequence <= acknowledged:  # first: an exception may come in between
            self._answered.append(sent)

    def kept_after(self, sequence: int) -> list[Upload]:
        """Answered uploads beyond this one that the journal still has, in order."""
        if self.journal is None or self._n_drops > self._n_drops_saved:
            return []
        return [upload_of(kept, self.agent) for kept in self.journal.kept_after(sequence)]

    def drop_kept(self) -> None:
        """What was answered belongs to another model than there is now."""
        self._n_drops += 1
        self._answered = []

    def begin_incarnation(self, kept: Iterable[Upload]) -> None:
        """A new incarnation, with all that the server does not have in its buffer; pending decisions stay."""
        with self.agent._lock:
            self.finish()
            taken = {upload.sequence: upload for upload in kept}
            if self.agent.in_flight is not None:
                taken[self.agent.in_flight.sequence] = self.agent.in_flight
            buffer, n_dropped = taken_over(self.agent, taken)
            n_before = min(taken, default=self.agent.sequence + 1) - 1
            earlier = [*self.earlier, (self.agent.incarnation, n_before)][-MOST_EARLIER:]
            self._new_incarnation = (uuid.uuid4().hex, buffer, earlier, n_dropped)
            self.finish()
        self.save()

    def _begin(self, incarnation: str, buffer: RunningStats, earlier: list[tuple[str, int]], n_dropped: int) -> None:
        self.agent.incarnation, self.agent.sequence, self.agent.in_flight, self.agent._local = (
            incarnation,
            0,
            None,
            buffer,
        )
        self.saved_sequence = self.durable_sequence = 0
        self.agent.world.n_dropped = n_dropped
        self.earlier = earlier
        self.drop_kept()
        self.agent._begin_own_sums()
        self.begin_at_prior()

    @property
    def n_unsent(self) -> int:
        """Observations that no upload holds yet."""
        return 0 if self.agent._local is None else self.agent._local.n_obs

    @property
    def n_in_flight(self) -> int:
        """Observations in an upload that is not answered yet."""
        upload = self.agent.in_flight
        return 0 if upload is None else upload.stats.n_obs

    @property
    def n_merged(self) -> int:
        """Observations that the server has confirmed."""
        with self.agent._lock:
            return self.agent.n_rounds - self.n_unsent - self.n_in_flight

    @property
    def threshold(self) -> float:
        """log(1 + α)."""
        return self.agent._threshold

    # -- the journal -------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a snapshot of this moment; observations go on while it is written, and the log has them."""
        journal = self.journal
        with self.agent._lock, no_pauses():
            self.finish()
            if journal is None:  # nothing to write to: whatever there is counts as saved
                self._n_drops_saved, self._answered = self._n_drops, []
                self.saved_sequence = self.agent.sequence
                return
            if self.ended is not None:
                return
            found = self._take_snapshot(journal)
        try:
            self._write(journal, found)
        except JournalFailed:
            self.check()  # closed meanwhile, with a later snapshot
            raise
        with self.agent._lock:
            # The drops first: what is kept twice is kept once, what is dropped is gone.
            self._n_drops_saved = max(self._n_drops_saved, found.n_drops)
            self._answered = [upload for upload in self._answered if not any(upload is old for old in found.answered)]
            if found.incarnation == self.agent.incarnation:
                self.saved_sequence = max(self.saved_sequence, found.sequence)

    def _take_snapshot(self, journal: Journal) -> AgentSnapshot:
        """What a snapshot of this moment consists of, none of which changes later; the caller has the lock."""
        with self._issuing:
            mark, marks = next(self.agent._decisions), journal.marks()
        state = {
            "format": FORMAT,
            "agent": agent_values(self.agent, pending=False),
            "counters": asdict(self.counters),
            "birth": self.birth,
            "earlier": self.earlier,
            "mark": mark,
        }
        return AgentSnapshot(
            journal.moment(),
            self.agent.incarnation,
            self.agent.sequence,
            self.description,
            state,
            marks,
            answered=tuple(self._answered),
            drop_kept=self._n_drops > self._n_drops_saved,
            n_drops=self._n_drops,
        )

    def _write(self, journal: Journal, found: AgentSnapshot) -> None:
        blob = msgspec.msgpack.encode({**plain_values(found.state), "pending": pending_numbers(found.marks)})
        pause_point()
        if self._encoded_description is None or self._encoded_description[0] is not found.description:
            self._encoded_description = (found.description, msgspec.json.encode(found.description.to_dict()))
        description = self._encoded_description[1]
        model = found.description.settings.name
        saved = SavedState(model, self.agent.agent_id, found.incarnation, description, blob)
        kept = [kept_of(upload, self.agent) for upload in found.answered]
        pause_point()
        journal.save(saved, found.moment, answered=kept, drop_kept=found.drop_kept)

    def compact(self) -> None:
        """Keep the journal short, whether or not the server answers."""
        self.save()
        if self.journal is not None:
            self.journal.tidy()

    def resume(self, saved: SavedState) -> None:
        """Restore the snapshot, then replay the log."""
        journal = self.journal
        if journal is None:
            return
        try:
            state = msgspec.msgpack.decode(saved.snapshot, type=dict[str, Any])
            if state["format"] != FORMAT:
                raise UnsupportedFormat(
                    f"the snapshot in {journal.directory} has format {state['format']!r}, this fedbandit reads format "
                    f"{FORMAT}; nothing was changed"
                )
            widen_saved(state["agent"], self.settings)
            restore_agent(
                self.agent, {**state["agent"], "features": state["agent"]["features"] or self.agent.rule.features}
            )
            self.counters = Counters(**state["counters"])
            self.birth = str(state["birth"])
            self.earlier = [(str(incarnation), int(n)) for incarnation, n in state["earlier"]]
            self.agent._name_decisions(self.birth)
            mark, known = int(state["mark"]), frozenset(state["pending"])
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise FormatError(f"the snapshot in {journal.directory} is damaged: {error!r}") from None
        self.saved_sequence = self.agent.sequence
        self._require_usable()
        self.open_books(mark=mark, known=known)
        for record in journal.records():
            self._replay(journal, record)

    def _require_usable(self) -> None:
        """A saved model that cannot be decided on is left for the prior; what was observed stays."""
        try:
            require_usable(self.agent.rule, self.agent.model, self.agent.model_version, self.settings.action_bound)
        except (FormatError, UnusableModel) as error:
            logger.warning("agent %s: the saved model is not used: %s", self.agent.agent_id, error)
            self.begin_at_prior()

    def open_books(self, *, mark: int = 0, known: frozenset[int] = frozenset()) -> None:
        """Read the pending decisions, and continue numbering after the last number that was ever used."""
        if self.journal is not None:
            pending, following = self.journal.open_decisions(
                self.agent.row_width, self.birth, mark=mark, known=known, earlier_dims=self.settings.earlier_dims
            )
            self.agent._pending = {item.number: item for item in pending}
            first = max(following, next(self.agent._decisions))
            self.agent._decisions, self.agent._newest = itertools.count(first), first - 1

    def _replay(self, journal: Journal, record: Observation | Batch | GivenUp | Corrected) -> None:
        if isinstance(record, GivenUp | Corrected):
            self._replay_change(journal, record)
            return
        if isinstance(record, Batch):
            stats = stats_of_batch(self.agent, record.packed)
            self.agent.n_rounds += stats.n_obs
            self._learn_batch(stats)
            return
        if not is_row(self.agent, record.x):
            raise FormatError(
                f"the journal is damaged: expected rows of {self.agent.row_width} numbers, got {len(record.x)}"
            )
        if record.number is not None:
            self.agent._pending.pop(record.number, None)
            journal.settle(record.number)  # a kill may have come between the log and the ring
        self.agent.n_rounds += 1
        sequence = self.agent.sequence
        self._learn(record.x, record.reward, record.group)
        if record.number is not None:
            self._recent.note(self.agent, record.number, record.x, record.reward, sequence)
