"""Rewards from anywhere in PostgreSQL. The row of the model is locked first, as by a fold of uploads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from fedbandit.errors import FedbanditError, Forbidden, UnknownModel
from fedbandit.service.exchange.ledger import AgentRow
from fedbandit.service.exchange.reported_rewards import Bookings
from fedbandit.service.model import Model
from fedbandit.service.stores import rewards as rules
from fedbandit.service.stores import rows
from fedbandit.service.stores.enrolments import FOLDED
from fedbandit.service.stores.rewards import KnownReward, Outcome, Owner, Report, Waiting

NUL = "\0"


class PostgresRewards:
    """The part of the PostgreSQL store that rewards from anywhere need."""

    if TYPE_CHECKING:

        def _transaction(self) -> AbstractAsyncContextManager[Any]: ...
        def _connection(self) -> AbstractAsyncContextManager[Any]: ...
        async def _write(
            self, connection: Any, agents: Sequence[AgentRow], model: Model, packed: bytes, model_id: int
        ) -> None: ...

    async def token_secret(self, model: str) -> bytes:
        async with self._connection() as connection:
            return bytes((await _row(connection, model, "token_secret"))["token_secret"])

    async def report(self, model: str, reports: Sequence[Report], *, now: float) -> tuple[list[Outcome], int]:
        async with self._transaction() as connection:
            model_id = (await _row(connection, model, "id", lock=True))["id"]
            n_expired = await _expire(connection, model_id, now)
            row = await _row(connection, model, f"{rows.MODEL_COLUMNS}, state")
            before = rows.model_of(row)
            state = np.frombuffer(row["state"], dtype="<f8").copy()
            bookings = Bookings(
                before.settings, state, await _agents(connection, model_id, reports), before.epoch, before.clock
            )
            n_waiting, n_answered = before.n_rewards, before.n_answered
            horizon = await connection.fetchval(rows.GET_HORIZON.format(model="$1"), model_id) or 0.0
            outcomes = []
            for report in reports:
                known = await _known(connection, model_id, report)
                owner = await _owner(connection, model_id, report.decision)
                counts = {"n_waiting": n_waiting, "n_kept": n_answered}
                outcome, is_new = rules.decide(report, known, owner, **counts, horizon=horizon, now=now)
                if is_new and report.token is not None:
                    refusal = bookings.book((report.token.agent, FOLDED), report.token.numbers)
                    outcome, is_new = (outcome, True) if refusal is None else (refusal, False)
                if is_new and not isinstance(outcome, FedbanditError):
                    await _store(connection, model_id, report, outcome, now)
                    change = rules.change_of(known, outcome)
                    n_waiting, n_answered = n_waiting + change[0], n_answered + change[1]
                outcomes.append(outcome)
            changes = (n_waiting - before.n_rewards, n_answered - before.n_answered)
            await connection.execute(rows.SET_COUNTS.format("$1", "$2", "$3"), *changes, model_id)
            if bookings.changed:
                after, packed = rows.booked(before, bookings)
                await self._write(connection, list(bookings.changed.values()), after, packed, model_id)
        return outcomes, n_expired

    async def collect(
        self, model: str, agent: str, prefix: str, answers: Sequence[tuple[str, str]], *, now: float
    ) -> Waiting:
        async with self._transaction() as connection:
            model_id = (await _row(connection, model, "id", lock=True))["id"]
            await connection.execute(
                "INSERT INTO owners (model_id, prefix, agent) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
                *(model_id, prefix, agent),
            )
            query = "SELECT agent FROM owners WHERE model_id = $1 AND prefix = $2"
            if await connection.fetchval(query, model_id, prefix) != agent:
                raise Forbidden(f"decisions with the prefix {prefix!r} belong to another agent")
            n_answered = 0
            for decision, outcome in answers:
                done = await connection.execute(
                    rows.ANSWER.format("$1", "$2", "$3", "$4", "$5"),
                    *(outcome, now + rules.ANSWERED_S, model_id, decision, prefix),
                )
                n_answered += done != "UPDATE 0"
            await connection.execute(rows.SET_COUNTS.format("$1", "$2", "$3"), -n_answered, n_answered, model_id)
            query = rows.WAITING_REWARDS.format(model="$1", prefix="$2", limit="$3")
            found = await connection.fetch(query, model_id, prefix, rules.MAX_COLLECTED)
            n_waiting = (await _row(connection, model, "n_rewards"))["n_rewards"]
        return Waiting([(row["decision"], row["reward"]) for row in found], n_waiting)


async def _row(connection: Any, model: str, columns: str, *, lock: bool = False) -> Any:
    query = f"SELECT {columns} FROM models WHERE name = $1{' FOR UPDATE' if lock else ''}"
    found = None if NUL in model else await connection.fetchrow(query, model)
    if found is None:
        raise UnknownModel(f"there is no model {model!r}")
    return found


async def _agents(connection: Any, model_id: int, reports: Sequence[Report]) -> dict[str, AgentRow]:
    names = list({FOLDED, *(report.token.agent for report in reports if report.token is not None)})
    if len(names) == 1:
        return {}
    query = f"SELECT {rows.LEDGER_COLUMNS} FROM agents WHERE model_id = $1 AND name = ANY($2::text[])"
    return rows.ledger_of(await connection.fetch(query, model_id, names))


async def _known(connection: Any, model_id: int, report: Report) -> KnownReward | None:
    query = "SELECT reward, outcome FROM rewards WHERE model_id = $1 AND decision = $2"
    row = await connection.fetchrow(query, model_id, report.decision)
    return None if row is None else KnownReward(*row)


async def _owner(connection: Any, model_id: int, decision: str) -> Owner | None:
    query = rows.OWNER.format(model="$1", prefix="$2")
    row = await connection.fetchrow(query, model_id, rules.owner_prefix(decision))
    return None if row is None else Owner(row[0], is_ended=row[2], is_forgotten=row[1])


async def _store(connection: Any, model_id: int, report: Report, outcome: str, now: float) -> None:
    await connection.execute(
        "INSERT INTO rewards VALUES ($1, $2, $3, $4, $5, $6) "
        "ON CONFLICT (model_id, decision) DO UPDATE "
        "SET reward = excluded.reward, outcome = excluded.outcome, until = excluded.until",
        *(model_id, *rows.reward_values(report, outcome, now)),
    )


async def _expire(connection: Any, model_id: int, now: float) -> int:
    """Remove what is too old; how many of them no owner had collected."""
    newest = await connection.fetchval(rows.REMOVED.format(model="$1", now="$2"), model_id, now)
    if newest is not None:
        await connection.execute(rows.SET_HORIZON.format(model="$1", until="$2"), model_id, newest)
    removed = []
    for sign in ("=", "<>"):
        done = await connection.execute(
            f"DELETE FROM rewards WHERE model_id = $1 AND until < $2 AND outcome {sign} ''", model_id, now
        )
        removed.append(int(done.rpartition(" ")[2]))
    if any(removed):
        await connection.execute(rows.SET_COUNTS.format("$1", "$2", "$3"), -removed[0], -removed[1], model_id)
    return removed[0]
