"""`fedbandit agent --world`: agents of one world learn one θ*, each from its own decision sets and noise."""

from __future__ import annotations

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.cli.agent import play
from fedbandit.errors import InvalidParameter
from fedbandit.sdk import open_agent
from fedbandit.sdk.in_process import LocalServer
from fedbandit.simulation.worlds import WORLDS


def learnt(world: str, *, seed: int, world_seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """θ* as noiseless rewards show it, and Σ of what was chosen."""
    hub = LocalServer(fb.FedLinUCB(dim=4, alpha=0.0, beta=1.0, lam=1e-6))
    with open_agent(hub.transport(f"agent-{seed}"), model="local", sync="inline") as live:
        play(live, world, n_rounds=60, seed=seed, world_seed=world_seed, noise=0.0)
    return fb.RidgeModel(hub.server.stats).theta_hat, hub.server.stats.Sigma


@pytest.mark.parametrize("world", ["sphere", "articles", "uniform"])
def test_the_seed_of_an_agent_leaves_the_world_as_it_is(world: str) -> None:
    first, first_rows = learnt(world, seed=1)
    second, second_rows = learnt(world, seed=2)
    np.testing.assert_allclose(first, second, atol=1e-4)
    assert not np.allclose(first_rows, second_rows)
    _, again_rows = learnt(world, seed=1)
    np.testing.assert_array_equal(first_rows, again_rows)
    if world != "uniform":  # whose θ* is fixed
        assert not np.allclose(first, learnt(world, seed=1, world_seed=5)[0], atol=1e-2)


def test_every_world_that_the_command_offers_can_be_reseeded() -> None:
    hub = LocalServer(fb.FedLinUCB(dim=4, alpha=1.0, beta=1.0))
    with open_agent(hub.transport("a"), model="local", sync="inline") as live:
        for name in WORLDS:
            assert play(live, name, n_rounds=5, seed=3)["rounds"] == 5
        with pytest.raises(InvalidParameter, match="the ball world has no n_actions"):
            play(live, "ball", n_rounds=5, seed=3, n_actions=4)
        with pytest.raises(InvalidParameter, match="expected rounds"):
            play(live, "sphere", n_rounds=0, seed=3)
