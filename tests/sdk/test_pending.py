"""Decisions that wait: listed, found, expired, given a default, with and without a journal."""

import numpy as np
import pytest

from fedbandit.errors import AlreadyObserved, UnknownDecision
from tests.sdk.helpers import as_if_killed, everything_about, make_hub, make_live

X = np.eye(3)


@pytest.fixture(params=["memory", "journal"])
def options(request, tmp_path):
    return {} if request.param == "memory" else {"state_dir": tmp_path / "state"}


def test_they_can_be_listed_and_found_by_id(options):
    with make_live(make_hub(), **options) as agent:
        made = [agent.choose(X) for _ in range(3)]
        assert list(agent.pending) == made and len(agent.pending) == 3
        assert agent.pending[made[1].id] == made[1] == agent.pending.get(made[1].id)
        assert made[2].id in agent.pending and "nonsense" not in agent.pending and 7 not in agent.pending
        agent.observe(agent.pending[made[1].id], 1.0)
        assert made[1].id not in agent.pending
        with pytest.raises(UnknownDecision):
            agent.pending[made[1].id]


def test_they_can_expire(options):
    with make_live(make_hub(), **options) as agent:
        old, young = agent.choose(X), agent.choose(X)
        agent.observe(young, 1.0)
        assert agent.pending.expire(older_than_s=3600.0) == 0
        assert agent.pending.expire() == 1 and len(agent.pending) == 0
        with pytest.raises(AlreadyObserved, match="expired"):
            agent.observe(old, 1.0)
        another = agent.choose(X)
        agent.expire(another)
        assert agent.status().pending == 0


def test_they_can_get_a_default_reward(options):
    hub = make_hub()
    with make_live(hub, **options) as agent:
        agent.choose_many([X, X, X])
        assert agent.pending.settle(0.25) == 3
        assert agent.status().pending == 0 and agent.status().rounds == 3
        agent.flush()
    assert hub.server.stats.reward_sum == 0.75


def test_age_is_counted_by_the_clock_of_the_application(options):
    with make_live(make_hub(), **options) as agent:
        now = [1000.0]
        agent._core._now = lambda: now[0]
        first = agent.choose(X)
        now[0] += 60.0
        agent.choose(X)
        assert agent.pending.older_than(30.0) == [first]
        assert agent.pending.settle(0.0, older_than_s=30.0) == 1


def test_a_clock_that_goes_back_hides_none_of_them(options):
    with make_live(make_hub(), **options) as agent:
        now = [1000.0]
        agent._core._now = lambda: now[0]
        decision = agent.choose(X)
        now[0] -= 3600.0
        assert list(agent.pending) == [decision] and len(agent.pending) == 1
        assert agent.pending.older_than(0.5) == []
        assert agent.pending.expire() == 1


def test_they_survive_a_kill_with_row_and_number(tmp_path):
    hub = make_hub()
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        kept, booked, expired = agent.choose(2.0 * X), agent.choose(X), agent.choose(X)
        agent.observe(booked, 1.0)
        agent.expire(expired)
        before = everything_about(agent)
        with make_live(hub, state_dir=as_if_killed(tmp_path / "state", tmp_path / "copy")) as again:
            assert everything_about(again)["waiting"] == before["waiting"]
            assert list(again.pending) == [kept]
            for settled in (booked, expired):
                with pytest.raises(AlreadyObserved):
                    again.observe(settled, 1.0)
            again.observe(kept, 1.0)
            assert again.choose(X).id not in {kept.id, booked.id, expired.id}


def test_more_of_them_than_the_ring_holds_survive_too(tmp_path):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        n_slots = agent._core.journal._ring.n_slots
        made = [agent.choose(X) for _ in range(3 * n_slots)]
        for decision in made[::2]:
            agent.observe(decision, 1.0)
        agent.expire(made[1])
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
        agent._core.save()  # forgets the log; what the log settled must stay settled
        later = as_if_killed(tmp_path / "state", tmp_path / "later")
    expected = [decision.id for decision in made[3::2]]
    for directory in (copy, later, tmp_path / "state"):
        with make_live(hub, state_dir=directory) as again:
            assert [decision.id for decision in again.pending] == expected
            assert again.choose(X).id not in {decision.id for decision in made}


def test_a_kill_between_the_log_and_the_ring_books_once(tmp_path):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        decision = agent.choose(X)
        journal = agent._core.journal
        journal.settle = lambda number: None  # killed just before
        agent.observe(decision, 1.0)
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    for _ in range(2):  # the second time from a snapshot that replaced the log
        with make_live(hub, state_dir=copy) as again:
            with pytest.raises(AlreadyObserved):
                again.observe(decision, 1.0)
            assert again.status().pending == 0 and again.status().rounds == 1
