"""How each agent did lately, in memory: a short trail of its uploads since this process began, in constant space."""

from __future__ import annotations

from array import array

MAX_STEPS = 64  # of one agent; when there are more, every second one of the older half goes
MAX_AGENTS = 20_000  # of all models together; whoever was silent longest is dropped: 64 steps are 1.5 KB
WIDTH = 3
Step = tuple[float, float, float]  # when, observations and reward sum since the trail began


class AgentHistory:
    """Cheap enough for every exchange: a look into a dictionary and three numbers at the end of an array."""

    def __init__(self) -> None:
        self._trails: dict[tuple[str, str], array[float]] = {}

    def step(self, uid: str, agent: str, at: float, n_obs: float, reward_sum: float) -> None:
        """An upload of this many observations was merged."""
        trail = self._trails.pop((uid, agent), None)
        if trail is None:
            trail = array("d")
            if len(self._trails) >= MAX_AGENTS:
                del self._trails[next(iter(self._trails))]
        else:
            n_obs += trail[-2]
            reward_sum += trail[-1]
        self._trails[uid, agent] = trail  # at the end: the longest silent ones stand first
        trail.extend((at, n_obs, reward_sum))
        if len(trail) > MAX_STEPS * WIDTH:
            _thin(trail)

    def of(self, uid: str, agent: str) -> list[Step]:
        """The trail of an agent, oldest first; empty if it was not heard of since this process began."""
        trail = self._trails.get((uid, agent), array("d"))
        return [(trail[i], trail[i + 1], trail[i + 2]) for i in range(0, len(trail), WIDTH)]

    def drop(self, uid: str, agent: str) -> None:
        """An agent that was forgotten leaves no trail."""
        self._trails.pop((uid, agent), None)


def _thin(trail: array[float]) -> None:
    half = MAX_STEPS // 2
    kept = array("d")
    for i in range(1, half, 2):
        kept.extend(trail[i * WIDTH : (i + 1) * WIDTH])
    trail[: half * WIDTH] = kept
