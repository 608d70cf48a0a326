"""Group commit: uploads that arrive together are merged in one transaction, with one fsync."""

from __future__ import annotations

import asyncio
import contextlib
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

MAX_DELAY_S = 0.001  # of a batch that is smaller than the last one


class MergeResult(NamedTuple):
    """The state after the batch of an upload, and what is acknowledged."""

    merged: MergedBatch
    acknowledged: Acknowledged


class _QueuedUpload(NamedTuple):
    upload: IncomingUpload
    future: asyncio.Future[MergeResult]


@dataclass(slots=True)
class _ModelQueue:
    """The uploads of one model that are queued for the next transaction."""

    queued: deque[_QueuedUpload] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    expected: int = 1  # uploads in the next batch
    is_refilled: asyncio.Event = field(default_factory=asyncio.Event)


class Coordinator:
    """One queue per model: while a batch is being committed, the next one gathers."""

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
        self._queues: dict[str, _ModelQueue] = {}
        self._is_draining = False
        metrics.queued.set_function(lambda: sum(len(queue.queued) for queue in self._queues.values()))

    async def receive(self, model: str, upload: IncomingUpload) -> MergeResult:
        """Merge the upload durably; a refusal is raised, `Overloaded` if too many uploads are queued."""
        reason = self.overload_reason(model)
        if reason is not None:
            raise Overloaded(reason)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[MergeResult] = loop.create_future()
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = _ModelQueue()
        queue.queued.append(_QueuedUpload(upload, future))
        if len(queue.queued) == queue.expected:
            queue.is_refilled.set()
        if queue.task is None:
            queue.task = loop.create_task(self._commit_all(model, queue))
        return await future

    def overload_reason(self, model: str) -> str | None:
        """Why no upload can be queued, None if one can; checked before a body is read, so that shedding is cheap."""
        if self._is_draining:
            return "the server is shutting down"
        queue = self._queues.get(model)
        if queue is not None and len(queue.queued) >= self._max_queue:
            return f"{self._max_queue} uploads to model {model!r} are queued already"
        return None

    async def drain(self) -> None:
        """Refuse new uploads, and finish those that were accepted."""
        self._is_draining = True
        tasks = [queue.task for queue in self._queues.values() if queue.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _commit_all(self, model: str, queue: _ModelQueue) -> None:
        while queue.queued:
            await self._let_uploads_join(queue)
            batch = [queue.queued.popleft() for _ in range(min(self._max_batch, len(queue.queued)))]
            try:
                await self._commit(model, batch)
            except FedbanditError as error:
                queue.expected = 1  # the model may not exist any more
                _fail_all(batch, error)
            except Exception as error:  # noqa: BLE001 - no upload may stay without a reply, and the queue goes on
                self._log.error("merge_failed", model=model, error=type(error).__name__, message=str(error))
                _fail_all(batch, StoreUnavailable("the store failed; a retry will be recognised if it was merged"))
        # No await between the test above and this: nothing can have been queued in between.
        queue.task = None
        if queue.expected <= 1:
            del self._queues[model]

    async def _let_uploads_join(self, queue: _ModelQueue) -> None:
        """Wait briefly until as many uploads are queued as the last batch had.

        Agents that were answered together tend to upload together again: fewer and larger batches need fewer fsyncs.
        """
        await asyncio.sleep(0)  # requests that the event loop has read already join the batch
        if len(queue.queued) < queue.expected:
            queue.is_refilled.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAX_DELAY_S):
                    await queue.is_refilled.wait()
        queue.expected = min(len(queue.queued), self._max_batch)

    async def _commit(self, model: str, batch: list[_QueuedUpload]) -> None:
        started = time.perf_counter()
        merged = await self._store.merge(model, [item.upload for item in batch], now=self._clock())
        self._metrics.commit_seconds.observe(time.perf_counter() - started)
        self._metrics.batch_size.observe(len(batch))
        self._report(merged)
        n_bytes = 0
        for (upload, future), outcome in zip(batch, merged.outcomes, strict=True):
            if isinstance(outcome, FedbanditError):
                self._history.refused(merged.model, upload.agent, outcome)
                _fail(future, outcome)
                continue
            if outcome.is_new:
                n_bytes += upload.n_bytes
                if not outcome.outcome:
                    self._history.merged(merged.model, upload)
            if not future.done():  # the request may have been cancelled
                future.set_result(MergeResult(merged, outcome))
        if n_bytes:
            self._metrics.received.labels(model).inc(n_bytes)

    def _report(self, merged: MergedBatch) -> None:
        if not merged.n_merged:
            return
        model = merged.model
        name = model.settings.name
        self._history.changed(model, merged.packed)
        self._metrics.effective_alpha.labels(name).set(model.effective_alpha)
        self._metrics.n_obs.labels(name).set(model.n_obs)
        self._metrics.version.labels(name).set(model.version)
        self._metrics.epoch.labels(name).set(model.epoch)
        self._metrics.n_discarded.labels(name).set(model.n_discarded)
        for agent, reason in merged.restarts:
            self._history.event(model, "restarted", agent, f"{reason}; epoch {model.epoch}")
            self._log.warning("model_restarted", model=name, agent=agent, reason=reason, epoch=model.epoch)


def _fail_all(batch: list[_QueuedUpload], error: FedbanditError) -> None:
    for item in batch:
        _fail(item.future, error)


def _fail(future: asyncio.Future[MergeResult], error: FedbanditError) -> None:
    if not future.done():
        future.set_exception(error)
