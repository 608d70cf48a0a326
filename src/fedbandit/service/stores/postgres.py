"""PostgreSQL through asyncpg: a model's row is locked during a fold, so any number of replicas may share it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from fedbandit.core.group_sums import NO_GROUPS, GroupSums
from fedbandit.errors import AlreadyExists, StoreUnavailable, UnknownAgent, UnknownModel
from fedbandit.service.exchange.epochs import prior_of
from fedbandit.service.exchange.ledger import FORGOTTEN, MAX_RETIRED, AgentRow, Fold, IncomingUpload
from fedbandit.service.model import Model
from fedbandit.service.stores import rows, schema
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
from fedbandit.service.stores.postgres_enrolments import PostgresEnrolments, require_free
from fedbandit.service.stores.postgres_rewards import PostgresRewards
from fedbandit.wire.settings import ModelSettings

MIGRATION_LOCK = 0x66656462  # "fedb": replicas that start together migrate in turn
CHECKPOINT_LOCK = 0x6665636B
COMMAND_TIMEOUT_S = 30.0
NUL = "\0"  # PostgreSQL cannot store it in text, so no name contains it
SESSION = {
    "application_name": "fedbandit",
    "synchronous_commit": "on",
    # A replica that is paused or cut off inside a transaction must not block the others.
    "idle_in_transaction_session_timeout": "10000",
}

# One statement writes a batch: the agents in the arrays $1…$18, and the model $36.
_WRITE = """
WITH new AS (
    SELECT * FROM unnest(
        $1::text[], $2::bigint[], $3::bytea[], $4::bigint[], $5::bigint[], $6::float8[], $7::bigint[], $8::float8[],
        $9::float8[], $10::bigint[], $11::bigint[], $12::float8[], $13::bytea[], $14::bigint[], $15::bigint[],
        $16::bigint[], $17::bytea[], $18::bigint[]
    ) AS new (incarnation, sequence, digest, n_uploads, n_obs, reward_sum, n_bytes, growth, growth_most, unsent,
              model_version, last_seen, reward_groups, n_discarded, epoch, stamp, total, id)
), updated AS (
    UPDATE agents SET
        incarnation = new.incarnation, sequence = new.sequence, digest = new.digest, n_uploads = new.n_uploads,
        n_obs = new.n_obs, reward_sum = new.reward_sum, n_bytes = new.n_bytes, growth = new.growth,
        growth_most = new.growth_most, unsent = new.unsent, model_version = new.model_version,
        last_seen = new.last_seen, reward_groups = new.reward_groups, n_discarded = new.n_discarded,
        epoch = new.epoch, stamp = new.stamp, total = new.total
    FROM new WHERE agents.id = new.id
)
UPDATE models SET
    version = $19, n_uploads = $20, n_bytes = $21, n_obs = $22, reward_sum = $23, reward_sq_sum = $24, growth_n = $25,
    growth_block = $26, growth_previous = $27, growth_most = $28, generation = $29, reward_groups = $30, epoch = $31,
    clock = $32, n_discarded = $33, state = $34, detector = $35
WHERE id = $36
"""
_RETIRE = (
    "INSERT INTO retired (agent_id, incarnation, reason, at) VALUES ($1, $2, $3, $4) "
    "ON CONFLICT (agent_id, incarnation) DO UPDATE SET reason = excluded.reason"
)


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """A connection without session state, which the pool need not reset."""

    def get_reset_query(self) -> str:
        return ""


class PostgresStore(PostgresEnrolments, PostgresRewards):
    """Any number of server processes on one database."""

    def __init__(self, address: str, *, pool_size: int = 8) -> None:
        self._address = address
        self._pool_size = pool_size
        self._pool: Any = None

    async def open(self) -> None:
        async with _store_errors():
            self._pool = await asyncpg.create_pool(
                self._address,
                min_size=1,
                max_size=self._pool_size,
                command_timeout=COMMAND_TIMEOUT_S,
                server_settings=SESSION,
                connection_class=_Connection,
            )
        try:
            async with self._transaction() as connection:
                await _migrate(connection)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            try:
                await asyncio.wait_for(pool.close(), 10.0)
            except TimeoutError:
                pool.terminate()

    async def ping(self) -> None:
        async with self._connection() as connection:
            await connection.fetchval("SELECT version FROM schema_version", timeout=5.0)

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        if self._pool is None:
            raise StoreUnavailable("the store is not open")
        async with _store_errors(), self._pool.acquire(timeout=COMMAND_TIMEOUT_S) as connection:
            yield connection

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Any]:
        async with self._connection() as connection, connection.transaction():
            yield connection

    # -- models

    async def create(self, settings: ModelSettings, *, uid: str, now: float) -> Model:
        async with self._connection() as connection:
            made = await connection.execute(
                "INSERT INTO models (name, uid, settings, created, state) VALUES ($1, $2, $3, $4, $5) "
                "ON CONFLICT (name) DO NOTHING",
                *(settings.name, uid, settings.to_json(), now, settings.prior()),
            )
        if made == "INSERT 0 0":
            raise AlreadyExists(f"there is a model {settings.name!r} already")
        return Model(settings, uid, now)

    async def models(self) -> list[Model]:
        async with self._connection() as connection:
            found = await connection.fetch(f"SELECT {rows.MODEL_COLUMNS} FROM models ORDER BY name")
        return [rows.model_of(row) for row in found]

    async def load(self, model: str) -> Model:
        async with self._connection() as connection:
            return rows.model_of(await _model_row(connection, model))

    async def state(self, model: str) -> ModelState:
        async with self._connection() as connection:
            row = await _model_row(connection, model, ", state")
        return ModelState(rows.model_of(row), row["state"])

    async def configure(self, model: str, before: ModelSettings, after: ModelSettings) -> bool:
        async with self._transaction() as connection:
            row = await _model_row(connection, model, lock=True)  # an exchange that runs now finishes before
            if rows.model_of(row).settings != before:
                return False
            await connection.execute("UPDATE models SET settings = $1 WHERE id = $2", after.to_json(), row["id"])
            return True

    async def delete(self, model: str) -> None:
        async with self._connection() as connection:
            if NUL in model or await connection.execute("DELETE FROM models WHERE name = $1", model) == "DELETE 0":
                raise UnknownModel(f"there is no model {model!r}")

    async def merge(self, model: str, batch: Sequence[IncomingUpload], *, now: float) -> MergedBatch:
        async with self._transaction() as connection:
            # The lock is a statement of its own: reads after it see what its last holder wrote.
            row = await _model_row(connection, model, ", state, detector", lock=True)
            before, packed = rows.model_of(row), row["state"]
            fold = await _fold(connection, row["id"], before, packed, row["detector"], batch)
            outcomes = fold.run(batch, now=now)
            if fold.n_uploads == 0:
                return MergedBatch(before, packed, outcomes, 0)
            after, packed, detector = rows.folded(before, fold)
            agents = zip(*(rows.agent_values(agent) for agent in fold.changed.values()), strict=True)
            values = rows.model_values(after, packed, detector)
            await connection.execute(_WRITE, *map(list, agents), *values, row["id"])
            for (name, incarnation), why in fold.newly_retired.items():
                await _retire(connection, fold.agents[name].id, incarnation, why, now)
        return MergedBatch(after, packed, outcomes, fold.n_uploads, fold.world.restarts)

    async def restart(self, model: str, *, now: float) -> Model:
        async with self._transaction() as connection:
            row = await _model_row(connection, model, lock=True)
            after, packed = rows.restarted(rows.model_of(row))
            await _write_model(connection, row["id"], after, packed)
        return after

    async def _write(
        self, connection: Any, agents: Sequence[AgentRow], model: Model, packed: bytes, model_id: int
    ) -> None:
        columns = zip(*(rows.agent_values(agent) for agent in agents), strict=True)
        await connection.execute(_WRITE, *map(list, columns), *rows.model_values(model, packed, None), model_id)

    # -- agents

    async def enroll(
        self,
        model: str,
        agent: str,
        token_hash: bytes,
        *,
        now: float,
        renew: bool = False,
        old_until: float | None = None,
    ) -> None:
        async with self._transaction() as connection:
            model_id = (await _model_row(connection, model, lock=True))["id"]
            if renew:
                await connection.execute(rows.COUNT_AGAIN.format(model="$1", agent="$2"), model_id, agent)
                change = rows.RENEW.format(token="$1", until="$2::float8", model="$3", agent="$4", false="FALSE")
                if await connection.execute(change, token_hash, old_until, model_id, agent) != "UPDATE 0":
                    return
            await require_free(connection, model_id, agent)
            made = await connection.execute(
                "INSERT INTO agents (model_id, name, token_hash, created) VALUES ($1, $2, $3, $4) "
                "ON CONFLICT (model_id, name) DO NOTHING",
                *(model_id, agent, token_hash, now),
            )
            if made == "INSERT 0 0":
                raise AlreadyExists(f"there is an agent {agent!r} in model {model!r} already")
            await connection.execute("UPDATE models SET n_agents = n_agents + 1 WHERE id = $1", model_id)

    async def agent(self, model: str, agent: str) -> AgentRecord:
        async with self._connection() as connection:
            return rows.agent_of(await _agent_row(connection, model, agent, rows.AGENT_COLUMNS))

    async def agents(self, model: str, query: PageQuery) -> AgentPage:
        where = f"model_id = $1 AND position(lower($2::text) IN lower(name)) > 0{rows.kind_of_agents(query.retired)}"
        order = f"{rows.ORDER[query.key]} {'DESC' if query.descending else 'ASC'}, name"
        page = f"SELECT {rows.AGENT_COLUMNS} FROM agents WHERE {where} ORDER BY {order} LIMIT $3 OFFSET $4"
        async with self._connection() as connection:
            model_id = (await _model_row(connection, model))["id"]
            found = await connection.fetch(page, model_id, query.search, query.per_page, query.offset)
            total = await connection.fetchval(f"SELECT COUNT(*) FROM agents WHERE {where}", model_id, query.search)
        return AgentPage([rows.agent_of(row) for row in found], total)

    async def fleet(self, model: str, *, since: float) -> FleetSummary:
        query = rows.FLEET.format(since="$1", model="$2")
        async with self._connection() as connection:
            model_id = (await _model_row(connection, model))["id"]
            return rows.fleet_of(tuple(await connection.fetchrow(query, since, model_id)))

    async def contribution(self, model: str, agent: str) -> bytes | None:
        async with self._connection() as connection:
            known = rows.model_of(await _model_row(connection, model))
            row = await _agent_row(connection, model, agent, "total, epoch, stamp")
        return rows.contribution_of(known, row["total"], row["epoch"], row["stamp"])

    async def counted_sums(self, model: str, *, limit: int) -> list[AgentSum]:
        query = rows.LARGEST_SUMS.format(model="$1", limit="$2")
        async with self._connection() as connection:
            found = await connection.fetch(query, (await _model_row(connection, model))["id"], limit)
        return [AgentSum(*row) for row in found]

    async def revoke(self, model: str, agent: str, *, now: float) -> None:
        async with self._transaction() as connection:
            # After the lock: a running exchange finishes before this returns, and the next one sees the change.
            await _model_row(connection, model, lock=True)
            agent_id = (await _agent_row(connection, model, agent, "id"))["id"]
            await connection.execute("UPDATE agents SET revoked = TRUE WHERE id = $1", agent_id)

    async def forget(self, model: str, agent: str, *, now: float) -> Model:
        async with self._transaction() as connection:
            model_id = (await _model_row(connection, model, lock=True))["id"]
            known = await _agent_row(connection, model, agent, "id, incarnation")
            for change in rows.FORGET_REWARDS:
                await connection.execute(change.format(model="$1", agent="$2"), model_id, agent)
            row = await _model_row(connection, model)
            if known["incarnation"]:
                await _retire(connection, known["id"], known["incarnation"], FORGOTTEN, now)
            await connection.execute("UPDATE retired SET reason = $1 WHERE agent_id = $2", FORGOTTEN, known["id"])
            await connection.execute(rows.CLEAR_AGENT.format(id="$1", empty="''"), known["id"])
            return await _recomputed(connection, row)

    async def quarantine(self, model: str, agent: str, *, on: bool, now: float) -> Model:
        async with self._transaction() as connection:
            row = await _model_row(connection, model, lock=True)
            agent_id = (await _agent_row(connection, model, agent, "id"))["id"]
            change = "UPDATE agents SET quarantined = $1 WHERE id = $2 AND quarantined <> $1"
            is_changed = await connection.execute(change, on, agent_id) != "UPDATE 0"
            return await _recomputed(connection, row) if is_changed else rows.model_of(row)

    async def widen(self, model: str, widen: Widening, *, now: float) -> Model:
        async with self._transaction() as connection:
            row = await _model_row(connection, model, lock=True)
            found = await connection.fetchrow("SELECT state, detector FROM models WHERE id = $1", row["id"])
            after, state, detector = rows.widened_model(rows.model_of(row), found["state"], found["detector"], widen)
            await _write_model(connection, row["id"], after, state, detector)
            change = "UPDATE models SET settings = $1 WHERE id = $2"
            await connection.execute(change, after.settings.to_json(), row["id"])
            sums = "SELECT id, total FROM agents WHERE model_id = $1 AND total IS NOT NULL"
            for agent in await connection.fetch(sums, row["id"]):
                wider = rows.widened_sum(agent["total"], after.settings)
                await connection.execute("UPDATE agents SET total = $1 WHERE id = $2", wider, agent["id"])
            await connection.execute("DELETE FROM checkpoints WHERE model_id = $1", row["id"])
            return after

    # -- tokens of people

    async def put_token(self, name: str, role: Role, token_hash: bytes, *, now: float, replace: bool = False) -> bool:
        conflict = "DO UPDATE SET role = excluded.role, token_hash = excluded.token_hash, created = excluded.created"
        async with self._connection() as connection:
            done = await connection.execute(
                "INSERT INTO tokens (name, role, token_hash, created) VALUES ($1, $2, $3, $4) "
                f"ON CONFLICT (name) {conflict if replace else 'DO NOTHING'}",
                *(name, role, token_hash, now),
            )
        return bool(done != "INSERT 0 0")

    async def find_token(self, token_hash: bytes) -> Principal | None:
        query = (
            "SELECT 'agent' AS role, agents.name, models.name AS model, agents.revoked, agents.retired IS NOT NULL, "
            "NULL::float8 FROM agents JOIN models ON models.id = agents.model_id WHERE agents.token_hash = $1 "
            "UNION ALL SELECT 'agent', agents.name, models.name, agents.revoked, agents.retired IS NOT NULL, "
            "old_token_until FROM agents JOIN models ON models.id = agents.model_id WHERE agents.old_token_hash = $1 "
            "UNION ALL SELECT role, name, '', FALSE, FALSE, NULL FROM tokens WHERE token_hash = $1 "
            "UNION ALL SELECT 'enrolment', enrolments.name, models.name, FALSE, FALSE, NULL FROM enrolments "
            "JOIN models ON models.id = enrolments.model_id WHERE secret_hash = $1"
        )
        async with self._connection() as connection:
            row = await connection.fetchrow(query, token_hash)
        return None if row is None else Principal(*row)

    async def tokens(self) -> list[Principal]:
        async with self._connection() as connection:
            found = await connection.fetch("SELECT role, name FROM tokens ORDER BY name")
        return [Principal(row["role"], row["name"]) for row in found]

    async def drop_token(self, name: str) -> bool:
        if NUL in name:
            return False
        async with self._connection() as connection:
            return bool(await connection.execute("DELETE FROM tokens WHERE name = $1", name) != "DELETE 0")

    # -- history

    async def record(self, notes: Sequence[HistoryEntry]) -> None:
        async with self._transaction() as connection:
            found = await connection.fetch(
                "SELECT uid, id FROM models WHERE uid = ANY($1::text[]) ORDER BY id FOR SHARE",
                list({note.uid for note in notes}),
            )
            known = {row["uid"]: row["id"] for row in found}
            for note in notes:
                if note.uid in known:
                    await _write_entry(connection, known[note.uid], note.entry)
            for model_id in known.values():
                await connection.execute(rows.TRIM_EVENTS.format(model="$1", limit=MAX_EVENTS), model_id)
                await connection.execute(rows.THIN_SAMPLES.format(model="$1", limit=MAX_SAMPLES), model_id)

    async def events(self, model: str, *, limit: int = 100) -> list[Event]:
        query = "SELECT at, kind, agent, detail FROM events WHERE model_id = $1 ORDER BY id DESC LIMIT $2"
        async with self._connection() as connection:
            found = await connection.fetch(query, (await _model_row(connection, model))["id"], limit)
        return [rows.event_of(row) for row in found]

    async def samples(self, model: str) -> list[Sample]:
        query = f"SELECT {rows.SAMPLE_COLUMNS} FROM samples WHERE model_id = $1 ORDER BY id"
        async with self._connection() as connection:
            found = await connection.fetch(query, (await _model_row(connection, model))["id"])
        return [rows.sample_of(row) for row in found]

    async def checkpoints(self, model: str) -> list[Checkpoint]:
        query = f"SELECT {rows.CHECKPOINT_COLUMNS} FROM checkpoints WHERE model_id = $1 ORDER BY id"
        async with self._connection() as connection:
            found = await connection.fetch(query, (await _model_row(connection, model))["id"])
        return [rows.checkpoint_of(row) for row in found]


@asynccontextmanager
async def _store_errors() -> AsyncIterator[None]:
    """Turn database errors into `StoreUnavailable`; the message omits the address, which contains a password."""
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
        # PostgreSQL adds details and hints in separate lines.
        words = "; ".join(str(error).splitlines())
        raise StoreUnavailable(f"the database failed: {type(error).__name__}: {words}") from None


async def _migrate(connection: Any) -> None:
    """Bring the schema up to date in the caller's transaction."""
    await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
    await connection.execute(schema.VERSION_TABLE)
    version = await connection.fetchval("SELECT version FROM schema_version")
    todo = schema.missing("postgres", version or 0)
    for migration in todo:
        for statement in migration.statements:
            await connection.execute(statement)
    if version is None:
        await connection.execute("INSERT INTO schema_version VALUES (0)")
    if todo:
        await connection.execute("UPDATE schema_version SET version = $1", todo[-1].number)


async def _model_row(connection: Any, model: str, more: str = "", *, lock: bool = False) -> Any:
    query = f"SELECT {rows.MODEL_COLUMNS}{more} FROM models WHERE name = $1{' FOR UPDATE' if lock else ''}"
    row = None if NUL in model else await connection.fetchrow(query, model)
    if row is None:
        raise UnknownModel(f"there is no model {model!r}")
    return row


async def _agent_row(connection: Any, model: str, agent: str, columns: str) -> Any:
    model_id = (await _model_row(connection, model))["id"]
    query = f"SELECT {columns} FROM agents WHERE model_id = $1 AND name = $2"
    row = None if NUL in agent else await connection.fetchrow(query, model_id, agent)
    if row is None:
        raise UnknownAgent(f"there is no agent {agent!r} in model {model!r}")
    return row


async def _fold(
    connection: Any,
    model_id: int,
    model: Model,
    packed: bytes,
    detector: bytes | None,
    batch: Sequence[IncomingUpload],
) -> Fold:
    names = list({upload.agent for upload in batch})
    query = f"SELECT {rows.LEDGER_COLUMNS} FROM agents WHERE model_id = $1 AND name = ANY($2::text[])"
    agents = rows.ledger_of(await connection.fetch(query, model_id, names))
    incarnations = rows.incarnations_to_look_up(batch, agents)
    retired = {}
    if incarnations:
        query = (
            "SELECT agents.name, retired.incarnation, retired.reason FROM retired "
            "JOIN unnest($1::bigint[], $2::text[]) AS asked (agent_id, incarnation) USING (agent_id, incarnation) "
            "JOIN agents ON agents.id = retired.agent_id"
        )
        found = await connection.fetch(query, [row.id for row, _ in incarnations], [name for _, name in incarnations])
        retired = {(row["name"], row["incarnation"]): row["reason"] for row in found}
    return rows.fold_of(model, packed, detector, agents, retired)


async def _recomputed(connection: Any, row: Any) -> Model:
    """Recompute the state as λI plus the sums of all agents not in quarantine, in the caller's transaction."""
    before = rows.model_of(row)
    total, groups = prior_of(before.settings), NO_GROUPS
    async for agent in connection.cursor(rows.COUNTED_SUMS.format(model="$1"), row["id"], prefetch=100):
        if agent["total"] is not None:
            total += rows.moved(before, agent["total"], agent["stamp"])
        groups += GroupSums.from_bytes(agent["reward_groups"])
    after = rows.corrected(before, total.tobytes(), groups)
    await _write_model(connection, row["id"], after, total.tobytes())
    return after


async def _write_model(
    connection: Any, model_id: int, model: Model, packed: bytes, detector: bytes | None = None
) -> None:
    """Write a model whose sums changed other than by uploads; tests for a change begin anew without a detector."""
    no_agents: list[list[Any]] = [[] for _ in range(18)]
    await connection.execute(_WRITE, *no_agents, *rows.model_values(model, packed, detector), model_id)


async def _retire(connection: Any, agent_id: int, incarnation: str, why: str, now: float) -> None:
    await connection.execute(_RETIRE, agent_id, incarnation, why, now)
    await connection.execute(rows.TRIM_RETIRED.format(agent="$1", limit=MAX_RETIRED - 1), agent_id)


async def _keep(connection: Any, model_id: int, new: Checkpoint) -> None:
    # Replicas that keep checkpoints of one model at the same time do so in turn.
    await connection.execute("SELECT pg_advisory_xact_lock($1, $2)", CHECKPOINT_LOCK, model_id % (1 << 31))
    found = await connection.fetch(rows.KEPT_CHECKPOINTS.format(model="$1"), model_id)
    is_kept, gone = make_room([KeptCheckpoint(*row) for row in found], new)
    await connection.execute("DELETE FROM checkpoints WHERE id = ANY($1::bigint[])", gone)
    if is_kept:
        await connection.execute(
            f"INSERT INTO checkpoints (model_id, {rows.CHECKPOINT_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6)",
            *(model_id, *rows.checkpoint_values(new)),
        )


async def _write_entry(connection: Any, model_id: int, entry: Event | Sample | Contact | Checkpoint) -> None:
    if isinstance(entry, Contact):
        seen = rows.SEEN.format(at="$1", model="$2", agent="$3")
        await connection.execute(seen, entry.at, model_id, entry.agent)
        return
    if isinstance(entry, Checkpoint):
        await _keep(connection, model_id, entry)
        return
    if isinstance(entry, Event):
        await connection.execute(
            "INSERT INTO events (model_id, at, kind, agent, detail) VALUES ($1, $2, $3, $4, $5)",
            *(model_id, entry.at, entry.kind, entry.agent, entry.detail),
        )
        return
    places = ", ".join(f"${number}" for number in range(1, 10))
    await connection.execute(
        f"INSERT INTO samples (model_id, {rows.SAMPLE_COLUMNS}) VALUES ({places})",
        *(model_id, *rows.sample_values(entry)),
    )
