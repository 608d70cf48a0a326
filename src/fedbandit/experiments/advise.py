"""Is sharing worth it for my fleet? One answer from one log, with what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedbandit.core.arrays import Vector
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import InvalidInput
from fedbandit.experiments.advise_outliers import Outliers, outliers
from fedbandit.experiments.advise_stats import CommonTest, Curvature, Fit, common_test, curvature
from fedbandit.experiments.advise_world import Outcome, Prospects, prospects, rounds_to_independence
from fedbandit.experiments.logged import Log
from fedbandit.simulation.worlds import Index

GOOD_POWER = 0.8
N_FOLDS = 5


@dataclass(frozen=True, slots=True)
class Explained:
    """Share of the variance of rewards that is predicted out of sample, by three models."""

    shared: float  # one θ for all
    own: float  # each agent its own
    both: float  # own parameters drawn towards the common one


@dataclass(frozen=True, slots=True)
class Advice:
    """The verdict ("yes", "yes, without some", "no" or "unclear") and all that it rests on."""

    verdict: str
    reasons: tuple[str, ...]
    log: Log
    test: CommonTest
    strangers: Outliers
    curved: Curvature
    explained: Explained
    outlook: Prospects
    choice: Outcome
    spread: float
    break_even: float
    independence: float  # own rounds after which an agent is better alone
    noise: float

    @property
    def stranger_names(self) -> tuple[str, ...]:
        """The agents that do not belong, by name; empty when there is no core to belong to."""
        return tuple(self.log.agent_names[m] for m in sorted(self.strangers.agents)) if self.strangers.core else ()


def advise(
    log: Log,
    *,
    seed: int = 0,
    n_seeds: int = 5,
    n_rounds: int | None = None,
    beta: float | None = None,
    messages: int | None = None,
    watch: Callable[[], None] | None = None,
) -> Advice:
    """Read a log and say whether its agents should learn together. `messages` is a budget for as many rounds again."""
    if log.n_agents < 2:
        raise InvalidInput(f"expected a log of two agents or more, got {log.n_agents}; is the agent column right?")
    test_rng, curve_rng = np.random.default_rng(seed).spawn(2)
    fit = Fit(log)
    test = common_test(fit, test_rng)
    found = outliers(fit) if test.differs else Outliers((), (), True)
    leave = found.core and bool(found.agents)
    core = log.without(found.agents) if leave else log
    core_fit = Fit(core) if leave else fit
    outlook = prospects(core, core_fit, n_seeds=n_seeds, n_rounds=n_rounds, beta=beta, seed=seed, watch=watch)
    choice = outlook.recommended(messages)
    curved = curvature(fit, curve_rng)
    explained = explained_by(log)
    verdict = _verdict(choice, leave)
    facts = Advice(
        verdict,
        (),
        log,
        test,
        found,
        curved,
        explained,
        outlook,
        choice,
        core_fit.spread,
        core_fit.break_even,
        rounds_to_independence(core_fit),
        fit.noise,
    )
    return _with_reasons(facts)


def _verdict(choice: Outcome, leave: bool) -> str:
    if choice.gain.low > 0:
        return "yes, without some" if leave else "yes"
    return "no" if choice.gain.high < 0 else "unclear"


def _with_reasons(advice: Advice) -> Advice:
    reasons = (_about_gain(advice), _about_difference(advice), *_about_strangers(advice), _about_shape(advice))
    values = {name: getattr(advice, name) for name in Advice.__slots__}
    return Advice(**{**values, "reasons": reasons})


def _about_gain(advice: Advice) -> str:
    choice, outlook = advice.choice, advice.outlook
    change = (
        f"{choice.gain.mean:+.3g} ± {choice.gain.half:.2g} reward a decision over {outlook.n_rounds:,} decisions "
        f"(alone {outlook.alone.reward:.3g}, everything shared {outlook.shared.reward:.3g})"
    )
    if choice.gain.low > 0:
        return f"Learning together at α = {choice.alpha:g} earns {change}, for {choice.messages:,.0f} messages."
    if choice.gain.high < 0:
        return f"Learning together costs reward even at the best α tried, {choice.alpha:g}: {change}."
    return f"Learning together at α = {choice.alpha:g} changes {change}: no clear gain, no clear loss."


def _about_difference(advice: Advice) -> str:
    test = advice.test
    if test.differs:
        text = f"Agents differ beyond chance (p = {test.p_value:.2g}); their spread is {advice.spread:.2g} of the noise"
        text += ", after leaving out who does not belong" if advice.stranger_names else ""
        if math.isinf(advice.independence) or advice.spread == 0:
            return text + "."
        side = "still below" if advice.spread < advice.break_even else "above"
        return (
            f"{text}, {side} the {advice.break_even:.2g} at which sharing stops to pay at this amount of data. An "
            f"agent is better off alone after about {advice.independence:,.0f} decisions of its own."
        )
    text = f"One parameter fits all agents (p = {test.p_value:.2g})"
    if test.power_at_break_even >= GOOD_POWER:
        return (
            f"{text}, and the log would have shown differences that make sharing a loss (power "
            f"{test.power_at_break_even:.0%} at a spread of {advice.break_even:.2g})."
        )
    return (
        f"{text}, but the log is too short to be sure: differences that make sharing a loss (a spread of "
        f"{advice.break_even:.2g}) would show with a probability of {test.power_at_break_even:.0%} only."
    )


def _about_strangers(advice: Advice) -> tuple[str, ...]:
    if not advice.strangers.agents:
        return ()
    if not advice.strangers.core:
        return ("No core of agents follows one parameter: there is no one to leave out. Groups may exist.",)
    names = advice.stranger_names
    shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
    return (f"{shown} follow{'s' if len(names) == 1 else ''} another parameter than the rest and should learn apart.",)


def _about_shape(advice: Advice) -> str:
    best = max(advice.explained.shared, advice.explained.both)
    fit = f"The linear model predicts {max(best, 0.0):.1%} of the variance of rewards out of sample"
    if advice.curved.is_bent:
        return (
            f"{fit}. Rewards do not look linear: bent terms would explain another {advice.curved.share:.1%} of the "
            "rest. Add such features before anything else."
        )
    weak = " That is next to nothing: look for better features first." if best < 0.01 else ""
    return f"{fit}; nothing bent is left to explain (p = {advice.curved.p_value:.2g}).{weak}"


def explained_by(log: Log, *, lam: float = 1.0) -> Explained:
    """Out-of-sample R² by five folds: a common ridge model, own ones, and own ones drawn towards the common one."""
    fold = _folds(log)
    errors = np.zeros(3)
    spread = 0.0
    for f in range(N_FOLDS):
        seen, own = fold != f, fold == f
        prior = SufficientStats.prior(dim=log.dim, lam=lam)
        common = RidgeModel(prior + SufficientStats.of(log.x[seen], log.rewards[seen])).theta_hat
        alone, mixed = np.zeros((log.n_agents, log.dim)), np.tile(common, (log.n_agents, 1))
        weight = log.dim * lam
        for m in range(log.n_agents):
            mine = seen & (log.agents == m)
            if mine.any():
                stats = SufficientStats.of(log.x[mine], log.rewards[mine])
                alone[m] = RidgeModel(prior + stats).theta_hat
                rest = SufficientStats.of(log.x[mine], log.rewards[mine] - log.x[mine] @ common)
                mixed[m] += RidgeModel(SufficientStats.prior(dim=log.dim, lam=weight) + rest).theta_hat
        for i, theta in enumerate((np.tile(common, (log.n_agents, 1)), alone, mixed)):
            gap: Vector = log.rewards[own] - np.einsum("ij,ij->i", log.x[own], theta[log.agents[own]])
            errors[i] += float(gap @ gap)
        spread += float(((log.rewards[own] - log.rewards[seen].mean()) ** 2).sum())
    shared, alone_share, both = (1.0 - errors / max(spread, 1e-300)).tolist()
    return Explained(shared, alone_share, both)


def _folds(log: Log) -> Index:
    """Every agent's decisions dealt evenly to the folds, in their order."""
    fold = np.empty(len(log), dtype=np.int64)
    for m in range(log.n_agents):
        mine = np.flatnonzero(log.agents == m)
        fold[mine] = (np.arange(len(mine)) + m) % N_FOLDS
    return fold
