"""An agent that starts before its server: at the prior, with settings that the application gives."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from fedbandit.core.radius import fixed
from fedbandit.errors import InvalidParameter, NotReachable, Refused, StateMismatch
from fedbandit.wire.settings import ModelSettings
from tests.live import running_server
from tests.sdk.helpers import Way, make_hub, make_live, wait_until, whole_rows
from tests.sdk.test_processes import expected_sums
from tests.sdk.test_real_server import held

SETTINGS = {"dim": 3, "alpha": 0.0, "beta": 0.5}
X = np.eye(3)


def way_that_is_down(**rule):
    way = Way(make_hub(**rule))
    way.down = True
    return way


def start(way, **options):
    return make_live(way, **{"agent": "a", "offline_ok": True, "settings": SETTINGS, **options})


def test_without_the_permission_a_first_start_needs_the_server(tmp_path):
    with pytest.raises(NotReachable, match="a first start needs the server"):
        make_live(way_that_is_down(), agent="a", settings=SETTINGS, state_dir=tmp_path)


def test_what_is_observed_before_the_server_answers_counts_once(tmp_path):
    way = way_that_is_down()
    with start(way, state_dir=tmp_path) as agent:
        for x in whole_rows(20):
            agent.observe(x, 1.0)
        assert agent.choose(X) is not None
        assert agent.model_version == 0 and agent.status().reachable is False
        assert way.inner._hub.server.stats.n_obs == 0
        way.down = False
        agent.flush(10.0)
        wait_until(lambda: agent.model_version > 0)
        assert way.inner._hub.server.stats.n_obs == 20
        assert agent.status().last_error is None
    np.testing.assert_array_equal(way.inner._hub.server.stats.b, whole_rows(20).sum(axis=0))
    with make_live(way.inner._hub, state_dir=tmp_path) as again:  # and from now on it is like any other
        assert again.status().rounds == 20 and again.status().sequence >= 1
    assert way.inner._hub.server.stats.n_obs == 20


def test_it_joins_by_itself_without_anything_to_send():
    way = way_that_is_down()
    other = make_live(way.inner._hub.transport("b"))
    other.observe(X[0], 1.0)
    other.flush(5.0)
    with start(way) as agent:
        assert agent.model_version == 0
        way.down = False
        wait_until(lambda: agent.model_version == 1)
    other.close()


def test_it_decides_as_an_agent_at_the_prior_does():
    way = way_that_is_down(alpha=1.0)
    rows = whole_rows(30, seed=3).reshape(10, 3, 3)
    with start(way, settings={**SETTINGS, "alpha": 1.0}) as agent, make_live(make_hub(alpha=1.0)) as online:
        for actions in rows:
            assert agent.choose(actions).index == online.choose(actions).index


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"beta": 0.7}, "radius"),
        ({"alpha": 2.0}, "alpha"),
        ({"dim": 4}, "dim"),
        ({"features": ["x", "y", "z"]}, "features"),
    ],
)
def test_other_settings_than_the_servers_stop_the_exchange_and_lose_nothing(tmp_path, changes, named):
    way = way_that_is_down()
    given = {**SETTINGS, **changes}
    with start(way, settings=given, state_dir=tmp_path) as agent:
        for x in whole_rows(5, given["dim"]):
            agent.observe(x, 1.0)
        way.down = False
        with pytest.raises(Refused, match=named) as caught:
            agent.flush(5.0)
        assert caught.value.reason == "settings_changed" == agent.status().last_error_code
        assert agent.choose(np.eye(given["dim"])) is not None  # decisions go on
        assert agent.status().unsent + agent.status().in_flight == 5
    assert way.bodies == [] and way.inner._hub.server.version == 0
    if named in ("dim", "features"):
        with pytest.raises(StateMismatch):
            make_live(way.inner._hub, state_dir=tmp_path)
        return
    with make_live(way.inner._hub, state_dir=tmp_path) as again:  # the rows mean the same: they count
        again.flush(5.0)
    assert way.inner._hub.server.stats.n_obs == 5


def test_the_token_must_belong_to_the_agent_that_was_named():
    way = way_that_is_down()
    with start(way, agent="b") as agent:
        agent.observe(X[0], 1.0)
        way.down = False
        with pytest.raises(Refused, match="by the token 'a'"):
            agent.flush(5.0)
    assert way.bodies == []


def test_a_restart_needs_neither_the_server_nor_the_settings(tmp_path):
    way = way_that_is_down()
    with start(way, state_dir=tmp_path) as agent:
        agent.observe(X[0], 1.0)
    way = way_that_is_down()
    with make_live(way, state_dir=tmp_path) as agent:  # nobody has confirmed the settings yet
        agent.observe(X[1], 1.0)
        way.down = False
        agent.flush(5.0)
    assert way.inner._hub.server.stats.n_obs == 2


class FailsAfterDescription(Way):
    """A server that ends between two requests."""

    def describe(self, *, timeout_s):
        found = super().describe(timeout_s=timeout_s)
        self.down = True
        return found


def test_a_server_that_fails_after_its_description_is_no_server_either():
    with pytest.raises(NotReachable, match="a first start needs the server"):
        make_live(FailsAfterDescription(make_hub()))
    way = FailsAfterDescription(make_hub())
    with start(way) as agent:
        assert agent.model_version == 0 and agent.status().reachable is False
        agent.observe(X[0], 1.0)
        way.down = False
        agent.flush(5.0)
    assert way.inner._hub.server.stats.n_obs == 1


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dim": 3},
        {"dim": 3, "beta": 1.0, "radius": {"kind": "fixed", "value": 1.0}},
        {"dim": 0, "beta": 1.0},
        {"dim": 3, "beta": 1.0, "gamma": 2},
        {"dim": "3", "beta": 1.0},
        {"dim": 3, "beta": 1.0, "lam": "x"},
        3,
    ],
)
def test_settings_that_are_none_are_named(settings):
    with pytest.raises(InvalidParameter):
        start(way_that_is_down(), settings=settings)


def test_settings_may_be_model_settings_of_this_model():
    way = way_that_is_down()
    made = ModelSettings("local", 3, 1.0, 0.0, fixed(0.5))
    with start(way, settings=made) as agent:
        agent.observe(X[0], 1.0)
        way.down = False
        agent.flush(5.0)
    with pytest.raises(InvalidParameter, match="another"):
        start(way_that_is_down(), settings=ModelSettings("another", 3, 1.0, 0.0, fixed(0.5)))


def test_without_settings_or_a_name_it_says_what_is_missing():
    with pytest.raises(NotReachable, match="settings="):
        start(way_that_is_down(), settings=None)
    with pytest.raises(InvalidParameter, match="agent="):
        start(way_that_is_down(), agent=None)


def run(arguments, kill_after_s=None):
    """What a process printed until its end, or so long after its first observation."""
    command = [sys.executable, "-m", "tests.sdk.child_process", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if kill_after_s is not None:
            lines = [process.stdout.readline(), process.stdout.readline()]
            assert lines[0].startswith("resumed") and lines[1].strip().isdecimal(), lines
            time.sleep(kill_after_s)
            process.kill()
        return process.communicate(timeout=120)[0].split()


def test_an_agent_killed_before_its_server_ever_answered_loses_and_doubles_nothing(tmp_path):
    """SIGKILL while there is no server, then while there is one, then to the end."""
    last = 3000
    with running_server(tmp_path / "server") as server:
        server.add_model("news", dim=3, alpha=0.0, beta=0.5)
        token = server.add_agent("news", "a")
        server.stop()
        arguments = [server.url, "news", token, str(tmp_path / "state"), str(last), json.dumps(SETTINGS)]
        for kill_after_s in (0.0, 0.03):
            run(arguments, kill_after_s)
        server.start()
        run(arguments, 0.05)
        assert "done" in run(arguments)
        Sigma, b, reward_sum = expected_sums(last, 3)
        stats = held(server)
        assert stats.n_obs == last and stats.reward_sum == reward_sum
        assert np.array_equal(stats.Sigma, Sigma + np.eye(3)) and np.array_equal(stats.b, b)
