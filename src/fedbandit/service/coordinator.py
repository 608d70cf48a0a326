"""Group commit: uploads that arrive together are folded together, one transaction, one fsync, all answered."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedbandit.errors import FedbanditError, Overloaded, StoreUnavailable
from fedbandit.service.history import History
from fedbandit.service.ledger import Acknowledged, Incoming
from fedbandit.service.stores.base import Merged, Store
from fedbandit.service.telemetry import Metrics


class Answer(NamedTuple):
    """What an upload led to: the state after its batch, and what is acknowledged."""

    merged: Merged
    acknowledged: Acknowledged


class _Waiting(NamedTuple):
    upload: Incoming
    future: asyncio.Future[Answer]


@dataclass(slots=True)
class _Lane:
    """The uploads of one model that wait for the next transaction."""

    waiting: deque[_Waiting] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class Coordinator:
    """One lane per model: while a batch is being committed the next one gathers."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        history: History,
        log: Any,
        *,
        clock: Callable[[], float],
        max_batch: int = 128,
        max_queue: int = 1024,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._history = history
        self._log = log
        self._clock = clock
        self._max_batch = max_batch
        self._max_queue = max_queue
        self._lanes: dict[str, _Lane] = {}
        self._draining = False

    async def receive(self, model: str, upload: Incoming) -> Answer:
        """Merge the upload, durably, and answer; a refusal is raised. `Overloaded` when too many wait already."""
        self.require_room(model)
        lane = self._lanes.get(model)
        if lane is None:
            lane = self._lanes[model] = _Lane()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        lane.waiting.append(_Waiting(upload, future))
        self._metrics.queued.inc()
        if lane.task is None:
            lane.task = loop.create_task(self._drain(model, lane))
        return await future

    def require_room(self, model: str) -> None:
        """`Overloaded` when too many uploads wait; asked before anything is read, so that shedding costs little."""
        if self._draining:
            raise Overloaded("the server is shutting down")
        lane = self._lanes.get(model)
        if lane is not None and len(lane.waiting) >= self._max_queue:
            raise Overloaded(f"{self._max_queue} uploads to model {model!r} wait already")

    async def drain(self) -> None:
        """Take nothing new, and finish what was accepted."""
        self._draining = True
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self, model: str, lane: _Lane) -> None:
        # Requests that the event loop has read already join the batch instead of waiting for the next commit.
        await asyncio.sleep(0)
        while lane.waiting:
            batch = [lane.waiting.popleft() for _ in range(min(self._max_batch, len(lane.waiting)))]
            self._metrics.queued.dec(len(batch))
            try:
                await self._commit(model, batch)
            except FedbanditError as error:
                _refuse_all(batch, error)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever, and the lane goes on
                self._log.error("merge_failed", model=model, error=type(error).__name__, message=str(error))
                _refuse_all(batch, StoreUnavailable("the store failed; a retry will be recognised if it was merged"))
        # No await between the test above and this: nothing can have been added in between.
        lane.task = None
        del self._lanes[model]

    async def _commit(self, model: str, batch: list[_Waiting]) -> None:
        began = time.perf_counter()
        merged = await self._store.merge(model, [item.upload for item in batch], now=self._clock())
        self._metrics.commit_seconds.observe(time.perf_counter() - began)
        self._metrics.batch_size.observe(len(batch))
        self._report(merged)
        for item, outcome in zip(batch, merged.outcomes, strict=True):
            if isinstance(outcome, Acknowledged) and outcome.is_new:
                self._history.merged(merged.model, item.upload)
            if item.future.done():
                continue
            if isinstance(outcome, FedbanditError):
                self._history.refused(merged.model, item.upload.agent, outcome)
                item.future.set_exception(outcome)
            else:
                item.future.set_result(Answer(merged, outcome))

    def _report(self, merged: Merged) -> None:
        if not merged.n_merged:
            return
        model = merged.model
        name = model.settings.name
        self._history.changed(model, merged.packed)
        self._metrics.effective_alpha.labels(name).set(model.effective_alpha)
        self._metrics.n_obs.labels(name).set(model.n_obs)
        self._metrics.version.labels(name).set(model.version)


def _refuse_all(batch: list[_Waiting], error: FedbanditError) -> None:
    for item in batch:
        if not item.future.done():
            item.future.set_exception(error)
