"""An old data directory is brought up to date in one transaction; a newer one is left alone."""

import asyncio
import sqlite3

import pytest

from fedbandit.errors import SchemaTooNew, StoreUnavailable
from fedbandit.service.stores import schema
from fedbandit.service.stores.base import Event, HistoryEntry
from fedbandit.service.stores.postgres import PostgresStore
from fedbandit.service.stores.sqlite.store import FILE_NAME, SqliteStore, opened
from tests.service.uploads import TOKEN, folded, incoming, settings

NEWEST = schema.migrations("sqlite")[-1].number


NEXT = schema.Migration(
    NEWEST + 1, ["CREATE TABLE added (x INTEGER)", "ALTER TABLE models ADD COLUMN added INTEGER NOT NULL DEFAULT 7"]
)


@pytest.fixture
def next_version(monkeypatch):
    """Afterwards the schema has one more migration."""
    known = {dialect: schema.migrations(dialect) for dialect in ("sqlite", "postgres")}

    def add(migration=NEXT) -> None:
        monkeypatch.setattr(schema, "migrations", lambda dialect: [*known[dialect], migration])

    return add


async def fill(store) -> None:
    """A model, an agent and one merged upload."""
    await store.open()
    try:
        await store.create(settings(), uid="uid-1", now=1.0)
        await store.enroll("news", "a", TOKEN, now=1.0)
        await store.merge("news", [incoming("a")], now=1.0)
    finally:
        await store.close()


async def check_old_data(store) -> None:
    """All data are there, exchanges continue, and the new version works."""
    await store.open()
    try:
        state = await store.state("news")
        assert (state.packed, state.model.version) == (folded(incoming("a")), 1)
        merged = await store.merge("news", [incoming("a"), incoming("a", 2)], now=2.0)
        assert [outcome.is_new for outcome in merged.outcomes] == [False, True]
        assert merged.packed == folded(incoming("a"), incoming("a", 2))
        await store.record([HistoryEntry("uid-1", Event(3.0, "joined", "a"))])
        assert len(await store.events("news")) == 1
    finally:
        await store.close()


def test_a_sqlite_directory_of_an_earlier_version_is_migrated(tmp_path, next_version):
    asyncio.run(fill(SqliteStore(tmp_path)))
    next_version()
    asyncio.run(check_old_data(SqliteStore(tmp_path)))
    with opened(tmp_path / FILE_NAME) as connection:
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [(NEWEST + 1,)]
        assert connection.execute("SELECT added FROM models").fetchall() == [(7,)]


def test_a_postgres_database_of_an_earlier_version_is_migrated(database, next_version):
    asyncio.run(fill(PostgresStore(database)))
    next_version()
    asyncio.run(check_old_data(PostgresStore(database)))


def test_a_newer_sqlite_directory_is_refused_and_not_touched(tmp_path):
    async def make_and_leave() -> None:
        store = SqliteStore(tmp_path)
        await store.open()
        await store.close()

    asyncio.run(make_and_leave())
    with opened(tmp_path / FILE_NAME) as connection:
        connection.execute("UPDATE schema_version SET version = 99")
        before = connection.execute("SELECT * FROM sqlite_master").fetchall()

    async def try_to_open() -> None:
        store = SqliteStore(tmp_path)
        with pytest.raises(SchemaTooNew, match="newer fedbandit"):
            await store.open()
        await store.close()

    asyncio.run(try_to_open())
    with opened(tmp_path / FILE_NAME) as connection:
        assert connection.execute("SELECT * FROM sqlite_master").fetchall() == before
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [(99,)]


def test_a_newer_postgres_database_is_refused(database):
    async def scenario() -> None:
        store = PostgresStore(database)
        await store.open()
        async with store._transaction() as connection:
            await connection.execute("UPDATE schema_version SET version = 99")
        await store.close()
        with pytest.raises(SchemaTooNew):
            await PostgresStore(database).open()

    asyncio.run(scenario())


def test_a_migration_that_fails_leaves_everything_as_it_was(tmp_path, next_version):
    asyncio.run(fill(SqliteStore(tmp_path)))
    next_version(schema.Migration(NEWEST + 1, ["CREATE TABLE fine (x)", "CREATE nonsense"]))

    async def scenario() -> None:
        store = SqliteStore(tmp_path)
        with pytest.raises(StoreUnavailable):
            await store.open()
        await store.close()

    asyncio.run(scenario())
    with opened(tmp_path / FILE_NAME) as connection:
        assert connection.execute("SELECT version FROM schema_version").fetchall() == [(NEWEST,)]
        assert "fine" not in {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}


def test_replicas_that_start_together_migrate_once(database):
    async def scenario() -> None:
        stores = [PostgresStore(database, pool_size=2) for _ in range(4)]
        await asyncio.gather(*(store.open() for store in stores))
        for store in stores:
            await store.close()

    asyncio.run(scenario())


def test_both_dialects_have_the_same_migrations():
    numbers = [[migration.number for migration in schema.migrations(dialect)] for dialect in ("sqlite", "postgres")]
    assert numbers[0] == numbers[1] == list(range(1, NEWEST + 1))


def test_a_second_server_on_a_directory_is_refused(tmp_path):
    async def scenario() -> None:
        first = SqliteStore(tmp_path)
        await first.open()
        with pytest.raises(StoreUnavailable, match="another server"):
            await SqliteStore(tmp_path).open()
        await first.close()
        again = SqliteStore(tmp_path)
        await again.open()
        await again.close()

    asyncio.run(scenario())


def test_a_file_that_is_no_database_is_told(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"this is not a database " * 1000)

    async def scenario() -> None:
        store = SqliteStore(tmp_path)
        with pytest.raises(StoreUnavailable):
            await store.open()
        await store.close()

    asyncio.run(scenario())
    assert sqlite3.sqlite_version_info >= (3, 37)  # STRICT tables
