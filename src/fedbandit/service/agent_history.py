"""The recent uploads of each agent, in memory since the start of this process, in constant space."""

from __future__ import annotations

from array import array

MAX_STEPS = 64  # per agent; beyond them every second one of the older half is dropped
MAX_AGENTS = 20_000  # of all models; beyond them the longest inactive is dropped; 64 steps are 1.5 KB
WIDTH = 3
Step = tuple[float, float, float]  # time, observations and reward sum since the first step


class AgentHistory:
    """Cumulative observations and rewards after each upload; an update is a dictionary lookup and three numbers."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str], array[float]] = {}

    def step(self, uid: str, agent: str, at: float, n_obs: float, reward_sum: float) -> None:
        """An upload of this many observations was merged."""
        steps = self._steps.pop((uid, agent), None)
        if steps is None:
            steps = array("d")
            if len(self._steps) >= MAX_AGENTS:
                del self._steps[next(iter(self._steps))]
        else:
            n_obs += steps[-2]
            reward_sum += steps[-1]
        self._steps[uid, agent] = steps  # at the end: the longest inactive agents come first
        steps.extend((at, n_obs, reward_sum))
        if len(steps) > MAX_STEPS * WIDTH:
            _thin(steps)

    def of(self, uid: str, agent: str) -> list[Step]:
        """The steps of an agent, oldest first; empty without uploads since the start of this process."""
        steps = self._steps.get((uid, agent), array("d"))
        return [(steps[i], steps[i + 1], steps[i + 2]) for i in range(0, len(steps), WIDTH)]

    def drop(self, uid: str, agent: str) -> None:
        """Remove the steps of an agent that was forgotten."""
        self._steps.pop((uid, agent), None)


def _thin(steps: array[float]) -> None:
    half = MAX_STEPS // 2
    kept = array("d")
    for i in range(1, half, 2):
        kept.extend(steps[i * WIDTH : (i + 1) * WIDTH])
    steps[: half * WIDTH] = kept
