"""An agent process: its directory, its transport, and what the application expects."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.messages import digest_of, n_packed
from fedbandit.errors import NotReachable, Refused
from fedbandit.sdk import LiveAgent, open_agent
from fedbandit.sdk.sync_client import Backoff
from fedbandit.sdk.transport import TransportReply
from fedbandit.wire import codec
from tests.crash_model.accounting import Failure, Key
from tests.crash_model.seams import Files, Killed, Process, read_tree, running
from tests.crash_model.server import DIM, MODEL, Reply, Server

if TYPE_CHECKING:
    from tests.crash_model.world import World

LOG, RING = "observations", "decisions"
DATABASE = ("journal.db", "journal.db-wal")
SECTOR = 512


@dataclass
class Options:
    """How an application opens its agent."""

    durability: str = "fast"
    sync: str = "inline"
    n_kept: int = 1000
    min_upload: int = 1


class Wire:
    """An agent's transport; each exchange consumes one of `faults`."""

    address = "virtual"

    def __init__(self, world: World, device: Device) -> None:
        self._world, self._device = world, device
        self.faults: list[str] = []
        self.is_cut = False
        self._old: list[tuple[str, TransportReply]] = []  # to uploads of this process, with their incarnation

    def describe(self, *, timeout_s: float) -> dict[str, Any]:
        reply = self._ask(lambda token, replica: self._world.server.describe(token, replica))
        if isinstance(reply, Reply):
            raise self._failure(reply)
        return dict(reply)

    def state(self, incarnation: str, tag: str | None, *, timeout_s: float) -> TransportReply | None:
        reply = self._ask(lambda token, replica: self._world.server.state(token, incarnation, tag, replica))
        return None if reply.status == 304 else self._read(reply)

    def sync(self, body: bytes, *, timeout_s: float) -> TransportReply:
        world, device = self._world, self._device
        self._step()
        fault = self.faults.pop(0) if self.faults else ""
        with running(None):  # the server's work is not a step of the agent, and has no limits of the agent
            world.travels(device, body, is_copied=fault != "lost")
            if fault in ("lost", "late"):
                raise NotReachable("the request did not arrive")
            self._require_line()
            replies = world.deliver([(device.name, body)] * (2 if fault == "twice" else 1))
        self._step()
        if replies is None or fault == "unanswered":
            raise NotReachable("no answer")
        incarnation = device.memory.incarnation
        old = [answer for asked_by, answer in self._old if asked_by == incarnation]
        if fault == "old answer" and old:
            return old[0]
        answer = self._read(replies[-1])
        self._old = [*self._old[-3:], (incarnation, answer)]
        return answer

    def close(self) -> None:
        pass

    def end_connections(self) -> None:
        """The process ended: its replies are dropped."""
        self._old = []

    def _step(self) -> None:
        process = self._device.process
        if process.is_dead:
            raise Killed
        process.step("message")

    def _ask(self, call: Any) -> Any:
        self._step()
        self._require_line()
        try:
            with running(None):
                reply = call(self._world.tokens.get(self._device.name, "no-token-0123456789"), self._world.replica)
        except Killed:
            raise NotReachable("no answer") from None
        self._step()
        return reply

    def _read(self, reply: Reply) -> TransportReply:
        if reply.status != 200:
            raise self._failure(reply)
        found = codec.decode_reply(reply.body)
        is_short = isinstance(found, codec.BlockSyncReply) and found.changed is not msgspec.UNSET
        digest = found.digest if is_short else digest_of(found.stats)
        self._world.accounting.versions.add((found.version, digest))
        return TransportReply(found, reply.tag, len(reply.body))

    def _failure(self, reply: Reply) -> NotReachable | Refused:
        problem = json.loads(reply.body)
        if reply.status == 500:
            raise Failure(f"the server failed with an unnamed error: {problem}")
        if reply.status > 500:
            return NotReachable(problem["message"])
        return Refused(problem["message"], reason=problem["error"], status=reply.status)

    def _require_line(self) -> None:
        if self.is_cut or not self._world.server.is_up:
            raise NotReachable("nobody answers")


@dataclass
class Memory:
    """The expected state of a device; it is copied with the device's directory."""

    line: list[int] = field(default_factory=list)  # observations that are in no sent upload, in order
    dropped: list[int] = field(default_factory=list)  # of an earlier epoch, and not reported in a sent upload
    epoch: int = 0
    n_rounds: int = 0
    incarnation: str = ""
    settings: str = ""
    previous: str = ""  # previous incarnation, whose data were carried over
    carried: frozenset[int] = frozenset()
    sent: set[Key] = field(default_factory=set)  # uploads that were sent
    waiting: dict[str, Decision] = field(default_factory=dict)  # pending decisions
    weak: set[str] = field(default_factory=set)  # of these, those that a failing disk may not have stored
    settled: dict[str, int] = field(default_factory=dict)  # decision -> observation, or −1 where it expired

    @property
    def unsent(self) -> set[int]:
        """All that no sent upload has or reports."""
        return {*self.line, *self.dropped}

    def copy(self) -> Memory:
        """A copy."""
        return replace(
            self,
            line=list(self.line),
            dropped=list(self.dropped),
            sent=set(self.sent),
            waiting=dict(self.waiting),
            weak=set(self.weak),
            settled=dict(self.settled),
        )


class Device:
    """One directory and the process that works in it."""

    def __init__(self, world: World, name: str, folder: Path, options: Options) -> None:
        self.world, self.name, self.options = world, name, options
        self.process = self._new_process(folder)
        self.wire = Wire(world, self)
        self.agent: LiveAgent | None = None
        self.memory = Memory()
        self.held: set[int] = set()  # as of the last check
        self.kept: set[int] = set()  # of these, only in answered uploads
        self.has_worked = True  # since the last check: the state of an agent changes by its own calls only
        self.has_failed_disk = False  # a write of some call may have failed
        self.is_copied = False  # there is, or was, another process on a copy of this state
        self.is_damaged = False  # files were changed from outside
        self.kept_aside: tuple[Files, Memory] | None = None
        self.done: Decision | None = None  # the last one with a reward

    def _new_process(self, folder: Path, boot: bytes = b"boot-0") -> Process:
        process = Process(folder)
        process.boot = boot
        process.on_sync = self._synced if self.world.cuts_power else None
        self.synced: Files = {}
        self.n_synced = 0
        return process

    @property
    def durable(self) -> Any:
        """The internal agent."""
        assert self.agent is not None
        return self.agent._durable

    def open(self, *, rejoin: bool = False) -> None:
        """`fb.connect` in a process that may be armed with a fault."""
        with running(self.process):
            self.agent = open_agent(
                self.wire,
                model=MODEL,
                agent=self.name,
                state_dir=self.process.folder,
                durability=self.options.durability,
                sync=self.options.sync,
                min_upload=self.options.min_upload,
                keep_mb=8 * n_packed(DIM * Server.blocks, Server.blocks) * self.options.n_kept / (1 << 20),
                refresh_after_s=600.0,
                rejoin=rejoin,
                backoff=Backoff(Random(0)),
            )

    def move(self, files: Files, *, boot: bytes | None = None) -> None:
        """End the process; replace its directory by one with these files."""
        self.let_go()
        self.wire.end_connections()
        self.world.n_steps += self.process.n_steps
        folder = self.world.new_place(files)
        self.process = self._new_process(folder, self.process.boot if boot is None else boot)

    def let_go(self) -> None:
        """Close what the killed process had open."""
        agent, self.agent = self.agent, None
        if agent is not None:
            agent._finalizer.detach()
            with suppress(OSError):  # it was not opened
                agent._durable.journal.close()  # type: ignore[union-attr]

    # -- disks

    def _synced(self, what: str) -> None:
        """Called at each sync: record what a power cut would leave."""
        if what.endswith((LOG, LOG + ".new")):
            self.n_synced = Path(what).stat().st_size
        elif what.endswith("-wal") or what == "checkpoint" or self.options.durability == "strict":
            files = read_tree(self.process.folder)
            self.synced = {name: files[name] for name in (*DATABASE, RING) if name in files}

    def after_power_cut(self, rng: Random) -> Files:
        """SQLite as it was last synced; the log at least as it was; the ring by sectors as it was then or is now."""
        files = read_tree(self.process.folder)
        if not self.synced:
            return files
        log = files.get(LOG, b"")
        kept = bytearray(log[: rng.randint(min(self.n_synced, len(log)), len(log))])
        if len(kept) > self.n_synced and rng.random() < 0.5:
            begin = rng.randint(self.n_synced, len(kept) - 1)
            end = rng.randint(begin, len(kept))
            kept[begin:end] = bytes(end - begin)
        ring, old = files.get(RING, b""), self.synced.get(RING, b"")
        if len(old) == len(ring):
            places = range(0, len(ring), SECTOR)
            ring = b"".join((old if rng.random() < 0.5 else ring)[at : at + SECTOR] for at in places)
        found = {name: self.synced[name] for name in DATABASE if name in self.synced}
        return {**found, LOG: bytes(kept), RING: ring}
