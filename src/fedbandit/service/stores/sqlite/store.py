"""SQLite in a directory: WAL, synchronous=FULL, one writer thread and one reader thread."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fedbandit.durable_files import lock, unlock
from fedbandit.errors import FedbanditError, StoreUnavailable
from fedbandit.service.exchange.ledger import IncomingUpload
from fedbandit.service.model import Model
from fedbandit.service.stores import schema
from fedbandit.service.stores.base import (
    AgentPage,
    AgentRecord,
    AgentSum,
    Event,
    FleetSummary,
    HistoryEntry,
    MergedBatch,
    ModelState,
    PageQuery,
    Principal,
    Role,
    Sample,
    Widening,
)
from fedbandit.service.stores.checkpoints import Checkpoint
from fedbandit.service.stores.sqlite import transactions
from fedbandit.service.stores.sqlite.enrolments import SqliteEnrolments
from fedbandit.service.stores.sqlite.replacement import FILE_NAME, complete_replacement
from fedbandit.service.stores.sqlite.rewards import SqliteRewards
from fedbandit.wire.settings import ModelSettings

LOCK_NAME = "server.lock"
T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]
_Item = tuple[Job[Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class SqliteStore(SqliteEnrolments, SqliteRewards):
    """One server process per directory; a second one is refused."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / FILE_NAME
        self._lock: int | None = None
        self._writer: Worker | None = None
        self._reader: Worker | None = None

    async def open(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = lock_directory(self.directory)
            complete_replacement(self.directory)
        except OSError as error:
            await self.close()
            raise StoreUnavailable(f"the data directory {self.directory} cannot be used: {error}") from None
        except StoreUnavailable:
            await self.close()
            raise
        self._writer = Worker("fedbandit-writer", lambda: connect(self.path))
        self._reader = Worker("fedbandit-reader", lambda: connect(self.path))
        await self._write.run(migrate)

    async def close(self) -> None:
        for worker in (self._reader, self._writer):
            if worker is not None:
                await worker.stop()
        if self._lock is not None:
            unlock(self._lock)
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

    # -- models

    async def create(self, settings: ModelSettings, *, uid: str, now: float) -> Model:
        return await self._write.run(lambda connection: transactions.create(connection, settings, uid, now))

    async def models(self) -> list[Model]:
        return await self._read.run(transactions.models)

    async def load(self, model: str) -> Model:
        return await self._read.run(lambda connection: transactions.load(connection, model))

    async def state(self, model: str) -> ModelState:
        return await self._read.run(lambda connection: transactions.state(connection, model))

    async def configure(self, model: str, before: ModelSettings, after: ModelSettings) -> bool:
        return await self._write.run(lambda connection: transactions.configure(connection, model, before, after))

    async def delete(self, model: str) -> None:
        await self._write.run(lambda connection: transactions.delete(connection, model))

    async def merge(self, model: str, batch: Sequence[IncomingUpload], *, now: float) -> MergedBatch:
        return await self._write.run(lambda connection: transactions.merge(connection, model, batch, now))

    async def restart(self, model: str, *, now: float) -> Model:
        return await self._write.run(lambda connection: transactions.restart(connection, model))

    # -- agents

    async def enroll(
        self,
        model: str,
        agent: str,
        token_hash: bytes,
        *,
        now: float,
        renew: bool = False,
        old_until: float | None = None,
    ) -> None:
        await self._write.run(
            lambda connection: transactions.enroll(connection, model, agent, token_hash, now, renew, old_until)
        )

    async def agent(self, model: str, agent: str) -> AgentRecord:
        return await self._read.run(lambda connection: transactions.agent(connection, model, agent))

    async def agents(self, model: str, query: PageQuery) -> AgentPage:
        return await self._read.run(lambda connection: transactions.agents(connection, model, query))

    async def fleet(self, model: str, *, since: float) -> FleetSummary:
        return await self._read.run(lambda connection: transactions.fleet(connection, model, since))

    async def contribution(self, model: str, agent: str) -> bytes | None:
        return await self._read.run(lambda connection: transactions.contribution(connection, model, agent))

    async def counted_sums(self, model: str, *, limit: int) -> list[AgentSum]:
        return await self._read.run(lambda connection: transactions.counted_sums(connection, model, limit))

    async def revoke(self, model: str, agent: str, *, now: float) -> None:
        await self._write.run(lambda connection: transactions.revoke(connection, model, agent))

    async def forget(self, model: str, agent: str, *, now: float) -> Model:
        return await self._write.run(lambda connection: transactions.forget(connection, model, agent, now))

    async def widen(self, model: str, widen: Widening, *, now: float) -> Model:
        return await self._write.run(lambda connection: transactions.widen(connection, model, widen))

    async def quarantine(self, model: str, agent: str, *, on: bool, now: float) -> Model:
        return await self._write.run(lambda connection: transactions.quarantine(connection, model, agent, on))

    # -- tokens of people

    async def put_token(self, name: str, role: Role, token_hash: bytes, *, now: float, replace: bool = False) -> bool:
        return await self._write.run(
            lambda connection: transactions.put_token(connection, name, role, token_hash, now, replace)
        )

    async def find_token(self, token_hash: bytes) -> Principal | None:
        return await self._read.run(lambda connection: transactions.find_token(connection, token_hash))

    async def tokens(self) -> list[Principal]:
        return await self._read.run(transactions.tokens)

    async def drop_token(self, name: str) -> bool:
        return await self._write.run(lambda connection: transactions.drop_token(connection, name))

    # -- history

    async def record(self, notes: Sequence[HistoryEntry]) -> None:
        await self._write.run(lambda connection: transactions.record(connection, notes))

    async def events(self, model: str, *, limit: int = 100) -> list[Event]:
        return await self._read.run(lambda connection: transactions.events(connection, model, limit))

    async def samples(self, model: str) -> list[Sample]:
        return await self._read.run(lambda connection: transactions.samples(connection, model))

    async def checkpoints(self, model: str) -> list[Checkpoint]:
        return await self._read.run(lambda connection: transactions.checkpoints(connection, model))


def connect(path: Path) -> sqlite3.Connection:
    """A connection that is durable at each commit; transactions are explicit."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30.0)
    connection.execute("PRAGMA page_size = 16384")  # before WAL: it cannot be changed after
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    # The same rows change again and again: with a longer log fewer copies of a page are written back.
    connection.execute("PRAGMA wal_autocheckpoint = 1000")
    return connection


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate the schema in one transaction, or leave the file unchanged."""
    with transactions.transaction(connection):
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


def lock_directory(directory: Path) -> int:
    """Lock a data directory until `unlock`, or until the process ends in any way."""
    try:
        return lock(directory / LOCK_NAME)
    except BlockingIOError:
        raise StoreUnavailable(
            f"another server uses the data directory {directory}; stop it, or take PostgreSQL for several servers"
        ) from None


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for tools and tests."""
    connection = connect(path)
    try:
        yield connection
    finally:
        connection.close()


class Worker:
    """Runs jobs one after the other on one connection."""

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._jobs: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._stopped = False
        self._thread.start()

    async def run(self, job: Job[T]) -> T:
        """The job's result; database errors come as `StoreUnavailable`."""
        if self._stopped:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((job, loop, future))
        return await future

    async def change(self, job: Job[T]) -> T:
        """The result of a job that is one transaction."""

        def run(connection: sqlite3.Connection) -> T:
            with transactions.transaction(connection):
                return job(connection)

        return await self.run(run)

    async def stop(self) -> None:
        """Finish queued jobs, close the connection, end the thread."""
        self._stopped = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        while (item := self._jobs.get()) is not None:
            job, loop, future = item
            result: Any = None
            problem: BaseException | None = None
            try:
                if connection is None:
                    connection = self._connect()
                result = job(connection)
            except sqlite3.Error as error:
                problem = StoreUnavailable(f"the database failed: {error}")
            except FedbanditError as error:
                problem = error
            except Exception as error:  # noqa: BLE001 - raised where the job is awaited
                problem = error
            loop.call_soon_threadsafe(_settle, future, result, problem)
        if connection is not None:
            connection.close()


def _settle(future: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
    if future.cancelled():
        return
    if problem is not None:
        future.set_exception(problem)
    else:
        future.set_result(result)
