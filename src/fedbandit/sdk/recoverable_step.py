"""Steps of an agent with a journal that an exception of a signal handler may interrupt anywhere."""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from fedbandit.core.arrays import Vector
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import InvalidInput
from fedbandit.sdk.reward_groups import n_grouped

if TYPE_CHECKING:
    from fedbandit.sdk.durable_agent import DurableAgent


class RecoverableStep:
    """An observation or a batch on its way into the journal and the buffer, and the state before it.

    Signal handlers raise (`KeyboardInterrupt`, time limits) between any two instructions. `DurableAgent.finish`
    compares the state before a step with the state now, and completes the step or discards it.
    """

    __slots__ = (
        "group",
        "is_booked",
        "n_grouped",
        "n_held",
        "n_obs",
        "n_rounds",
        "number",
        "position",
        "reward",
        "stats",
        "x",
    )

    def __init__(
        self,
        durable: DurableAgent,
        n_obs: int,
        number: int | None,
        x: Vector,
        reward: float,
        stats: SufficientStats | None,
        group: str = "",
    ) -> None:
        self.n_obs, self.number, self.x, self.reward, self.stats = n_obs, number, x, reward, stats
        self.n_rounds = durable.agent.n_rounds
        self.n_held = durable.n_unsent + durable.n_in_flight
        self.group, self.n_grouped = group, n_grouped(durable.agent)
        self.is_booked = False  # the journal has it, or there is none
        self.position = 0 if durable.journal is None else durable.journal.position


def require_interrupted(durable: DurableAgent, running: CodeType) -> None:
    """A step that still runs further up in this thread can neither be finished nor be joined by another one."""
    frame: FrameType | None = sys._getframe(3)  # beyond this function, `finish` and its caller
    while frame is not None:
        if frame.f_code is running and frame.f_locals.get("self") is durable:
            raise InvalidInput(
                "expected no call from a signal handler or a finalizer that interrupts `observe` of the same agent; "
                "note there what came, and call afterwards"
            )
        frame = frame.f_back
