"""Agents and meetings of DCB and DCCB as bytes; `fb.load` reads them (algorithms/snapshot.py)."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fedbandit.algorithms.dcb import DCBAgent, DCBMeetings, unpacked
from fedbandit.algorithms.dccb import DCCBAgent
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.messages import n_scalars
from fedbandit.core.arrays import frozen
from fedbandit.core.ridge import RidgeModel
from fedbandit.errors import FormatError

COUNTS = ("n_agents", "step", "n_switches", "n_rounds", "model_version", "_n_decisions")
ARRAYS = ("active", "buffer", "_new")  # rows of packed pairs; the last one is there between a reward and the step's end
OWN_ARRAYS = ("local", "own_active", "own_buffer", "_own_new", "_theta_hat")  # of DCCB


def agent_state(agent: DCBAgent) -> dict[str, Any]:
    """All of an agent's state as plain values, without its rule."""
    state: dict[str, Any] = {name: getattr(agent, name) for name in COUNTS}
    state |= {name: _packed(getattr(agent, name)) for name in _arrays(agent)}
    pending = agent._pending
    state |= {"agent_id": agent.agent_id, "incarnation": agent.incarnation}
    state["pending"] = None if pending is None else pending.to_dict()
    if isinstance(agent, DCCBAgent):
        state["neighbours"] = sorted(agent.neighbours)
    return state


def load_agent(rule: Any, state: dict[str, Any]) -> DCBAgent:
    """The agent of a state made by `agent_state`."""
    agent: DCBAgent = rule.agent(state["agent_id"], incarnation=state["incarnation"])
    for name in COUNTS:
        setattr(agent, name, int(state[name]))
    for name in _arrays(agent):
        setattr(agent, name, _unpacked(state[name], agent.dim if name == "_theta_hat" else n_scalars(agent.dim), name))
    agent._pending = None if state["pending"] is None else Decision.from_dict(state["pending"])
    if isinstance(agent, DCCBAgent):
        agent.neighbours = frozenset(map(str, state["neighbours"]))
    if agent.n_switches > 0:
        agent.model = RidgeModel(unpacked(agent.active, agent.dim))
    return agent


def meetings_state(meetings: DCBMeetings) -> dict[str, Any]:
    """Who is in the fleet, and the generator of the permutations (as text: its numbers have 128 bits)."""
    return {"ids": list(meetings.ids), "rng": json.dumps(meetings.rng.bit_generator.state)}


def load_meetings(rule: Any, state: dict[str, Any]) -> DCBMeetings:
    """The meetings of a state made by `meetings_state`."""
    meetings: DCBMeetings = rule.server()
    meetings.enroll(map(str, state["ids"]))
    meetings.rng.bit_generator.state = json.loads(state["rng"])
    return meetings


def _arrays(agent: DCBAgent) -> tuple[str, ...]:
    return ARRAYS + OWN_ARRAYS if isinstance(agent, DCCBAgent) else ARRAYS


def _packed(array: Any) -> dict[str, Any] | None:
    if array is None:
        return None
    return {"shape": list(array.shape), "data": np.ascontiguousarray(array, dtype="<f8").tobytes()}


def _unpacked(packed: dict[str, Any] | None, width: int, name: str) -> Any:
    if packed is None and name == "_new":
        return None
    if packed is None or packed["shape"][-1] != width:
        raise FormatError(f"the saved state is damaged: expected {width} numbers per row of {name!r}")
    array = np.frombuffer(packed["data"], dtype="<f8").reshape(packed["shape"]).astype(np.float64)
    if not np.isfinite(array).all():
        raise FormatError(f"the saved state is damaged: numbers of {name!r} are not finite")
    return frozen(array)
