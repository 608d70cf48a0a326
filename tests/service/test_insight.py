"""Insight into a model: shares add up, influence is a fit without the agent, and a guarantee is never confirmed."""

import numpy as np
import pytest

from fedbandit.algorithms.messages import packed_bytes
from fedbandit.core.radius import Adaptive, Counted, Exogenous, Paper
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.service.insight import ModelInsight, residual_noise, with_contribution
from fedbandit.service.model import GrowthWindow, Model
from fedbandit.service.stores.base import ModelState
from tests.service.uploads import settings

LAM = 0.5
THETA = np.array([0.5, -0.2, 0.1])


def data(seed, n=40, dim=3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, dim))
    return SufficientStats.of(X, X @ THETA[:dim] + 0.1 * rng.standard_normal(n))


def state_of(*parts, **changes):
    total = SufficientStats.prior(dim=3, lam=LAM)
    for part in parts:
        total = total + part
    growth = changes.pop("growth", GrowthWindow())
    n_agents = changes.pop("n_agents", len(parts))
    model = Model(
        settings(lam=LAM, **changes),
        "uid",
        0.0,
        version=len(parts),
        n_uploads=len(parts),
        n_obs=total.n_obs,
        reward_sum=total.reward_sum,
        reward_sq_sum=total.reward_sq_sum,
        growth=growth,
        n_agents=n_agents,
    )
    return ModelState(model, packed_bytes(total))


def insight_into(*parts, **changes):
    return ModelInsight(state_of(*parts, **changes))


def test_shares_of_all_agents_and_the_prior_add_to_one():
    parts = [data(1, 10), data(2, 100), data(3, 1)]
    shown = insight_into(*parts)
    shares = [shown.share(packed_bytes(part)) for part in parts]
    assert sum(shares) + shown.prior_share == pytest.approx(1.0)
    assert shares[1] > shares[0] > shares[2] > 0
    assert shown.share(None) == 0.0


def test_influence_is_the_estimate_minus_a_fit_without_the_agent():
    ours, theirs = data(1), data(2)
    shown = insight_into(ours, theirs)
    without = RidgeModel(SufficientStats.prior(dim=3, lam=LAM) + theirs)
    found = shown.influence(packed_bytes(ours))
    change = shown.ridge.theta_hat - without.theta_hat
    intervals = shown.intervals(found.change, limit=3, sort=True)
    assert {item.feature: item.value for item in intervals} == pytest.approx(
        {f"feature {i + 1}": change[i] for i in range(3)}
    )
    sizes = [abs(item.value) for item in intervals]
    assert sizes == sorted(sizes, reverse=True)
    assert found.shift == pytest.approx(shown.ridge.distance(without.theta_hat))
    assert found.share == pytest.approx(np.trace(np.linalg.solve(shown.ridge.stats.Sigma, ours.Sigma)) / 3)


def test_the_influence_of_whoever_has_all_the_data_is_the_whole_estimate():
    huge = SufficientStats.of(1e8 * np.eye(3), [1e8, 2e8, 3e8])
    assert insight_into(huge).influence(packed_bytes(huge)).change == pytest.approx([1.0, 2.0, 3.0])


def test_a_contribution_in_quarantine_is_assessed_as_if_it_were_released():
    ours, theirs = data(1), data(2)
    put_back = with_contribution(state_of(theirs), packed_bytes(ours))
    merged = state_of(theirs, ours)
    assert put_back.model.n_obs == merged.model.n_obs
    assert put_back.model.reward_sum == pytest.approx(merged.model.reward_sum)
    assert ModelInsight(put_back).ridge.theta_hat == pytest.approx(ModelInsight(merged).ridge.theta_hat)


def test_estimates_have_the_width_of_the_radius_and_the_largest_stand_first_when_there_are_many():
    shown = insight_into(data(1), data(2))
    theta = shown.ridge.theta_hat
    everything = shown.intervals(theta, limit=3)
    assert [item.feature for item in everything] == ["feature 1", "feature 2", "feature 3"]
    widths = shown.ridge.widths(np.eye(3))
    assert [item.half_width for item in everything] == pytest.approx((0.5 * widths).tolist())
    assert [item.feature for item in shown.intervals(theta, limit=2)] == ["feature 1", "feature 2"]


def test_the_noise_is_estimated_from_what_the_model_cannot_explain():
    shown = insight_into(data(1, 500), data(2, 500))
    assert residual_noise(shown.ridge, LAM) == pytest.approx(0.1, rel=0.15)
    assert residual_noise(insight_into(data(1, 5)).ridge, LAM) is None


def test_a_fixed_radius_has_no_guarantee_and_the_estimated_one_stands_beside_it():
    found = insight_into(data(1), data(2)).guarantee
    assert "has no guarantee" in found.explanation and found.beta == 0.5
    assert {check.name for check in found.checks} == {"buffers"}
    assert found.beta_needed is not None and found.beta_needed > 0.1


def states(found):
    return {check.name: check.state for check in found.checks}


def advice(found):
    return "; ".join(check.advice for check in found.checks if check.state == "contradicted")


def test_growth_within_one_observation_of_the_threshold_is_normal():
    radius = Adaptive(n_agents=2, noise_scale=0.15)
    within = insight_into(data(1), data(2), radius=radius, growth=GrowthWindow(1, np.log(3.0)), action_bound=1.0)
    assert within.guarantee.normal_alpha == pytest.approx(2 * (1 + 1 / LAM) - 1)
    assert states(within.guarantee)["buffers"] == "held"
    beyond = insight_into(data(1), data(2), radius=radius, growth=GrowthWindow(1, np.log(10.0)), action_bound=1.0)
    assert states(beyond.guarantee)["buffers"] == "contradicted"
    assert beyond.guarantee.beta_needed > beyond.guarantee.beta
    assert "effective alpha of 9" in beyond.guarantee.explanation


def test_more_agents_or_rounds_than_the_radius_was_made_for_contradict_it():
    radius = Adaptive(n_agents=1, noise_scale=0.15)
    assert "2 agents are enrolled" in insight_into(data(1), data(2), radius=radius).guarantee.explanation
    radius = Paper(n_agents=2, n_rounds=10, noise_scale=0.15, action_bound=3.0)
    assert states(insight_into(data(1), data(2), radius=radius, n_agents=5).guarantee)["buffers"] == "contradicted"


@pytest.mark.parametrize("kind", [Exogenous, Counted, Adaptive, Paper])
def test_nothing_is_called_good_that_was_not_tested(kind):
    numbers = {"noise_scale": 0.15}
    if kind in (Adaptive, Paper):
        numbers |= {"n_agents": 3}
    if kind is Paper:
        numbers |= {"n_rounds": 10_000, "action_bound": 3.0}
    found = insight_into(
        data(1, 500), radius=kind(**numbers), growth=GrowthWindow(1, 20.0 if kind is Exogenous else 0.1)
    )
    tested = {name for name, state in states(found.guarantee).items() if state == "held"}
    assert tested <= {"noise_scale", "theta_bound", "buffers"}
    assert states(found.guarantee)["buffers"] == ("contradicted" if kind is Exogenous else "held")


def test_a_fleet_of_opposite_halves_contradicts_the_declared_noise():
    def half(seed, sign):
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((400, 3))
        return SufficientStats.of(X, sign * (X @ THETA) + 0.1 * rng.standard_normal(400))

    found = insight_into(half(1, 1.0), half(2, -1.0), radius=Exogenous(noise_scale=0.1)).guarantee
    assert states(found)["noise_scale"] == "contradicted" and "noise" in found.explanation


def test_an_estimate_far_outside_its_bound_contradicts_it():
    found = insight_into(data(1, 500), data(2, 500), radius=Exogenous(noise_scale=0.15, theta_bound=0.1)).guarantee
    assert states(found)["theta_bound"] == "contradicted" and "theta_bound" in advice(found)


def test_actions_longer_than_a_counted_radius_assumes_contradict_it():
    found = insight_into(data(1, 500), radius=Counted(noise_scale=0.15)).guarantee
    assert states(found)["action_bound"] == "contradicted"


def test_the_printed_radius_at_alpha_zero_is_no_crash():
    radius = Paper(n_agents=2, n_rounds=10, noise_scale=0.1)
    found = insight_into(data(1), radius=radius, alpha=0.0)
    assert found.guarantee.beta == np.inf
    told = found.to_dict()
    assert told["beta"] is None and {item["half_width"] for item in told["estimates"]} == {None}
