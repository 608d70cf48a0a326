"""A model's settings change while its agents run: they take them up without a restart, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import InvalidParameter, Refused
from tests.live import LiveServer, running_server
from tests.service.uploads import settings

ROWS = np.eye(3)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


def connect(server: LiveServer, tmp_path, model: str, name: str = "a", **options):
    token = server.add_agent(model, name)
    return fb.connect(server.url, model=model, token=token, state_dir=tmp_path / name, sync="inline", **options)


def play(agent, n: int) -> None:
    for i in range(n):
        agent.observe(agent.choose(ROWS), float(i % 3 == 0))


def test_a_running_agent_takes_up_new_settings_and_keeps_everything(server, tmp_path) -> None:
    server.add_model("ads", dim=3, alpha=100.0, beta=0.5)
    with connect(server, tmp_path, "ads") as agent:
        play(agent, 5)
        waiting = agent.choose(ROWS)
        unsent = agent.status().unsent
        assert unsent > 0
        changed = server.call("PATCH", "/v1/models/ads", {"alpha": 0.0, "beta": 0.3, "reward_bound": 1.0})
        assert (changed["alpha"], changed["radius"]["beta"], changed["reward_bound"]) == (0.0, 0.3, 1.0)
        assert agent.refresh() is False  # the sums are the same
        status = agent.status()
        assert (status.alpha, status.beta, status.pending) == (0.0, 0.3, 1)
        assert status.unsent + status.in_flight == unsent  # by the new α they are due
        with pytest.raises(fb.errors.InvalidInput, match=r"\|r\|"):
            agent.observe(waiting, 2.0)
        agent.observe(waiting, 1.0)  # α = 0: it travels now
        assert (agent.status().unsent, agent.status().in_flight) == (0, 0)
        assert server.show("ads")["n_obs"] == 6
    deadline = time.monotonic() + 20.0  # events are written once a second
    while "alpha: 100.0 → 0.0" not in str(server.call("GET", "/v1/models/ads/events")["events"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_policies_and_personal_agents_take_up_new_settings(server, tmp_path) -> None:
    server.add_model("drawn", dim=3, alpha=100.0, beta=0.5, personal="auto")
    with connect(server, tmp_path, "drawn") as agent:
        play(agent, 6)
        assert agent.choose(ROWS).propensity == 1.0
        server.call("PATCH", "/v1/models/drawn", {"policy": "inverse-gap", "explore": 0.2, "beta": 0.125})
        agent.refresh()
        assert agent.status().beta == 0.125
        decision = agent.choose(ROWS)
        assert decision.policy == "inverse-gap" and 0.2 / 3 <= decision.propensity < 1.0
        play(agent, 6)
        agent.flush()
        assert server.show("drawn")["n_obs"] == 12


def test_an_agent_that_was_stopped_meanwhile_resumes_with_the_new_settings(server, tmp_path) -> None:
    server.add_model("shop", dim=3, alpha=100.0, beta=0.5)
    with connect(server, tmp_path, "shop") as agent:
        play(agent, 4)
        agent.flush()
        play(agent, 3)
        version = agent.model_version
    server.call("PATCH", "/v1/models/shop", {"beta": 0.25})
    token = server.call("POST", "/v1/models/shop/agents", {"name": "a", "renew": True})["token"]
    with fb.connect(server.url, model="shop", token=token, state_dir=tmp_path / "a", sync="inline") as agent:
        assert (agent.status().beta, agent.model_version, agent.status().unsent) == (0.25, version, 3)
        agent.flush()
    assert server.show("shop")["n_obs"] == 7


def test_an_upload_that_was_checked_by_old_settings_is_checked_again(server, tmp_path) -> None:
    """The server's cache of settings, on this and on other replicas, never decides what is merged."""
    server.add_model("cached", dim=3, alpha=0.0)
    with connect(server, tmp_path, "cached") as agent:
        agent.observe(ROWS[0], 50.0)
        assert agent.status().unsent == 0
        server.call("PATCH", "/v1/models/cached", {"reward_bound": 1.0})
        agent.observe(ROWS[0], 40.0)  # the agent does not know the bound yet
        with pytest.raises(Refused):
            agent.flush(5.0)
        assert server.show("cached")["n_obs"] == 1
        assert agent.status().in_flight == 1  # kept, and named
        server.call("PATCH", "/v1/models/cached", {"reward_bound": None})
        agent.flush(5.0)
        assert server.show("cached")["n_obs"] == 2


def test_a_model_that_was_created_again_still_stops_the_agent(server, tmp_path) -> None:
    server.add_model("again", dim=3, alpha=0.0)
    with connect(server, tmp_path, "again") as agent:
        play(agent, 2)
        server.call("DELETE", "/v1/models/again")
        server.add_model("again", dim=3, alpha=0.0, beta=0.7)
        server.call("POST", "/v1/models/again/agents", {"name": "a"})
        play(agent, 1)
        with pytest.raises(Refused):
            agent.flush(2.0)


@pytest.mark.parametrize(
    "body", [{"dim": 4}, {"lam": 2.0}, {"features": ["a", "b", "c"]}, {"alpha": -1.0}, {"beta": None}]
)
def test_settings_that_would_break_the_sums_cannot_change(server, body) -> None:
    if not any(model["name"] == "fixed" for model in server.call("GET", "/v1/models")["models"]):
        server.add_model("fixed", dim=3)
    before = server.show("fixed")
    answer = server.request("PATCH", "/v1/models/fixed", json=body)
    assert answer.status == 400, answer.data
    assert server.show("fixed") == before


def test_the_command_changes_and_shows_the_model(server) -> None:
    server.add_model("told", dim=3, reward_bound=5.0)
    command = [
        sys.executable,
        "-m",
        "fedbandit",
        "models",
        "set",
        "told",
        "--beta",
        "0.3",
        "--reward-bound",
        "none",
        "--json",
    ]
    environment = {"FEDBANDIT_URL": server.url, "FEDBANDIT_TOKEN": server.admin_token, "PATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"beta": 0.3' in done.stdout
    assert server.show("told")["reward_bound"] == 1e9
    nothing = subprocess.run(command[:6], capture_output=True, text=True, env=environment, timeout=60)
    assert nothing.returncode == 2 and "at least one setting" in nothing.stderr


def test_only_named_settings_are_changed() -> None:
    before = settings("m")
    assert before.changed({"beta": 0.4}).keeps_sums_of(before)
    with pytest.raises(InvalidParameter, match="lam cannot change"):
        before.changed({"lam": 3.0})
    with pytest.raises(InvalidParameter, match="both"):
        before.changed({"beta": 0.4, "radius": {"kind": "fixed", "beta": 1.0}})


def test_the_response_to_change_and_the_limits_of_silence_may_change(server, tmp_path) -> None:
    server.add_model("drifting", dim=3, alpha=1e6, beta=0.5)
    with connect(server, tmp_path, "drifting") as agent:
        play(agent, 5)
        assert agent.status().unsent == 5
        restart = {"kind": "restart", "noise_scale": 0.01}
        server.call("PATCH", "/v1/models/drifting", {"drift": restart, "max_silence_rounds": 4})
        agent.refresh()
        assert agent._durable.agent.world.detector is not None
        play(agent, 4)  # the fourth since is due, whatever α says
        assert (agent.status().unsent, server.show("drifting")["n_obs"]) == (0, 9)
        server.call("PATCH", "/v1/models/drifting", {"drift": None, "max_silence_rounds": None})
        agent.refresh()
        assert agent._durable.agent.world.detector is None
        play(agent, 20)
        assert agent.status().unsent == 20
        agent.flush()
    assert server.show("drifting")["n_obs"] == 29
    discount = {"drift": {"kind": "discount", "horizon": 10.0}}
    answer = server.request("PATCH", "/v1/models/drifting", json=discount)
    assert answer.status == 400 and "discount" in answer.json()["message"]


def test_notes_are_for_people_and_agents_need_not_hear_of_them(server, tmp_path) -> None:
    server.add_model("noted", dim=3, notes="the first attempt")
    before = server.show("noted")
    after = server.call("PATCH", "/v1/models/noted", {"notes": "colours of the button\nfor mobile"})
    assert (before["notes"], after["notes"]) == ("the first attempt", "colours of the button\nfor mobile")
    assert after["settings"] == before["settings"]
    assert server.request("PATCH", "/v1/models/noted", json={"notes": "a\0b"}).status == 400
    assert server.call("PATCH", "/v1/models/noted", {"notes": ""}).get("notes") is None
    server.call("PATCH", "/v1/models/noted", {"notes": "again"})
    token = server.add_agent("noted", "a")
    given = {"dim": 3, "beta": 0.5, "alpha": before["alpha"], "lam": before["lam"]}
    offline = {"offline_ok": True, "settings": given, "agent": "a", "state_dir": tmp_path / "a", "sync": "inline"}
    with fb.connect("http://127.0.0.1:1", model="noted", token=token, **offline) as agent:
        play(agent, 3)
    with fb.connect(server.url, model="noted", token=token, **offline) as agent:  # the same settings but for notes
        agent.flush()
    assert server.show("noted")["n_obs"] == 3
