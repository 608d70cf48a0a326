"""What the agents of a fleet observed: one file for each agent, independent of its journal.

The agents of a fleet get rewards from elsewhere, which a thread of the SDK books. So the file is written around the one
function through which every observation passes, under the agent's lock: a line before it and a line after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedbandit.algorithms.decision import Decision
from fedbandit.core.group_sums import NO_GROUPS, GroupSums
from fedbandit.errors import JournalFailed
from fedbandit.sdk.durable_agent import DurableAgent
from tests.chaos.agent_record import AgentRecord, RecordWriter

Violate = Callable[[str], None]


@dataclass
class MadeDecision:
    """A decision as `choose` returned it."""

    row: list[float]
    group: str


@dataclass
class FleetRecord(AgentRecord):
    """The file of one agent, with its decisions: `counted` has the reward of each that is observed."""

    made: dict[str, MadeDecision] = field(default_factory=dict)
    counted: dict[str, float] = field(default_factory=dict)  # settled observations
    dropping: set[str] = field(default_factory=set)  # expired or given up, perhaps
    dropped: set[str] = field(default_factory=set)
    groups: GroupSums = NO_GROUPS

    def _take(self, line: dict[str, Any]) -> None:
        if "made" in line:
            self.made[line["made"]] = MadeDecision(line["row"], line["group"])
        elif "dropping" in line:
            self.dropping = set(line["dropping"])
        elif "dropped" in line:
            self.dropping = set()
            self.dropped.update(line["dropped"])
        elif "unsure" in line:  # a call that dropped decisions was killed
            self.dropping = set()
            self.not_kept.update(line["unsure"])
        else:
            super()._take(line)

    def seen(self, rounds: int) -> np.ndarray:
        """As in an agent's record, with rewards by decision and by group."""
        while self._settled < rounds and self._settled in self._tries:
            _, rewards, decision = self._tries[self._settled]
            if decision is not None:
                self.counted[decision] = rewards[0]
                made = self.made.get(decision)
                self.groups = self.groups.observe("treatment" if made is None else made.group, float(rewards[0]))
            super().seen(self._settled + 1)
        sums = super().seen(rounds)
        if self._settled != rounds:
            self.violations.append(f"{rounds} observations of {self.path.stem} end within a batch")
        return sums

    def reward_of(self, decision: str) -> float | None:
        """The reward that was observed for a decision, sent or not."""
        if decision in self.counted:
            return self.counted[decision]
        done = [self._tries[n] for n in self._tries if n < self.n_done]
        return next((rewards[0] for _, rewards, name in done if name == decision), None)

    def expected_pending(self) -> set[str]:
        """Decisions that are pending when the journal has `n_done` observations."""
        done = {name for n, (_, _, name) in self._tries.items() if n < self.n_done}
        return self.made.keys() - self.counted.keys() - done - self.dropped

    def compare_pending(self, found: Iterable[str]) -> Iterator[str]:
        """Differences between the pending decisions of a new process and the record, as sentences."""
        there, expected = set(found), self.expected_pending()
        missing, extra = expected - there - self.not_kept - self.dropping, there - expected
        if missing:
            yield f"{len(missing)} of {len(expected)} pending decisions are lost, for example {min(missing)}"
        known = extra & self.made.keys()
        if known:
            yield f"{len(known)} decisions are pending that have their reward or were dropped: {min(known)}"
        if len(extra - known) > 1:  # one whose `choose` was killed
            yield f"{len(extra - known)} decisions are pending that were never made"


class Book:
    """The file of one agent in the process that runs it."""

    def __init__(self, path: Path, durable: DurableAgent, violate: Violate) -> None:
        self.durable, self._violate = durable, violate
        record = FleetRecord(path).update()
        self.n_resumed = record.n_resumed
        self._file = RecordWriter(path)
        self._resume(record)

    def _resume(self, record: FleetRecord) -> None:
        rounds = self.durable.agent.n_rounds
        self.write(resumed=rounds)
        n_before = len(record.violations)
        record.update()
        for words in record.violations[n_before:]:
            self._violate(f"{self.durable.agent.agent_id}: {words}")
        found = {decision.id for _, decision in self.durable.pending_decisions()}
        for words in record.compare_pending(found):
            self._violate(f"{self.durable.agent.agent_id}: {words}")
        unsure = (record.dropping | record.not_kept) & (record.expected_pending() - found)
        if unsure or record.dropping:
            self.write(unsure=sorted(unsure))

    def write(self, **fields: Any) -> None:
        """Append a line; it survives a kill."""
        self._file.write(**fields)

    def made(self, decision: Decision, *, kept: bool) -> None:
        """`choose` returned this decision; it is not `kept` if the disk was full."""
        if not kept:
            self.write(not_kept=decision.id)
        self.write(made=decision.id, row=decision.x.tolist(), group=decision.group)

    def around(self, rows: list[list[float]], rewards: list[float], decision: str | None, do: Callable[[], Any]) -> Any:
        """Run an observation, under the agent's lock, between its two lines."""
        n = self.durable.agent.n_rounds
        self.write(**{"try": n, "rows": rows, "rewards": rewards, "decision": decision})
        try:
            result = do()
        except JournalFailed:
            if self.durable.agent.n_rounds != n:
                self._violate(f"observe failed, yet {self.durable.agent.n_rounds} rounds instead of {n}")
            raise
        self.write(done=self.durable.agent.n_rounds)
        return result

    def close(self) -> None:
        self._file.close()


class Books:
    """The files of a process: that of the agent which it runs now. Made before `connect`, which may observe already."""

    def __init__(self, folder: Path, model: str, violate: Violate) -> None:
        self._folder, self._model, self._violate = folder, model, violate
        self._book: Book | None = None
        self._observe, self._partial_fit = DurableAgent.observe, DurableAgent.partial_fit
        books = self

        def observe(durable: DurableAgent, decision: Any, reward: float) -> Any:
            with durable.agent._lock:
                x = decision.x.tolist() if isinstance(decision, Decision) else [float(each) for each in decision]
                name = decision.id if isinstance(decision, Decision) else None
                do = lambda: books._observe(durable, decision, reward)  # noqa: E731
                return books.of(durable).around([x], [float(reward)], name, do)

        def partial_fit(durable: DurableAgent, X: Any, y: Any) -> Any:
            with durable.agent._lock:
                do = lambda: books._partial_fit(durable, X, y)  # noqa: E731
                return books.of(durable).around(X, y, None, do)

        DurableAgent.observe, DurableAgent.partial_fit = observe, partial_fit  # type: ignore[method-assign]

    def of(self, durable: DurableAgent) -> Book:
        """The file of this agent; opened, and compared with the journal, before its first observation."""
        with durable.agent._lock:
            if self._book is None or self._book.durable is not durable:
                if self._book is not None:
                    self._book.close()
                path = self._folder / record_name(self._model, durable.agent.agent_id)
                self._book = Book(path, durable, self._violate)
            return self._book


def record_name(model: str, agent: str) -> str:
    """The name of an agent's file."""
    return f"{model}+{agent}.record"


class Listing:
    """A file of JSON lines that other processes append to, read incrementally."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def new_lines(self) -> list[dict[str, Any]]:
        """Lines since the last call; one without its end is left for later."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]
