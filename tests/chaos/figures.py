"""The figures of runs as a table for docs/reliability.md.

python -m tests.chaos.figures FOLDER/summary.json … --write docs/reliability.md
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- figures of tests/chaos -->", "<!-- end of figures -->"
Summary = dict[str, Any]


def lines_of(run: Summary) -> dict[str, str]:
    """The figures of one run, in the order of the table."""
    actions, network, messages = run["actions"], run["network"], run["messages"]
    servers, agents, tools, crowds = run["servers"], run["agents_met"], run["tools"], run["crowds"]
    peaks, fleet, met = run["peaks"], run.get("fleet", {}), run.get("fleet_met", {})
    return {
        "store, seed": f"{run['store']}, {run['seed']}",
        "minutes": f"{run['seconds'] / 60:.0f}",
        "checkpoints, all consistent": _count(run["checkpoints"]),
        "agents killed (SIGKILL), paused": _pair(actions, "kill_agent", "pause_agent"),
        "agents killed while thousands of pending decisions moved to disk": _pair(agents, "burst_kill"),
        "most decisions pending at a checkpoint, of one agent": _count(run["most_pending"]),
        "`pending.settle`, `pending.expire`": _pair(agents, "settled", "expired"),
        "servers killed, paused, stopped by SIGTERM": _pair(actions, "kill_server", "pause_server", "stop_server"),
        "PostgreSQL crashed (`-m immediate`)": _pair(actions, "restart_postgres"),
        "models deleted and created again, with a server killed meanwhile": (
            f"{_count(run['remade'].get('deleted', 0))}, {_pair(actions, 'kill_in_delete')}"
        ),
        "right afterwards: rewards beyond the bounds refused, within them merged": _pair(
            run["remade"], "refused", "taken"
        ),
        "backups killed, complete": _pair(tools, "backup_killed", "backups_whole"),
        "restores killed; then the old store served, the new one": _pair(
            tools, "restore_killed", "restores_old", "restores_new"
        ),
        "first starts killed; then working": _pair(tools, "first_start_killed", "first_starts_whole"),
        "fleet processes killed (SIGKILL), paused": _pair(actions, "kill_fleet_process", "pause_fleet_process"),
        "agents enrolled; armed to be killed during `connect`; fresh directories": (
            f"{_total(fleet, 'enrolled')}, {_pair(met, 'kill_in_connect', 'fresh_directory')}"
        ),
        "agents retired, taken back, pruned, folded": _pair(fleet, "retired", "unretired", "pruned", "folded"),
        "enrolments created, revoked": _pair(fleet, "enrolments_created", "enrolments_revoked"),
        "rewards reported by other agents, by HTTP, by `fedbandit reward`": _pair(
            fleet, "reports_by_agent", "reports_by_http", "reports_by_tool"
        ),
        "of these with a token, repeated": _pair(fleet, "reports_with_a_token", "reports_repeated"),
        "rewards from elsewhere that count: by their owners, by tokens": _pair(
            fleet, "rewards_booked_by_owners", "rewards_booked_by_tokens"
        ),
        "observations of the fleets; merged, discarded": (
            f"{_total(fleet, 'observed')}; {_total(fleet, 'merged')}, {_total(fleet, 'discarded')}"
        ),
        "rewards by group: control, treatment": _pair(fleet, "control_observations", "treatment_observations"),
        "clocks changed": _pair(actions, "move_clock", "move_fleet_clock"),
        "disks filled: servers', agents', fleets'": _pair(
            actions, "fill_server_disk", "fill_agent_disk", "fill_fleet_disk"
        ),
        "`observe` refused by a full disk": _pair(agents, "journal_failed"),
        "process starts": _count(run["process_starts"]),
        "requests dropped, cut in half, delayed": _pair(network, "drop_requests", "cut_requests", "delay"),
        "requests duplicated, replayed late, reordered": _pair(network, "duplicate", "replay_late", "reorder"),
        "replies cut after the commit, cut in half": _pair(network, "cut_replies", "halve_replies"),
        "replies slowed to a byte at a time": _pair(network, "drip_replies"),
        "largest overrun of a call's time limit": _latest(run["latest_s"]),
        "connections: endless heads, slow bodies, never reading, silent": _pair(
            crowds, *(f"{kind}_connections" for kind in ("endless_heads", "slow_bodies", "never_read", "silent"))
        ),
        "most memory of a server, of an agent": (
            f"{peaks['server']['memory_mb']} MB, {peaks['agent']['memory_mb']} MB"
        ),
        "most descriptors of a server, of an agent": f"{peaks['server']['fds']}, {peaks['agent']['fds']}",
        "no server reachable, or connection lost": _count(
            network.get("no_server", 0) + network.get("servers_broke_off", 0)
        ),
        "named 503 replies": _pair(messages, "status_503"),
        "retries by agents": _pair(messages, "retries"),
        "duplicates recognised by servers": _pair(servers, "exchanges_repeated"),
        "uploads merged": _count(run["uploads"]),
        "observations": _count(run["observations"]),
        "**violations of any check**": f"**{len(run['violations'])}**",
    }


def table(runs: list[Summary]) -> str:
    """A Markdown table with a column for each run."""
    columns = [lines_of(run) for run in runs]
    head, *names = columns[0]
    rows = [[head, *(column[head] for column in columns)], ["---"] * (len(runs) + 1)]
    rows += [[name, *(column[name] for column in columns)] for name in names]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def write(path: Path, text: str) -> None:
    """Replace the text between the two markers of a page."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    path.write_text(pattern.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", path.read_text()))


def _pair(found: dict[str, int], *kinds: str) -> str:
    return ", ".join(_count(found.get(kind, 0)) for kind in kinds)


def _total(found: dict[str, int], prefix: str) -> str:
    """Over all fleets."""
    return _count(sum(found.get(f"{prefix}_{model}", 0) for model in ("pods", "shop", "moving")))


def _latest(found: dict[str, float]) -> str:
    """The call with the largest overrun."""
    if not found:
        return "less than 0.5 s"
    call = max(found, key=lambda name: found[name])
    return f"{found[call]:.1f} s (`{call}`)"


def _count(number: int) -> str:
    return f"{number:,}".replace(",", " ")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.figures")
    parser.add_argument("summaries", nargs="+", type=Path)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    made = table([json.loads(path.read_text()) for path in given.summaries])
    if given.write is None:
        print(made)
    else:
        write(given.write, made)
