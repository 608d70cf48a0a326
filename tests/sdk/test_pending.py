"""Decisions that wait: listed, found, expired, given a default, with and without a journal."""

import threading

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
        agent._durable._now = lambda: now[0]
        first = agent.choose(X)
        now[0] += 60.0
        agent.choose(X)
        assert agent.pending.older_than(30.0) == [first]
        assert agent.pending.settle(0.0, older_than_s=30.0) == 1


def test_a_clock_that_goes_back_hides_none_of_them(options):
    with make_live(make_hub(), **options) as agent:
        now = [1000.0]
        agent._durable._now = lambda: now[0]
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
        n_slots = agent._durable.journal._ring.n_slots
        made = [agent.choose(X) for _ in range(3 * n_slots)]
        for decision in made[::2]:
            agent.observe(decision, 1.0)
        agent.expire(made[1])
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
        agent._durable.save()  # forgets the log; what the log settled must stay settled
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
        journal = agent._durable.journal
        journal.settle = lambda number: None  # killed just before
        agent.observe(decision, 1.0)
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    for _ in range(2):  # the second time from a snapshot that replaced the log
        with make_live(hub, state_dir=copy) as again:
            with pytest.raises(AlreadyObserved):
                again.observe(decision, 1.0)
            assert again.status().pending == 0 and again.status().rounds == 1


def test_a_reward_that_is_brought_to_the_owner_counts_once(tmp_path):
    hub = make_hub()
    with (
        make_live(hub.transport("worker-1"), state_dir=tmp_path / "1") as owner,
        make_live(hub.transport("worker-2")) as other,
    ):
        decision = owner.choose(X)
        with pytest.raises(UnknownDecision, match="bring the reward to that agent"):
            other.observe(decision, 1.0)
        owner.observe(owner.pending[decision.id], 1.0)
        assert owner.pending.settle(0.0) == 0
        owner.flush()
        other.flush()
    assert (hub.server.stats.n_obs, hub.server.stats.reward_sum) == (1, 1.0)


def test_a_row_booked_elsewhere_counts_once_if_the_owner_expires_the_decision(tmp_path):
    hub = make_hub()
    with (
        make_live(hub.transport("worker-1"), state_dir=tmp_path / "1") as owner,
        make_live(hub.transport("worker-2")) as other,
    ):
        other.observe(owner.choose(X).x, 1.0)
        assert owner.pending.expire() == 1
        assert owner.pending.settle(0.0) == 0
        owner.flush()
        other.flush()
    assert (hub.server.stats.n_obs, hub.server.stats.reward_sum) == (1, 1.0)


def test_a_row_booked_elsewhere_counts_twice_if_the_owner_settles():
    """What docs/how-to/delayed-rewards.md warns of: nothing can recognise a row, so that this is no error."""
    hub = make_hub()
    with make_live(hub.transport("worker-1")) as owner, make_live(hub.transport("worker-2")) as other:
        other.observe(owner.choose(X).x, 1.0)
        assert owner.pending.settle(0.0) == 1
        owner.flush()
        other.flush()
    assert hub.server.stats.n_obs == 2


def test_a_decision_is_in_the_journal_before_anybody_can_book_it(tmp_path):
    """Another thread gives all that wait a reward just when a decision is about to be written down."""
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        journal = agent._durable.journal
        note = journal.note

        def note_late(waiting):
            thread = threading.Thread(target=agent.pending.settle, args=(1.0,))
            thread.start()
            thread.join()
            note(waiting)

        journal.note = note_late
        agent.choose(X)
        journal.note = note
        agent.pending.settle(1.0)
        assert agent.status().rounds == 1
        agent._durable.save()  # the log, which would tell, is not replayed any more
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    with make_live(hub, state_dir=copy, sync="inline") as again:
        assert len(again.pending) == 0 and again.status().rounds == 1


def test_a_default_reward_passes_over_what_got_another_one_meanwhile(options):
    with make_live(make_hub(alpha=float("inf")), sync="inline", **options) as agent:
        first, _, third = (agent.choose(X) for _ in range(3))
        observe = agent.pending._observe

        def observe_beside_another_thread(decision, reward):
            if decision == first:
                agent.expire(third)
            observe(decision, reward)

        agent.pending._observe = observe_beside_another_thread
        assert agent.pending.settle(1.0) == 2
        assert agent.status().rounds == 2 and len(agent.pending) == 0


def test_dropping_the_oldest_does_not_cost_a_transaction_for_each_decision(tmp_path, monkeypatch):
    monkeypatch.setattr("fedbandit.sdk.journal.pending_ring.SLOTS", (64, 64))
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state", sync="inline", max_pending=640) as agent:
        begun = []
        agent._durable.journal._db.set_trace_callback(
            lambda sql: begun.append(sql) if sql.startswith("BEGIN") else None
        )
        made = [agent.choose(X) for _ in range(3000)]
        waiting = list(agent.pending)
        assert waiting == made[-len(waiting) :] and 620 <= len(waiting) <= 640
        assert len(begun) < 200  # 3000 / 64 for the moves, 2360 / 20 for the drops
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    with make_live(hub, state_dir=copy, sync="inline") as again:
        assert list(again.pending) == waiting


@pytest.mark.parametrize("end", ["observe", "expire"])
def test_after_a_kill_no_decision_has_the_name_of_one_that_was_settled(tmp_path, end):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        for _ in range(5):
            first = agent.choose(X)
            if end == "observe":
                agent.observe(first, 1.0)
            else:
                agent.expire(first)
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    with make_live(hub, state_dir=copy, sync="inline") as again:
        names = {again.choose(X).id for _ in range(5)}
        assert first.id not in names
        with pytest.raises(AlreadyObserved):
            again.observe(first, 1.0)
