"""A run: storms by the schedule, a quiet after each, the books checked in every quiet, and a history of all of it."""

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
from tests.chaos.environment import BOUNDS, Battlefield
from tests.chaos.fault_injector import Adversary
from tests.chaos.processes import NAMED_END, Victim
from tests.chaos.resources import Usage, Watch
from tests.chaos.schedule import TENANT, Action, storms

REPORT_S = 120.0  # for an agent to send everything once the network is calm
TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class Size:
    """How long and how fierce."""

    seconds: float
    storm_s: float = 45.0
    gap_s: float = 1.5
    n_agents: int = 6
    pace_s: float = 0.12

    @property
    def n_storms(self) -> int:
        return max(1, round(self.seconds / self.storm_s))


class Run:
    """One store under fire."""

    def __init__(self, folder: Path, store: str, seed: int, size: Size) -> None:
        self.folder, self.store, self.seed, self.size = folder, store, seed, size
        folder.mkdir(parents=True, exist_ok=True)
        self.violations: list[str] = []
        self._begun = time.monotonic()
        self._reports: dict[str, dict[str, Any]] = {}
        self._rounds: dict[str, int] = {}
        self._latest: dict[str, float] = {}  # by which time calls of agents were late, at most
        self._most_pending = 0
        self._n_checkpoints = self._n_named_ends = 0

    def go(self) -> dict[str, Any]:
        """The summary; `violations` is empty when all went well."""
        size, n_servers = self.size, 1 if self.store == "sqlite" else 2
        fleet = {"n_agents": size.n_agents, "n_servers": n_servers}
        plan = storms(
            self.seed, store=self.store, **fleet, n_storms=size.n_storms, storm_s=size.storm_s, gap_s=size.gap_s
        )
        self.field = Battlefield(self.folder, self.store, seed=self.seed, **fleet, pace_s=size.pace_s)
        self.adversary = Adversary(self.field, self.note)
        self.watch = Watch(BOUNDS, self.field.processes)
        try:
            self.watch.start()
            self.field.start()
            self._rounds = dict.fromkeys(self.field.agents, 0)
            self._wait(self._all_learn, 60.0, "some agent has not begun")
            self._fight(plan)
            self._finish()
        finally:
            self.watch.close()
            self.adversary.rest()
            self.field.close()
        return self.summary()

    def _fight(self, plan: list[list[Action]]) -> None:
        for number, actions in enumerate(plan, start=1):
            self._storm(actions)
            if not self.violations:
                self._quiet()
                self._checkpoint(number)
            if self.violations or time.monotonic() - self._begun > self.size.seconds:
                return

    # -- the storm

    def _storm(self, actions: list[Action]) -> None:
        end = time.monotonic() + self.size.storm_s
        self.adversary.begin(actions)
        while time.monotonic() < end and not self.violations:
            self._tick()
            time.sleep(TICK_S)

    def _tick(self) -> None:
        self.adversary.work()
        for victim in self.field.victims.values():
            words = victim.supervise()
            if words is not None:
                self._ended(victim, words)
        for part in (self.watch, self.field.remaker, self.field.tools):
            self.violations += part.violations
            part.violations.clear()

    def _ended(self, victim: Victim, words: str) -> None:
        """A server may end by SIGTERM, or say by name why it cannot start; an agent has no reason to end."""
        self.note("ended", victim=victim.name, result=words)
        if f": {NAMED_END}" in words:
            self._n_named_ends += 1
        elif victim.name not in self.field.servers or " with 0:" not in words:
            self.violations.append(words)

    # -- the quiet

    def _quiet(self) -> None:
        self.adversary.rest()
        self._tick()
        for port in self.field.ports:
            self._wait(lambda port=port: self.field.is_ready(port), 60.0, f"the server on port {port} is not ready")
        self._wait(self.field.remaker.is_done, 60.0, "the model was not deleted and created again")

    def _wait(self, holds: Callable[[], bool], timeout_s: float, words: str) -> bool:
        """Let time pass until it holds; False if it does not in time, or if something else goes wrong meanwhile."""
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
        self.field.command(checkpoint=number)
        paths = {name: self.folder / "reports" / f"{number}-{name}.json" for name in (*self.field.agents, TENANT)}
        if not self._wait(lambda: all(p.exists() for p in paths.values()), REPORT_S, "agents did not report"):
            self._show_stuck([name for name, path in paths.items() if not path.exists()])
            return
        self._reports = {name: json.loads(path.read_text()) for name, path in paths.items()}
        self.violations += self.field.remaker.check(self._reports.pop(TENANT))
        self.violations += self._check_calls()
        self.violations += [*checks.check_books(self.field, self._reports), *checks.check_words(self.field)]
        self._most_pending = max(self._most_pending, *(report["pending"] for report in self._reports.values()))
        self._rounds = {name: report["rounds"] for name, report in self._reports.items()}
        self._n_checkpoints += 1
        spent = round(time.monotonic() - begun, 2)
        self.note("checkpoint", seconds=spent, value=number, result=self.violations or "balanced", n=self._n_obs())
        self.summary()  # so far, for whoever cannot wait for the end
        self.field.command(go=number)
        self._wait(self._all_learn, 30.0, "some agent has learnt nothing")

    def _check_calls(self) -> list[str]:
        found = []
        for name, truth in self.field.truths.items():
            found += checks.check_calls(name, self.field.agents[name], truth, self._latest)
        if self.field.remaker.truth is not None:
            found += checks.check_calls(TENANT, self.field.tenants[TENANT], self.field.remaker.truth, self._latest)
        return found

    def _all_learn(self) -> bool:
        return all(truth.update().n_done > self._rounds[name] for name, truth in self.field.truths.items())

    def _show_stuck(self, stuck: list[str]) -> None:
        """Where its threads stand goes to the log of each agent that does not answer."""
        for name in stuck:
            self.field.victims[name].signal(signal.SIGUSR1)
        time.sleep(1.0)
        self.note("stuck", victim=",".join(stuck), result="see the dumps in the logs")

    def _finish(self) -> None:
        """Agents close, servers stop by SIGTERM; all must end by themselves, with status 0."""
        victims = [*self.field.agents.values(), *self.field.tenants.values(), *self.field.servers.values()]
        for victim in victims:
            victim.wanted = False
        self.field.command(finish=True)
        for victim in victims if not self.violations else []:
            if victim.name in self.field.servers:
                victim.signal(signal.SIGTERM)
            self._wait(lambda victim=victim: not victim.is_up, 60.0, f"{victim.name} did not end")
            if victim.process is not None and victim.process.returncode != 0:
                self.violations.append(f"{victim.name} ended with {victim.process.returncode}")
        self.violations += checks.check_words(self.field)

    # -- the account

    def _n_obs(self) -> int:
        return sum(self._rounds.values())

    def note(self, action: str, **fields: Any) -> None:
        """One line of history."""
        line = {"t": round(time.monotonic() - self._begun, 3), "action": action, **fields}
        with (self.folder / "history.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def summary(self) -> dict[str, Any]:
        """What was done and what was found, also in `summary.json`."""
        field = self.field
        found = {
            "store": self.store,
            "seed": self.seed,
            "seconds": round(time.monotonic() - self._begun),
            "agents": self.size.n_agents,
            "observations": self._n_obs(),
            "uploads": len(field.witness.uploads),
            "checkpoints": self._n_checkpoints,
            "process_starts": sum(victim.n_starts for victim in field.victims.values()),
            "named_ends_of_servers": self._n_named_ends,
            "retries_counted_by_agents": sum(report["retries"] for report in self._reports.values()),
            "actions": dict(sorted(self.adversary.counts.items())),
            "network": dict(sorted(field.proxy.counts.items())),
            "messages": dict(sorted(field.witness.counts.items())),
            "servers": checks.server_counts(field),
            "agents_met": self._events(),
            "most_pending": self._most_pending,
            "remade": dict(sorted(field.remaker.counts.items())),
            "tools": dict(sorted(field.tools.counts.items())),
            "crowds": dict(sorted(self.adversary.crowds.items())),
            "latest_s": dict(sorted(self._latest.items())),
            "samples": self.watch.n_samples,
            "peaks": {kind: {"memory_mb": round(u.memory_mb), "fds": u.descriptors} for kind, u in self._peaks()},
            "skipped": self.adversary.skipped,
            "violations": self.violations,
        }
        (self.folder / "summary.json").write_text(json.dumps(found, indent=1))
        return found

    def _peaks(self) -> list[tuple[str, Usage]]:
        return sorted(self.watch.peaks.items())

    def _events(self) -> dict[str, int]:
        events: Counter[str] = Counter()
        for truth in self.field.truths.values():
            events.update(truth.events)
            events["resumed"] += truth.n_resumed
        return dict(sorted(events.items()))
