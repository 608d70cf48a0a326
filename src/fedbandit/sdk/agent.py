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

from fedbandit.algorithms.base import Scores
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.messages import Upload
from fedbandit.core.arrays import Vector
from fedbandit.core.decision_sets import DecisionSet
from fedbandit.core.ridge import RidgeModel
from fedbandit.errors import Closed, ForkedProcess, LiveError, NotReachable
from fedbandit.sdk import comeback
from fedbandit.sdk.core import LiveCore
from fedbandit.sdk.link import Link
from fedbandit.sdk.pending import Pending
from fedbandit.sdk.pump import Pump
from fedbandit.sdk.status import Status

logger = logging.getLogger("fedbandit.sdk")
CLOSE_TIMEOUT_S = 5.0
EXIT_TIMEOUT_S = 1.0


class LiveAgent:
    """An agent in an application, made by `fb.connect`. Safe to use from many threads, and from an event loop.

    `choose` and `observe` take microseconds and never touch the network; `flush` and `refresh` wait for the server.
    """

    def __init__(self, core: LiveCore, link: Link, pump: Pump | None) -> None:
        self._core = core
        self._link = link
        self._pump = pump
        self.pending = Pending(core, self.observe)
        # The thread holds the parts, not this object: dropping it closes the agent, and so does the interpreter's end.
        self._finalizer = weakref.finalize(self, _shut_down, core, link, pump, os.getpid(), EXIT_TIMEOUT_S)
        os.register_at_fork(after_in_child=_mark_forked(weakref.ref(core)))
        if pump is not None:
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

    def choose_many(self, decision_sets: Sequence[ArrayLike]) -> list[Decision]:
        """One decision for each decision set, by the same model."""
        self._core.check()
        return self._core.choose_many(decision_sets)

    def observe(self, decision: Decision | ArrayLike, reward: float) -> None:
        """Book the reward of a decision, at most once, or of any row; with a `state_dir` it is journalled first."""
        core = self._core
        if core.ended is not None:
            core.check()
        self._after_learning(core.observe(decision, reward))

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> None:
        """Learn from rows and rewards gathered elsewhere; the trigger is tested once, at the end."""
        self._core.check()
        self._after_learning(self._core.partial_fit(X, y))

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

    def _after_learning(self, upload: Upload | None) -> None:
        core = self._core
        is_long = core.journal is not None and core.journal.is_long
        if self._pump is not None:
            if upload is not None or is_long:
                self._pump.wake()
            return
        if is_long:
            core.compact()
        if not self._link.halted and self._link.clock() >= self._link.next_attempt:
            self._exchange_inline()

    def _exchange_inline(self) -> None:
        try:
            while self._core.in_flight is not None:
                self._link.exchange()
            if self._core.arrive() is not None:
                self._link.refresh()
        except LiveError:
            pass  # noted by the link; what was observed is kept

    # -- talking -----------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = 30.0) -> None:
        """Send what was observed so far, trigger or not, and wait until the server has merged it.

        `NotReachable` after `timeout_s` seconds, `Refused` when the server says no; nothing is lost by either. A buffer
        with fewer than `min_upload` observations stays.
        """
        self._core.check()
        clock = self._link.clock
        deadline = None if timeout_s is None else clock() + timeout_s
        target = self._core.n_rounds
        while self._core.n_merged < target:
            left = None if deadline is None else deadline - clock()
            try:
                if not self._link.exchange(everything=True, within_s=left):
                    break
            except NotReachable as error:
                self._wait_for_next_try(deadline, error)
        if self._pump is not None:
            self._pump.wake()

    def _wait_for_next_try(self, deadline: float | None, error: NotReachable) -> None:
        """Sleep through the back-off, or give up if it is longer than the time there is."""
        delay_s = max(self._link.next_attempt - self._link.clock(), 0.0)
        if deadline is not None and self._link.clock() + delay_s >= deadline:
            kept = self._core.n_waiting + self._core.n_in_flight
            raise NotReachable(f"{error}; {kept} observations are kept and will be sent later") from error
        self._link.ending.wait(delay_s)
        self._core.check()

    def refresh(self, timeout_s: float | None = None) -> bool:
        """Fetch the newest model now; True if there was a newer one. Cheap when there is none."""
        self._core.check()
        is_new = self._link.refresh(within_s=timeout_s)
        if self._pump is not None:
            self._pump.wake()
        return is_new

    def rejoin(self) -> bool:
        """After `sequence_gap`: go on as a new incarnation with all that the server lacks and this agent still has.

        False if the server has everything, or could be brought back by sending answered uploads again.
        """
        self._core.check()
        is_new = comeback.rejoin(self._link)
        if self._pump is not None:
            self._pump.wake()
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
            _shut_down(self._core, self._link, self._pump, os.getpid(), timeout_s)

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
    def model(self) -> RidgeModel:
        """The model that decisions rest on now."""
        return self._core.model

    @property
    def model_version(self) -> int:
        """Uploads that the server had merged when it gave this model."""
        return self._core.model_version

    def status(self) -> Status:
        """How things stand: for logs, health pages and tests."""
        core, link = self._core, self._link
        if isinstance(core.ended, ForkedProcess):
            core.check()  # some thread of the parent may hold the lock for ever
        now = link.clock()
        with core._lock:
            return Status(
                model=core.terms.model,
                agent_id=core.agent_id,
                server=link.transport.address,
                incarnation=core.incarnation,
                rounds=core.n_rounds,
                pending=core.n_pending,
                waiting=core.n_waiting,
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
                state_dir=None if core.journal is None else str(core.journal.directory),
                durability=None if core.journal is None else core.journal.durability,
            )

    def __repr__(self) -> str:
        core = self._core
        return f"<LiveAgent {core.agent_id!r} of {core.terms.model!r} at {self._link.transport.address}>"


def _shut_down(core: LiveCore, link: Link, pump: Pump | None, pid: int, timeout_s: float) -> None:
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


def _send_the_rest(core: LiveCore, link: Link, timeout_s: float) -> None:
    """Without a journal this is the last chance of what was observed."""
    try:
        if not link.halted and link.last_error is None:
            while core.n_waiting + core.n_in_flight > 0 and link.exchange(everything=True, within_s=timeout_s):
                pass
    except LiveError as error:
        logger.debug("agent %s: the last exchange failed: %s", core.agent_id, error)
    lost = core.n_waiting + core.n_in_flight
    if lost:
        logger.warning("agent %s: closed with %d observations unsent; a state_dir keeps them", core.agent_id, lost)


class _mark_forked:  # noqa: N801 - used like a function
    """In a forked child, the agent refuses to work: two processes with one identity would be told apart as liars."""

    def __init__(self, core: weakref.ref[LiveCore]) -> None:
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
