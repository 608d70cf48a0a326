"""Columns, rows and statements that both SQL stores share, and the fold between reading and writing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedbandit.core.arrays import Vector
from fedbandit.core.block_packing import widened, with_columns
from fedbandit.core.group_sums import NO_GROUPS, GroupSums
from fedbandit.service.exchange.epochs import EpochState, prior_of, widened_tests
from fedbandit.service.exchange.ledger import AgentRow, Fold, IncomingUpload
from fedbandit.service.exchange.reported_rewards import Bookings
from fedbandit.service.model import GrowthWindow, Model, totals_of
from fedbandit.service.stores.base import AgentRecord, Event, FleetSummary, Sample, Widening
from fedbandit.service.stores.checkpoints import Checkpoint
from fedbandit.service.stores.enrolments import Enrolment
from fedbandit.service.stores.rewards import (
    BOOKED,
    HORIZON,
    SLACK_S,
    TOKEN_S,
    WAITING,
    WAITING_S,
    Report,
    owner_prefix,
)
from fedbandit.wire.settings import ModelSettings

MODEL_COLUMNS = (
    "id, uid, settings, created, version, n_agents, n_uploads, n_bytes, n_obs, reward_sum, reward_sq_sum, "
    "growth_n, growth_block, growth_previous, growth_most, generation, n_retired, reward_groups, epoch, clock, "
    "n_discarded, n_rewards, n_answered"
)
AGENT_COLUMNS = (
    "name, created, revoked, quarantined, last_seen, incarnation, sequence, n_uploads, n_obs, "
    "reward_sum, n_bytes, growth, growth_most, unsent, model_version, retired, enrolment, n_discarded, reward_groups"
)
LEDGER_COLUMNS = (
    "name, token_hash, revoked, incarnation, sequence, digest, total, n_uploads, n_obs, reward_sum, n_bytes, "
    "growth, growth_most, unsent, model_version, last_seen, id, created, quarantined, retired, reward_groups, "
    "enrolment, old_token_hash, old_token_until, n_discarded, epoch, stamp"
)
CHECKPOINT_COLUMNS = "at, version, generation, n_obs, state"
SAMPLE_COLUMNS = "at, version, n_obs, reward_sum, n_uploads, n_bytes, log_det, growth"
ORDER = {
    "name": "name",
    "last_seen": "COALESCE(last_seen, 0)",
    "n_obs": "n_obs",
    "n_uploads": "n_uploads",
    "created": "created",
    "growth": "growth",
    "unsent": "unsent",
    "mean_reward": "CASE WHEN n_obs > 0 THEN reward_sum / n_obs ELSE 0 END",
}
Row = Sequence[Any]


@lru_cache(maxsize=1024)
def settings_of(text: str) -> ModelSettings:
    """The settings in a model's row; each text is parsed once."""
    return ModelSettings.from_dict(json.loads(text))


def model_of(row: Row) -> Model:
    """The model in a row of `MODEL_COLUMNS`."""
    return Model(
        settings=settings_of(row[2]),
        uid=row[1],
        created=row[3],
        version=row[4],
        n_agents=row[5],
        n_uploads=row[6],
        n_bytes=row[7],
        n_obs=row[8],
        reward_sum=row[9],
        reward_sq_sum=row[10],
        growth=GrowthWindow(row[11], row[12], row[13], row[14]),
        generation=row[15],
        n_retired=row[16],
        groups=GroupSums.from_bytes(row[17]) if row[17] else NO_GROUPS,
        epoch=row[18],
        clock=row[19],
        n_discarded=row[20],
        n_rewards=row[21],
        n_answered=row[22],
    )


def agent_of(row: Row) -> AgentRecord:
    """The agent in a row of `AGENT_COLUMNS`."""
    name, created, revoked, quarantined, *rest = row
    rest[-1] = GroupSums.from_bytes(rest[-1])
    return AgentRecord(name, created, bool(revoked), bool(quarantined), *rest)


def ledger_of(rows: Iterable[Row]) -> dict[str, AgentRow]:
    """The working copies in rows of `LEDGER_COLUMNS`."""
    return {row[0]: AgentRow(*row) for row in rows}


def incarnations_to_look_up(
    batch: Iterable[IncomingUpload], agents: Mapping[str, AgentRow]
) -> list[tuple[AgentRow, str]]:
    """The incarnations in a batch that are not the current one of their agent: they may be retired."""
    found = {
        (upload.agent, upload.incarnation): agents[upload.agent]
        for upload in batch
        if upload.agent in agents and upload.incarnation != agents[upload.agent].incarnation
    }
    return [(row, incarnation) for (_, incarnation), row in found.items()]


def fold_of(
    model: Model,
    packed: bytes,
    detector: bytes | None,
    agents: dict[str, AgentRow],
    retired: Mapping[tuple[str, str], str],
) -> Fold:
    """A fold that starts from what was read."""
    return Fold(
        model.settings,
        model.settings_id,
        model.version,
        np.frombuffer(packed, dtype="<f8").copy(),
        model.growth,
        agents,
        retired,
        EpochState(model.settings, model.epoch, model.clock, model.n_discarded, detector),
        groups=model.groups,
    )


def folded(model: Model, fold: Fold) -> tuple[Model, bytes, bytes | None]:
    """The model, its packed sums and the blocks of its tests for a change after a fold."""
    detector = None if model.settings.drift is None else fold.world.packed_detector()
    n_obs, reward_sum, reward_sq_sum = fold.state[-3:].tolist()
    model = replace(
        model,
        n_obs=int(n_obs),
        reward_sum=reward_sum,
        reward_sq_sum=reward_sq_sum,
        version=fold.version,
        n_uploads=model.n_uploads + fold.n_uploads,
        n_bytes=model.n_bytes + fold.n_bytes,
        growth=fold.growth,
        groups=fold.groups,
        generation=model.generation + len(fold.world.restarts),
        epoch=fold.world.epoch,
        clock=fold.world.clock,
        n_discarded=fold.world.n_discarded,
    )
    return model, fold.state.tobytes(), detector


def widened_model(
    before: Model, packed: bytes, detector: bytes | None, widen: Widening
) -> tuple[Model, bytes, bytes | None]:
    """A model with more arms or features, its state, and the state of its tests for change."""
    settings = widen(before.settings)
    state = widened_sum(packed, settings, settings.lam)
    tests = widened_tests(detector, lambda sums, lam: widened_sum(sums, settings, lam), settings.lam)
    return corrected(replace(before, settings=settings), state, before.groups), state, tests


def widened_sum(packed: bytes, settings: ModelSettings, lam: float = 0.0) -> bytes:
    """Packed sums with as many blocks, or as many columns, as the settings have."""
    numbers = np.frombuffer(packed, dtype="<f8")
    if settings.blocks == 1:
        return with_columns(numbers, settings.dim, lam=lam).astype("<f8").tobytes()
    return widened(numbers, settings.dim // settings.blocks, settings.blocks, lam=lam).astype("<f8").tobytes()


def with_totals(model: Model, packed: bytes) -> Model:
    """The model with the totals of these sums."""
    n_obs, reward_sum, reward_sq_sum = totals_of(packed)
    return replace(model, n_obs=n_obs, reward_sum=reward_sum, reward_sq_sum=reward_sq_sum)


def model_values(model: Model, packed: bytes, detector: bytes | None) -> tuple[Any, ...]:
    """version … n_discarded, state, detector: the columns of a model that change with its state."""
    growth = model.growth
    return (
        model.version,
        model.n_uploads,
        model.n_bytes,
        model.n_obs,
        model.reward_sum,
        model.reward_sq_sum,
        growth.n,
        growth.block,
        growth.previous,
        growth.most,
        model.generation,
        b"" if model.groups == NO_GROUPS else model.groups.to_bytes(),
        model.epoch,
        model.clock,
        model.n_discarded,
        packed,
        detector,
    )


def agent_values(agent: AgentRow) -> tuple[Any, ...]:
    """incarnation … total, id: what an exchange changes in an agent's row."""
    return (
        agent.incarnation,
        agent.sequence,
        agent.digest,
        agent.n_uploads,
        agent.n_obs,
        agent.reward_sum,
        agent.n_bytes,
        agent.growth,
        agent.growth_most,
        agent.unsent,
        agent.model_version,
        agent.last_seen,
        agent.groups,
        agent.n_discarded,
        agent.epoch,
        agent.stamp,
        agent.total,
        agent.id,
    )


def fleet_of(row: Row) -> FleetSummary:
    """The numbers in a row of `FLEET`; sums of a big database may be decimals."""
    n_agents, n_active, n_silent, n_revoked, n_with_unsent, unsent = (int(count) for count in row[:6])
    return FleetSummary(n_agents, n_active, n_silent, n_revoked, n_with_unsent, unsent, row[6], int(row[7]))


def event_of(row: Row) -> Event:
    """The event in a row of at, kind, agent, detail."""
    return Event(*row)


def sample_of(row: Row) -> Sample:
    """The sample in a row of `SAMPLE_COLUMNS`."""
    return Sample(*row)


def sample_values(sample: Sample) -> tuple[Any, ...]:
    """The values of `SAMPLE_COLUMNS`."""
    return (
        sample.at,
        sample.version,
        sample.n_obs,
        sample.reward_sum,
        sample.n_uploads,
        sample.n_bytes,
        sample.log_det,
        sample.growth,
    )


def checkpoint_of(row: Row) -> Checkpoint:
    """The checkpoint in a row of `CHECKPOINT_COLUMNS`."""
    return Checkpoint(*row)


def checkpoint_values(checkpoint: Checkpoint) -> tuple[Any, ...]:
    """The values of `CHECKPOINT_COLUMNS`."""
    return checkpoint.at, checkpoint.version, checkpoint.generation, checkpoint.n_obs, checkpoint.packed


def restarted(model: Model) -> tuple[Model, bytes]:
    """The model and its packed sums after a restart by hand."""
    packed = model.settings.prior()
    return replace(corrected(model, packed, model.groups), epoch=model.epoch + 1), packed


def recomputed(model: Model, sums: Iterable[tuple[bytes | None, int]]) -> bytes:
    """λI plus the sums of agents, each as of a stamp."""
    state = prior_of(model.settings)
    for packed, stamp in sums:
        if packed is not None:
            state += moved(model, packed, stamp)
    return state.tobytes()


def contribution_of(model: Model, total: bytes | None, epoch: int, stamp: int) -> bytes | None:
    """What the model holds of an agent with these sums; None if they are of an earlier epoch."""
    if total is None or epoch != model.epoch:
        return None
    return moved(model, total, stamp).tobytes()


def moved(model: Model, total: bytes, stamp: int) -> Vector:
    """The sums of one agent as of this stamp, weighted for the clock of the model."""
    return EpochState(model.settings, clock=model.clock).moved(np.frombuffer(total, dtype="<f8"), stamp)


def corrected(model: Model, packed: bytes, groups: GroupSums) -> Model:
    """The model after data were excluded or included, with the resulting sums."""
    changed = replace(model, version=model.version + 1, generation=model.generation + 1, groups=groups)
    return with_totals(changed, packed)


# -- statements of both dialects; {model}, {id} and {empty} stand for the dialect's placeholders

CLEAR_AGENT = (
    "UPDATE agents SET incarnation = '', sequence = 0, digest = {empty}, n_uploads = 0, n_obs = 0, reward_sum = 0, "
    "n_bytes = 0, growth = 0, growth_most = 0, unsent = 0, model_version = 0, n_discarded = 0, epoch = 0, stamp = 0, "
    "reward_groups = {empty}, total = NULL WHERE id = {id}"
)
RENEW = (
    "UPDATE agents SET old_token_hash = CASE WHEN {until} IS NULL THEN NULL ELSE token_hash END, "
    "old_token_until = {until}, token_hash = {token}, revoked = {false}, retired = NULL "
    "WHERE model_id = {model} AND name = {agent}"
)
SEEN = (
    "UPDATE agents SET last_seen = {at} "
    "WHERE model_id = {model} AND name = {agent} AND (last_seen IS NULL OR last_seen < {at})"
)
TRIM_EVENTS = (
    "DELETE FROM events WHERE model_id = {model} AND id <= "
    "(SELECT id FROM events WHERE model_id = {model} ORDER BY id DESC LIMIT 1 OFFSET {limit})"
)
# Sums over no rows are NULL and become zero; MAX(last_seen) stays NULL if no agent was seen.
FLEET = (
    "SELECT COUNT(*), COALESCE(SUM(CASE WHEN last_seen >= {since} THEN 1 ELSE 0 END), 0), "
    "COALESCE(SUM(CASE WHEN last_seen IS NULL THEN 1 ELSE 0 END), 0), "
    "COALESCE(SUM(CASE WHEN revoked THEN 1 ELSE 0 END), 0), "
    "COALESCE(SUM(CASE WHEN unsent > 0 THEN 1 ELSE 0 END), 0), "
    "COALESCE(SUM(unsent), 0), MAX(last_seen), "
    "COALESCE(SUM(CASE WHEN quarantined THEN 1 ELSE 0 END), 0) FROM agents WHERE model_id = {model} AND retired IS NULL"
)
# Sums of an earlier epoch count for nothing; rewards by group are those of all epochs.
_IS_NOW = "epoch = (SELECT epoch FROM models WHERE id = {model})"
_COUNTED = f"total IS NOT NULL AND NOT quarantined AND {_IS_NOW}"
COUNTED_SUMS = (
    f"SELECT CASE WHEN {_IS_NOW} THEN total END AS total, stamp, reward_groups FROM agents "
    "WHERE model_id = {model} AND total IS NOT NULL AND NOT quarantined ORDER BY id"
)
LARGEST_SUMS = (
    f"SELECT name, n_obs, total FROM agents WHERE model_id = {{model}} AND {_COUNTED} "
    "ORDER BY n_obs DESC, name LIMIT {limit}"
)
KEPT_CHECKPOINTS = "SELECT id, version, generation, n_obs FROM checkpoints WHERE model_id = {model} ORDER BY id"
# Keep the newest `limit`, and all with the same time as the oldest of them.
TRIM_RETIRED = (
    "DELETE FROM retired WHERE agent_id = {agent} AND at < "
    "(SELECT at FROM retired WHERE agent_id = {agent} ORDER BY at DESC LIMIT 1 OFFSET {limit})"
)
# Beyond the limit every second sample of the older half is deleted: recent ones stay dense.
THIN_SAMPLES = (
    "DELETE FROM samples WHERE model_id = {model} AND id IN (SELECT id FROM ("
    "SELECT id, ROW_NUMBER() OVER (ORDER BY id) AS place, COUNT(*) OVER () AS n FROM samples WHERE model_id = {model}"
    ") AS numbered WHERE n > {limit} AND place <= {limit} / 2 AND place % 2 = 1)"
)


# -- enrolments, and agents that were retired

ENROLMENT_COLUMNS = "name, created, name_prefix, max_uses, expires, n_used, revoked"
REMOVE_ENDED = (
    "DELETE FROM enrolments WHERE model_id = {model} AND "
    "(CASE WHEN revoked OR n_used >= max_uses THEN created ELSE COALESCE(expires, 1e300) END) < {before}"
)
SILENT = (
    "SELECT name FROM agents WHERE model_id = {model} AND retired IS NULL AND COALESCE(last_seen, created) < {before} "
    "ORDER BY COALESCE(last_seen, created), name LIMIT {limit}"
)
# Before a retired agent gets a new token, and with it is at work again.
COUNT_AGAIN = (
    "UPDATE models SET n_agents = n_agents + 1, n_retired = n_retired - 1 WHERE id = {model} AND EXISTS "
    "(SELECT 1 FROM agents WHERE model_id = {model} AND name = {agent} AND retired IS NOT NULL)"
)
FOLD_COLUMNS = (
    "id, name, total, n_uploads, n_obs, reward_sum, n_bytes, growth_most, last_seen, reward_groups, n_discarded, "
    "epoch, stamp"
)
TO_FOLD = (
    f"SELECT {FOLD_COLUMNS} FROM agents WHERE model_id = {{model}} AND retired IS NOT NULL AND name <> {{name}} "
    "AND quarantined = {false} AND retired < {before} ORDER BY id LIMIT {limit}"
)
SET_FOLDED = (
    "UPDATE agents SET total = {}, n_uploads = {}, n_obs = {}, reward_sum = {}, n_bytes = {}, growth_most = {}, "
    "last_seen = {}, reward_groups = {}, n_discarded = {}, epoch = {}, stamp = {} WHERE model_id = {} AND name = {}"
)


def kind_of_agents(retired: bool | None) -> str:
    """The condition of `PageQuery.retired`."""
    return "" if retired is None else f" AND retired IS {'NOT NULL' if retired else 'NULL'}"


def enrolment_of(row: Row) -> Enrolment:
    """The enrolment in a row of `ENROLMENT_COLUMNS`."""
    name, created, name_prefix, max_uses, expires, n_used, revoked = row
    return Enrolment(name, created, name_prefix, max_uses, expires, n_used, bool(revoked))


def folded_sums(model: Model, agents: Sequence[Row]) -> tuple[Any, ...]:
    """The sums of rows of `FOLD_COLUMNS`, for `SET_FOLDED`; those of an earlier epoch count for nothing."""
    found = [contribution_of(model, row[2], row[11], row[12]) for row in agents]
    totals = [np.frombuffer(total, dtype="<f8") for total in found if total is not None]
    total = None if not totals else np.sum(totals, axis=0).tobytes()
    counts = [sum(row[place] for row in agents) for place in (3, 4, 5, 6)]
    seen = [row[8] for row in agents if row[8] is not None]
    groups = sum((GroupSums.from_bytes(row[9]) for row in agents), start=NO_GROUPS).to_bytes()
    last = max(row[7] for row in agents), max(seen, default=None), groups
    return (total, *counts, *last, sum(row[10] for row in agents), model.epoch, model.clock)


def was_folded(agent: str) -> str:
    """Why the name of a folded agent cannot be used again."""
    return (
        f"an agent {agent!r} was retired and folded; its old uploads would count again under this name: choose another"
    )


# -- rewards

SET_COUNTS = "UPDATE models SET n_rewards = n_rewards + {}, n_answered = n_answered + {} WHERE id = {}"
OWNER = (
    "SELECT owners.agent, owners.forgotten, agents.name IS NULL OR agents.retired IS NOT NULL FROM owners "
    "LEFT JOIN agents ON agents.model_id = owners.model_id AND agents.name = owners.agent "
    "WHERE owners.model_id = {model} AND owners.prefix = {prefix}"
)
ANSWER = (
    "UPDATE rewards SET outcome = {}, until = {} WHERE model_id = {} AND decision = {} AND prefix = {} AND outcome = ''"
)
_MINE = (
    "model_id = {model} AND outcome = '' AND prefix IN "
    "(SELECT prefix FROM owners WHERE model_id = {model} AND agent = {agent})"
)
FORGET_REWARDS = (
    "UPDATE owners SET forgotten = TRUE WHERE model_id = {model} AND agent = {agent}",
    f"UPDATE models SET n_rewards = n_rewards - (SELECT COUNT(*) FROM rewards WHERE {_MINE}) WHERE id = {{model}}",
    f"DELETE FROM rewards WHERE {_MINE}",
)
WAITING_REWARDS = (
    "SELECT decision, reward FROM rewards WHERE model_id = {model} AND prefix = {prefix} AND outcome = '' "
    "ORDER BY until, decision LIMIT {limit}"
)

# A clock that was set ahead removes what tokens booked; the latest of these times tells which tokens may be among them.
REMOVED = f"SELECT MAX(until) FROM rewards WHERE model_id = {{model}} AND until < {{now}} AND outcome = '{BOOKED}'"
SET_HORIZON = (
    f"INSERT INTO rewards (model_id, decision, prefix, reward, outcome, until) "
    f"VALUES ({{model}}, '{HORIZON}', '', {{until}}, '{BOOKED}', 1e300) ON CONFLICT (model_id, decision) "
    f"DO UPDATE SET reward = CASE WHEN excluded.reward > rewards.reward THEN excluded.reward ELSE rewards.reward END"
)
GET_HORIZON = f"SELECT reward FROM rewards WHERE model_id = {{model}} AND decision = '{HORIZON}'"


def reward_values(report: Report, outcome: str, now: float) -> tuple[str, str, float, str, float]:
    """decision, prefix, reward, outcome, until: a row of rewards."""
    is_waiting = outcome == WAITING
    until = now + WAITING_S
    if report.token is not None and not is_waiting:  # for as long as the token is valid by any clock
        until = max(now, report.token.made_at) + TOKEN_S + SLACK_S
    return report.decision, owner_prefix(report.decision), report.reward, "" if is_waiting else outcome, until


def booked(model: Model, bookings: Bookings) -> tuple[Model, bytes]:
    """The model and its packed sums after rewards were booked."""
    packed = bookings.state.tobytes()
    n = bookings.n_counted
    return with_totals(replace(model, version=model.version + n, clock=model.clock + n), packed), packed
