"""The numbers behind the page: shares add up, leaving one out is a refit, lines look back only."""

import numpy as np
import pytest

from fedbandit.algorithms.messages import packed_bytes
from fedbandit.core.radius import Adaptive, Counted, Exogenous, Paper
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.dashboard.figures import lately, picture_of, pull_of
from fedbandit.dashboard.guarantee import residual_noise
from fedbandit.service.model import GrowthWindow, Model
from fedbandit.service.stores.base import State
from tests.service.uploads import settings

LAM = 0.5
THETA = np.array([0.5, -0.2, 0.1])


def data(seed, n=40, dim=3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, dim))
    return SufficientStats.of(X, X @ THETA[:dim] + 0.1 * rng.standard_normal(n))


def picture(*parts, **changes):
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
    return picture_of(State(model, packed_bytes(total)))


def test_shares_of_all_agents_and_the_prior_add_to_one():
    parts = [data(1, 10), data(2, 100), data(3, 1)]
    shown = picture(*parts)
    shares = [shown.share(packed_bytes(part)) for part in parts]
    assert sum(shares) + shown.prior_share == pytest.approx(1.0)
    assert shares[1] > shares[0] > shares[2] > 0
    assert shown.share(None) == 0.0


def test_the_pull_is_the_estimate_minus_a_fit_without_the_agent():
    ours, theirs = data(1), data(2)
    shown = picture(ours, theirs)
    without = RidgeModel(SufficientStats.prior(dim=3, lam=LAM) + theirs)
    pull = pull_of(shown, packed_bytes(ours), 3)
    change = shown.ridge.theta_hat - without.theta_hat
    assert {item.feature: item.value for item in pull.changes} == pytest.approx(
        {f"feature {i + 1}": change[i] for i in range(3)}
    )
    sizes = [abs(item.value) for item in pull.changes]
    assert sizes == sorted(sizes, reverse=True)
    assert pull.distance == pytest.approx(shown.ridge.distance(without.theta_hat))


def test_the_pull_of_whoever_has_all_the_data_is_the_whole_estimate():
    huge = SufficientStats.of(1e8 * np.eye(3), [1e8, 2e8, 3e8])
    shown = picture(huge)
    pull = pull_of(shown, packed_bytes(huge), 3)
    assert [item.value for item in pull.changes] == pytest.approx([3.0, 2.0, 1.0])


def test_estimates_have_the_width_of_the_radius_and_the_largest_stand_first_when_there_are_many():
    shown = picture(data(1), data(2))
    everything = shown.estimates(limit=3)
    assert [item.feature for item in everything] == ["feature 1", "feature 2", "feature 3"]
    widths = shown.ridge.widths(np.eye(3))
    assert [item.half_width for item in everything] == pytest.approx((0.5 * widths).tolist())
    assert [item.feature for item in shown.estimates(limit=2)] == ["feature 1", "feature 2"]


def test_the_line_of_late_rewards_never_looks_ahead():
    rng = np.random.default_rng(0)
    n = np.cumsum(rng.integers(1, 50, size=100)).astype(float)
    totals = list(zip(np.arange(100.0), n, np.cumsum(rng.random(100)), strict=True))
    line = lately(totals)
    short = lately(totals[:60])
    assert line.x[: len(short.x)] == short.x and line.y[: len(short.y)] == short.y


def test_the_line_of_late_rewards_begins_anew_where_the_count_falls():
    line = lately([(1.0, 100, 50.0), (2.0, 60, 30.0), (3.0, 100, 70.0)])
    assert line.y == [0.5, None, 1.0]


def test_the_noise_is_estimated_from_what_the_model_cannot_explain():
    shown = picture(data(1, 500), data(2, 500))
    assert residual_noise(shown.ridge, LAM) == pytest.approx(0.1, rel=0.15)
    assert residual_noise(picture(data(1, 5)).ridge, LAM) is None


def test_a_fixed_radius_promises_nothing_and_says_what_would():
    found = picture(data(1), data(2)).guarantee
    assert (found.verdict, found.beta) == ("none", 0.5)
    assert found.needed is not None and found.needed > 0.1


def test_growth_within_one_observation_of_the_threshold_is_normal():
    radius = Adaptive(n_agents=2, noise_scale=0.1)
    within = picture(data(1), data(2), radius=radius, growth=GrowthWindow(1, np.log(3.0)), action_bound=1.0)
    assert within.guarantee.normal_alpha == pytest.approx(2 * (1 + 1 / LAM) - 1)
    assert within.guarantee.verdict == "holds"
    beyond = picture(data(1), data(2), radius=radius, growth=GrowthWindow(1, np.log(10.0)), action_bound=1.0)
    assert beyond.guarantee.verdict == "stretched"
    assert beyond.guarantee.needed > beyond.guarantee.beta
    assert "effective alpha of 9" in beyond.guarantee.sentence


def test_more_agents_or_rounds_than_the_radius_was_made_for_stretch_it():
    radius = Adaptive(n_agents=1, noise_scale=0.1)
    assert "2 agents are enrolled" in picture(data(1), data(2), radius=radius).guarantee.sentence
    radius = Paper(n_agents=2, n_rounds=10, noise_scale=0.1)
    assert picture(data(1), data(2), radius=radius, n_agents=5).guarantee.verdict == "stretched"


@pytest.mark.parametrize("radius", [Exogenous(noise_scale=0.1), Counted(noise_scale=0.1)])
def test_a_radius_that_does_not_know_alpha_does_not_mind_it(radius):
    found = picture(data(1), radius=radius, growth=GrowthWindow(1, 20.0)).guarantee
    assert found.verdict == "holds" and found.needed == found.beta


def test_the_printed_radius_at_alpha_zero_is_no_crash():
    radius = Paper(n_agents=2, n_rounds=10, noise_scale=0.1)
    assert picture(data(1), radius=radius, alpha=0.0).guarantee.beta == np.inf
