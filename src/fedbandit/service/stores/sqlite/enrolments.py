"""Enrolment in SQLite: functions on a connection, each one transaction."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from fedbandit.errors import (
    AlreadyExists,
    InvalidParameter,
    Unauthenticated,
    UnknownAgent,
    UnknownEnrolment,
    UnknownModel,
)
from fedbandit.service.stores import enrolments as rules
from fedbandit.service.stores import rows
from fedbandit.service.stores.enrolments import EnrolledAgent, Enrolment, Redeemed, Redemption
from fedbandit.service.stores.sqlite.transactions import load

if TYPE_CHECKING:
    from fedbandit.service.stores.sqlite.store import Worker


class SqliteEnrolments:
    """The part of the SQLite store that machines which come and go need."""

    if TYPE_CHECKING:

        @property
        def _write(self) -> Worker: ...
        @property
        def _read(self) -> Worker: ...

    async def create_enrolment(self, model: str, enrolment: Enrolment, secret_hash: bytes, *, now: float) -> None:
        await self._write.change(lambda connection: _create(connection, model, enrolment, secret_hash, now))

    async def enrolments(self, model: str) -> list[Enrolment]:
        return await self._read.run(lambda connection: _all(connection, _model_id(connection, model)))

    async def revoke_enrolment(self, model: str, name: str) -> None:
        await self._write.change(lambda connection: _revoke(connection, model, name))

    async def redeem(self, model: str, wanted: Redemption, *, now: float) -> Redeemed:
        return await self._write.change(lambda connection: _redeem(connection, model, wanted, now))

    async def start(self, model: str, agent: str, *, previous: str, session: str) -> None:
        await self._write.change(lambda connection: _start(connection, model, agent, previous, session))

    async def retire(self, model: str, agent: str, *, on: bool, now: float) -> None:
        await self._write.change(lambda connection: _retire(connection, model, agent, on, now))

    async def silent(self, model: str, *, before: float, limit: int) -> list[str]:
        query = rows.SILENT.format(model="?", before="?", limit="?")
        return await self._read.run(
            lambda connection: [
                name for (name,) in connection.execute(query, (_model_id(connection, model), before, limit))
            ]
        )

    async def fold_retired(self, model: str, *, before: float, token_hash: bytes, now: float) -> int:
        return await self._write.change(lambda connection: _fold(connection, model, before, token_hash, now))


def _model_id(connection: sqlite3.Connection, model: str) -> int:
    row = connection.execute("SELECT id FROM models WHERE name = ?", (model,)).fetchone()
    if row is None:
        raise UnknownModel(f"there is no model {model!r}")
    return int(row[0])


def _all(connection: sqlite3.Connection, model_id: int) -> list[Enrolment]:
    query = f"SELECT {rows.ENROLMENT_COLUMNS} FROM enrolments WHERE model_id = ? ORDER BY name"
    return [rows.enrolment_of(row) for row in connection.execute(query, (model_id,))]


def _create(connection: sqlite3.Connection, model: str, new: Enrolment, secret_hash: bytes, now: float) -> None:
    model_id = _model_id(connection, model)
    connection.execute(rows.REMOVE_ENDED.format(model="?", before="?"), (model_id, now - rules.KEPT_S))
    if len(_all(connection, model_id)) >= rules.MAX_ENROLMENTS:
        raise InvalidParameter(f"expected at most {rules.MAX_ENROLMENTS} enrolments of a model; revoke old ones")
    values = (model_id, new.name, secret_hash, new.name_prefix, new.max_uses, new.created, new.expires)
    try:
        connection.execute(
            "INSERT INTO enrolments (model_id, name, secret_hash, name_prefix, max_uses, created, expires) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            values,
        )
    except sqlite3.IntegrityError:
        raise AlreadyExists(f"there is an enrolment {new.name!r} in model {model!r} already") from None


def _revoke(connection: sqlite3.Connection, model: str, name: str) -> None:
    change = "UPDATE enrolments SET revoked = 1 WHERE model_id = ? AND name = ?"
    if not connection.execute(change, (_model_id(connection, model), name)).rowcount:
        raise UnknownEnrolment(f"there is no enrolment {name!r} in model {model!r}")


def _redeem(connection: sqlite3.Connection, model: str, wanted: Redemption, now: float) -> Redeemed:
    model_id = _model_id(connection, model)
    query = f"SELECT {rows.ENROLMENT_COLUMNS}, id, secret_hash FROM enrolments WHERE model_id = ? AND secret_hash = ?"
    row = connection.execute(query, (model_id, wanted.secret_hash)).fetchone()
    if row is None:
        raise Unauthenticated("this enrolment is not known here")
    rules.require_secret(row[-1], wanted.secret_hash)
    enrolment = rows.enrolment_of(row[:-2])
    query = "SELECT name, token_hash, revoked, retired IS NOT NULL FROM agents WHERE model_id = ? AND enrol_key = ?"
    known = connection.execute(query, (model_id, wanted.nonce_hash)).fetchone()
    if known is not None:
        return EnrolledAgent(*known).answer(wanted, enrolment.name)
    enrolment.require_active(now)
    require_free(connection, model_id, wanted.agent)
    values = (model_id, wanted.agent, wanted.token_hash, now, enrolment.name, wanted.nonce_hash)
    try:
        connection.execute(
            "INSERT INTO agents (model_id, name, token_hash, created, enrolment, enrol_key) VALUES (?, ?, ?, ?, ?, ?)",
            values,
        )
    except sqlite3.IntegrityError:
        raise AlreadyExists(f"there is an agent {wanted.agent!r} in model {model!r} already") from None
    connection.execute("UPDATE enrolments SET n_used = n_used + 1 WHERE id = ?", (row[-2],))
    connection.execute("UPDATE models SET n_agents = n_agents + 1 WHERE id = ?", (model_id,))
    return Redeemed(wanted.agent, enrolment.name, is_new=True)


def require_free(connection: sqlite3.Connection, model_id: int, agent: str) -> None:
    """Raise `AlreadyExists` if an agent of this name was folded."""
    query = "SELECT 1 FROM folded WHERE model_id = ? AND name_hash = ?"
    if connection.execute(query, (model_id, rules.name_hash(agent))).fetchone() is not None:
        raise AlreadyExists(rows.was_folded(agent))


def _agent(connection: sqlite3.Connection, model: str, agent: str, columns: str) -> rows.Row:
    query = f"SELECT {columns} FROM agents WHERE model_id = ? AND name = ?"
    row: rows.Row | None = connection.execute(query, (_model_id(connection, model), agent)).fetchone()
    if row is None:
        raise UnknownAgent(f"there is no agent {agent!r} in model {model!r}")
    return row


def _start(connection: sqlite3.Connection, model: str, agent: str, previous: str, session: str) -> None:
    agent_id, known = _agent(connection, model, agent, "id, session")
    after = rules.next_session(known, previous, session, agent)
    connection.execute("UPDATE agents SET session = ? WHERE id = ?", (after, agent_id))


def _retire(connection: sqlite3.Connection, model: str, agent: str, on: bool, now: float) -> None:
    agent_id, model_id, retired = _agent(connection, model, agent, "id, model_id, retired")
    if (retired is not None) == on or agent == rules.FOLDED:
        return
    connection.execute(
        "UPDATE agents SET retired = ?, revoked = ?, unsent = 0 WHERE id = ?", (now if on else None, on, agent_id)
    )
    n = 1 if on else -1
    connection.execute(
        "UPDATE models SET n_agents = n_agents - ?1, n_retired = n_retired + ?1 WHERE id = ?2", (n, model_id)
    )


def _fold(connection: sqlite3.Connection, model: str, before: float, token_hash: bytes, now: float) -> int:
    model_id = _model_id(connection, model)
    query = rows.TO_FOLD.format(model="?", name="?", before="?", limit="?", false="0")
    found = connection.execute(query, (model_id, rules.FOLDED, before, rules.MAX_FOLDED)).fetchall()
    if not found:
        return 0
    query = f"SELECT {rows.FOLD_COLUMNS} FROM agents WHERE model_id = ? AND name = ?"
    held = connection.execute(query, (model_id, rules.FOLDED)).fetchone()
    if held is None:
        connection.execute(
            "INSERT INTO agents (model_id, name, token_hash, created, revoked, retired) VALUES (?, ?, ?, ?, 1, ?)",
            (model_id, rules.FOLDED, token_hash, now, now),
        )
    values = rows.folded_sums(load(connection, model), [*found, *([] if held is None else [held])])
    connection.execute(rows.SET_FOLDED.format(*["?"] * 13), (*values, model_id, rules.FOLDED))
    connection.executemany(
        "INSERT INTO folded VALUES (?, ?) ON CONFLICT DO NOTHING",
        [(model_id, rules.name_hash(row[1])) for row in found],
    )
    connection.executemany("DELETE FROM agents WHERE id = ?", [(row[0],) for row in found])
    return len(found)
