"""The components of a server process, created once and passed to those that need them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbandit.errors import MissingExtra
from fedbandit.service.admin.auth import Authenticator
from fedbandit.service.exchange.coordinator import Coordinator
from fedbandit.service.history import ModelHistory
from fedbandit.service.http.connections import BodyMemory
from fedbandit.service.monitor import AssumptionMonitor
from fedbandit.service.open_telemetry import OpenTelemetry
from fedbandit.service.problems import ProblemFinder
from fedbandit.service.settings import MEMORY, ServerSettings
from fedbandit.service.stores.base import Store
from fedbandit.service.stores.memory import MemoryStore
from fedbandit.service.telemetry import Metrics, RequestIds

Clock = Callable[[], float]


@dataclass(slots=True)
class Container:
    """The components that routes use."""

    settings: ServerSettings
    store: Store
    authenticator: Authenticator
    coordinator: Coordinator
    history: ModelHistory
    metrics: Metrics
    log: Any
    clock: Clock
    memory: BodyMemory
    monitor: AssumptionMonitor
    problems: ProblemFinder
    request_ids: RequestIds = field(default_factory=RequestIds)
    one_matrix: asyncio.Lock = field(default_factory=asyncio.Lock)  # responses that need the full Σ, one at a time
    is_started: bool = False
    open_telemetry: OpenTelemetry | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)  # set at the first signal, to end open streams

    async def start(self) -> None:
        """Open the store, unless it is open."""
        if self.is_started:
            return
        if self.settings.otlp_endpoint:
            self.open_telemetry = OpenTelemetry(self.settings.otlp_endpoint, self.metrics.registry)
        await self.store.open()
        self.history.start()
        self.is_started = True

    async def stop(self) -> None:
        """Answer all accepted uploads, then close the store."""
        await self.coordinator.drain()
        await self.history.stop()
        await self.store.close()
        if self.open_telemetry is not None:
            await asyncio.to_thread(self.open_telemetry.close)
        self.is_started = False


def make_store(settings: ServerSettings) -> Store:
    """The store that the settings name, not yet open."""
    if settings.database.startswith(MEMORY):
        return MemoryStore()
    if settings.database:
        try:
            from fedbandit.service.stores.postgres import PostgresStore
        except ImportError:
            raise MissingExtra("PostgreSQL needs asyncpg: install fedbandit[server,postgres]") from None
        return PostgresStore(settings.database, pool_size=settings.pool_size)
    from fedbandit.service.stores.sqlite.store import SqliteStore

    return SqliteStore(Path(settings.data))


def make_container(
    settings: ServerSettings, log: Any, *, store: Store | None = None, clock: Clock = time.time
) -> Container:
    """Create all components; nothing is open or running yet."""
    store = make_store(settings) if store is None else store
    metrics = Metrics()
    history = ModelHistory(store, log, clock, count=lambda kind: metrics.events.labels(kind).inc())
    coordinator = Coordinator(
        store,
        metrics,
        history,
        log,
        clock=clock,
        max_batch=settings.max_batch,
        max_queue=settings.max_queue,
    )
    memory = BodyMemory(settings.max_inflight_mb << 20)
    monitor = AssumptionMonitor(store)
    return Container(
        settings,
        store,
        Authenticator(store, clock),
        coordinator,
        history,
        metrics,
        log,
        clock,
        memory,
        monitor,
        ProblemFinder(store, monitor, history, metrics, clock),
    )
