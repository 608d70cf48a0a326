"""Models with blocks, live: the same choices as the simulator, exact sums, kills, retries, and arms that are added."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit import errors
from fedbandit.sdk import LocalServer, open_agent
from fedbandit.wire.codec import BlockSyncRequest, decode_request
from tests.live import running_server
from tests.postgres import database, postgres
from tests.properties.test_blocks_equal_dense import assert_same_sums, rows_in
from tests.sdk.helpers import Way, make_hub, make_live

__all__ = ["database", "postgres"]
ARMS = ["tea", "milk", "bread"]
BLOCKS = {"dim": 6, "blocks": 3, "arms": ARMS}


def play(agent, rng, n: int) -> list[tuple[int, np.ndarray, float]]:
    """Rounds by context; what was observed as (block, context, reward)."""
    seen = []
    for _ in range(n):
        decision = agent.choose_context(rng.standard_normal(1))
        reward = float(rng.standard_normal())
        agent.observe(decision, reward)
        seen.append((decision.block, decision.x, reward))
    return seen


def sums_of(seen, blocks: int) -> fb.SufficientStats:
    places = np.array([block for block, _, _ in seen], dtype=np.intp)
    values, rewards = np.array([x for _, x, _ in seen]), np.array([reward for *_, reward in seen])
    return fb.SufficientStats.of_blocks(places, values, rewards, blocks)


def assert_holds(stats: fb.SufficientStats, seen, lam: float = 1.0) -> None:
    expected = fb.SufficientStats.prior(dim=stats.dim, lam=lam, blocks=stats.blocks) + sums_of(seen, stats.blocks)
    assert_same_sums(stats, expected.dense())


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), K=st.sampled_from([2, 3]))
def test_a_live_fleet_with_blocks_does_what_a_dense_one_does(seed, K):
    rng = np.random.default_rng(seed)
    hubs = [LocalServer(fb.FedLinUCB(dim=6, alpha=0.3, beta=0.6, blocks=blocks)) for blocks in (1, K)]
    fleets = [[open_agent(hub.transport(n), model="local", sync="inline") for n in "ab"] for hub in hubs]
    for _ in range(60):
        who, X, reward = int(rng.integers(2)), rows_in(rng, K, 6 // K, 4), float(rng.standard_normal())
        chosen = []
        for fleet in fleets:
            decision = fleet[who].choose(X)
            fleet[who].observe(decision, reward)
            chosen.append((decision.index, fleet[who].status().exchanges, fleet[who].model_version))
        assert chosen[0] == chosen[1]
    assert_same_sums(hubs[1].server.stats, hubs[0].server.stats)
    sent = [sum(agent.status().bytes_sent for agent in fleet) for fleet in fleets]
    assert sent[1] < sent[0]
    for agent in (*fleets[0], *fleets[1]):
        agent.close()


@pytest.mark.parametrize("fault", ["request lost", "reply lost"])
def test_every_observation_counts_once_over_lost_messages_and_restarts(tmp_path, fault):
    hub, rng, seen = make_hub(**BLOCKS), np.random.default_rng(0), []
    for _ in range(4):
        way = Way(hub)
        with make_live(way, state_dir=tmp_path / "a", sync="inline") as agent:
            way.faults.extend([fault] * 3)
            seen += play(agent, rng, 12)
    with make_live(hub, state_dir=tmp_path / "a", sync="inline") as agent:
        agent.flush()
    assert_holds(hub.server.stats, seen)


def test_pending_decisions_of_contexts_survive_a_restart(tmp_path):
    hub = make_hub(**BLOCKS)
    with make_live(hub, state_dir=tmp_path / "a") as agent:
        by_context = agent.choose_context([0.5], arms=["bread"])
        by_rows = agent.choose(np.eye(6)[2:3])
    with make_live(hub, state_dir=tmp_path / "a", sync="inline") as agent:
        found = agent.pending.get(by_context.id)
        assert (found.block, found.arm, found.x.tolist()) == (2, "bread", [0.5, 1.0])
        agent.observe(found, 1.0)
        agent.observe(agent.pending.get(by_rows.id), 2.0)
        with pytest.raises(errors.AlreadyObserved):
            agent.observe(by_context, 1.0)
        agent.flush()
    assert_holds(hub.server.stats, [(2, np.array([0.5, 1.0]), 1.0), (1, np.array([1.0, 0.0]), 2.0)])


def test_an_upload_brings_only_the_blocks_that_it_touched():
    hub = make_hub(dim=200, blocks=100)
    way = Way(hub)
    with make_live(way, sync="inline") as agent:
        agent.observe(agent.choose_context([0.5], arms=[70]), 1.0)
    request = decode_request(way.bodies[-1])
    assert isinstance(request, BlockSyncRequest)
    assert np.frombuffer(request.touched, "<u4").tolist() == [70]
    assert len(request.known) == 4 * 100  # checksums of the blocks that it has
    assert len(way.bodies[-1]) - len(request.known) < 8 * (3 + 2 + 3) + 4 + 300


def widen(hub: LocalServer, *arms: str) -> None:
    """What a server does when arms are added to its model."""
    rule = hub.server.rule
    wider = fb.FedLinUCB(
        dim=rule.dim // rule.blocks * (rule.blocks + len(arms)),
        alpha=rule.alpha,
        beta=rule.beta,
        blocks=rule.blocks + len(arms),
        arms=[*rule.arms, *arms],
    )
    server = wider.server()
    server.stats = hub.server.stats.widened(wider.blocks, rule.lam)
    server.version, server.ledger = hub.server.version, hub.server.ledger
    hub.server, hub.settings = server, hub.settings + "+"


def test_a_state_directory_of_a_narrower_model_is_used_on(tmp_path):
    hub, rng = make_hub(alpha=1e6, **BLOCKS), np.random.default_rng(1)
    with make_live(hub, state_dir=tmp_path / "a", sync="inline") as agent:
        seen = play(agent, rng, 20)
        agent.partial_fit(np.eye(6)[:2], [1.0, 2.0])
        waiting = agent.choose_context([0.3], arms=["milk"])
    seen += [(0, np.array([1.0, 0.0]), 1.0), (0, np.array([0.0, 1.0]), 2.0)]
    widen(hub, "salt", "oil")
    with make_live(hub, state_dir=tmp_path / "a", sync="inline") as agent:
        assert agent.arms == (*ARMS, "salt", "oil")
        agent.observe(waiting, 4.0)
        agent.observe(agent.choose_context([0.7], arms=["oil"]), 3.0)
        agent.flush()
    seen += [(1, np.array([0.3, 1.0]), 4.0), (4, np.array([0.7, 1.0]), 3.0)]
    assert_holds(hub.server.stats, seen)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_real_server_widens_a_model_and_loses_nothing(tmp_path, request, store):
    store = store if store == "sqlite" else request.getfixturevalue("database")
    rng = np.random.default_rng(2)
    with running_server(tmp_path, store=store) as server:
        server.add_model("shop", alpha=0.2, beta=0.5, **BLOCKS)
        token = server.add_agent("shop", "a")
        options = {"model": "shop", "token": token, "state_dir": tmp_path / "agent", "sync": "inline"}
        with fb.connect(server.url, **options) as agent:
            seen = play(agent, rng, 30)
            before = server.call("GET", "/v1/models/shop")
            wider = server.call("POST", "/v1/models/shop/arms", {"arms": ["salt"]})
            assert (wider["dim"], wider["blocks"], wider["arms"]) == (8, 4, [*ARMS, "salt"])
            assert wider["n_obs"] == before["n_obs"]
            seen += play(agent, rng, 10)  # the agent goes on with the arms that it knows
            with suppress(errors.Refused):
                agent.flush()
            assert agent.status().last_error_code == "settings_changed"
        with fb.connect(server.url, **options) as agent:
            assert agent.arms == (*ARMS, "salt")
            decision = agent.choose_context([0.5], arms=["salt"])
            agent.observe(decision, 1.0)
            seen.append((3, decision.x, 1.0))
            agent.flush()
            agent.refresh()
            assert_holds(agent.model.stats, seen)
        after = server.call("POST", "/v1/models/shop/agents/a/forget")
        assert after["n_obs"] == 0
        for body, status in (({"arms": ["tea"]}, 400), ({"arms": []}, 400), ({"arms": ["a\n"]}, 400)):
            assert server.request("POST", "/v1/models/shop/arms", json=body).status == status
        server.call("GET", "/v1/models/shop/insight")
