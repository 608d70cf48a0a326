"""What every algorithm's agent shares: validation, decisions and their rewards, uploads kept until answered."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import ArrayLike

from fedbandit.algorithms.contexts import Arms, Context, best_blocks, compact, read_arms, read_context
from fedbandit.algorithms.control import ControlLottery, check_default, check_defaults
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.messages import Download, Poll, Pull, Receipt, Reply, Upload
from fedbandit.algorithms.policies import Lottery, PolicyDraws, draws_of
from fedbandit.algorithms.scoring import DecisionBasis, Scores, check_k
from fedbandit.algorithms.server import BaseServer
from fedbandit.core.arrays import (
    LARGEST,
    Matrix,
    Vector,
    as_matrix,
    as_reward,
    as_vector,
    finite,
    frame_names,
    frame_numbers,
    frozen,
    is_listing,
)
from fedbandit.core.block_rows import compact_row, full_row
from fedbandit.core.decision_sets import DecisionSet, Width, has_best, top_indices
from fedbandit.core.group_sums import NO_GROUPS, GroupSums
from fedbandit.core.statistics import RunningStats, SufficientStats
from fedbandit.core.structure import running_stats
from fedbandit.errors import AlreadyObserved, DimensionMismatch, FeatureMismatch, InvalidInput, UnknownDecision

MAX_PENDING = 100_000
# Row in the decision set, the row itself, version of the model, score.
Selection = tuple[int | None, Vector, int, float | None]
# The same of `choose_context`: index, context, version, score, block, name of the arm.
ContextSelection = tuple[int, Vector, int, float | None, int, str | None]
MOST_DROPPED = 256  # waiting decisions at a time, beyond the excess


class Rule(Protocol):
    """An algorithm with its numbers fixed: it makes agents and the server they talk to."""

    @property
    def dim(self) -> int: ...
    @property
    def features(self) -> tuple[str, ...] | None: ...
    def agent(self, agent_id: str, *, incarnation: str | None = None) -> BaseAgent: ...
    def server(self) -> BaseServer: ...
    def to_dict(self) -> dict[str, Any]: ...


class BaseAgent:
    """An agent: `choose`, `observe`, `adopt`. Subclasses say what they decide on and when they upload.

    `choose` may run in one thread while `observe` and `adopt` run in others.
    """

    def __init__(self, rule: Rule, agent_id: str, incarnation: str | None) -> None:
        self.rule = rule
        self.dim = rule.dim
        self.blocks: int = getattr(rule, "blocks", 1)
        self.arms: tuple[str, ...] | None = getattr(rule, "arms", None)
        self._arm_blocks = {arm: block for block, arm in enumerate(self.arms or ())}
        self.agent_id = str(agent_id)
        self.incarnation = incarnation if incarnation is not None else uuid.uuid4().hex
        self.features = rule.features
        self.model_version = 0
        self.sequence = 0  # of the last upload made
        self.in_flight: Upload | None = None  # sent and not answered yet: kept, and identical at each retry
        self.n_rounds = 0
        self.n_switches = 0
        self.now = 0  # rounds of the whole fleet, where a driver tells it: only global clocks use it
        self.max_pending = MAX_PENDING
        self._local: RunningStats | None = None
        self._has_control = getattr(rule, "control", 0.0) > 0.0
        self._pending: dict[int, Any] = {}  # number -> whatever a driver keeps with it
        self._decisions = itertools.count()
        self._newest = -1  # number of the last decision made
        self._draws: PolicyDraws | None  # None: the model alone determines a decision
        self._name_decisions(self.incarnation)
        self._lock = threading.RLock()
        # Held while an estimate is used; one that never changes in place needs nothing to be held.
        self._deciding: AbstractContextManager[Any] = self._lock

    # -- what an algorithm defines -----------------------------------------------------------------------------

    def _basis(self) -> DecisionBasis:
        """The estimate to decide on, β, and the version of the model behind them."""
        raise NotImplementedError

    def _absorb(self, x: Vector, reward: float) -> Upload | None:
        """Learn one pair; the upload if it is time for one."""
        raise NotImplementedError

    def _absorb_batch(self, stats: SufficientStats, X: Matrix, y: Vector) -> Upload | None:
        """Learn many pairs with at most one upload at the end."""
        raise NotImplementedError

    def _take(self, download: Download) -> Upload | None:
        """Use a download; an upload if what was gathered meanwhile is due already."""
        raise NotImplementedError

    # -- deciding ----------------------------------------------------------------------------------------------

    @overload
    def choose(self, actions: ArrayLike | DecisionSet, *, k: None = None, default: int | None = None) -> Decision: ...
    @overload
    def choose(self, actions: ArrayLike | DecisionSet, *, k: int, default: int | None = None) -> list[Decision]: ...
    def choose(
        self, actions: ArrayLike | DecisionSet, *, k: int | None = None, default: int | None = None
    ) -> Decision | list[Decision]:
        """The action with the largest ⟨θ̂, x⟩ + β‖x‖_{Σ⁻¹} (Algorithm 1, line 5); with `k`, the k best, best first.

        `actions` is (K, dim), array-like or a DataFrame, and may differ every time; or any object with `best`.
        `default` is the row that the application would have taken: with `control`, a share of decisions takes it.
        """
        if self._draws is not None:
            return self._draw_each([actions], k, [default])[0]
        if default is not None:
            self._check_unused_default(actions, default)
        if k is None:
            return self._issue(*self._select(actions))
        return [self._issue(*selection) for selection in self._select_top(actions, k)]

    @overload
    def choose_many(
        self, decision_sets: Sequence[ArrayLike], *, k: None = None, defaults: Sequence[int | None] | None = None
    ) -> list[Decision]: ...
    @overload
    def choose_many(
        self, decision_sets: Sequence[ArrayLike], *, k: int, defaults: Sequence[int | None] | None = None
    ) -> list[list[Decision]]: ...
    def choose_many(
        self,
        decision_sets: Sequence[ArrayLike],
        *,
        k: int | None = None,
        defaults: Sequence[int | None] | None = None,
    ) -> list[Decision] | list[list[Decision]]:
        """What `choose` gives for each decision set, all by the same model; nothing is decided if one set is bad."""
        if self._draws is not None:
            return self._draw_each(self._read_each(decision_sets), k, defaults)
        if defaults is not None:
            check_defaults(defaults, len(self._read_each(decision_sets)))
        if k is None:
            return [self._issue(*selection) for selection in self._select_each(decision_sets)]
        return [[self._issue(*selection) for selection in top] for top in self._select_top_of_each(decision_sets, k)]

    @overload
    def choose_context(
        self, context: Context, *, arms: Arms | None = None, bias: bool = True, k: None = None
    ) -> Decision: ...
    @overload
    def choose_context(
        self, context: Context, *, arms: Arms | None = None, bias: bool = True, k: int
    ) -> list[Decision]: ...
    def choose_context(
        self, context: Context, *, arms: Arms | None = None, bias: bool = True, k: int | None = None
    ) -> Decision | list[Decision]:
        """The arm with the largest upper bound in this context, for a model with `blocks`; no rows are made.

        `context` has p − 1 numbers, and a constant 1 joins them as in `fb.block_features`; with `bias=False` it has
        all p. Where the model's features have names, it may be a mapping. `arms` are those on offer, by name or by the
        number of their block: all of them unless given. `decision.index` counts among these, `decision.block` among
        all blocks, and `decision.arm` is the name. With `k`, the k best, best first.
        """
        if k is None:
            return self._issue(*self._select_context(context, arms, bias, 1)[0])
        return [self._issue(*selection) for selection in self._select_context(context, arms, bias, k)]

    @property
    def row_width(self) -> int:
        """Numbers in a row as it is kept: dim, or with blocks the number of the block and the numbers in it."""
        return self.dim if self.blocks == 1 else self.dim // self.blocks + 1

    def row_of(self, decision: Decision) -> Vector:
        """The full row (dim,) of a decision, also of one by `choose_context`."""
        if decision.block is None:
            return decision.x
        return full_row(compact(self, decision.x, decision.block), self.blocks)

    def predict(self, X: ArrayLike) -> Vector:
        """Estimated mean reward ⟨θ̂, x⟩ of each row."""
        rows = finite(self._read(X), "rows")
        with self._deciding:
            return np.asarray(self._basis().estimate.predict(rows))

    def scores(self, X: ArrayLike) -> Scores:
        """Means, widths and upper bounds of each row."""
        rows = finite(self._read(X), "rows")
        with self._deciding:
            estimate, beta, _ = self._basis()
            means, widths = estimate.predict(rows), estimate.widths(rows)
        return Scores(means, widths, means + beta * widths)

    # -- learning ----------------------------------------------------------------------------------------------

    def observe(self, decision: Decision | ArrayLike, reward: float) -> Upload | None:
        """Book the reward of a decision, at most once, or of any row; returns an upload when one should travel."""
        value = as_reward(reward)
        with self._lock:
            x = self._settle(decision) if isinstance(decision, Decision) else self._row(decision)
            if self._has_control and isinstance(decision, Decision):
                self._gather_group(decision.group, value)
            self.n_rounds += 1
            return self._absorb(x, value)

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Upload | None:
        """Learn from rows and rewards gathered elsewhere; the trigger is tested once, at the end."""
        rows = self._read(X)
        stats = SufficientStats.of(rows, y, blocks=self.blocks)
        with self._lock:
            self.n_rounds += stats.n_obs
            return self._absorb_batch(stats, rows, np.asarray(y, dtype=np.float64))

    def expire(self, decision: Decision) -> None:
        """Give up waiting for the reward of a decision; a reward that comes later raises `AlreadyObserved`."""
        with self._lock:
            self._pending.pop(self._number_of(decision), None)

    @property
    def n_pending(self) -> int:
        """Decisions that wait for their reward."""
        return len(self._pending)

    @property
    def local(self) -> SufficientStats:
        """What was gathered since the last upload."""
        with self._lock:
            if self._local is None:
                return SufficientStats.zeros(self.dim, self.blocks)
            return self._local.snapshot()

    @property
    def local_groups(self) -> GroupSums:
        """Rewards of control and treatment decisions since the last upload; nothing without `control`."""
        return NO_GROUPS if self._local is None else self._local.groups

    # -- talking -----------------------------------------------------------------------------------------------

    def arrive(self) -> Pull | None:
        """Called by a driver before a round; a pull when this algorithm wants a download before it decides."""
        return None

    def adopt(self, message: Reply | Iterable[Reply]) -> Upload | None:
        """Take a reply (of several, those addressed to this agent); returns an upload when one is due in turn."""
        if not isinstance(message, (Download, Poll, Receipt)):
            answers = [self.adopt(reply) for reply in replies_in(message) if reply.agent_id == self.agent_id]
            return next((answer for answer in answers if answer is not None), None)
        if message.agent_id != self.agent_id:
            raise InvalidInput(f"expected a reply for agent {self.agent_id!r}, got one for {message.agent_id!r}")
        with self._lock:
            if isinstance(message, Poll):
                return self.in_flight if self.in_flight is not None else self._send(0.0)
            self._acknowledge(message.acknowledged)
            if isinstance(message, Receipt):
                return self._received(message)
            if message.stats.dim != self.dim or message.stats.blocks != self.blocks:
                own, other = (
                    f"{d} features in {K} blocks" if K > 1 else f"{d} features"
                    for d, K in ((self.dim, self.blocks), (message.stats.dim, message.stats.blocks))
                )
                raise DimensionMismatch(f"expected a model with {own}, got {other.removesuffix(' features')}")
            return self._take(message)

    def _acknowledge(self, sequence: int) -> None:
        """Uploads up to this one are merged."""
        if self.in_flight is not None and sequence >= self.in_flight.sequence:
            self.in_flight = None

    def _received(self, receipt: Receipt) -> Upload | None:
        """Called for an upload that is merged but brought no model back."""
        return None

    def _send(self, growth: float) -> Upload:
        """Turn the buffer into the next upload, and keep it until it is answered."""
        upload = self._make_upload(growth)
        # From here on it is made; an exception in between leaves the rest to `_complete_upload`.
        self.in_flight = upload
        self._complete_upload()
        return upload

    def _make_upload(self, growth: float) -> Upload:
        groups = NO_GROUPS if self._local is None else self._local.groups
        return Upload(self.agent_id, self.incarnation, self.sequence + 1, self.local, growth, groups=groups)

    def _complete_upload(self) -> None:
        """What the upload in flight holds is not in the buffer."""
        if self.in_flight is not None and self.sequence < self.in_flight.sequence:
            self._local = None
            self.sequence = self.in_flight.sequence

    def _gather(self, x: Vector, reward: float) -> None:
        (self._local or self._buffer()).observe(x, reward)

    def _gather_group(self, group: str, reward: float) -> None:
        """Count the reward of a decision in its group, before it is learnt from, which may make an upload."""
        buffer = self._local or self._buffer()
        buffer.groups = buffer.groups.observe(group, reward)

    def _gather_batch(self, stats: SufficientStats) -> None:
        (self._local or self._buffer()).add(stats)

    def _buffer(self) -> RunningStats:
        if self._local is None:
            self._local = running_stats(self.dim, self.blocks)
        return self._local

    # -- reading input -----------------------------------------------------------------------------------------

    def _read(self, actions: Any) -> Matrix:
        if (
            type(actions) is np.ndarray
            and actions.dtype == np.float64
            and actions.ndim == 2
            and actions.shape[1] == self.dim
            and actions.shape[0] > 0
        ):
            return actions
        names = frame_names(actions)
        if names is not None:
            return self._read_frame(actions, names)
        return as_matrix(actions, self.dim)

    def _read_each(self, decision_sets: Sequence[ArrayLike]) -> list[Matrix]:
        if not hasattr(decision_sets, "__len__") or isinstance(decision_sets, type):
            raise InvalidInput(f"expected a list of decision sets, got {type(decision_sets).__name__}")
        return [self._read(actions) for actions in decision_sets]

    def _read_frame(self, frame: Any, names: list[str]) -> Matrix:
        self._check_columns(names)
        rows = finite(as_matrix(frame_numbers(frame), self.dim), "actions")
        self.features = tuple(names)
        return rows

    def _check_columns(self, names: list[str]) -> None:
        if self.features is not None and tuple(names) != self.features:
            missing = [name for name in self.features if name not in names]
            extra = [name for name in names if name not in self.features]
            raise FeatureMismatch(
                f"expected columns {list(self.features)}, got {names}"
                + (f"; missing {missing}, unexpected {extra}" if missing or extra else "; the order differs")
            )

    # -- selecting: what a decision will be, without its identity -----------------------------------------------

    def _select(self, actions: ArrayLike | DecisionSet) -> Selection:
        if has_best(actions):
            return self._select_from(actions)  # type: ignore[arg-type]
        X = self._read(actions)
        index, version, score = self._best(X)
        return index, X[index].copy(), version, score

    def _select_top(self, actions: ArrayLike | DecisionSet, k: int) -> list[Selection]:
        if has_best(actions):
            raise InvalidInput("top k needs a finite array of actions, got a decision set with best()")
        return self._top_of([self._read(actions)], k)[0]

    def _select_each(self, decision_sets: Sequence[ArrayLike]) -> list[Selection]:
        arrays = self._read_each(decision_sets)
        with self._deciding:
            judgement = self._basis()
            chosen = judgement.search_each(arrays)
        version = judgement.version
        return [(index, X[index].copy(), version, score) for X, (index, score) in zip(arrays, chosen, strict=True)]

    def _select_top_of_each(self, decision_sets: Sequence[ArrayLike], k: int) -> list[list[Selection]]:
        return self._top_of(self._read_each(decision_sets), k)

    def _top_of(self, arrays: list[Matrix], k: int) -> list[list[Selection]]:
        for X in arrays:
            check_k(k, X)
        with self._deciding:
            judgement = self._basis()
            scored = [judgement.upper(X) for X in arrays]
        return [
            [(index, X[index].copy(), judgement.version, float(upper[index])) for index in top_indices(upper, k)]
            for X, upper in zip(arrays, scored, strict=True)
        ]

    def _select_from(self, decision_set: DecisionSet) -> Selection:
        if self.blocks > 1:
            raise InvalidInput("a model with blocks chooses from rows or by choose_context, got a decision set")
        with self._deciding:
            estimate, beta, version = self._basis()
            width = Width(estimate.inverse)
            x = as_vector(decision_set.best(estimate.theta_hat, width, beta), self.dim, "best()").copy()
            score = float(x @ estimate.theta_hat + beta * width(x))
        return None, x, version, score

    def _select_context(self, context: Any, arms: Any, bias: bool, k: int) -> list[ContextSelection]:
        if self._draws is not None:
            raise InvalidInput(
                "a policy that draws at random chooses from rows, got a context; pass the rows to choose"
            )
        values = read_context(self, context, bias)
        blocks = read_arms(self, arms)
        with self._deciding:
            ranked, version = best_blocks(self._basis(), values, blocks, k)
        return [
            (index, values, version, None, block, None if self.arms is None else self.arms[block])
            for index, block in ranked
        ]

    def _best(self, X: Matrix) -> tuple[int, int, float]:
        """Index of the best row, the version of the model that says so, and the row's upper bound."""
        with self._deciding:
            judgement = self._basis()
            index, score = judgement.search(X)
            return index, judgement.version, score

    # -- drawing: decisions of a policy with chance in it ------------------------------------------------------

    def _check_unused_default(self, actions: Any, default: int) -> None:
        """An application that gives a default is told of a bad one, also by a model without a control group."""
        if not has_best(actions):
            check_default(default, len(self._read(actions)))

    def _offers(self, decision_sets: Sequence[Any], k: int | None, defaults: Any = None) -> list[Lottery]:
        """Each decision set as the policy judges it, all by the same model."""
        draws = self._draws
        if draws is None or k is not None:
            raise InvalidInput(
                "expected no k with a policy that draws at random: the probability of a list is not defined; choose "
                "one action at a time, or use policy='ucb' with explore=0"
            )
        sets: list[Any] = [actions if has_best(actions) else self._read(actions) for actions in decision_sets]
        given = check_defaults(defaults, len(sets))
        chosen = [None if has_best(X) else check_default(one, len(X)) for X, one in zip(sets, given, strict=True)]
        with self._deciding:
            basis = self._basis()
            offers = [draws.offer_set(basis, X) if has_best(X) else draws.offer(basis, X) for X in sets]
        if not self._has_control:
            return offers
        return [
            ControlLottery(draws, offer, X, default) for offer, X, default in zip(offers, sets, chosen, strict=True)
        ]

    # -- decisions and their rewards ---------------------------------------------------------------------------

    def _name_decisions(self, incarnation: str) -> None:
        """Decisions carry the name of this incarnation, and random numbers are those of it."""
        self._prefix = f"{incarnation[:12]}-"
        self._draws = draws_of(self.rule, self.agent_id, incarnation)

    def _issue(
        self,
        index: int | None,
        x: Vector,
        version: int,
        score: float | None = None,
        block: int | None = None,
        arm: str | None = None,
    ) -> Decision:
        number = self._newest = next(self._decisions)
        self._pending[number] = None
        if len(self._pending) > self.max_pending:
            self._drop_oldest()
        return Decision(f"{self._prefix}{number}", index, frozen(x), self.agent_id, version, block, arm, 1.0, score)

    def _draw_each(self, decision_sets: Sequence[Any], k: int | None, defaults: Any = None) -> list[Decision]:
        """A decision for each set by the policy's draws, all by the same model."""
        with self._deciding:
            return [self._issue_draw(offer) for offer in self._offers(decision_sets, k, defaults)]

    def _issue_draw(self, offer: Lottery) -> Decision:
        number = self._newest = next(self._decisions)
        index, x, propensity, score, policy = offer.draw(number)
        self._pending[number] = None
        if len(self._pending) > self.max_pending:
            self._drop_oldest()
        name = f"{self._prefix}{number}"
        chance = propensity, score, policy or offer.policy
        return Decision(name, index, frozen(x), self.agent_id, offer.version, None, None, *chance)

    def _drop_oldest(self) -> None:
        with self._lock:
            while len(self._pending) > self.max_pending:
                with suppress(RuntimeError):  # another thread chose just now: look again
                    for number in list(itertools.islice(self._pending, self._n_to_drop())):
                        self._pending.pop(number, None)

    def _n_to_drop(self) -> int:
        """Some more than the excess, so that not every decision has to do it."""
        n_excess = len(self._pending) - self.max_pending
        return n_excess + min(self.max_pending // 32, MOST_DROPPED) if n_excess > 0 else 0

    def _number_of(self, decision: Decision) -> int:
        prefix, _, digits = decision.id.rpartition("-")
        number = int(digits) if digits.isdecimal() and len(digits) < 20 else -1
        mine = decision.agent_id == self.agent_id and prefix + "-" == self._prefix
        if not mine or not (0 <= number <= self._newest or number in self._pending):
            raise UnknownDecision(
                f"agent {self.agent_id!r} never made decision {decision.id!r} of agent {decision.agent_id!r}; bring "
                f"the reward to that agent, or, if it expires the decision and never settles it, pass the row: "
                f"observe(decision.x, reward)"
            )
        return number

    def _settle(self, decision: Decision) -> Vector:
        """The row of a decision that may be booked now; it cannot be booked again."""
        number = self._number_of(decision)
        x = self._pending_row(decision, number)
        del self._pending[number]
        return x

    def _pending_row(self, decision: Decision, number: int) -> Vector:
        if number not in self._pending:
            raise AlreadyObserved(
                f"decision {decision.id!r} has its reward already, expired, "
                f"or was dropped as the oldest of {self.max_pending} waiting ones"
            )
        x = decision.x
        if decision.block is not None or self.blocks > 1:
            return compact(self, x, decision.block)
        # One product finds every NaN, infinity and giant; only then is it worth saying which.
        if x.shape != (self.dim,) or not float(x @ x) <= LARGEST:
            x = as_vector(x, self.dim, "the decision's row")
        return x

    def _row(self, row: Any) -> Vector:
        names = frame_names(row)
        if names is None:
            x = as_vector(row.to_numpy() if hasattr(row, "to_numpy") else row, self.dim)
        else:  # one line of a data frame
            rows = self._read_frame(row, names)
            x = as_vector(rows[0] if len(rows) == 1 else rows, self.dim)
        return x if self.blocks == 1 else compact_row(x, self.blocks)

    # -- saving ------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Everything this agent knows, exactly; `fb.load` brings it back."""
        from fedbandit.algorithms.snapshot import dump_agent

        return dump_agent(self)

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        from fedbandit.algorithms.snapshot import load

        return load, (self.to_bytes(),)

    def _state(self) -> dict[str, Any]:
        """What a subclass must save besides the common part."""
        return {}

    def _restore(self, state: dict[str, Any]) -> None:
        """The inverse of `_state`."""


def replies_in(messages: Any) -> list[Reply]:
    """The replies of a listing, or a named error."""
    replies = list(messages) if is_listing(messages) else [messages]
    if all(isinstance(reply, (Download, Poll, Receipt)) for reply in replies):
        return replies
    raise InvalidInput(f"expected a reply of a server, or a list of replies, got {messages!r}")
