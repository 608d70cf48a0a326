"""DELB and Fed-PE: the compiled trace is the reference's, for any sizes, and errors are the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit.errors import InvalidInput, InvalidParameter
from tests.simulation.engines import assert_same_trace, both_engines

pytest.importorskip("numba")


@st.composite
def runs(draw):
    n_agents = draw(st.integers(1, 9))
    run = {"n_agents": n_agents, "n_rounds": draw(st.integers(1, 600)), "seed": draw(st.integers(0, 2**20))}
    dim, K = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    n_steps = max(1, run["n_rounds"] // n_agents)
    if draw(st.booleans()):
        C = draw(st.sampled_from([1e-4, 0.01, 0.1, 1.0, 600.0]))
        return fb.DELB(dim=dim, n_steps=n_steps, C=C), fb.worlds.fixed_set(dim=dim, n_actions=K), run
    shared = draw(st.booleans())
    rule = fb.FedPE(dim=dim, n_arms=K, n_steps=n_steps, parameters="shared" if shared else "per-arm")
    return rule, fb.worlds.fixed_features(dim=dim, n_actions=K, shared=shared), run


@settings(max_examples=60)
@given(case=runs())
def test_the_compiled_trace_is_the_trace_of_the_reference(case):
    rule, world, run = case
    reference, compiled = both_engines(rule, world, **run)
    assert_same_trace(reference, compiled)
    for name in ("scalars", "bytes"):
        np.testing.assert_array_equal(getattr(compiled, name), getattr(reference, name))


@pytest.mark.parametrize("engine", ["reference", "compiled"])
def test_a_fleet_that_is_not_in_steps_is_refused(engine):
    with pytest.raises(InvalidParameter, match="acts in steps"):
        fb.simulate(
            fb.DELB(dim=2, n_steps=50),
            fb.worlds.fixed_set(dim=2, n_actions=3),
            n_agents=3,
            n_rounds=100,
            participation="uniform",
            engine=engine,
        )


@pytest.mark.parametrize("engine", ["reference", "compiled"])
def test_decision_sets_that_change_are_refused(engine):
    with pytest.raises(InvalidInput, match="never change"):
        fb.simulate(
            fb.FedPE(dim=2, n_arms=3, n_steps=50, shortest=1e-9),
            fb.worlds.uniform(dim=2, n_actions=3),
            n_agents=3,
            n_rounds=100,
            engine=engine,
        )


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_infinite_decision_sets_are_refused(engine):
    with pytest.raises(InvalidInput, match="finite array"):
        fb.simulate(
            fb.FedPE(dim=2, n_arms=3, n_steps=50), fb.worlds.ball(dim=2), n_agents=2, n_rounds=10, engine=engine
        )
