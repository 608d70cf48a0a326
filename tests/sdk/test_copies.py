"""Two processes on copies of one state: what the server refuses is kept, said, and not taken for merged."""

import numpy as np
import pytest

import fedbandit
from fedbandit.errors import FormatError, NotReachable, Refused, StateMismatch
from tests.sdk.helpers import Way, as_if_killed, make_hub, make_live

X = np.eye(3)


def two_copies(tmp_path):
    """A server that merged one upload of an agent, and two directories that both remember just that."""
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "one", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        agent.flush(5.0)
    return hub, tmp_path / "one", as_if_killed(tmp_path / "one", tmp_path / "two")


def test_an_upload_refused_as_a_conflict_outlives_refreshes_and_restarts(tmp_path):
    hub, one, two = two_copies(tmp_path)
    with make_live(hub, state_dir=one, sync="inline") as first, make_live(hub, state_dir=two, sync="inline") as second:
        for _ in range(10):
            first.observe(X[1], 1.0)
        first.flush(5.0)
        for _ in range(100):
            second.observe(X[2], 1.0)
        for _ in range(2):
            with pytest.raises(Refused) as refusal:
                second.flush(5.0)
            assert refusal.value.reason == "sequence_conflict"
            second.refresh()
            assert second.status().in_flight == 100
    for _ in range(2):
        with make_live(hub, state_dir=two, sync="inline") as second:
            assert second.status().in_flight == 100  # not taken for merged by its number
            with pytest.raises(Refused) as refusal:
                second.flush(5.0)
            assert refusal.value.reason == "sequence_conflict"
    assert hub.server.stats.n_obs == 11


def test_a_copy_that_starts_after_the_other_one_sent_keeps_what_it_has(tmp_path):
    """Its upload was made, and saved, before it could travel."""
    hub, one, two = two_copies(tmp_path)
    way = Way(hub)
    way.down = True
    with make_live(way, state_dir=two, sync="inline") as second:
        second.observe(X[2], 1.0)
        with pytest.raises(Exception, match="kept and will be sent later"):
            second.flush(0.01)
    with make_live(hub, state_dir=one, sync="inline") as first:
        first.observe(X[1], 1.0)
        first.flush(5.0)
    with make_live(hub, state_dir=two, sync="inline") as second:
        assert second.status().in_flight == 1
        with pytest.raises(Refused):
            second.flush(5.0)
    assert hub.server.stats.n_obs == 2


def test_an_upload_whose_answer_was_lost_is_sent_once_more_and_counts_once(tmp_path):
    hub = make_hub(alpha=0.0)
    way = Way(hub)
    with make_live(way, state_dir=tmp_path / "state", sync="inline") as agent:
        way.faults.append("lost reply")
        agent.observe(X[0], 1.0)
        agent.refresh()
        assert agent.status().in_flight == 1
        agent.flush(5.0)
        assert agent.status().in_flight == 0 and agent.status().retries == 1
    assert hub.server.stats.n_obs == 1


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "lock"}


@pytest.mark.parametrize("lost", ["journal.db", "journal.db-wal", "journal.db-wal, shortened"])
@pytest.mark.parametrize("past", ["decisions", "observations"])
def test_a_database_that_was_lost_is_named_and_nothing_is_changed(tmp_path, lost, past):
    """The process was killed, so that SQLite's log holds all of the database's rows."""
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        if past == "decisions":
            agent.choose(X)
        else:
            agent.observe(X[0], 1.0)
        state = as_if_killed(tmp_path / "state", tmp_path / "copy")
    name, _, shortened = lost.partition(",")
    for path in state.glob(f"{name}*") if not shortened else []:
        path.unlink()
    if shortened:
        (state / name).write_bytes((state / name).read_bytes()[:100])
        (state / "journal.db-shm").unlink(missing_ok=True)
    before = contents(state)
    for _ in range(2):
        with pytest.raises(FormatError, match=r"the state is damaged: .* missing"):
            make_live(hub, state_dir=state)
        after = contents(state)
        assert {file: after[file] for file in ("observations", "decisions")} == {
            file: before[file] for file in ("observations", "decisions")
        }


def test_a_start_that_came_to_nothing_leaves_a_directory_that_can_be_used(tmp_path):
    hub = make_hub(alpha=float("inf"))
    way = Way(hub)
    way.down = True
    with pytest.raises(NotReachable):
        make_live(way, state_dir=tmp_path / "state")
    make_live(hub, state_dir=tmp_path / "state").close()


@pytest.mark.parametrize("restarts", [False, True])
def test_two_restores_with_a_rejoin_between_count_nothing_twice(tmp_path, restarts):
    """The second backup is newer than the first, and has an upload that the agent took along."""
    hub = make_hub(alpha=0.0)
    backups, kept_two = [], {"keep_mb": 2 * 96 / (1 << 20)}
    agent = make_live(hub, state_dir=tmp_path / "state", sync="inline", **kept_two)
    for n in range(4):
        agent.observe(X[n % 3], 2.0**n)
        backups.append(hub.server.to_bytes())
    hub.server = fedbandit.load(backups[0])
    assert agent.rejoin()  # with the third and the fourth; the second was not kept
    agent.flush(5.0)
    assert hub.server.stats.reward_sum == 1.0 + 4.0 + 8.0
    hub.server = fedbandit.load(backups[2])
    if restarts:
        agent.close()
        with pytest.raises((Refused, StateMismatch), match="another backup"):
            make_live(hub, state_dir=tmp_path / "state", sync="inline", **kept_two)
    else:
        with pytest.raises(Refused, match="another backup"):
            agent.refresh()
        assert agent.status().last_error is not None
        agent.close()
    assert hub.server.stats.reward_sum == 1.0 + 2.0 + 4.0


def test_a_second_restore_that_has_nothing_of_what_was_taken_along_is_made_whole(tmp_path):
    hub = make_hub(alpha=0.0)
    backups = []
    with make_live(hub, state_dir=tmp_path / "state", sync="inline", keep_mb=2 * 96 / (1 << 20)) as agent:
        for n in range(4):
            agent.observe(X[n % 3], 2.0**n)
            backups.append(hub.server.to_bytes())
        hub.server = fedbandit.load(backups[0])
        agent.rejoin()
        agent.flush(5.0)
        hub.server = fedbandit.load(backups[1])
        agent.refresh()
    assert hub.server.stats.reward_sum == 15.0
