"""The arms of a model with blocks: what is told of each is what was observed."""

import numpy as np
import pytest

from fedbandit.algorithms.messages import packed_bytes
from fedbandit.core.features import block_features
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import InvalidParameter
from fedbandit.service.arms import arm_table
from fedbandit.service.insight import ModelInsight
from fedbandit.service.model import Model, totals_of
from fedbandit.service.stores.base import ModelState
from fedbandit.wire.settings import ModelSettings

K = 5


def insight(rows, rewards, *, blocks=K, **settings):
    dim = rows.shape[1]
    values = {"name": "news", "dim": dim, "alpha": 1.0, "beta": 0.5, "lam": 0.3, "blocks": blocks}
    made = ModelSettings.of_request({**values, **settings})
    stats = SufficientStats.prior(dim=dim, lam=0.3, blocks=blocks)
    packed = packed_bytes(stats + SufficientStats.of(rows, rewards, blocks=blocks))
    n_obs, reward_sum, reward_sq_sum = totals_of(packed)
    model = Model(made, "uid", 0.0, n_obs=n_obs, reward_sum=reward_sum, reward_sq_sum=reward_sq_sum)
    return ModelInsight(ModelState(model, packed))


def observed(n=200, *, bias=True, seed=0):
    rng = np.random.default_rng(seed)
    arms = rng.choice(K - 1, size=n)  # the last arm is never chosen
    rows = np.array([block_features(rng.normal(size=3), K, bias=bias)[arm] for arm in arms])
    return arms, rows, rng.normal(size=n) + arms


def test_observations_and_mean_rewards_of_each_arm_are_exact():
    arms, rows, rewards = observed()
    found = arm_table(insight(rows, rewards))
    for k, arm in enumerate(found.arms[:-1]):
        assert arm.n_obs == int((arms == k).sum())
        assert arm.mean_reward == pytest.approx(float(rewards[arms == k].mean()))
    last = found.arms[-1]
    assert (last.n_obs, last.mean_reward, last.norm) == (0, None, 0.0) and last.share == pytest.approx(0.0, abs=1e-12)


def test_the_shares_of_all_arms_and_of_the_prior_add_to_one():
    _, rows, rewards = observed()
    found = arm_table(insight(rows, rewards))
    assert sum(arm.share for arm in found.arms) + found.prior_share == pytest.approx(1.0)


def test_the_norm_is_that_of_the_arms_estimate():
    _, rows, rewards = observed()
    made = insight(rows, rewards)
    theta = made.ridge.theta_hat.reshape(K, -1)
    assert [arm.norm for arm in arm_table(made).arms] == pytest.approx(np.linalg.norm(theta, axis=1).tolist())


def test_without_a_constant_feature_counts_are_not_told():
    _, rows, rewards = observed(bias=False)
    found = arm_table(insight(rows, rewards))
    assert found.constant is None and {arm.n_obs for arm in found.arms} == {None}
    assert found.arms[0].share > 0


def test_arms_are_sorted_and_those_without_a_value_come_last():
    _, rows, rewards = observed()
    found = arm_table(insight(rows, rewards, arms=list("edcba")))
    shares = [arm.share for arm in found.sorted("-share")]
    assert shares == sorted(shares, reverse=True)
    assert [arm.name for arm in found.sorted("name")] == list("abcde")
    for sort in ("mean_reward", "-mean_reward"):
        assert found.sorted(sort)[-1].mean_reward is None
    with pytest.raises(InvalidParameter, match="expected sort"):
        found.sorted("shoe-size")


def test_a_model_without_blocks_has_no_arms():
    with pytest.raises(InvalidParameter, match="has no blocks"):
        arm_table(insight(np.eye(3), np.ones(3), blocks=1))
