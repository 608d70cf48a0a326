"""More decisions wait than the ring has slots: a kill while they move to the table books no reward twice."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from fedbandit.errors import AlreadyObserved, JournalFailed
from fedbandit.sdk.journal.pending_ring import PendingRing
from tests.sdk.helpers import as_if_killed, make_hub, make_live

X = np.eye(3)
VICTIM = """
import os, signal, sys
import numpy as np
from fedbandit.sdk.journal.pending_ring import PendingRing
from tests.sdk.helpers import make_hub, make_live

agent = make_live(make_hub(alpha=float("inf")), state_dir=sys.argv[1])
settle, left = PendingRing.settle, int(sys.argv[2])

def settle_and_die(self, number):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return settle(self, number)

PendingRing.settle = settle_and_die  # nothing is observed here: the first to settle a slot is the move to the table
while True:
    agent.choose(np.eye(3))
"""


def observe_all(agent):
    waiting = list(agent.pending)
    for decision in waiting:
        agent.observe(decision, 1.0)
    return waiting


@pytest.mark.parametrize("n_settled", [0, 1, 500])
def test_a_kill_between_the_table_and_the_ring_books_no_reward_twice(tmp_path, n_settled):
    """The transaction of the move is committed, and `n_settled` slots of the ring are free, when the kill comes."""
    program = [sys.executable, "-c", VICTIM, str(tmp_path / "state"), str(n_settled)]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        waiting = observe_all(agent)
        assert len(waiting) == agent._durable.journal._ring.n_slots
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    for place in (tmp_path / "state", copy):
        with make_live(hub, state_dir=place, sync="inline") as agent:
            assert list(agent.pending) == []
            with pytest.raises(AlreadyObserved):
                agent.observe(waiting[0], 1.0)
            assert agent.status().rounds == len(waiting)


@pytest.mark.parametrize("n_settled", [0, 500])
def test_what_was_given_up_after_such_a_kill_does_not_come_back(tmp_path, n_settled):
    program = [sys.executable, "-c", VICTIM, str(tmp_path / "state"), str(n_settled)]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        assert agent.pending.expire() == agent._durable.journal._ring.n_slots
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    with make_live(hub, state_dir=copy, sync="inline") as agent:
        assert list(agent.pending) == []


def test_decisions_that_could_not_be_given_up_still_count_once(tmp_path):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        for _ in range(agent._durable.journal._ring.n_slots + 1):
            agent.choose(X)
        steps = iter(range(50))
        agent._durable.journal._db.set_progress_handler(lambda: next(steps, None) is None, 100)  # fails in the middle
        with pytest.raises(JournalFailed):
            agent.pending.expire()
        agent._durable.journal._db.set_progress_handler(None, 0)
        n_waiting = len(observe_all(agent))
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    for place in (tmp_path / "state", copy):
        with make_live(hub, state_dir=place, sync="inline") as agent:
            assert list(agent.pending) == [] and agent.status().rounds == n_waiting


def test_the_ring_and_the_table_agree_however_far_the_move_came(tmp_path, monkeypatch):
    """Like the kill, without a process: the same directory, left after each number of settled slots."""
    monkeypatch.setattr("fedbandit.sdk.journal.pending_ring.SLOTS", (4, 4))
    hub = make_hub(alpha=float("inf"))
    for n_settled in range(5):
        state, left = tmp_path / f"state-{n_settled}", [n_settled]
        settle = PendingRing.settle

        def stop(self, number, left=left, settle=settle):
            left[0] -= 1
            if left[0] < 0:
                raise SystemExit
            return settle(self, number)

        with make_live(hub, state_dir=state, sync="inline") as agent:
            made = [agent.choose(X) for _ in range(4)]
            with monkeypatch.context() as patch:
                patch.setattr(PendingRing, "settle", stop)
                if n_settled < 4:
                    with pytest.raises(SystemExit):
                        agent.choose(X)
                else:
                    agent.choose(X)
            copy = as_if_killed(state, tmp_path / f"copy-{n_settled}")
        with make_live(hub, state_dir=copy, sync="inline") as agent:
            waiting = observe_all(agent)
            rounds = agent.status().rounds
            again = as_if_killed(copy, tmp_path / f"again-{n_settled}")
        with make_live(hub, state_dir=again, sync="inline") as agent:
            assert list(agent.pending) == [] and agent.status().rounds == rounds
        assert waiting[:4] == made


def test_the_number_of_a_decision_that_could_not_be_stored_is_not_used_again(tmp_path, monkeypatch):
    """A full disk keeps the ring from being emptied; decisions go on, and a kill must not make their ids ambiguous."""
    monkeypatch.setattr("fedbandit.sdk.journal.pending_ring.SLOTS", (4, 4))
    hub = make_hub(alpha=float("inf"))

    def full(self, ring):
        raise JournalFailed("no space left")

    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        for _ in range(4):
            agent.choose(X)
        with monkeypatch.context() as patch:
            patch.setattr("fedbandit.sdk.journal.journal.Journal._move_out", full)
            lost = [agent.choose(X) for _ in range(9)]  # more than the numbers left out at each start
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    with make_live(hub, state_dir=copy, sync="inline") as agent:
        assert len(agent.pending) == 4
        made = {agent.choose(X).id for _ in range(3)}
        assert not made & {decision.id for decision in lost}
