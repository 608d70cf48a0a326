"""The operations of the SQLite store as functions on a connection, each one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from fedbandit.errors import AlreadyExists, UnknownAgent, UnknownModel
from fedbandit.service.exchange.ledger import FORGOTTEN, MAX_RETIRED, Fold, IncomingUpload
from fedbandit.service.model import Model
from fedbandit.service.stores import rows
from fedbandit.service.stores.base import (
    MAX_EVENTS,
    MAX_SAMPLES,
    AgentPage,
    AgentRecord,
    Event,
    FleetSummary,
    HistoryEntry,
    MergedBatch,
    ModelState,
    PageQuery,
    Principal,
    Role,
    Sample,
)
from fedbandit.wire.settings import ModelSettings


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end, or roll back after an error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # A failed COMMIT may have ended the transaction by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


# -- models


def create(connection: sqlite3.Connection, settings: ModelSettings, uid: str, now: float) -> Model:
    with transaction(connection):
        try:
            connection.execute(
                "INSERT INTO models (name, uid, settings, created, state) VALUES (?, ?, ?, ?, ?)",
                (settings.name, uid, settings.to_json(), now, settings.prior()),
            )
        except sqlite3.IntegrityError:
            raise AlreadyExists(f"there is a model {settings.name!r} already") from None
    return Model(settings, uid, now)


def models(connection: sqlite3.Connection) -> list[Model]:
    return [rows.model_of(row) for row in connection.execute(f"SELECT {rows.MODEL_COLUMNS} FROM models ORDER BY name")]


def load(connection: sqlite3.Connection, model: str) -> Model:
    return rows.model_of(_model_row(connection, model))


def state(connection: sqlite3.Connection, model: str) -> ModelState:
    row = _model_row(connection, model, ", state")
    return ModelState(rows.model_of(row), row[-1])


def delete(connection: sqlite3.Connection, model: str) -> None:
    with transaction(connection):
        if connection.execute("DELETE FROM models WHERE name = ?", (model,)).rowcount == 0:
            raise UnknownModel(f"there is no model {model!r}")


def _model_row(connection: sqlite3.Connection, model: str, more: str = "") -> rows.Row:
    query = f"SELECT {rows.MODEL_COLUMNS}{more} FROM models WHERE name = ?"
    row: rows.Row | None = connection.execute(query, (model,)).fetchone()
    if row is None:
        raise UnknownModel(f"there is no model {model!r}")
    return row


# -- the exchange

_SET_AGENT = (
    "UPDATE agents SET incarnation = ?, sequence = ?, digest = ?, n_uploads = ?, n_obs = ?, reward_sum = ?, "
    "n_bytes = ?, growth = ?, growth_most = ?, unsent = ?, model_version = ?, last_seen = ?, total = ? WHERE id = ?"
)
_SET_MODEL = (
    "UPDATE models SET version = ?, n_uploads = ?, n_bytes = ?, n_obs = ?, reward_sum = ?, reward_sq_sum = ?, "
    "growth_n = ?, growth_block = ?, growth_previous = ?, growth_most = ?, generation = ?, state = ? WHERE id = ?"
)


def merge(connection: sqlite3.Connection, model: str, batch: Sequence[IncomingUpload], now: float) -> MergedBatch:
    with transaction(connection):
        row = _model_row(connection, model, ", state")
        before, packed = rows.model_of(row), row[-1]
        fold = _fold(connection, row[0], before, packed, batch)
        outcomes = fold.run(batch, now=now)
        if not fold.n_uploads:
            return MergedBatch(before, packed, outcomes, 0)
        after, packed = rows.folded(before, fold)
        connection.executemany(_SET_AGENT, [rows.agent_values(agent) for agent in fold.changed.values()])
        retired = {(fold.agents[name].id, incarnation): why for (name, incarnation), why in fold.newly_retired.items()}
        _retire(connection, retired, now)
        connection.execute(_SET_MODEL, (*rows.model_values(after, packed), row[0]))
    return MergedBatch(after, packed, outcomes, fold.n_uploads)


def _fold(
    connection: sqlite3.Connection, model_id: int, model: Model, packed: bytes, batch: Sequence[IncomingUpload]
) -> Fold:
    names = list({upload.agent for upload in batch})
    places = ", ".join("?" * len(names))
    query = f"SELECT {rows.LEDGER_COLUMNS} FROM agents WHERE model_id = ? AND name IN ({places})"
    agents = rows.ledger_of(connection.execute(query, (model_id, *names)))
    retired = {}
    for agent, incarnation in rows.incarnations_to_look_up(batch, agents):
        query = "SELECT reason FROM retired WHERE agent_id = ? AND incarnation = ?"
        found = connection.execute(query, (agent.id, incarnation)).fetchone()
        if found is not None:
            retired[agent.name, incarnation] = found[0]
    return rows.fold_of(model, packed, agents, retired)


def _retire(connection: sqlite3.Connection, incarnations: dict[tuple[int, str], str], now: float) -> None:
    if incarnations:
        connection.executemany(
            "INSERT INTO retired (agent_id, incarnation, reason, at) VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET reason = excluded.reason",
            [(agent_id, incarnation, why, now) for (agent_id, incarnation), why in incarnations.items()],
        )
        for agent_id in {agent_id for agent_id, _ in incarnations}:
            connection.execute(rows.TRIM_RETIRED.format(agent="?1", limit=MAX_RETIRED - 1), (agent_id,))


# -- agents


def enroll(connection: sqlite3.Connection, model: str, agent: str, token_hash: bytes, now: float, renew: bool) -> None:
    with transaction(connection):
        model_id = _model_row(connection, model)[0]
        if renew:
            change = "UPDATE agents SET token_hash = ?, revoked = 0 WHERE model_id = ? AND name = ?"
            if connection.execute(change, (token_hash, model_id, agent)).rowcount:
                return
        try:
            connection.execute(
                "INSERT INTO agents (model_id, name, token_hash, created) VALUES (?, ?, ?, ?)",
                (model_id, agent, token_hash, now),
            )
        except sqlite3.IntegrityError:
            raise AlreadyExists(f"there is an agent {agent!r} in model {model!r} already") from None
        connection.execute("UPDATE models SET n_agents = n_agents + 1 WHERE id = ?", (model_id,))


def agent(connection: sqlite3.Connection, model: str, agent: str) -> AgentRecord:
    return rows.agent_of(_agent_row(connection, model, agent, rows.AGENT_COLUMNS))


def agents(connection: sqlite3.Connection, model: str, query: PageQuery) -> AgentPage:
    model_id = _model_row(connection, model)[0]
    where = "model_id = ? AND instr(lower(name), lower(?)) > 0"
    order = f"{rows.ORDER[query.key]} {'DESC' if query.descending else 'ASC'}, name"
    page = connection.execute(
        f"SELECT {rows.AGENT_COLUMNS} FROM agents WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?",
        (model_id, query.search, query.per_page, query.offset),
    ).fetchall()
    total = connection.execute(f"SELECT COUNT(*) FROM agents WHERE {where}", (model_id, query.search)).fetchone()[0]
    return AgentPage([rows.agent_of(row) for row in page], total)


def fleet(connection: sqlite3.Connection, model: str, since: float) -> FleetSummary:
    model_id = _model_row(connection, model)[0]
    query = rows.FLEET.format(since="?1", model="?2")
    return rows.fleet_of(connection.execute(query, (since, model_id)).fetchone())


def contribution(connection: sqlite3.Connection, model: str, agent: str) -> bytes | None:
    total: bytes | None = _agent_row(connection, model, agent, "total")[0]
    return total


def revoke(connection: sqlite3.Connection, model: str, agent: str) -> None:
    with transaction(connection):
        agent_id = _agent_row(connection, model, agent, "id")[0]
        connection.execute("UPDATE agents SET revoked = 1 WHERE id = ?", (agent_id,))


def forget(connection: sqlite3.Connection, model: str, agent: str, now: float) -> Model:
    with transaction(connection):
        row = _model_row(connection, model)
        agent_id, incarnation = _agent_row(connection, model, agent, "id, incarnation")
        if incarnation:
            _retire(connection, {(agent_id, incarnation): FORGOTTEN}, now)
        connection.execute("UPDATE retired SET reason = ? WHERE agent_id = ?", (FORGOTTEN, agent_id))
        connection.execute(rows.CLEAR_AGENT.format(id="?", empty="x''"), (agent_id,))
        return _recomputed(connection, row)


def quarantine(connection: sqlite3.Connection, model: str, agent: str, on: bool) -> Model:
    with transaction(connection):
        row = _model_row(connection, model)
        (agent_id,) = _agent_row(connection, model, agent, "id")
        change = "UPDATE agents SET quarantined = ?1 WHERE id = ?2 AND quarantined <> ?1"
        is_changed = connection.execute(change, (on, agent_id)).rowcount
        return _recomputed(connection, row) if is_changed else rows.model_of(row)


def _recomputed(connection: sqlite3.Connection, row: rows.Row) -> Model:
    """Recompute the state as λI plus the sums of all agents not in quarantine, in the caller's transaction."""
    before = rows.model_of(row)
    total = np.frombuffer(before.settings.prior(), dtype="<f8").copy()
    for (packed,) in connection.execute(rows.COUNTED_SUMS.format(model="?"), (row[0],)):
        total += np.frombuffer(packed, dtype="<f8")
    after = rows.corrected(before, total.tobytes())
    connection.execute(_SET_MODEL, (*rows.model_values(after, total.tobytes()), row[0]))
    return after


def _agent_row(connection: sqlite3.Connection, model: str, agent: str, columns: str) -> rows.Row:
    model_id = _model_row(connection, model)[0]
    query = f"SELECT {columns} FROM agents WHERE model_id = ? AND name = ?"
    row: rows.Row | None = connection.execute(query, (model_id, agent)).fetchone()
    if row is None:
        raise UnknownAgent(f"there is no agent {agent!r} in model {model!r}")
    return row


# -- tokens of people


def put_token(
    connection: sqlite3.Connection, name: str, role: Role, token_hash: bytes, now: float, replace: bool
) -> bool:
    conflict = "DO UPDATE SET role = excluded.role, token_hash = excluded.token_hash, created = excluded.created"
    with transaction(connection):
        cursor = connection.execute(
            "INSERT INTO tokens (name, role, token_hash, created) VALUES (?, ?, ?, ?) "
            f"ON CONFLICT (name) {conflict if replace else 'DO NOTHING'}",
            (name, role, token_hash, now),
        )
        return cursor.rowcount > 0


def find_token(connection: sqlite3.Connection, token_hash: bytes) -> Principal | None:
    query = (
        "SELECT agents.name, models.name, agents.revoked FROM agents JOIN models ON models.id = agents.model_id "
        "WHERE agents.token_hash = ?"
    )
    row = connection.execute(query, (token_hash,)).fetchone()
    if row is not None:
        return Principal("agent", row[0], row[1], bool(row[2]))
    row = connection.execute("SELECT name, role FROM tokens WHERE token_hash = ?", (token_hash,)).fetchone()
    return None if row is None else Principal(row[1], row[0])


def tokens(connection: sqlite3.Connection) -> list[Principal]:
    return [Principal(role, name) for role, name in connection.execute("SELECT role, name FROM tokens ORDER BY name")]


def drop_token(connection: sqlite3.Connection, name: str) -> bool:
    with transaction(connection):
        return connection.execute("DELETE FROM tokens WHERE name = ?", (name,)).rowcount > 0


# -- history


def record(connection: sqlite3.Connection, notes: Sequence[HistoryEntry]) -> None:
    with transaction(connection):
        known: dict[str, int] = dict(connection.execute("SELECT uid, id FROM models"))
        touched = {known[note.uid] for note in notes if note.uid in known}
        for note in notes:
            model_id = known.get(note.uid)
            if model_id is None:
                continue
            if isinstance(note.entry, Event):
                event = note.entry
                connection.execute(
                    "INSERT INTO events (model_id, at, kind, agent, detail) VALUES (?, ?, ?, ?, ?)",
                    (model_id, event.at, event.kind, event.agent, event.detail),
                )
            else:
                places = ", ".join("?" * 9)
                connection.execute(
                    f"INSERT INTO samples (model_id, {rows.SAMPLE_COLUMNS}) VALUES ({places})",
                    (model_id, *rows.sample_values(note.entry)),
                )
        for model_id in touched:
            connection.execute(rows.TRIM_EVENTS.format(model="?1", limit=MAX_EVENTS), (model_id,))
            connection.execute(rows.THIN_SAMPLES.format(model="?1", limit=MAX_SAMPLES), (model_id,))


def events(connection: sqlite3.Connection, model: str, limit: int) -> list[Event]:
    model_id = _model_row(connection, model)[0]
    query = "SELECT at, kind, agent, detail FROM events WHERE model_id = ? ORDER BY id DESC LIMIT ?"
    return [rows.event_of(row) for row in connection.execute(query, (model_id, limit))]


def samples(connection: sqlite3.Connection, model: str) -> list[Sample]:
    model_id = _model_row(connection, model)[0]
    query = f"SELECT {rows.SAMPLE_COLUMNS} FROM samples WHERE model_id = ? ORDER BY id"
    return [rows.sample_of(row) for row in connection.execute(query, (model_id,))]
