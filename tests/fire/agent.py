"""An agent process to be tormented: it decides, observes, flushes, closes and comes back, and writes down the truth.

python -m tests.fire.agent URL TOKEN NAME FOLDER STATE_DIR PACE_S
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
from pathlib import Path
from typing import Any

import numpy as np

import fedbandit as fb
from fedbandit.algorithms.messages import packed_bytes
from fedbandit.errors import FedbanditError, JournalFailed, NotReachable
from tests.fire.truth import DIM, Truth, TruthWriter

MODEL = "fire"
TIMEOUT_S = 3.0
MAX_WAITING = 8  # decisions whose reward comes later
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

    def __init__(self, url: str, token: str, name: str, folder: Path, state_dir: Path, pace_s: float) -> None:
        self.url, self.token, self.name, self.pace_s = url, token, name, pace_s
        self.folder, self.state_dir = folder, state_dir
        path = folder / f"{name}.truth"
        self.before = Truth.tail(path)
        self.truth = TruthWriter(path)
        self.rng = random.Random(os.urandom(8))
        self.waiting: list[Any] = []
        self.version = -1
        self.complaints = Complaints()
        logging.getLogger("fedbandit.sdk").addHandler(self.complaints)

    # -- a life

    def run(self) -> None:
        """Until told to finish."""
        ended = False
        while not ended:
            agent = self.connect()
            self.resume(agent)
            ended = self.session(agent)
            try:
                agent.close()
            except JournalFailed:  # a full disk: the snapshot is older than it could be, and nothing is lost
                self.truth.write(event="close_without_disk")
            self.before = Truth.tail(self.folder / f"{self.name}.truth")

    def connect(self) -> fb.LiveAgent:
        while True:
            try:
                return fb.connect(
                    self.url, model=MODEL, token=self.token, state_dir=self.state_dir, timeout_s=TIMEOUT_S
                )
            except (NotReachable, JournalFailed) as error:
                resumable = (self.state_dir / "journal.db").exists() and self.before.n_resumed > 0
                kind = "connect_without_server" if isinstance(error, NotReachable) else "connect_without_disk"
                self.truth.write(event=kind)
                if resumable and isinstance(error, NotReachable):
                    self.violate(f"an agent with a state_dir did not start without its server: {error}")
                time.sleep(0.3)

    def resume(self, agent: fb.LiveAgent) -> None:
        """What returned is there; what was cut off is there or not, and its decision waits exactly if it is not."""
        rounds, before = agent.status().rounds, self.before
        self.truth.write(resumed=rounds, pid=os.getpid())
        if not before.n_done <= rounds <= max(before.n_tried, before.n_done):
            self.violate(f"resumed at {rounds} with {before.n_done} confirmed and {before.n_tried} tried")
        self.waiting = list(agent.pending)
        self.n = rounds
        self.check_last_decision(before)

    def check_last_decision(self, before: Truth) -> None:
        last, is_booked = before.last_decision, self.n >= before.n_tried
        is_waiting = last in {decision.id for decision in self.waiting}
        if last is None or is_waiting != is_booked or (last in before.not_kept and not is_waiting):
            return
        self.violate(f"decision {last} waits: {is_waiting}, though {self.n} of {before.n_tried} are booked")

    def session(self, agent: fb.LiveAgent) -> bool:
        """Work until the process is to end (True), or until it feels like closing and connecting again (False)."""
        while True:
            command = self.command()
            if command.get("finish"):
                return True
            if command.get("checkpoint"):
                self.checkpoint(agent, command["checkpoint"])
            self.step(agent)
            if self.rng.random() < 0.002:
                self.truth.write(event="reconnect")
                return False
            time.sleep(self.rng.expovariate(1.0 / self.pace_s))

    def step(self, agent: fb.LiveAgent) -> None:
        whim = self.rng.random()
        try:
            if whim < 0.05:
                self.learn_batch(agent)
            elif whim < 0.07:
                self.flush(agent)
            else:
                self.learn_one(agent)
        except JournalFailed:
            self.truth.write(event="journal_failed")
            if agent.status().rounds != self.n:
                self.violate(f"observe failed, yet {agent.status().rounds} rounds instead of {self.n}")
            time.sleep(0.1)
        self.note_model(agent)

    def learn_one(self, agent: fb.LiveAgent) -> None:
        before = self.complaints.n
        decision = agent.choose(np.array([self.row() for _ in range(3)]))
        self.waiting.append(decision)
        if self.complaints.n > before:
            self.truth.write(not_kept=decision.id)
        if len(self.waiting) < MAX_WAITING and self.rng.random() < 0.3:
            return  # its reward comes later, perhaps in another process
        decision = self.rng.choice(self.waiting)
        reward = self.rng.randint(-3, 3)
        self.attempt([decision.x.tolist()], [reward], decision.id, lambda: agent.observe(decision, reward))
        self.waiting.remove(decision)

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
        try:
            agent.flush(self.rng.choice([0.2, 2.0]))
            self.truth.write(event="flushed")
        except NotReachable:
            self.truth.write(event="not_reachable")

    # -- answers to the one who watches

    def checkpoint(self, agent: fb.LiveAgent, number: int) -> None:
        """Send everything, say where we stand, and wait."""
        path = self.folder / "reports" / f"{number}-{self.name}.json"
        while not path.exists():
            try:
                agent.flush(20.0)
                self.note_model(agent)
                report = {**agent.status().to_dict(), "n": self.n, "decisions_waiting": len(self.waiting)}
                draft = path.with_suffix(f".{os.getpid()}")
                draft.write_text(json.dumps(report))
                draft.rename(path)
            except (NotReachable, JournalFailed) as error:
                self.truth.write(event=f"checkpoint_waits_{error.code}")
                time.sleep(0.2)
        while self.command().get("checkpoint") == number:
            time.sleep(0.05)

    def note_model(self, agent: fb.LiveAgent) -> None:
        """Every model that decisions rest on is written down, to be found among those that the server had."""
        core = agent._core
        with core._lock:
            version, stats = core.model_version, core.model.stats
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


def main(url: str, token: str, name: str, folder: str, state_dir: str, pace_s: str) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # urllib3 warns with a traceback about a reply cut inside its headers; our own line about it follows.
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    torment = Torment(url, token, name, Path(folder), Path(state_dir), float(pace_s))
    try:
        torment.run()
    except FedbanditError as error:  # named, but none that an agent should meet here
        torment.violate(f"{error.code}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
