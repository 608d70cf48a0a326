"""Real agents and a real server without processes or sockets, which can be killed at any step between two durable ones.

A kill is an exception that nothing catches, thrown before or after a statement to SQLite, a sync to disk or a message;
what the next process finds is a copy of the directory at that moment. Nothing is replaced: journal, link, coordinator,
ledger and the SQLite store are the product's own, watched from outside.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from starlette.routing import Router

from fedbandit.errors import FedbanditError, StoreUnavailable, Unauthenticated
from fedbandit.sdk.journal.journal import Journal
from fedbandit.service.admin.auth import hash_token
from fedbandit.service.container import make_container
from fedbandit.service.exchange.endpoint import ExchangeEndpoint
from fedbandit.service.settings import ServerSettings
from fedbandit.service.stores.sqlite.store import FILE_NAME, SqliteStore, connect, migrate
from fedbandit.service.telemetry import make_logger
from fedbandit.wire import codec
from tests.service.uploads import settings

MODEL = "news"
DIM = 2


class Killed(BaseException):
    """The process ends here; not an `Exception`, so that no handler catches it."""


class Fuse:
    """Counts the steps of a process and kills it at the chosen one."""

    def __init__(self) -> None:
        self.left: int | None = None

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise Killed


class Watched:
    """A connection to SQLite with a step before and after each statement, COMMIT included."""

    def __init__(self, inner: sqlite3.Connection, fuse: Fuse) -> None:
        self._inner, self._fuse = inner, fuse

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self._fuse.step()
        cursor = self._inner.execute(*arguments)
        self._fuse.step()
        return cursor

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        self._fuse.step()
        cursor = self._inner.executemany(*arguments)
        self._fuse.step()
        return cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def copy_to(directory: Path, where: Path) -> Path:
    """The directory as another process would find it now."""
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(directory, where)
    return where


def journal_with(fuse: Fuse, synced: Path) -> type[Journal]:
    """The journal with a fuse; each sync to disk leaves a copy in `synced`, which is what a power cut would leave."""

    class FusedJournal(Journal):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._db = Watched(self._db, fuse)  # type: ignore[assignment]

        def make_durable(self) -> None:
            fuse.step()
            super().make_durable()
            copy_to(self.directory, synced)
            fuse.step()

    return FusedJournal


# -- the server


class _Direct:
    """Runs the store's jobs immediately on a stepped connection, where `Worker` would use a thread."""

    def __init__(self, connection: Watched, died: asyncio.Event) -> None:
        self._connection, self._died = connection, died

    async def run(self, job: Any) -> Any:
        try:
            return job(self._connection)
        except Killed:
            self._died.set()
            raise
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the database failed: {error}") from None


class KillableStore(SqliteStore):
    """The SQLite store on one connection, in the thread of the test."""

    def __init__(self, directory: Path, fuse: Fuse, died: asyncio.Event) -> None:
        super().__init__(directory)
        self._raw = connect(directory / FILE_NAME)
        self._raw.execute("PRAGMA synchronous = OFF")  # kills do not lose the kernel's page cache
        self._direct = _Direct(Watched(self._raw, fuse), died)

    @property
    def _write(self) -> Any:
        return self._direct

    @property
    def _read(self) -> Any:
        return self._direct

    def let_go(self) -> None:
        self._raw.close()


class ServerBox:
    """A server on a directory: the exchange endpoint, the coordinator, the ledger and the store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fuse = Fuse()
        self.kill_at: int | None = None  # the step of exchanges and of `forget` at which the server is killed
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda *_: None)  # tasks of killed servers are never awaited
        self.n_lives = 0
        self.directory = folder / "server-0"
        self.directory.mkdir()
        self.store: KillableStore | None = None
        self.start()
        self.run(self._make_model())

    async def _make_model(self) -> None:
        assert self.store is not None
        await self.store._write.run(migrate)
        await self.store.create(settings(MODEL, dim=DIM, alpha=0.5), uid="one", now=0.0)

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @property
    def is_up(self) -> bool:
        return self.store is not None

    def start(self) -> None:
        self._died = asyncio.Event()
        self.store = KillableStore(self.directory, self.fuse, self._died)
        log = make_logger("error", io.BytesIO())
        parts = make_container(ServerSettings(), log, store=self.store, clock=lambda: 0.0)
        self._endpoint = ExchangeEndpoint(parts, Router())

    def kill(self) -> None:
        """SIGKILL: the next process finds the directory as it is."""
        if self.store is not None:
            self._replace_by(self.directory)

    def _replace_by(self, found: Path) -> None:
        self.n_lives += 1
        old, self.directory = self.directory, copy_to(found, self.folder / f"server-{self.n_lives}")
        if self.store is not None:
            self.store.let_go()
        self.store, self.fuse.left = None, None
        shutil.rmtree(old)

    def backup(self, where: Path) -> None:
        copy_to(self.directory, where)

    def restore(self, backup: Path) -> None:
        self._replace_by(backup)
        self.start()

    def enroll(self, agent: str, token: str) -> None:
        assert self.store is not None
        self.run(self.store.enroll(MODEL, agent, hash_token(token), now=0.0))

    # -- requests of agents

    def exchange(self, requests: list[tuple[str, bytes]]) -> list[tuple[int, bytes]] | None:
        """Status and body for each (token, body), all in one batch; None if the server was killed meanwhile."""
        if not self.is_up:
            return None
        self.fuse.left = self.kill_at
        answers = self.run(self._together(requests))
        self.kill_at, self.fuse.left = self.fuse.left, None
        if answers is None:
            self.kill()
        return answers  # type: ignore[no-any-return]

    async def _together(self, requests: list[tuple[str, bytes]]) -> list[tuple[int, bytes]] | None:
        work = asyncio.gather(*(self._post(token, body) for token, body in requests))
        death = asyncio.ensure_future(self._died.wait())
        await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
        if self._died.is_set():
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            return None
        death.cancel()
        return await work

    async def _post(self, token: str, body: bytes) -> tuple[int, bytes]:
        sent: list[Any] = []
        scope = {
            "type": "http",
            "method": "POST",
            "path": f"/v1/models/{MODEL}/sync",
            "headers": [(b"authorization", f"Bearer {token}".encode())],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self._endpoint(scope, receive, send)  # type: ignore[arg-type]
        return sent[0]["status"], sent[1]["body"]

    def state(self, agent: str, incarnation: str) -> codec.SyncReply:
        """The reply of `GET /state`; it changes nothing, so that no kill is needed."""
        row, found = self.run(self._read(agent))
        return codec.SyncReply(
            agent=agent,
            version=found.model.version,
            acknowledged=row.sequence if row.incarnation == incarnation else 0,
            dim=DIM,
            stats=found.packed,
            settings=found.model.settings_id,
        )

    async def _read(self, agent: str) -> Any:
        assert self.store is not None
        return await self.store.agent(MODEL, agent), await self.store.state(MODEL)

    def describe(self, agent: str) -> dict[str, Any]:
        assert self.store is not None
        return {**self.run(self.store.load(MODEL)).to_dict(), "agent": agent}

    def forget(self, agent: str) -> None:
        """Can be killed at any statement, like a merge."""
        assert self.store is not None
        self.fuse.left = self.kill_at
        try:
            self.run(self.store.forget(MODEL, agent, now=0.0))
        except Killed:
            self.kill()
        self.kill_at, self.fuse.left = self.fuse.left, None

    def close(self) -> None:
        if self.store is not None:
            self.store.let_go()
        self.loop.close()


def require_named(error: Exception) -> FedbanditError:
    """Every error has a name."""
    assert isinstance(error, FedbanditError), f"an error without a name: {error!r}"
    assert not isinstance(error, Unauthenticated), "no token was revoked here"
    return error
