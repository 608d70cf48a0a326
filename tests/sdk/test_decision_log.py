"""The decision log: what a line holds, its bounds, and that it never gets in the way."""

import errno
import json
import os
import stat
import threading
import time

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import InvalidInput
from fedbandit.experiments.advice.log import history, read_log
from fedbandit.sdk import decision_log
from fedbandit.sdk.decision_log import DecisionLog
from tests.sdk.helpers import make_hub, make_live


def lines_of(folder):
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def sets(n, k=4):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((k, 3)) for _ in range(n)]


def test_a_line_per_decision_and_a_line_with_its_reward(tmp_path):
    hub = make_hub(policy="inverse-gap", explore=0.2, features=("a", "b", "c"))
    with make_live(hub, sync="inline", decision_log=tmp_path / "log") as agent:
        decisions = [agent.choose(X) for X in sets(5)]
        for number, decision in enumerate(decisions[:4]):
            agent.observe(decision, float(number))
        agent.observe([1.0, 0.0, 0.0], 9.0)  # a row without a decision is no line
    head, *lines = lines_of(tmp_path / "log")
    assert head == {"format": 1, "rows": "chosen", "model": "local", "dim": 3, "features": ["a", "b", "c"]}
    assert [line["id"] for line in lines[:5]] == [decision.id for decision in decisions]
    for line, decision in zip(lines[:5], decisions, strict=True):
        told = (decision.x.tolist(), decision.index, "a", decision.propensity, decision.score, "inverse-gap")
        assert tuple(line[key] for key in ("x", "index", "agent", "propensity", "score", "policy")) == told
        assert line["version"] == decision.model_version and abs(line["time"] - time.time()) < 60
        assert "rows" not in line
    assert [(line["id"], line["reward"]) for line in lines[5:]] == [(d.id, i) for i, d in enumerate(decisions[:4])]


def test_all_rows_are_those_that_were_on_offer_whatever_the_caller_does_with_them(tmp_path):
    with make_live(make_hub(explore=0.5), sync="inline", decision_log=tmp_path, decision_log_rows="all") as agent:
        offered = sets(3)
        kept = [X.tolist() for X in offered]
        for X in offered:
            agent.observe(agent.choose(X), 1.0)
            X[:] = 0.0
        several = agent.choose_many([np.eye(3), np.eye(3)[:2]])
    lines = [line for line in lines_of(tmp_path) if "x" in line]
    assert [line["rows"] for line in lines[:3]] == kept
    assert [len(line["rows"]) for line in lines[3:]] == [3, 2] and len(several) == 2


def test_a_decision_by_context_is_logged_with_its_block_and_read_as_a_row(tmp_path):
    with make_live(make_hub(dim=4, blocks=2), sync="inline", decision_log=tmp_path) as agent:
        decision = agent.choose_context([2.0], arms=[1])
        agent.observe(decision, 1.0)
    line = next(line for line in lines_of(tmp_path) if "x" in line)
    assert (line["x"], line["block"]) == (decision.x.tolist(), 1)
    log = read_log(tmp_path)
    np.testing.assert_array_equal(log.x[0], [0.0, 0.0, *decision.x])
    assert (log.arms, log.blocks) == (("0", "1"), 2)
    assert read_log(tmp_path, ignore=["x3"]).blocks == 1
    assert history(log).stats == fb.SufficientStats.of(log.x, log.rewards, blocks=2)


def test_only_the_owner_may_read_it(tmp_path):
    with make_live(make_hub(), sync="inline", decision_log=tmp_path / "log") as agent:
        agent.choose(np.eye(3))
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "log").iterdir()] == [0o600]


def test_files_are_rotated_and_bounded_and_the_newest_stay(tmp_path):
    log = DecisionLog(tmp_path, most_mb=0.05)
    n = 2000
    for number in range(n):
        log.rewarded(f"i-{number}", 1.0)
        if number % 20 == 0:
            log.flush()
    log.close()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert sum(sizes) <= 0.05 * (1 << 20) and len(sizes) > 3
    ids = [line["id"] for line in lines_of(tmp_path) if "id" in line]
    assert ids == [f"i-{number}" for number in range(n - len(ids), n)] and len(ids) < n
    assert (log.n_lines, log.n_dropped) == (n, 0)


def test_a_full_disk_is_counted_and_named_and_leaves_no_half_line(tmp_path, monkeypatch):
    with make_live(make_hub(), sync="inline", decision_log=tmp_path) as agent:
        log, real, written = agent._durable.log, os.write, []
        agent.observe(agent.choose(np.eye(3)), 1.0)
        log.flush()

        def full(file, content):
            if not written:  # a part of it fits
                written.append(True)
                return real(file, bytes(content)[:10])
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(decision_log.os, "write", full)
        agent.observe(agent.choose(np.eye(3)), 2.0)
        log.flush()
        status = agent.status()
        assert status.log_dropped == 2 and "No space left" in status.log_error
        monkeypatch.setattr(decision_log.os, "write", real)
        agent.observe(agent.choose(np.eye(3)), 3.0)
        log.flush()
        assert (agent.status().log_lines, agent.status().log_error) == (4, None)
        assert agent.status().decision_log == str(tmp_path)
    assert [line["reward"] for line in lines_of(tmp_path) if "reward" in line] == [1.0, 3.0]


def test_a_disk_that_hangs_holds_up_nobody_and_memory_is_bounded(tmp_path, monkeypatch):
    gate, real = threading.Event(), os.write
    monkeypatch.setattr(decision_log, "PAUSE_S", 0.001)
    monkeypatch.setattr(decision_log, "MOST_LINES", 50)

    def hanging(file, content):
        gate.wait(30)
        return real(file, content)

    with make_live(make_hub(), sync="inline", decision_log=tmp_path) as agent:
        monkeypatch.setattr(decision_log.os, "write", hanging)
        agent.choose(np.eye(3))
        time.sleep(0.05)  # the thread hangs now
        for _ in range(200):
            agent.observe(agent.choose(np.eye(3)), 1.0)
        status = agent.status()
        assert status.rounds == 200 and status.log_dropped >= 300
        gate.set()


def test_what_is_in_memory_is_written_without_being_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(decision_log, "PAUSE_S", 0.01)
    with make_live(make_hub(), sync="inline", decision_log=tmp_path) as agent:
        agent.choose(np.eye(3))
        deadline = time.monotonic() + 20
        while agent.status().log_lines < 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_bad_options_are_named(tmp_path):
    (tmp_path / "file").touch()
    for options in (
        {"decision_log": tmp_path, "decision_log_rows": "some"},
        {"decision_log": tmp_path, "decision_log_mb": 0},
        {"decision_log": tmp_path / "file"},
        {"decision_log": 3},
    ):
        with pytest.raises(InvalidInput):
            make_live(make_hub(), **options)


def test_a_log_is_read_as_it_is(tmp_path):
    hub = make_hub(policy="inverse-gap", features=("a", "b", "c"))
    with make_live(hub, sync="inline", decision_log=tmp_path, decision_log_rows="all") as agent:
        offered = [X[: 2 + number % 3] for number, X in enumerate(sets(30))]
        decisions = [agent.choose(X) for X in offered]
        for number, decision in enumerate(decisions[:29]):
            agent.observe(decision, float(number))
    log = read_log(tmp_path)
    assert len(log) == 29 and log.feature_names == ("a", "b", "c") and log.agent_names == ("a",)
    assert log.left_out == (("1 of 30 decisions", "they have no reward"),)
    for i, (X, decision) in enumerate(zip(offered[:29], decisions, strict=False)):
        assert log.chosen[i] == decision.index and log.sizes[i] == len(X) and log.rewards[i] == i
        assert log.propensities[i] == decision.propensity
        np.testing.assert_array_equal(log.offers[i, : len(X)], X)
    fewer = read_log(tmp_path, features=["c", "a"])
    np.testing.assert_array_equal(fewer.x, log.x[:, [2, 0]])
    assert read_log(tmp_path, ignore=["b"]).feature_names == ("a", "c")
    with pytest.raises(fb.errors.FeatureMismatch, match="got z"):
        read_log(tmp_path, features=["z"])


def test_the_end_of_a_killed_process_is_no_damage_but_the_middle_is(tmp_path):
    with make_live(make_hub(), sync="inline", decision_log=tmp_path) as agent:
        for X in sets(3):
            agent.observe(agent.choose(X), 1.0)
    (path,) = tmp_path.glob("*.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert len(read_log(path)) == 2
    path.write_bytes(whole.replace(b'"x":', b'"x', 1))
    with pytest.raises(fb.errors.FormatError, match="line 2 is damaged"):
        read_log(path)
    path.write_bytes(b'{"format":9}\n')
    with pytest.raises(fb.errors.FormatError, match="format 9"):
        read_log(path)
    with pytest.raises(fb.errors.FormatError, match="does not exist"):
        read_log(tmp_path / "nothing.jsonl")
