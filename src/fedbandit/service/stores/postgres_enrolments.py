"""Enrolment in PostgreSQL. The row of the model is locked first, as by a fold of uploads."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

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

NUL = "\0"


class PostgresEnrolments:
    """The part of the PostgreSQL store that machines which come and go need."""

    if TYPE_CHECKING:

        def _transaction(self) -> AbstractAsyncContextManager[Any]: ...
        def _connection(self) -> AbstractAsyncContextManager[Any]: ...

    async def create_enrolment(self, model: str, enrolment: Enrolment, secret_hash: bytes, *, now: float) -> None:
        new = enrolment
        async with self._transaction() as connection:
            model_id = await _model_id(connection, model, lock=True)
            ended = rows.REMOVE_ENDED.format(model="$1", before="$2")
            await connection.execute(ended, model_id, now - rules.KEPT_S)
            query = "SELECT COUNT(*) FROM enrolments WHERE model_id = $1"
            if await connection.fetchval(query, model_id) >= rules.MAX_ENROLMENTS:
                raise InvalidParameter(
                    f"expected at most {rules.MAX_ENROLMENTS} enrolments of a model; revoke old ones"
                )
            made = await connection.execute(
                "INSERT INTO enrolments (model_id, name, secret_hash, name_prefix, max_uses, created, expires) "
                "VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
                *(model_id, new.name, secret_hash, new.name_prefix, new.max_uses, new.created, new.expires),
            )
            if made == "INSERT 0 0":
                raise AlreadyExists(f"there is an enrolment {new.name!r} in model {model!r} already")

    async def enrolments(self, model: str) -> list[Enrolment]:
        query = f"SELECT {rows.ENROLMENT_COLUMNS} FROM enrolments WHERE model_id = $1 ORDER BY name"
        async with self._connection() as connection:
            found = await connection.fetch(query, await _model_id(connection, model))
        return [rows.enrolment_of(tuple(row)) for row in found]

    async def revoke_enrolment(self, model: str, name: str) -> None:
        change = "UPDATE enrolments SET revoked = TRUE WHERE model_id = $1 AND name = $2"
        async with self._transaction() as connection:
            model_id = await _model_id(connection, model, lock=True)
            if NUL in name or await connection.execute(change, model_id, name) == "UPDATE 0":
                raise UnknownEnrolment(f"there is no enrolment {name!r} in model {model!r}")

    async def redeem(self, model: str, wanted: Redemption, *, now: float) -> Redeemed:
        async with self._transaction() as connection:
            model_id = await _model_id(connection, model, lock=True)
            query = (
                f"SELECT {rows.ENROLMENT_COLUMNS}, id, secret_hash FROM enrolments "
                "WHERE model_id = $1 AND secret_hash = $2"
            )
            row = await connection.fetchrow(query, model_id, wanted.secret_hash)
            if row is None:
                raise Unauthenticated("this enrolment is not known here")
            rules.require_secret(row["secret_hash"], wanted.secret_hash)
            enrolment = rows.enrolment_of(tuple(row)[:-2])
            query = (
                "SELECT name, token_hash, revoked, retired IS NOT NULL FROM agents "
                "WHERE model_id = $1 AND enrol_key = $2"
            )
            known = await connection.fetchrow(query, model_id, wanted.nonce_hash)
            if known is not None:
                return EnrolledAgent(*known).answer(wanted, enrolment.name)
            enrolment.require_active(now)
            await require_free(connection, model_id, wanted.agent)
            made = await connection.execute(
                "INSERT INTO agents (model_id, name, token_hash, created, enrolment, enrol_key) "
                "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING",
                *(model_id, wanted.agent, wanted.token_hash, now, enrolment.name, wanted.nonce_hash),
            )
            if made == "INSERT 0 0":
                raise AlreadyExists(f"there is an agent {wanted.agent!r} in model {model!r} already")
            await connection.execute("UPDATE enrolments SET n_used = n_used + 1 WHERE id = $1", row["id"])
            await connection.execute("UPDATE models SET n_agents = n_agents + 1 WHERE id = $1", model_id)
        return Redeemed(wanted.agent, enrolment.name, is_new=True)

    async def start(self, model: str, agent: str, *, previous: str, session: str) -> None:
        async with self._transaction() as connection:
            row = await _agent(connection, model, agent, "id, session")
            after = rules.next_session(row["session"], previous, session, agent)
            await connection.execute("UPDATE agents SET session = $1 WHERE id = $2", after, row["id"])

    async def retire(self, model: str, agent: str, *, on: bool, now: float) -> None:
        async with self._transaction() as connection:
            row = await _agent(connection, model, agent, "id, model_id, retired")
            if (row["retired"] is not None) == on or agent == rules.FOLDED:
                return
            change = "UPDATE agents SET retired = $1, revoked = $2, unsent = 0 WHERE id = $3"
            await connection.execute(change, now if on else None, on, row["id"])
            change = "UPDATE models SET n_agents = n_agents - $1, n_retired = n_retired + $1 WHERE id = $2"
            await connection.execute(change, 1 if on else -1, row["model_id"])

    async def silent(self, model: str, *, before: float, limit: int) -> list[str]:
        query = rows.SILENT.format(model="$1", before="$2", limit="$3")
        async with self._connection() as connection:
            found = await connection.fetch(query, await _model_id(connection, model), before, limit)
        return [row["name"] for row in found]

    async def fold_retired(self, model: str, *, before: float, token_hash: bytes, now: float) -> int:
        async with self._transaction() as connection:
            model_id = await _model_id(connection, model, lock=True)
            query = rows.TO_FOLD.format(model="$1", name="$2", before="$3", limit="$4", false="FALSE")
            found = await connection.fetch(query, model_id, rules.FOLDED, before, rules.MAX_FOLDED)
            if not found:
                return 0
            query = f"SELECT {rows.FOLD_COLUMNS} FROM agents WHERE model_id = $1 AND name = $2"
            held = await connection.fetchrow(query, model_id, rules.FOLDED)
            if held is None:
                await connection.execute(
                    "INSERT INTO agents (model_id, name, token_hash, created, revoked, retired) "
                    "VALUES ($1, $2, $3, $4, TRUE, $4)",
                    *(model_id, rules.FOLDED, token_hash, now),
                )
            row = await connection.fetchrow(f"SELECT {rows.MODEL_COLUMNS} FROM models WHERE id = $1", model_id)
            agents = [*map(tuple, found), *([] if held is None else [tuple(held)])]
            values = rows.folded_sums(rows.model_of(row), agents)
            change = rows.SET_FOLDED.format(*(f"${place}" for place in range(1, 14)))
            await connection.execute(change, *values, model_id, rules.FOLDED)
            hashes = [rules.name_hash(row["name"]) for row in found]
            await connection.execute(
                "INSERT INTO folded SELECT $1, unnest($2::bytea[]) ON CONFLICT DO NOTHING", model_id, hashes
            )
            await connection.execute("DELETE FROM agents WHERE id = ANY($1::bigint[])", [row["id"] for row in found])
        return len(found)


async def _model_id(connection: Any, model: str, *, lock: bool = False) -> int:
    query = f"SELECT id FROM models WHERE name = $1{' FOR UPDATE' if lock else ''}"
    found: int | None = None if NUL in model else await connection.fetchval(query, model)
    if found is None:
        raise UnknownModel(f"there is no model {model!r}")
    return found


async def _agent(connection: Any, model: str, agent: str, columns: str) -> Any:
    """The row of an agent, after the lock of its model: a running exchange finishes before."""
    model_id = await _model_id(connection, model, lock=True)
    query = f"SELECT {columns} FROM agents WHERE model_id = $1 AND name = $2"
    row = None if NUL in agent else await connection.fetchrow(query, model_id, agent)
    if row is None:
        raise UnknownAgent(f"there is no agent {agent!r} in model {model!r}")
    return row


async def require_free(connection: Any, model_id: int, agent: str) -> None:
    """Raise `AlreadyExists` if an agent of this name was folded."""
    query = "SELECT 1 FROM folded WHERE model_id = $1 AND name_hash = $2"
    if await connection.fetchval(query, model_id, rules.name_hash(agent)) is not None:
        raise AlreadyExists(rows.was_folded(agent))
