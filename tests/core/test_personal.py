"""`fb.personal`: the objects, and the prior that the fleet's knowledge is for one agent."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit.core.kappa import KAPPAS, choose_kappa, first_kappa, forms_of, log_evidence, tridiagonal
from fedbandit.core.personal import as_personal, from_dict, to_dict
from fedbandit.core.personal_prior import others_of, prior_of
from fedbandit.core.statistics import SufficientStats

LAM = 0.5


def some(n, dim, seed, theta=None, noise=0.3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, dim))
    y = X @ (np.zeros(dim) if theta is None else theta) + noise * rng.standard_normal(n)
    return SufficientStats.of(X, y), X, y


def model_of(*parts, dim, lam=LAM):
    return sum(parts, SufficientStats.prior(dim=dim, lam=lam))


@pytest.mark.parametrize("personal", [fb.personal.auto(), fb.personal.fixed(0.0), fb.personal.fixed(2.5)])
def test_what_is_written_is_read(personal):
    assert from_dict(to_dict(personal)) == personal
    rule = fb.FedLinUCB(dim=2, beta=0.1, personal=personal)
    assert fb.load(rule.agent("a").to_bytes()).rule.personal == personal


def test_names_numbers_and_text_make_the_object():
    assert as_personal("auto") == fb.personal.auto()
    assert as_personal(3) == as_personal("3") == fb.personal.fixed(3.0)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, 1e13, "many", [1.0], {"kind": "other"}, {"kind": "fixed"}])
def test_what_makes_no_sense_is_a_named_error(bad):
    with pytest.raises(fb.errors.InvalidParameter):
        fb.FedLinUCB(dim=2, beta=0.1, personal=bad)


def in_blocks(stats: SufficientStats, K: int) -> SufficientStats:
    """The same bits, by blocks."""
    p = stats.dim // K
    Sigma = np.array([stats.Sigma[k * p : (k + 1) * p, k * p : (k + 1) * p] for k in range(K)])
    return SufficientStats(Sigma, stats.b, stats.n_obs, stats.reward_sum, stats.reward_sq_sum)


def some_by_arm(n, K, p, seed):
    rng = np.random.default_rng(seed)
    rows = np.zeros((n, K, p))
    rows[np.arange(n), rng.integers(K, size=n)] = rng.standard_normal((n, p))
    return SufficientStats.of(rows.reshape(n, -1), rng.standard_normal(n))


@given(seed=st.integers(0, 999), K=st.integers(2, 5), p=st.integers(1, 3), n=st.integers(1, 40))
@settings(max_examples=60)
def test_by_blocks_prior_evidence_and_kappa_are_the_dense_ones(seed, K, p, n):
    own, rest = some_by_arm(n, K, p, seed), some_by_arm(30, K, p, seed + 1)
    model = model_of(own, rest, dim=K * p)
    dense = others_of(model, own, LAM)
    by_blocks = others_of(in_blocks(model, K), in_blocks(own, K), LAM)
    assert np.allclose(by_blocks.theta, dense.theta, rtol=1e-9, atol=1e-12)
    assert (by_blocks.log_det, by_blocks.noise) == (pytest.approx(dense.log_det), pytest.approx(dense.noise))
    for kappa in (0.0, *KAPPAS):
        prior, expected = prior_of(by_blocks, kappa), prior_of(dense, kappa)
        assert np.allclose(SufficientStats(prior.P, prior.h).dense().Sigma, expected.P, rtol=1e-9, atol=1e-12)
        assert np.allclose(prior.h, expected.h, rtol=1e-9, atol=1e-12)
        assert prior.log_det == pytest.approx(expected.log_det, rel=1e-9)
    evidence = log_evidence(by_blocks, in_blocks(own, K), np.array(KAPPAS))
    assert evidence == pytest.approx(log_evidence(dense, own, np.array(KAPPAS)), rel=1e-9)
    assert choose_kappa(by_blocks, in_blocks(own, K)) == pytest.approx(choose_kappa(dense, own), rel=1e-9)


@pytest.mark.parametrize("large", [1.0, 1e6, 1e12])
def test_by_blocks_what_rounding_hides_leaves_the_ridge(large):
    own = some_by_arm(9, 3, 2, 0)
    own = SufficientStats(own.Sigma * large**2, own.b * large, own.n_obs, own.reward_sum, own.reward_sq_sum)
    others = others_of(in_blocks(model_of(own, dim=6), 3), in_blocks(own, 3), LAM)
    assert np.linalg.eigvalsh(others.Sigma).min() >= LAM * 0.5
    assert np.linalg.norm(others.theta) <= 1e-3 * max(1.0, np.linalg.norm(own.b))
    assert others_of(in_blocks(model_of(dim=6), 3), in_blocks(own, 3), LAM) is None


def test_a_radius_with_a_guarantee_is_warned_of():
    with pytest.warns(fb.errors.UnprovenRadius, match="no proof with personal"):
        fb.FedLinUCB(dim=2, beta=fb.radius.exogenous(noise_scale=1.0), personal="auto")


@given(seed=st.integers(0, 999), dim=st.integers(1, 6), n=st.integers(0, 30), kappa=st.sampled_from([0.0, 0.1, 5.0]))
@settings(max_examples=60)
def test_the_prior_is_the_inverse_of_the_two_uncertainties_together(seed, dim, n, kappa):
    own, _, _ = some(7, dim, seed)
    rest, _, _ = some(n, dim, seed + 1) if n else (SufficientStats.zeros(dim), None, None)
    others = others_of(model_of(own, rest, dim=dim), own, LAM)
    prior = prior_of(others, kappa)
    Sigma = LAM * np.eye(dim) + rest.Sigma
    spread = np.linalg.inv(Sigma) + kappa * np.eye(dim)
    assert np.allclose(prior.P, np.linalg.inv(spread), rtol=1e-7, atol=1e-9)
    assert np.allclose(others.theta, np.linalg.solve(Sigma, rest.b), rtol=1e-7, atol=1e-9)
    assert np.allclose(prior.h, prior.P @ others.theta, rtol=1e-7, atol=1e-9)
    assert math.isclose(prior.log_det, -np.linalg.slogdet(spread)[1], rel_tol=1e-7, abs_tol=1e-7)


@given(seed=st.integers(0, 999), kappa=st.sampled_from(KAPPAS))
@settings(max_examples=40)
def test_the_evidence_is_that_of_a_gaussian_whose_noise_scale_is_unknown(seed, kappa):
    """The Student law of the rewards themselves: location Xθ_o, shape I + X P⁻¹ Xᵀ, n degrees of freedom before."""
    dim, n = 3, 6
    own, X, y = some(n, dim, seed, theta=np.ones(dim))
    rest, _, _ = some(20, dim, seed + 1)
    others = others_of(model_of(own, rest, dim=dim), own, LAM)
    students = []
    for k in (kappa, 1.0):
        shape = np.eye(n) + X @ np.linalg.inv(prior_of(others, k).P) @ X.T
        gap = y - X @ others.theta
        student = -0.5 * np.linalg.slogdet(shape)[1]
        students.append(student - 0.5 * (n + n) * math.log(n * others.noise + gap @ np.linalg.solve(shape, gap)))
    found = log_evidence(others, own, np.array([kappa, 1.0]))
    assert math.isclose(students[0] - students[1], found[0] - found[1], rel_tol=1e-6, abs_tol=1e-6)


@given(seed=st.integers(0, 999), dim=st.integers(1, 9), rank=st.integers(0, 9))
@settings(max_examples=60)
def test_reflections_leave_a_tridiagonal_matrix_with_the_same_forms(seed, dim, rank):
    rng = np.random.default_rng(seed)
    root, g = rng.standard_normal((rank, dim)), rng.standard_normal(dim)
    H = root.T @ root
    kappas = np.array([0.0, 0.3, 20.0])
    log_dets, explained = forms_of(*tridiagonal(H.copy(), g), kappas)
    for kappa, log_det, form in zip(kappas, log_dets, explained, strict=True):
        shape = np.eye(dim) + kappa * H
        assert math.isclose(log_det, np.linalg.slogdet(shape)[1], rel_tol=1e-9, abs_tol=1e-9)
        assert math.isclose(form, g @ np.linalg.solve(shape, g), rel_tol=1e-8, abs_tol=1e-9)


@pytest.mark.parametrize("dim", [5, 40])
def test_kappa_without_evidence_is_the_first_one(dim):
    """Own rewards that any κ explains equally well: there are none of a size that matters."""
    rest, _, _ = some(500, dim, 1)
    own = SufficientStats.of(1e-9 * np.eye(dim), np.zeros(dim))
    chosen = choose_kappa(others_of(model_of(own, rest, dim=dim), own, LAM), own)
    assert 0.3 < chosen / first_kappa(dim) < 3.0


def test_the_evidence_finds_agents_that_are_alike_and_agents_that_are_not():
    dim, theta = 5, np.full(5, 0.6)
    rest, _, _ = some(2_000, dim, 1, theta)
    chosen = {}
    for name, mine in (("alike", theta), ("apart", -theta)):
        own, _, _ = some(60, dim, 2, mine)
        chosen[name] = choose_kappa(others_of(model_of(own, rest, dim=dim), own, LAM), own)
    assert chosen["alike"] <= 0.1
    assert chosen["apart"] >= 1.0


@given(seed=st.integers(0, 999), large=st.sampled_from([1e3, 1e6, 1e9, 1e12]))
@settings(max_examples=60)
def test_what_rounding_hides_leaves_the_ridge(seed, large):
    """The agent's own data are so much larger that Σ_m − U is rounding error in some directions."""
    dim = 4
    own, _, _ = some(9, dim, seed)
    own = SufficientStats(own.Sigma * large**2, own.b * large, own.n_obs, own.reward_sum, own.reward_sq_sum)
    others = others_of(model_of(own, dim=dim), own, LAM)
    assert others is not None
    assert np.linalg.eigvalsh(others.Sigma)[0] >= LAM * 0.5
    assert np.isfinite(others.theta).all()
    assert np.linalg.norm(others.theta) <= 1e-3 * max(1.0, np.linalg.norm(own.b))


def test_a_model_that_cannot_hold_the_part_is_found_out():
    dim = 3
    own, _, _ = some(9, dim, 0)
    rest, _, _ = some(3, dim, 1)
    assert others_of(model_of(rest, dim=dim), own, LAM) is None
