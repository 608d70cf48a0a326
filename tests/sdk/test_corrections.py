"""Rows and rewards of observations that no upload holds: found while they can be corrected, dropped a few at a time."""

import numpy as np

import fedbandit as fb
from fedbandit.sdk.corrections import RecentRewards

ROW = np.ones(3)


def noted(n):
    """An agent that has observed so many decisions, numbers 0 to n - 1, and what is known of them."""
    agent = fb.FedLinUCB(dim=3, alpha=float("inf"), beta=0.5).agent("a")
    recent = RecentRewards(3)
    for number in range(n):
        agent.observe(ROW, float(number))
        recent.note(agent, number, ROW, float(number), agent.sequence)
    return agent, recent


def test_what_an_upload_holds_is_not_found_and_not_counted_at_once():
    agent, recent = noted(100)
    assert len(recent) == 100 and recent.find(agent, 7)[1] == 7.0
    assert agent.upload_now() is not None
    assert all(recent.find(agent, number) is None for number in range(100))
    assert len(recent) == 0 and list(recent) == []


def test_what_an_upload_holds_is_dropped_two_at_a_time_as_others_come():
    agent, recent = noted(100)
    agent.upload_now()
    for number in range(100, 130):
        agent.observe(ROW, 1.0)
        recent.note(agent, number, ROW, 1.0, agent.sequence)
    assert [number for number, _, _ in recent] == list(range(100, 130)) and len(recent) == 30
    assert len(recent._rewards) == 100 - 2 * 30 + 30
    agent.in_flight = None
    assert agent.upload_now() is not None  # the next one, while some of the last are still kept
    for number in range(130, 200):
        agent.observe(ROW, 1.0)
        recent.note(agent, number, ROW, 1.0, agent.sequence)
    assert len(recent._rewards) == len(recent) == 70
    assert recent.find(agent, 129) is None and recent.find(agent, 130) is not None


def test_a_correction_is_kept_and_the_oldest_go_first_beyond_the_limit():
    agent, recent = noted(10)
    recent._most = 10
    recent.change(4, 0.25)
    assert recent.find(agent, 4)[1] == 0.25
    for number in range(10, 14):
        agent.observe(ROW, 1.0)
        recent.note(agent, number, ROW, 1.0, agent.sequence)
    assert [number for number, _, _ in recent] == list(range(4, 14))
    assert recent.find(agent, 3) is None and recent.find(agent, 4)[1] == 0.25
