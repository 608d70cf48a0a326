"""The live agent: `choose` and `observe` without waiting for the network, `flush` and `refresh` with it."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Self, overload

from numpy.typing import ArrayLike

from fedbandit.algorithms.contexts import Arms, Context
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.messages import Upload
from fedbandit.algorithms.scoring import Scores
from fedbandit.core.arrays import Vector, as_reward
from fedbandit.core.decision_sets import DecisionSet
from fedbandit.core.ridge import RidgeModel
from fedbandit.errors import Closed, ForkedProcess, InvalidInput, JournalFailed, LiveError, NotReachable
from fedbandit.sdk import restore_recovery
from fedbandit.sdk.background_sync import BackgroundSync
from fedbandit.sdk.durable_agent import DurableAgent
from fedbandit.sdk.pending import Pending
from fedbandit.sdk.status import Status
from fedbandit.sdk.sync_client import SyncClient
from fedbandit.wire.decision_token import DecisionToken, write_token

logger = logging.getLogger("fedbandit.sdk")
CLOSE_TIMEOUT_S = 5.0
EXIT_TIMEOUT_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0  # between the tries of `flush`
LONGEST_WISH_S = 5.0  # of a server that asks for a later retry, in a `flush`


class LiveAgent:
    """An agent in an application, made by `fb.connect`. Safe to use from many threads, and from an event loop.

    `choose` and `observe` take microseconds and never touch the network; `flush` and `refresh` wait for the server.
    """

    def __init__(self, durable: DurableAgent, client: SyncClient, background: BackgroundSync | None) -> None:
        self._durable = durable
        self._client = client
        self._background = background
        self.pending = Pending(durable, self.observe)
        # The thread holds the parts, not this object: dropping it closes the agent, and so does the interpreter's end.
        self._finalizer = weakref.finalize(self, _shut_down, durable, client, background, os.getpid(), EXIT_TIMEOUT_S)
        os.register_at_fork(after_in_child=_mark_forked(weakref.ref(durable)))
        if background is not None:
            durable.agent.defers_renewal = True
            background.start()

    # -- deciding and learning ---------------------------------------------------------------------------------

    @overload
    def choose(self, actions: ArrayLike | DecisionSet, *, k: None = None, default: int | None = None) -> Decision: ...
    @overload
    def choose(self, actions: ArrayLike | DecisionSet, *, k: int, default: int | None = None) -> list[Decision]: ...
    def choose(
        self, actions: ArrayLike | DecisionSet, *, k: int | None = None, default: int | None = None
    ) -> Decision | list[Decision]:
        """The action with the largest upper bound; with `k`, the k best, best first. See the library's agent."""
        durable = self._durable
        if durable.ended is not None:
            durable.check()
        made = durable.choose(actions, k, default)
        if durable.log is not None:
            durable.log.decided(made, actions)
        return made

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
        """The arm with the largest upper bound in this context, for a model with `blocks`. See the library's agent."""
        if self._durable.ended is not None:
            self._durable.check()
        made = self._durable.choose_context(context, arms, bias, k)
        if self._durable.log is not None:
            self._durable.log.decided(made, None)
        return made

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
        """What `choose` gives for each decision set, all by the same model."""
        self._durable.check()
        made = self._durable.choose_many(decision_sets, k, defaults)
        if self._durable.log is not None:
            self._durable.log.decided_each(made, decision_sets)
        return made

    def observe(self, decision: Decision | ArrayLike | None, reward: float, *, replaces: str | None = None) -> None:
        """Book the reward of a decision, at most once, or of any row; with a `state_dir` it is journalled first.

        `replaces`, the id of a decision, gives its observation this reward instead (a refund), while no upload holds
        it; `decision` is that decision, or None.
        """
        durable = self._durable
        if durable.ended is not None:
            durable.check()
        if replaces is not None or decision is None:
            self._correct(decision, reward, replaces)
            return
        try:
            upload = durable.observe(decision, reward)
        except BaseException:
            self._wake_if_due()
            raise
        if durable.log is not None and isinstance(decision, Decision):
            durable.log.rewarded(decision.id, reward)
        self._after_learning(upload)

    def _correct(self, decision: Decision | ArrayLike | None, reward: float, replaces: str | None) -> None:
        if replaces is None:
            raise InvalidInput("expected a decision or a row, got None; with replaces=decision.id it may be None")
        if decision is not None and not (isinstance(decision, Decision) and decision.id == replaces):
            raise InvalidInput(
                f"expected the decision {replaces!r} itself, or None, with replaces: the row of an observation stays"
            )
        self._durable.correct(replaces, reward)

    def report(self, decision: str | Decision, reward: float, *, timeout_s: float | None = None) -> str:
        """Give the reward of any agent's decision, by its id or its token, once; may be repeated.

        "booked": it counts. "waiting": the server keeps it until the agent that made the decision collects it.
        "not_pending": that agent had a reward already, or dropped the decision. A decision of this agent is observed at
        once; others need the server, which raises `NotReachable` if there is no answer: report it again.
        """
        durable = self._durable
        durable.check()
        name = decision.id if isinstance(decision, Decision) else str(decision)
        if durable.is_own(name):
            self.observe(self.pending[name], reward)
            return "booked"
        return self._client.report(name, as_reward(reward), within_s=timeout_s)

    def token(self, decision: Decision, *, timeout_s: float | None = None) -> str:
        """Give up a pending decision for a token with which anybody may report its reward, through the server.

        From then on this agent neither observes, settles nor expires it; the token books it, once, also when this agent
        is gone. It is on disk before the token is returned. The row in the token is readable, and cannot be changed.
        The first call asks the server for a key.
        """
        durable = self._durable
        durable.check()
        if durable.counts_more_than_sums:
            raise InvalidInput(
                "decision tokens need a model without blocks, personal parameters, a control group and drift"
            )
        key = self._client.token_key(timeout_s)
        (pending,) = durable.give_up([decision])
        return write_token(key, DecisionToken(self.agent_id, decision.id, pending.made_at, decision.x))

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> None:
        """Learn from rows and rewards gathered elsewhere; the trigger is tested once, at the end."""
        self._durable.check()
        try:
            upload = self._durable.partial_fit(X, y)
        except BaseException:
            self._wake_if_due()
            raise
        self._after_learning(upload)

    def predict(self, X: ArrayLike) -> Vector:
        """Estimated mean reward ⟨θ̂, x⟩ of each row."""
        self._durable.check()
        return self._durable.predict(X)

    def scores(self, X: ArrayLike) -> Scores:
        """Means, widths and upper bounds of each row."""
        self._durable.check()
        return self._durable.scores(X)

    def expire(self, decision: Decision) -> None:
        """Drop a pending decision; a reward that comes later is an error."""
        self._durable.check()
        self._durable.expire(decision)

    def _wake_if_due(self) -> None:
        """An exception from a signal handler can end a call that has made an upload."""
        if self._background is not None and self._durable.agent.in_flight is not None:
            self._background.wake()

    def _after_learning(self, upload: Upload | None) -> None:
        durable = self._durable
        is_long = durable.journal is not None and durable.journal.is_long
        if self._background is not None:
            begins_silence = (
                durable.settings.max_silence_s is not None and durable.n_unsent <= durable.agent.rule.min_upload
            )
            if upload is not None or is_long or durable.agent.is_renewal_due or begins_silence:
                self._background.wake()
            return
        if is_long:
            try:
                durable.compact()
            except JournalFailed as error:  # the observation is booked: whoever saw an error would book it again
                logger.error("agent %s: %s", durable.agent.agent_id, error)
        if not self._client.halted and self._client.clock() >= self._client.next_attempt:
            self._exchange_inline()

    def _exchange_inline(self) -> None:
        try:
            while self._durable.agent.in_flight is not None:
                self._client.exchange()
            if self._client.silence_in_s() == 0.0:
                self._client.exchange(everything=True)
            if self._durable.agent.arrive() is not None:
                self._client.refresh()
            elif self._client.check_in_s() == 0.0:
                self._client.refresh(if_corrected=True)
        except LiveError:
            pass  # recorded by the client; what was observed is kept

    # -- exchanging ----------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = 30.0) -> None:
        """Send what was observed so far, trigger or not, and wait until the server has merged it.

        Tries at intervals of at most a second until `timeout_s` seconds are over, then raises `NotReachable`; `Refused`
        when the server says no. Nothing is lost by either. A buffer with fewer than `min_upload` observations stays.
        """
        self._durable.check()
        clock = self._client.clock
        deadline = None if timeout_s is None else clock() + timeout_s
        target = self._durable.agent.n_rounds
        pause_s = FIRST_PAUSE_S
        while self._durable.n_merged < target:
            left = None if deadline is None else deadline - clock()
            try:
                if not self._client.exchange(everything=True, within_s=left):
                    break
            except NotReachable as error:
                self._wait_for_next_try(deadline, max(pause_s, min(error.retry_after_s or 0.0, LONGEST_WISH_S)), error)
                pause_s = min(2.0 * pause_s, LONGEST_PAUSE_S)
        if self._background is not None:
            self._background.wake()

    def _wait_for_next_try(self, deadline: float | None, pause_s: float, error: NotReachable) -> None:
        """Sleep until the next try, the last one just before the deadline; give up when there is no time for it."""
        if deadline is not None:
            left = deadline - self._client.clock() - FIRST_PAUSE_S
            if left <= 0.0:
                kept = self._durable.n_unsent + self._durable.n_in_flight
                raise NotReachable(f"{error}; {kept} observations are kept and will be sent later") from error
            pause_s = min(pause_s, left)
        self._client.ending.wait(pause_s)
        self._durable.check()

    def refresh(self, timeout_s: float | None = None) -> bool:
        """Fetch the newest model now; True if there was a newer one. Cheap when there is none."""
        self._durable.check()
        is_new = self._client.refresh(within_s=timeout_s)
        if self._background is not None:
            self._background.wake()
        return is_new

    def rejoin(self) -> bool:
        """After `sequence_gap`: continue as a new incarnation with all that the server lacks and this agent still has.

        False if the server has everything, or could be brought back by sending answered uploads again.
        """
        self._durable.check()
        is_new = restore_recovery.rejoin(self._client)
        if self._background is not None:
            self._background.wake()
        return is_new

    async def aflush(self, timeout_s: float | None = 30.0) -> None:
        """`flush` for an event loop."""
        await asyncio.to_thread(self.flush, timeout_s)

    async def arefresh(self, timeout_s: float | None = None) -> bool:
        """`refresh` for an event loop."""
        return await asyncio.to_thread(self.refresh, timeout_s)

    # -- closing -----------------------------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Stop; what was not sent stays in the journal. Without a `state_dir` it is sent now, if the server answers."""
        if self._finalizer.detach() is not None:
            _shut_down(self._durable, self._client, self._background, os.getpid(), timeout_s)

    async def aclose(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """`close` for an event loop."""
        await asyncio.to_thread(self.close, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- status ------------------------------------------------------------------------------------------------

    @property
    def agent_id(self) -> str:
        """The name of this agent on the server."""
        return self._durable.agent.agent_id

    @property
    def features(self) -> tuple[str, ...] | None:
        """Names of the features in their order, if the model has them."""
        return self._durable.agent.features

    @property
    def arms(self) -> tuple[str, ...] | None:
        """Names of the arms in the order of their blocks, if the model has them."""
        return self._durable.agent.arms

    @property
    def model(self) -> RidgeModel:
        """The model that decisions rest on now."""
        return self._durable.agent.model

    @property
    def model_version(self) -> int:
        """Uploads that the server had merged when it gave this model."""
        return self._durable.agent.model_version

    def status(self) -> Status:
        """The agent at this moment: for logs, health checks and tests."""
        durable, client = self._durable, self._client
        if isinstance(durable.ended, ForkedProcess):
            durable.check()  # some thread of the parent may hold the lock for ever
        now = client.clock()
        with durable.agent._lock:
            return Status(
                model=durable.settings.name,
                agent_id=durable.agent.agent_id,
                server=client.transport.address,
                incarnation=durable.agent.incarnation,
                rounds=durable.agent.n_rounds,
                pending=durable.agent.n_pending,
                unsent=durable.n_unsent,
                in_flight=durable.n_in_flight,
                exchanges=durable.counters.exchanges,
                refreshes=durable.counters.refreshes,
                retries=durable.counters.retries,
                bytes_sent=durable.counters.bytes_sent,
                bytes_received=durable.counters.bytes_received,
                sequence=durable.agent.sequence,
                model_version=durable.agent.model_version,
                growth=durable.agent.growth,
                threshold=durable.threshold,
                alpha=durable.agent.rule.alpha,
                beta=durable.agent.beta,
                reachable=client.reachable,
                staleness_s=None if client.last_contact is None else now - client.last_contact,
                next_attempt_s=max(client.next_attempt - now, 0.0) if client.last_error is not None else None,
                last_error=None if client.last_error is None else str(client.last_error),
                last_error_code=None if client.last_error is None else client.last_error.code,
                refused_model=client.refused_model,
                state_dir=None if durable.journal is None else str(durable.journal.directory),
                durability=None if durable.journal is None else durable.journal.durability,
                epoch=durable.agent.world.epoch,
                discarded=durable.agent.world.n_discarded + durable.agent.world.n_dropped,
                **({} if durable.log is None else durable.log.status()),
            )

    def __repr__(self) -> str:
        durable = self._durable
        return (
            f"<LiveAgent {durable.agent.agent_id!r} of {durable.settings.name!r} at {self._client.transport.address}>"
        )


def _shut_down(
    durable: DurableAgent, client: SyncClient, background: BackgroundSync | None, pid: int, timeout_s: float
) -> None:
    """Close an agent: the thread first, then the journal. A forked child leaves all of it to its parent."""
    if os.getpid() != pid or isinstance(durable.ended, ForkedProcess):
        return
    begun = client.clock()
    client.ending.set()
    if durable.log is not None:
        durable.log.close()
    if background is not None:
        background.stop(timeout_s)
    if durable.journal is None:
        _send_the_rest(durable, client, timeout_s - (client.clock() - begun))
    try:
        with durable.agent._lock:
            try:
                durable.save()
            finally:
                with durable._issuing:
                    durable.ended = Closed(f"agent {durable.agent.agent_id!r} was closed; connect again to use it")
                    if durable.journal is not None:
                        durable.journal.close()
    finally:
        client.transport.close()  # also when a full disk kept the snapshot out; the log has what it would have held


def _send_the_rest(durable: DurableAgent, client: SyncClient, timeout_s: float) -> None:
    """Without a journal this is the last chance of what was observed."""
    deadline = client.clock() + timeout_s
    try:
        if not client.halted and client.last_error is client.outdated:
            while durable.n_unsent + durable.n_in_flight > 0:
                if not client.exchange(everything=True, within_s=deadline - client.clock()):
                    break
    except LiveError as error:
        logger.debug("agent %s: the last exchange failed: %s", durable.agent.agent_id, error)
    lost = durable.n_unsent + durable.n_in_flight
    if lost:
        logger.warning(
            "agent %s: closed with %d observations unsent; a state_dir keeps them", durable.agent.agent_id, lost
        )


class _mark_forked:  # noqa: N801 - used like a function
    """In a forked child, calls of the agent raise: the server rejects two processes with one identity."""

    def __init__(self, durable: weakref.ref[DurableAgent]) -> None:
        self._durable = durable

    def __call__(self) -> None:
        durable = self._durable()
        if durable is not None and durable.ended is None:
            durable.ended = ForkedProcess(
                f"agent {durable.agent.agent_id!r} belongs to the process that connected; connect again after a fork, "
                f"with another state_dir and another identity"
            )
            if durable.journal is not None:
                durable.journal.let_go_after_fork()
