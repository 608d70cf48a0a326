"""Events and samples of each model, collected in memory and written at most once a second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from fedbandit.algorithms.messages import stats_from_bytes
from fedbandit.core.ridge import RidgeModel
from fedbandit.errors import FedbanditError
from fedbandit.service.agent_history import AgentHistory
from fedbandit.service.exchange.ledger import IncomingUpload
from fedbandit.service.model import Model
from fedbandit.service.stores.base import Event, HistoryEntry, Sample, Store

MAX_BUFFERED = 1_000  # an agent that retries without end must not fill the memory
INTERVAL_S = 1.0


class ModelHistory:
    """Collects entries without waiting; a background task writes them to the store."""

    def __init__(self, store: Store, log: Any, clock: Callable[[], float]) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self.trails = AgentHistory()
        self._events: list[HistoryEntry] = []
        self._latest: dict[str, tuple[Model, bytes]] = {}
        self._refused: set[tuple[str, str, str]] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the background task."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Write the remaining entries and stop."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._flush()

    def event(self, model: Model, kind: str, agent: str = "", detail: str = "") -> None:
        """Add an event."""
        if len(self._events) < MAX_BUFFERED:
            self._events.append(HistoryEntry(model.uid, Event(self._clock(), kind, agent, detail[:500])))

    def refused(self, model: Model, agent: str, error: FedbanditError) -> None:
        """Add the refusal of an upload; at most one per second for the same agent and reason."""
        key = (model.uid, agent, error.code)
        if key not in self._refused and len(self._refused) < MAX_BUFFERED:
            self._refused.add(key)
            self.event(model, "refused", agent, f"{error.code}: {error}")

    def merged(self, model: Model, upload: IncomingUpload) -> None:
        """Add an upload to the history of its agent."""
        n_obs, reward_sum, _ = upload.numbers[-3:].tolist()
        self.trails.step(model.uid, upload.agent, self._clock(), n_obs, reward_sum)

    def changed(self, model: Model, packed: bytes) -> None:
        """Remember the latest state of a model for the next sample."""
        self._latest[model.uid] = (model, packed)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self._flush()

    async def _flush(self) -> None:
        events, self._events = self._events, []
        latest, self._latest = self._latest, {}
        self._refused.clear()
        if not events and not latest:
            return
        now = self._clock()
        try:
            samples = [HistoryEntry(uid, await _sample(model, packed, now)) for uid, (model, packed) in latest.items()]
            await self._store.record([*events, *samples])
        except FedbanditError as error:
            self._log.warning("history_not_written", error=error.code, message=str(error))


async def _sample(model: Model, packed: bytes, now: float) -> Sample:
    log_det = await asyncio.to_thread(_log_det, packed, model.settings.dim)
    return Sample(
        at=now,
        version=model.version,
        n_obs=model.n_obs,
        reward_sum=model.reward_sum,
        n_uploads=model.n_uploads,
        n_bytes=model.n_bytes,
        log_det=log_det,
        growth=model.growth.recent,
    )


def _log_det(packed: bytes, dim: int) -> float:
    return RidgeModel(stats_from_bytes(packed, dim)).log_det
