"""The live agent: the library's verbs, a server behind them, and no call that waits for it unless it says so."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Self, overload

from numpy.typing import ArrayLike

from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.messages import Upload
from fedbandit.algorithms.scoring import Scores
from fedbandit.core.arrays import Vector
from fedbandit.core.decision_sets import DecisionSet
from fedbandit.core.ridge import RidgeModel
from fedbandit.errors import Closed, ForkedProcess, JournalFailed, LiveError, NotReachable
from fedbandit.sdk import restore_recovery
from fedbandit.sdk.background_sync import BackgroundSync
from fedbandit.sdk.durable_agent import DurableAgent
from fedbandit.sdk.pending import Pending
from fedbandit.sdk.status import Status
from fedbandit.sdk.sync_client import SyncClient

logger = logging.getLogger("fedbandit.sdk")
CLOSE_TIMEOUT_S = 5.0
EXIT_TIMEOUT_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0  # between the tries of `flush`
LONGEST_WISH_S = 5.0  # of a server that asks to be left alone, in a `flush`


class LiveAgent:
    """An agent in an application, made by `fb.connect`. Safe to use from many threads, and from an event loop.

    `choose` and `observe` take microseconds and never touch the network; `flush` and `refresh` wait for the server.
    """

    def __init__(self, core: DurableAgent, link: SyncClient, pump: BackgroundSync | None) -> None:
        self._core = core
        self._client = link
        self._background = pump
        self.pending = Pending(core, self.observe)
        # The thread holds the parts, not this object: dropping it closes the agent, and so does the interpreter's end.
        self._finalizer = weakref.finalize(self, _shut_down, core, link, pump, os.getpid(), EXIT_TIMEOUT_S)
        os.register_at_fork(after_in_child=_mark_forked(weakref.ref(core)))
        if pump is not None:
            core.in_background = True
            pump.start()

    # -- deciding and learning ---------------------------------------------------------------------------------

    @overload
    def choose(self, actions: ArrayLike | DecisionSet, *, k: None = None) -> Decision: ...
    @overload
    def choose(self, actions: ArrayLike | DecisionSet, *, k: int) -> list[Decision]: ...
    def choose(self, actions: ArrayLike | DecisionSet, *, k: int | None = None) -> Decision | list[Decision]:
        """The action with the largest upper bound; with `k`, the k best, best first. See the library's agent."""
        if self._core.ended is not None:
            self._core.check()
        return self._core.choose(actions, k=k)

    @overload
    def choose_many(self, decision_sets: Sequence[ArrayLike], *, k: None = None) -> list[Decision]: ...
    @overload
    def choose_many(self, decision_sets: Sequence[ArrayLike], *, k: int) -> list[list[Decision]]: ...
    def choose_many(
        self, decision_sets: Sequence[ArrayLike], *, k: int | None = None
    ) -> list[Decision] | list[list[Decision]]:
        """What `choose` gives for each decision set, all by the same model."""
        self._core.check()
        return self._core.choose_many(decision_sets, k=k)

    def observe(self, decision: Decision | ArrayLike, reward: float) -> None:
        """Book the reward of a decision, at most once, or of any row; with a `state_dir` it is journalled first."""
        core = self._core
        if core.ended is not None:
            core.check()
        try:
            upload = core.observe(decision, reward)
        except BaseException:
            self._wake_if_due()
            raise
        self._after_learning(upload)

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> None:
        """Learn from rows and rewards gathered elsewhere; the trigger is tested once, at the end."""
        self._core.check()
        try:
            upload = self._core.partial_fit(X, y)
        except BaseException:
            self._wake_if_due()
            raise
        self._after_learning(upload)

    def predict(self, X: ArrayLike) -> Vector:
        """Estimated mean reward ⟨θ̂, x⟩ of each row."""
        self._core.check()
        return self._core.predict(X)

    def scores(self, X: ArrayLike) -> Scores:
        """Means, widths and upper bounds of each row."""
        self._core.check()
        return self._core.scores(X)

    def expire(self, decision: Decision) -> None:
        """Give up waiting for the reward of a decision."""
        self._core.check()
        self._core.expire(decision)

    def _wake_if_due(self) -> None:
        """An exception from a signal handler can end a call that has made an upload."""
        if self._background is not None and self._core.in_flight is not None:
            self._background.wake()

    def _after_learning(self, upload: Upload | None) -> None:
        core = self._core
        is_long = core.journal is not None and core.journal.is_long
        if self._background is not None:
            if upload is not None or is_long or core.is_renewal_due:
                self._background.wake()
            return
        if is_long:
            try:
                core.compact()
            except JournalFailed as error:  # the observation is booked: whoever saw an error would book it again
                logger.error("agent %s: %s", core.agent_id, error)
        if not self._client.halted and self._client.clock() >= self._client.next_attempt:
            self._exchange_inline()

    def _exchange_inline(self) -> None:
        try:
            while self._core.in_flight is not None:
                self._client.exchange()
            if self._core.arrive() is not None:
                self._client.refresh()
            elif self._client.check_in_s() == 0.0:
                self._client.refresh(if_corrected=True)
        except LiveError:
            pass  # noted by the link; what was observed is kept

    # -- talking -----------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = 30.0) -> None:
        """Send what was observed so far, trigger or not, and wait until the server has merged it.

        Tries at intervals of at most a second until `timeout_s` seconds are over, then raises `NotReachable`; `Refused`
        when the server says no. Nothing is lost by either. A buffer with fewer than `min_upload` observations stays.
        """
        self._core.check()
        clock = self._client.clock
        deadline = None if timeout_s is None else clock() + timeout_s
        target = self._core.n_rounds
        pause_s = FIRST_PAUSE_S
        while self._core.n_merged < target:
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
                kept = self._core.n_unsent + self._core.n_in_flight
                raise NotReachable(f"{error}; {kept} observations are kept and will be sent later") from error
            pause_s = min(pause_s, left)
        self._client.ending.wait(pause_s)
        self._core.check()

    def refresh(self, timeout_s: float | None = None) -> bool:
        """Fetch the newest model now; True if there was a newer one. Cheap when there is none."""
        self._core.check()
        is_new = self._client.refresh(within_s=timeout_s)
        if self._background is not None:
            self._background.wake()
        return is_new

    def rejoin(self) -> bool:
        """After `sequence_gap`: go on as a new incarnation with all that the server lacks and this agent still has.

        False if the server has everything, or could be brought back by sending answered uploads again.
        """
        self._core.check()
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

    # -- the end -----------------------------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Stop; what was not sent stays in the journal. Without a `state_dir` it is sent now, if the server answers."""
        if self._finalizer.detach() is not None:
            _shut_down(self._core, self._client, self._background, os.getpid(), timeout_s)

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

    # -- looking -----------------------------------------------------------------------------------------------

    @property
    def agent_id(self) -> str:
        """The name that the server knows this agent by."""
        return self._core.agent_id

    @property
    def features(self) -> tuple[str, ...] | None:
        """Names of the features in their order, if the model has them."""
        return self._core.features

    @property
    def model(self) -> RidgeModel:
        """The model that decisions rest on now."""
        return self._core.model

    @property
    def model_version(self) -> int:
        """Uploads that the server had merged when it gave this model."""
        return self._core.model_version

    def status(self) -> Status:
        """How things stand: for logs, health pages and tests."""
        core, link = self._core, self._client
        if isinstance(core.ended, ForkedProcess):
            core.check()  # some thread of the parent may hold the lock for ever
        now = link.clock()
        with core._lock:
            return Status(
                model=core.settings.name,
                agent_id=core.agent_id,
                server=link.transport.address,
                incarnation=core.incarnation,
                rounds=core.n_rounds,
                pending=core.n_pending,
                unsent=core.n_unsent,
                in_flight=core.n_in_flight,
                exchanges=core.counters.exchanges,
                refreshes=core.counters.refreshes,
                retries=core.counters.retries,
                bytes_sent=core.counters.bytes_sent,
                bytes_received=core.counters.bytes_received,
                sequence=core.sequence,
                model_version=core.model_version,
                growth=core.growth,
                threshold=core.threshold,
                alpha=core.rule.alpha,
                beta=core.beta,
                reachable=link.reachable,
                staleness_s=None if link.last_contact is None else now - link.last_contact,
                next_attempt_s=max(link.next_attempt - now, 0.0) if link.last_error is not None else None,
                last_error=None if link.last_error is None else str(link.last_error),
                last_error_code=None if link.last_error is None else link.last_error.code,
                refused_model=link.refused_model,
                state_dir=None if core.journal is None else str(core.journal.directory),
                durability=None if core.journal is None else core.journal.durability,
            )

    def __repr__(self) -> str:
        core = self._core
        return f"<LiveAgent {core.agent_id!r} of {core.settings.name!r} at {self._client.transport.address}>"


def _shut_down(core: DurableAgent, link: SyncClient, pump: BackgroundSync | None, pid: int, timeout_s: float) -> None:
    """End an agent: the thread first, then the books. A forked child leaves all of it to its parent."""
    if os.getpid() != pid or isinstance(core.ended, ForkedProcess):
        return
    begun = link.clock()
    link.ending.set()
    if pump is not None:
        pump.stop(timeout_s)
    if core.journal is None:
        _send_the_rest(core, link, timeout_s - (link.clock() - begun))
    try:
        with core._lock:
            try:
                core.save()
            finally:
                with core._issuing:
                    core.ended = Closed(f"agent {core.agent_id!r} was closed; connect again to use it")
                    if core.journal is not None:
                        core.journal.close()
    finally:
        link.transport.close()  # also when a full disk kept the snapshot out; the log has what it would have held


def _send_the_rest(core: DurableAgent, link: SyncClient, timeout_s: float) -> None:
    """Without a journal this is the last chance of what was observed."""
    deadline = link.clock() + timeout_s
    try:
        if not link.halted and link.last_error is None:
            while core.n_unsent + core.n_in_flight > 0:
                if not link.exchange(everything=True, within_s=deadline - link.clock()):
                    break
    except LiveError as error:
        logger.debug("agent %s: the last exchange failed: %s", core.agent_id, error)
    lost = core.n_unsent + core.n_in_flight
    if lost:
        logger.warning("agent %s: closed with %d observations unsent; a state_dir keeps them", core.agent_id, lost)


class _mark_forked:  # noqa: N801 - used like a function
    """In a forked child, the agent refuses to work: two processes with one identity would be told apart as liars."""

    def __init__(self, core: weakref.ref[DurableAgent]) -> None:
        self._core = core

    def __call__(self) -> None:
        core = self._core()
        if core is not None and core.ended is None:
            core.ended = ForkedProcess(
                f"agent {core.agent_id!r} belongs to the process that connected; connect again after a fork, "
                f"with another state_dir and another identity"
            )
            if core.journal is not None:
                core.journal.let_go_after_fork()
