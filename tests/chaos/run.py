"""A run: phases of faults, a recovery with checks after each, and a history."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import checks
from tests.chaos.environment import BOUNDS, Environment
from tests.chaos.fault_injector import FaultInjector
from tests.chaos.processes import NAMED_ERROR, ChildProcess
from tests.chaos.resources import Usage, Watch
from tests.chaos.schedule import TENANT, Action, fleet_agents, fleet_phases, phases

REPORT_S = 120.0  # for an agent to send everything once the network is calm
TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class Size:
    """Duration and intensity."""

    seconds: float
    phase_s: float = 45.0
    gap_s: float = 1.5
    n_agents: int = 6
    pace_s: float = 0.12

    @property
    def n_phases(self) -> int:
        return max(1, round(self.seconds / self.phase_s))


class Run:
    """One fault-injection run on one store."""

    def __init__(self, folder: Path, store: str, seed: int, size: Size) -> None:
        self.folder, self.store, self.seed, self.size = folder, store, seed, size
        folder.mkdir(parents=True, exist_ok=True)
        self.violations: list[str] = []
        self._begun = time.monotonic()
        self._reports: dict[str, dict[str, Any]] = {}
        self._rounds: dict[str, int] = {}
        self._latest: dict[str, float] = {}  # largest overrun of a call's limit, by call
        self._most_pending = 0
        self._n_checkpoints = self._n_named_ends = 0

    def go(self) -> dict[str, Any]:
        """Run all phases; the summary, whose `violations` are empty if every check held."""
        size, n_servers = self.size, 1 if self.store == "sqlite" else 2
        fleet = {"n_agents": size.n_agents, "n_servers": n_servers}
        self.environment = Environment(self.folder, self.store, seed=self.seed, **fleet, pace_s=size.pace_s)
        timing = {"n_phases": size.n_phases, "phase_s": size.phase_s, "gap_s": size.gap_s}
        plan = phases(self.seed, store=self.store, **fleet, **timing, restarts=self.environment.drift is not None)
        more = fleet_phases(self.seed, store=self.store, **timing)
        plan = [sorted([*a, *b], key=lambda action: action.at_s) for a, b in zip(plan, more, strict=True)]
        self.injector = FaultInjector(self.environment, self.note)
        self.watch = Watch(BOUNDS, self.environment.processes)
        try:
            self.watch.start()
            self.environment.start()
            self._rounds = dict.fromkeys(self.environment.agents, 0)
            self._wait(self._all_learn, 60.0, "some agent has not begun")
            self._run_phases(plan)
            self._finish()
        finally:
            self.watch.close()
            self.injector.stop()
            self.environment.close()
        return self.summary()

    def _run_phases(self, plan: list[list[Action]]) -> None:
        for number, actions in enumerate(plan, start=1):
            self._inject_phase(actions)
            if not self.violations:
                self._recover()
                self._checkpoint(number)
            if self.violations or time.monotonic() - self._begun > self.size.seconds:
                return

    # -- a phase of faults

    def _inject_phase(self, actions: list[Action]) -> None:
        end = time.monotonic() + self.size.phase_s
        self.injector.begin(actions)
        while time.monotonic() < end and not self.violations:
            self._tick()
            time.sleep(TICK_S)

    def _tick(self) -> None:
        self.injector.work()
        for child in self.environment.children.values():
            words = child.supervise()
            if words is not None:
                self._ended(child, words)
        for part in (self.watch, self.environment.recreation, self.environment.tools, self.environment.fleet.operator):
            self.violations += part.violations
            part.violations.clear()

    def _ended(self, child: ChildProcess, words: str) -> None:
        """A server may end by SIGTERM, or with a named error at its start; an agent must not end."""
        self.note("ended", target=child.name, result=words)
        if f": {NAMED_ERROR}" in words:
            self._n_named_ends += 1
        elif child.name not in self.environment.servers or " with 0:" not in words:
            self.violations.append(words)

    # -- recovery and checks

    def _recover(self) -> None:
        self.injector.stop()
        self._tick()
        for port in self.environment.ports:
            self._wait(
                lambda port=port: self.environment.is_ready(port), 60.0, f"the server on port {port} is not ready"
            )
        self._wait(self.environment.recreation.is_done, 60.0, "the model was not deleted and created again")
        self._wait(self.environment.fleet.operator.is_done, 60.0, "what operators do with the fleets was not done")

    def _wait(self, holds: Callable[[], bool], timeout_s: float, words: str) -> bool:
        """Wait until a condition holds; False if it does not in time, or if there is another violation meanwhile."""
        end, n_before = time.monotonic() + timeout_s, len(self.violations)
        while not holds():
            if time.monotonic() > end:
                self.violations.append(f"{words} after {timeout_s:g} s")
            if len(self.violations) > n_before:
                return False
            self._tick()
            time.sleep(TICK_S)
        return True

    def _checkpoint(self, number: int) -> None:
        begun = time.monotonic()
        fleet = self.environment.fleet
        self.environment.command(quiet=number)
        if not self._all_write(f"{number}-quiet", list(fleet.processes), "the fleets do not stop to report rewards"):
            return
        fleet.repeat_reports()
        self.environment.command(checkpoint=number)
        writers = [*self.environment.agents, TENANT, *fleet_agents()]
        if not self._all_write(str(number), writers, "agents did not report"):
            return
        paths = {name: self.folder / "reports" / f"{number}-{name}.json" for name in writers}
        self._reports = {name: json.loads(path.read_text()) for name, path in paths.items()}
        may_wait = any(abs(self.environment.clocks.offsets.get(name, 0.0)) > 1e8 for name in self.environment.servers)
        reports = {name: self._reports.pop(name) for name in fleet_agents()}
        self.violations += fleet.check(reports, self.environment, may_wait=may_wait)
        self.violations += self.environment.recreation.check(self._reports.pop(TENANT))
        self.violations += self._check_calls()
        self.violations += [*checks.check_counts(self.environment, self._reports), *checks.check_logs(self.environment)]
        self._most_pending = max(self._most_pending, *(report["pending"] for report in self._reports.values()))
        self._rounds = {name: report["rounds"] for name, report in self._reports.items()}
        self._n_checkpoints += 1
        spent = round(time.monotonic() - begun, 2)
        self.note("checkpoint", seconds=spent, value=number, result=self.violations or "consistent", n=self._n_obs())
        self.summary()  # an intermediate summary
        self.environment.command(go=number)
        self._wait(self._all_learn, 30.0, "some agent has learnt nothing")

    def _all_write(self, prefix: str, names: list[str], words: str) -> bool:
        """Wait until each of these processes has written its file."""
        paths = {name: self.folder / "reports" / f"{prefix}-{name}.json" for name in names}
        if self._wait(lambda: all(path.exists() for path in paths.values()), REPORT_S, words):
            return True
        self._show_stuck([name for name, path in paths.items() if not path.exists()])
        return False

    def _check_calls(self) -> list[str]:
        found = []
        for name, record in self.environment.records.items():
            found += checks.check_calls(name, self.environment.agents[name], record, self._latest)
        for name, record in self.environment.fleet.process_records.items():
            found += checks.check_calls(name, self.environment.fleet.processes[name], record.update(), self._latest)
        if self.environment.recreation.record is not None:
            found += checks.check_calls(
                TENANT, self.environment.tenants[TENANT], self.environment.recreation.record, self._latest
            )
        return found

    def _all_learn(self) -> bool:
        learn = (record.update().n_done > self._rounds[name] for name, record in self.environment.records.items())
        return all(learn) and self.environment.fleet.all_learn()

    def _show_stuck(self, stuck: list[str]) -> None:
        """Write stack traces to the log of each agent that does not report."""
        for name in stuck:
            self.environment.children[name].signal(signal.SIGUSR1)
        time.sleep(1.0)
        self.note("stuck", target=",".join(stuck), result="see the dumps in the logs")

    def _finish(self) -> None:
        """Agents close, servers stop by SIGTERM; all must exit with status 0."""
        children = [
            *self.environment.agents.values(),
            *self.environment.tenants.values(),
            *self.environment.fleet.processes.values(),
            *self.environment.servers.values(),
        ]
        for child in children:
            child.wanted = False
        self.environment.command(finish=True)
        is_left = False
        for child in children if not self.violations else []:
            if child.name in self.environment.servers:
                if not is_left and not self.violations:  # all agents have ended
                    self.violations += self.environment.fleet.check_left()
                    is_left = True
                child.signal(signal.SIGTERM)
            self._wait(lambda child=child: not child.is_up, 60.0, f"{child.name} did not end")
            if child.process is not None and child.process.returncode != 0:
                self.violations.append(f"{child.name} ended with {child.process.returncode}")
        self.violations += checks.check_logs(self.environment)

    # -- results

    def _n_obs(self) -> int:
        return sum(self._rounds.values())

    def note(self, action: str, **fields: Any) -> None:
        """Append a line to the history."""
        line = {"t": round(time.monotonic() - self._begun, 3), "action": action, **fields}
        with (self.folder / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def summary(self) -> dict[str, Any]:
        """Faults and findings, also written to `summary.json`."""
        environment = self.environment
        found = {
            "store": self.store,
            "seed": self.seed,
            "seconds": round(time.monotonic() - self._begun),
            "agents": self.size.n_agents,
            "observations": self._n_obs(),
            "uploads": len(environment.traffic.uploads),
            "model": {"personal": environment.personal, "blocks": environment.blocks, "drift": environment.drift},
            "restarts": environment.n_restarts,
            "checkpoints": self._n_checkpoints,
            "process_starts": sum(child.n_starts for child in environment.children.values()),
            "named_ends_of_servers": self._n_named_ends,
            "retries_counted_by_agents": sum(report["retries"] for report in self._reports.values()),
            "actions": dict(sorted(self.injector.counts.items())),
            "network": dict(sorted(environment.proxy.counts.items())),
            "messages": dict(sorted(environment.traffic.counts.items())),
            "servers": checks.server_counts(environment),
            "agents_met": self._events(),
            "most_pending": self._most_pending,
            "remade": dict(sorted(environment.recreation.counts.items())),
            "fleet": dict(sorted((environment.fleet.counts + environment.fleet.operator.counts).items())),
            "fleet_met": self._fleet_events(),
            "tools": dict(sorted(environment.tools.counts.items())),
            "crowds": dict(sorted(self.injector.crowds.items())),
            "latest_s": dict(sorted(self._latest.items())),
            "samples": self.watch.n_samples,
            "peaks": {kind: {"memory_mb": round(u.memory_mb), "fds": u.descriptors} for kind, u in self._peaks()},
            "skipped": self.injector.skipped,
            "violations": self.violations,
        }
        (self.folder / "summary.json").write_text(json.dumps(found, indent=1))
        return found

    def _peaks(self) -> list[tuple[str, Usage]]:
        return sorted(self.watch.peaks.items())

    def _fleet_events(self) -> dict[str, int]:
        events: Counter[str] = Counter()
        for record in self.environment.fleet.process_records.values():
            events.update(record.events)
        for records in self.environment.fleet.records.values():
            events["resumed"] += sum(record.n_resumed for record in records.values())
        return dict(sorted(events.items()))

    def _events(self) -> dict[str, int]:
        events: Counter[str] = Counter()
        for record in self.environment.records.values():
            events.update(record.events)
            events["resumed"] += record.n_resumed
        return dict(sorted(events.items()))
