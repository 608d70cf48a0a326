"""A server process without sockets: the exchange endpoint, routes, coordinator, ledger and SQLite store.

Two replicas share the store, as two processes share a database: each has caches of its own.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from starlette.routing import Router

from fedbandit import durable_files
from fedbandit.core.drift import AnyDrift
from fedbandit.core.personal import Personal
from fedbandit.core.radius import Fixed
from fedbandit.errors import FedbanditError
from fedbandit.service import container as parts_module
from fedbandit.service.admin import operations
from fedbandit.service.container import Container, make_container
from fedbandit.service.exchange.endpoint import ExchangeEndpoint
from fedbandit.service.http import error_responses, routes
from fedbandit.service.settings import ServerSettings
from fedbandit.service.stores.sqlite.store import SqliteStore
from fedbandit.service.telemetry import Metrics, make_logger
from fedbandit.wire.settings import ModelSettings
from tests.crash_model.direct_worker import DirectWorker
from tests.crash_model.seams import Fault, Files, Killed, Process, read_tree, running, write_tree
from tests.crash_model.virtual import Session

MODEL = "news"
DIM = 2  # of one block
SETTINGS = ServerSettings(max_turn_ms=10**9)  # the duration of an event-loop iteration depends on the machine


class Reply(NamedTuple):
    """The result of a request."""

    status: int
    body: bytes
    tag: str | None = None


class Loop:
    """One event loop for all histories, and one set of metrics: they are made once."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda *_: None)  # tasks of killed servers are never awaited
        self.metrics = Metrics()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The result of the work; `Killed` if the process was killed by it."""
        return self.loop.run_until_complete(_unless_killed(self.loop, work))

    def run_at_once(self, work: Coroutine[Any, Any, Any]) -> Any:
        """The same for work that does not wait, without the event loop."""
        asyncio._set_running_loop(self.loop)
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        finally:
            asyncio._set_running_loop(None)
        work.close()
        raise RuntimeError(f"{work} waits for something")

    def close(self) -> None:
        """The end."""
        self.loop.close()


async def _unless_killed(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
    death: asyncio.Future[None] = loop.create_future()
    DirectWorker.on_kill = lambda: None if death.done() else death.set_result(None)  # type: ignore[method-assign]
    task = loop.create_task(work)
    await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
    if death.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise Killed
    return task.result()


def settings_of(variant: int) -> ModelSettings:
    """Settings of the recreated model: with bounds or without."""
    bound = (None, 10.0, 1e6)[variant % 3]
    return ModelSettings(
        name=MODEL,
        dim=DIM * Server.blocks,
        lam=1.0,
        alpha=0.5,
        radius=Fixed(0.5),
        action_bound=bound,
        reward_bound=bound,
        personal=Server.personal,
        control=Server.control,
        drift=Server.drift,
        blocks=Server.blocks,
    )


class Server:
    """The server on its directory; after a kill it does not run until `start`."""

    personal: Personal | None = None  # of the models of all servers
    control: float = 0.0
    drift: AnyDrift | None = None
    blocks: int = 1  # of two features each

    @classmethod
    def model_has(
        cls,
        *,
        personal: Personal | None = None,
        control: float = 0.0,
        drift: AnyDrift | None = None,
        blocks: int = 1,
    ) -> None:
        """Choose what the models of all servers have from now on."""
        cls.personal, cls.control, cls.drift, cls.blocks = personal, control, drift, blocks

    def __init__(self, folder: Path, loop: Loop) -> None:
        self.folder = folder
        self.loop = loop
        self.n_places = 0
        self.process = Process(folder / "server-0")
        self.parts: list[Container] = []
        self.store: SqliteStore | None = None
        self.n_steps = 0

    # -- the process

    @property
    def is_up(self) -> bool:
        """Whether it serves."""
        return self.store is not None

    @property
    def directory(self) -> Path:
        """Its directory."""
        return self.process.folder

    def start(self, fault: Fault | None = None) -> str | None:
        """Start a process on the directory; the admin token that it prints, if any. May raise `Killed`."""
        store = SqliteStore(self.directory)
        self._arm(fault)
        log = make_logger("error", io.BytesIO())
        original, parts_module.Metrics = parts_module.Metrics, lambda: self.loop.metrics  # type: ignore[assignment,misc]
        try:
            with running(self.process):
                parts = make_container(SETTINGS, log, store=store, clock=lambda: Session.clock.wall)
                other = make_container(SETTINGS, log, store=store, clock=lambda: Session.clock.wall)
                self.loop.run(store.open())
                token: str | None = self.loop.run(operations.first_admin_token(parts))
        except Killed:
            self._leave(store)
            raise
        except FedbanditError:
            self._close(store)
            raise
        finally:
            parts_module.Metrics = original  # type: ignore[misc]
        self.store, self.parts = store, [parts, other]
        self.endpoints = [ExchangeEndpoint(parts, Router()), ExchangeEndpoint(other, Router())]
        return token

    def _arm(self, fault: Fault | None) -> None:
        """A server handles signals in its event loop, between two steps: an interrupt is a kill at some step."""
        is_signal = fault is not None and fault.mode == "interrupt"
        self.process.arm(Fault("kill", fault.at % 60) if is_signal and fault is not None else fault)

    def stop(self) -> None:
        """SIGTERM."""
        if self.store is not None:
            with running(self.process):
                for parts in self.parts:
                    self.loop.run(parts.coordinator.drain())
                    self.loop.run(parts.history._flush())
            self._close(self.store)
            self.store = None

    def kill(self) -> None:
        """SIGKILL between two steps."""
        if self.store is not None:
            self.process.left = read_tree(self.directory)
            self._leave(self.store)

    def _leave(self, store: SqliteStore) -> None:
        """End the process; the next one starts from its directory."""
        self._close(store)
        self.store = None
        assert self.process.left is not None
        self.replace(self.process.left)

    def replace(self, files: Files) -> None:
        """Replace the directory by one with these files."""
        self.n_places += 1
        self.n_steps += self.process.n_steps
        old = self.directory
        self.process = Process(write_tree(files, self.folder / f"server-{self.n_places}"))
        shutil.rmtree(old, ignore_errors=True)

    def _close(self, store: SqliteStore) -> None:
        for worker in (store._reader, store._writer):
            if worker is not None and worker.connection is not None:  # type: ignore[attr-defined]
                worker.connection.close()  # type: ignore[attr-defined]
        if store._lock is not None:
            durable_files.unlock(store._lock)

    def run_tool(self, work: Callable[[], Any], fault: Fault | None) -> Any:
        """Run a command of the operator in the server's directory, which may be killed, too."""
        self._arm(fault)
        try:
            with running(self.process):
                return work()
        except Killed:
            if self.store is None:
                assert self.process.left is not None
                self.replace(self.process.left)
            else:  # a tool beside a running server, which continues
                self.n_steps += self.process.n_steps
                self.process = Process(self.process.folder)
            raise

    # -- calls of administrators

    def manage(
        self, work: Callable[[Container], Coroutine[Any, Any, Any]], fault: Fault | None, replica: int = 0
    ) -> Any:
        """An administrator's call; `Killed` if the server was killed by it."""
        return self._do(lambda: work(self.parts[replica]), fault, self.loop.run)

    def _do(
        self,
        work: Callable[[], Coroutine[Any, Any, Any]],
        fault: Fault | None,
        run: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> Any:
        assert self.store is not None
        self._arm(fault)
        try:
            with running(self.process):
                return run(work())
        except Killed:
            self._leave(self.store)
            raise

    def reader(self) -> sqlite3.Connection:
        """The connection that the store reads by, for reading without counting steps."""
        assert self.store is not None
        worker: Any = self.store._read
        if worker.connection is None:
            worker.connection = worker._connect()
        return worker.connection  # type: ignore[no-any-return]

    # -- requests of agents

    def exchange(self, requests: list[tuple[str, bytes]], replica: int, fault: Fault | None) -> list[Reply]:
        """The answers to (token, body), all in one batch; `Killed` if the server was killed meanwhile."""
        endpoint = self.endpoints[replica]

        async def together() -> list[Reply]:
            if len(requests) == 1:
                return [await _post(endpoint, *requests[0])]
            return list(await asyncio.gather(*(_post(endpoint, token, body) for token, body in requests)))

        found: list[Reply] = self._do(together, fault, self.loop.run)
        return found

    def describe(self, token: str, replica: int) -> Reply | dict[str, Any]:
        """`GET /v1/models/{m}`."""
        parts = self.parts[replica]

        async def ask() -> dict[str, Any]:
            who = await routes.reader(MODEL, await parts.authenticator.principal(f"Bearer {token}"))
            return await routes.show_model(MODEL, parts, who)

        return self._ask(ask)

    def state(self, token: str, incarnation: str, tag: str | None, replica: int) -> Reply:
        """`GET /v1/models/{m}/state`."""
        parts = self.parts[replica]

        async def ask() -> Reply:
            who = await routes.reader(MODEL, await parts.authenticator.principal(f"Bearer {token}"))
            response = await routes.download(MODEL, parts, who, incarnation, tag)
            return Reply(response.status_code, bytes(response.body), response.headers.get("ETag"))

        found: Reply = self._ask(ask)
        return found

    def _ask(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        try:
            return self._do(ask, None, self.loop.run_at_once)
        except FedbanditError as error:
            return Reply(error_responses.status_of(error), error_responses.body_of(error.code, str(error)))


async def _post(endpoint: ExchangeEndpoint, token: str, body: bytes) -> Reply:
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/v1/models/{MODEL}/sync",
        "headers": [(b"authorization", f"Bearer {token}".encode())],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await endpoint(scope, receive, send)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], sent[1]["body"], headers.get("etag"))
