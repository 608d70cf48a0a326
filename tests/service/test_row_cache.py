"""What the SQLite writer remembers never differs from what is on disk, whatever happened meanwhile."""

import sqlite3
from contextlib import closing, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit.errors import FedbanditError
from fedbandit.service.exchange.ledger import Acknowledged
from fedbandit.service.stores.sqlite import transactions as jobs
from fedbandit.service.stores.sqlite.row_cache import RowCache
from fedbandit.service.stores.sqlite.store import connect, migrate
from fedbandit.wire.settings import ModelSettings
from tests.service.uploads import TOKEN, incoming

AGENTS = ("a", "b", "c", "d")
TABLES = ("models", "agents", "retired")


class Forgetful(RowCache):
    """Remembers nothing from one batch to the next."""

    def refresh(self, connection):
        self.clear()


def made(path=":memory:"):
    connection = connect(path)
    migrate(connection)
    for model in ("one", "two"):
        chosen = ModelSettings(name=model, dim=3, lam=1.0, alpha=1.0, radius=fb.radius.fixed(0.5))
        jobs.create(connection, chosen, model, 0.0)
        for number, agent in enumerate(AGENTS):
            jobs.enroll(connection, model, agent, token(model, number), 0.0, False)
    return connection


def token(model, number):
    return f"{model}-{number}".encode().ljust(32, b".")


def upload(model, agent, sequence, life=1, *, known=True):
    right = token(model, AGENTS.index(agent)) if agent in AGENTS else TOKEN
    return incoming(agent, sequence, incarnation=f"life-{life}", token=right if known else TOKEN)


def told(outcome):
    return tuple(outcome) if isinstance(outcome, Acknowledged) else (type(outcome).__name__, str(outcome))


def content(connection):
    return {table: connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in TABLES}


uploads = st.tuples(
    st.sampled_from([*AGENTS, "stranger"]), st.integers(1, 4), st.integers(1, 2), st.integers(0, 9).map(bool)
)
batches = st.tuples(st.just("merge"), st.sampled_from(("one", "two")), st.lists(uploads, min_size=1, max_size=6))
changes = st.tuples(
    st.sampled_from(("revoke", "renew", "forget", "delete", "fail")),
    st.sampled_from(("one", "two")),
    st.sampled_from(AGENTS),
)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(st.one_of(batches, batches, changes), max_size=12), room=st.sampled_from((1 << 26, 3000, 0)))
def test_with_and_without_a_memory_everything_is_the_same(steps, room):
    results = []
    for cache in (RowCache(room), Forgetful()):
        with closing(made()) as connection:
            results.append(([played(connection, cache, step) for step in steps], content(connection)))
    assert results[0] == results[1]


def played(connection, cache, step):
    kind, model, what = step
    if kind == "merge":
        batch = [upload(model, *one[:3], known=one[3]) for one in what]
        try:
            merged = jobs.merge(connection, cache, model, batch, 1.0)
        except FedbanditError as error:
            return type(error).__name__
        return [told(outcome) for outcome in merged.outcomes], merged.packed, merged.model
    if kind == "fail":
        return failed(connection, cache, model, what)
    cache.clear()  # as the store does before every other write
    with suppress(FedbanditError):
        if kind == "revoke":
            jobs.revoke(connection, model, what)
        elif kind == "renew":
            jobs.enroll(connection, model, what, token(model, AGENTS.index(what)), 0.0, True)
        elif kind == "forget":
            jobs.forget(connection, model, what, 2.0)
        else:
            jobs.delete(connection, model)
    return None


def failed(connection, cache, model, agent):
    """A batch that is lost between its fold and its commit, as on a full disk."""
    connection.execute("CREATE TEMP TRIGGER full BEFORE UPDATE ON models BEGIN SELECT RAISE(ABORT, 'full'); END")
    try:
        outcomes = jobs.merge(connection, cache, model, [upload(model, agent, s) for s in (1, 2)], 1.0).outcomes
    except (sqlite3.Error, FedbanditError) as error:
        return type(error).__name__
    finally:
        connection.execute("DROP TRIGGER full")
    return [told(outcome) for outcome in outcomes]


def test_what_another_connection_wrote_is_seen(tmp_path):
    cache = RowCache()
    with closing(made(tmp_path / "x.sqlite3")) as connection, closing(sqlite3.connect(tmp_path / "x.sqlite3")) as other:
        (first,) = jobs.merge(connection, cache, "one", [upload("one", "a", 1)], 1.0).outcomes
        assert first == Acknowledged(1, True)
        with other:
            other.execute("UPDATE agents SET revoked = 1 WHERE name = 'a'")
        (second,) = jobs.merge(connection, cache, "one", [upload("one", "a", 2)], 1.0).outcomes
        assert "revoked" in str(second)


def test_rows_that_are_known_are_not_read_again(tmp_path):
    cache = RowCache()
    with closing(made()) as connection:
        jobs.merge(connection, cache, "one", [upload("one", "a", 1)], 1.0)
        asked = []
        connection.set_trace_callback(asked.append)
        jobs.merge(connection, cache, "one", [upload("one", "a", 2)], 1.0)
    assert not [statement for statement in asked if statement.startswith("SELECT")]


@pytest.mark.parametrize("room", [0, 10_000])
def test_memory_is_bounded(room):
    cache = RowCache(room)
    with closing(made()) as connection:
        for number in range(50):
            jobs.enroll(connection, "one", f"more-{number}", b"%032d" % number, 0.0, False)
        for number in range(50):
            batch = [incoming(f"more-{number}", 1, token=b"%032d" % number)]
            assert jobs.merge(connection, cache, "one", batch, 1.0).n_merged == 1
            assert len(cache.get("one").agents) <= 1 + room // 1024
