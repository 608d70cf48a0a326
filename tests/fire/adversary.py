"""The one who strikes: actions of the schedule, and what each of them needs to be undone."""

from __future__ import annotations

import heapq
import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

from tests.fire.battlefield import Battlefield
from tests.fire.disk import SmallDisk
from tests.fire.processes import Victim
from tests.fire.schedule import WEATHER, Action


class Adversary:
    """`counts` has the blows that hit; `skipped` why some kinds cannot be dealt here."""

    def __init__(self, field: Battlefield, note: Callable[..., None]) -> None:
        self.counts: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self._field = field
        self._note = note
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._crash: threading.Thread | None = None

    def begin(self, actions: list[Action]) -> None:
        """The storm's actions, to be done when they are due."""
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
        if self._crash is not None:
            self._crash.join(90.0)
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
