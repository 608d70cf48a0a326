"""The harness itself: its schedule is reproducible, and each of its checks detects a violation."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.messages import Upload, stats_from_bytes
from fedbandit.core.statistics import SufficientStats
from fedbandit.wire.codec import SyncReply, encode, request_of
from tests.chaos.agent_record import DIM, AgentRecord, RecordWriter, dense_numbers, pack
from tests.chaos.checks import _is_expected, check_agent, check_calls
from tests.chaos.clock import Clocks
from tests.chaos.decision_record import DecisionRecord
from tests.chaos.disk import SmallDisk
from tests.chaos.figures import BEGIN, END, table, write
from tests.chaos.hostile_clients import clients
from tests.chaos.processes import ChildProcess
from tests.chaos.resources import Bound, Watch
from tests.chaos.schedule import KINDS, ONLY, Action, phases
from tests.chaos.traffic_monitor import TrafficMonitor
from tests.security.test_limits import READING


def plan(seed: int, store: str) -> list[list[Action]]:
    return phases(seed, store=store, n_agents=6, n_servers=2, n_phases=3, phase_s=45.0, gap_s=1.5)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_seed_replays(store: str) -> None:
    assert plan(1, store) == plan(1, store)
    assert plan(1, store) != plan(2, store)
    kinds = {action.kind for phase in plan(1, store) for action in phase}
    assert kinds == {kind for kind in KINDS if ONLY.get(kind, store) == store}


# -- the record of an agent


def tried(writer: RecordWriter, n: int, decision: str | None = None) -> None:
    writer.write(**{"try": n, "rows": [[1.0, 0.0, 2.0, n]], "rewards": [n], "decision": decision})


def test_a_confirmed_observation_that_does_not_come_back_is_found(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "a.record")
    for n in range(3):
        tried(writer, n)
        writer.write(done=n + 1)
    writer.write(resumed=2)
    assert AgentRecord(tmp_path / "a.record").update().violations == ["resumed at 2, but 3 were confirmed and 3 tried"]


def test_the_last_try_before_a_kill_counts_if_the_journal_has_it(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "a.record")
    tried(writer, 0)
    writer.write(resumed=0)  # it was not in the journal, and another one takes its place
    writer.write(**{"try": 0, "rows": [[0.0, 0.0, 0.0, 5.0]], "rewards": [2], "decision": None})
    writer.write(resumed=1)
    record = AgentRecord(tmp_path / "a.record").update()
    assert record.violations == []
    assert np.array_equal(record.seen(1), pack(np.array([[0.0, 0.0, 0.0, 5.0]]), np.array([2.0])))


def test_a_new_process_reads_only_the_end_of_a_long_file(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "a.record")
    for n in range(6_000):
        tried(writer, n, f"d-{n}")
        writer.write(done=n + 1)
    tail = AgentRecord.tail(tmp_path / "a.record")
    assert (tail.n_done, tail.n_tried, tail.last_decision) == (6_000, 6_000, "d-5999")
    assert tail._tries.keys() < set(range(6_000))


def test_a_decision_with_two_rewards_is_found(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "a.record")
    for n, decision in enumerate(["d-1", "d-2", "d-1"]):
        tried(writer, n, decision)
        writer.write(done=n + 1)
    record = AgentRecord(tmp_path / "a.record").update()
    record.seen(3)
    assert record.violations == ["decision d-1 was recorded twice"]


# -- the decisions


def decision(number: int) -> Decision:
    return Decision(f"agent-0-{number}", 0, np.ones(DIM), "agent-0", 1)


def test_lost_and_reappearing_decisions_are_found(tmp_path: Path) -> None:
    record = DecisionRecord(tmp_path / "a.decisions")
    record.write(making=3)
    record.made([decision(1), decision(2), decision(3)])
    record.write(booking=2)
    record.booked(decision(2))
    again = DecisionRecord(tmp_path / "a.decisions")
    assert list(again.compare({1, 3})) == []
    assert [words.split(":")[0] for words in again.compare({1})] == ["1 of 2 pending decisions are lost"]
    assert len(list(again.compare({1, 2, 3}))) == 1  # the one with a reward is pending again
    again.begin_anew({1, 3})
    assert [found["number"] for found in DecisionRecord(tmp_path / "a.decisions").recent] == [2]
    assert list(DecisionRecord(tmp_path / "a.decisions").compare({1, 3})) == []


def test_only_what_a_killed_call_was_doing_is_in_doubt(tmp_path: Path) -> None:
    record = DecisionRecord(tmp_path / "a.decisions")
    record.made([decision(1), decision(2)])
    record.made([decision(3)], kept=False)  # the disk was full
    record.write(booking=1)
    again = DecisionRecord(tmp_path / "a.decisions")
    assert list(again.compare({2})) == [] and list(again.compare({1, 2, 3})) == []
    assert len(list(again.compare({1}))) == 1
    record.write(not_booked=1)
    record.write(making=2)
    again = DecisionRecord(tmp_path / "a.decisions")
    assert list(again.compare({1, 2, 4, 5})) == []
    assert len(list(again.compare({1, 2, 4, 5, 6}))) == 1
    record.made([])
    record.write(giving_up=True)
    assert list(DecisionRecord(tmp_path / "a.decisions").compare({2})) == []
    record.write(given_up=[1, 2])
    assert len(list(DecisionRecord(tmp_path / "a.decisions").compare({2}))) == 1


# -- limits


def test_a_late_call_is_found_and_a_paused_process_is_not_late(tmp_path: Path) -> None:
    child = ChildProcess("a", [], {}, tmp_path / "a.log")
    child.pauses = [[98.0, 104.0]]
    latest: dict[str, float] = {}
    record = AgentRecord(tmp_path / "a.record")
    record.slow = [("flush", 2.0, 8.5, 105.0)]
    assert list(check_calls("a", child, record, latest)) == [] and latest == {"flush": 0.5}
    record.slow = [("flush", 2.0, 8.5, 205.0)]
    assert list(check_calls("a", child, record, latest)) == ["a: flush with a limit of 2 s ended 6.5 s late"]


def test_memory_and_descriptors_beyond_the_bound_are_found() -> None:
    generous, mean = Bound(1e6, 1 << 20), Bound(1.0, 1 << 20)
    few_descriptors = Bound(1e6, 1)
    bounds = {"generous": generous, "mean": mean, "few": few_descriptors}
    for kind, n_found in (("generous", 0), ("mean", 1), ("few", 1)):
        watch = Watch(bounds, list)
        watch.sample(kind, "this process", os.getpid())
        watch.sample(kind, "this process", os.getpid())
        assert len(watch.violations) == n_found
        assert watch.peaks[kind].memory_mb > 10 and watch.peaks[kind].descriptors > 1


def test_hostile_clients_use_every_route_that_reads_with_and_without_a_token() -> None:
    names = {"model": "chaos", "large": "large", "agent_token": "one", "admin_token": "two"}
    paths = {path.replace("/news/", "/chaos/") for path in READING}
    for kind in ("endless_heads", "slow_bodies"):
        sent = {client.first.split(b" ")[1].decode() for client in clients(kind, names)}
        assert paths <= sent, kind
        for secret in (b"Bearer one", b"Bearer two"):
            assert {secret in client.first for client in clients(kind, names)} == {True, False}


# -- the traffic monitor


def upload(sequence: int, reward: float) -> bytes:
    rows = np.ones((1, DIM))
    stats = stats_from_bytes(pack(rows, np.array([reward])).tobytes(), DIM)
    return encode(request_of(Upload("agent-0", "incarnation-16-chars", sequence, stats, 0.5)))


def reply(version: int, reward: float, acknowledged: int = 1) -> bytes:
    stats = pack(np.ones((1, DIM)), np.array([reward])).tobytes()
    return encode(SyncReply(agent="agent-0", version=version, acknowledged=acknowledged, dim=DIM, stats=stats))


def test_a_version_with_two_states_is_found() -> None:
    traffic = TrafficMonitor()
    traffic.reply("/sync", upload(1, 1.0), 200, reply(4, 1.0))
    traffic.reply("/sync", upload(1, 1.0), 200, reply(4, 1.0))
    assert traffic.violations == []
    traffic.reply("/sync", upload(1, 1.0), 200, reply(4, 2.0))
    assert traffic.violations == ["version 4 has two states"]


def test_an_upload_that_changes_between_two_tries_is_found() -> None:
    traffic = TrafficMonitor()
    traffic.request("/v1/models/chaos/sync", upload(1, 1.0))
    traffic.request("/v1/models/chaos/sync", upload(1, 1.0))
    assert traffic.violations == [] and traffic.counts["retries"] == 1
    traffic.request("/v1/models/chaos/sync", upload(1, 3.0))
    assert traffic.violations == ["upload ('agent-0', 1) was sent with other contents"]


def test_an_answer_without_the_upload_in_it_is_found() -> None:
    traffic = TrafficMonitor()
    traffic.reply("/sync", upload(2, 1.0), 200, reply(4, 1.0, acknowledged=1))
    assert traffic.violations == ["a 200 to agent-0 2 acknowledges 1"]


def test_answers_that_no_agent_should_get_are_found() -> None:
    traffic = TrafficMonitor()
    traffic.reply("/sync", b"", 503, b'{"error": "overloaded", "message": ""}')
    assert traffic.violations == []
    traffic.reply("/sync", b"", 500, b"oops")
    traffic.reply("/sync", b"", 409, b'{"error": "sequence_gap", "message": ""}')
    assert traffic.violations == [
        "/sync was answered 500 without a name",
        "/sync was answered 409 sequence_gap",
    ]


# -- counts


@pytest.mark.parametrize("wrong", [{"n_obs": 9}, {"n_obs": 11}, {"sequence": 2}, {"n_uploads": 4}])
def test_counts_that_differ_by_one_are_found(wrong: dict[str, int]) -> None:
    report: dict[str, Any] = {"unsent": 0, "in_flight": 0, "n": 10, "rounds": 10, "sequence": 3}
    report |= {"pending": 5, "expected_pending": 5}
    row = {"n_obs": 10, "sequence": 3, "n_uploads": 3}
    assert list(check_agent("a", report, row, 10)) == []
    assert len(list(check_agent("a", report, {**row, **wrong}, 10))) == 1
    assert len(list(check_agent("a", {**report, "pending": 6}, row, 10))) == 1


def test_unstructured_lines_in_a_log_are_found() -> None:
    assert _is_expected('{"event":"exchange","level":"info","status":503}')
    assert _is_expected("fedbandit: store_unavailable: the database failed")
    assert not _is_expected("Traceback (most recent call last):")
    assert not _is_expected('{"event":"merge_failed","level":"error"}')


# -- clocks and disks


def test_a_wall_clock_changes_and_monotonic_time_does_not(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path)
    if clocks.missing is not None:
        pytest.skip(clocks.missing)
    program = (
        "import sys, threading, time\n"
        "for _ in sys.stdin:\n"
        "    begun = time.monotonic(); threading.Event().wait(0.01)\n"
        "    print(time.time(), time.monotonic() - begun, flush=True)"
    )
    environment = {**os.environ, **clocks.environment("p")}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None
        for offset_s in (0.0, 3e8, -3e8):
            clocks.move("p", offset_s)
            process.stdin.write("\n")
            process.stdin.flush()
            now, waited = map(float, process.stdout.readline().split())
            assert abs(now - time.time() - offset_s) < 5.0
            assert 0.005 < waited < 5.0
        process.stdin.close()


def test_a_small_disk_is_full_and_then_is_not(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path / "disk", megabytes=1)
    if disk.missing is not None:
        pytest.skip(disk.missing)
    try:
        disk.fill(spare_bytes=0)
        with pytest.raises(OSError, match="No space left"):
            (disk.folder / "more").write_bytes(bytes(1 << 17))
        disk.free()
        (disk.folder / "more").write_bytes(bytes(1 << 17))
    finally:
        disk.close()


# -- the figures


def test_figures_are_written_between_their_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nstale words\n{END}\nafter\n")
    parts: dict[str, dict[str, int]] = {name: {} for name in ("network", "messages", "servers", "agents_met")}
    run = {"store": "sqlite", "seed": 1, "seconds": 3600, "checkpoints": 70, "process_starts": 9, "uploads": 12345}
    run |= {"remade": {}, "tools": {}, "crowds": {}, "latest_s": {"flush": 0.71}, "most_pending": 4100}
    run |= {"peaks": {kind: {"memory_mb": 100, "fds": 30} for kind in ("server", "agent")}}
    run |= {"observations": 5, "violations": [], "actions": {"kill_agent": 7}, **parts}
    write(page, table([run, run]))
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "stale words" not in text
    assert "| largest overrun of a call's time limit | 0.7 s (`flush`) | 0.7 s (`flush`) |" in text
    assert (
        "| agents killed (SIGKILL), paused | 7, 0 | 7, 0 |" in text and "| uploads merged | 12 345 | 12 345 |" in text
    )


def test_sums_of_messages_with_blocks_are_those_of_whole_rows():
    rows = np.array([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 3.0, -1.0], [0.0, 0.0, 1.0, 1.0]])
    rewards = np.array([1.0, -2.0, 3.0])
    for some in (slice(0, 1), slice(1, 3), slice(0, 3)):
        stats = SufficientStats.of(rows[some], rewards[some], blocks=2)
        request = request_of(Upload("a", "i", 1, stats, 0.0))
        assert np.array_equal(dense_numbers(request), pack(rows[some], rewards[some]))


def test_only_runs_with_restarts_have_them():
    plan = {"store": "sqlite", "n_agents": 4, "n_servers": 1, "n_phases": 2, "phase_s": 30.0, "gap_s": 1.0}
    plain, restarting = phases(4, **plan), phases(4, **plan, restarts=True)
    assert not any(action.kind == "restart_model" for actions in plain for action in actions)
    assert all(sum(action.kind == "restart_model" for action in actions) == 3 for actions in restarting)
    assert [[action for action in actions if action.kind != "restart_model"] for actions in restarting] == plain
