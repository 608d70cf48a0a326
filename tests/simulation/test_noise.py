"""Rewards that are not Gaussian, and decision sets whose size varies: the statements of each kind, in both engines."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.worlds.noise import NOISE_KINDS
from tests.simulation.engines import assert_same_trace, both_engines

RULES = {
    "fedlinucb": fb.FedLinUCB(dim=3, alpha=0.5, beta=0.5),
    "oful": fb.OFUL(dim=3, beta=0.5),
    "dislinucb": fb.DisLinUCB(dim=3, beta=0.5, threshold=1.0),
    "async-linucb": fb.AsyncLinUCB(dim=3, beta=0.5, gamma_up=1.5, gamma_down=1.5),
    "dcb": fb.DCB(dim=3, beta=0.5),
}
WORLDS = {
    "sphere": lambda **more: fb.worlds.sphere(dim=3, n_actions=6, noise=0.4, **more),
    "articles": lambda **more: fb.worlds.articles(dim=3, n_actions=6, n_articles=30, noise=0.4, **more),
}


def block_of(world, seed=0, n_blocks=4):
    stream = world.stream(np.random.SeedSequence(seed))
    return [stream.draw(np.zeros(world.block_rounds, dtype=np.int64)) for _ in range(n_blocks)]


def rewards_and_means(kind):
    blocks = block_of(WORLDS["sphere"](noise_kind=kind))
    means = np.concatenate([block.means for block in blocks])
    noise = np.concatenate([block.noise if block.noise.ndim == 2 else block.noise[:, None] for block in blocks])
    return means + noise, np.broadcast_to(means, (len(means), 6)), blocks


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_noise_has_mean_zero(kind):
    rewards, means, _ = rewards_and_means(kind)
    gap = (rewards - means)[:, 0]
    assert abs(gap.mean()) < 4 * gap.std() / np.sqrt(len(gap))


def test_uniform_noise_is_bounded_and_has_the_standard_deviation_asked_for():
    _, _, blocks = rewards_and_means("uniform")
    noise = np.concatenate([block.noise for block in blocks])
    assert np.abs(noise).max() <= 0.4 * np.sqrt(3)
    assert noise.std() == pytest.approx(0.4, rel=0.05)


def test_heteroscedastic_noise_grows_with_the_mean():
    rewards, means, _ = rewards_and_means("heteroscedastic")
    gap = rewards - means
    high, low = gap[means > 0.5], gap[means < -0.5]
    assert high.std() > 2 * low.std()
    assert np.sqrt((gap**2).mean()) < 0.4


def test_signs_are_plus_or_minus_one_with_a_linear_mean():
    rewards, means, blocks = rewards_and_means("signs")
    assert set(np.unique(rewards.round(12))) == {-1.0, 1.0}
    np.testing.assert_allclose(means[:50], (blocks[0].array @ theta("signs"))[:50])
    with pytest.raises(InvalidParameter, match="means within"):
        block_of(fb.worlds.adversarial(dim=2, gap=3.0, noise_kind="signs"))


def test_bernoulli_rewards_have_the_logistic_mean():
    rewards, means, blocks = rewards_and_means("bernoulli")
    assert set(np.unique(rewards.round(12))) == {0.0, 1.0}
    np.testing.assert_allclose(means[:50], (1 / (1 + np.exp(-blocks[0].array @ theta("bernoulli"))))[:50])


def theta(kind):
    return WORLDS["sphere"](noise_kind=kind).stream(np.random.SeedSequence(0)).theta_star


def test_gaussian_noise_is_what_it_was_and_actions_do_not_depend_on_the_kind():
    plain, other = block_of(WORLDS["sphere"]())[0], block_of(WORLDS["sphere"](noise_kind="signs"))[0]
    assert np.array_equal(plain.array, other.array)
    noise = np.random.SeedSequence(0).spawn(3)[2]
    assert np.array_equal(plain.noise, 0.4 * fb.worlds.generator(noise).standard_normal(len(plain)))


def test_kinds_that_a_world_cannot_draw_are_named_errors():
    with pytest.raises(InvalidParameter, match="noise_kind to be one of gaussian, uniform, hetero"):
        fb.worlds.sphere(noise_kind="cauchy")
    with pytest.raises(InvalidParameter, match="one of gaussian, uniform, got 'signs'"):
        fb.worlds.ball(noise_kind="signs")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("world", WORLDS)
def test_both_engines_agree_on_every_kind_and_on_sizes_that_vary(rule, world):
    pytest.importorskip("numba")
    for kind in ("heteroscedastic", "bernoulli"):
        place = WORLDS[world](noise_kind=kind, fewest_actions=2)
        assert_same_trace(*both_engines(RULES[rule], place, n_agents=4, n_rounds=200, seed=1))


def test_a_round_offers_the_number_of_actions_that_was_drawn():
    block = block_of(WORLDS["sphere"](fewest_actions=2), n_blocks=1)[0]
    offered = [len(block.actions(i)) for i in range(len(block))]
    assert offered == block.sizes.tolist() and set(offered) == {2, 3, 4, 5, 6}
    plain = block_of(WORLDS["sphere"](), n_blocks=1)[0]
    assert np.array_equal(plain.array, block.array) and np.array_equal(plain.noise, block.noise)
    seen = fb.simulate(RULES["oful"], WORLDS["sphere"](fewest_actions=1), n_agents=2, n_rounds=300, record="all")
    again = block_of(WORLDS["sphere"](fewest_actions=1), seed=0, n_blocks=1)[0]
    assert (seen.choices.max() >= 3) and again.sizes.min() == 1


@pytest.mark.parametrize("sizes", [[0] * 16, [7] * 16, [1.5] * 16, [1] * 3])
def test_bad_sizes_are_named_errors_in_both_engines(sizes):
    from dataclasses import replace

    world = WORLDS["sphere"]()

    class Odd:
        name, dim, block_rounds = "odd", 3, 16

        def stream(self, seed):
            stream = world.stream(seed)
            make = stream.make
            stream.make = lambda rng, active: replace(make(rng, active), sizes=np.array(sizes))
            return stream

    for engine in ("reference", "auto"):
        with pytest.raises(fb.errors.InvalidInput):
            fb.simulate(RULES["oful"], Odd(), n_agents=2, n_rounds=5, engine=engine)


def test_fewest_actions_must_fit():
    with pytest.raises(InvalidParameter, match="fewest_actions ≤ n_actions"):
        fb.worlds.uniform(n_actions=3, fewest_actions=4)
