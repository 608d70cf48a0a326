"""Sufficient statistics: they add, they pack, and they say when they cannot."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedbandit import SufficientStats
from fedbandit.core.statistics import BLOCK, RunningStats, pack_symmetric, packed_length, unpack_symmetric
from fedbandit.errors import DimensionMismatch, EmptyDecisionSet, NotFinite
from tests.builders import assert_stats_close, rows, stats_of

# Multiples of 1/8 of moderate size: their products and sums are exact, so equality can be demanded to the bit.
exact = st.integers(-64, 64).map(lambda i: i / 8)


@st.composite
def datasets(draw, dim=3):
    n = draw(st.integers(1, 8))
    return draw(arrays(float, (n, dim), elements=exact)), draw(arrays(float, n, elements=exact))


@given(datasets(), datasets())
def test_two_statistics_add_to_those_of_both_data_sets_together(first, second):
    together = SufficientStats.of(np.vstack([first[0], second[0]]), np.concatenate([first[1], second[1]]))
    assert SufficientStats.of(*first) + SufficientStats.of(*second) == together


@given(datasets(), datasets())
def test_taking_away_what_was_added_restores_the_statistics(first, second):
    one, two = SufficientStats.of(*first), SufficientStats.of(*second)
    assert (one + two) - two == one


@given(datasets())
def test_observing_pairs_one_by_one_equals_the_matrix_products(data):
    X, y = data
    running = RunningStats(3)
    for x, reward in zip(X, y, strict=True):
        running.observe(x, reward)
    snapshot = running.snapshot()
    assert snapshot == SufficientStats.of(X, y)
    np.testing.assert_array_equal(snapshot.Sigma, X.T @ X)
    np.testing.assert_array_equal(snapshot.b, X.T @ y)
    assert snapshot.reward_sq_sum == y @ y


def test_zero_is_neutral_and_the_prior_holds_the_ridge_and_no_data():
    stats = SufficientStats.of(rows(4), np.ones(4))
    assert stats + SufficientStats.zeros(3) == stats
    prior = SufficientStats.prior(dim=3, lam=0.5)
    np.testing.assert_array_equal(prior.Sigma, 0.5 * np.eye(3))
    assert prior.n_obs == 0 and not prior.b.any()


def test_a_buffer_takes_sums_from_elsewhere_and_clears():
    running = RunningStats(3)
    running.observe(np.ones(3), 2.0)
    running.add(SufficientStats.of(rows(5), np.arange(5.0)))
    expected = stats_of([(np.ones(3), 2.0), *zip(rows(5), np.arange(5.0), strict=True)], 3)
    assert_stats_close(running.snapshot(), expected)
    running.clear()
    assert running.snapshot() == SufficientStats.zeros(3)


def test_a_long_run_of_pairs_is_summed_without_anybody_looking():
    X, y = np.random.default_rng(0).integers(-3, 4, size=(100, 3)).astype(float), np.arange(100.0)
    running = RunningStats(3)
    for x, reward in zip(X, y, strict=True):
        running.observe(x, reward)
    assert running.snapshot() == SufficientStats.of(X, y)


def test_pairs_are_counted_before_anybody_looks_at_their_sums():
    running = RunningStats(2)
    for n in range(70):
        assert running.n_obs == n
        running.observe(np.ones(2), 1.0)


def test_a_block_that_an_exception_kept_from_being_added_is_added_by_the_next_pair(monkeypatch):
    def interrupted(running):
        raise KeyboardInterrupt

    X, y = np.random.default_rng(0).integers(-3, 4, size=(100, 3)).astype(float), np.arange(100.0)
    running = RunningStats(3)
    for n, (x, reward) in enumerate(zip(X, y, strict=True)):
        with monkeypatch.context() as patch:
            if n % BLOCK == BLOCK - 1:
                patch.setattr(RunningStats, "snapshot", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    running.observe(x, reward)
            else:
                running.observe(x, reward)
        assert running.n_obs == n + 1
    assert running.snapshot() == SufficientStats.of(X, y)


def test_clearing_also_drops_the_pairs_that_are_not_summed_yet():
    running = RunningStats(2)
    running.observe(np.ones(2), 1.0)
    running.clear()
    assert running.snapshot() == SufficientStats.zeros(2)


def test_a_snapshot_does_not_follow_its_buffer_and_cannot_be_written():
    running = RunningStats(2)
    running.observe(np.ones(2), 1.0)
    snapshot = running.snapshot()
    running.observe(np.ones(2), 1.0)
    assert snapshot.n_obs == 1 and snapshot.Sigma[0, 0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        snapshot.Sigma[0, 0] = 7.0


@pytest.mark.parametrize("dim", [1, 2, 5, 400])
def test_packing_keeps_the_upper_triangle_and_unpacking_restores_the_matrix(dim):
    X = rows(3, dim)
    Sigma = X.T @ X
    packed = pack_symmetric(Sigma)
    assert packed.shape == (packed_length(dim),) == (dim * (dim + 1) // 2,)
    np.testing.assert_array_equal(unpack_symmetric(packed, dim), Sigma)


@given(datasets(), datasets())
def test_a_sum_of_packed_matrices_is_the_packed_sum(first, second):
    one, two = SufficientStats.of(*first).Sigma, SufficientStats.of(*second).Sigma
    np.testing.assert_array_equal(pack_symmetric(one) + pack_symmetric(two), pack_symmetric(one + two))


def test_equality_looks_at_every_number_and_equal_ones_have_equal_hashes():
    one = SufficientStats.of([[1.0, 2.0]], [3.0])
    same = SufficientStats.of([[1.0, 2.0]], [3.0])
    assert one == same and hash(one) == hash(same)
    for other in ([[1.0, 2.0]], [-3.0]), ([[2.0, 1.0]], [3.0]), ([[1.0, 2.0], [0.0, 0.0]], [3.0, 0.0]):
        assert one != SufficientStats.of(*other)
    assert one != "statistics"


def test_statistics_of_other_dimensions_do_not_add():
    two, three = SufficientStats.zeros(2), SufficientStats.zeros(3)
    for combine in (lambda: two + three, lambda: two - three, lambda: RunningStats(2).add(three)):
        with pytest.raises(DimensionMismatch, match="expected statistics of 2 features, got 3"):
            combine()
    with pytest.raises(DimensionMismatch, match="expected 3 packed numbers"):
        unpack_symmetric(np.zeros(4), 2)


def test_data_that_cannot_be_summed_is_a_named_error():
    with pytest.raises(NotFinite):
        SufficientStats.of([[np.nan, 1.0]], [1.0])
    with pytest.raises(NotFinite):
        SufficientStats.of([[1.0, 1.0]], [np.inf])
    with pytest.raises(DimensionMismatch, match="rewards"):
        SufficientStats.of([[1.0, 1.0]], [1.0, 2.0])
    with pytest.raises(DimensionMismatch):
        SufficientStats.of([1.0, 1.0], [1.0])
    with pytest.raises(EmptyDecisionSet):
        SufficientStats.of(np.empty((0, 2)), [])
