"""The journal: a killed process resumes exactly, and what cannot be read is not touched."""

import os
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedbandit.errors import (
    AlreadyObserved,
    FormatError,
    InvalidParameter,
    JournalFailed,
    StateDirInUse,
    StateMismatch,
    UnsupportedFormat,
)
from fedbandit.sdk import open_agent
from fedbandit.sdk.journal.journal import MAX_RECORDS
from fedbandit.sdk.journal.pending_ring import BOOT_GAP, HEADER_BYTES
from tests.sdk.helpers import (
    Way,
    as_if_killed,
    everything_about,
    make_hub,
    make_live,
    power_cut,
    wait_until,
    whole_rows,
)

X = np.eye(3)
STEP = st.sampled_from(["choose", "choose", "observe", "observe", "row", "fit", "flush", "cut", "mend", "expire"])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    steps=st.lists(STEP, max_size=30),
    alpha=st.sampled_from([0.0, 0.5, 5.0]),
    durability=st.sampled_from(["fast", "strict"]),
)
def test_a_killed_agent_resumes_exactly_wherever_it_was(tmp_path_factory, steps, alpha, durability):
    folder = tmp_path_factory.mktemp("resume")
    hub = make_hub(alpha=alpha)
    way = Way(hub)
    rng = np.random.default_rng(1)
    with make_live(way, state_dir=folder / "state", sync="inline", durability=durability) as agent:
        waiting = []
        for step in steps:
            if step == "choose":
                waiting.append(agent.choose(rng.standard_normal((4, 3))))
            elif step == "observe" and waiting:
                agent.observe(waiting.pop(int(rng.integers(len(waiting)))), float(rng.standard_normal()))
            elif step == "expire" and waiting:
                agent.expire(waiting.pop())
            elif step == "row":
                agent.observe(rng.standard_normal(3), 1.0)
            elif step == "fit":
                agent.partial_fit(rng.standard_normal((3, 3)), rng.standard_normal(3))
            elif step == "flush" and not way.down:
                agent.flush()
            elif step in ("cut", "mend"):
                way.down = step == "cut"
        before = everything_about(agent)
        copy = as_if_killed(folder / "state", folder / "copy")
    offline = Way(hub)
    offline.down = True
    with make_live(offline, state_dir=copy, sync="inline") as again:
        after = everything_about(again)
    before["own"]["wants_model"] = after["own"]["wants_model"] = None  # it started without the server
    assert after == before


def test_the_upload_that_was_sent_is_sent_again_bit_by_bit(tmp_path):
    hub = make_hub()
    way = Way(hub)
    with make_live(way, state_dir=tmp_path / "state", sync="inline") as agent:
        way.faults.append("lost reply")
        agent.observe([0.1, 0.2, 0.3], 0.7)
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
        incarnation = agent.status().incarnation
    assert hub.server.stats.n_obs == 1
    again_way = Way(hub)
    with make_live(again_way, state_dir=copy) as again:
        assert again.status().incarnation == incarnation
        again.flush()
        assert again.status().in_flight == 0
        again.observe([0.1, 0.2, 0.3], 0.7)
        again.flush()
    assert hub.server.stats.n_obs == 2 and hub.server.ledger["a"].sequence == 2


def test_the_bytes_of_a_resumed_upload_are_the_same(tmp_path):
    hub = make_hub()
    way = Way(hub)
    with make_live(way, state_dir=tmp_path / "state", sync="inline") as agent:
        way.down = True
        agent.observe([0.1, 0.2, 0.3], 0.7)
        agent.observe([0.4, 0.2, 0.3], 0.7)
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    offline = Way(hub)
    offline.down = True
    with make_live(offline, state_dir=copy) as again:
        wait_until(lambda: len(offline.bodies) > 0)
        from fedbandit.wire.codec import decode_request

        first, second = decode_request(way.bodies[0]), decode_request(offline.bodies[0])
        assert (first.stats, first.digest, first.sequence) == (second.stats, second.digest, second.sequence)
        assert first.growth == second.growth
        again.close()


def test_without_the_server_an_agent_with_a_past_decides_and_joins_later(tmp_path):
    hub = make_hub()
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
    with open_agent(hub.transport("b"), model="local", sync="inline") as other:
        other.observe(X[1], 1.0)
    way = Way(hub)
    way.down = True
    with make_live(way, state_dir=tmp_path / "state") as agent:
        assert agent.model_version == 1 and agent.choose(X).index is not None
        assert agent.status().reachable is False
        way.down = False
        wait_until(lambda: agent.model_version == 2)  # nobody asked


def test_one_directory_belongs_to_one_agent_at_a_time(tmp_path):
    hub = make_hub()
    with make_live(hub, state_dir=tmp_path / "state"):
        with pytest.raises(StateDirInUse, match="in use"):
            make_live(hub, state_dir=tmp_path / "state")
        program = (
            "import sys; from tests.sdk.helpers import make_hub, make_live\n"
            f"make_live(make_hub(), state_dir={str(tmp_path / 'state')!r})"
        )
        finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "StateDirInUse" in finished.stderr
    make_live(hub, state_dir=tmp_path / "state").close()


def test_a_directory_of_another_agent_or_model_is_refused(tmp_path):
    hub = make_hub()
    make_live(hub, state_dir=tmp_path / "state").close()
    with pytest.raises(StateMismatch, match="'a' of model 'local'"):
        open_agent(hub.transport("b"), model="local", state_dir=tmp_path / "state")
    offline = Way(hub)
    offline.down = True
    with pytest.raises(StateMismatch):
        make_live(offline, agent="b", state_dir=tmp_path / "state")
    with pytest.raises(StateMismatch, match="3 features"):
        make_live(make_hub(dim=4), state_dir=tmp_path / "state")
    make_live(hub, state_dir=tmp_path / "state").close()


def test_a_server_that_lost_this_agents_past_is_noticed_at_the_start(tmp_path):
    hub = make_hub()
    with make_live(hub, state_dir=tmp_path / "state", keep_mb=0.0, sync="inline") as agent:
        agent.observe(X[0], 1.0)
    with pytest.raises(StateMismatch, match="remembers 1 and has kept the last 0"):
        make_live(make_hub(), state_dir=tmp_path / "state")


def test_new_settings_are_used_after_connecting_again(tmp_path):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        assert agent.status().unsent == 1
    changed = make_hub(alpha=0.0, beta=0.25)
    changed.settings = "2"
    with make_live(changed, state_dir=tmp_path / "state", sync="inline") as agent:
        assert (agent.status().alpha, agent.status().beta) == (0.0, 0.25)
        agent.observe(X[0], 1.0)
    assert changed.server.stats.n_obs == 2


def damaged(directory, name, content):
    (directory / name).write_bytes(content)
    return directory


def close_state(tmp_path):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        agent.observe(agent.choose(X), 1.0)
    return hub, tmp_path / "state"


@pytest.mark.parametrize(
    "content", [b"", b"not a database at all, just words", b"SQLite format 3\x00" + b"\x00" * 4000]
)
def test_a_damaged_journal_is_named_and_left_alone(tmp_path, content):
    hub, state = close_state(tmp_path)
    (state / "journal.db").write_bytes(content)
    with pytest.raises(FormatError, match="nothing was changed"):
        make_live(hub, state_dir=state)
    assert (state / "journal.db").read_bytes() == content


def test_a_schema_that_is_no_text_any_more_is_named(tmp_path):
    """sqlite3 quotes the schema in its error, and fails to decode that."""
    hub, state = close_state(tmp_path)
    path = state / "journal.db"
    content = path.read_bytes()
    assert content.count(b"CHECK (id = 1)") > 0
    path.write_bytes(content.replace(b"CHECK (id = 1)", b"CHECK\xa0(id = 1)"))
    with pytest.raises(FormatError, match="nothing was changed"):
        make_live(hub, state_dir=state)


def test_a_journal_with_a_torn_page_is_named(tmp_path):
    hub, state = close_state(tmp_path)
    path = state / "journal.db"
    content = bytearray(path.read_bytes())
    content[1024:] = os.urandom(len(content) - 1024)
    path.write_bytes(bytes(content))
    with pytest.raises(FormatError):
        make_live(hub, state_dir=state)
    assert path.read_bytes() == bytes(content)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("PRAGMA user_version = 99", UnsupportedFormat),
        ("PRAGMA application_id = 1", FormatError),
        ("DROP TABLE position", FormatError),
        ("DELETE FROM position", FormatError),
        ("UPDATE position SET at = at + 8", FormatError),
        ("UPDATE position SET log_id = x'00'", FormatError),
        ("UPDATE state SET snapshot = x'00'", FormatError),
        ("UPDATE state SET snapshot = x'81a6666f726d617463'", FormatError),
        ("UPDATE state SET description = x'7b7d'", FormatError),
        ("INSERT INTO pending VALUES (7, x'00')", FormatError),
    ],
)
def test_a_journal_of_another_kind_is_named(tmp_path, statement, error):
    hub, state = close_state(tmp_path)
    db = sqlite3.connect(state / "journal.db")
    with db:
        db.execute(statement)
    db.close()
    way = Way(hub)
    way.down = True
    with pytest.raises(error):
        make_live(way, state_dir=state)
    with pytest.raises(error):  # and the directory was let go of
        make_live(way, state_dir=state)


def test_the_ring_of_decisions_is_checked_too(tmp_path):
    hub, state = close_state(tmp_path)
    ring = (state / "decisions").read_bytes()
    (state / "decisions").unlink()
    with pytest.raises(FormatError, match="is missing"):
        make_live(hub, state_dir=state)
    for content, error in [
        (b"words", FormatError),
        (ring[:-8], FormatError),
        (ring[:7] + b"\x09" + ring[8:], UnsupportedFormat),
        (ring[:32] + bytes(32) + ring[64:], FormatError),
    ]:
        (state / "decisions").write_bytes(content)
        with pytest.raises(error):
            make_live(hub, state_dir=state)
        assert (state / "decisions").read_bytes() == content
    (state / "decisions").write_bytes(ring)
    make_live(hub, state_dir=state).close()


def number_of(decision):
    return int(decision.id.rpartition("-")[2])


def test_after_a_power_cut_numbers_are_not_given_again(tmp_path):
    hub = make_hub()
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        made = [agent.choose(X) for _ in range(5)]
    power_cut(tmp_path / "state")
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        assert list(agent.pending) == made
        assert number_of(agent.choose(X)) >= BOOT_GAP


def test_a_decision_torn_by_a_power_cut_is_dropped_and_torn_without_one_is_damage(tmp_path):
    hub = make_hub()
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        torn, whole = agent.choose(X), agent.choose(X)
    power_cut(tmp_path / "state", torn=[number_of(torn)])
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        assert list(agent.pending) == [whole]
        with pytest.raises(AlreadyObserved):
            agent.observe(torn, 1.0)
    ring = tmp_path / "state" / "decisions"
    content = bytearray(ring.read_bytes())
    content[-1200:] = bytes(1200)
    content[HEADER_BYTES + 1000 * 8 : HEADER_BYTES + 1001 * 8] = (1001).to_bytes(8, "little")
    ring.write_bytes(bytes(content))
    with pytest.raises(FormatError, match="slot 1000"):
        make_live(hub, state_dir=tmp_path / "state")


def test_a_ring_older_than_the_snapshot_brings_no_decision_back(tmp_path):
    hub = make_hub()
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        booked, kept = agent.choose(X), agent.choose(X)
        older = (tmp_path / "state" / "decisions").read_bytes()
        agent.observe(booked, 1.0)
    (tmp_path / "state" / "decisions").write_bytes(older)  # what was on disk when the power went
    power_cut(tmp_path / "state")
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        assert list(agent.pending) == [kept]
        agent.pending.settle(0.0)
        agent.flush(5.0)
    assert hub.server.stats.n_obs == 2


def test_a_kill_before_the_first_snapshot_begins_anew(tmp_path):
    hub = make_hub()
    way = Way(hub)
    way.down = True
    with pytest.raises(Exception, match="first start"):
        make_live(way, state_dir=tmp_path / "state")
    make_live(hub, state_dir=tmp_path / "state").close()


def test_a_long_log_is_compacted_in_the_background(tmp_path):
    hub = make_hub(alpha=float("inf"))
    rows = whole_rows(MAX_RECORDS + 500)
    for sync in ("background", "inline"):
        with make_live(hub, state_dir=tmp_path / sync, sync=sync) as agent:
            for x in rows:
                agent.observe(x, 1.0)
            wait_until(lambda agent=agent: agent._durable.journal.n_records < MAX_RECORDS)
            if agent._background is not None:
                agent._background.stop(10.0)  # a copy is no kill: nobody may write while it is made
            copy = as_if_killed(tmp_path / sync, tmp_path / f"{sync}-copy")
        with make_live(hub, state_dir=copy) as again:
            assert again.status().rounds == len(rows)
            assert np.array_equal(again._durable.agent.local.Sigma, rows.T @ rows)


def test_a_journal_that_cannot_be_written_books_nothing(tmp_path):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        decision = agent.choose(X)
        log = agent._durable.journal._log
        full = os.open("/dev/full", os.O_RDWR)
        handle, log._handle = log._handle, full
        with pytest.raises(JournalFailed, match="No space left"):
            agent.observe(decision, 1.0)
        with pytest.raises(JournalFailed, match="No space left"):
            agent.partial_fit(X, [1.0, 1.0, 1.0])
        assert agent.status().rounds == 0 and agent.status().pending == 1
        log._handle = handle
        os.close(full)
        agent.observe(decision, 1.0)
        assert agent.status().rounds == 1
        copy = as_if_killed(tmp_path / "state", tmp_path / "copy")
    with make_live(hub, state_dir=copy) as again:
        assert again.status().rounds == 1 and again.status().pending == 0


def test_a_place_that_is_no_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("here")
    with pytest.raises(JournalFailed):
        make_live(make_hub(), state_dir=tmp_path / "file")
    with pytest.raises(InvalidParameter):
        make_live(make_hub(), state_dir=tmp_path / "state", durability="maybe")


def test_counters_survive_a_restart(tmp_path):
    hub = make_hub()
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        before = agent.status()
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        after = agent.status()
    assert after.exchanges == before.exchanges + 1 == 2
    assert after.bytes_sent == 2 * before.bytes_sent
    assert after.state_dir == str(tmp_path / "state") and after.durability == "fast"


def test_a_full_disk_does_not_stop_decisions(tmp_path, caplog):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state", max_pending=5000) as agent:
        db = agent._durable.journal._db
        db.execute("PRAGMA query_only = 1")
        made = [agent.choose(X) for _ in range(agent._durable.journal._ring.n_slots + 10)]
        assert "cannot be written" in caplog.text
        db.execute("PRAGMA query_only = 0")
        agent.observe(made[-1], 1.0)
        assert agent.status().pending == len(made) - 1


def test_an_old_copy_of_the_state_is_recognised_before_it_counts_anything_twice(tmp_path):
    hub = make_hub()
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        old = as_if_killed(tmp_path / "state", tmp_path / "old")
        agent.observe(X[1], 1.0)
        agent.observe(X[2], 1.0)
    with pytest.raises(StateMismatch, match="old copy"):
        make_live(hub, state_dir=old, sync="inline")
    assert hub.server.stats.n_obs == 3


def test_an_old_copy_that_starts_offline_stops_at_its_first_exchange_and_keeps_its_data(tmp_path):
    hub = make_hub()
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(X[0], 1.0)
        old = as_if_killed(tmp_path / "state", tmp_path / "old")
        agent.observe(X[1], 1.0)
        agent.observe(X[2], 1.0)
    way = Way(hub)
    way.down = True
    with make_live(way, state_dir=old, sync="inline") as copy:
        way.down = False
        copy.observe(X[0], 5.0)
        with pytest.raises(StateMismatch, match="old copy"):
            copy.flush(5)
        assert "old copy" in str(copy.status().last_error)
        assert hub.server.stats.reward_sum == 3.0


def test_a_model_that_was_made_anew_does_not_leave_its_old_estimate_behind(tmp_path):
    first = make_hub()
    with make_live(first.transport("b"), sync="inline") as other:
        other.observe(X[0], 1.0)
    with make_live(first, state_dir=tmp_path, sync="inline") as agent:
        assert agent.predict(X)[0] > 0.4
    again = make_hub()
    again.settings = "2"
    with make_live(again, state_dir=tmp_path, sync="inline") as agent:
        assert agent.predict(X)[0] == 0.0


def test_closing_on_a_full_disk_says_so_lets_go_of_everything_and_loses_nothing(tmp_path):
    hub = make_hub(alpha=float("inf"))
    way = Way(hub)
    closed = []
    way.close = lambda: closed.append(True)
    agent = make_live(way, state_dir=tmp_path / "state")
    agent.observe(X[0], 1.0)
    agent._durable.journal._db.execute("PRAGMA query_only = 1")
    with pytest.raises(JournalFailed):
        agent.close()
    assert closed == [True]
    with make_live(hub, state_dir=tmp_path / "state") as again:
        assert again.status().rounds == 1
