"""Rows and sums as an agent keeps them, also those of a model that had fewer arms or features then.

Blocks and columns are added at the end, so what was gathered before keeps its meaning.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.messages import n_packed, stats_from_bytes
from fedbandit.core.arrays import Vector, frozen
from fedbandit.core.block_packing import packed_dim, widened, with_columns
from fedbandit.core.statistics import SufficientStats
from fedbandit.sdk.journal.pending_ring import PendingDecision
from fedbandit.wire.settings import ModelSettings


def decision_of(agent: BaseAgent, pending: PendingDecision) -> Decision:
    """A pending decision as `choose` returned it; in a model with blocks with its row as `choose_context` gives it."""
    block = None if agent.blocks == 1 else int(pending.x[0])
    return Decision(
        f"{agent._prefix}{pending.number}",
        pending.choice,
        pending.x if block is None else pending.x[1:],
        agent.agent_id,
        pending.model_version,
        block,
        None if block is None or agent.arms is None else agent.arms[block],
        pending.propensity,
        pending.score,
        pending.policy,
    )


def fitted(decision: Decision, settings: ModelSettings) -> Decision:
    """A decision of this agent with a row of the model's width, also one that was made before features were added."""
    if len(decision.x) == settings.dim or len(decision.x) not in settings.earlier_dims:
        return decision
    return msgspec.structs.replace(decision, x=padded(decision.x, settings.dim))


def padded(x: Vector, dim: int) -> Vector:
    """A row with zeros for the features that were added since."""
    return frozen(np.pad(x, (0, dim - len(x))))


def is_row(agent: BaseAgent, x: Vector) -> bool:
    """Whether a logged row can be one of this agent's."""
    if len(x) != agent.row_width:
        return False
    return agent.blocks == 1 or bool(x[0] == np.floor(x[0]) and 0 <= x[0] < agent.blocks)


def stats_of_row(agent: BaseAgent, x: Vector, reward: float) -> SufficientStats:
    """The statistics of one row as it is kept."""
    if agent.blocks == 1:
        return SufficientStats.of([x], [reward])
    return SufficientStats.of_blocks(x[:1].astype(np.intp), x[None, 1:], np.array([reward]), agent.blocks)


def stats_of_batch(agent: BaseAgent, packed: bytes) -> SufficientStats:
    """The statistics of a logged batch or a kept upload."""
    p, blocks = agent.dim // agent.blocks, agent.blocks
    if len(packed) < 8 * n_packed(agent.dim, blocks):
        if blocks > 1:
            packed = widened(np.frombuffer(packed, dtype="<f8"), p, blocks).astype("<f8").tobytes()
        elif len(packed) > 24 and len(packed) == 8 * n_packed(packed_dim(len(packed) // 8)):
            packed = with_columns(np.frombuffer(packed, dtype="<f8"), agent.dim).astype("<f8").tobytes()
    return stats_from_bytes(packed, agent.dim, blocks)


def widen_saved(state: dict[str, Any], settings: ModelSettings) -> None:
    """Bring the statistics of a saved agent to the number of blocks that its model has now."""
    own = state["own"]
    if 1 < own["model"].get("blocks", 1) < settings.blocks:
        own |= dict.fromkeys({"tracker", "follower"} & own.keys())  # counted anew from the sums
    _widen(state, settings, 0.0)


def _widen(values: dict[str, Any], settings: ModelSettings, lam: float) -> None:
    """All statistics in these values; models, and those that tests for a change began with, have λ on the diagonal."""
    for key, value in values.items():
        if not isinstance(value, dict):
            continue
        ridge = settings.lam if key in ("model", "references") else lam
        if value.keys() != {"dim", "stats", "blocks"}:
            _widen(value, settings, ridge)
        elif value["blocks"] < settings.blocks:
            p = int(value["dim"]) // int(value["blocks"])
            wider = widened(np.frombuffer(value["stats"], dtype="<f8"), p, settings.blocks, lam=ridge)
            values[key] = {"dim": settings.dim, "stats": wider.astype("<f8").tobytes(), "blocks": settings.blocks}
