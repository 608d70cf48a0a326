"""`min_upload`: no smaller upload is sent, and buffers stay within the bound of the theory page."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.compiled.engine import has_kernel
from tests.sdk.helpers import make_hub, make_live


@settings(max_examples=40, deadline=None)
@given(
    k=st.integers(1, 6),
    alpha=st.sampled_from([0.0, 0.01, 0.3, 2.0]),
    lam=st.sampled_from([0.1, 1.0, 5.0]),
    trigger=st.sampled_from(["determinant", "spectral"]),
    seed=st.integers(0, 1 << 32),
)
def test_nothing_smaller_travels_and_buffers_stay_within_the_bound(k, alpha, lam, trigger, seed):
    rule = fb.FedLinUCB(dim=3, alpha=alpha, beta=0.5, lam=lam, trigger=trigger, min_upload=k)
    server, agents = rule.server(), [rule.agent(name) for name in "ab"]
    bound = fb.theory.held_back_alpha(alpha=alpha, min_upload=k, lam=lam, action_bound=1.0)
    rng, n_seen = np.random.default_rng(seed), 0
    for turn in range(40):
        agent = agents[turn % 2]
        x = rng.normal(size=3)
        upload = agent.observe(x / np.linalg.norm(x), float(rng.normal()))
        n_seen += 1
        if upload is not None:
            assert upload.stats.n_obs >= k
            assert upload.growth > np.log1p(alpha)
            agent.adopt(server.receive(upload))
        buffer = np.linalg.solve(agent.model.stats.Sigma, agent.local.Sigma)
        top = float(np.linalg.eigvals(buffer).real.max())
        # The spectral trigger bounds the largest eigenvalue, the other one the trace as well.
        assert (np.trace(buffer) if trigger == "determinant" else top) <= bound * (1 + 1e-9) + 1e-12
        assert np.linalg.det(np.eye(3) + buffer) <= max((1 + alpha) ** 3, (1 + 1 / lam) ** (k - 1)) * (1 + 1e-9)
    assert server.stats.n_obs + sum(agent.local.n_obs for agent in agents) == n_seen


def test_asking_for_the_rest_does_not_break_the_promise():
    agent = fb.FedLinUCB(dim=2, alpha=0.0, beta=0.5, min_upload=3).agent("a")
    for _ in range(2):
        assert agent.observe(np.ones(2), 1.0) is None
        assert agent.upload_now() is None and not agent.should_upload
    assert agent.observe(np.ones(2), 1.0).stats.n_obs == 3


def test_without_it_nothing_changed():
    upload = fb.FedLinUCB(dim=2, alpha=0.0, beta=0.5).agent("a").observe(np.ones(2), 1.0)
    assert upload is not None and upload.stats.n_obs == 1


def test_it_survives_saving():
    agent = fb.FedLinUCB(dim=2, alpha=0.0, beta=0.5, min_upload=2).agent("a")
    agent.observe(np.ones(2), 1.0)
    again = fb.load(agent.to_bytes())
    assert again.rule.min_upload == 2
    assert again.observe(np.ones(2), 1.0).stats.n_obs == 2


@pytest.mark.parametrize(
    "beta",
    [
        fb.radius.adaptive(n_agents=3, noise_scale=0.3),
        fb.radius.paper(n_agents=3, n_rounds=10, noise_scale=0.3),
    ],
)
def test_a_radius_that_would_be_wrong_is_refused(beta):
    with pytest.raises(InvalidParameter, match="min_upload"):
        fb.FedLinUCB(dim=2, alpha=0.5, beta=beta, min_upload=2)
    fb.FedLinUCB(dim=2, alpha=0.5, beta=fb.radius.exogenous(noise_scale=0.3), min_upload=2)
    with pytest.raises(InvalidParameter):
        fb.FedLinUCB(dim=2, beta=0.5, min_upload=0)


def test_the_compiled_engine_leaves_it_to_the_reference():
    assert has_kernel(fb.FedLinUCB(dim=2, beta=0.5))
    assert not has_kernel(fb.FedLinUCB(dim=2, beta=0.5, min_upload=2))


def test_a_live_agent_sends_nothing_smaller_either():
    hub = make_hub()
    sizes = []
    with make_live(hub, sync="inline", min_upload=4) as agent:
        for turn in range(22):
            before = hub.server.stats.n_obs
            agent.observe(np.eye(3)[turn % 3], 1.0)
            agent.flush(1.0)
            sizes.append(hub.server.stats.n_obs - before)
    assert sum(sizes) + 2 == 22 and set(sizes) == {0, 4}  # the last two are not sent, also at the end
