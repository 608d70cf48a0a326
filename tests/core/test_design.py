"""Designs: near-optimal, few rows, the same under linear maps, and never worse than where they start."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbandit.core.design import g_optimal, multi_agent, project_to_simplex, spread_rows
from fedbandit.errors import InvalidInput


def largest(X, weights):
    V = (X * weights[:, None]).T @ X
    return np.einsum("ij,jk,ik->i", X, np.linalg.pinv(V, rcond=1e-10, hermitian=True), X).max()


@settings(max_examples=40)
@given(k=st.integers(1, 60), dim=st.integers(1, 8), rank=st.integers(1, 8), seed=st.integers(0, 2**16))
def test_a_design_is_within_twice_the_rank_whatever_the_rows_span(k, dim, rank, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((k, min(rank, dim))) @ rng.standard_normal((min(rank, dim), dim))
    weights = g_optimal(X)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1.0)
    assert largest(X, weights) <= 2 * np.linalg.matrix_rank(X) * (1 + 1e-6)


def test_a_tighter_design_comes_near_the_rank():
    X = np.random.default_rng(0).standard_normal((80, 5))
    assert largest(X, g_optimal(X, near=1.01)) <= 5 * 1.01 * (1 + 1e-9)


def test_few_rows_have_weight():
    X = np.random.default_rng(1).standard_normal((1000, 20))
    assert np.count_nonzero(g_optimal(X)) <= 3 * 20  # Wang et al. allow 48 d log log d, about 1 050


def test_a_design_does_not_change_under_a_linear_map():
    rng = np.random.default_rng(2)
    X = rng.standard_normal((30, 4))
    A = rng.standard_normal((4, 4))
    assert largest(X @ A, g_optimal(X)) == pytest.approx(largest(X, g_optimal(X)))


def test_zero_vectors_have_no_design():
    with pytest.raises(InvalidInput, match="zero vectors"):
        g_optimal(np.zeros((3, 2)))


def test_spread_rows_are_distinct_and_span_what_the_rows_span():
    X = np.random.default_rng(3).standard_normal((50, 6))
    chosen = spread_rows(X, 10)
    assert len(set(chosen.tolist())) == 10
    assert np.linalg.matrix_rank(X[chosen[:6]]) == 6
    assert spread_rows(X[:4], 10).tolist() == [0, 1, 2, 3]


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=8))
def test_the_projection_is_a_distribution_and_no_other_is_nearer(values):
    z = np.array(values)
    p = project_to_simplex(z)
    assert p.min() >= 0
    assert p.sum() == pytest.approx(1.0)
    corners = np.eye(len(z))
    # Optimality: the projection's residual has no component towards any corner.
    assert ((corners - p) @ (z - p) <= 1e-9 * (1 + np.abs(z).max())).all()


def objective(E, active, weights):
    V = np.einsum("ia,iaj,iak->ajk", np.where(active, weights, 0.0), E, E)
    return np.linalg.slogdet(V)[1].sum()


def test_the_multi_agent_design_beats_uniform_weights_and_meets_its_condition():
    rng = np.random.default_rng(4)
    E = rng.standard_normal((12, 3, 2))
    E /= np.linalg.norm(E, axis=2, keepdims=True)
    active = rng.random((12, 3)) < 0.8
    active[:, 0] |= ~active.any(axis=1)
    weights = multi_agent(E, active, sweeps=200, excess=1e-3)
    assert (weights[~active] == 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    assert objective(E, active, weights) > objective(E, active, active / active.sum(axis=1, keepdims=True))
    inverses = np.linalg.inv(np.einsum("ia,iaj,iak->ajk", weights, E, E))
    squares = np.where(active, np.einsum("iaj,ajk,iak->ia", E, inverses, E), 0.0)
    assert squares.max(axis=1).sum() <= 6 + 1e-3 + 1e-9  # Σ_i max_a is at least Σ_a rank = 3 · 2


def test_an_agent_without_active_arms_is_refused():
    with pytest.raises(InvalidInput, match="an active arm for each agent"):
        multi_agent(np.ones((2, 2, 1)), np.array([[True, True], [False, False]]))
