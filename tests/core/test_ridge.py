"""The ridge model against plain numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit import RidgeModel, SufficientStats
from fedbandit.core.ridge import factorise

settings_of_the_issue = pytest.mark.parametrize(
    ("dim", "lam", "decades"), [(d, lam, s) for d in (1, 3, 40) for lam in (1e-6, 1.0, 1e6) for s in (0, 6)]
)


def scaled_rows(n, dim, *, decades, seed=0):
    """Rows whose features differ in scale by this many decades."""
    half = decades / 2
    scale = 10.0 ** np.linspace(-half, half, dim) if dim > 1 else np.array([10.0**half])
    return np.random.default_rng(seed).standard_normal((n, dim)) * scale


def ridge(X, y, lam):
    return RidgeModel(SufficientStats.prior(dim=X.shape[1], lam=lam) + SufficientStats.of(X, y))


@settings_of_the_issue
def test_theta_hat_log_det_and_widths_are_those_of_numpy(dim, lam, decades):
    X = scaled_rows(3 * dim + 5, dim, decades=decades)
    y = X @ np.ones(dim) + 0.1
    model = ridge(X, y, lam)
    # A reference that does not suffer from the scales itself: least squares on the rows and √λI below them.
    scale = np.sqrt(np.diagonal(model.stats.Sigma))
    stacked = np.vstack([X, np.sqrt(lam) * np.eye(dim)]) / scale
    solution = np.linalg.lstsq(stacked, np.concatenate([y, np.zeros(dim)]), rcond=None)[0] / scale
    np.testing.assert_allclose(model.theta_hat, solution, rtol=1e-8, atol=1e-10 * np.abs(solution).max())
    assert model.log_det == pytest.approx(np.linalg.slogdet(model.stats.Sigma)[1], rel=1e-10, abs=1e-9)
    R = np.linalg.qr(stacked)[1]
    expected = np.linalg.norm(np.linalg.solve(R.T, (X / scale).T), axis=0)
    np.testing.assert_allclose(model.widths(X), expected, rtol=1e-8)


def test_four_hundred_dimensions_overflow_no_determinant():
    X = scaled_rows(900, 400, decades=6)
    model = ridge(X, np.ones(900), 1e6)
    assert model.log_det > np.log(np.finfo(float).max), "this test is about determinants beyond float64"
    assert model.log_det == pytest.approx(np.linalg.slogdet(model.stats.Sigma)[1], rel=1e-12)
    np.testing.assert_allclose(model.stats.Sigma @ model.theta_hat, model.stats.b, rtol=1e-7, atol=1e-6)


@given(st.integers(1, 6), st.integers(0, 12), st.integers(0, 1000), st.sampled_from([1e-6, 1e-2, 1.0, 1e6]))
def test_the_inverse_the_widths_and_the_distance_agree_with_each_other(dim, n, seed, lam):
    rng = np.random.default_rng(seed)
    prior = SufficientStats.prior(dim=dim, lam=lam)
    data = SufficientStats.of(rng.standard_normal((n, dim)), rng.standard_normal(n)) if n else prior - prior
    model = RidgeModel(prior + data)
    np.testing.assert_allclose(model.inverse @ model.stats.Sigma, np.eye(dim), atol=1e-8)
    x, theta = rng.standard_normal((2, dim))
    assert model.widths(x[None])[0] == pytest.approx(np.sqrt(x @ model.inverse @ x), rel=1e-8)
    gap = theta - model.theta_hat
    assert model.distance(theta) == pytest.approx(np.sqrt(gap @ model.stats.Sigma @ gap), rel=1e-8)
    # Cauchy-Schwarz ties the three together: |⟨θ − θ̂, x⟩| ≤ ‖θ − θ̂‖_Σ ‖x‖_{Σ⁻¹}
    assert abs(gap @ x) <= model.distance(theta) * model.widths(x[None])[0] * (1 + 1e-9)
    assert model.predict(x[None])[0] == pytest.approx(x @ model.theta_hat)


def test_a_model_at_the_prior_knows_nothing():
    model = RidgeModel(SufficientStats.prior(dim=4, lam=4.0))
    assert not model.theta_hat.any()
    assert model.log_det == pytest.approx(4 * np.log(4.0))
    np.testing.assert_allclose(model.widths(np.eye(4)), 0.5)


def test_a_ridge_that_rounding_has_eaten_gives_finite_numbers_instead_of_failing():
    x = np.array([1e9, 1e9 * (1 + 1e-12)])
    model = ridge(np.stack([x] * 5), np.ones(5), 1e-6)
    assert np.isfinite(model.log_det) and np.isfinite(model.theta_hat).all()
    assert (model.widths(np.eye(2)) > 0).all() and np.isfinite(model.widths(np.eye(2))).all()


def test_the_factor_does_not_depend_on_the_units_of_the_features():
    X = scaled_rows(30, 5, decades=0)
    Sigma = X.T @ X + np.eye(5)
    units = 10.0 ** np.array([-60.0, -3.0, 0.0, 3.0, 60.0])
    plain, rescaled = factorise(Sigma), factorise(Sigma * np.outer(units, units))
    np.testing.assert_allclose(rescaled.W * units, plain.W, rtol=1e-10, atol=1e-12)
    assert rescaled.log_det == pytest.approx(plain.log_det + 2 * np.log(units).sum(), abs=1e-9)


def test_a_model_computes_once_and_shares_read_only_arrays():
    model = ridge(scaled_rows(5, 3, decades=0), np.ones(5), 1.0)
    for name in ("theta_hat", "inverse"):
        array = getattr(model, name)
        assert getattr(model, name) is array
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1.0


@pytest.mark.parametrize("dim", [1, 2, 10, 60])
def test_the_spread_bounds_every_width_and_is_nearly_reached(dim):
    rng = np.random.default_rng(dim)
    for seed in range(20):
        # One direction without observations: λ_max(Σ⁻¹) = 1/λ is then alone at the top, and the bound tight.
        X = rng.standard_normal((3 * dim, dim)) * 10.0 ** rng.uniform(-1, 1)
        X[:, 0] = 0.0
        model = ridge(X, np.ones(len(X)), 10.0 ** rng.uniform(-2, 2))
        largest = np.sqrt(np.linalg.eigvalsh(model.inverse)[-1])
        assert largest <= model.spread <= largest * 1.04 ** max(1.0, np.log10(dim)), seed


def test_a_search_by_bounds_keeps_the_action_that_only_its_width_makes_best():
    # e₁ was never played, so ‖e₁‖_{Σ⁻¹} = 1/√λ is the spread itself. Its upper bound exceeds that of the row with the
    # largest mean by 1 %: a spread that is 3 % too small would drop it before its width is computed.
    stats = SufficientStats.prior(dim=2, lam=1.0) + SufficientStats.of([[0.0, 1.0]] * 100, [1.0] * 100)
    model = RidgeModel(stats)
    e1, e2 = np.eye(2)
    size = 1.01 * float(model.upper(e2[None], 1.0)[0])
    X = np.vstack([np.tile(0.1 * e1, (50, 1)), size * e1, e2])
    rows = model.contenders(X, 1.0)
    assert rows is not None and 50 in rows
    assert int(model.upper(X, 1.0).argmax()) == 50
