"""For every algorithm, world and participation the compiled trace is the reference's: choices, exchanges, numbers."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import fedbandit as fb
from tests.simulation.engines import assert_same_trace, both_engines

pytest.importorskip("numba")

N_AGENTS = 8
pytestmark = pytest.mark.filterwarnings("ignore::fedbandit.errors.UnprovenRadius")  # engines agree on any number


def radii(n_agents):
    noise = st.sampled_from([0.05, 0.3, 1.0])
    return st.one_of(
        st.sampled_from([0.1, 0.5, 2.0]),
        st.builds(lambda R: fb.radius.exogenous(noise_scale=R), noise),
        st.builds(lambda R: fb.radius.counted(noise_scale=R), noise),
        st.builds(lambda R: fb.radius.adaptive(n_agents=n_agents, noise_scale=R), noise),
        st.builds(lambda R: fb.radius.adaptive(n_agents=n_agents, noise_scale=R, n_rounds=500), noise),
    )


policies = st.one_of(
    st.just({}),
    st.just({}),
    st.fixed_dictionaries(
        {
            "policy": st.sampled_from(["ucb", "inverse-gap", "thompson"]),
            "explore": st.sampled_from([0.0, 0.1, 1.0]),
            "control": st.sampled_from([0.0, 0.2]),
            "gamma": st.sampled_from(["auto", 0.0, 3.0]),
            "propensity_samples": st.just(0),
            "policy_seed": st.integers(0, 3),
        }
    ),
)


def is_drawn_from_a_ball(rule, world):
    return not getattr(rule, "is_certain", True) and isinstance(world, fb.worlds.ball)


@st.composite
def rules(draw, dim, n_agents):
    common = {"dim": dim, "beta": draw(radii(n_agents)), "lam": draw(st.sampled_from([0.1, 1.0, 5.0]))}
    level = st.sampled_from([0.0, 1e-3, 0.1, 0.5, 1.0, 4.0, 100.0])
    kind = draw(st.sampled_from(["fed", "fed", "fed", "rare", "oful", "dis", "async"]))
    if kind == "fed":
        return fb.FedLinUCB(
            **common,
            **draw(policies),
            alpha=draw(level if not hasattr(common["beta"], "n_agents") else level.filter(bool)),
            join=draw(st.booleans()),
            refresh=draw(st.sampled_from(["upload", "arrival"])),
            trigger=draw(st.sampled_from(["determinant", "spectral"])),
            personal=draw(st.sampled_from([None, None, "auto", 0.0, 0.1, 10.0])),
        )
    if kind == "rare":
        return fb.OFUL(**common, **draw(policies), switching=draw(level))
    if kind == "oful":
        return fb.OFUL(**common, mode=draw(st.sampled_from(["independent", "shared"])))
    enrolment = draw(st.sampled_from(["start", "arrival"]))
    if kind == "dis":
        return fb.DisLinUCB(
            **common,
            enrolment=enrolment,
            threshold=draw(st.sampled_from([0.0, 0.5, 5.0, 50.0, math.inf])),
            clock=draw(st.sampled_from([None, "global"])),
        )
    gamma = st.sampled_from([1.0, 1.2, 2.0, 6.0, 100.0])
    return fb.AsyncLinUCB(**common, enrolment=enrolment, gamma_up=draw(gamma), gamma_down=draw(gamma))


@st.composite
def worlds(draw, dim):
    K, noise = draw(st.integers(1, 9)), draw(st.sampled_from([0.0, 0.1, 0.5]))
    kind = draw(st.sampled_from(["uniform", "sphere", "articles", "ball", "adversarial", "arrays", "whole arrays"]))
    if kind in ("uniform", "sphere"):
        return getattr(fb.worlds, kind)(dim=dim, n_actions=K, noise=noise)
    if kind == "articles":
        return fb.worlds.articles(dim=dim, n_actions=K, n_articles=K + draw(st.integers(0, 30)), noise=noise)
    if kind == "ball":
        return fb.worlds.ball(dim=dim, radius=draw(st.sampled_from([0.5, 1.0, 3.0])), noise=noise)
    if kind == "adversarial":
        return fb.worlds.adversarial(dim=dim, n_actions=K + 1, phase=draw(st.integers(1, 40)), noise=0.3)
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    features = rng.standard_normal((40, K, dim)) if kind == "arrays" else rng.integers(-2, 3, (40, K, dim))
    agents = draw(st.none() | st.just(np.arange(40) % N_AGENTS))
    return fb.worlds.from_arrays(features, rng.random((40, K)), agents=agents, noise=max(noise, 0.01))


PARTICIPATION = st.sampled_from(
    [
        fb.participation.uniform(),
        fb.participation.zipf(1.5),
        fb.participation.round_robin(),
        fb.participation.bursts(8.0),
        fb.participation.outages(0.5, 30),
        fb.participation.random_episodes(0.4),
        fb.participation.episodes([(0, 1), (2,), (1, 0, 3)]),
        fb.participation.sequence([3, 1, 2, 1], repeat=True),
    ]
)


@settings(max_examples=60)
@given(data=st.data())
def test_the_compiled_trace_is_the_trace_of_the_reference(data):
    dim = data.draw(st.integers(1, 12), label="dim")
    world = data.draw(worlds(dim), label="world")
    rule = data.draw(rules(dim, N_AGENTS), label="rule")
    assume(not is_drawn_from_a_ball(rule, world))  # only the reference plays it
    assume(getattr(rule, "personal", None) is None or rule.is_certain)  # nor do kernels draw for personal agents
    run = {
        "participation": data.draw(PARTICIPATION, label="participation"),
        "n_agents": N_AGENTS,
        "n_rounds": data.draw(st.integers(1, 400), label="n_rounds"),
        "seed": data.draw(st.integers(0, 2**20), label="seed"),
    }
    assert_same_trace(*both_engines(rule, world, **run))
