"""The pending decisions of an agent, in a file that is independent of the journal.

A line is written before a call and one after it, as in `agent_record.py`. At a restart the journal must have exactly
the decisions of this file; only the change of an interrupted call may be done or not done.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from fedbandit.algorithms.decision import Decision
from tests.chaos.agent_record import RecordWriter

N_RECENT = 5  # decisions with a reward for which a second one is tried


def number_of(decision: Decision) -> int:
    """The number at the end of a decision's id."""
    return int(decision.id.rpartition("-")[2])


class DecisionRecord:
    """`pending` has the numbers of the decisions that must be pending, `not_kept` those that may be missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.pending: set[int] = set()
        self.not_kept: set[int] = set()
        self.recent: list[dict[str, Any]] = []
        self.making = 0  # decisions of a `choose` that has not returned
        self.booking: int | None = None  # the decision of an `observe` that has not returned
        self.giving_up = False  # an `expire` has not returned
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else []:
            self._take(json.loads(line))
        self._file = RecordWriter(path)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def write(self, **line: Any) -> None:
        """Append a line; it survives a kill."""
        self._file.write(**line)
        self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        if "making" in line:
            self.making = line["making"]
        elif "made" in line:
            self.making = 0
            self.pending.update(line["made"])
            self.not_kept.update(line.get("not_kept", ()))
        elif "booking" in line:
            self.booking = line["booking"]
        elif "booked" in line:
            self.booking = None
            self.pending.discard(line["booked"]["number"])
            self.recent = [*self.recent[1 - N_RECENT :], line["booked"]]
        elif "not_booked" in line:
            self.booking = None
        elif "giving_up" in line:
            self.giving_up = True
        elif "given_up" in line:
            self.giving_up = False
            self.pending.difference_update(line["given_up"])
        elif "pending" in line:
            self.pending, self.not_kept = set(line["pending"]), set(line["not_kept"])
            self.recent = line["recent"]

    def made(self, decisions: Iterable[Decision], *, kept: bool = True) -> None:
        """`choose` returned these."""
        numbers = [number_of(decision) for decision in decisions]
        self.write(made=numbers, not_kept=[] if kept else numbers)

    def booked(self, decision: Decision) -> None:
        """`observe` returned."""
        self.write(booked={**decision.to_dict(), "number": number_of(decision)})

    def compare(self, found: Collection[int]) -> Iterable[str]:
        """Differences between the journal of a new process and the record, as sentences."""
        missing, extra = self.pending - set(found), set(found) - self.pending
        doubtful = self.not_kept | ({self.booking} if self.booking is not None else set())
        if not self.giving_up and not missing <= doubtful:
            yield f"{len(missing - doubtful)} of {len(self.pending)} pending decisions are lost: {_some(missing)}"
        if len(extra) > self.making:
            yield f"{len(extra)} decisions are pending that have their reward, or expired: {_some(extra)}"

    def begin_anew(self, found: Collection[int]) -> None:
        """Replace the file by a shorter one with the current state."""
        not_kept = sorted(self.not_kept & set(found))
        line = {"pending": sorted(found), "not_kept": not_kept, "recent": self.recent}
        draft = self._path.with_suffix(".draft")
        draft.write_text(json.dumps(line) + "\n")
        draft.rename(self._path)
        self._file.close()
        self._file = RecordWriter(self._path)
        self.making, self.booking, self.giving_up = 0, None, False
        self._take(line)


def _some(numbers: Iterable[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers)[:5])
