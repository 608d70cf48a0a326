"""An agent process: it decides, observes, flushes, closes and reconnects, and keeps independent records.

python -m tests.chaos.agent URL TOKEN NAME FOLDER STATE_DIR PACE_S MAX_PENDING

An agent with a large MAX_PENDING keeps thousands of decisions pending: far more than the journal's ring holds.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fedbandit as fb
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.messages import packed_bytes
from fedbandit.algorithms.personal import PersonalAgent
from fedbandit.errors import AlreadyObserved, FedbanditError, JournalFailed, NotReachable, UnknownDecision
from tests.chaos.agent_record import DIM, MODEL, AgentRecord, RecordWriter
from tests.chaos.decision_record import DecisionRecord, number_of
from tests.chaos.syscall_kills import MANY, VARIABLE, arm, n_left

TIMEOUT_S = 3.0
CONNECT_S = 2 * TIMEOUT_S  # two requests
CLOSE_S = 5.0
NOTED_S = 0.5  # calls with a larger overrun are recorded
FEW_PENDING, MANY_PENDING = 8, 4000  # the ring of the journal has 1 024 slots
RING = 1024
N_CALLS_WITHOUT_MOVE = 10  # that change the disk, in a `choose` that moves nothing
VIOLATED = 4


class ErrorCounter(logging.Handler):
    """Counts errors that the agent logs: on a full disk `choose` works and logs that the decision was not stored."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.n = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.n += 1


class AgentProgram:
    """The program of one agent process; the next process resumes from the records."""

    model = MODEL

    def __init__(
        self, url: str, token: str, name: str, folder: Path, state_dir: Path, pace_s: float, max_pending: int
    ) -> None:
        self.url, self.token, self.name, self.pace_s = url, token, name, pace_s
        self.folder, self.max_pending = folder, max_pending
        self.rng = random.Random(os.urandom(8))
        self.ended = False
        self.errors_logged = ErrorCounter()
        logging.getLogger("fedbandit.sdk").addHandler(self.errors_logged)
        self.open_records(name, state_dir)

    def open_records(self, name: str, state_dir: Path) -> None:
        """Open or continue the record files of this name."""
        path = self.folder / f"{name}.record"
        if hasattr(self, "record"):  # of the generation before: descriptors are counted
            self.record.close()
            self.decisions.close()
        self.before = AgentRecord.tail(path)
        self.record = RecordWriter(path)
        self.decisions = DecisionRecord(self.folder / f"{name}.decisions")
        self.state_dir, self.record_path = state_dir, path
        self.pending: dict[str, Decision] = {}
        self.version = -1

    # -- connections

    def run(self) -> None:
        """Run until the command to finish."""
        while not self.ended:
            self.connection()

    def connection(self) -> None:
        """One connection, from `connect` to `close`."""
        agent = self.connect()
        self.resume(agent)
        self.reward_first(agent)
        self.session(agent)
        try:
            self.timed("close", CLOSE_S, agent.close)
        except JournalFailed:  # a full disk: an older snapshot is kept, and nothing is lost
            self.record.write(event="close_without_disk")
        self.before = AgentRecord.tail(self.record_path)

    def connect(self) -> fb.LiveAgent:
        while True:
            try:
                return self.timed("connect", CONNECT_S, self.connect_once)
            except (NotReachable, JournalFailed) as error:
                resumable = (self.state_dir / "journal.db").exists() and self.before.n_resumed > 0
                kind = "connect_without_server" if isinstance(error, NotReachable) else "connect_without_disk"
                self.record.write(event=kind)
                if resumable and isinstance(error, NotReachable):
                    self.violate(f"an agent with a state_dir did not start without its server: {error}")
                time.sleep(0.3)

    def connect_once(self) -> fb.LiveAgent:
        return fb.connect(self.url, model=self.model, token=self.token, state_dir=self.state_dir, timeout_s=TIMEOUT_S)

    def resume(self, agent: fb.LiveAgent) -> None:
        """Confirmed observations are there; an interrupted one may be, and its decision is pending exactly if not."""
        rounds, before = agent.status().rounds, self.before
        self.record.write(resumed=rounds, pid=os.getpid())
        if not before.n_done <= rounds <= max(before.n_tried, before.n_done):
            self.violate(f"resumed at {rounds} with {before.n_done} confirmed and {before.n_tried} tried")
        self.pending = {decision.id: decision for decision in agent.pending}
        self.blocks = agent._durable.agent.blocks
        self.n = rounds
        self.check_last_decision(before)
        self.check_decisions(agent)
        self.check_own_sums(agent, rounds)
        # `settle` records one reward after the other: each is written to the records like any other.
        agent.pending._observe = lambda decision, reward: self.record_reward(agent, decision, int(reward))

    def check_own_sums(self, agent: fb.LiveAgent, rounds: int) -> None:
        """An agent with a parameter of its own has all that it observed; its model holds what it takes out."""
        core = agent._durable.agent
        if not isinstance(core, PersonalAgent):
            return
        with core._lock:
            own, held, model = core.own, core.held, core.model.stats
        rest = np.linalg.eigvalsh(model.Sigma - held.Sigma).min()
        if own.n_obs != rounds or not held.n_obs <= min(own.n_obs, model.n_obs) or rest < 0.0:
            self.violate(
                f"{own.n_obs} own observations after {rounds}, {held.n_obs} of {model.n_obs} in the model, {rest}"
            )

    def reward_first(self, agent: fb.LiveAgent) -> None:
        """Observe some rewards right after a start, before any decision; not for agents with few decisions."""
        n = min(self.rng.choice([0, 30]), len(self.pending))
        try:
            for each in self.rng.sample(sorted(self.pending), n if self.max_pending > FEW_PENDING else 0):
                self.record_reward(agent, self.pending[each], self.rng.randint(-3, 3))
        except JournalFailed:
            self.record.write(event="journal_failed")

    def check_last_decision(self, before: AgentRecord) -> None:
        last, is_booked = before.last_decision, self.n >= before.n_tried
        is_pending = last in self.pending
        if last is None or is_pending != is_booked or (last in before.not_kept and not is_pending):
            return
        self.violate(f"decision {last} pending: {is_pending}, although {self.n} of {before.n_tried} are recorded")

    def check_decisions(self, agent: fb.LiveAgent) -> None:
        """Pending decisions are those of the record, and a second reward is refused."""
        found = {number_of(decision) for decision in self.pending.values()}
        for words in self.decisions.compare(found):
            self.violate(words)
        for booked in self.decisions.recent:
            try:
                agent.observe(Decision.from_dict(booked), 1.0)
            except (AlreadyObserved, UnknownDecision):
                continue
            self.violate(f"a second reward was recorded for decision {booked['id']}")
        self.decisions.begin_anew(found)

    def session(self, agent: fb.LiveAgent) -> None:
        """Work until the process is to end, or until a random reconnect."""
        while not self.is_over():
            command = self.command()
            if command.get("finish"):
                self.ended = True
                return
            if command.get("checkpoint"):
                self.checkpoint(agent, command["checkpoint"])
            self.step(agent)
            if self.rng.random() < 0.002:
                self.record.write(event="reconnect")
                return
            time.sleep(self.rng.expovariate(1.0 / self.pace_s))

    def is_over(self) -> bool:
        """Whether this connection must end."""
        return False

    def step(self, agent: fb.LiveAgent) -> None:
        choice = self.rng.random()
        try:
            if self.max_pending > FEW_PENDING and choice > 0.9:
                self.use_many_pending(agent, choice)
            elif choice < 0.05:
                self.learn_batch(agent)
            elif choice < 0.07:
                self.flush(agent)
            elif choice < 0.08:
                self.refresh(agent)
            else:
                self.learn_one(agent)
        except JournalFailed:
            self.record.write(event="journal_failed")
            if agent.status().rounds != self.n:
                self.violate(f"observe failed, yet {agent.status().rounds} rounds instead of {self.n}")
            time.sleep(0.1)
        if self.must_be_killed_in_a_burst():
            self.kill_in_a_burst(agent)
        self.note_model(agent)

    def choose(self, agent: fb.LiveAgent, n: int) -> None:
        """Make n decisions."""
        self.decisions.write(making=n)
        made: list[Decision] = []
        for _ in range(n):
            before = self.errors_logged.n
            decision = agent.choose(np.array([self.row() for _ in range(3)]))
            self.pending[decision.id] = decision
            if self.errors_logged.n > before:
                self.record.write(not_kept=decision.id)
                self.decisions.made([decision], kept=False)
                self.decisions.write(making=n)
            else:
                made.append(decision)
        self.decisions.made(made)

    def learn_one(self, agent: fb.LiveAgent) -> None:
        self.timed("choose", 0.0, lambda: self.choose(agent, 1))
        if len(self.pending) < self.max_pending and self.rng.random() < 0.3:
            return  # its reward comes later, perhaps in another process
        decision = self.pending[self.rng.choice(list(self.pending))]
        reward = self.rng.randint(-3, 3)
        self.timed("observe", 0.0, lambda: self.record_reward(agent, decision, reward))

    def record_reward(self, agent: fb.LiveAgent, decision: Decision, reward: int) -> None:
        """Observe a decision; both records are written before and after."""
        self.decisions.write(booking=number_of(decision))
        try:
            self.attempt([self.row_in(agent, decision)], [reward], decision.id, lambda: agent.observe(decision, reward))
        except JournalFailed:
            self.decisions.write(not_booked=number_of(decision))
            raise
        self.decisions.booked(decision)
        del self.pending[decision.id]

    def learn_batch(self, agent: fb.LiveAgent) -> None:
        rows = [self.row() for _ in range(3)]
        rewards = [self.rng.randint(-3, 3) for _ in rows]
        self.attempt(rows, rewards, None, lambda: agent.partial_fit(rows, rewards))

    def attempt(self, rows: list[list[float]], rewards: list[int], decision: str | None, learn: Any) -> None:
        self.record.write(**{"try": self.n, "rows": rows, "rewards": rewards, "decision": decision})
        learn()
        self.n += len(rows)
        self.record.write(done=self.n)

    def flush(self, agent: fb.LiveAgent) -> None:
        limit_s = self.rng.choice([0.2, 2.0])
        try:
            self.timed("flush", limit_s, lambda: agent.flush(limit_s))
            self.record.write(event="flushed")
        except NotReachable:
            self.record.write(event="not_reachable")

    def refresh(self, agent: fb.LiveAgent) -> None:
        try:
            self.timed("refresh", 1.0, lambda: agent.refresh(1.0))
            self.record.write(event="refreshed")
        except NotReachable:
            self.record.write(event="not_reachable")

    def timed(self, call: str, limit_s: float, do: Callable[[], Any]) -> Any:
        """Run a call and record an overrun; the harness subtracts pauses of the process."""
        begun = time.monotonic()
        try:
            return do()
        finally:
            ended = time.monotonic()
            if ended - begun > limit_s + NOTED_S:
                self.record.write(call=call, limit=limit_s, took=round(ended - begun, 3), ended=ended)

    # -- thousands of pending decisions

    def use_many_pending(self, agent: fb.LiveAgent, choice: float) -> None:
        older_than_s = self.rng.choice([0.0, 2.0, 10.0, 30.0])
        if len(self.pending) < self.max_pending and choice < 0.98:
            self.choose(agent, self.rng.randint(100, 1500))
        elif choice < 0.99:
            self.settle(agent, older_than_s)
        else:
            self.give_up(agent, older_than_s)
        if len(agent.pending) != len(self.pending):
            self.violate(f"{len(agent.pending)} decisions are pending, expected {len(self.pending)}")

    def settle(self, agent: fb.LiveAgent, older_than_s: float) -> None:
        """Settle old decisions with a default reward."""
        before = len(self.pending)
        n = agent.pending.settle(self.rng.randint(-3, 3), older_than_s=older_than_s)
        if n != before - len(self.pending):
            self.violate(f"settle recorded {before - len(self.pending)} decisions and returned {n}")
        self.record.write(event="settled")

    def give_up(self, agent: fb.LiveAgent, older_than_s: float) -> None:
        """Expire old decisions."""
        self.decisions.write(giving_up=True)
        gone: set[str] = set()
        try:
            n = agent.pending.expire(older_than_s=older_than_s)
            gone = self.pending.keys() - {decision.id for decision in agent.pending}
            if n != len(gone):
                self.violate(f"expire removed {len(gone)} decisions and returned {n}")
        finally:  # where the disk was full, all of them are still pending
            self.decisions.write(given_up=[number_of(self.pending.pop(each)) for each in gone])
        self.record.write(event="expired")

    def must_be_killed_in_a_burst(self) -> bool:
        return self.max_pending > FEW_PENDING and (self.folder / f"{self.name}.burst").exists()

    def kill_in_a_burst(self, agent: fb.LiveAgent) -> None:
        """Fill the ring, and be killed while its decisions move to the journal's table, often near the end of that.

        SIGALRM without a handler ends a process as SIGKILL does, and the harness recognises it as intended.
        """
        (self.folder / f"{self.name}.burst").unlink(missing_ok=True)
        control = Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None
        if control is None:
            return
        self.record.write(event="burst_kill")
        n_calls = 0
        for _ in range(2 * RING):
            arm(control, MANY, signal.SIGALRM)
            self.choose(agent, 1)
            n_calls = MANY - n_left(control)
            if n_calls > N_CALLS_WITHOUT_MOVE:  # the decisions moved
                break
        self.choose(agent, RING - 1)  # the next one moves them
        near_end = n_calls + self.rng.randint(-2, 2)  # the number of calls varies
        arm(control, self.rng.choice([near_end, near_end, self.rng.randint(1, n_calls + 10)]), signal.SIGALRM)
        self.choose(agent, 1)

    # -- reports to the harness

    def checkpoint(self, agent: fb.LiveAgent, number: int) -> None:
        """Flush, write a report, and wait."""
        path = self.folder / "reports" / f"{number}-{self.name}.json"
        while not path.exists() and not self.is_over():
            try:
                self.timed("flush", 20.0, lambda: agent.flush(20.0))
                self.note_model(agent)
                report = {**agent.status().to_dict(), "n": self.n, "expected_pending": len(self.pending)}
                report["dropped"] = agent._durable.agent.world.n_dropped
                draft = path.with_suffix(f".{os.getpid()}")
                draft.write_text(json.dumps(report))
                draft.rename(path)
            except (NotReachable, JournalFailed) as error:
                self.record.write(event=f"checkpoint_waits_{error.code}")
                time.sleep(0.2)
        while path.exists() and self.command().get("checkpoint") == number:
            time.sleep(0.05)

    def note_model(self, agent: fb.LiveAgent) -> None:
        """Record every model that decisions use, to be compared with those that the server had."""
        durable = agent._durable
        with durable.agent._lock:
            version, stats = durable.agent.model_version, durable.agent.model.stats
        if version != self.version:
            digest = hashlib.sha256(packed_bytes(stats)).digest()[:16].hex()
            self.record.write(model=version, digest=digest)
            self.version = version

    def command(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "command.json").read_text())
        except FileNotFoundError:
            found = {}
        return found

    def row(self) -> list[float]:
        row, p = [0.0] * DIM, DIM // self.blocks
        begin = p * self.rng.randrange(self.blocks)
        row[begin : begin + p] = [float(self.rng.randint(-3, 3)) for _ in range(p)]
        return row

    def row_in(self, agent: fb.LiveAgent, decision: Decision) -> list[float]:
        """The whole row of a decision, of which only the part in its block may be kept."""
        row, begin = [0.0] * DIM, len(decision.x) * (decision.block or 0) if len(decision.x) < DIM else 0
        row[begin : begin + len(decision.x)] = decision.x.tolist()
        return row

    def violate(self, words: str) -> None:
        self.record.write(violation=words)
        sys.exit(VIOLATED)


def run_agent(kind: type[AgentProgram], url: str, token: str, name: str, folder: str, *rest: str) -> None:
    """Run an agent of this kind with the arguments of the command line."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # urllib3 warns with a traceback about a reply truncated in its headers; the SDK logs it as well.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    state_dir, pace_s, max_pending = rest
    made = kind(url, token, name, Path(folder), Path(state_dir), float(pace_s), int(max_pending))
    try:
        made.run()
    except FedbanditError as error:  # named, but not expected here
        made.violate(f"{error.code}: {error}")


if __name__ == "__main__":
    run_agent(AgentProgram, *sys.argv[1:])
