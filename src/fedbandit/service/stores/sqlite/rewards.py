"""Rewards from anywhere in SQLite: functions on a connection, each one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedbandit.errors import FedbanditError, Forbidden
from fedbandit.service.exchange.ledger import AgentRow
from fedbandit.service.exchange.reported_rewards import Bookings
from fedbandit.service.stores import rewards as rules
from fedbandit.service.stores import rows
from fedbandit.service.stores.enrolments import FOLDED
from fedbandit.service.stores.rewards import KnownReward, Outcome, Owner, Report, Waiting
from fedbandit.service.stores.sqlite.transactions import SET_AGENT, SET_MODEL, model_row

if TYPE_CHECKING:
    from fedbandit.service.stores.sqlite.store import Worker


class SqliteRewards:
    """The part of the SQLite store that rewards from anywhere need."""

    if TYPE_CHECKING:

        @property
        def _write(self) -> Worker: ...
        @property
        def _read(self) -> Worker: ...

    async def token_secret(self, model: str) -> bytes:
        return await self._read.run(lambda connection: bytes(model_row(connection, model, ", token_secret")[-1]))

    async def report(self, model: str, reports: Sequence[Report], *, now: float) -> tuple[list[Outcome], int]:
        return await self._write.change(lambda connection: _report(connection, model, reports, now))

    async def collect(
        self, model: str, agent: str, prefix: str, answers: Sequence[tuple[str, str]], *, now: float
    ) -> Waiting:
        return await self._write.change(lambda connection: _collect(connection, model, agent, prefix, answers, now))


def _report(
    connection: sqlite3.Connection, model: str, reports: Sequence[Report], now: float
) -> tuple[list[Outcome], int]:
    model_id = model_row(connection, model)[0]
    n_expired = _expire(connection, model_id, now)
    row = model_row(connection, model, ", state")
    before = rows.model_of(row)
    state = np.frombuffer(row[-1], dtype="<f8").copy()
    bookings = Bookings(before.settings, state, _owners(connection, model_id, reports), before.epoch, before.clock)
    n_waiting, n_answered = before.n_rewards, before.n_answered
    (horizon,) = connection.execute(rows.GET_HORIZON.format(model="?"), (model_id,)).fetchone() or (0.0,)
    outcomes = []
    for report in reports:
        known, owner = _known(connection, model_id, report), _owner(connection, model_id, report.decision)
        counts = {"n_waiting": n_waiting, "n_kept": n_answered}
        outcome, is_new = rules.decide(report, known, owner, **counts, horizon=horizon, now=now)
        if is_new and report.token is not None:
            refusal = bookings.book((report.token.agent, FOLDED), report.token.numbers)
            outcome, is_new = (outcome, True) if refusal is None else (refusal, False)
        if is_new and not isinstance(outcome, FedbanditError):
            _store(connection, model_id, report, outcome, now)
            change = rules.change_of(known, outcome)
            n_waiting, n_answered = n_waiting + change[0], n_answered + change[1]
        outcomes.append(outcome)
    changes = (n_waiting - before.n_rewards, n_answered - before.n_answered)
    connection.execute(rows.SET_COUNTS.format(*"???"), (*changes, model_id))
    if bookings.changed:
        connection.executemany(SET_AGENT, [rows.agent_values(agent) for agent in bookings.changed.values()])
    if bookings.n_counted:
        after, packed = rows.booked(before, bookings)
        connection.execute(SET_MODEL, (*rows.model_values(after, packed, None), model_id))
    return outcomes, n_expired


def _owners(connection: sqlite3.Connection, model_id: int, reports: Sequence[Report]) -> dict[str, AgentRow]:
    """Rows of the agents whose tokens are in the reports."""
    names = list({FOLDED, *(report.token.agent for report in reports if report.token is not None)})
    if len(names) == 1:
        return {}
    query = f"SELECT {rows.LEDGER_COLUMNS} FROM agents WHERE model_id = ? AND name IN ({', '.join('?' * len(names))})"
    return rows.ledger_of(connection.execute(query, (model_id, *names)))


def _known(connection: sqlite3.Connection, model_id: int, report: Report) -> KnownReward | None:
    query = "SELECT reward, outcome FROM rewards WHERE model_id = ? AND decision = ?"
    row = connection.execute(query, (model_id, report.decision)).fetchone()
    return None if row is None else KnownReward(*row)


def _owner(connection: sqlite3.Connection, model_id: int, decision: str) -> Owner | None:
    query = rows.OWNER.format(model="?", prefix="?")
    row = connection.execute(query, (model_id, rules.owner_prefix(decision))).fetchone()
    return None if row is None else Owner(row[0], is_ended=bool(row[2]), is_forgotten=bool(row[1]))


def _store(connection: sqlite3.Connection, model_id: int, report: Report, outcome: str, now: float) -> None:
    values = rows.reward_values(report, outcome, now)
    connection.execute("REPLACE INTO rewards VALUES (?, ?, ?, ?, ?, ?)", (model_id, *values))


def _expire(connection: sqlite3.Connection, model_id: int, now: float) -> int:
    """Remove what is too old; how many of them no owner had collected."""
    (removed,) = connection.execute(rows.REMOVED.format(model="?", now="?"), (model_id, now)).fetchone()
    if removed is not None:
        connection.execute(rows.SET_HORIZON.format(model="?", until="?"), (model_id, removed))
    remove = "DELETE FROM rewards WHERE model_id = ? AND until < ? AND outcome {} ''"
    n_waiting = connection.execute(remove.format("="), (model_id, now)).rowcount
    n_answered = connection.execute(remove.format("<>"), (model_id, now)).rowcount
    if n_waiting or n_answered:
        connection.execute(rows.SET_COUNTS.format(*"???"), (-n_waiting, -n_answered, model_id))
    return n_waiting


def _collect(
    connection: sqlite3.Connection, model: str, agent: str, prefix: str, answers: Sequence[tuple[str, str]], now: float
) -> Waiting:
    model_id = model_row(connection, model)[0]
    register = "INSERT INTO owners (model_id, prefix, agent) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
    connection.execute(register, (model_id, prefix, agent))
    query = "SELECT agent FROM owners WHERE model_id = ? AND prefix = ?"
    (owner,) = connection.execute(query, (model_id, prefix)).fetchone()
    if owner != agent:
        raise Forbidden(f"decisions with the prefix {prefix!r} belong to another agent")
    n_answered = 0
    for decision, outcome in answers:
        values = (outcome, now + rules.ANSWERED_S, model_id, decision, prefix)
        n_answered += connection.execute(rows.ANSWER.format(*"?????"), values).rowcount
    connection.execute(rows.SET_COUNTS.format(*"???"), (-n_answered, n_answered, model_id))
    query = rows.WAITING_REWARDS.format(model="?", prefix="?", limit="?")
    found = connection.execute(query, (model_id, prefix, rules.MAX_COLLECTED)).fetchall()
    return Waiting(
        [(decision, reward) for decision, reward in found], rows.model_of(model_row(connection, model)).n_rewards
    )
