"""The radius as an object: a function of evidence that travels as plain values."""

import math

import pytest

from fedbandit import radius, theory
from fedbandit.errors import InvalidParameter

EVIDENCE = radius.Evidence(dim=5, lam=2.0, alpha=0.5, rho=3.0, n_obs=40, n_uploads=6)
EVERY_RADIUS = [
    radius.fixed(0.5),
    radius.paper(n_agents=3, n_rounds=100, noise_scale=0.3, theta_bound=0.9, action_bound=1.1, delta=0.05),
    radius.adaptive(n_agents=3, noise_scale=0.3, theta_bound=0.9, delta=0.05),
    radius.adaptive(n_agents=3, noise_scale=0.3, n_rounds=100),
    radius.exogenous(noise_scale=0.3, theta_bound=0.9, delta=0.05),
    radius.counted(noise_scale=0.3, theta_bound=0.9, delta=0.05),
]


def test_every_kind_of_radius_is_tested_here():
    assert {type(beta) for beta in EVERY_RADIUS} == set(radius.KINDS.values())


@pytest.mark.parametrize("beta", EVERY_RADIUS, ids=lambda beta: beta.kind)
def test_a_radius_survives_the_trip_through_plain_values(beta):
    data = radius.to_dict(beta)
    assert data["kind"] == beta.kind
    assert all(value is None or isinstance(value, (str, int, float)) for value in data.values())
    assert radius.from_dict(data) == beta
    assert beta(EVIDENCE) > 0


def test_each_radius_is_its_formula_at_the_evidence():
    common = {"lam": 2.0, "noise_scale": 0.3, "theta_bound": 0.9, "delta": 0.05}
    fixed, paper, adaptive, _, exogenous, counted = EVERY_RADIUS
    assert fixed(EVIDENCE) == 0.5
    assert paper(EVIDENCE) == theory.paper_radius(
        dim=5, n_agents=3, n_rounds=100, alpha=0.5, action_bound=1.1, **common
    )
    assert adaptive(EVIDENCE) == theory.adaptive_radius(rho=3.0, dim=5, n_agents=3, alpha=0.5, n_uploads=6, **common)
    assert exogenous(EVIDENCE) == theory.exogenous_radius(rho=3.0, **common)
    assert counted(EVIDENCE) == theory.counted_radius(n_obs=40, dim=5, **common)


def test_a_spectral_trigger_widens_the_adaptive_radius():
    spectral = radius.Evidence(dim=5, lam=2.0, alpha=0.5, rho=3.0, n_obs=40, n_uploads=6, trigger="spectral")
    assert EVERY_RADIUS[2](spectral) > EVERY_RADIUS[2](EVIDENCE)
    assert EVERY_RADIUS[4](spectral) == EVERY_RADIUS[4](EVIDENCE)


def test_a_number_becomes_a_fixed_radius_and_a_radius_stays():
    assert radius.as_radius(0.5) == radius.fixed(0.5)
    assert radius.as_radius(EVERY_RADIUS[2]) is EVERY_RADIUS[2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: radius.fixed(-0.1),
        lambda: radius.fixed(math.nan),
        lambda: radius.as_radius("wide"),
        lambda: radius.as_radius(math.inf),
        lambda: radius.exogenous(noise_scale=-1.0),
        lambda: radius.exogenous(noise_scale=0.3, delta=0.0),
        lambda: radius.exogenous(noise_scale=0.3, delta=1.0),
        lambda: radius.adaptive(n_agents=0, noise_scale=0.3),
        lambda: radius.adaptive(n_agents=2, noise_scale=0.3, n_rounds=0),
        lambda: radius.paper(n_agents=2, n_rounds=1.5, noise_scale=0.3),
        lambda: radius.counted(noise_scale=math.inf),
        lambda: radius.from_dict({"kind": "magic"}),
        lambda: radius.from_dict({"kind": "fixed", "width": 1.0}),
        lambda: radius.from_dict({"kind": "exogenous"}),
    ],
)
def test_numbers_outside_their_range_are_named_errors(make):
    with pytest.raises(InvalidParameter):
        make()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"kind": "exogenous", "beta": 1.0, "noise_scale": 0.1}, "it has no beta"),
        ({"kind": "exogenous"}, "needs noise_scale, which is missing"),
        ({"kind": "paper", "delta": 0.1}, "needs n_agents, n_rounds, noise_scale, which are missing"),
        ({"kind": "other"}, "expected a radius of kind"),
        ("exogenous", "a dictionary with its kind"),
    ],
)
def test_a_radius_that_cannot_be_made_says_what_it_takes(data, words):
    with pytest.raises(InvalidParameter, match=words):
        radius.from_dict(data)
