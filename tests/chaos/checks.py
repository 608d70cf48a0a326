"""What must hold when the storm is over: exact equalities, since all features and rewards are whole numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from fedbandit.wire.codec import decode_reply, numbers_of
from tests.chaos.environment import LAM, Battlefield
from tests.chaos.processes import NAMED_END, Victim
from tests.chaos.truth import DIM, MODEL, Truth, n_packed

MARGIN_S = 3.0  # beyond its limit a call may take this long, on a busy machine


def check_books(field: Battlefield, reports: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Every violation, in words; nothing when the books balance."""
    state = decode_reply(field.request("GET", f"/v1/models/{MODEL}/state").data)
    model = field.call("GET", f"/v1/models/{MODEL}")
    rows = {row["name"]: row for row in field.call("GET", f"/v1/models/{MODEL}/agents?per_page=100")["agents"]}
    total = _prior()
    for name, truth in field.truths.items():
        truth.update()
        yield from check_agent(name, reports[name], rows[name], truth.n_done)
        seen = truth.seen(reports[name]["rounds"])
        total = total + seen
        if not np.array_equal(field.witness.sums.get(name, np.zeros(n_packed())), seen):
            yield f"{name}: the sum of its distinct uploads is not what it observed"
    if not np.array_equal(numbers_of(state), total):
        yield f"the model holds {numbers_of(state).tolist()}, the agents observed {total.tolist()}"
    merged = sum(row["n_uploads"] for row in rows.values())
    if not state.version == merged == model["version"] == len(field.witness.uploads):
        yield f"version {state.version}, {merged} uploads merged, {len(field.witness.uploads)} distinct ones sent"
    yield from check_models(field, state.version, state.stats)


def check_agent(name: str, report: dict[str, Any], row: dict[str, Any], n_done: int) -> Iterator[str]:
    """One agent, its own books beside the server's."""
    if report["unsent"] or report["in_flight"] or not report["n"] == report["rounds"] == n_done:
        yield f"{name}: flushed, but {report['unsent']}+{report['in_flight']} kept; {report['n']}, {n_done} seen"
    if report["pending"] != report["decisions_waiting"]:
        yield f"{name}: {report['pending']} decisions are pending, and {report['decisions_waiting']} should be"
    if row["n_obs"] != report["rounds"]:
        yield f"{name}: {report['rounds']} observations, of which the server counted {row['n_obs']}"
    if not row["sequence"] == row["n_uploads"] == report["sequence"]:
        yield f"{name}: upload {report['sequence']}, the server has {row['sequence']} after {row['n_uploads']} merges"


def check_models(field: Battlefield, version: int, stats: bytes) -> Iterator[str]:
    """Each model that decisions rested on is one that the server had."""
    field.witness.reply("/state", b"", 200, field.request("GET", f"/v1/models/{MODEL}/state").data)
    for name, truth in field.truths.items():
        for seen, digest in truth.models:
            known = field.witness.versions.get(seen)
            if seen > 0 and (known is None or known.hex() != digest):
                yield f"{name}: decided on a version {seen} that no server had"
        truth.models.clear()


def check_calls(name: str, victim: Victim, truth: Truth, latest: dict[str, float]) -> Iterator[str]:
    """Each call of an agent ended in time, by the wall clock; while the process was paused, no time counts."""
    for call, limit_s, took_s, ended in truth.slow:
        late_s = took_s - victim.paused_s(ended - took_s, ended) - limit_s
        latest[call] = max(latest.get(call, 0.0), round(late_s, 2))
        if late_s > MARGIN_S:
            yield f"{name}: {call} with a limit of {limit_s:g} s ended {late_s:.1f} s late"
    truth.slow.clear()


def check_words(field: Battlefield) -> Iterator[str]:
    """No error without a name: not in the logs, not in answers, not at the end of a process."""
    for name in field.servers:
        for line in (field.folder / f"{name}.log").read_text(errors="replace").splitlines():
            if not _is_calm(line):
                yield f"{name}: {line[:300]}"
    for name in (*field.agents, *field.tenants):
        text = (field.folder / f"{name}.log").read_text(errors="replace")
        if "Traceback" in text or "unexpected failure" in text:
            yield f"{name}: {text[text.find('Traceback') :][:600]}"
    yield from field.witness.violations
    field.witness.violations.clear()
    for name, truth in field.truths.items():
        yield from (f"{name}: {words}" for words in truth.update().violations)
        truth.violations.clear()


def _is_calm(line: str) -> bool:
    if line.startswith(NAMED_END) or not line.strip():
        return True
    try:
        found = json.loads(line)
    except ValueError:
        return False
    return found.get("level") != "error" and found.get("status") != 500


def _prior() -> np.ndarray:
    """λI, packed."""
    return np.concatenate([(LAM * np.eye(DIM))[np.triu_indices(DIM)], np.zeros(DIM + 3)])


def server_counts(field: Battlefield) -> dict[str, int]:
    """What the servers' logs add up to."""
    counts: dict[str, int] = {}
    for name in field.servers:
        with (field.folder / f"{name}.log").open(errors="replace") as file:
            for line in file:
                found = json.loads(line) if line.startswith("{") else {}
                if found.get("event") == "exchange":
                    key = f"exchanges_{found['result']}"
                    counts[key] = counts.get(key, 0) + 1
                if "disk is full" in line:
                    counts["words_of_a_full_disk"] = counts.get("words_of_a_full_disk", 0) + 1
    return counts
