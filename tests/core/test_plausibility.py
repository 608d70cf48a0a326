"""What data can give is never refused, and what they cannot give always is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit.algorithms.messages import packed_bytes
from fedbandit.core.plausibility import MAX_N_OBS, MAX_NUMBER, Bounds, information, require_plausible
from fedbandit.core.statistics import RunningStats, SufficientStats, packed_length
from fedbandit.errors import DimensionMismatch, ImplausibleUpload, NotFinite


def packed(X, y) -> np.ndarray:
    return np.frombuffer(packed_bytes(SufficientStats.of(X, y)), dtype="<f8").copy()


def honest(seed: int = 0, *, n: int = 12, dim: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return packed(rng.normal(size=(n, dim)), rng.normal(size=n))


def from_matrix(Sigma, b=None, *, n_obs=10.0, reward_sum=0.0, reward_sq_sum=1.0) -> np.ndarray:
    Sigma = np.asarray(Sigma, dtype=float)
    b = np.zeros(len(Sigma)) if b is None else np.asarray(b, dtype=float)
    return np.concatenate([Sigma[np.triu_indices(len(Sigma))], b, [n_obs, reward_sum, reward_sq_sum]])


@given(
    seed=st.integers(0, 2**32 - 1),
    dim=st.integers(1, 12),
    n=st.integers(1, 60),
    decades=st.floats(0, 150),
    centre=st.floats(-160, 0),
    reward_scale=st.floats(-160, 70),
    duplicates=st.booleans(),
)
def test_sums_of_data_are_never_refused(seed, dim, n, decades, centre, reward_scale, duplicates):
    """Features over 150 decades, down to where squares underflow; collinear columns; rewards that features explain."""
    rng = np.random.default_rng(seed)
    scales = 10.0 ** np.clip(centre + rng.uniform(0, decades, size=dim), -165, 68)
    X = rng.normal(size=(n, dim)) * scales
    if duplicates and dim > 1:
        X[:, -1] = X[:, 0]
    theta = rng.normal(size=dim) / scales
    y = np.clip((X @ theta) * 10.0**reward_scale, -1e69, 1e69)
    require_plausible(packed(X, y), dim)
    running = RunningStats(dim)  # one by one, as an agent adds them
    for x, reward in zip(X, y, strict=True):
        running.observe(x, float(reward))
    require_plausible(np.frombuffer(packed_bytes(running.snapshot()), dtype="<f8"), dim)


@given(seed=st.integers(0, 2**32 - 1), dim=st.integers(1, 8), n=st.integers(1, 40), bound=st.floats(1e-3, 1e3))
def test_data_on_the_edge_of_the_bounds_are_never_refused(seed, dim, n, bound):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, dim))
    X *= bound / np.linalg.norm(X, axis=1, keepdims=True)
    y = rng.choice([-bound, bound], size=n)
    require_plausible(packed(X, y), dim, Bounds(action_bound=bound, reward_bound=bound))


def test_a_long_buffer_of_equal_rows_is_never_refused():
    running = RunningStats(3)
    for _ in range(100_000):
        running.observe(np.array([0.1, 0.1, 1e-9]), 0.1)
    require_plausible(np.frombuffer(packed_bytes(running.snapshot()), dtype="<f8"), 3, Bounds(0.1415, 0.1))


@pytest.mark.parametrize("place", range(10 + 4 + 3))
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_refused_wherever_it_stands(place, value):
    numbers = honest()
    numbers[place] = value
    with pytest.raises(NotFinite):
        require_plausible(numbers, 4)


@pytest.mark.parametrize("value", [2 * MAX_NUMBER, -2 * MAX_NUMBER])
def test_a_number_too_large_to_add_is_refused(value):
    numbers = honest()
    numbers[0] = value
    with pytest.raises(ImplausibleUpload, match="magnitude"):
        require_plausible(numbers, 4)


@pytest.mark.parametrize("n_obs", [0.0, -1.0, 0.5, 2.5, 2.0 * MAX_N_OBS])
def test_a_count_that_is_no_count_is_refused(n_obs):
    numbers = honest()
    numbers[-3] = n_obs
    with pytest.raises(ImplausibleUpload, match="expected a whole n_obs"):
        require_plausible(numbers, 4)


@given(seed=st.integers(0, 2**32 - 1), dim=st.integers(2, 10), depth=st.floats(1e-6, 10), scale=st.floats(-60, 60))
def test_a_negative_eigenvalue_is_refused_at_any_scale(seed, dim, depth, scale):
    rng = np.random.default_rng(seed)
    Q, _ = np.linalg.qr(rng.normal(size=(dim, dim)))
    values = np.concatenate([[-depth], rng.uniform(0.1, 10, size=dim - 1)])
    with pytest.raises(ImplausibleUpload):
        require_plausible(from_matrix(10.0**scale * (Q * values) @ Q.T, n_obs=100.0), dim)


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        (from_matrix([[1, 2], [2, 1]]), "semi-definite"),
        (from_matrix([[-1, 0], [0, 1]]), "diagonal"),
        (from_matrix([[0, 1], [1, 5]]), "semi-definite"),
        (from_matrix(np.eye(2), [2, 0], reward_sq_sum=1.0), "bᵀΣ⁻¹b"),
        (from_matrix([[1, 0], [0, 0]], [0, 0.1]), "bᵀΣ⁻¹b"),
        (from_matrix(np.eye(2), [0, 0], reward_sq_sum=-1.0), "Σr²"),
        (from_matrix(np.eye(2), [0, 0], reward_sum=4.0, reward_sq_sum=1.0), "Σr"),
        (from_matrix(np.eye(3), n_obs=1.0), "rank"),
        (from_matrix(np.eye(4), n_obs=3.0), "rank"),
    ],
)
def test_what_no_data_can_give_is_refused_with_a_reason(numbers, reason):
    dim = {packed_length(d) + d + 3: d for d in range(1, 6)}[len(numbers)]
    with pytest.raises(ImplausibleUpload, match=reason):
        require_plausible(numbers, dim)


def test_the_bounds_of_the_model_are_kept():
    numbers = honest()
    trace, reward_sq_sum = sum(numbers[[0, 4, 7, 9]]), numbers[-1]
    with pytest.raises(ImplausibleUpload, match="action bound"):
        require_plausible(numbers, 4, Bounds(action_bound=0.99 * (trace / 12) ** 0.5))
    with pytest.raises(ImplausibleUpload, match="reward bound"):
        require_plausible(numbers, 4, Bounds(reward_bound=0.99 * (reward_sq_sum / 12) ** 0.5))
    require_plausible(numbers, 4, Bounds(1.01 * (trace / 12) ** 0.5, 1.01 * (reward_sq_sum / 12) ** 0.5))


def test_a_claim_of_many_observations_does_not_buy_a_loose_check():
    with pytest.raises(ImplausibleUpload):
        require_plausible(from_matrix([[1, 1.001], [1.001, 1]], n_obs=float(MAX_N_OBS)), 2)


def test_numbers_of_another_dimension_are_told():
    with pytest.raises(DimensionMismatch):
        require_plausible(honest(dim=4), 5)


@given(seed=st.integers(0, 2**32 - 1), dim=st.integers(1, 8), n=st.integers(1, 30), lam=st.floats(0.01, 100))
def test_growth_never_exceeds_the_information_of_the_data(seed, dim, n, lam):
    rng = np.random.default_rng(seed)
    before, X = rng.normal(size=(5, dim)), rng.normal(size=(n, dim)) * 10.0 ** rng.uniform(-3, 3)
    Sigma = lam * np.eye(dim) + before.T @ before
    growth = np.linalg.slogdet(Sigma + X.T @ X)[1] - np.linalg.slogdet(Sigma)[1]
    assert growth <= information(packed(X, np.zeros(n)), dim, lam) * (1 + 1e-9) + 1e-9


def test_entries_beyond_every_scale_of_the_diagonal_are_refused_without_a_warning():
    """Found by fuzzing: squares of such ratios overflowed, and numpy said so on the server's standard error."""
    Sigma = np.array([[1e-150, 1e150], [1e150, 1e-150]])
    with pytest.raises(ImplausibleUpload):
        require_plausible(from_matrix(Sigma, n_obs=1.0), 2)
