"""Group commit: uploads that arrive together are folded together, one transaction, one fsync, all answered."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedbandit.errors import FedbanditError, Overloaded, StoreUnavailable
from fedbandit.service.exchange.ledger import Acknowledged, IncomingUpload
from fedbandit.service.history import ModelHistory
from fedbandit.service.stores.base import MergedBatch, Store
from fedbandit.service.telemetry import Metrics


class MergeResult(NamedTuple):
    """What an upload led to: the state after its batch, and what is acknowledged."""

    merged: MergedBatch
    acknowledged: Acknowledged


Done = Callable[["MergeResult | FedbanditError"], None]  # called once, in the event loop


class _QueuedUpload(NamedTuple):
    upload: IncomingUpload
    done: Done


@dataclass(slots=True)
class _ModelQueue:
    """The uploads of one model that wait for the next transaction."""

    queued: deque[_QueuedUpload] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None


class Coordinator:
    """One lane per model: while a batch is being committed the next one gathers."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        history: ModelHistory,
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
        self._lanes: dict[str, _ModelQueue] = {}
        self._draining = False
        metrics.queued.set_function(lambda: sum(len(lane.queued) for lane in self._lanes.values()))

    async def receive(self, model: str, upload: IncomingUpload) -> MergeResult:
        """Merge the upload, durably, and answer; a refusal is raised. `Overloaded` when too many wait already."""
        future: asyncio.Future[MergeResult] = asyncio.get_running_loop().create_future()

        def settle(answer: MergeResult | FedbanditError) -> None:
            if future.done():  # whoever asked has left
                return
            if isinstance(answer, FedbanditError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.submit(model, upload, settle)
        return await future

    def submit(self, model: str, upload: IncomingUpload, done: Done) -> None:
        """The same without waiting: `done` gets the answer or the refusal. `Overloaded` is raised."""
        why = self.why_full(model)
        if why is not None:
            raise Overloaded(why)
        lane = self._lanes.get(model)
        if lane is None:
            lane = self._lanes[model] = _ModelQueue()
        lane.queued.append(_QueuedUpload(upload, done))
        if lane.task is None:
            lane.task = asyncio.get_running_loop().create_task(self._drain(model, lane))

    def why_full(self, model: str) -> str | None:
        """Why no more uploads can wait; asked before anything is read, so that shedding costs little."""
        if self._draining:
            return "the server is shutting down"
        lane = self._lanes.get(model)
        if lane is not None and len(lane.queued) >= self._max_queue:
            return f"{self._max_queue} uploads to model {model!r} wait already"
        return None

    async def drain(self) -> None:
        """Take nothing new, and finish what was accepted."""
        self._draining = True
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self, model: str, lane: _ModelQueue) -> None:
        # Requests that the event loop has read already join the batch instead of waiting for the next commit.
        while lane.queued:
            await asyncio.sleep(0)
            batch = [lane.queued.popleft() for _ in range(min(self._max_batch, len(lane.queued)))]
            try:
                await self._commit(model, batch)
            except FedbanditError as error:
                self._refuse_all(batch, error)
            except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever, and the lane goes on
                self._log.error("merge_failed", model=model, error=type(error).__name__, message=str(error))
                self._refuse_all(
                    batch, StoreUnavailable("the store failed; a retry will be recognised if it was merged")
                )
        # No await between the test above and this: nothing can have been added in between.
        lane.task = None
        del self._lanes[model]

    async def _commit(self, model: str, batch: list[_QueuedUpload]) -> None:
        began = time.perf_counter()
        merged = await self._store.merge(model, [item.upload for item in batch], now=self._clock())
        self._metrics.commit_seconds.observe(time.perf_counter() - began)
        self._metrics.batch_size.observe(len(batch))
        self._report(merged)
        n_bytes = 0
        for item, outcome in zip(batch, merged.outcomes, strict=True):
            if isinstance(outcome, FedbanditError):
                self._history.refused(merged.model, item.upload.agent, outcome)
                self._tell(item, outcome)
                continue
            if outcome.is_new:
                n_bytes += item.upload.n_bytes
                self._history.merged(merged.model, item.upload)
            self._tell(item, MergeResult(merged, outcome))
        if n_bytes:
            self._metrics.received.labels(model).inc(n_bytes)

    def _tell(self, item: _QueuedUpload, answer: MergeResult | FedbanditError) -> None:
        """One who cannot be told must not keep the answer from the others."""
        try:
            item.done(answer)
        except Exception as error:  # noqa: BLE001
            self._log.error("answer_failed", agent=item.upload.agent, exc_info=error)

    def _report(self, merged: MergedBatch) -> None:
        if not merged.n_merged:
            return
        model = merged.model
        name = model.settings.name
        self._history.changed(model, merged.packed)
        self._metrics.effective_alpha.labels(name).set(model.effective_alpha)
        self._metrics.n_obs.labels(name).set(model.n_obs)
        self._metrics.version.labels(name).set(model.version)

    def _refuse_all(self, batch: list[_QueuedUpload], error: FedbanditError) -> None:
        for item in batch:
            self._tell(item, error)
