"""When the next upload of an agent is expected, from its own history.

An agent uploads when its observations have grown the determinant of its model by 1 + α. The larger the model, the more
observations that takes: for directions that repeat, log det Σ grows as d·log n, so an upload needs about a constant
share of the n observations that the model has. Of each upload in the agent's history that share is known, and so is
the agent's own pace; their product is the time until the next one. A mature agent may thus be silent for long.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from fedbandit.service.formatting import count, duration, pace, percent
from fedbandit.service.history import Step
from fedbandit.service.stores.base import Sample

MOST_GAPS = 24  # newest ones; `AgentHistory` thins out only what is older
LEAST_GAPS = 3
SLACK = 2.0  # a gap of twice the typical length is no reason to look for a fault
NOT_KNOWN = "not known: fewer than 4 uploads since this server process started"


@dataclass(frozen=True, slots=True)
class Rhythm:
    """`typical_s` is the expected time between the last upload and the next, `within_s` the longest usual one.

    All are None while the history is too short.
    """

    last_upload: float | None = None
    typical_s: float | None = None
    within_s: float | None = None
    share: float | None = None  # of the model's observations that an upload needs
    per_s: float | None = None  # observations of the agent

    @property
    def expected_by(self) -> float | None:
        """When the next upload is expected at the latest."""
        if self.last_upload is None or self.within_s is None:
            return None
        return self.last_upload + self.within_s

    def is_overdue(self, now: float) -> bool:
        """Whether the next upload should have come by now, compared with the agent's own history."""
        return self.expected_by is not None and now > self.expected_by

    def words(self, now: float) -> str:
        """When the next upload is expected."""
        if self.expected_by is None:
            return NOT_KNOWN
        if self.is_overdue(now):
            return f"overdue for {duration(now - self.expected_by)}"
        return f"expected within {duration(self.expected_by - now)}"

    def reason(self, n_obs: int) -> str:
        """Why it takes that long, for a model of so many observations."""
        if self.share is None or self.per_s is None or self.per_s <= 0.0:
            return ""
        return (
            f"An upload of this agent takes about {percent(self.share)} of the model's observations, now "
            f"{count(max(self.share * n_obs, 1.0))}, and it makes {pace(self.per_s)}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the API."""
        return {**asdict(self), "expected_by": self.expected_by}


def rhythm_of(steps: Sequence[Step], samples: Sequence[Sample], *, max_silence_s: float | None = None) -> Rhythm:
    """The rhythm of an agent with these uploads, in a model with this time series."""
    if not steps:
        return Rhythm()
    last = steps[-1][0]
    times = [sample.at for sample in samples]
    gaps: list[tuple[float, float, float]] = []  # seconds, own observations, share of the model's
    recent = steps[-MOST_GAPS - 1 :]
    for before, after in pairwise(recent):
        seconds, n_own, n_model = after[0] - before[0], after[1] - before[1], _n_obs_at(samples, times, before[0])
        if seconds > 0.0 and n_own > 0.0 and n_model > 0.0:
            gaps.append((seconds, n_own, n_own / n_model))
    if len(gaps) < LEAST_GAPS:
        return Rhythm(last)
    share = median(gap[2] for gap in gaps)
    per_s = sum(gap[1] for gap in gaps) / sum(gap[0] for gap in gaps)
    # The longest gap, beside the one that share and pace would have predicted for it.
    longest = max(seconds * per_s * own_share / (share * n_own) for seconds, n_own, own_share in gaps)
    typical = max(share * _n_obs_at(samples, times, last), 1.0) / per_s
    if max_silence_s is not None:
        typical = min(typical, max_silence_s + 1.0 / per_s)
    return Rhythm(last, typical, typical * max(SLACK, longest), share, per_s)


def _n_obs_at(samples: Sequence[Sample], times: Sequence[float], at: float) -> float:
    """Observations in the model at a time: those of the first sample from then on, which is at most seconds later."""
    place = bisect.bisect_left(times, at)
    return float(samples[min(place, len(samples) - 1)].n_obs) if samples else 0.0
