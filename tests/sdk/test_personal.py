"""Live agents with a parameter of their own: they decide as in the library, and their own sums stay exact."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import InvalidParameter
from fedbandit.sdk import LocalServer, open_agent
from fedbandit.wire.settings import ModelSettings
from tests.live import running_server
from tests.sdk.helpers import Way, as_if_killed, make_hub, make_live, whole_rows
from tests.sdk.test_agreement import live_choices

EYE = np.eye(3)


def core(agent):
    return agent._durable.agent


def feed(agent, n, seed=0):
    for i, x in enumerate(whole_rows(n, seed=seed)):
        agent.observe(x, float(i % 3))


@pytest.mark.parametrize("personal", ["auto", 0.0, 1.0])
@pytest.mark.parametrize("journal", [False, True])
def test_live_agents_choose_what_the_simulator_chooses(tmp_path, personal, journal):
    rule = fb.FedLinUCB(dim=5, alpha=0.5, beta=0.5, join=True, personal=personal)
    world = fb.worlds.clusters(dim=5, n_actions=6, noise=0.3, n_clusters=2)
    hub = LocalServer(rule)

    def open_one(name):
        state_dir = tmp_path / name if journal else None
        return open_agent(hub.transport(name), model="local", sync="inline", state_dir=state_dir)

    trace = fb.simulate(rule, world, n_agents=6, n_rounds=400, seed=1, record="all", engine="reference")
    choices, n_exchanges = live_choices(open_one, world, n_agents=6, n_rounds=400, seed=1)
    assert choices == trace.choices.tolist()
    assert n_exchanges == trace.messages_up[-1]


@pytest.mark.parametrize("personal", ["auto", 1.0])
def test_own_sums_survive_a_kill_at_any_observation(tmp_path, personal):
    hub = make_hub(alpha=0.5, personal=personal)
    with make_live(hub, sync="inline", state_dir=tmp_path / "state") as agent:
        for n in range(12):
            feed(agent, 3, seed=n)
            copy = as_if_killed(tmp_path / "state", tmp_path / f"copy-{n}")
            with make_live(Down(hub), sync="inline", state_dir=copy) as again:
                assert core(again).own == core(agent).own
                assert core(again).held == core(agent).held
                assert np.allclose(again.predict(EYE), agent.predict(EYE), rtol=1e-9)
        assert core(agent).own.n_obs == 36
        assert core(agent).held.n_obs == agent._durable.n_merged


class Down(Way):
    """A server that describes itself and answers nothing else."""

    def sync(self, body, *, timeout_s):
        raise fb.errors.NotReachable("down")

    def state(self, incarnation, tag, *, timeout_s):
        raise fb.errors.NotReachable("down")


def test_a_download_that_holds_the_upload_in_flight_is_read_as_such(tmp_path):
    """The reply is lost, and a refresh brings the model: until the retry the upload is in flight and in the model."""
    way = Way(make_hub(alpha=0.5, personal=0.0))
    with make_live(way, sync="inline", state_dir=tmp_path / "state") as agent:
        way.faults.append("lost reply")
        feed(agent, 10)
        sent = core(agent).in_flight
        assert sent is not None
        assert core(agent).held.n_obs == 0
        agent.refresh()
        assert core(agent).in_flight is sent
        assert core(agent).held == sent.stats
        model = core(agent).model.stats + core(agent).local
        expected = np.linalg.solve(model.Sigma, model.b)
        assert np.allclose(agent.predict(EYE), expected), "nothing counts twice"


def test_a_server_that_went_back_is_followed(tmp_path):
    hub = make_hub(alpha=0.2, personal=1.0)
    with make_live(hub, sync="inline", state_dir=tmp_path / "state") as agent:
        feed(agent, 10)
        backup = hub.server.to_bytes()
        n_then = core(agent).held.n_obs
        feed(agent, 40, seed=1)
        assert core(agent).held.n_obs > n_then > 0
        hub.server = fb.load(backup)
        agent.refresh()
        feed(agent, 5, seed=2)
        agent.flush()
        assert core(agent).own.n_obs == 55
        assert core(agent).held.n_obs == hub.server.stats.n_obs
        others = core(agent).model.stats - core(agent).held
        assert np.allclose(others.Sigma, core(agent).rule.lam * np.eye(3))


def test_quarantine_forgetting_and_release_change_what_is_held(tmp_path):
    with running_server(tmp_path) as server:
        server.add_model("news", dim=3, alpha=0.2, beta=0.5, personal="auto")
        assert server.show("news")["personal"] == {"kind": "auto"}
        tokens = {name: server.add_agent("news", name) for name in ("a", "b")}
        with (
            fb.connect(server.url, model="news", token=tokens["a"], sync="inline", state_dir=tmp_path / "a") as agent,
            fb.connect(server.url, model="news", token=tokens["b"], sync="inline") as other,
        ):
            feed(agent, 20)
            feed(other, 20, seed=1)
            agent.flush()
            other.flush()
            agent.refresh()
            assert core(agent).held.n_obs == core(agent).own.n_obs == 20
            server.call("POST", "/v1/models/news/agents/a/quarantine")
            agent.refresh()
            assert (core(agent).held.n_obs, core(agent).own.n_obs, agent.model.stats.n_obs) == (0, 20, 20)
            feed(agent, 5, seed=2)
            agent.flush()
            assert (core(agent).held.n_obs, core(agent).own.n_obs) == (0, 25)
            server.call("POST", "/v1/models/news/agents/a/release")
            agent.refresh()
            assert (core(agent).held.n_obs, core(agent).own.n_obs, agent.model.stats.n_obs) == (25, 25, 45)
            server.call("POST", "/v1/models/news/agents/a/forget")
            with pytest.raises(fb.errors.LiveError):
                agent.refresh()
            assert (core(agent).held.n_obs, core(agent).own.n_obs) == (0, 25)
            assert np.isfinite(agent.predict(EYE)).all()


def test_a_new_incarnation_leaves_what_the_server_has_to_the_fleet(tmp_path):
    hub = make_hub(alpha=0.2, personal=1.0)
    with make_live(hub, sync="inline", state_dir=tmp_path / "one") as agent:
        feed(agent, 20)
        agent.flush()
    with make_live(hub, sync="inline", state_dir=tmp_path / "two") as again:
        assert (core(again).held.n_obs, core(again).own.n_obs, again.model.stats.n_obs) == (0, 0, 20)
        feed(again, 3)
        assert core(again).own.n_obs == 3


CHILD = """
import sys, numpy as np, fedbandit as fb
url, token, state = sys.argv[1:]
agent = fb.connect(url, model="news", token=token, state_dir=state, sync="background")
rng = np.random.default_rng(0)
n = 0
while True:
    decision = agent.choose(rng.standard_normal((4, 3)))
    agent.observe(decision, float(decision.x[0]))
    n += 1
    print(n, flush=True)
"""


def test_a_process_that_is_killed_loses_none_of_its_own_observations(tmp_path):
    with running_server(tmp_path) as server:
        server.add_model("news", dim=3, alpha=0.2, beta=0.5, personal="auto")
        token = server.add_agent("news", "a")
        n_seen = 0
        for n_rounds in (40, 90, 25):
            child = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(CHILD), server.url, token, str(tmp_path / "state")],
                stdout=subprocess.PIPE,
                text=True,
            )
            lines = [child.stdout.readline() for _ in range(n_rounds)]
            os.kill(child.pid, signal.SIGKILL)
            out, _ = child.communicate()
            n_seen += len(lines) + out.count("\n")
        with fb.connect(server.url, model="news", token=token, sync="inline", state_dir=tmp_path / "state") as agent:
            own = core(agent).own
            assert n_seen <= own.n_obs <= n_seen + 3, "at most one observation per kill was booked and not printed"
            agent.flush()
            agent.refresh()
            assert core(agent).held.n_obs == agent.model.stats.n_obs == own.n_obs
            assert np.allclose(core(agent).held.Sigma, agent.model.stats.Sigma - np.eye(3))


def test_a_model_with_personal_needs_a_number_as_beta():
    with pytest.raises(InvalidParameter, match="expected beta as a number with personal"):
        ModelSettings("news", 3, 1.0, 1.0, fb.radius.exogenous(noise_scale=1.0), personal=fb.personal.auto())


def test_without_personal_settings_are_what_they_were():
    settings = ModelSettings("news", 3, 1.0, 1.0, fb.radius.fixed(1.0))
    assert "personal" not in settings.to_dict()
