"""The journal's log: what a kill or a power cut leaves of it, and what is damage."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fedbandit.errors import FormatError, StateMismatch, UnsupportedFormat
from fedbandit.sdk import open_agent
from fedbandit.sdk.journal import journal as journal_module
from tests.sdk.helpers import as_if_killed, everything_about, make_hub, make_live, power_cut, whole_rows

X = np.eye(3)


@pytest.mark.parametrize("record", [b"", b"o", b"z", b"s\0"])
def test_a_record_of_another_kind_is_named(tmp_path, record):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        agent._durable.journal._log.append(record)
        state = as_if_killed(tmp_path / "state", tmp_path / "copy")
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


def test_a_killed_agent_is_what_it_was_and_whoever_is_refused_changes_nothing(tmp_path):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        decision, open_decision = agent.choose(X), agent.choose(X)
        agent.observe(X[0], 1.0)
        agent.observe(decision, 0.5)
        agent.partial_fit(X, [1.0, 2.0, 3.0])
        before = {**everything_about(agent), "n_switches": 2}  # it joins once more, with data in its buffer
        before["own"]["own_buffer"] = True
        state = as_if_killed(tmp_path / "state", tmp_path / "copy")
    with pytest.raises(StateMismatch):  # whoever is refused has changed nothing
        open_agent(hub.transport("b"), model="local", state_dir=state)
    with make_live(hub, state_dir=state) as agent:
        assert everything_about(agent) == before
        agent.observe(open_decision, 1.0)
        again = as_if_killed(state, tmp_path / "again")
    with make_live(hub, state_dir=again) as agent:
        assert agent.status().rounds == 6
        agent.flush(5.0)
    assert hub.server.stats.n_obs == 6


@pytest.mark.parametrize("lost", ["the last", "a middle one", "all, and some that the snapshot has"])
def test_what_a_power_cut_leaves_of_the_log_is_a_beginning(tmp_path, lost):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        for n in range(9):
            agent.observe(X[n % 3], 2.0**n)
            if n == 3:
                agent._durable.save()
                reached = agent._durable.journal._log.position
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
            assert agent._durable.agent.local.reward_sum == 2.0**n_left - 1 + n_more
            agent.observe(X[0], 1.0)
            state = as_if_killed(state, tmp_path / f"more-{n_more}")


def test_a_snapshot_that_a_power_cut_took_back_counts_nothing_twice(tmp_path):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub, state_dir=tmp_path / "state") as agent:
        agent.observe(X[0], 1.0)
        state = as_if_killed(tmp_path / "state", tmp_path / "copy")
        agent.observe(X[1], 2.0)
        agent._durable.save()
        agent.observe(X[2], 4.0)
        later = (tmp_path / "state" / "observations").read_bytes()
    (state / "observations").write_bytes(later)
    power_cut(state)
    with make_live(hub, state_dir=state) as agent:
        assert agent.status().rounds == 3 and agent._durable.agent.local.reward_sum == 7.0
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
                agent._durable.save()
            if n % 30 == 0:  # as a rule after a snapshot, with whatever was observed meanwhile
                agent._durable.journal.tidy()
                copy = as_if_killed(tmp_path / "state", tmp_path / f"copy-{n}")
                with make_live(hub, state_dir=copy) as again:
                    assert again.status().rounds == n + 1
                    assert np.array_equal(again._durable.agent.local.Sigma, agent._durable.agent.local.Sigma)
        log = tmp_path / "state" / "observations"
        assert log.stat().st_size < 5000 and log.stat().st_mode & 0o777 == 0o600
        assert not (tmp_path / "state" / "observations.new").exists()
        assert np.array_equal(agent._durable.agent.local.Sigma, rows.T @ rows)


@pytest.mark.parametrize("durability", ["fast", "strict"])
def test_threads_lose_nothing_while_the_log_is_made_anew_behind_them(tmp_path, monkeypatch, durability):
    monkeypatch.setattr(journal_module, "MAX_LOG_BYTES", 2000)
    monkeypatch.setattr(journal_module, "MAX_RECORDS", 20)
    hub = make_hub(alpha=float("inf"))
    rows, n_rows = whole_rows(40_000), 0
    with make_live(hub, state_dir=tmp_path / "state", durability=durability) as agent:
        renewed = []
        begin_at = agent._durable.journal._log.begin_at
        agent._durable.journal._log.begin_at = lambda position: (renewed.append(position), begin_at(position))
        with ThreadPoolExecutor(4) as pool:
            while n_rows < 800 or len(renewed) <= 2:  # on a busy machine the background comes late
                some = rows[n_rows : n_rows + 200]
                assert len(some) > 0, "the log was never made anew"
                list(pool.map(lambda x: agent.observe(agent.choose(x[None, :]), 1.0), some))
                n_rows += 200
        assert agent._background.stop(30.0)
        state = as_if_killed(tmp_path / "state", tmp_path / "copy")
    with make_live(hub, state_dir=state) as again:
        assert again.status().rounds == n_rows and again.status().pending == 0
        assert np.array_equal(again._durable.agent.local.Sigma, rows[:n_rows].T @ rows[:n_rows])
