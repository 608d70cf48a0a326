"""An agent whose model got more features: everything that it holds, brought to the new width.

The agent is resumed at the width of its snapshot first. What it then is, with zeros for the new features, is written as
one snapshot, together with its pending decisions. A kill before leaves the old width, a kill afterwards the new one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedbandit.algorithms.snapshot import agent_state, restore_agent
from fedbandit.core.block_packing import with_columns
from fedbandit.sdk.durable_agent import DurableAgent
from fedbandit.sdk.kept_rows import padded
from fedbandit.wire.settings import ModelDescription


def widened_agent(narrow: DurableAgent, description: ModelDescription) -> DurableAgent:
    """The same agent under settings with more features; the next snapshot makes it the one that is resumed."""
    old, dim = narrow.agent, description.settings.dim
    durable = DurableAgent(
        description,
        old.agent_id,
        journal=narrow.journal,
        incarnation=old.incarnation,
        min_upload=old.rule.min_upload,
        now=narrow._now,
    )
    state = agent_state(old, pending=False)
    _widen(state, dim, description.settings.lam)
    restore_agent(durable.agent, {**state, "features": durable.agent.rule.features})
    durable.agent._name_decisions(narrow.birth)
    durable.agent._pending = {
        number: pending._replace(x=padded(pending.x, dim)) for number, pending in old._pending.items()
    }
    durable.counters, durable.birth, durable.earlier = narrow.counters, narrow.birth, narrow.earlier
    durable.saved_sequence = narrow.saved_sequence
    durable.agent._recount()
    if durable.journal is not None:
        durable.journal.widen_rows(durable.agent._pending.values(), dim, durable.birth)
    return durable


def _widen(state: dict[str, Any], dim: int, lam: float) -> None:
    """Bring the statistics of a saved agent to this width; what is computed from them is made anew."""
    own, flight = state["own"], state["in_flight"]
    if flight is not None:
        flight["width"] = flight.get("width") or flight["stats"]["dim"]
        flight["stats"] = _wider(flight["stats"], dim)
    if state["local"] is not None:
        state["local"] = _wider(state["local"], dim)
    own["model"], own["tracker"] = _wider(own["model"], dim, lam), None
    if "own_sums" in own:  # a parameter of its own
        for piece in own["own_sums"].values():
            if isinstance(piece, dict):
                piece["sums"] = _wider(piece["sums"], dim)
        own["follower"], own["target"] = None, np.zeros(dim).tobytes()
    for part, levels in own.get("world", {}).get("detector", {}).items():
        diagonal = lam if part == "references" else 0.0
        levels.update({level: _wider(sums, dim, diagonal) for level, sums in levels.items()})


def _wider(packed: dict[str, Any], dim: int, lam: float = 0.0) -> dict[str, Any]:
    numbers = np.frombuffer(packed["stats"], dtype="<f8")
    return {"dim": dim, "stats": with_columns(numbers, dim, lam=lam).astype("<f8").tobytes()}
