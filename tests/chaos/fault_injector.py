"""Injects the faults of the schedule and ends each of them in time."""

from __future__ import annotations

import heapq
import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.chaos.agent_record import MODEL
from tests.chaos.disk import SmallDisk
from tests.chaos.environment import LARGE, Environment
from tests.chaos.processes import ChildProcess
from tests.chaos.schedule import CROWDS, FLEET, NETWORK, Action

LONGEST_DELETE_S = 0.02
DOWN_S = 0.5


class FaultInjector:
    """`counts` has the injected faults by kind; `skipped` why some kinds cannot be injected here."""

    def __init__(self, environment: Environment, note: Callable[..., None]) -> None:
        self.counts: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self._environment = environment
        self._note = note
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.crowds: Counter[str] = Counter()  # what all hostile clients did
        self._crash: threading.Thread | None = None
        self._jobs: dict[str, threading.Thread] = {}
        self._ending = threading.Event()
        self._crowds: list[tuple[str, Path, subprocess.Popen[bytes]]] = []

    def begin(self, actions: list[Action]) -> None:
        """Schedule the actions of a phase."""
        self._ending.clear()
        begun = time.monotonic()
        for action in actions:
            self._at(begun + action.at_s, lambda action=action: self._do(action))

    def work(self) -> None:
        """Run the actions that are due."""
        while self._queue and self._queue[0][0] <= time.monotonic():
            heapq.heappop(self._queue)[2]()

    def stop(self) -> None:
        """End all faults immediately; every process may run again."""
        while self._queue:
            heapq.heappop(self._queue)[2]()
        self._environment.proxy.clear_faults()
        self._ending.set()
        if self._crash is not None:
            self._crash.join(90.0)
        for job in self._jobs.values():
            job.join(180.0)
        self._disperse()
        for pattern in ("*.burst", "*.fresh"):
            for path in self._environment.folder.glob(pattern):
                path.unlink(missing_ok=True)
        for child in self._environment.children.values():
            child.go_on()
            child.wanted = True

    def _at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), do))

    def _do(self, action: Action) -> None:
        result = self._inject(action)
        if result == "done":
            self.counts[action.kind] += 1
        self._note(action.kind, target=action.target, seconds=action.seconds, value=action.value, result=result)

    def _inject(self, action: Action) -> str:
        """Inject a fault, and schedule its end."""
        end, kind = time.monotonic() + action.seconds, action.kind
        if kind in NETWORK:
            self._environment.proxy.inject(kind, action.seconds)
            return "done"
        if kind in CROWDS:
            return self._gather(kind, action)
        if kind in ("recreate_model", "kill_in_delete"):
            return self._recreate(kind, action)
        if kind == "restart_model":
            return self._begin_job("restart", self._environment.restart_model)
        if kind == "kill_tool":
            return self._begin_job("tool", lambda: self._environment.tools.test(int(action.value)))
        if kind == "kill_in_burst" and self._environment.syscall_kills.missing is not None:
            self.skipped[kind] = self._environment.syscall_kills.missing
            return "skipped"
        if kind == "kill_in_burst":
            (self._environment.folder / f"{action.target}.burst").touch()
            return "done"
        if kind == "restart_postgres":
            return self._crash_postgres()
        if kind in ("move_clock", "move_fleet_clock"):
            return self._move_clock(action)
        if kind.startswith("fill_"):
            disk = {
                "fill_server_disk": self._environment.server_disk,
                "fill_agent_disk": self._environment.agent_disk,
                "fill_fleet_disk": self._environment.fleet_disk,
            }[kind]
            return self._fill(kind, disk, int(action.value), end)
        if kind in FLEET and not kind.endswith("_fleet_process"):
            return self._change_fleet(kind, action)
        return self._signal(kind, self._environment.children[action.target], end)

    def _change_fleet(self, kind: str, action: Action) -> str:
        """What operators do with a fleet, or what a machine does that begins anew."""
        if kind in ("kill_in_enrolment", "fresh_directory"):
            missing = self._environment.syscall_kills.missing if kind == "kill_in_enrolment" else None
            if missing is not None:
                self.skipped[kind] = missing
                return "skipped"
            words = "kill" if kind == "kill_in_enrolment" else "fresh"
            (self._environment.folder / f"{action.target}.fresh").write_text(words)
            return "done"
        operator = self._environment.fleet.operator
        operator.begin(kind, int(action.value))
        self._begin_job("fleet", lambda: operator.work(self._ending))
        return "done"

    def _signal(self, kind: str, child: ChildProcess, end: float) -> str:
        if not child.is_up or not child.wanted:
            return "down already"
        if kind.startswith("pause"):
            child.pause()
            self._at(end, child.go_on)
        elif kind.startswith("kill"):
            child.kill()
            self._at(end, child.want)
        else:
            child.go_on()
            child.signal(signal.SIGTERM)
            child.start_at = end
        return "done"

    # -- faults that take a while, in a thread or process of their own

    def _begin_job(self, name: str, do: Callable[[], None]) -> str:
        job = self._jobs.get(name)
        if job is not None and job.is_alive():
            return "busy already"
        self._jobs[name] = threading.Thread(target=do)
        self._jobs[name].start()
        return "done"

    def _recreate(self, kind: str, action: Action) -> str:
        servers = self._environment.servers
        child = servers[action.target] if action.target else None
        at = list(servers).index(action.target) if action.target else int(action.value)
        kill = None
        if kind == "kill_in_delete" and child is not None:
            delay_s = (action.value % 1000.0) / 1000.0 * LONGEST_DELETE_S
            kill = threading.Timer(delay_s, lambda: _kill_briefly(child)).start
        return self._begin_job("recreation", lambda: self._environment.recreation.recreate(self._ending, at, kill))

    def _gather(self, kind: str, action: Action) -> str:
        """Start hostile clients at one server."""
        environment = self._environment
        port = environment.ports[list(environment.servers).index(action.target)]
        result = environment.folder / f"crowd-{next(self._order)}.json"
        command = [
            sys.executable,
            "-m",
            "tests.chaos.hostile_clients",
            kind,
            str(port),
            str(action.seconds),
            str(result),
        ]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        names = {
            "model": MODEL,
            "large": LARGE,
            "agent_token": environment.crowd_token,
            "admin_token": environment.admin_token,
        }
        assert process.stdin is not None
        process.stdin.write(json.dumps(names).encode())
        process.stdin.close()
        self._crowds.append((kind, result, process))
        return "done"

    def _disperse(self) -> None:
        for kind, result, process in self._crowds:
            process.terminate()
            process.wait(30.0)
            found = json.loads(result.read_text()) if result.exists() else {}
            self.crowds.update({f"{kind}_{name}": number for name, number in found.items()})
            result.unlink(missing_ok=True)
        self._crowds.clear()

    def _crash_postgres(self) -> str:
        postgres = self._environment.postgres
        if postgres is None or (self._crash is not None and self._crash.is_alive()):
            return "down already"
        self._crash = threading.Thread(target=postgres.crash)
        self._crash.start()
        return "done"

    def _move_clock(self, action: Action) -> str:
        if self._environment.clocks.missing is not None:
            self.skipped[action.kind] = self._environment.clocks.missing
            return "skipped"
        self._environment.clocks.move(action.target, action.value)
        return "done"

    def _fill(self, kind: str, disk: SmallDisk | None, spare_bytes: int, end: float) -> str:
        if disk is None or disk.missing is not None:
            self.skipped[kind] = "no disk" if disk is None else str(disk.missing)
            return "skipped"
        disk.fill(spare_bytes=spare_bytes)
        self._at(end, disk.free)
        return "done"


def _kill_briefly(child: ChildProcess) -> None:
    """Called from another thread; the process is started again soon."""
    child.start_at = time.monotonic() + DOWN_S
    child.kill()
    child.want()
