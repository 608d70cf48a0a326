"""An agent process to be tormented: it decides, observes, flushes, closes and comes back, and writes down the truth.

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
from fedbandit.errors import AlreadyObserved, FedbanditError, JournalFailed, NotReachable, UnknownDecision
from tests.chaos.decision_book import DecisionBook, number_of
from tests.chaos.strike import MANY, VARIABLE, arm, n_left
from tests.chaos.truth import DIM, MODEL, Truth, TruthWriter

TIMEOUT_S = 3.0
CONNECT_S = 2 * TIMEOUT_S  # two questions
CLOSE_S = 5.0
NOTED_S = 0.5  # a call that is later than this is written down
FEW_PENDING, MANY_PENDING = 8, 4000  # the ring of the journal has 1 024 slots
RING = 1024
N_QUIET_CALLS = 10  # that change the disk, in a `choose` that moves nothing
VIOLATED = 4


class Complaints(logging.Handler):
    """Counts what the agent logs as an error: on a full disk `choose` goes on, and says that it could not keep it."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.n = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.n += 1


class Torment:
    """One process's life; the next one begins where the books say."""

    model = MODEL

    def __init__(
        self, url: str, token: str, name: str, folder: Path, state_dir: Path, pace_s: float, max_pending: int
    ) -> None:
        self.url, self.token, self.name, self.pace_s = url, token, name, pace_s
        self.folder, self.max_pending = folder, max_pending
        self.rng = random.Random(os.urandom(8))
        self.ended = False
        self.complaints = Complaints()
        logging.getLogger("fedbandit.sdk").addHandler(self.complaints)
        self.keep_books(name, state_dir)

    def keep_books(self, name: str, state_dir: Path) -> None:
        """Go on with the files of this name."""
        path = self.folder / f"{name}.truth"
        self.before = Truth.tail(path)
        self.truth = TruthWriter(path)
        self.book = DecisionBook(self.folder / f"{name}.decisions")
        self.state_dir, self.truth_path = state_dir, path
        self.waiting: dict[str, Decision] = {}
        self.version = -1

    # -- a life

    def run(self) -> None:
        """Until told to finish."""
        while not self.ended:
            self.live()

    def live(self) -> None:
        """From one connection to its end."""
        agent = self.connect()
        self.resume(agent)
        self.reward_first(agent)
        self.session(agent)
        try:
            self.timed("close", CLOSE_S, agent.close)
        except JournalFailed:  # a full disk: the snapshot is older than it could be, and nothing is lost
            self.truth.write(event="close_without_disk")
        self.before = Truth.tail(self.truth_path)

    def connect(self) -> fb.LiveAgent:
        while True:
            try:
                return self.timed("connect", CONNECT_S, self.connect_once)
            except (NotReachable, JournalFailed) as error:
                resumable = (self.state_dir / "journal.db").exists() and self.before.n_resumed > 0
                kind = "connect_without_server" if isinstance(error, NotReachable) else "connect_without_disk"
                self.truth.write(event=kind)
                if resumable and isinstance(error, NotReachable):
                    self.violate(f"an agent with a state_dir did not start without its server: {error}")
                time.sleep(0.3)

    def connect_once(self) -> fb.LiveAgent:
        return fb.connect(self.url, model=self.model, token=self.token, state_dir=self.state_dir, timeout_s=TIMEOUT_S)

    def resume(self, agent: fb.LiveAgent) -> None:
        """What returned is there; what was cut off is there or not, and its decision waits exactly if it is not."""
        rounds, before = agent.status().rounds, self.before
        self.truth.write(resumed=rounds, pid=os.getpid())
        if not before.n_done <= rounds <= max(before.n_tried, before.n_done):
            self.violate(f"resumed at {rounds} with {before.n_done} confirmed and {before.n_tried} tried")
        self.waiting = {decision.id: decision for decision in agent.pending}
        self.n = rounds
        self.check_last_decision(before)
        self.check_decisions(agent)
        # `settle` books one decision after the other: each is written down like any other.
        agent.pending._observe = lambda decision, reward: self.book_reward(agent, decision, int(reward))

    def reward_first(self, agent: fb.LiveAgent) -> None:
        """Rewards that come right after a start, before anything is decided; not for agents with few decisions."""
        n = min(self.rng.choice([0, 30]), len(self.waiting))
        try:
            for each in self.rng.sample(sorted(self.waiting), n if self.max_pending > FEW_PENDING else 0):
                self.book_reward(agent, self.waiting[each], self.rng.randint(-3, 3))
        except JournalFailed:
            self.truth.write(event="journal_failed")

    def check_last_decision(self, before: Truth) -> None:
        last, is_booked = before.last_decision, self.n >= before.n_tried
        is_waiting = last in self.waiting
        if last is None or is_waiting != is_booked or (last in before.not_kept and not is_waiting):
            return
        self.violate(f"decision {last} waits: {is_waiting}, though {self.n} of {before.n_tried} are booked")

    def check_decisions(self, agent: fb.LiveAgent) -> None:
        """All pending decisions are those of the book, and those that have their reward are refused."""
        found = {number_of(decision) for decision in self.waiting.values()}
        for words in self.book.compare(found):
            self.violate(words)
        for booked in self.book.recent:
            try:
                agent.observe(Decision.from_dict(booked), 1.0)
            except (AlreadyObserved, UnknownDecision):
                continue
            self.violate(f"a second reward was booked for decision {booked['id']}")
        self.book.begin_anew(found)

    def session(self, agent: fb.LiveAgent) -> None:
        """Work until the process is to end, or until it feels like closing and connecting again."""
        while not self.is_over():
            command = self.command()
            if command.get("finish"):
                self.ended = True
                return
            if command.get("checkpoint"):
                self.checkpoint(agent, command["checkpoint"])
            self.step(agent)
            if self.rng.random() < 0.002:
                self.truth.write(event="reconnect")
                return
            time.sleep(self.rng.expovariate(1.0 / self.pace_s))

    def is_over(self) -> bool:
        """Whether this connection has become useless."""
        return False

    def step(self, agent: fb.LiveAgent) -> None:
        whim = self.rng.random()
        try:
            if self.max_pending > FEW_PENDING and whim > 0.9:
                self.use_many_pending(agent, whim)
            elif whim < 0.05:
                self.learn_batch(agent)
            elif whim < 0.07:
                self.flush(agent)
            elif whim < 0.08:
                self.refresh(agent)
            else:
                self.learn_one(agent)
        except JournalFailed:
            self.truth.write(event="journal_failed")
            if agent.status().rounds != self.n:
                self.violate(f"observe failed, yet {agent.status().rounds} rounds instead of {self.n}")
            time.sleep(0.1)
        if self.is_to_die_in_a_burst():
            self.burst_and_die(agent)
        self.note_model(agent)

    def choose(self, agent: fb.LiveAgent, n: int) -> None:
        """Make n decisions."""
        self.book.write(making=n)
        made: list[Decision] = []
        for _ in range(n):
            before = self.complaints.n
            decision = agent.choose(np.array([self.row() for _ in range(3)]))
            self.waiting[decision.id] = decision
            if self.complaints.n > before:
                self.truth.write(not_kept=decision.id)
                self.book.made([decision], kept=False)
                self.book.write(making=n)
            else:
                made.append(decision)
        self.book.made(made)

    def learn_one(self, agent: fb.LiveAgent) -> None:
        self.timed("choose", 0.0, lambda: self.choose(agent, 1))
        if len(self.waiting) < self.max_pending and self.rng.random() < 0.3:
            return  # its reward comes later, perhaps in another process
        decision = self.waiting[self.rng.choice(list(self.waiting))]
        reward = self.rng.randint(-3, 3)
        self.timed("observe", 0.0, lambda: self.book_reward(agent, decision, reward))

    def book_reward(self, agent: fb.LiveAgent, decision: Decision, reward: int) -> None:
        """Observe a decision; both books know before and after."""
        self.book.write(booking=number_of(decision))
        try:
            self.attempt([decision.x.tolist()], [reward], decision.id, lambda: agent.observe(decision, reward))
        except JournalFailed:
            self.book.write(not_booked=number_of(decision))
            raise
        self.book.booked(decision)
        del self.waiting[decision.id]

    def learn_batch(self, agent: fb.LiveAgent) -> None:
        rows = [self.row() for _ in range(3)]
        rewards = [self.rng.randint(-3, 3) for _ in rows]
        self.attempt(rows, rewards, None, lambda: agent.partial_fit(rows, rewards))

    def attempt(self, rows: list[list[float]], rewards: list[int], decision: str | None, learn: Any) -> None:
        self.truth.write(**{"try": self.n, "rows": rows, "rewards": rewards, "decision": decision})
        learn()
        self.n += len(rows)
        self.truth.write(done=self.n)

    def flush(self, agent: fb.LiveAgent) -> None:
        limit_s = self.rng.choice([0.2, 2.0])
        try:
            self.timed("flush", limit_s, lambda: agent.flush(limit_s))
            self.truth.write(event="flushed")
        except NotReachable:
            self.truth.write(event="not_reachable")

    def refresh(self, agent: fb.LiveAgent) -> None:
        try:
            self.timed("refresh", 1.0, lambda: agent.refresh(1.0))
            self.truth.write(event="refreshed")
        except NotReachable:
            self.truth.write(event="not_reachable")

    def timed(self, call: str, limit_s: float, do: Callable[[], Any]) -> Any:
        """Do it; one that ends late is written down. Whether the process was paused meanwhile, others know."""
        begun = time.monotonic()
        try:
            return do()
        finally:
            ended = time.monotonic()
            if ended - begun > limit_s + NOTED_S:
                self.truth.write(call=call, limit=limit_s, took=round(ended - begun, 3), ended=ended)

    # -- thousands of pending decisions

    def use_many_pending(self, agent: fb.LiveAgent, whim: float) -> None:
        older_than_s = self.rng.choice([0.0, 2.0, 10.0, 30.0])
        if len(self.waiting) < self.max_pending and whim < 0.98:
            self.choose(agent, self.rng.randint(100, 1500))
        elif whim < 0.99:
            self.settle(agent, older_than_s)
        else:
            self.give_up(agent, older_than_s)
        if len(agent.pending) != len(self.waiting):
            self.violate(f"{len(agent.pending)} decisions are pending, and {len(self.waiting)} should be")

    def settle(self, agent: fb.LiveAgent, older_than_s: float) -> None:
        """A default reward for all that are old."""
        before = len(self.waiting)
        n = agent.pending.settle(self.rng.randint(-3, 3), older_than_s=older_than_s)
        if n != before - len(self.waiting):
            self.violate(f"settle booked {before - len(self.waiting)} decisions and says {n}")
        self.truth.write(event="settled")

    def give_up(self, agent: fb.LiveAgent, older_than_s: float) -> None:
        """No reward for all that are old."""
        self.book.write(giving_up=True)
        gone: set[str] = set()
        try:
            n = agent.pending.expire(older_than_s=older_than_s)
            gone = self.waiting.keys() - {decision.id for decision in agent.pending}
            if n != len(gone):
                self.violate(f"expire gave up {len(gone)} decisions and says {n}")
        finally:  # where the disk was full, all of them are still pending
            self.book.write(given_up=[number_of(self.waiting.pop(each)) for each in gone])
        self.truth.write(event="expired")

    def is_to_die_in_a_burst(self) -> bool:
        return self.max_pending > FEW_PENDING and (self.folder / f"{self.name}.burst").exists()

    def burst_and_die(self, agent: fb.LiveAgent) -> None:
        """Fill the ring, and be killed while its decisions move to the journal's table, often at the very end of it.

        SIGALRM without a handler ends a process as SIGKILL does, and tells the harness that this was meant.
        """
        (self.folder / f"{self.name}.burst").unlink(missing_ok=True)
        control = Path(os.environ[VARIABLE]) if VARIABLE in os.environ else None
        if control is None:
            return
        self.truth.write(event="burst_kill")
        n_calls = 0
        for _ in range(2 * RING):
            arm(control, MANY, signal.SIGALRM)
            self.choose(agent, 1)
            n_calls = MANY - n_left(control)
            if n_calls > N_QUIET_CALLS:  # that was a move
                break
        self.choose(agent, RING - 1)  # the next one finds no room
        near_end = n_calls + self.rng.randint(-2, 2)  # no two moves have exactly as many
        arm(control, self.rng.choice([near_end, near_end, self.rng.randint(1, n_calls + 10)]), signal.SIGALRM)
        self.choose(agent, 1)

    # -- answers to the one who watches

    def checkpoint(self, agent: fb.LiveAgent, number: int) -> None:
        """Send everything, say where we stand, and wait."""
        path = self.folder / "reports" / f"{number}-{self.name}.json"
        while not path.exists() and not self.is_over():
            try:
                self.timed("flush", 20.0, lambda: agent.flush(20.0))
                self.note_model(agent)
                report = {**agent.status().to_dict(), "n": self.n, "decisions_waiting": len(self.waiting)}
                draft = path.with_suffix(f".{os.getpid()}")
                draft.write_text(json.dumps(report))
                draft.rename(path)
            except (NotReachable, JournalFailed) as error:
                self.truth.write(event=f"checkpoint_waits_{error.code}")
                time.sleep(0.2)
        while path.exists() and self.command().get("checkpoint") == number:
            time.sleep(0.05)

    def note_model(self, agent: fb.LiveAgent) -> None:
        """Every model that decisions rest on is written down, to be found among those that the server had."""
        durable = agent._durable
        with durable.agent._lock:
            version, stats = durable.agent.model_version, durable.agent.model.stats
        if version != self.version:
            digest = hashlib.sha256(packed_bytes(stats)).digest()[:16].hex()
            self.truth.write(model=version, digest=digest)
            self.version = version

    def command(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "command.json").read_text())
        except FileNotFoundError:
            found = {}
        return found

    def row(self) -> list[float]:
        return [float(self.rng.randint(-3, 3)) for _ in range(DIM)]

    def violate(self, words: str) -> None:
        self.truth.write(violation=words)
        sys.exit(VIOLATED)


def torment(kind: type[Torment], url: str, token: str, name: str, folder: str, *rest: str) -> None:
    """Run an agent of this kind with the words of the command line."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # urllib3 warns with a traceback about a reply cut inside its headers; our own line about it follows.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    state_dir, pace_s, max_pending = rest
    made = kind(url, token, name, Path(folder), Path(state_dir), float(pace_s), int(max_pending))
    try:
        made.run()
    except FedbanditError as error:  # named, but none that an agent should meet here
        made.violate(f"{error.code}: {error}")


if __name__ == "__main__":
    torment(Torment, *sys.argv[1:])
