"""Live agents against a real server process: killed on both sides, revoked, forgotten, deleted."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import InvalidInput, Refused, StateMismatch
from tests.live import running_server
from tests.sdk.helpers import wait_until
from tests.sdk.test_processes import expected_sums, kill_again_and_again, run_victim

X = np.eye(3)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def news(server):
    """A model with one agent; its token."""
    server.add_model("news", alpha=0.0)
    yield server.add_agent("news", "a")
    if server.request("GET", "/v1/models/news").status == 200:
        server.call("DELETE", "/v1/models/news")


def join(server, token, **options):
    return fb.connect(server.url, model="news", token=token, agent="a", **options)


def held(server):
    from fedbandit.wire.codec import decode_reply, download_of

    return download_of(decode_reply(server.request("GET", "/v1/models/news/state?incarnation=x").data)).stats


def test_a_killed_agent_loses_and_doubles_nothing(server, news, tmp_path):
    kill_again_and_again(server.url, "news", news, tmp_path / "state", 1500, n_kills=4, seed=2)
    Sigma, b, reward_sum = expected_sums(1500, 3)
    stats = held(server)
    assert np.array_equal(stats.Sigma, Sigma + np.eye(3)) and np.array_equal(stats.b, b)
    assert (stats.n_obs, stats.reward_sum) == (1500, reward_sum)


def test_a_killed_server_costs_nothing_either(tmp_path):
    with running_server(tmp_path / "server") as server:
        server.add_model("news", alpha=0.5)
        token = server.add_agent("news", "a")
        with join(server, token, state_dir=tmp_path / "state") as agent:
            for n in range(300):
                agent.observe(X[n % 3], 1.0)
                if n in (100, 200):
                    server.kill()
                if n in (150, 250):
                    assert agent.status().reachable is not None and agent.choose(X).index is not None
                    server.start()
            agent.flush(60.0)
            assert agent.status().reachable is True
        lines = run_victim(server.url, "news", token, tmp_path / "state", 300, None)
        assert lines[0].split()[:2] == ["resumed", "300"]
        stats = held(server)
        assert np.array_equal(stats.Sigma, 101.0 * np.eye(3)) and stats.n_obs == 300


def test_a_deleted_model_is_told_and_decisions_go_on(server, news):
    with join(server, news) as agent:
        server.call("DELETE", "/v1/models/news")
        agent.observe(agent.choose(X), 1.0)
        wait_until(lambda: agent.status().last_error_code == "unauthenticated")  # the token went with the model
        assert agent.choose(X).index is not None
    with pytest.raises(Refused):
        join(server, news)


def test_a_model_made_anew_is_told_apart(server, news, tmp_path):
    with join(server, news, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        server.call("DELETE", "/v1/models/news")
        server.add_model("news", alpha=0.0)
        agent.observe(X[0], 1.0)
        assert agent.status().last_error_code == "unauthenticated"
    token = server.add_agent("news", "a")
    with pytest.raises(StateMismatch, match="created again"):
        join(server, token, state_dir=tmp_path / "state")


def test_a_revoked_agent_is_told(server, news):
    with join(server, news, sync="inline") as agent:
        server.call("POST", "/v1/models/news/agents/a/revoke")
        agent.observe(X[0], 1.0)
        assert agent.status().last_error_code == "unauthenticated"
        with pytest.raises(Refused) as caught:
            agent.flush(5.0)
        assert caught.value.status in (401, 403)


def test_bounds_of_the_model_are_kept_before_anything_travels(server, tmp_path):
    server.add_model("bounded", alpha=0.0, action_bound=1.0, reward_bound=1.0)
    token = server.add_agent("bounded", "a")
    with fb.connect(server.url, model="bounded", token=token, agent="a", sync="inline") as agent:
        with pytest.raises(InvalidInput):
            agent.observe(2.0 * X[0], 1.0)
        with pytest.raises(InvalidInput):
            agent.partial_fit(X, [0.0, 0.0, 3.0])
        agent.observe(X[0], 1.0)
        assert agent.status().last_error is None and agent.status().exchanges == 1


def test_the_token_says_who_the_agent_is(server, news):
    with fb.connect(server.url, model="news", token=news) as agent:
        assert agent.agent_id == "a"
