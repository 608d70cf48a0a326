"""The kernel by blocks plays what the reference plays, and what the dense kernel plays; bytes are counted exactly."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit import errors
from fedbandit.simulation.worlds import from_arrays

pytest.importorskip("numba")
RADII = (0.5, fb.radius.adaptive(n_agents=3, noise_scale=0.3))


def world(*, n: int = 300, K: int = 4, q: int = 2, seed: int = 0):
    rng = np.random.default_rng(seed)
    features = fb.block_features(rng.standard_normal((n, q)), n_arms=K)
    return from_arrays(features, rng.standard_normal((n, K)))


@pytest.mark.parametrize("beta", RADII)
@pytest.mark.parametrize("options", [{}, {"join": True, "refresh": "arrival"}, {"alpha": 0.0}, {"alpha": 0.05}])
def test_the_kernel_by_blocks_agrees_with_the_reference_and_with_the_dense_kernel(beta, options):
    played = world()
    rule = fb.FedLinUCB(**{"dim": 12, "alpha": 0.7, "beta": beta, **options})
    wide = fb.FedLinUCB(**{"dim": 12, "alpha": 0.7, "beta": beta, "blocks": 4, **options})
    run = {"n_agents": 3, "n_rounds": 250, "seed": 3, "record": "all"}
    dense = fb.simulate(rule, played, engine="compiled", **run)
    reference = fb.simulate(wide, played, engine="reference", **run)
    compiled = fb.simulate(wide, played, engine="compiled", **run)
    for other in (reference, dense):
        assert np.array_equal(compiled.choices, other.choices)
        assert np.array_equal(compiled.messages_up, other.messages_up)
        assert np.array_equal(compiled.messages_down, other.messages_down)
        np.testing.assert_allclose(compiled.regret, other.regret, rtol=1e-9, atol=1e-9)
    assert np.array_equal(compiled.bytes, reference.bytes)
    assert np.array_equal(compiled.scalars, reference.scalars)
    assert compiled.bytes[-1] < dense.bytes[-1]


def test_the_kernel_names_a_row_in_several_blocks():
    rng = np.random.default_rng(0)
    crossing = from_arrays(rng.standard_normal((20, 3, 6)), rng.standard_normal((20, 3)))
    with pytest.raises(errors.NotOneBlock):
        fb.simulate(fb.FedLinUCB(dim=6, alpha=1.0, beta=0.5, blocks=3), crossing, n_agents=2, n_rounds=20)


def test_rules_with_blocks_and_no_kernel_are_played_by_the_reference():
    rule = fb.FedLinUCB(dim=12, alpha=0.7, beta=0.5, blocks=4, trigger="spectral")
    assert fb.simulate(rule, world(), n_agents=2, n_rounds=30).n_messages > 0
    with pytest.raises(errors.InvalidParameter, match="cannot play"):
        fb.simulate(rule, world(), n_agents=2, n_rounds=30, engine="compiled")
