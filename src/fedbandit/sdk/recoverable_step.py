"""What an agent remembers of a change that is under way, so that an exception in the middle leaves no half of it.

Signal handlers raise (`KeyboardInterrupt`, time limits) between any two instructions. A step says how things stood when
it began; `DurableAgent.finish` compares that with how they stand, and brings it to an end or takes it as not begun.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from fedbandit.core.arrays import Vector
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import InvalidInput

if TYPE_CHECKING:
    from fedbandit.sdk.durable_agent import DurableAgent


class RecoverableStep:
    """An observation or a batch on its way into the journal and the buffer, and how things stood before."""

    __slots__ = ("is_booked", "n_held", "n_obs", "n_rounds", "number", "position", "reward", "stats", "x")

    def __init__(
        self,
        core: DurableAgent,
        n_obs: int,
        number: int | None,
        x: Vector,
        reward: float,
        stats: SufficientStats | None,
    ) -> None:
        self.n_obs, self.number, self.x, self.reward, self.stats = n_obs, number, x, reward, stats
        self.n_rounds = core.n_rounds
        self.n_held = core.n_unsent + core.n_in_flight
        self.is_booked = False  # the journal has it, or there is none
        self.position = 0 if core.journal is None else core.journal.position


def require_interrupted(core: DurableAgent, running: CodeType) -> None:
    """A step that still runs further up in this thread can neither be finished nor be joined by another one."""
    frame: FrameType | None = sys._getframe(3)  # beyond this function, `finish` and its caller
    while frame is not None:
        if frame.f_code is running and frame.f_locals.get("self") is core:
            raise InvalidInput(
                "expected no call from a signal handler or a finalizer that interrupts `observe` of the same agent; "
                "note there what came, and call afterwards"
            )
        frame = frame.f_back
