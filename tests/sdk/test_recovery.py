"""After poisoned data were removed, every agent recovers by itself, also those whose triggers the data had silenced."""

import time

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.messages import Upload
from fedbandit.core.statistics import SufficientStats
from fedbandit.wire import codec
from tests.live import running_server

X = np.eye(3)
GOOD, BAD = 0, 2
CHECK_AFTER_S = 1.0
REWARDS = (1.0, 0.0, -1.0)


@pytest.fixture
def server(tmp_path):
    with running_server(tmp_path / "server") as server:
        yield server


def connect(server, name, **options):
    token = server.add_agent("news", name)
    return fb.connect(server.url, model="news", token=token, check_after_s=CHECK_AFTER_S, **options)


def teach(agent, n=30) -> None:
    for number in range(n):
        agent.observe(X[number % 3], REWARDS[number % 3])
    agent.flush()


def poison(server) -> None:
    """Three million observations that say the opposite, each within the model's rules."""
    n = 1_000_000
    sums = SufficientStats(1e6 * n * X, 1e3 * n * np.array([-1.0, 0.0, 1.0]), 3 * n, 0.0, 3.0 * n)
    body = codec.encode(codec.request_of(Upload("liar", "first", 1, sums, 1.0)))
    answer = server.request("POST", "/v1/models/news/sync", token=server.add_agent("news", "liar"), body=body)
    assert answer.status == 200, answer.data


def downloads(server) -> dict[str, float]:
    lines = server.request("GET", "/metrics").data.decode().splitlines()
    found = (line.split() for line in lines if line.startswith("fedbandit_downloads_total{"))
    return {name.split('"')[1]: float(value) for name, value in found}


def wait_until(is_so, seconds) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("remedy", ["forget", "quarantine"])
def test_all_agents_recover_within_one_interval_after_data_were_removed(server, remedy):
    server.add_model("news", dim=3, alpha=1.0, beta=0.01)
    agents = [connect(server, name) for name in ("a", "b", "c")]
    for agent in agents:
        teach(agent)
    poison(server)
    for agent in agents:
        agent.refresh()
        assert agent.choose(X).index == BAD
    exchanges = [agent.status().exchanges for agent in agents]
    for agent in agents:
        for _ in range(300):
            agent.observe(X[GOOD], 1.0)
    assert [agent.status().exchanges for agent in agents] == exchanges  # their triggers are silent
    server.call("POST", f"/v1/models/news/agents/liar/{remedy}")
    # One interval, and time for an exchange on a machine with other work to do.
    wait_until(lambda: all(agent.choose(X).index == GOOD for agent in agents), CHECK_AFTER_S + 5.0)
    # What was observed meanwhile is news again, until enough of the agents have brought theirs.
    wait_until(lambda: sum(agent.status().exchanges for agent in agents) > sum(exchanges), 10.0)
    for agent in agents:
        agent.close()


def test_an_agent_whose_upload_is_put_off_recovers_too(server):
    server.add_model("news", dim=3, alpha=1.0, beta=0.01, max_rate=0.01)  # 36 observations in the first hour
    with connect(server, "a") as agent:
        teach(agent)
        for _ in range(200):
            agent.observe(X[GOOD], 1.0)
        wait_until(lambda: "rate_exceeded" in (agent.status().last_error or ""), 10.0)
        other = connect(server, "b", sync="inline")
        other.observe(X[BAD], 1000.0)
        other.flush()
        agent.refresh()
        assert agent.choose(X).index == BAD
        server.call("POST", "/v1/models/news/agents/b/quarantine")
        wait_until(lambda: agent.choose(X).index == GOOD, CHECK_AFTER_S + 5.0)
        status = agent.status()
        assert status.in_flight + status.unsent == 200  # kept, and sent again when the server said
        assert status.next_attempt_s > 60.0
        other.close()


def test_agents_without_anything_to_say_cost_a_few_hundred_bytes(server):
    server.add_model("news", dim=3)
    with connect(server, "a") as quiet, connect(server, "b", sync="inline") as busy:
        before, version = downloads(server), quiet.model_version
        received = quiet.status().bytes_received
        teach(busy)
        wait_until(lambda: downloads(server).get("unchanged", 0) >= before.get("unchanged", 0) + 2, 10.0)
        assert downloads(server)["sent"] == before["sent"]
        assert (quiet.model_version, quiet.status().bytes_received) == (version, received)


def test_an_agent_that_exchanges_inline_asks_when_it_observes(server):
    server.add_model("news", dim=3, alpha=100.0, beta=0.01)
    with connect(server, "a", sync="inline") as agent:
        teach(agent)
        poison(server)
        agent.refresh()
        server.call("POST", "/v1/models/news/agents/liar/forget")
        agent.observe(X[GOOD], 1.0)
        time.sleep(CHECK_AFTER_S)
        agent.observe(X[GOOD], 1.0)
        assert agent.choose(X).index == GOOD


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_an_interval_that_cannot_be_is_refused(wrong):
    with pytest.raises(fb.errors.InvalidParameter, match="check_after_s"):
        fb.connect("http://127.0.0.1:1", model="news", token="t" * 20, check_after_s=wrong)
