"""Columns, rows and statements that both SQL stores share, and the fold between reading and writing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedbandit.service.exchange.ledger import AgentRow, Fold, IncomingUpload
from fedbandit.service.model import GrowthWindow, Model, totals_of
from fedbandit.service.stores.base import AgentRecord, Event, FleetSummary, Sample
from fedbandit.wire.settings import ModelSettings

MODEL_COLUMNS = (
    "id, uid, settings, created, version, n_agents, n_uploads, n_bytes, n_obs, reward_sum, reward_sq_sum, "
    "growth_n, growth_block, growth_previous, growth_most, generation"
)
AGENT_COLUMNS = (
    "name, created, revoked, quarantined, last_seen, incarnation, sequence, n_uploads, n_obs, "
    "reward_sum, n_bytes, growth, growth_most, unsent, model_version"
)
LEDGER_COLUMNS = (
    "name, token_hash, revoked, incarnation, sequence, digest, total, n_uploads, n_obs, reward_sum, n_bytes, "
    "growth, growth_most, unsent, model_version, last_seen, id, created, quarantined"
)
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
    """The settings in a model's row; they never change, so each text is parsed once."""
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
    )


def agent_of(row: Row) -> AgentRecord:
    """The agent in a row of `AGENT_COLUMNS`."""
    name, created, revoked, quarantined, *rest = row
    return AgentRecord(name, created, bool(revoked), bool(quarantined), *rest)


def ledger_of(rows: Iterable[Row]) -> dict[str, AgentRow]:
    """The working copies in rows of `LEDGER_COLUMNS`."""
    agents = (AgentRow(*row) for row in rows)
    return {agent.name: agent for agent in agents}


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


def fold_of(model: Model, packed: bytes, agents: dict[str, AgentRow], retired: Mapping[tuple[str, str], str]) -> Fold:
    """A fold that starts from what was read."""
    state = np.frombuffer(packed, dtype="<f8").copy()
    return Fold(model.settings, model.uid, model.version, state, model.growth, agents, retired)


def folded(model: Model, fold: Fold) -> tuple[Model, bytes]:
    """The model and its packed sums after a fold."""
    packed = fold.state.tobytes()
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
    )
    return model, packed


def with_totals(model: Model, packed: bytes) -> Model:
    """The model with the totals of these sums."""
    n_obs, reward_sum, reward_sq_sum = totals_of(packed, model.settings.dim)
    return replace(model, n_obs=n_obs, reward_sum=reward_sum, reward_sq_sum=reward_sq_sum)


def model_values(model: Model, packed: bytes) -> tuple[Any, ...]:
    """version … generation, state: the columns of a model that change with its state."""
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
        packed,
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


def corrected(model: Model, packed: bytes) -> Model:
    """The model after data were excluded or included, with the resulting sums."""
    return with_totals(replace(model, version=model.version + 1, generation=model.generation + 1), packed)


# -- statements of both dialects; {model}, {id} and {empty} stand for the dialect's placeholders

CLEAR_AGENT = (
    "UPDATE agents SET incarnation = '', sequence = 0, digest = {empty}, n_uploads = 0, n_obs = 0, reward_sum = 0, "
    "n_bytes = 0, growth = 0, growth_most = 0, unsent = 0, model_version = 0, total = NULL WHERE id = {id}"
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
    "COALESCE(SUM(CASE WHEN quarantined THEN 1 ELSE 0 END), 0) FROM agents WHERE model_id = {model}"
)
COUNTED_SUMS = "SELECT total FROM agents WHERE model_id = {model} AND total IS NOT NULL AND NOT quarantined ORDER BY id"
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
