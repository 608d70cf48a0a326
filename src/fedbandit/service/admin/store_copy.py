"""Copy a whole store from SQLite to PostgreSQL: models, agents, ledgers, tokens and histories, in one transaction."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbandit.durable_files import unlock
from fedbandit.errors import AlreadyExists, FormatError, MissingExtra, StoreUnavailable
from fedbandit.service.stores import schema
from fedbandit.service.stores.sqlite.replacement import FILE_NAME, complete_replacement
from fedbandit.service.stores.sqlite.store import lock_directory

TABLE = re.compile(r"CREATE TABLE (\w+)")
AT_ONCE = 500  # rows


@dataclass(frozen=True, slots=True)
class CopiedStore:
    """What was copied: rows per table, and the observations of all models."""

    n_rows: dict[str, int]
    n_obs: int


def tables() -> list[str]:
    """All tables of the schema, those that others refer to first."""
    found = [TABLE.match(text) for migration in schema.migrations("postgres") for text in migration.statements]
    return [match[1] for match in found if match is not None]


async def copy_to_postgres(data: Path, address: str) -> CopiedStore:
    """Copy the store of a stopped server into an empty database; a failure leaves the database empty."""
    try:
        from fedbandit.service.stores.postgres import PostgresStore
    except ImportError:
        raise MissingExtra("PostgreSQL needs asyncpg: install fedbandit[server,postgres]") from None
    if not (data / FILE_NAME).exists():
        raise StoreUnavailable(f"there is no store in {data}")
    handle = lock_directory(data)
    try:
        complete_replacement(data)
        store = PostgresStore(address, pool_size=1)
        await store.open()
        try:
            with closing(sqlite3.connect(data / FILE_NAME)) as source:
                _require_same_schema(source)
                async with store._transaction() as target:
                    return await _copy(source, target)
        finally:
            await store.close()
    finally:
        unlock(handle)


def _require_same_schema(source: sqlite3.Connection) -> None:
    (version,) = source.execute("SELECT version FROM schema_version").fetchone()
    newest = schema.migrations("sqlite")[-1].number
    if version != newest:
        raise FormatError(
            f"expected a store of schema version {newest}, got {version}; start this version's server on it once"
        )


async def _copy(source: sqlite3.Connection, target: Any) -> CopiedStore:
    n_rows = {}
    for table in tables():
        if await target.fetchval(f"SELECT EXISTS (SELECT 1 FROM {table})"):
            raise AlreadyExists(f"expected an empty database, and its table {table} has rows; nothing was copied")
    for table in tables():
        n_rows[table] = await _copy_table(source, target, table)
    (n_obs,) = source.execute("SELECT COALESCE(SUM(n_obs), 0) FROM models").fetchone()
    copied = await target.fetchval("SELECT COALESCE(SUM(n_obs), 0)::bigint FROM models")
    if copied != n_obs:
        raise StoreUnavailable(f"expected {n_obs} observations in the copy, got {copied}; nothing was copied")
    return CopiedStore(n_rows, n_obs)


async def _copy_table(source: sqlite3.Connection, target: Any, table: str) -> int:
    kinds = {
        row["column_name"]: row["data_type"]
        for row in await target.fetch(
            "SELECT column_name, data_type FROM information_schema.columns "
            "WHERE table_name = $1 AND table_schema = current_schema()",
            table,
        )
    }
    columns = [row[1] for row in source.execute(f"PRAGMA table_info({table})")]
    if set(columns) != set(kinds):
        raise FormatError(f"expected the columns {sorted(kinds)} in table {table}, got {sorted(columns)}")
    places = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    insert = f"INSERT INTO {table} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE VALUES ({places})"
    cursor = source.execute(f"SELECT {', '.join(columns)} FROM {table}")
    n_rows = 0
    while rows := cursor.fetchmany(AT_ONCE):
        values = [
            tuple(bool(value) if kinds[name] == "boolean" else value for name, value in zip(columns, row, strict=True))
            for row in rows
        ]
        await target.executemany(insert, values)
        n_rows += len(rows)
    if "id" in columns and await target.fetchval("SELECT pg_get_serial_sequence($1, 'id')", table):
        await target.execute(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), GREATEST((SELECT MAX(id) FROM {table}), 1))"
        )
    return n_rows
