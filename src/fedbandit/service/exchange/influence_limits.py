"""Limits on one agent's influence: observations per time, its share of the information, finite scores.

They are checked inside the transaction that merges an upload, against the rows that it changes.
"""

from __future__ import annotations

import math

from fedbandit.algorithms.messages import stats_from_bytes
from fedbandit.core.arrays import LARGEST, Vector
from fedbandit.core.statistics import packed_length
from fedbandit.core.structure import ridge_model
from fedbandit.errors import ImplausibleUpload, RateExceeded, ShareExceeded
from fedbandit.wire.settings import ModelSettings

BURST_S = 3600.0  # always allowed at once: a history, or the data of an outage
SHARE_RETRY_S = 60.0


def require_rate(settings: ModelSettings, agent: str, n_before: int, n_obs: float, age_s: float) -> None:
    """`RateExceeded` if an agent of this age would have more observations than it can have made.

    The allowance grows from the agent's enrolment on, so that one that was cut off for days may send all at once.
    """
    rate = settings.observation_rate
    allowed = rate * (BURST_S + max(age_s, 0.0))
    if n_before + n_obs > allowed:
        raise RateExceeded(
            f"agent {agent!r} would count {n_before + n_obs:.0f} observations, and the model allows {allowed:.0f} yet: "
            f"{rate:g} per second since it was enrolled, and an hour's worth at once (`models create --max-rate`)",
            retry_after_s=(n_before + n_obs - allowed) / rate,
        )


def require_share(settings: ModelSettings, agent: str, state: Vector, mine: Vector) -> None:
    """`ShareExceeded` if tr(Σ⁻¹Σ_a)/d is above the model's limit, where it has one; O(d³)."""
    if settings.max_share is None:
        return
    everything = ridge_model(stats_from_bytes(state.tobytes(), settings.dim, settings.blocks))
    share = float(everything.share_weights() @ mine[: packed_length(settings.dim, settings.blocks)])
    if share > settings.max_share:
        raise ShareExceeded(
            f"agent {agent!r} would have {share:.1%} of the model's information, and the model allows "
            f"{settings.max_share:.1%} (`models create --max-share`); it can upload when others have",
            retry_after_s=SHARE_RETRY_S,
        )


def require_decidable(settings: ModelSettings, reward_sq_sum: float) -> None:
    """`ImplausibleUpload` if scores on the merged model might not be finite: then no agent could decide on it.

    ‖θ̂‖ = ‖(λI + XᵀX)⁻¹Xᵀy‖ ≤ √(Σr²)/(2√λ), whatever the actions were, since s/(λ + s²) ≤ 1/(2√λ) for each singular
    value s of X. So one number says that |⟨θ̂, x⟩| stays below what agents take for any ‖x‖ ≤ L.
    """
    score = settings.largest_action * math.sqrt(max(reward_sq_sum, 0.0)) / (2.0 * math.sqrt(settings.lam))
    if score > LARGEST:
        raise ImplausibleUpload(
            f"with this upload scores could reach {score:g}, and agents take up to {LARGEST:g}: "
            f"scale features and rewards, or take a larger λ"
        )
