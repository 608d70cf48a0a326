"""Live agents of a model that restarts: nothing is lost track of, whoever is killed, restored or silent."""

import threading
import time

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import Refused
from tests.live import running_server
from tests.postgres import database, postgres  # noqa: F401 - fixtures
from tests.sdk.helpers import Way, as_if_killed, make_hub, make_live, wait_until, whole_rows
from tests.sdk.test_processes import kill_again_and_again

X = np.eye(3)
RESTART = fb.drift.restart(noise_scale=0.1, agent_block=8, server_block=16, n_levels=3)


def counted(hub, agent):
    """merged + discarded + unsent, as the server and the agent have them."""
    status, world, server = agent.status(), agent._durable.agent.world, hub.server
    flight = agent._durable.agent.in_flight
    is_merged = flight is not None and "a" in server.ledger and server.ledger["a"].sequence >= flight.sequence
    waiting = 0 if flight is None or is_merged else flight.stats.n_obs + flight.dropped
    return server.clock + server.n_discarded + waiting + status.unsent + world.n_dropped


def test_an_agent_hears_of_a_restart_at_its_next_exchange(tmp_path):
    hub = make_hub(alpha=0.5)
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        for x in whole_rows(20):
            agent.observe(x, 1.0)
        hub.server.restart()
        for x in whole_rows(200, seed=1):
            agent.observe(x, 1.0)
        status = agent.status()
        assert status.epoch == 1 and status.discarded == hub.server.n_discarded > 0
        assert counted(hub, agent) == status.rounds == 220
        agent.flush()
        assert hub.server.clock + hub.server.n_discarded == 220


def test_what_is_observed_while_a_restart_is_on_its_way_is_dropped_and_reported():
    hub = make_hub(alpha=0.0)
    way = Way(hub)
    with make_live(way) as agent:
        agent.observe(X[0], 1.0)
        agent.flush()
        hub.server.restart()
        way.gate.clear()
        agent.observe(X[0], 1.0)  # in flight, of the old epoch
        wait_until(lambda: len(way.bodies) == 2)
        agent.observe(X[1], 1.0)  # unsent, of the old epoch
        way.gate.set()
        wait_until(lambda: agent.status().epoch == 1)
        assert agent.status().unsent == 0 and agent.status().discarded == 2
        agent.observe(X[2], 1.0)
        agent.flush()
        assert (hub.server.clock, hub.server.n_discarded) == (2, 2)
        assert np.array_equal(hub.server.stats.Sigma, np.diag([1.0, 1.0, 2.0]))


@pytest.mark.parametrize("fault", [None, "lost request", "lost reply"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_agent_killed_around_a_restart_loses_track_of_nothing(tmp_path, fault, when):
    hub = make_hub(alpha=0.0)
    way = Way(hub)
    agent = make_live(way, state_dir=tmp_path / "one", sync="inline")
    agent.observe(X[0], 1.0)
    if when == "before":
        way.down = True
        agent.observe(X[1], 1.0)
    hub.server.restart()
    way.down = False
    if fault is not None:
        way.faults.append(fault)
    agent.observe(X[2], 1.0)
    rounds = agent.status().rounds
    copy = as_if_killed(tmp_path / "one", tmp_path / "two")
    with make_live(hub, state_dir=copy, sync="inline") as resumed:
        assert resumed.status().rounds == rounds and counted(hub, resumed) == rounds
        resumed.observe(X[0], 1.0)
        resumed.flush()
        assert resumed.status().epoch == 1
        resumed.observe(X[0], 1.0)
        resumed.flush()
        assert hub.server.clock + hub.server.n_discarded == rounds + 2
        assert hub.server.stats.n_obs >= 1
    agent._durable.ended = fb.errors.Closed("killed")


def test_a_changed_world_restarts_the_model_and_the_detector_survives_a_kill(tmp_path):
    hub = make_hub(alpha=1.0, drift=RESTART, max_silence=20)
    rng = np.random.default_rng(0)
    n_epochs = []
    for part, theta in enumerate([np.ones(3), np.ones(3), -np.ones(3), -np.ones(3)]):
        with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:  # another process
            for _ in range(60):
                x = rng.standard_normal(3)
                agent.observe(x, float(x @ theta) + 0.1 * rng.standard_normal())
            n_epochs.append(hub.server.epoch)
            assert counted(hub, agent) == 60 * (part + 1)
            prediction = agent.predict(X)
    assert n_epochs == [0, 0, 1, 1]
    assert np.allclose(prediction, -1.0, atol=0.3)


def test_a_server_restored_to_before_a_restart_is_told_by_the_next_upload(tmp_path):
    hub = make_hub(alpha=0.0, drift=RESTART)
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        backup = hub.server.to_bytes()
        hub.server.restart()
        agent.observe(X[0], 1.0)  # discarded, and told of epoch 1
        agent.observe(X[1], 1.0)  # of epoch 1
        assert agent.status().epoch == 1
        hub.server = fb.load(backup)
        agent.observe(X[2], 1.0)  # the server lacks uploads 2 and 3, which are sent again
        assert hub.server.epoch == 1 and agent.status().epoch == 1
        assert np.array_equal(hub.server.stats.Sigma, np.diag([1.0, 2.0, 2.0]))
        agent.flush()
        assert hub.server.ledger["a"].sequence == 4


def test_rejoining_discards_what_was_made_before_a_restart(tmp_path):
    hub = make_hub(alpha=0.0)
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        backup = hub.server.to_bytes()
        agent.observe(X[0], 1.0)
        hub.server.restart()
        agent.observe(X[0], 1.0)
        agent.observe(X[1], 1.0)
        hub.server = fb.load(backup)
        hub.server.restart()
        agent._durable.journal._db.execute("DELETE FROM kept WHERE sequence = 1")
        assert agent.rejoin()
        agent.observe(X[2], 1.0)
        agent.flush()
        assert np.array_equal(hub.server.stats.Sigma, np.diag([1.0, 2.0, 2.0]))
        assert hub.server.n_discarded == 1  # what is left of the first epoch: upload 2


class TestSilence:
    """`max_silence_s`: what is unsent travels after that many seconds, trigger or not."""

    @pytest.mark.parametrize("sync", ["background", "inline"])
    def test_nothing_stays_unsent_for_longer(self, sync):
        hub = make_hub(alpha=1e9)
        way = Way(hub)
        describe = way.describe
        way.describe = lambda *, timeout_s: {**describe(timeout_s=timeout_s), "max_silence_s": 0.3}
        with make_live(way, sync=sync) as agent:
            begun = time.monotonic()
            agent.observe(X[0], 1.0)
            assert hub.server.clock == 0
            while hub.server.clock == 0 and time.monotonic() < begun + 10.0:
                time.sleep(0.02)
                if sync == "inline":
                    agent.observe(X[0], 1.0)
            assert hub.server.clock >= 1 and time.monotonic() - begun >= 0.25
            n_sent = len(way.bodies)
            time.sleep(0.5)
            assert len(way.bodies) == n_sent, "nothing is sent where nothing is unsent"

    def test_without_a_limit_nothing_travels(self):
        hub = make_hub(alpha=1e9)
        with make_live(hub) as agent:
            agent.observe(X[0], 1.0)
            time.sleep(0.3)
            assert hub.server.clock == 0


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_agents_killed_while_the_model_restarts_are_counted_exactly(tmp_path, request, store):
    where = "sqlite" if store == "sqlite" else request.getfixturevalue("database")
    with running_server(tmp_path / "server", where) as server:
        server.add_model("news", alpha=0.5, max_silence_rounds=40)
        token = server.add_agent("news", "a")
        done = threading.Event()

        def restart_now_and_then():
            while not done.wait(0.04):
                server.call("POST", "/v1/models/news/restart")

        operator = threading.Thread(target=restart_now_and_then)
        operator.start()
        try:
            kill_again_and_again(server.url, "news", token, tmp_path / "state", 1500, n_kills=3, seed=5)
        finally:
            done.set()
            operator.join()
        with fb.connect(server.url, model="news", token=token, agent="a", state_dir=tmp_path / "state") as agent:
            agent.observe(np.ones(3), 1.0)  # reports what was dropped
            agent.flush()
            agent.observe(np.ones(3), 1.0)
            agent.flush()
            assert agent.status().discarded == server.show("news")["n_discarded"]
        shown = server.show("news")
        assert shown["epoch"] >= 1 and shown["n_discarded"] > 0
        assert shown["n_merged"] + shown["n_discarded"] == 1502

        def is_told():  # events are written once a second
            events = server.call("GET", "/v1/models/news/events?limit=1000")["events"]
            return any(event["kind"] == "restarted" for event in events)

        wait_until(is_told)


def test_a_plain_model_that_was_restored_refuses_a_later_epoch_until_it_is_restarted(tmp_path):
    with running_server(tmp_path / "server") as server:
        server.add_model("news", alpha=0.0)
        token = server.add_agent("news", "a")
        with fb.connect(server.url, model="news", token=token, agent="a", sync="inline") as agent:
            agent.observe(X[0], 1.0)
            agent._durable.agent.world.epoch = 1  # as if the server had restarted, and forgotten it
            agent.observe(X[1], 1.0)
            with pytest.raises(Refused, match="epoch 1"):
                agent.flush()
            assert agent.status().in_flight == 1
            server.call("POST", "/v1/models/news/restart")
            agent.flush()
            assert server.show("news")["n_obs"] == 1
