"""Merging a batch in SQLite: every transaction starts from what is on disk."""

import sqlite3
from contextlib import closing

import pytest

from fedbandit.service.exchange.ledger import Acknowledged
from fedbandit.service.stores.sqlite import transactions
from fedbandit.service.stores.sqlite.store import connect, migrate
from tests.service.uploads import TOKEN, folded, incoming, settings

TABLES = ("models", "agents", "retired")


def made(path):
    connection = connect(path)
    migrate(connection)
    transactions.create(connection, settings(), "uid", 0.0)
    transactions.enroll(connection, "news", "a", TOKEN, 0.0, False)
    return connection


def merge(connection, *sequences):
    return transactions.merge(connection, "news", [incoming("a", sequence) for sequence in sequences], 1.0)


def content(connection):
    return {table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in TABLES}


def test_what_another_connection_wrote_is_seen(tmp_path):
    path = tmp_path / "x.sqlite3"
    with closing(made(path)) as connection, closing(sqlite3.connect(path)) as other:
        assert merge(connection, 1).outcomes == [Acknowledged(1, True)]
        with other:
            other.execute("UPDATE agents SET revoked = 1 WHERE name = 'a'")
        (refusal,) = merge(connection, 2).outcomes
        assert "revoked" in str(refusal)


def test_a_batch_that_fails_before_its_commit_leaves_nothing_and_can_be_sent_again(tmp_path):
    with closing(made(tmp_path / "x.sqlite3")) as connection:
        merge(connection, 1)
        before = content(connection)
        connection.execute("CREATE TEMP TRIGGER full BEFORE UPDATE ON models BEGIN SELECT RAISE(ABORT, 'full'); END")
        with pytest.raises(sqlite3.Error, match="full"):
            merge(connection, 2, 3)
        connection.execute("DROP TRIGGER full")
        assert content(connection) == before
        merged = merge(connection, 1, 2, 3)
        assert merged.outcomes == [Acknowledged(3, False), Acknowledged(3, True), Acknowledged(3, True)]
        assert merged.packed == folded(*(incoming("a", sequence) for sequence in (1, 2, 3)))
