"""An agent process of a fleet: it enrols itself or takes a slot, and gets part of its rewards from elsewhere.

python -m tests.chaos.fleet_agent URL "" NAME FOLDER STATE_DIR PACE_S MAX_PENDING

`pod` and `mover` have a directory of their own, which they enrol in, come back to, or leave for a fresh one; `worker`
and `shop` share slots with others of their kind, with tokens or enrolled.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedbandit as fb
from fedbandit.errors import (
    AlreadyObserved,
    DecisionError,
    InvalidInput,
    JournalFailed,
    NotReachable,
    Refused,
    StateDirInUse,
)
from tests.chaos.agent import CLOSE_S, TIMEOUT_S, VIOLATED, AgentProgram, run_agent
from tests.chaos.agent_record import RecordWriter
from tests.chaos.fleet_record import Book, Books, Listing
from tests.chaos.fleet_reporter import Offers
from tests.chaos.schedule import FLEET_KINDS
from tests.chaos.syscall_kills import VARIABLE, arm

CONNECT_S = 10 * TIMEOUT_S  # enrol, two starts, settings, model, rewards
SLOTS_S = 20.0  # to wait for a slot
MOST_CALLS = 60  # that change the disk, in an enrolment and a first start
ENDED = ("retired", "unauthenticated")  # also one that was folded


class Kind(NamedTuple):
    """How the processes of one kind come to their agents."""

    model: str
    n_slots: int = 0  # 0: a directory of its own
    enrols: bool = True
    default: int | None = None  # the application's own choice, for the control group
    gives_tokens: bool = False


KINDS = {
    "pod": Kind("pods", gives_tokens=True),
    "worker": Kind("pods", n_slots=4, enrols=False, gives_tokens=True),
    "shop": Kind("shop", n_slots=3, default=0),
    "mover": Kind("moving"),
}
assert KINDS.keys() == FLEET_KINDS.keys()


class FleetAgent(AgentProgram):
    """The records of observations are those of the agent that the process runs; its own file has events and calls."""

    def __init__(self, url: str, token: str, name: str, folder: Path, *rest: Any) -> None:
        self.kind = KINDS[name.partition("-")[0]]
        self.model = self.kind.model
        super().__init__(url, token, name, folder, *rest)
        self.fleet = folder / "fleet"
        self.books = Books(self.fleet, self.model, self.violate)
        self.offers = RecordWriter(self.fleet / f"{self.model}.offers")
        self.reports = RecordWriter(self.fleet / f"{self.model}+{name}.reports")
        self.others = Offers(Listing(self.fleet / f"{self.model}.offers"), self.rng)
        self.root = self.state_dir.parent
        self.reenrols = self.is_armed = False
        self.leaves = False  # this connection, for another directory or because its agent ended
        self.book: Book

    # -- directories

    def place(self) -> dict[str, Any]:
        """The number of the directory in use, and whether an agent ever began there."""
        path = self.folder / f"{self.name}.place"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"number": 0, "begun": False}
        return found

    def move(self, number: int, *, begun: bool) -> None:
        draft = self.folder / f"{self.name}.place.new"
        draft.write_text(json.dumps({"number": number, "begun": begun}))
        draft.rename(self.folder / f"{self.name}.place")

    def follow_flag(self) -> None:
        """The injector asks for a fresh directory, and perhaps for a kill during the enrolment there."""
        flag = self.folder / f"{self.name}.fresh"
        if not flag.exists():
            return
        is_killed = flag.read_text() == "kill"
        flag.unlink(missing_ok=True)
        if self.kind.n_slots == 0:
            self.record.write(event="fresh_directory")
            self.move(self.place()["number"] + 1, begun=False)
        if is_killed and VARIABLE in os.environ:
            self.record.write(event="kill_in_connect")
            arm(Path(os.environ[VARIABLE]), self.rng.randint(1, MOST_CALLS), signal.SIGALRM)
            self.is_armed = True

    def disarm(self) -> None:
        if VARIABLE in os.environ:
            arm(Path(os.environ[VARIABLE]), 0, signal.SIGALRM)
        self.is_armed = False

    def is_over(self) -> bool:
        return self.leaves or (self.folder / f"{self.name}.fresh").exists()

    # -- connections

    def connection(self) -> None:
        self.ended = self.ended or bool(self.command().get("finish"))
        if self.ended:
            return
        self.follow_flag()
        try:
            agent = self.connect()
        except Refused as error:
            self.refused(error)
            return
        if self.is_armed:
            self.record.write(event="survived_connect")
        self.disarm()  # also what a process before this one left armed
        self.reenrols = self.leaves = False
        self.book = self.books.of(agent._durable)
        self.pending = {}
        self.blocks, self.n = 1, 0
        self.check_own_sums(agent, agent._durable.agent.n_rounds)
        if self.kind.n_slots == 0:
            self.move(self.place()["number"], begun=True)
        self.session(agent)
        try:
            self.timed("close", CLOSE_S, agent.close)
        except JournalFailed:
            self.record.write(event="close_without_disk")

    def check_own_sums(self, agent: fb.LiveAgent, rounds: int) -> None:
        with agent._durable.agent._lock:  # rewards from elsewhere may be booked meanwhile
            super().check_own_sums(agent, agent._durable.agent.n_rounds)

    def connect(self) -> fb.LiveAgent:
        while True:
            try:
                limit_s = CONNECT_S + (SLOTS_S if self.kind.n_slots else 0.0)
                return self.timed("connect", limit_s, self.connect_once)
            except (NotReachable, JournalFailed, StateDirInUse) as error:
                self.record.write(event=f"connect_failed_{error.code}")
                if isinstance(error, NotReachable) and self.kind.n_slots == 0 and self.place()["begun"]:
                    self.violate(f"an agent with a state_dir did not start without its server: {error}")
                time.sleep(0.3)
                if self.command().get("finish"):
                    sys.exit(0)

    def connect_once(self) -> fb.LiveAgent:
        setup = json.loads((self.fleet / "setup.json").read_text())
        options: dict[str, Any] = {"model": self.model, "timeout_s": TIMEOUT_S, "check_after_s": 2.0}
        if self.kind.enrols:
            options |= {"enrol": setup["enrolments"][self.model], "reenrol": self.reenrols}
        if self.kind.n_slots == 0:
            state_dir = self.root / f"{self.name}+{self.place()['number']}"
            return fb.connect(self.url, state_dir=state_dir, **options)
        token = None if self.kind.enrols else lambda slot: setup["slots"][slot]
        kind = self.name.partition("-")[0]
        slots = fb.slots(self.root / f"{kind}-slots", n=self.kind.n_slots, token=token, wait_s=SLOTS_S)
        return fb.connect(self.url, state_dir=slots, **options)

    def refused(self, error: Refused) -> None:
        """The agent was retired, perhaps folded, or the enrolment has ended; all else is a violation."""
        self.record.write(event=f"refused_{error.code}")
        if not self.kind.enrols or error.code not in (*ENDED, "enrolment_ended"):
            self.violate(f"{error.code}: {error}")
        time.sleep(self.rng.uniform(0.1, 1.0))
        if error.code != "retired":
            return  # the next try reads the enrolment again
        choice = self.rng.random()
        if choice < 0.5 or self.kind.n_slots:
            self.reenrols = True
            if self.kind.n_slots == 0:
                self.move(self.place()["number"], begun=False)  # another agent begins there
        elif choice < 0.8:
            self.move(self.place()["number"] + 1, begun=False)
        # else it tries again: somebody may take the retirement back

    # -- work

    def session(self, agent: fb.LiveAgent) -> None:
        while not self.is_over():
            command = self.command()
            if command.get("finish"):
                self.ended = True
                return
            if command.get("quiet"):
                self.quiet(command["quiet"])
            elif command.get("checkpoint"):
                self.checkpoint(agent, command["checkpoint"])
            else:
                self.step(agent)
            if self.rng.random() < 0.002:
                self.record.write(event="reconnect")
                return
            time.sleep(self.rng.expovariate(1.0 / self.pace_s))

    def step(self, agent: fb.LiveAgent) -> None:
        try:
            self.act(agent, self.rng.random())
        except JournalFailed:
            self.record.write(event="journal_failed")
            time.sleep(0.1)
        except NotReachable:
            self.record.write(event="not_reachable")
        except DecisionError:  # a reward from elsewhere came first
            self.record.write(event="observed_already")
        except Refused as error:
            self.record.write(event=f"refused_{error.code}")
        if agent.status().last_error_code in ENDED:
            self.leaves = True

    def act(self, agent: fb.LiveAgent, choice: float) -> None:
        if choice < 0.04:
            rows = [self.row() for _ in range(3)]
            agent.partial_fit(rows, [float(self.rng.randint(-3, 3)) for _ in rows])
        elif choice < 0.06:
            limit_s = self.rng.choice([0.2, 2.0])
            self.timed("flush", limit_s, lambda: agent.flush(limit_s))
        elif choice < 0.08:
            self.timed("refresh", 1.0, lambda: agent.refresh(1.0))
        elif choice < 0.10:
            self.finish_old(agent)
        elif choice < 0.18 and self.kind.gives_tokens:
            self.give_token(agent)
        elif choice < 0.32:
            self.report_for_others(agent)
        elif choice < 0.70:
            self.decide(agent)
        elif len(agent.pending):
            decision = self.rng.choice(list(agent.pending))
            self.timed("observe", 0.0, lambda: agent.observe(decision, float(self.rng.randint(-3, 3))))

    def decide(self, agent: fb.LiveAgent) -> None:
        rows, before = np.array([self.row() for _ in range(3)]), self.errors_logged.n
        decision = self.timed("choose", 0.0, lambda: agent.choose(rows, default=self.kind.default))
        self.book.made(decision, kept=self.errors_logged.n == before)
        if self.rng.random() < 0.6:  # others are told of it
            self.offers.write(decision=decision.id, agent=agent.agent_id)

    def finish_old(self, agent: fb.LiveAgent) -> None:
        older_than_s = self.rng.choice([0.5, 2.0, 5.0])
        if self.rng.random() < 0.6:
            agent.pending.settle(float(self.rng.randint(-3, 3)), older_than_s=older_than_s)
            self.record.write(event="settled")
            return
        with agent._durable.agent._lock:
            before = [decision.id for decision in agent.pending]
            self.drop(agent, before, lambda: agent.pending.expire(older_than_s=older_than_s))
        self.record.write(event="expired")

    def give_token(self, agent: fb.LiveAgent) -> None:
        """Give up a decision; whoever has the token reports its reward."""
        if not len(agent.pending):
            return
        decision = self.rng.choice(list(agent.pending))
        agent._client.token_key(TIMEOUT_S)  # so that no request is made under the lock
        with agent._durable.agent._lock:
            if decision.id not in agent.pending:
                return
            token = self.drop(agent, [decision.id], lambda: agent.token(decision))
        self.offers.write(decision=decision.id, agent=agent.agent_id, token=token)
        self.record.write(event="given_up")

    def drop(self, agent: fb.LiveAgent, decisions: list[str], do: Any) -> Any:
        self.book.write(dropping=decisions)
        try:
            return do()
        finally:  # where the disk was full, they are still pending
            self.book.write(dropped=[each for each in decisions if each not in agent.pending])

    def report_for_others(self, agent: fb.LiveAgent) -> None:
        """Report the reward of some decision, mostly another agent's, perhaps not for the first time."""
        offer = self.others.pick()
        if offer is None:
            return
        reward = self.others.reward_of(offer)
        self.reports.write(decision=offer["decision"], reward=reward, token=offer.get("token"), by="agent")
        name = offer.get("token") or offer["decision"]
        try:
            status = self.timed("report", 3.0, lambda: agent.report(name, reward, timeout_s=3.0))
        except (Refused, NotReachable, AlreadyObserved, InvalidInput) as error:
            status = error.code
        self.reports.write(answer=status)

    # -- reports to the harness

    def quiet(self, number: int) -> None:
        """Report nothing for others until the checkpoint."""
        (self.folder / "reports" / f"{number}-quiet-{self.name}.json").write_text("{}")
        while self.command().get("quiet") == number:
            time.sleep(0.05)

    def checkpoint(self, agent: fb.LiveAgent, number: int) -> None:
        """Collect rewards, flush, write a report, and wait."""
        path = self.folder / "reports" / f"{number}-{self.name}.json"
        while not path.exists() and not self.is_over():
            try:
                self.collect(agent)
                self.timed("flush", 20.0, lambda: agent.flush(20.0))
                report = {**agent.status().to_dict(), "pending_ids": [decision.id for decision in agent.pending]}
                report["dropped"] = agent._durable.agent.world.n_dropped
                draft = path.with_suffix(f".{os.getpid()}")
                draft.write_text(json.dumps(report))
                draft.rename(path)
            except (NotReachable, JournalFailed) as error:
                self.record.write(event=f"checkpoint_waits_{error.code}")
                time.sleep(0.2)
            except Refused as error:
                self.record.write(event=f"checkpoint_refused_{error.code}")
                self.leaves = True
        while path.exists() and self.command().get("checkpoint") == number:
            time.sleep(0.05)

    def collect(self, agent: fb.LiveAgent) -> None:
        """Now, instead of within `check_after_s`: others' rewards may wait at the server, too."""
        client = agent._client
        with client._turn(20.0) as timeout_s:
            client.collector.collect(client, timeout_s)

    def violate(self, words: str) -> None:
        self.record.write(violation=words)
        os._exit(VIOLATED)  # also from a thread of the SDK


if __name__ == "__main__":
    run_agent(FleetAgent, *sys.argv[1:])
