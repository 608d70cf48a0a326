"""SQLite in a directory: WAL, synchronous=FULL, one writer thread, and a reader thread for what may take a while."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedbandit.errors import StoreUnavailable
from fedbandit.service.ledger import Incoming
from fedbandit.service.model import Model, ModelSettings
from fedbandit.service.stores import schema
from fedbandit.service.stores import sqlite_jobs as jobs
from fedbandit.service.stores.base import (
    Agent,
    AgentPage,
    Event,
    Fleet,
    Merged,
    Note,
    PageQuery,
    Principal,
    Role,
    Sample,
    State,
)
from fedbandit.service.stores.row_cache import RowCache
from fedbandit.service.stores.worker import Job, T, Worker

FILE_NAME = "fedbandit.sqlite3"
LOCK_NAME = "server.lock"


class SqliteStore:
    """One server process on one directory; a second one is refused."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / FILE_NAME
        self._lock: IO[bytes] | None = None
        self._writer: Worker | None = None
        self._reader: Worker | None = None
        self._cache = RowCache()  # the writer's

    async def open(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = locked(self.directory / LOCK_NAME)
        except OSError as error:
            raise StoreUnavailable(f"the data directory {self.directory} cannot be used: {error}") from None
        self._writer = Worker("fedbandit-writer", lambda: connect(self.path))
        self._reader = Worker("fedbandit-reader", lambda: connect(self.path))
        await self._write.run(migrate)

    async def close(self) -> None:
        for worker in (self._reader, self._writer):
            if worker is not None:
                await worker.stop()
        if self._lock is not None:
            self._lock.close()
        self._lock = self._writer = self._reader = None

    async def ping(self) -> None:
        await self._read.run(lambda connection: connection.execute("SELECT version FROM schema_version").fetchone())

    @property
    def _write(self) -> Worker:
        if self._writer is None:
            raise StoreUnavailable("the store is not open")
        return self._writer

    @property
    def _read(self) -> Worker:
        if self._reader is None:
            raise StoreUnavailable("the store is not open")
        return self._reader

    async def _change(self, job: Job[T]) -> T:
        """A write that is no exchange: what is remembered of rows is forgotten first."""

        def run(connection: sqlite3.Connection) -> T:
            self._cache.clear()
            return job(connection)

        return await self._write.run(run)

    # -- models

    async def create(self, settings: ModelSettings, *, uid: str, now: float) -> Model:
        return await self._change(lambda connection: jobs.create(connection, settings, uid, now))

    async def models(self) -> list[Model]:
        return await self._read.run(jobs.models)

    async def load(self, model: str) -> Model:
        return await self._read.run(lambda connection: jobs.load(connection, model))

    async def state(self, model: str) -> State:
        return await self._read.run(lambda connection: jobs.state(connection, model))

    async def delete(self, model: str) -> None:
        await self._change(lambda connection: jobs.delete(connection, model))

    async def merge(self, model: str, batch: Sequence[Incoming], *, now: float) -> Merged:
        return await self._write.run(lambda connection: jobs.merge(connection, self._cache, model, batch, now))

    # -- agents

    async def enroll(self, model: str, agent: str, token_hash: bytes, *, now: float, renew: bool = False) -> None:
        await self._change(lambda connection: jobs.enroll(connection, model, agent, token_hash, now, renew))

    async def agent(self, model: str, agent: str) -> Agent:
        return await self._read.run(lambda connection: jobs.agent(connection, model, agent))

    async def agents(self, model: str, query: PageQuery) -> AgentPage:
        return await self._read.run(lambda connection: jobs.agents(connection, model, query))

    async def fleet(self, model: str, *, since: float) -> Fleet:
        return await self._read.run(lambda connection: jobs.fleet(connection, model, since))

    async def contribution(self, model: str, agent: str) -> bytes | None:
        return await self._read.run(lambda connection: jobs.contribution(connection, model, agent))

    async def revoke(self, model: str, agent: str, *, now: float) -> None:
        await self._change(lambda connection: jobs.revoke(connection, model, agent))

    async def forget(self, model: str, agent: str, *, now: float) -> Model:
        return await self._change(lambda connection: jobs.forget(connection, model, agent))

    # -- tokens of people

    async def put_token(self, name: str, role: Role, token_hash: bytes, *, now: float, replace: bool = False) -> bool:
        return await self._change(lambda connection: jobs.put_token(connection, name, role, token_hash, now, replace))

    async def find_token(self, token_hash: bytes) -> Principal | None:
        return await self._read.run(lambda connection: jobs.find_token(connection, token_hash))

    async def tokens(self) -> list[Principal]:
        return await self._read.run(jobs.tokens)

    async def drop_token(self, name: str) -> bool:
        return await self._change(lambda connection: jobs.drop_token(connection, name))

    # -- history

    async def record(self, notes: Sequence[Note]) -> None:
        await self._write.run(lambda connection: jobs.record(connection, notes))

    async def events(self, model: str, *, limit: int = 100) -> list[Event]:
        return await self._read.run(lambda connection: jobs.events(connection, model, limit))

    async def samples(self, model: str) -> list[Sample]:
        return await self._read.run(lambda connection: jobs.samples(connection, model))


def connect(path: Path) -> sqlite3.Connection:
    """A connection that is durable at each commit and leaves transactions to us."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30.0)
    connection.execute("PRAGMA page_size = 16384")  # before WAL: it cannot be changed after
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    # The same few rows change all the time: the longer the log, the fewer copies of a page are written back.
    connection.execute("PRAGMA wal_autocheckpoint = 1000")
    return connection


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date in one transaction, or leave the file as it is."""
    with jobs.transaction(connection):
        connection.execute(schema.VERSION_TABLE)
        row = connection.execute("SELECT version FROM schema_version").fetchone()
        todo = schema.missing("sqlite", 0 if row is None else row[0])
        for migration in todo:
            for statement in migration.statements:
                connection.execute(statement)
        if row is None:
            connection.execute("INSERT INTO schema_version VALUES (0)")
        if todo:
            connection.execute("UPDATE schema_version SET version = ?", (todo[-1].number,))


def locked(path: Path) -> IO[bytes]:
    """The lock file, held until it is closed or the process ends, however it ends."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise StoreUnavailable(
            f"another server uses the data directory {path.parent}; stop it, or take PostgreSQL for several servers"
        ) from None
    return file


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for tools and tests."""
    connection = connect(path)
    try:
        yield connection
    finally:
        connection.close()
