"""A snapshot is written while decisions and observations go on, and is exactly one of the moment it was taken."""

import threading
from contextlib import contextmanager

import numpy as np
import pytest

from fedbandit.errors import AlreadyObserved, Closed, FedbanditError, JournalFailed
from fedbandit.sdk import durable_agent as core_module
from fedbandit.sdk.journal import journal as journal_module
from tests.sdk.helpers import Way, as_if_killed, everything_about, make_hub, make_live, power_cut, whole_rows

X = np.eye(3)
KEYS = ("incarnation", "sequence", "in_flight", "n_rounds", "local", "waiting")


class Held:
    """A call of another thread that waits, in the middle, until it is let go."""

    def __init__(self, work):
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.errors = []
        self._work = work
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        try:
            self._work()
        except (FedbanditError, AssertionError) as error:
            self.errors.append(error)

    def wait(self):
        if threading.current_thread() is self.thread:
            self.reached.set()
            assert self.go_on.wait(30.0)

    def start(self):
        self.thread.start()
        assert self.reached.wait(30.0)

    def end(self):
        self.go_on.set()
        self.thread.join(30.0)
        assert not self.thread.is_alive()


@contextmanager
def held_while_writing(agent, monkeypatch):
    """A `save` whose transaction has begun and is not committed."""
    held = Held(agent._durable.save)
    write = journal_module.write_position

    def write_later(db, position):
        held.wait()
        write(db, position)

    monkeypatch.setattr(journal_module, "write_position", write_later)
    held.start()
    try:
        yield held
    finally:
        held.end()
        monkeypatch.setattr(journal_module, "write_position", write)


@contextmanager
def held_while_encoding(agent, monkeypatch):
    """A `save` that has taken its snapshot and has not come to the journal yet."""
    held = Held(agent._durable.save)
    plain = core_module.plain_values

    def plain_later(state):
        held.wait()
        return plain(state)

    monkeypatch.setattr(core_module, "plain_values", plain_later)
    held.start()
    try:
        yield held
    finally:
        held.end()
        monkeypatch.setattr(core_module, "plain_values", plain)


def in_time(work):
    """What another thread gets by this, which must not wait for whoever is held."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(10.0)
    assert found, "it waited for the snapshot"
    return found[0]


@pytest.mark.parametrize("held_in", [held_while_writing, held_while_encoding])
def test_nobody_waits_for_a_snapshot_and_what_came_after_it_is_replayed(tmp_path, monkeypatch, held_in):
    hub = make_hub(alpha=float("inf"))
    rows = whole_rows(12)
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        for x in rows[:4]:
            agent.observe(x, 1.0)
        early = agent.choose(X)
        with held_in(agent, monkeypatch) as held:
            in_time(lambda: [agent.observe(x, 1.0) for x in rows[4:8]])
            late = in_time(lambda: agent.choose(X))
            in_time(lambda: agent.observe(early, 1.0) or True)
            before = as_if_killed(tmp_path / "state", tmp_path / "before")
            held.end()
        assert held.errors == []
        after = as_if_killed(tmp_path / "state", tmp_path / "after")
        assert agent._durable.journal.n_records == 5
        expected = everything_about(agent)
    for place in (before, after):
        with make_live(hub, state_dir=place, sync="inline") as again:
            found = everything_about(again)
            assert [found[key] for key in KEYS] == [expected[key] for key in KEYS]
            assert [decision.id for decision in again.pending] == [late.id]
            with pytest.raises(AlreadyObserved):
                again.observe(early, 1.0)


@pytest.mark.parametrize("cut", [False, True])
def test_decisions_in_the_table_are_settled_with_the_snapshot_that_has_their_rewards(tmp_path, monkeypatch, cut):
    """After a power cut that took the log beyond the snapshot, a decision rewarded there waits again."""
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        journal = agent._durable.journal
        made = [agent.choose(X) for _ in range(journal._ring.n_slots + 1)]
        number = [int(decision.id.rpartition("-")[2]) for decision in made]
        assert journal._moved == set(number[:-1])
        agent.observe(made[0], 1.0)
        with held_while_encoding(agent, monkeypatch) as held:
            reached = journal.position
            in_time(lambda: agent.observe(made[1], 1.0) or True)
            in_time(lambda: agent.expire(made[2]) or True)
            held.end()
        table = {number for (number,) in journal._db.execute("SELECT number FROM pending")}
        assert table == set(number[:-1]) - {number[0], number[2]}
        assert journal._done == {number[1]}
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
        agent._durable.save()
        table = {number for (number,) in journal._db.execute("SELECT number FROM pending")}
        assert table == set(number[3:-1]) and journal._done == set()
    if cut:
        log = copy / "observations"
        log.write_bytes(log.read_bytes()[: 64 + reached])
        power_cut(copy)
    with make_live(hub, state_dir=copy, sync="inline") as again:
        waiting = [decision.id for decision in again.pending]
        assert waiting == [decision.id for n, decision in enumerate(made) if n not in ({0, 2} if cut else {0, 1, 2})]
        assert again.status().rounds == (1 if cut else 2)


def test_a_snapshot_does_not_replace_one_of_a_later_moment(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "MAX_LOG_BYTES", 0)
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        with held_while_encoding(agent, monkeypatch) as held:
            agent.observe(X[1], 2.0)
            agent._durable.compact()  # and the log begins after both
            held.end()
        assert held.errors == [] and agent._durable.journal.n_records == 0
        agent.observe(X[2], 4.0)
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    with make_live(hub, state_dir=copy, sync="inline") as again:
        assert again.status().rounds == 3 and again._durable.agent.local.reward_sum == 7.0


def test_an_upload_made_after_a_snapshot_was_taken_is_saved_before_it_travels(tmp_path, monkeypatch):
    """The snapshot that was under way does not have it, whenever it was written."""
    hub = make_hub(alpha=float("inf"))
    way = Way(hub)
    with make_live(way, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        with held_while_encoding(agent, monkeypatch) as held:
            upload = agent._durable.agent.upload_now()
            held.end()
        assert agent._durable.saved_sequence == 0 < upload.sequence
        way.faults.append("lost reply")
        agent._client._prepare(everything=True)
        assert agent._durable.saved_sequence == agent._durable.durable_sequence == upload.sequence
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    with make_live(hub, state_dir=copy, sync="inline") as again:
        again.flush(5.0)
        assert hub.server.stats.n_obs == 1


def test_a_new_incarnation_is_not_taken_for_saved_by_a_snapshot_of_the_one_before(tmp_path, monkeypatch):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        agent.flush(5.0)
        agent.observe(X[1], 1.0)
        durable = agent._durable
        with held_while_encoding(agent, monkeypatch) as held:
            monkeypatch.setattr(type(durable), "save", lambda self: None)
            durable.begin_incarnation([])
            monkeypatch.undo()
            held.end()
        assert durable.agent.sequence == durable.saved_sequence == 0
        assert durable.kept_after(0) == []  # not those of the incarnation before, though the journal still has them
        durable.save()
        assert durable.journal.kept_after(0) == []


def test_answered_uploads_are_kept_whichever_snapshot_comes_first(tmp_path, monkeypatch):
    hub = make_hub(alpha=0.0)
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        with held_while_encoding(agent, monkeypatch) as held:
            agent.observe(X[1], 1.0)
            agent.observe(X[2], 1.0)
            held.end()
        assert [upload.sequence for upload in agent._durable.kept_after(0)] == [1, 2, 3]
        assert agent._durable._answered == []


def test_a_snapshot_that_comes_after_the_end_writes_nothing(tmp_path, monkeypatch):
    hub = make_hub(alpha=float("inf"))
    agent = make_live(hub, state_dir=tmp_path / "state", sync="inline")
    agent.observe(X[0], 1.0)
    with held_while_encoding(agent, monkeypatch) as held:
        agent.observe(X[1], 1.0)
        agent.close()
        held.end()
    assert held.errors == []  # the last snapshot has all of it
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as again:
        assert again.status().rounds == 2


def test_where_the_last_snapshot_failed_an_earlier_one_says_that_the_agent_is_closed(tmp_path, monkeypatch):
    hub = make_hub(alpha=float("inf"))
    agent = make_live(hub, state_dir=tmp_path / "state", sync="inline")
    agent.observe(X[0], 1.0)

    def fails(*_, **__):
        raise JournalFailed("the disk is full")

    with held_while_encoding(agent, monkeypatch) as held:
        with monkeypatch.context() as patched:
            patched.setattr(type(agent._durable.journal), "save", fails)
            with pytest.raises(JournalFailed):
                agent.close()
        held.end()
    assert [type(error) for error in held.errors] == [Closed]
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as again:
        assert again.status().rounds == 1
