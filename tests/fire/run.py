"""A run: storms by the schedule, a quiet after each, the books checked in every quiet, and a history of all of it."""

from __future__ import annotations

import heapq
import itertools
import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fire import checks
from tests.fire.battlefield import Battlefield
from tests.fire.disk import SmallDisk
from tests.fire.processes import NAMED_END, Victim
from tests.fire.schedule import WEATHER, Action, storms

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


class Run:
    """One store under fire."""

    def __init__(self, folder: Path, store: str, seed: int, size: Size) -> None:
        self.folder, self.store, self.seed, self.size = folder, store, seed, size
        folder.mkdir(parents=True, exist_ok=True)
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.skipped: dict[str, str] = {}
        self._history = folder / "history.jsonl"
        self._begun = time.monotonic()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._threads: list[threading.Thread] = []
        self._rounds: dict[str, int] = {}

    def go(self) -> dict[str, Any]:
        """The summary; `violations` is empty when all went well."""
        n_servers = 1 if self.store == "sqlite" else 2
        size = self.size
        self.field = Battlefield(
            self.folder, self.store, seed=self.seed, n_agents=size.n_agents, n_servers=n_servers, pace_s=size.pace_s
        )
        plan = storms(
            self.seed,
            store=self.store,
            n_agents=size.n_agents,
            n_servers=n_servers,
            n_storms=max(1, round(size.seconds / size.storm_s)),
            storm_s=size.storm_s,
            gap_s=size.gap_s,
        )
        try:
            self.field.start()
            self._rounds = dict.fromkeys(self.field.agents, 0)
            self._wait(self._all_learn, 60.0, "some agent has not begun")
            self._fight(plan)
            self._finish()
        except Exception as error:
            self.note("broke_off", result=repr(error))
            raise
        finally:
            self.field.close()
        return self.summary()

    def _fight(self, plan: list[list[Action]]) -> None:
        for number, actions in enumerate(plan, start=1):
            self._storm(actions)
            self._quiet()
            self._checkpoint(number)
            if self.violations or time.monotonic() - self._begun > self.size.seconds:
                return

    # -- the storm

    def _storm(self, actions: list[Action]) -> None:
        begun = time.monotonic()
        for action in actions:
            self._at(begun + action.at_s, lambda action=action: self._do(action))
        self._work_until(begun + self.size.storm_s)

    def _at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), do))

    def _work_until(self, end: float) -> None:
        while time.monotonic() < end:
            self._tick()
            time.sleep(TICK_S)

    def _tick(self) -> None:
        while self._queue and self._queue[0][0] <= time.monotonic():
            heapq.heappop(self._queue)[2]()
        for victim in self.field.victims.values():
            words = victim.supervise()
            if words is not None:
                self._ended(victim, words)

    def _ended(self, victim: Victim, words: str) -> None:
        self.note("ended", victim=victim.name, result=words)
        if f": {NAMED_END}" in words:
            self.counts["named_ends_of_servers"] += 1
        elif victim.name in self.field.agents or " with 0:" not in words:
            self.violations.append(words)

    def _do(self, action: Action) -> None:
        result = self._blow(action)
        if result == "done":
            self.counts[action.kind] += 1
        self.note(action.kind, victim=action.victim, seconds=action.seconds, value=action.value, result=result)

    def _blow(self, action: Action) -> str:
        """Strike, and put down when it ends."""
        end = time.monotonic() + action.seconds
        kind = action.kind
        if kind in WEATHER:
            self.field.proxy.weather(kind, action.seconds)
            return "done"
        if kind == "restart_postgres":
            return self._restart_postgres()
        if kind == "move_clock":
            return self._move_clock(action)
        if kind.startswith("fill_"):
            disk = self.field.server_disk if kind == "fill_server_disk" else self.field.agent_disk
            return self._fill(kind, disk, int(action.value), end)
        return self._strike(kind, self.field.victims[action.victim], end)

    def _strike(self, kind: str, victim: Victim, end: float) -> str:
        if not victim.is_up or not victim.wanted:
            return "down already"
        if kind.startswith("pause"):
            victim.pause()
            self._at(end, victim.go_on)
        elif kind.startswith("kill"):
            victim.kill()
            self._at(end, lambda: self._bring_back(victim))
        else:
            victim.go_on()
            victim.signal(signal.SIGTERM)
            victim.start_at = end
        return "done"

    def _bring_back(self, victim: Victim) -> None:
        victim.wanted = True

    def _restart_postgres(self) -> str:
        postgres = self.field.postgres
        if postgres is None or any(thread.is_alive() for thread in self._threads):
            return "down already"
        self._threads = [threading.Thread(target=postgres.crash)]
        self._threads[0].start()
        return "done"

    def _move_clock(self, action: Action) -> str:
        if self.field.clocks.missing is not None:
            self.skipped["move_clock"] = self.field.clocks.missing
            return "skipped"
        self.field.clocks.move(action.victim, action.value)
        return "done"

    def _fill(self, kind: str, disk: SmallDisk | None, spare_bytes: int, end: float) -> str:
        if disk is None or disk.missing is not None:
            self.skipped[kind] = "no disk" if disk is None else str(disk.missing)
            return "skipped"
        disk.fill(spare_bytes=spare_bytes)
        self._at(end, disk.free)
        return "done"

    # -- the quiet

    def _quiet(self) -> None:
        """Everything that was begun comes to its end; everybody is up; the network is calm."""
        field = self.field
        while self._queue:
            heapq.heappop(self._queue)[2]()
        field.proxy.calm()
        for thread in self._threads:
            thread.join(90.0)
        for victim in field.victims.values():
            victim.go_on()
            victim.wanted = True
        self._tick()
        for port in field.ports:
            self._wait(lambda port=port: self._is_ready(port), 60.0, f"the server on port {port} is not ready")

    def _is_ready(self, port: int) -> bool:
        try:
            self.field.wait_ready(port, timeout_s=0.2)
        except AssertionError:
            return False
        return True

    def _wait(self, holds: Callable[[], bool], timeout_s: float, words: str) -> bool:
        end = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > end:
                self.violations.append(f"{words} after {timeout_s:g} s")
                return False
            self._tick()
            time.sleep(TICK_S)
        return True

    def _checkpoint(self, number: int) -> None:
        begun = time.monotonic()
        self.field.command(checkpoint=number)
        paths = {name: self.folder / "reports" / f"{number}-{name}.json" for name in self.field.agents}
        if not self._wait(lambda: all(p.exists() for p in paths.values()), REPORT_S, "agents did not report"):
            self._show_stuck([name for name, path in paths.items() if not path.exists()])
            return
        reports = {name: json.loads(path.read_text()) for name, path in paths.items()}
        self.violations += [*checks.check_books(self.field, reports), *checks.check_words(self.field)]
        self._rounds = {name: report["rounds"] for name, report in reports.items()}
        self.reports = reports
        spent = round(time.monotonic() - begun, 2)
        self.note("checkpoint", seconds=spent, value=number, result=self.violations or "balanced", n=self._n_obs())
        self.summary()  # so far, for whoever cannot wait for the end
        self.field.command(go=number)
        self._wait(self._all_learn, 30.0, "some agent has learnt nothing")

    def _all_learn(self) -> bool:
        return all(truth.update().n_done > self._rounds[name] for name, truth in self.field.truths.items())

    def _show_stuck(self, stuck: list[str]) -> None:
        """Where its threads stand goes to the log of each agent that does not answer."""
        for name in stuck:
            self.field.agents[name].signal(signal.SIGUSR1)
        time.sleep(1.0)
        self.note("stuck", victim=",".join(stuck), result="see the dumps in the logs")
        self.violations.append(f"stuck: {', '.join(stuck)}")

    def _finish(self) -> None:
        """Agents close, servers stop by SIGTERM; all must end by themselves, with status 0."""
        victims = [*self.field.agents.values(), *self.field.servers.values()]
        for victim in victims:
            victim.wanted = False
        self.field.command(finish=True)
        for victim in victims:
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
        line = {"t": round(time.monotonic() - self._begun, 3), "action": action, **fields}
        with self._history.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def summary(self) -> dict[str, Any]:
        reports = getattr(self, "reports", {})
        found = {
            "store": self.store,
            "seed": self.seed,
            "seconds": round(time.monotonic() - self._begun),
            "agents": self.size.n_agents,
            "observations": self._n_obs(),
            "uploads": len(self.field.witness.uploads),
            "checkpoints": sum(1 for _ in (self.folder / "reports").glob(f"*-{next(iter(reports), '')}.json")),
            "process_starts": sum(victim.n_starts for victim in self.field.victims.values()),
            "retries_counted_by_agents": sum(report["retries"] for report in reports.values()),
            "actions": dict(sorted(self.counts.items())),
            "network": dict(sorted(self.field.proxy.counts.items())),
            "messages": dict(sorted(self.field.witness.counts.items())),
            "servers": checks.server_counts(self.field),
            "agents_met": self._events(),
            "skipped": self.skipped,
            "violations": self.violations,
        }
        (self.folder / "summary.json").write_text(json.dumps(found, indent=1))
        return found

    def _events(self) -> dict[str, int]:
        events: Counter[str] = Counter()
        for truth in self.field.truths.values():
            events.update(truth.events)
            events["resumed"] += truth.n_resumed
        return dict(sorted(events.items()))
