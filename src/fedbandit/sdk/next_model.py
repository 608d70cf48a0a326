"""The next model of an agent, built while decisions and observations continue with the current one.

Factorising Σ takes O(d³). It happens here, in the thread that exchanges with the server, without the agent's lock.
What is observed meanwhile is kept as rows and added to the new model's growth tracker before the model is replaced, so
the trigger counts exactly what the new model does not hold. A small model is replaced without a tracker, and the next
observation counts anew: that takes a few calls of NumPy, after each of which this thread would have to wait for the
interpreter's lock while rows pile up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedbandit.algorithms.messages import Download
from fedbandit.core.arrays import LARGEST, Matrix, Vector
from fedbandit.core.block_ridge import BlockRidgeModel
from fedbandit.core.growth import TOGETHER, GrowthTracker
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.structure import growth_tracker, ridge_model
from fedbandit.errors import FedbanditError, FormatError, UnusableModel
from fedbandit.pauses import no_pauses, pause_point
from fedbandit.sdk.next_ground import NextGround, next_ground

if TYPE_CHECKING:
    from fedbandit.algorithms.fedlinucb import FedLinUCB, FedLinUCBAgent
    from fedbandit.sdk.durable_agent import DurableAgent

ROOM = 1e10  # actions of this norm can still be scored, where the model sets no bound
EPS = float(np.finfo(np.float64).eps)
FEW = 8  # rows that are added under the lock
AT_ONCE = 48  # features up to which the next observation can count anew
MAX_TURNS = 8


@dataclass(frozen=True, slots=True)
class NextModel:
    """A download, and all that deciding and counting on it needs."""

    download: Download
    model: RidgeModel
    tracker: GrowthTracker | None  # None: small enough to be made when it is needed
    personal: NextGround | None = None  # of an agent with a parameter of its own


def prepare(durable: DurableAgent, download: Download, merged: int | None = None) -> NextModel:
    """Everything about a download that takes time; the caller holds `durable.building` until it is adopted.

    `merged` is the last upload that the model holds, where that is not what the download acknowledges.
    `FormatError` if no server can have these statistics, `UnusableModel` if no decision can rest on them.
    """
    model = ridge_model(download.stats)
    require_usable(durable.agent.rule, model, download.version, durable.settings.action_bound)
    pause_point()
    if durable.agent.rule.personal is None and model.dim <= AT_ONCE:
        return NextModel(download, model, None)
    with durable.agent._lock, no_pauses():
        rest = _not_in_model(durable.agent, download.acknowledged)
        personal = next_ground(durable, model, download, download.acknowledged if merged is None else merged)
        durable.rows_since = []
    tracker = growth_tracker(model)
    if rest:
        _restart(tracker, model, rest)
    if personal is not None:
        personal.complete()
    _catch_up(durable, tracker, model, download.acknowledged, personal)
    return NextModel(download, model, tracker, personal)


def require_usable(rule: FedLinUCB, model: RidgeModel, version: int, action_bound: float | None = None) -> None:
    """That decisions can rest on a model: Σ ⪰ λI up to rounding, finite estimates and widths. Factorises it, too."""
    try:
        with np.errstate(all="ignore"):
            _require_ridge(model, rule.lam)
            pause_point()
            beta = rule.beta_for(model, n_obs=model.stats.n_obs, version=version, own_buffer=True)  # the larger one
            theta = model.theta_hat
            reach = math.sqrt(float(theta @ theta)) + beta * model.spread
            pause_point()
            model.upper(np.zeros((1, model.dim)), beta)  # made here, so that `choose` need not
            if isinstance(model, BlockRidgeModel):
                model.upper_of(np.zeros(model.dim // model.blocks), beta)
    except (ArithmeticError, np.linalg.LinAlgError) as error:
        raise UnusableModel(f"version {version} of the model cannot be computed with: {error}") from None
    except FormatError:
        raise
    except FedbanditError as error:
        raise UnusableModel(f"version {version} of the model cannot be used: {error}") from None
    longest = ROOM if action_bound is None else action_bound
    if not reach * longest <= LARGEST:
        raise UnusableModel(
            f"no decision can rest on version {version} of the model: actions of norm {longest:g} score up to "
            f"{reach * longest:g}, at most {LARGEST:g} can be compared. Find the agent that sent such rewards, and "
            f"forget it"
        )


def count_growth(durable: DurableAgent) -> None:
    """Count what an adopted model does not hold, unless an observation did so since, and test the trigger."""
    agent = durable.agent
    if agent._tracker is None or agent.in_flight is None:
        with agent._lock, no_pauses():
            if durable.ended is None:
                durable.finish()
                if agent._tracker is None:
                    agent._recount()
                else:
                    agent._exchange_if_due()


def renew_tracker(durable: DurableAgent) -> None:
    """Count the growth anew from an exact factorisation, because rounding may have built up."""
    with durable.building:
        with durable.agent._lock, no_pauses():
            durable.agent.is_renewal_due = False
            old, model = durable.agent._tracker, durable.agent.model
            if old is None:
                return
            rest = _not_in_model(durable.agent, 0)
            durable.rows_since = []
        tracker = growth_tracker(model)
        _restart(tracker, model, rest)
        _catch_up(durable, tracker, model, 0)
        with durable.agent._lock, no_pauses():
            rows = durable.take_rows()
            if rows is not None and durable.agent._tracker is old:
                durable.agent._tracker = with_rows(durable.agent, tracker, rows)


def with_rows(agent: FedLinUCBAgent, tracker: GrowthTracker, rows: list[Vector]) -> GrowthTracker:
    """A tracker that was made without the lock, with the last rows; the caller has the lock."""
    if len(rows) > 2:
        tracker.observe_rows(np.array(rows))
    else:
        for x in rows:
            tracker.observe(x)
    if tracker.is_overdue:
        tracker.restart(agent._everything())
    return tracker


def _not_in_model(agent: FedLinUCBAgent, acknowledged: int) -> list[Matrix]:
    """Σ of the upload that is not acknowledged and of the buffer, where there are any."""
    rest = []
    if agent.in_flight is not None and agent.in_flight.sequence > acknowledged:
        rest.append(agent.in_flight.stats.Sigma)
    if agent._local is not None and agent._local.n_obs > 0:
        rest.append(agent._local.Sigma)
    return rest


def _catch_up(
    durable: DurableAgent,
    tracker: GrowthTracker,
    model: RidgeModel,
    acknowledged: int,
    personal: NextGround | None = None,
) -> None:
    """Add what was observed since, until few rows are left."""
    for _ in range(MAX_TURNS):
        with durable.agent._lock, no_pauses():
            rows = durable.rows_since
            if rows is None or len(rows) <= FEW:
                return
            # Counting anew takes as long however many there are, so they cannot pile up.
            rest = _not_in_model(durable.agent, acknowledged) if len(rows) > max(model.dim, TOGETHER) else None
            durable.rows_since = []
        if rest is None:
            tracker.observe_rows(np.array(rows))
        else:
            _restart(tracker, model, rest)
        if personal is not None:
            personal.follower.observe_rows(np.array(rows))
        pause_point()


def _restart(tracker: GrowthTracker, model: RidgeModel, rest: list[Matrix]) -> None:
    Sigma = model.stats.Sigma
    for part in rest:
        Sigma = Sigma + part
        pause_point()
    tracker.restart(Sigma)
    pause_point()


def _require_ridge(model: RidgeModel, lam: float) -> None:
    """`FormatError` unless Σ ⪰ λI, up to what rounding can have done to an honest sum."""
    dim, stats = model.dim, model.stats
    rounding = 2.0 * (dim + 1) * (min(stats.n_obs, 1 << 26) + dim + 9) * EPS
    least = model.factor.least
    pause_point()
    if not least >= -rounding:
        raise FormatError(f"expected a positive definite Σ, got one whose correlations have an eigenvalue of {least:g}")
    # `spread` is at most d^(1/32) above the root of the largest eigenvalue of Σ⁻¹.
    floor = dim ** (1.0 / 16.0) / model.spread**2 * (1.0 + 1e-6)
    if not floor + rounding * float(stats.diagonal.max()) >= lam:
        raise FormatError(f"expected a Σ with eigenvalues of at least λ = {lam:g}, got one of at most {floor:g}")
