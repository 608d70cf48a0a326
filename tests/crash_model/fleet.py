"""A fleet under faults, and the accounting of what must hold."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np

from fedbandit.algorithms.messages import packed_bytes
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import FormatError, LiveError, NotReachable, Refused, StateMismatch
from fedbandit.sdk import LiveAgent, connection, open_agent
from fedbandit.sdk.sync_client import Backoff
from fedbandit.sdk.transport import TransportReply
from fedbandit.wire import codec
from tests.crash_model.disk import LOG, WatchedFiles, cut_power, watching
from tests.crash_model.parts import MODEL, Fuse, Killed, ServerBox, copy_to, journal_with

Key = tuple[str, str, int]  # agent, incarnation, sequence
LENGTH = 8  # numbers in packed statistics of two features
SHM = Path("/dev/shm")


def zeros() -> np.ndarray:
    return np.zeros(LENGTH)


def numbers(stats: SufficientStats) -> np.ndarray:
    return np.frombuffer(packed_bytes(stats), dtype="<f8")


@dataclass
class Accounting:
    """What was observed and sent, and what the server must therefore hold. Integers: sums are exact."""

    seen: dict[str, list[np.ndarray]] = field(default_factory=dict)
    given_up: dict[str, np.ndarray] = field(default_factory=dict)  # buffers of abandoned directories
    made: dict[Key, np.ndarray] = field(default_factory=dict)
    absorbed: set[Key] = field(default_factory=set)  # uploads of an old incarnation, carried over into the next
    merged: set[Key] = field(default_factory=set)
    excused: set[str] = field(default_factory=set)  # incarnations that were forgotten, or whose directory was abandoned
    lost: set[Key] = field(default_factory=set)  # no longer kept when an older backup was restored
    versions: set[tuple[int, bytes]] = field(default_factory=set)

    def travelled(self, body: bytes) -> None:
        """An upload is bit-identical whenever it is sent."""
        request = codec.decode_request(body)
        key = (request.agent, request.incarnation, request.sequence)
        stats = codec.numbers_of(request)
        assert np.array_equal(self.made.setdefault(key, stats), stats), f"{key} has changed"

    def sum_of(self, keys: Any) -> np.ndarray:
        return sum((self.made[key] for key in keys), zeros())


class Wire:
    """An agent's transport; each exchange consumes one of `faults`."""

    address = "machine"

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.fleet, self.name = fleet, name
        self.fuse = Fuse()
        self.files = WatchedFiles(self.fuse)
        self.faults: list[str] = []
        self.cut = False
        self.old: list[TransportReply] = []

    def describe(self, *, timeout_s: float) -> dict[str, Any]:
        self._require_line()
        return self.fleet.server.describe(self.name)

    def state(self, incarnation: str, tag: str | None, *, timeout_s: float) -> TransportReply | None:
        self._require_line()
        reply = self.fleet.server.state(self.name, incarnation)
        answer = TransportReply(reply, f"{reply.version}-{reply.settings}", 0)
        return None if answer.tag == tag else answer

    def sync(self, body: bytes, *, timeout_s: float) -> TransportReply:
        self.fleet.accounting.travelled(body)
        self.fuse.step()
        fault = self.faults.pop(0) if self.faults else "none"
        if fault != "lost":
            self.fleet.bodies.append((self.name, body))
        if fault in ("lost", "late"):
            raise NotReachable("the request did not arrive")
        self._require_line()
        answers = self.fleet.deliver([(self.name, body)] * (2 if fault == "twice" else 1))
        self.fuse.step()
        if answers is None or fault == "unanswered":
            raise NotReachable("no answer")
        if fault == "old answer" and self.old:
            return self.old[0]
        return self._read(*answers[-1])

    def close(self) -> None:
        pass

    def _read(self, status: int, data: bytes) -> TransportReply:
        if status == 200:
            reply = codec.decode_reply(data)
            answer = TransportReply(reply, f"{reply.version}-{reply.settings}", len(data))
            self.old = [*self.old[-3:], answer]
            return answer
        problem = json.loads(data)
        assert status in (409, 503), problem
        if status == 503:
            raise NotReachable(problem["message"])
        raise Refused(problem["message"], reason=problem["error"], status=status)

    def _require_line(self) -> None:
        if self.cut or not self.fleet.server.is_up:
            raise NotReachable("nobody answers")


class Fleet:
    """Two agents, one server, and a network that loses, repeats, delays and reorders."""

    def __init__(self, *, n_kept: int, durability: str = "fast") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fb-machine-", dir=SHM if SHM.is_dir() else None))
        self.n_kept = n_kept
        self.durability = durability
        self.is_stuck = False
        self.rng = Random(0)  # where power cuts tear
        self.accounting = Accounting()
        self.bodies: list[tuple[str, bytes]] = []  # messages that the network may deliver again
        self.server = self.make_server()
        self.agents: dict[str, LiveAgent] = {}
        self.wires: dict[str, Wire] = {}
        self.places: dict[str, Path] = {}
        self.n_places = 0
        self.saved: set[Key] | None = None  # merged when the backup was made
        self.prior = self.state()[1]
        for name in ("a", "b"):
            self.server.enroll(name, token_of(name))
            self.accounting.seen[name], self.accounting.given_up[name] = [], zeros()
            self.wires[name] = Wire(self, name)
            self.places[name] = self._new_place()
            self.open(name)

    def make_server(self) -> ServerBox:
        return ServerBox(self.folder)

    def watching(self, wire: Wire) -> AbstractContextManager[None]:
        return watching(wire.files)

    # -- agents

    def open(self, name: str) -> None:
        """Start a process on the agent's directory."""
        wire = self.wires[name]
        fused = journal_with(wire.fuse, self.folder / f"synced-{name}")
        keep_mb = 8 * LENGTH * self.n_kept / (1 << 20)
        options: dict[str, Any] = {"state_dir": self.places[name], "sync": "inline", "keep_mb": keep_mb}
        options["durability"] = self.durability
        with patch.object(connection, "Journal", fused), self.watching(wire):
            try:
                self.agents[name] = open_agent(
                    wire, model=MODEL, agent=name, backoff=Backoff(Random(0), first_s=0.0), **options
                )
            except StateMismatch:
                assert self.saved is not None or self.accounting.excused, (
                    "only a restored or forgetful server lacks anything"
                )
                wire.cut = True  # it continues without a server until an operator acts
                self.open(name)
                wire.cut = False
            except FormatError as error:
                self.is_stuck = True
                raise AssertionError(f"the state cannot be opened any more: {error}") from error

    def do(self, name: str, work: Any, *, kill_at: int | None = None, faults: tuple[str, ...] = ()) -> bool:
        """Run a call of an agent; False if it was killed and restarted."""
        wire = self.wires[name]
        wire.fuse.left, wire.faults = kill_at, list(faults)
        self.agents[name]._client.next_attempt = 0.0  # enough time has passed
        try:
            with self.watching(wire):
                work(self.agents[name])
            return True
        except Killed:
            self.restart(name)
            return False
        except LiveError as error:
            self.after_failure(name, error)
            return True
        finally:
            wire.fuse.left, wire.faults = None, []

    def after_failure(self, name: str, error: LiveError) -> None:
        reasons = {"stale_incarnation", "sequence_gap", "not_merged"}
        assert isinstance(error, NotReachable) or (isinstance(error, Refused) and error.reason in reasons), repr(error)

    def observe(self, name: str, x: list[float], reward: float, *, by_choice: bool, **trouble: Any) -> None:
        agent, before = self.agents[name], self.agents[name].status().rounds

        def work(agent: LiveAgent) -> None:
            agent.observe(agent.choose([x]) if by_choice else x, reward)

        whole = self.do(name, work, **trouble)
        agent = self.agents[name]
        n_new = agent.status().rounds - before
        assert n_new == 1 if whole else n_new in (0, 1)
        if n_new:
            self.accounting.seen[name].append(numbers(SufficientStats.of(np.array([x]), np.array([reward]))))

    def restart(self, name: str, *, power_cut: bool = False, kill_at: int | None = None) -> None:
        """Restart a killed process on its directory, after a power cut as it was last synced.

        With `kill_at` that one is killed while it opens, and a third one finds what it left.
        """
        place = self._after_power_cut(name) if power_cut else copy_to(self.places[name], self._new_place())
        self._let_go(name, place)
        self.wires[name].fuse.left = kill_at
        try:
            self.open(name)
        except Killed:
            old, self.places[name] = self.places[name], copy_to(self.places[name], self._new_place())
            shutil.rmtree(old)
            self.open(name)
        self.wires[name].fuse.left = None
        n_kept = self.agents[name].status().rounds - self._left_rounds(name)
        if power_cut:
            assert n_kept == len(self.accounting.seen[name]) or self.durability == "fast", "strict loses nothing"
            del self.accounting.seen[name][n_kept:]

    def _after_power_cut(self, name: str) -> Path:
        """SQLite as it was last synced, which is each commit where that is strict; the log at least as it was."""
        synced = self.folder / f"synced-{name}"
        found = synced if synced.is_dir() and self.durability == "fast" else self.places[name]
        log = (self.places[name] / LOG).read_bytes()
        place = copy_to(found, self._new_place())
        cut_power(place, log, self.wires[name].files.n_synced, self.rng)
        return place

    def _left_rounds(self, name: str) -> int:
        """Observations of abandoned directories; they count in no later one."""
        return self.n_left.get(name, 0)

    @property
    def n_left(self) -> dict[str, int]:
        return self.__dict__.setdefault("_n_left", {})

    def begin_anew(self, name: str) -> None:
        """The operator's reaction to a forgotten agent: another directory, without the data of the old one."""
        durable = self.agents[name]._durable
        untravelled = (
            zeros()
            if durable.agent.in_flight is None or self._key(durable) in self.accounting.made
            else self._flight(durable)
        )
        self.accounting.given_up[name] = self.accounting.given_up[name] + numbers(durable.agent.local) + untravelled
        self.accounting.excused.add(durable.agent.incarnation)
        self.n_left[name] = -len(self.accounting.seen[name])
        shutil.rmtree(self.folder / f"synced-{name}", ignore_errors=True)
        self._let_go(name, self._new_place())
        self.wires[name].old.clear()
        self.open(name)

    def rejoin_by(self, work: Any, name: str) -> None:
        """Start a new incarnation: data of the old one that the server lacks are carried over."""
        durable = self.agents[name]._durable
        incarnation, n_answered = durable.agent.incarnation, durable.n_answered
        kept = set(self.held(name)) - self.accounting.merged
        work()
        if durable.agent.incarnation != incarnation:
            # The request may have created one more upload of the old incarnation; it was carried over as well.
            sent = {key for key in self.accounting.made if key[:2] == (name, incarnation) and key[2] > n_answered}
            self.accounting.absorbed |= (kept & set(self.accounting.made)) | sent

    def _let_go(self, name: str, place: Path) -> None:
        agent = self.agents[name]
        agent._finalizer.detach()
        with suppress(OSError):  # the process did not open it
            agent._durable.journal.close()  # type: ignore[union-attr]
        shutil.rmtree(self.places[name])
        self.places[name] = place

    def _new_place(self) -> Path:
        self.n_places += 1
        return self.folder / f"agent-{self.n_places}"

    # -- the server and the network

    def deliver(self, bodies: list[tuple[str, bytes]]) -> list[tuple[int, bytes]] | None:
        """One batch at the server; afterwards the accounting has what was merged."""
        answers = self.server.exchange([(token_of(name), body) for name, body in bodies])
        for status, data in answers or []:
            assert status in (200, 409, 503), data
        self.look()
        return answers

    def look(self) -> None:
        """Read the server's ledger and state."""
        if not self.server.is_up:
            self.server.start()
            self.look()
            self.server.kill()
            return
        for name in self.agents:
            row, state = self.server.run(self.server._read(name))
            self.accounting.merged |= {(name, row.incarnation, n) for n in range(1, row.sequence + 1)}
            self.accounting.versions.add((state.model.version, state.packed))

    def state(self) -> tuple[int, np.ndarray]:
        assert self.server.store is not None
        state = self.server.run(self.server.store.state(MODEL))
        self.accounting.versions.add((state.model.version, state.packed))
        return state.model.version, np.frombuffer(state.packed, dtype="<f8")

    def forget(self, name: str, *, kill_at: int | None) -> None:
        before, _ = self.state()
        self.server.kill_at = kill_at
        self.server.forget(name)
        self.server.kill_at = None
        self.up()
        after, _ = self.state()
        if after > before:
            gone = {key for key in self.accounting.merged if key[0] == name}
            self.accounting.excused |= {incarnation for _, incarnation, _ in gone}
            self.accounting.merged -= gone

    def up(self) -> None:
        if not self.server.is_up:
            self.server.start()

    def backup(self) -> None:
        self.server.backup(self.folder / "backup")
        self.saved = set(self.accounting.merged)

    def restore(self) -> None:
        """Restore the backup; connections and messages in flight of the old server are lost."""
        assert self.saved is not None
        gone = self.accounting.merged - self.saved
        self.server.restore(self.folder / "backup")
        self.accounting.merged = set(self.saved)
        self.bodies.clear()
        for key in gone:
            durable = self.agents[key[0]]._durable
            if key[1] != durable.agent.incarnation or key[2] <= durable.n_answered - self.n_kept:
                self.accounting.lost.add(key)

    # -- what must be true

    def held(self, name: str) -> list[Key]:
        """Uploads that the agent still has: in flight, or answered and kept."""
        durable = self.agents[name]._durable
        keys = [(name, durable.agent.incarnation, upload.sequence) for upload in durable.kept_after(0)]
        return keys if durable.agent.in_flight is None else [*keys, self._key(durable)]

    def _key(self, durable: Any) -> Key:
        return durable.agent.agent_id, durable.agent.incarnation, durable.agent.in_flight.sequence

    def _flight(self, durable: Any) -> np.ndarray:
        return numbers(durable.agent.in_flight.stats)

    def check(self) -> None:
        self.up()
        self.look()
        accounting = self.accounting
        version, state = self.state()
        assert np.array_equal(state, self.prior + accounting.sum_of(accounting.merged)), (
            "the server holds each upload once"
        )
        for name in self.agents:
            self._check_agent(name)
        held = {key for name in self.agents for key in self.held(name)}
        for key in set(accounting.made) - accounting.merged - accounting.absorbed - accounting.lost - held:
            assert key[1] in accounting.excused, f"{key} is nowhere"
        assert all(version >= agent.model_version or self.saved is not None for agent in self.agents.values())

    def _check_agent(self, name: str) -> None:
        accounting, durable = self.accounting, self.agents[name]._durable
        made = accounting.sum_of(key for key in accounting.made if key[0] == name and key not in accounting.absorbed)
        if durable.agent.in_flight is not None and self._key(durable) not in accounting.made:
            made = made + self._flight(durable)
        everything = sum(accounting.seen[name], zeros())
        assert np.array_equal(everything, made + numbers(durable.agent.local) + accounting.given_up[name]), (
            "nothing lost or doubled"
        )
        if durable.agent.model_version > 0:
            mine = (durable.agent.model_version, packed_bytes(durable.agent.model.stats))
            assert mine in accounting.versions, "a model that no server ever had"

    def settle(self) -> None:
        """End of the faults: everything that still exists reaches the server, and every agent makes progress."""
        self.up()
        for name in self.agents:
            self.wires[name].cut = False
            self._settle(name)
            durable = self.agents[name]._durable
            assert durable.agent.in_flight is None and durable.n_unsent == 0, (
                f"{name} is stuck: {self.agents[name].status()}"
            )
        self.check()
        rest = set(self.accounting.made) - self.accounting.merged - self.accounting.absorbed - self.accounting.lost
        assert all(key[1] in self.accounting.excused for key in rest), "something that existed did not come back"

    def _settle(self, name: str) -> None:
        for _ in range(4):
            link = self.agents[name]._client
            link.next_attempt, link._tag = 0.0, None
            try:
                link.refresh()
                self.agents[name].flush(5.0)
                return
            except Refused as error:
                if error.reason == "stale_incarnation":
                    self.begin_anew(name)
                elif error.reason == "sequence_gap":
                    self.rejoin(name)
                else:
                    raise

    def rejoin(self, name: str) -> None:
        """The documented way back after `sequence_gap`; it fails for a forgotten agent, which must start anew."""
        try:
            self.rejoin_by(self.agents[name].rejoin, name)
        except Refused as error:
            if error.reason != "stale_incarnation":
                raise
            self.begin_anew(name)

    def close(self) -> None:
        for name in self.agents:
            self._let_go(name, self.places[name])
        self.server.close()
        shutil.rmtree(self.folder)


def token_of(name: str) -> str:
    return f"token-of-{name}-0123456789"
