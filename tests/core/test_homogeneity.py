"""One parameter for all parts: what is a truth of the statistic, what it finds, and what it leaves alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbandit.core.homogeneity import LEVEL, compare_parts, compare_times
from fedbandit.core.statistics import SufficientStats


def data(rng, n, theta, *, noise=0.3, scale=1.0):
    X = rng.standard_normal((n, len(theta))) * scale
    return SufficientStats.of(X, X @ theta + noise * rng.standard_normal(n))


def summed(parts):
    total = SufficientStats.zeros(parts[0].dim)
    for part in parts:
        total = total + part
    return total


def parts_of(seed, counts, *, dim=3, differ=0.0, noise=0.3):
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(dim)
    return [data(rng, n, theta + differ * rng.standard_normal(dim), noise=noise) for n in counts]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.integers(20, 60), min_size=2, max_size=5))
def test_the_test_does_not_depend_on_the_units_of_features_and_rewards(seed, counts):
    parts = parts_of(seed, counts, differ=0.1)
    scale = np.array([1e-3, 1.0, 1e4])

    def rescaled(part):
        return SufficientStats(
            part.Sigma * np.multiply.outer(scale, scale),
            7.0 * part.b * scale,
            part.n_obs,
            7.0 * part.reward_sum,
            49.0 * part.reward_sq_sum,
        )

    found = compare_parts(parts, summed(parts))
    other = compare_parts([rescaled(part) for part in parts], rescaled(summed(parts)))
    assert other.p_value == pytest.approx(found.p_value, rel=1e-6)
    assert other.share == pytest.approx(found.share, rel=1e-6, abs=1e-9)
    assert other.noise == pytest.approx(7.0 * found.noise, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_two_parts_differ_from_each_other_by_one_and_the_same_gap(seed):
    parts = parts_of(seed, [40, 70], differ=0.2)
    found = compare_parts(parts, summed(parts))
    first, second = (item.statistic * max(noise, found.noise**2) for item, noise in own_noise(found, parts))
    assert first == pytest.approx(second, rel=1e-3)  # a gap near zero is a difference of large sums


def own_noise(found, parts):
    for item in found.parts:
        part = parts[item.index]
        rss = part.reward_sq_sum - part.b @ np.linalg.solve(part.Sigma, part.b)
        yield item, rss / (part.n_obs - part.dim)


def test_the_statistic_has_the_mean_and_the_level_of_its_distribution():
    """A thousand parts of one parameter: F is about 1, and hardly more than 5 % of p-values are below 5 %."""
    found = compare_parts(parts := parts_of(1, [60] * 1000, dim=4), summed(parts))
    ratios = [item.statistic / item.df for item in found.parts]
    # Below 1: the noise is the larger of two estimates, which adds up to half of its standard error, 13 %.
    assert 0.88 < np.mean(ratios) < 1.05
    p_values = np.array([item.p_value for item in found.parts])
    assert 0.015 < (p_values < 0.05).mean() < 0.065  # standard error 0.007
    assert not found.differs and found.share < found.detectable
    assert found.noise == pytest.approx(0.3, rel=0.02)


def test_a_single_part_with_another_parameter_is_found_and_named():
    parts = parts_of(2, [100] * 20)
    rng = np.random.default_rng(3)
    parts[13] = data(rng, 100, np.array([3.0, -3.0, 1.0]))
    found = compare_parts(parts, summed(parts))
    assert found.differs and found.parts[0].index == 13
    assert found.parts[0].statistic > 10 * found.parts[1].statistic


def test_many_small_differences_are_found_together_where_none_shows_alone():
    parts = parts_of(4, [150] * 100, dim=5, differ=0.02)
    found = compare_parts(parts, summed(parts))
    assert found.p_all < LEVEL < found.p_worst
    wanted = 5 * 0.02**2 / 0.3**2  # variance of ⟨θ_m − θ, x⟩ in units of the noise
    assert found.share == pytest.approx(wanted / (1 + wanted), rel=0.4)
    assert found.share > found.detectable


def test_directions_that_only_one_part_has_seen_are_no_difference():
    rng = np.random.default_rng(5)
    theta = np.array([1.0, -1.0, 2.0, 5.0])

    def only(columns, n=80):
        X = np.zeros((n, 4))
        X[:, columns] = rng.standard_normal((n, len(columns)))
        return SufficientStats.of(X, X @ theta + 0.1 * rng.standard_normal(n))

    apart = [only([0, 1]), only([2, 3])]
    found = compare_parts(apart, summed(apart))
    assert found.p_value == 1.0 and all(item.statistic < 0.5 for item in found.parts)
    shared = [only([0, 1]), only([1, 2]), only([2, 3])]
    assert [item.df for item in compare_parts(shared, summed(shared)).parts].count(2.0) == 1


def test_a_large_ridge_in_the_model_does_not_look_like_a_difference():
    """The test uses hardly any prior: λ‖θ‖²/R² = 10⁴ would otherwise shift the rest's estimate by a hundred σ."""
    parts = parts_of(6, [30, 30, 30], dim=5, noise=0.01)
    assert not compare_parts(parts, summed(parts)).differs


def test_a_part_with_more_noise_than_the_others_is_not_called_different():
    rng = np.random.default_rng(7)
    theta = rng.standard_normal(3)
    parts = [data(rng, 200, theta, noise=0.05) for _ in range(30)]
    parts += [data(rng, 60, theta, noise=1.0) for _ in range(3)]
    assert not compare_parts(parts, summed(parts)).differs


def test_rare_clicks_are_not_called_different():
    rng = np.random.default_rng(8)
    alarms = 0
    for _ in range(20):
        parts = []
        for _ in range(30):
            X = np.column_stack([np.ones(80), rng.standard_normal((80, 2))])
            parts.append(SufficientStats.of(X, (rng.random(80) < 0.02).astype(float)))
        alarms += compare_parts(parts, summed(parts)).differs
    assert alarms == 0


def test_too_few_data_are_not_tested():
    for parts in (parts_of(9, [5, 6, 7]), parts_of(9, [500]), [*parts_of(9, [50]), *parts_of(10, [2, 2, 2])]):
        assert compare_parts(parts, summed(parts)) is None


def test_exact_rewards_have_no_division_by_zero():
    rng = np.random.default_rng(11)
    parts = [data(rng, 40, np.array([1.0, 2.0]), noise=0.0) for _ in range(3)]
    assert compare_parts(parts, summed(parts)) is not None
    nothing = [SufficientStats.of(np.ones((30, 2)), np.zeros(30)) for _ in range(2)]
    assert not compare_parts(nothing, summed(nothing)).differs


def test_a_change_is_found_at_the_nearest_moment():
    rng = np.random.default_rng(12)
    theta = np.array([1.0, -0.5, 0.2])
    blocks = [data(rng, 50, theta if i < 6 else -theta) for i in range(10)]
    earlier = [summed(blocks[: i + 1]) for i in range(9)]
    found = compare_times(earlier, summed(blocks))
    assert found.differs and found.index == 5 and found.n_moments == 9
    steady = [data(rng, 50, theta) for _ in range(10)]
    found = compare_times([summed(steady[: i + 1]) for i in range(9)], summed(steady))
    assert not found.differs and found.p_value > 0.001
    assert compare_times([], summed(steady)) is None
