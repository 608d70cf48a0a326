"""The assumptions behind a model as checks: held, contradicted, or assumed, each with its evidence and what to do.

*Held* means tested and not contradicted at the level that the evidence states; *assumed* means that the server's sums
cannot test it, or not yet. Nothing is ever called confirmed. docs/theory.md has the tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from fedbandit.algorithms.messages import n_packed, stats_from_bytes
from fedbandit.core import homogeneity
from fedbandit.core.drift import Discount
from fedbandit.core.homogeneity import ChangeTest, HomogeneityTest
from fedbandit.core.statistics import SufficientStats
from fedbandit.service.formatting import count, number, percent, plural
from fedbandit.service.model import Model
from fedbandit.service.stores.base import AgentSum, Store
from fedbandit.service.stores.checkpoints import Checkpoint, keeps_checkpoints

CheckState = Literal["held", "contradicted", "assumed"]
MAX_TESTED = 1_000  # agents, those with most observations
MAX_TESTED_BYTES = 64 << 20  # of their sums
MAX_WORK = 2e8  # d³ for each agent
LEAST_TESTED = 8
N_NAMED = 3  # agents named in the evidence
ONE_THETA, NO_CHANGE = "one parameter for all agents", "no change over time"
PERSONAL = (
    "use `personal`: each agent keeps a parameter of its own near the fleet's; or give groups of agents that agree "
    "models of their own"
)
RESTART = (
    "restart the model from now on (`fedbandit models restart`), or create it with `drift` so that it restarts itself"
)


@dataclass(frozen=True, slots=True)
class AssumptionCheck:
    """One assumption. `p_value` is that of its test, corrected for everything compared; `level` is where it alarms."""

    name: str  # stable: one_theta, no_change, noise_scale, theta_bound, action_bound, buffers, reactions, linear
    assumption: str
    state: CheckState
    evidence: str
    advice: str = ""
    p_value: float | None = None
    level: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the API."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DataSums:
    """What the tests of a model's data need: sums of its agents, and its earlier states."""

    agents: list[AgentSum]
    checkpoints: list[Checkpoint]

    @classmethod
    async def read(cls, store: Store, model: Model) -> DataSums:
        """From the store, bounded: the agents with most observations."""
        name = model.settings.name
        limit = n_tested(model.settings.dim)
        agents = await store.counted_sums(name, limit=limit) if limit else []
        return cls(agents, await store.checkpoints(name) if limit else [])


def n_tested(dim: int) -> int:
    """How many agents are tested at most with so many features; 0 where factorisations would take minutes."""
    if not keeps_checkpoints(dim):
        return 0
    affordable = min(int(MAX_WORK / dim**3), MAX_TESTED_BYTES // (8 * n_packed(dim)))
    return min(MAX_TESTED, max(affordable, LEAST_TESTED))


def data_checks(model: Model, packed: bytes, sums: DataSums) -> list[AssumptionCheck]:
    """Whether the data have one parameter, over agents and over time; O(d³) for each agent and checkpoint."""
    settings = model.settings
    if isinstance(settings.drift, Discount):  # sums of agents and of earlier states do not add up to the model's
        return [
            AssumptionCheck("one_theta", ONE_THETA, "assumed", "not tested where old data are discounted"),
            AssumptionCheck("no_change", NO_CHANGE, "assumed", "not assumed: old data are discounted"),
            _linear(None),
        ]
    if not n_tested(settings.dim):  # a dense Σ of ten thousand features does not fit into memory
        return [_one_theta(None, [], model), _no_change(None, [], model), _linear(None)]
    total = _without_ridge(stats_from_bytes(packed, settings.dim, settings.blocks).dense(), settings.lam)
    agents = [item for item in sums.agents if item.n_obs > 0]
    moments = [item for item in sums.checkpoints if _is_before(item, model)]
    differing = homogeneity.compare_parts(
        [stats_from_bytes(item.packed, settings.dim, settings.blocks).dense() for item in agents], total
    )
    earlier = [
        _without_ridge(stats_from_bytes(item.packed, settings.dim, settings.blocks).dense(), settings.lam)
        for item in moments
    ]
    changed = homogeneity.compare_times(earlier, total)
    one_theta, no_change = _one_theta(differing, agents, model), _no_change(changed, moments, model)
    if one_theta.state == no_change.state == "contradicted" and differing is not None and changed is not None:
        # Agents that differ are active at different times, and a change catches agents at different moments.
        if differing.share >= changed.share:
            no_change = _explained(no_change, one_theta)
        else:
            one_theta = _explained(one_theta, no_change)
    return [one_theta, no_change, _linear(total)]


def _is_before(item: Checkpoint, model: Model) -> bool:
    return item.generation == model.generation and item.version < model.version and item.n_obs < model.n_obs


def _explained(minor: AssumptionCheck, major: AssumptionCheck) -> AssumptionCheck:
    """The weaker of two contradictions that each may be the consequence of the other."""
    why = f"cannot be told: it differs as it also would if only {major.assumption!r} were wrong, which explains more"
    return replace(minor, state="assumed", evidence=f"{why}; {minor.evidence}", advice="")


def _one_theta(found: HomogeneityTest | None, agents: Sequence[AgentSum], model: Model) -> AssumptionCheck:
    name, words = "one_theta", ONE_THETA
    if found is None:
        return AssumptionCheck(
            name, words, "assumed", _untested(model, "two agents with more observations than features")
        )
    n = len(found.parts)
    who = f"{plural(n, 'agent')} compared with all others"
    if n < model.n_agents:
        who = f"{count(n)} of {plural(model.n_agents, 'agent')}, those with most observations, compared with all others"
    text = f"{who}: p {_p(found.p_value)}"
    if not found.differs:
        seen = (
            f"differences explain {percent(found.share)} of the noise, and {percent(found.detectable)} would have shown"
        )
        return AssumptionCheck(name, words, "held", f"{text}; {seen}", "", found.p_value, homogeneity.LEVEL)
    names = ", ".join(agents[item.index].name for item in found.parts[:N_NAMED])
    text += (
        f"; differences between agents explain {percent(found.share)} of what one parameter leaves unexplained; most "
        f"different: {names}"
    )
    if (
        model.settings.personal is not None
    ):  # one parameter is not assumed; how far apart they are cannot be contradicted
        return AssumptionCheck(
            name, "a parameter for each agent, near the fleet's", "assumed", text, "", found.p_value, homogeneity.LEVEL
        )
    return AssumptionCheck(name, words, "contradicted", text, PERSONAL, found.p_value, homogeneity.LEVEL)


def _no_change(found: ChangeTest | None, moments: Sequence[Checkpoint], model: Model) -> AssumptionCheck:
    name, words = "no_change", NO_CHANGE
    if found is None:
        return AssumptionCheck(
            name, words, "assumed", _untested(model, "enough data before and after an earlier state")
        )
    text = f"before and after compared at {plural(found.n_moments, 'moment')}: p {_p(found.p_value)}"
    if not found.differs:
        text += f"; a change that explains {percent(found.detectable)} of the noise would have shown"
        return AssumptionCheck(name, words, "held", text, "", found.p_value, homogeneity.LEVEL)
    moment = moments[found.index]
    at = datetime.fromtimestamp(moment.at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    text += (
        f"; the first {count(moment.n_obs)} observations, until {at}, differ from those since; two parameters explain "
        f"{percent(found.share)} of what one leaves unexplained"
    )
    return AssumptionCheck(name, words, "contradicted", text, RESTART, found.p_value, homogeneity.LEVEL)


def _untested(model: Model, needed: str) -> str:
    if not n_tested(model.settings.dim):
        return f"not tested with {count(model.settings.dim)} features"
    return f"too few data: it takes {needed}"


def _linear(total: SufficientStats | None) -> AssumptionCheck:
    """Sums cannot show curvature: all that is known is how much of the rewards a linear model explains."""
    evidence = "sums cannot show curvature"
    explained = None if total is None else explained_variance(total)
    if explained is not None:
        evidence = f"the model explains {percent(explained)} of the variance of rewards; {evidence}"
    return AssumptionCheck(
        "linear",
        "rewards linear in the features",
        "assumed",
        evidence,
        "test it on a decision log with `fedbandit advise`",
    )


def explained_variance(total: SufficientStats) -> float | None:
    """1 − RSS/Σ(r − r̄)² of the fit to all data; None while they are few, or all rewards are equal."""
    n, dim = total.n_obs, total.dim
    if n < 2 * dim + 10:
        return None
    spread = total.reward_sq_sum - total.reward_sum**2 / n
    if spread <= 1e-12 * total.reward_sq_sum:
        return None
    Sigma = total.Sigma + 1e-9 * (float(total.Sigma.trace()) / dim) * np.eye(dim)
    fitted = float(total.b @ np.linalg.solve(Sigma, total.b))
    return min(max(1.0 - (total.reward_sq_sum - fitted) / spread, 0.0), 1.0)


def summary(checks: Sequence[AssumptionCheck]) -> dict[str, int]:
    """How many are held, contradicted and assumed."""
    states = Counter(check.state for check in checks)
    return {"held": states["held"], "contradicted": states["contradicted"], "assumed": states["assumed"]}


def _without_ridge(stats: SufficientStats, lam: float) -> SufficientStats:
    Sigma = stats.Sigma - lam * np.eye(stats.dim)
    return SufficientStats(Sigma, stats.b, stats.n_obs, stats.reward_sum, stats.reward_sq_sum)


def _p(value: float) -> str:
    return "below 1e-100" if value < 1e-100 else f"= {number(value, 2)}"
