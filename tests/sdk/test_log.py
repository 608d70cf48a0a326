"""The journal's log: what a kill or a power cut leaves of it, what is damage, and journals from before it."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedbandit.errors import FormatError, StateMismatch, UnsupportedFormat
from fedbandit.sdk import journal as journal_module
from fedbandit.sdk import open_agent
from fedbandit.sdk.log_file import read_log
from fedbandit.sdk.state_files import VERSION
from tests.sdk.helpers import as_if_killed, everything_about, make_hub, make_live, power_cut, whole_rows

X = np.eye(3)


@pytest.mark.parametrize("record", [b"", b"o", b"z", b"s\0"])
@pytest.mark.parametrize("old", [False, True])
def test_a_record_of_another_kind_is_named(tmp_path, record, old):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        agent._core.journal._log.append(record)
        state = as_if_killed(tmp_path / "state", tmp_path / "copy")
    if old:
        as_version_1(state)
    for _ in range(2):
        with pytest.raises(FormatError):
            make_live(hub, state_dir=state)


def test_the_log_is_checked_too(tmp_path):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        for x in X:
            agent.observe(x, 1.0)
        state = as_if_killed(tmp_path / "state", tmp_path / "copy")
    log = (state / "observations").read_bytes()
    (state / "observations").unlink()
    with pytest.raises(FormatError, match="is missing"):
        make_live(hub, state_dir=state)
    for content, error in [
        (b"words", FormatError),
        (log[:7] + b"\x09" + log[8:], UnsupportedFormat),
        (log[:8] + bytes(16) + log[24:], FormatError),  # of another journal
        (log[:90] + b"\xff" + log[91:], FormatError),  # the first of three records
        (log[:30], FormatError),
    ]:
        (state / "observations").write_bytes(content)
        for _ in range(2):
            with pytest.raises(error):
                make_live(hub, state_dir=state)
        assert (state / "observations").read_bytes() == content
    (state / "observations").write_bytes(log)
    with make_live(hub, state_dir=state) as again:
        assert again.status().rounds == 3


def as_version_1(state):
    """The journal as fedbandit wrote it when each observation was a row in the database."""
    db = sqlite3.connect(state / "journal.db", isolation_level=None)
    life, at = db.execute("SELECT life, at FROM position").fetchone()
    log = state / "observations"
    db.execute("CREATE TABLE log (n INTEGER PRIMARY KEY, record BLOB NOT NULL)")
    for body in read_log(log.read_bytes(), life=life, since=at, lost_power=False, path=log).bodies:
        db.execute("INSERT INTO log (record) VALUES (?)", (body,))
    db.execute("DROP TABLE position")
    db.execute("PRAGMA user_version = 1")
    db.close()
    log.unlink()


def test_a_journal_of_version_1_goes_on_and_moves_on(tmp_path):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        decision, open_decision = agent.choose(X), agent.choose(X)
        agent.observe(X[0], 1.0)
        agent.observe(decision, 0.5)
        agent.partial_fit(X, [1.0, 2.0, 3.0])
        before = {**everything_about(agent), "n_switches": 2}  # it joins once more
        state = as_if_killed(tmp_path / "state", tmp_path / "copy")
    as_version_1(state)
    with pytest.raises(StateMismatch):  # whoever is refused has changed nothing
        open_agent(hub.transport("b"), model="local", state_dir=state)
    assert version_and_tables(state) == (1, {"state", "log", "pending", "kept"})
    with make_live(hub, state_dir=state) as agent:
        assert everything_about(agent) == before
        assert version_and_tables(state) == (VERSION, {"state", "position", "pending", "kept"})
        agent.observe(open_decision, 1.0)
        again = as_if_killed(state, tmp_path / "again")
    with make_live(hub, state_dir=again) as agent:
        assert agent.status().rounds == 6
        agent.flush(5.0)
    assert hub.server.stats.n_obs == 6


def version_and_tables(state):
    db = sqlite3.connect(state / "journal.db")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    db.close()
    return version, tables


@pytest.mark.parametrize("lost", ["the last", "a middle one", "all, and some that the snapshot has"])
def test_what_a_power_cut_leaves_of_the_log_is_a_beginning(tmp_path, lost):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        for n in range(9):
            agent.observe(X[n % 3], 2.0**n)
            if n == 3:
                agent._core.save()
                reached = agent._core.journal._log.position
        state = as_if_killed(tmp_path / "state", tmp_path / "copy")
    log = state / "observations"
    content = log.read_bytes()
    size = (len(content) - 64) // 9
    if lost == "the last":
        log.write_bytes(content[: -size // 2])
    elif lost == "a middle one":
        log.write_bytes(content[: 64 + 6 * size] + bytes(size) + content[64 + 7 * size :])
    else:
        log.write_bytes(content[: 64 + reached - size])
    if lost != "the last":  # which may also be torn by a kill
        with pytest.raises(FormatError):
            make_live(hub, state_dir=state)
    power_cut(state)
    n_left = {"the last": 8, "a middle one": 6}.get(lost, 4)
    for n_more in range(3):
        with make_live(hub, state_dir=state) as agent:
            assert agent.status().rounds == n_left + n_more
            assert agent._core.local.reward_sum == 2.0**n_left - 1 + n_more
            agent.observe(X[0], 1.0)
            state = as_if_killed(state, tmp_path / f"more-{n_more}")


def test_a_snapshot_that_a_power_cut_took_back_counts_nothing_twice(tmp_path):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        agent.observe(X[0], 1.0)
        state = as_if_killed(tmp_path / "state", tmp_path / "copy")
        agent.observe(X[1], 2.0)
        agent._core.save()
        agent.observe(X[2], 4.0)
        later = (tmp_path / "state" / "observations").read_bytes()
    (state / "observations").write_bytes(later)
    power_cut(state)
    with make_live(hub, state_dir=state) as agent:
        assert agent.status().rounds == 3 and agent._core.local.reward_sum == 7.0
        agent.flush(5.0)
    assert hub.server.stats.n_obs == 3


def test_a_long_log_is_made_anew_without_what_the_snapshot_has(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "MAX_LOG_BYTES", 2000)
    hub = make_hub(alpha=float("inf"))
    rows = whole_rows(300)
    with make_live(hub, state_dir=tmp_path / "state", sync="inline") as agent:
        (tmp_path / "state" / "journal.db").chmod(0o600)
        for n, x in enumerate(rows):
            agent.observe(x, 1.0)
            if n % 20 == 0:
                agent._core.save()
            if n % 30 == 0:  # as a rule after a snapshot, with whatever was observed meanwhile
                agent._core.journal.tidy()
                copy = as_if_killed(tmp_path / "state", tmp_path / f"copy-{n}")
                with make_live(hub, state_dir=copy) as again:
                    assert again.status().rounds == n + 1
                    assert np.array_equal(again._core.local.Sigma, agent._core.local.Sigma)
        log = tmp_path / "state" / "observations"
        assert log.stat().st_size < 5000 and log.stat().st_mode & 0o777 == 0o600
        assert not (tmp_path / "state" / "observations.new").exists()
        assert np.array_equal(agent._core.local.Sigma, rows.T @ rows)


@pytest.mark.parametrize("durability", ["fast", "strict"])
def test_threads_lose_nothing_while_the_log_is_made_anew_behind_them(tmp_path, monkeypatch, durability):
    monkeypatch.setattr(journal_module, "MAX_LOG_BYTES", 2000)
    monkeypatch.setattr(journal_module, "MAX_RECORDS", 20)
    hub = make_hub(alpha=float("inf"))
    rows = whole_rows(800)
    with make_live(hub, state_dir=tmp_path / "state", durability=durability) as agent:
        renewed = []
        begin_at = agent._core.journal._log.begin_at
        agent._core.journal._log.begin_at = lambda position: (renewed.append(position), begin_at(position))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda x: agent.observe(agent.choose(x[None, :]), 1.0), rows))
        agent._pump.stop(10.0)
        state = as_if_killed(tmp_path / "state", tmp_path / "copy")
        assert len(renewed) > 2
    with make_live(hub, state_dir=state) as again:
        assert again.status().rounds == 800 and again.status().pending == 0
        assert np.array_equal(again._core.local.Sigma, rows.T @ rows)
