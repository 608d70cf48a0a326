"""The group of a live agent's decision, and how many rewards by group it holds."""

from __future__ import annotations

from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.policies import CONTROL_POLICY
from fedbandit.core.group_sums import CONTROL, TREATMENT


def group_of(agent: BaseAgent, number: int | None) -> str:
    """The group of a pending decision, as it was noted; "" where the model has no control group."""
    if number is None or not agent._has_control:
        return ""
    return CONTROL if agent._pending[number].policy == CONTROL_POLICY else TREATMENT


def n_grouped(agent: BaseAgent) -> int:
    """Rewards by group in the buffer and in the upload in flight."""
    if not agent._has_control:
        return 0
    upload = agent.in_flight
    return agent.local_groups.n_obs + (0 if upload is None else upload.groups.n_obs)
