"""The operations of the SQLite store as functions on a connection, each one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fedbandit.core.group_sums import NO_GROUPS, GroupSums
from fedbandit.errors import AlreadyExists, UnknownAgent, UnknownModel
from fedbandit.service.exchange.ledger import FORGOTTEN, MAX_RETIRED, Fold, IncomingUpload
from fedbandit.service.model import Model
from fedbandit.service.stores import rows
from fedbandit.service.stores.base import (
    MAX_EVENTS,
    MAX_SAMPLES,
    AgentPage,
    AgentRecord,
    AgentSum,
    Contact,
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
from fedbandit.service.stores.checkpoints import Checkpoint, KeptCheckpoint, make_room
from fedbandit.service.stores.enrolments import name_hash
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
    return rows.model_of(model_row(connection, model))


def state(connection: sqlite3.Connection, model: str) -> ModelState:
    row = model_row(connection, model, ", state")
    return ModelState(rows.model_of(row), row[-1])


def configure(connection: sqlite3.Connection, model: str, before: ModelSettings, after: ModelSettings) -> bool:
    with transaction(connection):
        row = model_row(connection, model)
        if rows.model_of(row).settings != before:
            return False
        connection.execute("UPDATE models SET settings = ? WHERE id = ?", (after.to_json(), row[0]))
        return True


def delete(connection: sqlite3.Connection, model: str) -> None:
    with transaction(connection):
        if connection.execute("DELETE FROM models WHERE name = ?", (model,)).rowcount == 0:
            raise UnknownModel(f"there is no model {model!r}")


def model_row(connection: sqlite3.Connection, model: str, more: str = "") -> rows.Row:
    query = f"SELECT {rows.MODEL_COLUMNS}{more} FROM models WHERE name = ?"
    row: rows.Row | None = connection.execute(query, (model,)).fetchone()
    if row is None:
        raise UnknownModel(f"there is no model {model!r}")
    return row


# -- the exchange

SET_AGENT = (
    "UPDATE agents SET incarnation = ?, sequence = ?, digest = ?, n_uploads = ?, n_obs = ?, reward_sum = ?, "
    "n_bytes = ?, growth = ?, growth_most = ?, unsent = ?, model_version = ?, last_seen = ?, reward_groups = ?, "
    "n_discarded = ?, epoch = ?, stamp = ?, total = ? WHERE id = ?"
)
SET_MODEL = (
    "UPDATE models SET version = ?, n_uploads = ?, n_bytes = ?, n_obs = ?, reward_sum = ?, reward_sq_sum = ?, "
    "growth_n = ?, growth_block = ?, growth_previous = ?, growth_most = ?, generation = ?, reward_groups = ?, "
    "epoch = ?, clock = ?, n_discarded = ?, state = ?, detector = ? WHERE id = ?"
)


def merge(connection: sqlite3.Connection, model: str, batch: Sequence[IncomingUpload], now: float) -> MergedBatch:
    with transaction(connection):
        row = model_row(connection, model, ", state, detector")
        before, packed, detector = rows.model_of(row), row[-2], row[-1]
        fold = _fold(connection, row[0], before, packed, detector, batch)
        outcomes = fold.run(batch, now=now)
        if not fold.n_uploads:
            return MergedBatch(before, packed, outcomes, 0)
        after, packed, detector = rows.folded(before, fold)
        connection.executemany(SET_AGENT, [rows.agent_values(agent) for agent in fold.changed.values()])
        if fold.newly_retired:
            found = fold.newly_retired.items()
            _retire(connection, {(fold.agents[name].id, incarnation): why for (name, incarnation), why in found}, now)
        connection.execute(SET_MODEL, (*rows.model_values(after, packed, detector), row[0]))
    return MergedBatch(after, packed, outcomes, fold.n_uploads, fold.world.restarts)


def restart(connection: sqlite3.Connection, model: str) -> Model:
    with transaction(connection):
        row = model_row(connection, model)
        after, packed = rows.restarted(rows.model_of(row))
        connection.execute(SET_MODEL, (*rows.model_values(after, packed, None), row[0]))
    return after


def _fold(
    connection: sqlite3.Connection,
    model_id: int,
    model: Model,
    packed: bytes,
    detector: bytes | None,
    batch: Sequence[IncomingUpload],
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
    return rows.fold_of(model, packed, detector, agents, retired)


def _retire(connection: sqlite3.Connection, incarnations: dict[tuple[int, str], str], now: float) -> None:
    connection.executemany(
        "INSERT INTO retired (agent_id, incarnation, reason, at) VALUES (?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET reason = excluded.reason",
        [(agent_id, incarnation, why, now) for (agent_id, incarnation), why in incarnations.items()],
    )
    for agent_id in {agent_id for agent_id, _ in incarnations}:
        connection.execute(rows.TRIM_RETIRED.format(agent="?1", limit=MAX_RETIRED - 1), (agent_id,))


# -- agents


def enroll(
    connection: sqlite3.Connection,
    model: str,
    agent: str,
    token_hash: bytes,
    now: float,
    renew: bool,
    old_until: float | None = None,
) -> None:
    with transaction(connection):
        model_id = model_row(connection, model)[0]
        if renew:
            connection.execute(rows.COUNT_AGAIN.format(model="?1", agent="?2"), (model_id, agent))
            change = rows.RENEW.format(token="?1", until="?2", model="?3", agent="?4", false="0")
            if connection.execute(change, (token_hash, old_until, model_id, agent)).rowcount:
                return
        query = "SELECT 1 FROM folded WHERE model_id = ? AND name_hash = ?"
        if connection.execute(query, (model_id, name_hash(agent))).fetchone() is not None:
            raise AlreadyExists(rows.was_folded(agent))
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
    model_id = model_row(connection, model)[0]
    where = f"model_id = ? AND instr(lower(name), lower(?)) > 0{rows.kind_of_agents(query.retired)}"
    order = f"{rows.ORDER[query.key]} {'DESC' if query.descending else 'ASC'}, name"
    page = connection.execute(
        f"SELECT {rows.AGENT_COLUMNS} FROM agents WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?",
        (model_id, query.search, query.per_page, query.offset),
    ).fetchall()
    total = connection.execute(f"SELECT COUNT(*) FROM agents WHERE {where}", (model_id, query.search)).fetchone()[0]
    return AgentPage([rows.agent_of(row) for row in page], total)


def fleet(connection: sqlite3.Connection, model: str, since: float) -> FleetSummary:
    model_id = model_row(connection, model)[0]
    query = rows.FLEET.format(since="?1", model="?2")
    return rows.fleet_of(connection.execute(query, (since, model_id)).fetchone())


def contribution(connection: sqlite3.Connection, model: str, agent: str) -> bytes | None:
    return rows.contribution_of(load(connection, model), *_agent_row(connection, model, agent, "total, epoch, stamp"))


def counted_sums(connection: sqlite3.Connection, model: str, limit: int) -> list[AgentSum]:
    model_id = model_row(connection, model)[0]
    query = rows.LARGEST_SUMS.format(model="?1", limit="?2")
    return [AgentSum(*row) for row in connection.execute(query, (model_id, limit))]


def revoke(connection: sqlite3.Connection, model: str, agent: str) -> None:
    with transaction(connection):
        agent_id = _agent_row(connection, model, agent, "id")[0]
        connection.execute("UPDATE agents SET revoked = 1 WHERE id = ?", (agent_id,))


def forget(connection: sqlite3.Connection, model: str, agent: str, now: float) -> Model:
    with transaction(connection):
        agent_id, incarnation = _agent_row(connection, model, agent, "id, incarnation")
        for change in rows.FORGET_REWARDS:
            connection.execute(change.format(model="?1", agent="?2"), (model_row(connection, model)[0], agent))
        row = model_row(connection, model)
        if incarnation:
            _retire(connection, {(agent_id, incarnation): FORGOTTEN}, now)
        connection.execute("UPDATE retired SET reason = ? WHERE agent_id = ?", (FORGOTTEN, agent_id))
        connection.execute(rows.CLEAR_AGENT.format(id="?", empty="x''"), (agent_id,))
        return _recomputed(connection, row)


def quarantine(connection: sqlite3.Connection, model: str, agent: str, on: bool) -> Model:
    with transaction(connection):
        row = model_row(connection, model)
        (agent_id,) = _agent_row(connection, model, agent, "id")
        change = "UPDATE agents SET quarantined = ?1 WHERE id = ?2 AND quarantined <> ?1"
        is_changed = connection.execute(change, (on, agent_id)).rowcount
        return _recomputed(connection, row) if is_changed else rows.model_of(row)


def widen(connection: sqlite3.Connection, model: str, change: Widening) -> Model:
    with transaction(connection):
        row = model_row(connection, model)
        packed, tests = connection.execute("SELECT state, detector FROM models WHERE id = ?", (row[0],)).fetchone()
        after, state, detector = rows.widened_model(rows.model_of(row), packed, tests, change)
        connection.execute(SET_MODEL, (*rows.model_values(after, state, detector), row[0]))
        connection.execute("UPDATE models SET settings = ? WHERE id = ?", (after.settings.to_json(), row[0]))
        sums = "SELECT id, total FROM agents WHERE model_id = ? AND total IS NOT NULL"
        for agent_id, total in connection.execute(sums, (row[0],)).fetchall():
            wider = rows.widened_sum(total, after.settings)
            connection.execute("UPDATE agents SET total = ? WHERE id = ?", (wider, agent_id))
        connection.execute("DELETE FROM checkpoints WHERE model_id = ?", (row[0],))
        return after


def _recomputed(connection: sqlite3.Connection, row: rows.Row) -> Model:
    """Recompute the state as λI plus the sums of all agents not in quarantine, in the caller's transaction."""
    before = rows.model_of(row)
    found = connection.execute(rows.COUNTED_SUMS.format(model="?1"), (row[0],)).fetchall()
    packed = rows.recomputed(before, ((total, stamp) for total, stamp, _ in found))
    groups = sum((GroupSums.from_bytes(of_agent) for _, _, of_agent in found), start=NO_GROUPS)
    after = rows.corrected(before, packed, groups)
    connection.execute(SET_MODEL, (*rows.model_values(after, packed, None), row[0]))
    return after


def _agent_row(connection: sqlite3.Connection, model: str, agent: str, columns: str) -> rows.Row:
    model_id = model_row(connection, model)[0]
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
        "SELECT agents.name, models.name, agents.revoked, agents.retired IS NOT NULL, NULL FROM agents "
        "JOIN models ON models.id = agents.model_id WHERE agents.token_hash = ?1 "
        "UNION ALL SELECT agents.name, models.name, agents.revoked, agents.retired IS NOT NULL, old_token_until "
        "FROM agents JOIN models ON models.id = agents.model_id WHERE agents.old_token_hash = ?1"
    )
    row = connection.execute(query, (token_hash,)).fetchone()
    if row is not None:
        return Principal("agent", row[0], row[1], bool(row[2]), bool(row[3]), row[4])
    query = (
        "SELECT name, role, '' FROM tokens WHERE token_hash = ?1 "
        "UNION ALL SELECT enrolments.name, 'enrolment', models.name FROM enrolments "
        "JOIN models ON models.id = enrolments.model_id WHERE secret_hash = ?1"
    )
    row = connection.execute(query, (token_hash,)).fetchone()
    return None if row is None else Principal(row[1], row[0], row[2])


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
            if isinstance(note.entry, Contact):
                seen = rows.SEEN.format(at="?1", model="?2", agent="?3")
                connection.execute(seen, (note.entry.at, model_id, note.entry.agent))
            elif isinstance(note.entry, Event):
                event = note.entry
                connection.execute(
                    "INSERT INTO events (model_id, at, kind, agent, detail) VALUES (?, ?, ?, ?, ?)",
                    (model_id, event.at, event.kind, event.agent, event.detail),
                )
            elif isinstance(note.entry, Checkpoint):
                _keep(connection, model_id, note.entry)
            else:
                places = ", ".join("?" * 9)
                connection.execute(
                    f"INSERT INTO samples (model_id, {rows.SAMPLE_COLUMNS}) VALUES ({places})",
                    (model_id, *rows.sample_values(note.entry)),
                )
        for model_id in touched:
            connection.execute(rows.TRIM_EVENTS.format(model="?1", limit=MAX_EVENTS), (model_id,))
            connection.execute(rows.THIN_SAMPLES.format(model="?1", limit=MAX_SAMPLES), (model_id,))


def _keep(connection: sqlite3.Connection, model_id: int, new: Checkpoint) -> None:
    kept = [KeptCheckpoint(*row) for row in connection.execute(rows.KEPT_CHECKPOINTS.format(model="?"), (model_id,))]
    is_kept, gone = make_room(kept, new)
    connection.executemany("DELETE FROM checkpoints WHERE id = ?", [(key,) for key in gone])
    if is_kept:
        connection.execute(
            f"INSERT INTO checkpoints (model_id, {rows.CHECKPOINT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
            (model_id, *rows.checkpoint_values(new)),
        )


def events(connection: sqlite3.Connection, model: str, limit: int) -> list[Event]:
    model_id = model_row(connection, model)[0]
    query = "SELECT at, kind, agent, detail FROM events WHERE model_id = ? ORDER BY id DESC LIMIT ?"
    return [rows.event_of(row) for row in connection.execute(query, (model_id, limit))]


def samples(connection: sqlite3.Connection, model: str) -> list[Sample]:
    model_id = model_row(connection, model)[0]
    query = f"SELECT {rows.SAMPLE_COLUMNS} FROM samples WHERE model_id = ? ORDER BY id"
    return [rows.sample_of(row) for row in connection.execute(query, (model_id,))]


def checkpoints(connection: sqlite3.Connection, model: str) -> list[Checkpoint]:
    model_id = model_row(connection, model)[0]
    query = f"SELECT {rows.CHECKPOINT_COLUMNS} FROM checkpoints WHERE model_id = ? ORDER BY id"
    return [rows.checkpoint_of(row) for row in connection.execute(query, (model_id,))]
