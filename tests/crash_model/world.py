"""A fleet in one process: devices, a server, a network, disks and clocks, and the checks that hold after every step."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedbandit.algorithms.messages import digest_of, packed_bytes
from fedbandit.algorithms.personal import PersonalAgent
from fedbandit.core.group_sums import GroupSums
from fedbandit.errors import FedbanditError, FormatError, JournalFailed, NotReachable, Refused, StateMismatch
from fedbandit.sdk import LiveAgent
from fedbandit.service.admin import operations
from fedbandit.wire import codec
from tests.crash_model.accounting import Accounting, Counts, Failure, Key, key_of, numbers_of, require
from tests.crash_model.device import Device, Memory, Options
from tests.crash_model.seams import KILLS, Fault, Files, Interrupted, Killed, running, write_tree
from tests.crash_model.server import DIM, MODEL, Loop, Reply, Server, settings_of
from tests.crash_model.virtual import Session

SHM = Path("/dev/shm")
NAMES = ("a", "b", "c")
ROWS = "SELECT agents.name, incarnation, sequence, digest FROM agents JOIN models ON models.id = model_id ORDER BY 1"
APART = "SELECT name FROM agents WHERE quarantined ORDER BY 1"
COUNTS = "SELECT name, n_obs, n_discarded, epoch FROM agents ORDER BY 1"
TOKENS = "SELECT name, token_hash, revoked FROM agents ORDER BY 1"
NOT_STARTED = NotReachable("the agent could not be started")


class Rows(NamedTuple):
    """What the store has: enough to tell two states of it apart."""

    uid: str
    version: int
    state: bytes
    agents: tuple[tuple[str, str, int, bytes], ...]
    tokens: tuple[tuple[str, bytes, int], ...]
    apart: tuple[tuple[str], ...]  # agents in quarantine
    groups: bytes  # rewards by group
    epoch: int
    counts: tuple[tuple[str, int, int, int], ...]  # of each agent


class Saved(NamedTuple):
    """A backup, and the accounting when it was made."""

    path: Path
    rows: Rows | None
    merged: frozenset[Any]
    tokens: dict[str, str]
    variant: int
    fates: dict[Key, int | None]


class Template(NamedTuple):
    """The initial state of histories, made once to save time."""

    store: Files  # a server's directory with a model, as a server that was stopped leaves it
    tokens: dict[str, str]  # of the agents, which are enrolled
    journal: Files  # a state directory as a first start leaves it that is killed when its journal is made


class World:
    """The fleet of one history."""

    def __init__(
        self,
        loop: Loop,
        *,
        n_agents: int,
        options: list[Options],
        cuts_power: bool,
        template: Template,
        off: frozenset[str],
        is_fresh: bool = True,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fb-crash-", dir=SHM if SHM.is_dir() else None))
        self.n_places = 0
        self.n_steps = 0
        self.cuts_power = cuts_power
        self.off = off  # kinds of faults that are left out
        self.accounting = Accounting(Server.blocks)
        self.bodies: list[tuple[str, bytes]] = []  # copies of messages that the network may deliver again
        self.replica = 0
        self.acting: Device | None = None  # the device that worked last
        self.server_fault: Fault | None = None
        self.server = Server(self.folder, loop)
        self.server.replace(template.store)
        self._seen: tuple[Any, int, Rows | None] = (None, 0, None)  # connection, version of its data, rows
        self.variant = 0
        self.backups: list[Saved] = []
        self.tokens = dict(template.tokens)
        self.is_revoked: set[str] = set()
        self.went_back = False  # a backup was restored, or the model created again: agents may be ahead
        self.prior = np.frombuffer(settings_of(0).prior(), dtype="<f8")
        self.server.start()
        files = {} if is_fresh else template.journal
        names = NAMES[:n_agents]
        self.devices = [Device(self, name, self.new_place(files), options[n]) for n, name in enumerate(names)]
        for device in self.devices:
            self.start(device)

    def close(self) -> None:
        """Clean up."""
        for device in self.devices:
            device.let_go()
        self.server.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_place(self, files: Files) -> Path:
        """A new directory."""
        self.n_places += 1
        return write_tree(files, self.folder / f"agent-{self.n_places}")

    def count_steps(self) -> int:
        """Durable steps, statements and messages so far."""
        devices = sum(device.process.n_steps for device in self.devices)
        return self.n_steps + devices + self.server.n_steps + self.server.process.n_steps

    def enroll(self, name: str) -> None:
        """A token for an agent, new or not."""
        self.tokens[name] = self.server.manage(lambda parts: operations.add_agent(parts, MODEL, name, renew=True), None)
        self.is_revoked.discard(name)

    # -- the network

    def travels(self, device: Device, body: bytes, *, is_copied: bool) -> None:
        """Record an upload that is sent."""
        request = codec.decode_request(body)
        if request.incarnation != device.memory.incarnation:
            self._carry(device, request.incarnation)
        memory = device.memory
        may_differ = device.is_copied or device.is_damaged
        key = (request.agent, request.incarnation, request.sequence, request.digest)
        if key not in memory.sent:
            self.sort_dropped(device)
            self._report(device, key, request.dropped or 0)
        memory.line = self.accounting.note(memory.line, request, sent=memory.sent, may_differ=may_differ)
        if is_copied:
            self.bodies.append((device.name, body))

    def sort_dropped(self, device: Device) -> None:
        """Bring the expected state up to date with observations that the agent dropped when it heard of a restart.

        The agent's count tells how many; its sums must be those of the others. What a kill or a power cut reverted
        is unsent again.
        """
        agent, memory = device.process.agent.agent, device.memory
        flight, n_dropped = agent.in_flight, agent.world.n_dropped
        n_first = 0
        if flight is not None:
            if agent.sequence < flight.sequence:  # interrupted: the next call completes it
                n_dropped = 0
            if key_of(flight) not in memory.sent:
                self._drop(device, 0, flight.dropped)  # before it was made; the others after that
                n_first, n_dropped = flight.stats.n_obs, n_dropped + flight.dropped
        n_more = self._drop(device, n_first, n_dropped)
        while n_more < 0:
            number = memory.dropped.pop()
            memory.line = sorted([*memory.line, number])
            n_more += self.accounting.weights[number]
        memory.epoch = agent.world.epoch

    def _drop(self, device: Device, n_first: int, n_dropped: int) -> int:
        """Move rows of the line beyond the first few to those that are dropped; how many fewer should be dropped."""
        memory, accounting = device.memory, self.accounting
        n_more = n_dropped - accounting.weight_of(memory.dropped)
        if n_more > 0:
            epoch = device.process.agent.agent.world.epoch
            require(epoch != memory.epoch, f"{device.name} dropped {n_more} rows without a restart")
            begin = accounting.first(memory.line, n_first)
            end = begin + accounting.first(memory.line[begin:], n_more)
            memory.dropped += memory.line[begin:end]
            memory.line = memory.line[:begin] + memory.line[end:]
        return min(n_more, 0)

    def _report(self, device: Device, key: Key, n_dropped: int) -> None:
        """An upload reports observations that were dropped before it was made."""
        memory = device.memory
        n = self.accounting.first(memory.dropped, n_dropped)
        if key in self.accounting.uploads:  # of a copy of this agent
            self.accounting.excused |= set(memory.dropped[:n])
        else:
            self.accounting.dropped[key] = tuple(memory.dropped[:n])
        memory.dropped = memory.dropped[n:]

    def deliver(self, messages: list[tuple[str, bytes]]) -> list[Reply] | None:
        """One batch at the server; None if it was killed. Afterwards the accounting has what was merged."""
        if not self.server.is_up:
            return None
        fault, self.server_fault = self.server_fault, None
        bodies = [(self.tokens.get(name, "no-token-0123456789"), body) for name, body in messages]
        before, merged = self.rows(), set(self.accounting.merged)
        try:
            replies: list[Reply] | None = self.server.exchange(bodies, self.replica, fault)
        except Killed:
            replies = None
            self.up()
        for reply in replies or []:
            require(reply.status != 500, f"the server failed with an unnamed error: {reply.body!r}")
        after = self.look()
        if before is not None and after is not None:
            for _, body in messages:
                self._check_fate(codec.decode_request(body), merged, before.epoch, after.epoch)
        return replies

    def _check_fate(self, request: codec.SyncRequest, merged: set[Key], before: int, after: int) -> None:
        """An upload that was counted now is discarded if it is of an earlier epoch, or brings an alarm."""
        key, epoch = (request.agent, request.incarnation, request.sequence, request.digest), request.epoch or 0
        if key in self.accounting.merged - merged:
            is_discarded = self.accounting.fates[key] is None
            what = f"upload {key[:3]} of epoch {epoch} came in epoch {before} to {after}, discarded: {is_discarded}"
            require(is_discarded if epoch < before else not is_discarded or bool(request.alarm) or epoch < after, what)

    # -- the server

    def up(self) -> None:
        """Start the server on its directory; only an empty store gets an admin token."""
        if not self.server.is_up:
            token = self.server.start()
            require(token is None, "the server started on an empty store, and printed a new admin token")

    def rows(self) -> Rows | None:
        """What the store has now; None if it has no model."""
        with running(None):
            connection = self.server.reader()
            version = connection.execute("PRAGMA data_version").fetchone()[0]  # others' commits change it
            if self._seen[:2] != (connection, version):
                self._seen = (connection, version, self._read_rows(connection))
            return self._seen[2]

    def _read_rows(self, connection: sqlite3.Connection) -> Rows | None:
        query = "SELECT uid, version, state, reward_groups, epoch FROM models WHERE name = ?"
        found = connection.execute(query, (MODEL,)).fetchone()
        if found is None:
            return None
        agents, tokens, apart, counts = (tuple(connection.execute(query)) for query in (ROWS, TOKENS, APART, COUNTS))
        return Rows(*found[:3], agents, tokens, apart, *found[3:], counts)

    def look(self) -> Rows | None:
        """Read the server's ledger into the accounting."""
        rows = self.rows()
        counts = {} if rows is None else {name: Counts(*found) for name, *found in rows.counts}
        for key in () if rows is None else rows.agents:
            if key[2] and key not in self.accounting.merged:
                require(key in self.accounting.uploads, f"the server has merged {key[:3]}, which was never sent")
                self.accounting.merge(key, counts[key[0]])
        return rows

    # -- a device at work

    def start(self, device: Device, fault: Fault | None = None) -> None:
        """Start a process on the device's directory, with a fault; then another one."""
        # A decision for the check would change the ring, and what a kill left there.
        self.acting, device.has_worked = None, True
        device.process.arm(fault)
        try:
            self._open(device)
        except Killed:
            assert device.process.left is not None
            device.move(device.process.left)
            self._open(device)
        except JournalFailed as error:
            require(device.process.hit or fault is not None, f"{device.name} cannot be opened: {error}")
            device.process.arm(None)
            self._open(device)
        device.process.arm(None)
        self._resumed(device)
        if device.agent is not None:
            if device.has_failed_disk:
                device.memory.epoch = -1  # a snapshot was not stored: it may hear of a restart once more
            self.sort_dropped(device)

    def _open(self, device: Device) -> None:
        """Open; an operator reacts to errors."""
        device.agent = None
        try:
            device.open()
        except (StateMismatch, Refused) as error:
            self._justify(device, error)
            device.wire.is_cut = True  # it continues without a server until an operator acts
            try:
                device.open()
            except NotReachable:
                return  # without saved state it starts when the server is reachable
            finally:
                device.wire.is_cut = False
        except NotReachable:
            require(device.memory.n_rounds == 0, "an agent with saved state did not start without the server")
        except FormatError as error:
            require(device.is_damaged, f"the state cannot be opened any more: {error}")
            self.begin_anew(device)

    def _justify(self, device: Device, error: FedbanditError) -> None:
        """Whether an earlier step explains the rejection."""
        reason = error.reason if isinstance(error, Refused) else error.code
        name, memory = device.name, device.memory
        explained = {
            "sequence_gap": self.went_back or bool(self.accounting.forgotten) or device.is_copied,
            "stale_incarnation": bool(self.accounting.forgotten) or device.is_copied or self.went_back,
            "not_merged": True,
            # It rejoined, and another backup was restored that has the data it carried over.
            "sequence_conflict": device.is_copied or device.is_damaged or (self.went_back and bool(memory.previous)),
            "state_mismatch": self.went_back
            or bool(self.accounting.forgotten)
            or device.is_copied
            or device.is_damaged,
            "settings_changed": self.went_back,
            "unauthenticated": name in self.is_revoked or self.went_back,
            "forbidden": self.went_back,
            "unknown_model": self.rows() is None,
            "implausible_upload": self.variant == 1,
        }
        require(explained.get(reason, False), f"{name} was refused without a cause: {error!r}")

    def _resumed(self, device: Device) -> None:
        """After a start: the agent has all that its directory had."""
        if device.agent is None:
            return
        memory, durable = device.memory, device.durable
        if device.is_damaged and memory.n_rounds == 0 and not memory.waiting and not memory.settled:
            memory.incarnation = ""  # nothing was stored: it may start a new incarnation
        if memory.incarnation and durable.agent.incarnation != memory.incarnation:
            self._carry(device, durable.agent.incarnation)
        memory.incarnation = durable.agent.incarnation
        if memory.settings not in ("", durable.settings_id):
            memory.epoch = -1  # of the deleted model
            # What was answered belongs to another model: it is not kept for a restored server any more.
            theirs = (
                self.accounting.ids_of(key)
                for key in self.accounting.uploads
                if key[:2] == (device.name, durable.agent.incarnation)
            )
            self.accounting.excused.update(number for ids in theirs for number in ids)
        memory.settings = durable.settings_id

    def _carry(self, device: Device, incarnation: str) -> None:
        """A new incarnation: carried-over data are unsent again."""
        memory = device.memory
        if memory.incarnation and incarnation == memory.previous:  # a power cut reverted the new one
            memory.line = [number for number in memory.line if number not in memory.carried]
            memory.dropped = [number for number in memory.dropped if number not in memory.carried]
            memory.previous, memory.carried = "", frozenset()
        elif memory.incarnation:
            require(incarnation in Session.carried, f"{device.name} started a new incarnation without a request")
            taken, accounting = Session.carried[incarnation], self.accounting
            ids = [number for key, is_now in taken if is_now for number in accounting.uploads.get(key, ())]
            old = [number for key, is_now in taken if not is_now for number in accounting.uploads.get(key, ())]
            old += [number for key, _ in taken for number in accounting.dropped.get(key, ())]
            memory.line, memory.dropped = ids + memory.line, sorted(old + memory.dropped)
            memory.previous, memory.carried = memory.incarnation, frozenset(ids + old)
            self.drop_copies(device.name)
        memory.incarnation = incarnation

    def drop_copies(self, name: str) -> None:
        """Drop copies of messages of an earlier incarnation; see `OFF`."""
        if "stale copies" in self.off:
            self.bodies = [(sender, body) for sender, body in self.bodies if sender != name]

    def do(
        self,
        device: Device,
        work: Callable[[LiveAgent], Any],
        *,
        fault: Fault | None = None,
        net: tuple[str, ...] = (),
        new: Sequence[int] = (),
    ) -> Any:
        """Let an application call its agent; what it returned, or how it ended: an error, `Killed` or `Interrupted`.

        `new` are the observations of the call; the accounting has them afterwards exactly if the agent does.
        """
        if device.agent is None:
            self.start(device)
            if device.agent is None:
                for number in new:
                    self.accounting.cancel(number)
                return NOT_STARTED
        self.acting, device.has_worked = device, True
        before = device.memory.copy()
        device.memory.line.extend(new)
        Session.not_kept.clear()
        Session.clock.advance(400.0)
        device.wire.faults = list(net)
        ending: Any = None
        try:
            ending = self._call(device, work, fault)
        finally:
            device.wire.faults = []
        self._settle_books(device, before, new, ending)
        return ending

    def _call(self, device: Device, work: Callable[[LiveAgent], Any], fault: Fault | None) -> Any:
        device.has_failed_disk |= fault is not None and fault.mode not in (*KILLS, "interrupt")
        device.process.arm(fault)
        try:
            with running(device.process):
                return work(device.agent)  # type: ignore[arg-type]
        except Killed as killed:
            assert device.process.left is not None
            device.move(device.process.left)
            self.start(device)
            return killed
        except Interrupted as interrupted:
            return Interrupted(*interrupted.args)  # without its traceback, which holds on to frames
        except JournalFailed as error:
            require(device.process.hit or fault is not None, f"the journal failed without a cause: {error}")
            return error
        except (Refused, StateMismatch) as error:
            self._justify(device, error)
            return error
        except FedbanditError as error:
            return error
        except Failure:
            raise
        except Exception as error:
            raise Failure(f"an unnamed error: {error!r}") from error

    def _settle_books(self, device: Device, before: Memory, new: Sequence[int], ending: Any) -> None:
        if device.agent is None:
            return
        memory, weights = device.memory, self.accounting.weights
        if device.durable.agent.incarnation != memory.incarnation:
            self._carry(device, device.durable.agent.incarnation)
        n_new, n_all = device.durable.agent.n_rounds - before.n_rounds, sum(weights[number] for number in new)
        whole = not isinstance(ending, BaseException)
        what = f"{device.name} counts {n_new} new observations after a call with {n_all} that ended with {ending!r}"
        require(n_new == n_all if whole else 0 <= n_new <= n_all, what)
        if isinstance(ending, FedbanditError) and len(new) == 1:
            require(n_new == 0, f"a call that raised {ending!r} has recorded {n_new} observations")
        n_booked = self.accounting.first(list(new), n_new)
        for number in new[n_booked:]:
            require(number in memory.line, f"observation {number} was sent, and its agent does not have it")
            memory.line.remove(number)
            self.accounting.cancel(number)
        memory.n_rounds = device.durable.agent.n_rounds
        self.sort_dropped(device)

    def begin_anew(self, device: Device) -> None:
        """Use another directory, without the data of the old one: the operator's last resort."""
        self.accounting.excused |= device.held | device.memory.unsent
        self.drop_copies(device.name)
        device.move({})
        device.memory = Memory()
        device.is_copied = device.is_damaged = False
        device.kept_aside = None
        self.start(device)

    # -- invariants

    def check(self) -> None:
        """After every step."""
        self.up()
        rows = self.look()
        if rows is not None:
            self.accounting.versions.add((rows.version, digest_of(rows.state)))
            apart = frozenset(name for (name,) in rows.apart)
            groups = GroupSums.from_bytes(rows.groups)
            self.accounting.check_server(np.frombuffer(rows.state, dtype="<f8"), self.prior, groups, apart, rows.epoch)
            for name, *counts, _ in rows.counts:
                expected = self.accounting.counts_of(name)
                require(
                    tuple(counts) == expected,
                    f"the server counts {counts} of {name}, expected {expected}: merged, discarded",
                )
        for device in self.devices:
            if device.agent is not None and (device.has_worked or device.is_copied):
                self.check_device(device, decides=device is self.acting)
                device.has_worked = False
        self.acting = None
        self.check_nothing_is_lost()

    def check_nothing_is_lost(self) -> None:
        """Each observation is in the server or with an agent, unless its loss is explained."""
        held = set().union(*(device.held for device in self.devices)) | set(self.accounting.merged_ids())
        lost = set(range(len(self.accounting.values))) - held - self.accounting.excused
        require(not lost, f"observations {sorted(lost)} are neither in the server nor with an agent")

    def check_device(self, device: Device, *, decides: bool = True) -> None:
        """The agent's own sums, its decisions, its locks, and that it can decide."""
        durable, memory, accounting = device.durable, device.memory, self.accounting
        for name, lock in (
            ("journal", durable.journal._mutex),
            ("database", durable.journal._database),
            ("decisions", durable._issuing),
            ("link", device.agent._client._one),
        ):  # type: ignore[union-attr]
            require(not lock.locked(), f"{device.name}: the lock of the {name} is held after the call")
        require(not durable.agent._lock._is_owned(), f"{device.name}: the lock of the agent is held after the call")
        gathered, held = numbers_of(durable.agent.local), memory.unsent
        if durable.agent.in_flight is not None:
            if durable.agent.sequence < durable.agent.in_flight.sequence:  # interrupted: the next call completes it
                gathered = accounting.sum_of(())
            key = key_of(durable.agent.in_flight)
            if key in memory.sent:
                held |= set(accounting.ids_of(key))
            else:
                gathered = gathered + numbers_of(durable.agent.in_flight.stats)
        if not np.array_equal(gathered, accounting.sum_of(memory.line)):
            raise Failure(f"{device.name} does not hold what it observed: {gathered - accounting.sum_of(memory.line)}")
        kept: set[int] = set()
        uploads = durable.kept_after(0)
        # Uploads answered since the last snapshot displace older ones with the next.
        newest = max((upload.sequence for upload in (*uploads, *durable._answered)), default=0)
        for upload in uploads:
            if upload.sequence <= newest - device.options.n_kept:
                continue
            kept |= set(accounting.ids_of(key_of(upload)))
        device.held, device.kept = held | kept, kept - held
        require(
            durable.agent.n_rounds == memory.n_rounds,
            f"{device.name} counts {durable.agent.n_rounds} rounds, not {memory.n_rounds}",
        )
        if durable.agent.model_version > 0:
            mine = (durable.agent.model_version, digest_of(packed_bytes(durable.agent.model.stats)))
            require(mine in accounting.versions, f"{device.name} decides on a model that no server ever had")
        # A copy of the state may have sent another upload under the same number; a conflict follows.
        if isinstance(durable.agent, PersonalAgent) and not device.is_copied:
            self.check_own_sums(device, durable.agent)
        self.check_decisions(device, decides=decides)

    def check_own_sums(self, device: Device, agent: PersonalAgent) -> None:
        """The model holds what the agent takes out of it, and own observations beyond that are in no other place."""
        ground = agent._ground
        model, held, own = ground.model.stats, ground.own.merged, agent.own
        rest = model.Sigma - held.Sigma - agent.rule.lam * np.eye(model.Sigma.shape[-1])
        scale = 1.0 + float(np.abs(model.Sigma).max())
        require(
            held.n_obs <= model.n_obs and np.linalg.eigvalsh(rest).min() >= -1e-9 * scale,
            f"{device.name} takes out of version {ground.version} {held.n_obs} observations that it does not hold",
        )
        require(0 <= held.n_obs <= own.n_obs <= agent.n_rounds, f"{device.name} has {own.n_obs} own observations")

    def check_decisions(self, device: Device, *, decides: bool = True) -> None:
        """Pending decisions are as expected, and the agent can decide (if idle, only scores are computed)."""
        memory, agent = device.memory, device.agent
        assert agent is not None
        waiting = {decision.id for decision in agent.pending}
        missing = memory.waiting.keys() - waiting - memory.weak
        require(not missing, f"{device.name} has forgotten decisions {sorted(missing)}")
        again = [name for name in waiting & memory.settled.keys() if memory.settled[name] not in self.accounting.void]
        require(not again, f"{device.name} has pending decisions that have their reward: {sorted(again)}")
        try:
            if decides:
                agent.expire(agent.choose(np.eye(DIM * Server.blocks)))
            else:
                agent.scores(np.eye(DIM * Server.blocks))
        except Exception as error:
            raise Failure(f"{device.name} cannot decide: {error!r}") from error
