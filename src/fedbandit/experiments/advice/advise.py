"""Advice from one log: whether sharing pays off for its fleet, with the evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedbandit.algorithms.messages import n_bytes
from fedbandit.core.arrays import whole_at_least
from fedbandit.errors import InvalidInput
from fedbandit.experiments.advice.explained_variance import Explained, explained_by
from fedbandit.experiments.advice.fitted_world import (
    ALPHAS,
    ENOUGH,
    Prospects,
    SystemOutcome,
    prospects,
    rounds_to_independence,
)
from fedbandit.experiments.advice.homogeneity import CommonTest, Curvature, Fit, common_test, curvature
from fedbandit.experiments.advice.log import DecisionData
from fedbandit.experiments.advice.outliers import Outliers, outliers
from fedbandit.experiments.sharing_cost import SharingCost, human_bytes

GOOD_POWER = 0.8


@dataclass(frozen=True, slots=True)
class Advice:
    """The verdict ("yes", "yes, personal", "yes, without some", "no" or "unclear") and the evidence for it."""

    verdict: str
    reasons: tuple[str, ...]
    log: DecisionData
    test: CommonTest
    outliers: Outliers
    curved: Curvature
    explained: Explained
    outlook: Prospects
    choice: SystemOutcome
    spread: float
    break_even: float
    independence: float  # own rounds after which an agent is better alone
    noise: float
    budget: int | None = None  # messages

    @property
    def reaches_its_aim(self) -> bool:
        """Whether the α that was chosen keeps 90 % of the largest gain or, with a budget, stays within it."""
        return self.outlook.reaches(self.choice, self.budget)

    @property
    def sharing_cost(self) -> SharingCost:
        """What sending the raw rows would cost: features of the choice and reward, or context, arm and reward."""
        log, blocks = self.log, self.log.blocks
        numbers = None if blocks == 1 else log.dim // blocks + 2
        size = {"n_agents": log.n_agents, "n_rounds": self.outlook.n_rounds, "dim": log.dim}
        return SharingCost(**size, row_numbers=numbers, blocks=blocks)

    @property
    def outlier_names(self) -> tuple[str, ...]:
        """The outlying agents by name; empty when no core of agents remains."""
        return tuple(self.log.agent_names[m] for m in sorted(self.outliers.agents)) if self.outliers.core else ()


def advise(
    log: DecisionData,
    *,
    seed: int = 0,
    n_seeds: int = 5,
    n_rounds: int | None = None,
    beta: float | None = None,
    messages: int | None = None,
    alphas: Sequence[float] = ALPHAS,
    watch: Callable[[], None] | None = None,
) -> Advice:
    """Read a log and say whether its agents should learn together. `messages` is a budget for as many rounds again."""
    if not isinstance(log, DecisionData):
        raise InvalidInput(f"expected a log, from read_log or log_from_arrays, got {type(log).__name__}")
    seed = whole_at_least(seed, 0, "seed")
    if messages is not None:
        whole_at_least(messages, 0, "messages")
    if log.n_agents < 2:
        raise InvalidInput(f"expected a log of two agents or more, got {log.n_agents}; is the agent column right?")
    test_rng, curve_rng = np.random.default_rng(seed).spawn(2)
    fit = Fit(log)
    test = common_test(fit, test_rng)
    found = outliers(fit) if test.differs else Outliers((), (), True)
    leave = found.core and bool(found.agents)
    core = log.without(found.agents) if leave else log
    core_fit = Fit(core) if leave else fit
    numbers: dict[str, Any] = {"n_seeds": n_seeds, "n_rounds": n_rounds, "beta": beta, "seed": seed}
    outlook = prospects(core, core_fit, alphas=alphas, watch=watch, **numbers)
    choice = outlook.recommended(messages)
    personal = outlook.recommended_personal(messages)
    if test.differs and not leave and personal is not None and _wins(personal, choice, outlook):
        choice = personal
    curved = curvature(fit, curve_rng)
    explained = explained_by(log)
    verdict = _verdict(choice, leave, explained)
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
        messages,
    )
    return replace(facts, reasons=_reasons(facts))


def _verdict(choice: SystemOutcome, leave: bool, explained: Explained) -> str:
    if choice.gain.low > 0:
        if not explained.anything:
            return "unclear"  # the simulated world was fitted to noise
        if choice.is_personal:
            return "yes, personal"
        return "yes, without some" if leave else "yes"
    return "no" if choice.gain.high < 0 else "unclear"


def _wins(personal: SystemOutcome, common: SystemOutcome, outlook: Prospects) -> bool:
    """Whether a parameter for each agent earns more than one for all and than learning alone, beyond chance."""
    better = personal.lead_over(common).low > 0 and personal.lead_over(outlook.alone).low > 0
    return better or (common.gain.low <= 0 and personal.gain.low > 0)


def _about_personal(advice: Advice) -> tuple[str, ...]:
    """What a parameter for each agent changes, and what clusters of agents would."""
    outlook, choice = advice.outlook, advice.choice
    best = choice if choice.is_personal else outlook.recommended_personal(advice.budget)
    if best is None:
        return ()
    common = outlook.recommended(advice.budget)
    lead = best.lead_over(common)
    text = (
        f"With a parameter for each agent (personal) at α = {best.alpha:g} it is {lead.mean:+.3g} ± {lead.half:.2g} "
        f"per decision beside one parameter for all at α = {common.alpha:g}, and {best.gain.mean:+.3g} ± "
        f"{best.gain.half:.2g} beside learning alone"
    )
    if outlook.clusters is not None:
        apart = outlook.clusters.lead_over(best)
        text += (
            f"; clusters that a central learner finds (CLUB, two messages per decision) would change that by "
            f"{apart.mean:+.3g} ± {apart.half:.2g}"
        )
    return (f"{text}.{' Create the model with --personal auto.' if choice.is_personal else ''}",)


def _reasons(advice: Advice) -> tuple[str, ...]:
    return (
        *_about_nothing(advice),
        _about_gain(advice),
        *_about_personal(advice),
        *_about_aim(advice),
        _about_difference(advice),
        *_about_outliers(advice),
        _about_shape(advice),
        *_about_blocks(advice.log),
        *_about_columns(advice.log),
    )


def _about_gain(advice: Advice) -> str:
    choice, outlook = advice.choice, advice.outlook
    change = (
        f"{choice.gain.mean:+.3g} ± {choice.gain.half:.2g} (95 % interval) reward per decision over "
        f"{outlook.n_rounds:,} decisions (alone {outlook.alone.reward:.3g}, everything shared "
        f"{outlook.shared.reward:.3g})"
    )
    if choice.is_personal:
        return (
            f"Learning together, each agent with a parameter of its own, at α = {choice.alpha:g} earns {change}, for "
            f"{_cost(advice)}."
        )
    if choice.gain.low > 0:
        return f"Learning together at α = {choice.alpha:g} earns {change}, for {_cost(advice)}."
    if choice.gain.high < 0:
        return f"Learning together costs reward even at the best α tried, {choice.alpha:g}: {change}."
    return f"Learning together at α = {choice.alpha:g} changes {change}: no clear gain, no clear loss."


def _cost(advice: Advice) -> str:
    """Messages and bytes of the choice, and those of raw rows."""
    choice, rows = advice.choice, advice.sharing_cost
    return (
        f"{choice.messages:,.0f} messages ({human_bytes(choice.n_bytes)}; all rows sent once as they are would be "
        f"{human_bytes(rows.raw_bytes)}, and the sums are fewer bytes from about "
        f"{rows.rounds_until_cheaper(choice.n_bytes):,.0f} decisions on)"
    )


def _about_blocks(log: DecisionData) -> tuple[str, ...]:
    """How to make the model of a log with arms."""
    if log.blocks == 1:
        return ()
    return (
        f"Arms are disjoint: a model with one block per arm (blocks = {log.blocks}; `models create --warm-start` makes "
        f"it from this log) decides as the dense one does, with messages of at most "
        f"{human_bytes(n_bytes(log.dim, log.blocks))} instead of {human_bytes(n_bytes(log.dim))}.",
    )


def _about_nothing(advice: Advice) -> tuple[str, ...]:
    if advice.explained.anything:
        return ()
    return (
        f"The features predict {max(advice.explained.best, 0.0):.1%} of the variance of rewards out of sample, not "
        "more than chance does: gains are simulated from a model that was fitted to noise. Look for better features.",
    )


def _about_aim(advice: Advice) -> tuple[str, ...]:
    if advice.reaches_its_aim or not advice.verdict.startswith("yes"):
        return ()
    choice, outlook, budget = advice.choice, advice.outlook, advice.budget
    if budget is not None:
        return (
            f"No α that was tried stays within {budget:,} messages: α = {choice.alpha:g} needs the fewest, "
            f"{choice.messages:,.0f}.",
        )
    return (
        f"No α that was tried keeps {ENOUGH:.0%} of the largest gain ({outlook.best_gain:.3g}); α = {choice.alpha:g} "
        f"keeps the most, {outlook.share_of_gain(choice):.0%}.",
    )


def _about_columns(log: DecisionData) -> tuple[str, ...]:
    """What was used as features and what was not, with the reason."""
    if log.arms is None or "@" not in log.feature_names[0]:
        used = f"Features: {shortened(log.feature_names)}."
    else:
        inputs = tuple(dict.fromkeys(name.rpartition("@")[0] for name in log.feature_names))
        order = f"in a block for each arm, in the order {shortened(log.arms)}"
        used = f"Features: {shortened(inputs)} (1 is a constant), {order}."
    left = "; ".join(f"{name} ({why})" for name, why in log.left_out)
    return (used, *([f"Columns that are not used: {left}."] if left else []))


def shortened(names: Sequence[str], most: int = 12) -> str:
    """The first names, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _about_difference(advice: Advice) -> str:
    test = advice.test
    if test.differs:
        text = f"Agents differ beyond chance (p = {test.p_value:.2g}); their spread is {advice.spread:.2g} of the noise"
        text += ", after leaving out the outliers" if advice.outlier_names else ""
        if math.isinf(advice.independence) or advice.spread == 0:
            return text + "."
        side = "still below" if advice.spread < advice.break_even else "above"
        return (
            f"{text}, {side} the {advice.break_even:.2g} at which sharing no longer pays off at this amount of data. "
            f"An agent is better off alone after about {advice.independence:,.0f} decisions of its own."
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


def _about_outliers(advice: Advice) -> tuple[str, ...]:
    if not advice.outliers.agents:
        return ()
    if not advice.outliers.core:
        return ("No core of agents follows one parameter: there is none to leave out. Groups may exist.",)
    names = advice.outlier_names
    verb = "follows" if len(names) == 1 else "follow"
    return (f"{shortened(names, 10)} {verb} another parameter than the rest and should learn apart.",)


def _about_shape(advice: Advice) -> str:
    best, constant = advice.explained.best, advice.explained.shared_with_constant
    fit = f"The linear model predicts {max(best, 0.0):.1%} of the variance of rewards out of sample"
    if advice.curved.is_significant:
        return (
            f"{fit}. Rewards are not linear in the features: nonlinear terms would explain another "
            f"{advice.curved.share:.1%} of the rest. Add such features first."
        )
    weak = " That is next to nothing: look for better features first." if best < 0.01 else ""
    if constant > max(best, 0.0) + 0.01:
        weak = f" With a constant it would be {constant:.1%}: add a column of ones."
    return f"{fit}; no nonlinear terms are left to explain (p = {advice.curved.p_value:.2g}).{weak}"
