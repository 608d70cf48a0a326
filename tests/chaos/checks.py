"""What must hold after a phase of faults: exact equalities, since all features and rewards are integers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedbandit.wire.codec import decode_reply
from tests.chaos.agent_record import DIM, MODEL, AgentRecord, dense_numbers, n_packed
from tests.chaos.environment import LAM, Environment
from tests.chaos.processes import NAMED_ERROR, ChildProcess

MARGIN_S = 3.0  # allowed overrun of a call's limit, for a busy machine


def check_counts(environment: Environment, reports: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Violations of conservation and exactly-once counting, as sentences."""
    state = decode_reply(environment.request("GET", f"/v1/models/{MODEL}/state").data)
    model = environment.call("GET", f"/v1/models/{MODEL}")
    rows = {row["name"]: row for row in environment.call("GET", f"/v1/models/{MODEL}/agents?per_page=100")["agents"]}
    if environment.drift is not None:
        yield from check_epochs(environment, reports, model, rows)
        yield from check_models(environment, state.version, state.stats)
        return
    total = _prior()
    for name, record in environment.records.items():
        record.update()
        yield from check_agent(name, reports[name], rows[name], record.n_done)
        seen = record.seen(reports[name]["rounds"])
        total = total + seen
        if not np.array_equal(environment.traffic.sums.get(name, np.zeros(n_packed())), seen):
            yield f"{name}: the sum of its distinct uploads is not what it observed"
    if not np.array_equal(dense_numbers(state), total):
        yield f"the model holds {dense_numbers(state).tolist()}, the agents observed {total.tolist()}"
    merged = sum(row["n_uploads"] for row in rows.values())
    if not state.version == merged == model["version"] == len(environment.traffic.uploads):
        yield f"version {state.version}, {merged} uploads merged, {len(environment.traffic.uploads)} distinct ones sent"
    yield from check_models(environment, state.version, state.stats)


def check_epochs(
    environment: Environment, reports: dict[str, dict[str, Any]], model: dict[str, Any], rows: dict[str, dict[str, Any]]
) -> Iterator[str]:
    """Of a model that restarts: merged + discarded + dropped and not reported yet = observed, for each agent."""
    traffic = environment.traffic
    for name, record in environment.records.items():
        record.update()
        row, n_dropped = rows[name], reports[name]["dropped"]
        counted = {**row, "n_obs": row["n_obs"] + row["n_discarded"] + n_dropped}
        yield from check_agent(name, reports[name], counted, record.n_done)
        record.seen(reports[name]["rounds"])
        n_sent = int(traffic.sums.get(name, np.zeros(n_packed()))[-3]) + traffic.dropped[name]
        if n_sent != row["n_obs"] + row["n_discarded"]:
            merged, discarded = row["n_obs"], row["n_discarded"]
            yield f"{name}: uploads brought {n_sent} observations, of which the server counted {merged}+{discarded}"
    discarded = sum(row["n_discarded"] for row in rows.values())
    if discarded != model["n_discarded"]:
        yield f"the model counts {model['n_discarded']} discarded observations, its agents {discarded}"


def check_agent(name: str, report: dict[str, Any], row: dict[str, Any], n_done: int) -> Iterator[str]:
    """Compare an agent's own counts with the server's."""
    if report["unsent"] or report["in_flight"] or not report["n"] == report["rounds"] == n_done:
        yield f"{name}: flushed, but {report['unsent']}+{report['in_flight']} kept; {report['n']}, {n_done} seen"
    if report["pending"] != report["expected_pending"]:
        yield f"{name}: {report['pending']} decisions are pending, expected {report['expected_pending']}"
    if row["n_obs"] != report["rounds"]:
        yield f"{name}: {report['rounds']} observations, of which the server counted {row['n_obs']}"
    if not row["sequence"] == row["n_uploads"] == report["sequence"]:
        yield f"{name}: upload {report['sequence']}, the server has {row['sequence']} after {row['n_uploads']} merges"


def check_models(environment: Environment, version: int, stats: bytes) -> Iterator[str]:
    """Each model that decisions used is one that the server had."""
    environment.traffic.reply("/state", b"", 200, environment.request("GET", f"/v1/models/{MODEL}/state").data)
    for name, record in environment.records.items():
        for seen, digest in record.models:
            known = environment.traffic.versions.get(seen)
            if seen > 0 and (known is None or known.hex() != digest):
                yield f"{name}: decided on a version {seen} that no server had"
        record.models.clear()


def check_calls(name: str, child: ChildProcess, record: AgentRecord, latest: dict[str, float]) -> Iterator[str]:
    """Each call of an agent ended in time; pauses of the process do not count."""
    for call, limit_s, took_s, ended in record.slow:
        late_s = took_s - child.paused_s(ended - took_s, ended) - limit_s
        latest[call] = max(latest.get(call, 0.0), round(late_s, 2))
        if late_s > MARGIN_S:
            yield f"{name}: {call} with a limit of {limit_s:g} s ended {late_s:.1f} s late"
    record.slow.clear()


def check_logs(environment: Environment) -> Iterator[str]:
    """No unnamed error in logs, replies or exits of processes."""
    for name in environment.servers:
        for line in (environment.folder / f"{name}.log").read_text(errors="replace").splitlines():
            if not _is_expected(line):
                yield f"{name}: {line[:300]}"
    for name in (*environment.agents, *environment.tenants, *environment.fleet.processes):
        text = (environment.folder / f"{name}.log").read_text(errors="replace")
        if "Traceback" in text or "unexpected failure" in text:
            yield f"{name}: {text[text.find('Traceback') :][:600]}"
    yield from environment.traffic.violations
    environment.traffic.violations.clear()
    for name, record in environment.records.items():
        yield from (f"{name}: {words}" for words in record.update().violations)
        record.violations.clear()


def _is_expected(line: str) -> bool:
    if line.startswith(NAMED_ERROR) or not line.strip():
        return True
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return found.get("level") != "error" and found.get("status") != 500


def _prior() -> np.ndarray:
    """λI, packed."""
    return np.concatenate([(LAM * np.eye(DIM))[np.triu_indices(DIM)], np.zeros(DIM + 3)])


def server_counts(environment: Environment) -> dict[str, int]:
    """Counts from the servers' logs."""
    counts: dict[str, int] = {}
    for name in environment.servers:
        with (environment.folder / f"{name}.log").open(errors="replace") as file:
            for line in file:
                found = json.loads(line) if line.startswith("{") else {}
                if found.get("event") == "exchange":
                    key = f"exchanges_{found['result']}"
                    counts[key] = counts.get(key, 0) + 1
                if "disk is full" in line:
                    counts["words_of_a_full_disk"] = counts.get("words_of_a_full_disk", 0) + 1
    return counts
