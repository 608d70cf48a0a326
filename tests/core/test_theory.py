"""Radii and bounds: the numbers of the authors' setting, the formulas in simple cases, the errata."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit import theory
from fedbandit.errors import InvalidParameter

AUTHORS = {"dim": 15, "lam": 1.0, "noise_scale": 0.3, "theta_bound": 1.0, "delta": 0.01}
M, T, L = 15, 30_000, 1.0
# What a model can know in their world: ρ ≤ d log(1 + TL²/(λd)); actions on [−1, 1]/√d have ‖x‖² = 1/3 on average.
MOST = 15 * math.log1p(T / 15)
USUAL = 15 * math.log1p(T / 3 / 15)


def test_the_printed_radius_in_the_authors_setting():
    def radius(alpha):
        return theory.paper_radius(n_agents=M, n_rounds=T, action_bound=L, alpha=alpha, **AUTHORS)

    assert radius(1.0) == pytest.approx(139, abs=0.5)
    assert radius(1 / M**2) == pytest.approx(16, abs=0.5)


def test_the_adaptive_radius_in_the_authors_setting():
    def radius(alpha, rho):
        return theory.adaptive_radius(rho=rho, n_agents=M, n_rounds=T, alpha=alpha, **AUTHORS)

    assert radius(1.0, USUAL) == pytest.approx(41.3, abs=0.05) and radius(1.0, MOST) == pytest.approx(42.1, abs=0.05)
    assert radius(1 / M**2, USUAL) == pytest.approx(6.06, abs=0.01)
    assert radius(1 / M**2, MOST) == pytest.approx(6.30, abs=0.01)


def test_the_exogenous_radius_in_the_authors_setting_is_about_four_and_knows_no_alpha():
    numbers = {key: AUTHORS[key] for key in ("lam", "noise_scale", "theta_bound", "delta")}
    assert theory.exogenous_radius(rho=MOST, **numbers) == pytest.approx(4.33, abs=0.01)
    assert theory.exogenous_radius(rho=USUAL, **numbers) == pytest.approx(4.10, abs=0.01)


def test_with_one_agent_the_adaptive_radius_is_the_exogenous_one_at_half_the_failure_probability():
    adaptive = theory.adaptive_radius(rho=7.0, n_agents=1, n_rounds=T, alpha=0.5, **AUTHORS)
    halved = {"lam": 1.0, "noise_scale": 0.3, "theta_bound": 1.0, "delta": 0.005}
    assert adaptive == pytest.approx(theory.exogenous_radius(rho=7.0, **halved))
    assert theory.adaptive_radius(rho=7.0, n_agents=1, n_rounds=T, alpha=math.inf, **AUTHORS) == adaptive


def test_the_adaptive_radius_spelled_out():
    value = theory.adaptive_radius(
        rho=2.0, dim=4, n_agents=3, lam=4.0, alpha=0.5, noise_scale=2.0, theta_bound=1.5, delta=0.1, n_rounds=100
    )
    everything = 2 * math.log(20) + 2.0 + 4 * math.log(1 + 2 * 0.5 / 4)
    buffers = 2 * math.sqrt(0.5) * (1 + math.sqrt(2 * math.log(2000)))
    assert value == pytest.approx(2 * 1.5 + 2.0 * math.sqrt(2.0) * math.sqrt(everything) + 2.0 * buffers)


def test_the_adaptive_radius_of_the_spectral_trigger_spelled_out():
    value = theory.adaptive_radius(
        rho=2.0,
        dim=4,
        n_agents=3,
        lam=4.0,
        alpha=0.5,
        noise_scale=2.0,
        theta_bound=1.5,
        delta=0.1,
        n_rounds=100,
        trigger="spectral",
    )
    everything = 2 * math.log(20) + 2.0 + 4 * math.log(2.0)
    buffers = 2 * math.sqrt(2 * 0.5) * math.sqrt(2 * math.log(2000) + 4 * math.log(2))
    assert value == pytest.approx(2 * 1.5 + 2.0 * math.sqrt(2.0) * math.sqrt(everything) + 2.0 * buffers)


def test_an_unknown_horizon_counts_merged_uploads_instead():
    numbers = {**AUTHORS, "rho": 5.0, "n_agents": 4, "alpha": 0.1}
    by_uploads = theory.adaptive_radius(n_uploads=7, **numbers)
    assert by_uploads == pytest.approx(theory.adaptive_radius(n_rounds=4 * 8 * 9, **numbers))
    with pytest.raises(InvalidParameter, match="n_rounds"):
        theory.adaptive_radius(**numbers)


@given(st.floats(0, 100), st.floats(1e-4, 10), st.integers(1, 50), st.integers(1, 30))
def test_radii_grow_with_evidence_agents_and_alpha(rho, alpha, n_agents, dim):
    numbers = {"lam": 1.0, "noise_scale": 0.3, "theta_bound": 1.0, "delta": 0.05, "n_rounds": 1000, "dim": dim}

    def adaptive(**changes):
        return theory.adaptive_radius(**{**numbers, "rho": rho, "alpha": alpha, "n_agents": n_agents, **changes})

    base = adaptive()
    assert base <= adaptive(rho=rho + 1.0)
    assert base < adaptive(n_agents=n_agents + 1)
    assert base <= adaptive(alpha=2 * alpha)
    assert base <= adaptive(trigger="spectral") + 1e-9
    exogenous = theory.exogenous_radius(rho=rho, lam=1.0, noise_scale=0.3, theta_bound=1.0, delta=0.05)
    assert exogenous <= base


def test_li_and_wangs_radius_is_the_exogenous_one_of_evenly_spread_unit_actions():
    # n unit actions spread evenly over d directions: det Σ = (λ + n/d)^d, so ρ = d log(1 + n/(dλ)).
    n_obs, dim, lam = 300, 5, 0.1
    rho = dim * math.log1p(n_obs / (dim * lam))
    numbers = {"lam": lam, "noise_scale": 0.1, "theta_bound": 1.0, "delta": 0.1}
    counted = theory.counted_radius(n_obs=n_obs, dim=dim, **numbers)
    assert counted == pytest.approx(theory.exogenous_radius(rho=rho, **numbers))


@given(st.integers(1, 6), st.integers(1, 60), st.integers(0, 1000), st.sampled_from([0.1, 1.0, 10.0]))
def test_li_and_wangs_radius_is_no_smaller_than_the_exogenous_one_for_actions_in_the_unit_ball(dim, n, seed, lam):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, dim))
    X *= rng.uniform(0.0, 1.0, (n, 1)) / np.linalg.norm(X, axis=1, keepdims=True)
    rho = float(np.linalg.slogdet(np.eye(dim) + X.T @ X / lam)[1])
    numbers = {"lam": lam, "noise_scale": 0.1, "theta_bound": 1.0, "delta": 0.1}
    counted = theory.counted_radius(n_obs=n, dim=dim, **numbers)
    assert counted >= theory.exogenous_radius(rho=rho, **numbers) - 1e-12


def test_options_and_values_that_have_no_radius_are_named_errors():
    with pytest.raises(InvalidParameter, match="trigger"):
        theory.adaptive_radius(rho=1.0, n_agents=2, n_rounds=10, alpha=1.0, trigger="hair", **AUTHORS)
    with pytest.raises(InvalidParameter, match="alpha > 0"):
        theory.paper_radius(n_agents=2, n_rounds=10, alpha=0.0, action_bound=1.0, **AUTHORS)


# -- bounds


def test_message_bounds_of_the_two_line_example_printed_and_corrected():
    numbers = {"dim": 2, "n_agents": 1, "n_rounds": 200_000, "lam": 1.0, "alpha": 0.1, "action_bound": 1.0}
    assert theory.printed_message_bound(**numbers) == pytest.approx(351, abs=0.5)
    assert theory.message_bound(**numbers) == pytest.approx(752, abs=1.0)


def test_epochs_count_the_doublings_of_the_determinant():
    assert theory.epoch_of(0.0) == 0
    assert theory.epoch_of(math.log(2) * (1 - 1e-9)) == 0
    for i in range(1, 200):
        assert theory.epoch_of(i * math.log(2.0)) == i
    # T unit actions along one axis of one dimension: det = λ + T, in units of λ.
    assert theory.max_epochs(dim=1, n_rounds=1023, lam=1.0, action_bound=1.0) == pytest.approx(11)
    assert theory.max_epochs(dim=1, n_rounds=1023, lam=4.0, action_bound=2.0) == pytest.approx(11)


def test_an_exchange_every_round_has_no_bound_on_messages():
    assert theory.messages_per_epoch(n_agents=3, alpha=0.0) == math.inf
    assert theory.messages_per_epoch(n_agents=3, alpha=0.5) == 10.0
    assert theory.messages_per_epoch(n_agents=3, alpha=math.inf) == 6.0


def test_the_regret_bound_spelled_out_and_its_printed_twin():
    numbers = {"dim": 3, "n_agents": 5, "n_rounds": 1000, "lam": 2.0, "alpha": 0.2, "beta": 1.5}
    numbers |= {"theta_bound": 0.7, "action_bound": 1.3}
    learning = 2 * math.sqrt(2 * 2.0) * 1.5 * math.sqrt(2 * 3 * 1000 * math.log(1 + 1000 * 1.69 / 2.0))
    blind = 2 * 0.7 * 1.3 * 5 * (1 + 3 * math.log2(1 + 1000 * 1.69 / 6.0))
    assert theory.regret_bound(**numbers) == pytest.approx(blind + learning)
    printed = 2 * 3 * 0.7 * 1.3 * 5 * math.log(1 + 1000 * 1.69 / 2.0)
    assert theory.printed_regret_bound(**numbers) == pytest.approx(printed + learning)


def test_the_lower_bound_on_messages():
    assert theory.lower_bound_messages(n_agents=100, n_rounds=100_000) == pytest.approx(100 / math.log(1000))
    with pytest.raises(InvalidParameter, match="more rounds than agents"):
        theory.lower_bound_messages(n_agents=10, n_rounds=10)


SPHERE = {"dim": 5, "n_rounds": 1_000, "lam": 2.0, "noise_scale": 0.3, "action_bound": 1.5, "delta": 0.1}


def test_the_bounds_of_the_concentration_lemmas_spelled_out():
    root, growth = math.sqrt(2.0) * 1.2, 1_000 * 1.5**2 / 2.0
    overall = 0.3 * math.sqrt(2 * math.log(10) + 5 * math.log(1 + growth / 5)) + root
    assert theory.global_error_bound(**SPHERE, theta_bound=1.2) == pytest.approx(overall)
    printed = 0.3 * math.sqrt(5 * math.log((1 + growth) / 0.1)) + root
    assert theory.printed_global_error_bound(**SPHERE, theta_bound=1.2) == pytest.approx(printed)
    buffer = 0.3 * math.sqrt(2 * math.log(10_000) + 5 * math.log(1 + growth / 5 / 0.25))
    assert theory.buffer_noise_bound(**SPHERE, alpha=0.25) == pytest.approx(buffer)
    printed = 0.3 * math.sqrt(5 * math.log((1 + growth / 0.25) / 0.1)) + root
    assert theory.printed_buffer_noise_bound(**SPHERE, alpha=0.25, theta_bound=1.2) == pytest.approx(printed)
    with pytest.raises(InvalidParameter):
        theory.buffer_noise_bound(**SPHERE, alpha=0.0)


def test_in_one_dimension_the_printed_global_bound_is_the_smaller_one():
    line = {**SPHERE, "dim": 1, "theta_bound": 1.0, "delta": 1e-6}
    assert theory.printed_global_error_bound(**line) < theory.global_error_bound(**line)


def test_rounds_set_aside_are_one_an_agent_and_doubling():
    numbers = {"dim": 5, "n_rounds": 1_000, "lam": 1.0, "action_bound": 1.0}
    assert theory.set_aside_bound(**numbers, n_agents=7) == pytest.approx(7 * theory.max_epochs(**numbers))
    assert theory.printed_set_aside_bound(**numbers, n_agents=7) == pytest.approx(35 * math.log(1_001))


def test_the_newer_lower_bound_has_the_dimension_and_no_logarithm():
    assert theory.min_lower_bound_messages(dim=5, n_agents=100) == 500
    assert theory.lower_bound_messages(n_agents=100, n_rounds=100_000) < 100
