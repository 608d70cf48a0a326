"""The recent uploads of each agent, in memory and in constant space."""

import pytest

from fedbandit.service import history as module
from fedbandit.service.history import MAX_STEPS, AgentHistory


def test_the_history_of_an_agent_adds_up():
    history = AgentHistory()
    history.step("uid", "a", 1.0, 10, 5.0)
    history.step("uid", "a", 2.0, 20, 15.0)
    assert history.of("uid", "a") == [(1.0, 10.0, 5.0), (2.0, 30.0, 20.0)]
    assert history.of("uid", "b") == []


def test_a_history_is_thinned_and_its_end_stays_exact():
    history = AgentHistory()
    for i in range(1000):
        history.step("uid", "a", float(i), 1, 0.5)
    steps = history.of("uid", "a")
    assert len(steps) <= MAX_STEPS
    assert steps[-1] == (999.0, 1000.0, 500.0)
    assert [at for at, _, _ in steps] == sorted(at for at, _, _ in steps)


def test_whoever_was_silent_longest_is_dropped(monkeypatch):
    monkeypatch.setattr(module, "MAX_AGENTS", 2)
    history = AgentHistory()
    for agent in ("a", "b", "a", "c"):
        history.step("uid", agent, 1.0, 1, 1.0)
    assert history.of("uid", "a") and history.of("uid", "c") and not history.of("uid", "b")


def test_uploads_are_recorded_and_forgetting_removes_them(dashboard):
    tokens = dashboard.fleet("a")
    dashboard.send(tokens["a"])
    dashboard.send(tokens["a"])  # a retry counts once
    uid = dashboard.portal.call(dashboard.container.store.load, "news").uid
    assert len(dashboard.container.history.trails.of(uid, "a")) == 1
    dashboard.call("POST", "/v1/models/news/agents/a/forget")
    assert dashboard.container.history.trails.of(uid, "a") == []


@pytest.mark.parametrize("asked", ["/models/news/agents/a", "/models/news?with=a"])
def test_the_dashboard_shows_it(dashboard, asked):
    tokens = dashboard.fleet("a")
    for sequence in range(1, 8):
        dashboard.send(tokens["a"], "a", sequence)
    assert '"agent"' in dashboard.show(asked).replace("&quot;", '"')
