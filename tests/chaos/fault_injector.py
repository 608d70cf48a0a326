"""The one who strikes: actions of the schedule, and what each of them needs to be undone."""

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

from tests.chaos.disk import SmallDisk
from tests.chaos.environment import LARGE, Battlefield
from tests.chaos.processes import Victim
from tests.chaos.schedule import CROWDS, WEATHER, Action
from tests.chaos.truth import MODEL

LONGEST_DELETE_S = 0.02
DOWN_S = 0.5


class Adversary:
    """`counts` has the blows that hit; `skipped` why some kinds cannot be dealt here."""

    def __init__(self, field: Battlefield, note: Callable[..., None]) -> None:
        self.counts: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self._field = field
        self._note = note
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.crowds: Counter[str] = Counter()  # what the clients of all crowds did
        self._crash: threading.Thread | None = None
        self._jobs: dict[str, threading.Thread] = {}
        self._ending = threading.Event()
        self._crowds: list[tuple[str, Path, subprocess.Popen[bytes]]] = []

    def begin(self, actions: list[Action]) -> None:
        """The storm's actions, to be done when they are due."""
        self._ending.clear()
        begun = time.monotonic()
        for action in actions:
            self._at(begun + action.at_s, lambda action=action: self._do(action))

    def work(self) -> None:
        """Do what is due."""
        while self._queue and self._queue[0][0] <= time.monotonic():
            heapq.heappop(self._queue)[2]()

    def rest(self) -> None:
        """Everything that was begun comes to its end at once; the network is calm, everybody is wanted."""
        while self._queue:
            heapq.heappop(self._queue)[2]()
        self._field.proxy.calm()
        self._ending.set()
        if self._crash is not None:
            self._crash.join(90.0)
        for job in self._jobs.values():
            job.join(180.0)
        self._disperse()
        for path in self._field.folder.glob("*.burst"):
            path.unlink(missing_ok=True)
        for victim in self._field.victims.values():
            victim.go_on()
            victim.wanted = True

    def _at(self, when: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (when, next(self._order), do))

    def _do(self, action: Action) -> None:
        result = self._blow(action)
        if result == "done":
            self.counts[action.kind] += 1
        self._note(action.kind, victim=action.victim, seconds=action.seconds, value=action.value, result=result)

    def _blow(self, action: Action) -> str:
        """Strike, and put down when it ends."""
        end, kind = time.monotonic() + action.seconds, action.kind
        if kind in WEATHER:
            self._field.proxy.weather(kind, action.seconds)
            return "done"
        if kind in CROWDS:
            return self._gather(kind, action)
        if kind in ("remake_model", "kill_in_delete"):
            return self._remake(kind, action)
        if kind == "kill_tool":
            return self._begin_job("tool", lambda: self._field.tools.strike(int(action.value)))
        if kind == "kill_in_burst" and self._field.strikes.missing is not None:
            self.skipped[kind] = self._field.strikes.missing
            return "skipped"
        if kind == "kill_in_burst":
            (self._field.folder / f"{action.victim}.burst").touch()
            return "done"
        if kind == "restart_postgres":
            return self._crash_postgres()
        if kind == "move_clock":
            return self._move_clock(action)
        if kind.startswith("fill_"):
            disk = self._field.server_disk if kind == "fill_server_disk" else self._field.agent_disk
            return self._fill(kind, disk, int(action.value), end)
        return self._strike(kind, self._field.victims[action.victim], end)

    def _strike(self, kind: str, victim: Victim, end: float) -> str:
        if not victim.is_up or not victim.wanted:
            return "down already"
        if kind.startswith("pause"):
            victim.pause()
            self._at(end, victim.go_on)
        elif kind.startswith("kill"):
            victim.kill()
            self._at(end, victim.want)
        else:
            victim.go_on()
            victim.signal(signal.SIGTERM)
            victim.start_at = end
        return "done"

    # -- what takes a while, in a thread or a process of its own

    def _begin_job(self, name: str, do: Callable[[], None]) -> str:
        job = self._jobs.get(name)
        if job is not None and job.is_alive():
            return "busy already"
        self._jobs[name] = threading.Thread(target=do)
        self._jobs[name].start()
        return "done"

    def _remake(self, kind: str, action: Action) -> str:
        servers = self._field.servers
        victim = servers[action.victim] if action.victim else None
        at = list(servers).index(action.victim) if action.victim else int(action.value)
        strike = None
        if kind == "kill_in_delete" and victim is not None:
            delay_s = (action.value % 1000.0) / 1000.0 * LONGEST_DELETE_S
            strike = threading.Timer(delay_s, lambda: _kill_for_a_moment(victim)).start
        return self._begin_job("remake", lambda: self._field.remaker.remake(self._ending, at, strike))

    def _gather(self, kind: str, action: Action) -> str:
        """A crowd of clients at one server."""
        field = self._field
        port = field.ports[list(field.servers).index(action.victim)]
        result = field.folder / f"crowd-{next(self._order)}.json"
        command = [sys.executable, "-m", "tests.chaos.crowd", kind, str(port), str(action.seconds), str(result)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        names = {"model": MODEL, "large": LARGE, "agent_token": field.crowd_token, "admin_token": field.admin_token}
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
        postgres = self._field.postgres
        if postgres is None or (self._crash is not None and self._crash.is_alive()):
            return "down already"
        self._crash = threading.Thread(target=postgres.crash)
        self._crash.start()
        return "done"

    def _move_clock(self, action: Action) -> str:
        if self._field.clocks.missing is not None:
            self.skipped["move_clock"] = self._field.clocks.missing
            return "skipped"
        self._field.clocks.move(action.victim, action.value)
        return "done"

    def _fill(self, kind: str, disk: SmallDisk | None, spare_bytes: int, end: float) -> str:
        if disk is None or disk.missing is not None:
            self.skipped[kind] = "no disk" if disk is None else str(disk.missing)
            return "skipped"
        disk.fill(spare_bytes=spare_bytes)
        self._at(end, disk.free)
        return "done"


def _kill_for_a_moment(victim: Victim) -> None:
    """From another thread: it is started again soon."""
    victim.start_at = time.monotonic() + DOWN_S
    victim.kill()
    victim.want()
