"""Models with blocks and agents that differ or a world that changes, live: what a dense fleet does, nothing is lost."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit import errors
from fedbandit.sdk import LocalServer, open_agent
from tests.live import running_server
from tests.postgres import database, postgres
from tests.properties.test_blocks_equal_dense import assert_same_sums, rows_in
from tests.sdk.helpers import make_live

__all__ = ["database", "postgres"]
ARMS = ["tea", "milk", "bread"]
RESTART = fb.drift.restart(noise_scale=0.1, agent_block=8, server_block=16, n_levels=3)
OPTIONS = {
    "restart": {"drift": RESTART, "max_silence": 20},
    "discount": {"drift": fb.drift.discount(horizon=30.0)},
    "personal": {"personal": "auto"},
    "personal-fixed": {"personal": 0.5},
}


@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 1000), K=st.sampled_from([2, 3]))
def test_a_live_fleet_with_blocks_does_what_a_dense_one_does(tmp_path_factory, name, seed, K):
    rng, folder = np.random.default_rng(seed), tmp_path_factory.mktemp("fleet")
    hubs = [LocalServer(fb.FedLinUCB(dim=6, alpha=0.5, beta=0.6, blocks=n, **OPTIONS[name])) for n in (1, K)]

    def connect(i: int, who: int) -> fb.LiveAgent:
        state = folder / f"{i}{who}"
        return open_agent(hubs[i].transport("ab"[who]), model="local", sync="inline", state_dir=state)

    fleets = [[connect(i, who) for who in range(2)] for i in range(2)]
    theta = rng.standard_normal(6)
    for t in range(120):
        who, X, noise = int(rng.integers(2)), rows_in(rng, K, 6 // K, 4), 0.1 * float(rng.standard_normal())
        theta = -theta if t == 60 else theta
        chosen = []
        for i, fleet in enumerate(fleets):
            if t % 40 == 39:  # another process
                fleet[who].close()
                fleet[who] = connect(i, who)
            decision = fleet[who].choose(X)
            fleet[who].observe(decision, float(X[decision.index] @ theta) + noise)
            status = fleet[who].status()
            chosen.append((decision.index, status.epoch, status.discarded, status.unsent, fleet[who].model_version))
        assert chosen[0] == chosen[1]
        if "personal" in OPTIONS[name]:
            dense, by_blocks = (fleet[who]._durable.agent for fleet in fleets)
            assert by_blocks.kappa == pytest.approx(dense.kappa, rel=1e-9)
            assert_same_sums(by_blocks.own, dense.own)
            assert_same_sums(by_blocks.held, dense.held)
    assert_same_sums(hubs[1].server.stats, hubs[0].server.stats)
    assert hubs[1].server.epoch == hubs[0].server.epoch
    assert hubs[1].server.epoch > 0 or name != "restart"
    for agent in (*fleets[0], *fleets[1]):
        agent.close()


def reward_of(decision, sign: float, rng: np.random.Generator) -> float:
    return sign * float(decision.x.sum()) + 0.1 * float(rng.standard_normal())


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def test_a_real_server_restarts_and_widens_a_model_with_blocks(tmp_path, request, store):
    store = store if store == "sqlite" else request.getfixturevalue("database")
    rng = np.random.default_rng(2)
    with running_server(tmp_path, store=store) as server:
        server.add_model(
            "shop",
            alpha=0.5,
            beta=0.3,
            dim=6,
            blocks=3,
            arms=ARMS,
            max_silence_rounds=10,
            drift=fb.drift.to_dict(RESTART),
        )
        token = server.add_agent("shop", "a")
        options = {"model": "shop", "token": token, "state_dir": tmp_path / "agent", "sync": "inline"}
        n_seen = 0
        for sign, arms, epoch in ((1.0, ["salt"], 0), (1.0, ["oil"], 0), (-1.0, [], 1)):
            with fb.connect(server.url, **options) as agent:
                for _ in range(100):  # blocks of the tests are open when the model is widened and the agent ends
                    decision = agent.choose_context(rng.standard_normal(1))
                    agent.observe(decision, reward_of(decision, sign, rng))
                n_seen += 100
                if arms:
                    server.call("POST", "/v1/models/shop/arms", {"arms": arms})
                    with suppress(errors.Refused):
                        agent.flush()
                assert server.show("shop")["epoch"] == epoch
        with fb.connect(server.url, **options) as agent:
            assert agent.arms == (*ARMS, "salt", "oil")
            agent.observe(np.eye(10)[0], -1.0)
            agent.flush()
            shown = server.show("shop")
            assert shown["n_merged"] + shown["n_discarded"] == n_seen + 1
            assert shown["n_discarded"] == agent.status().discarded > 0


def test_a_real_server_discounts_a_model_with_blocks_as_a_dense_one(tmp_path):
    rng = np.random.default_rng(3)
    with running_server(tmp_path) as server:
        agents = []
        for name, more in (("dense", {}), ("blocks", {"blocks": 3})):
            server.add_model(
                name, alpha=0.5, beta=0.3, dim=6, drift=fb.drift.to_dict(fb.drift.discount(horizon=20.0)), **more
            )
            for who in "ab":
                token = server.add_agent(name, who)
                agents.append(fb.connect(server.url, model=name, token=token, sync="inline"))
        for _ in range(80):
            who, X, reward = int(rng.integers(2)), rows_in(rng, 3, 2, 4), float(rng.standard_normal())
            decisions = [agents[who + at].choose(X) for at in (0, 2)]
            assert decisions[0].index == decisions[1].index
            for at, decision in zip((0, 2), decisions, strict=True):
                agents[who + at].observe(decision, reward)
            assert agents[who].model_version == agents[who + 2].model_version
        for agent in agents:
            agent.refresh()
        assert_same_sums(agents[2].model.stats, agents[0].model.stats)
        assert agents[2].model.stats.n_obs > np.trace(agents[2].model.stats.dense().Sigma - np.eye(6)) / 4
        for agent in agents:
            agent.close()


def test_the_detector_of_an_agent_goes_on_with_more_arms(tmp_path):
    """An alarm that needs observations from before and after a model is widened."""
    rule = fb.FedLinUCB(dim=4, alpha=1e9, beta=0.5, blocks=2, arms=["a", "b"], drift=RESTART)
    wider = fb.FedLinUCB(dim=6, alpha=1e9, beta=0.5, blocks=3, arms=["a", "b", "c"], drift=RESTART)
    hub = LocalServer(rule)
    with make_live(hub, state_dir=tmp_path / "one", sync="inline") as agent:
        for i in range(5):
            agent.observe(np.eye(4)[i % 2], 9.0)
        assert not agent._durable.agent.world.has_alarm
    hub.server, hub.settings = wider.server(), hub.settings + "+"
    with make_live(hub, state_dir=tmp_path / "one", sync="inline") as agent:
        assert agent.arms == ("a", "b", "c")
        for _ in range(3):
            agent.observe(np.eye(6)[4], 9.0)
        assert agent.status().epoch == 1


def test_own_sums_of_an_agent_go_on_with_more_arms(tmp_path):
    numbers = {"alpha": 0.3, "beta": 0.5, "personal": 0.5}
    rule = fb.FedLinUCB(dim=4, blocks=2, arms=["a", "b"], **numbers)
    wider = fb.FedLinUCB(dim=6, blocks=3, arms=["a", "b", "c"], **numbers)
    hub = LocalServer(rule)
    with make_live(hub, state_dir=tmp_path / "one", sync="inline") as agent:
        for i in range(30):
            agent.observe(np.eye(4)[i % 4], float(i % 4))
        before, held = agent._durable.agent.own, agent._durable.agent.held
        assert before.n_obs == 30 and held.n_obs > 0
        predicted = agent.predict(np.eye(4))
    server = wider.server()
    server.stats, server.version, server.ledger = (
        hub.server.stats.widened(3, 1.0),
        hub.server.version,
        hub.server.ledger,
    )
    hub.server, hub.settings = server, hub.settings + "+"
    with make_live(hub, state_dir=tmp_path / "one", sync="inline") as agent:
        assert_same_sums(agent._durable.agent.own, before.widened(3).dense())
        np.testing.assert_allclose(agent.predict(np.eye(6)), [*predicted, 0.0, 0.0], rtol=1e-9)
        agent.observe(np.eye(6)[5], 7.0)
        agent.flush()
        assert agent._durable.agent.own.n_obs == 31
        assert agent.predict(np.eye(6))[5] > 3.0
