"""Trails of agents and the fleet in a few numbers: what the service keeps for the page."""

import pytest

from fedbandit.service import trails as module
from fedbandit.service.trails import MAX_STEPS, Trails


def test_a_trail_adds_up():
    trails = Trails()
    trails.step("uid", "a", 1.0, 10, 5.0)
    trails.step("uid", "a", 2.0, 20, 15.0)
    assert trails.of("uid", "a") == [(1.0, 10.0, 5.0), (2.0, 30.0, 20.0)]
    assert trails.of("uid", "b") == []


def test_a_trail_is_thinned_and_its_end_stays_exact():
    trails = Trails()
    for i in range(1000):
        trails.step("uid", "a", float(i), 1, 0.5)
    steps = trails.of("uid", "a")
    assert len(steps) <= MAX_STEPS
    assert steps[-1] == (999.0, 1000.0, 500.0)
    assert [at for at, _, _ in steps] == sorted(at for at, _, _ in steps)


def test_whoever_was_silent_longest_is_dropped(monkeypatch):
    monkeypatch.setattr(module, "MAX_AGENTS", 2)
    trails = Trails()
    for agent in ("a", "b", "a", "c"):
        trails.step("uid", agent, 1.0, 1, 1.0)
    assert trails.of("uid", "a") and trails.of("uid", "c") and not trails.of("uid", "b")


def test_uploads_leave_a_trail_and_forgetting_removes_it(window):
    tokens = window.fleet("a")
    window.send(tokens["a"])
    window.send(tokens["a"])  # a retry counts once
    uid = window.portal.call(window.parts.store.load, "news").uid
    assert len(window.parts.history.trails.of(uid, "a")) == 1
    window.call("POST", "/v1/models/news/agents/a/forget")
    assert window.parts.history.trails.of(uid, "a") == []


@pytest.mark.parametrize("asked", ["/models/news/agents/a", "/models/news?with=a"])
def test_the_page_shows_a_trail(window, asked):
    tokens = window.fleet("a")
    for sequence in range(1, 8):
        window.send(tokens["a"], "a", sequence)
    assert '"agent"' in window.show(asked).replace("&quot;", '"')
