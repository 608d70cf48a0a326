"""State slots: the state directories of a site, of which each process takes the first that is free."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fedbandit.core.arrays import finite_at_least, path_of, whole_at_least
from fedbandit.errors import FedbanditError, FormatError, InvalidParameter, JournalFailed, StateDirInUse

logger = logging.getLogger("fedbandit.sdk")
PAUSE_S = 0.25  # between two rounds, while processes that are about to end still have their slots
Agent = TypeVar("Agent")


@dataclass(frozen=True, slots=True)
class Slots:
    """`n` state directories below `directory`, named 0, 1, …; made by `fb.slots`."""

    directory: Path
    n: int
    token: Callable[[int], str] | None = None
    agent: Callable[[int], str] | None = None
    wait_s: float = 60.0

    def take(self, connect: Callable[..., Agent], options: dict[str, Any]) -> Agent:
        """Connect in the first slot that no other process uses."""
        deadline = time.monotonic() + self.wait_s
        while True:
            damaged: list[FedbanditError] = []
            for number in range(self.n):
                try:
                    return connect(**{**options, **self._options(number)})
                except StateDirInUse:
                    continue
                except (FormatError, JournalFailed) as error:  # nothing in it was changed; the others may be sound
                    logger.error("slot %d of %s cannot be used: %s", number, self.directory, error)
                    damaged.append(error)
            if len(damaged) == self.n:
                raise damaged[0]
            if time.monotonic() >= deadline:
                raise self._all_taken(len(damaged))
            time.sleep(PAUSE_S)

    def _options(self, number: int) -> dict[str, Any]:
        """What differs between slots."""
        found: dict[str, Any] = {"state_dir": self.directory / str(number)}
        if self.token is not None:
            found["token"] = self.token(number)
        if self.agent is not None:
            found["agent"] = self.agent(number)
        return found

    def _all_taken(self, n_damaged: int) -> StateDirInUse:
        besides = f", or cannot be used ({n_damaged}, see the log)" if n_damaged else ""
        return StateDirInUse(
            f"all {self.n} slots of {self.directory} are in use{besides}, after {self.wait_s:g} s: expected at least "
            f"as many slots as processes, and twice as many where a reload starts new ones before the old ones end"
        )


def slots(
    directory: str | Path,
    n: int,
    *,
    token: Callable[[int], str] | None = None,
    agent: Callable[[int], str] | None = None,
    wait_s: float = 60.0,
) -> Slots:
    """State directories for `n` processes: `fb.connect(..., state_dir=fb.slots("state/", n=8))` takes a free one.

    A slot belongs to one process at a time, by a lock that ends with the process however it ends; the next process that
    takes it continues with what was not uploaded. Each slot is an agent of its own: `token(number)` gives its token
    (unless it enrols) and `agent(number)` its name, which is only needed with `offline_ok`. Where all slots are in use,
    `connect` waits `wait_s` seconds for one, then raises `StateDirInUse`.
    """
    for name, function in (("token", token), ("agent", agent)):
        if function is not None and not callable(function):
            raise InvalidParameter(
                f"expected {name} as a function of the slot's number, got {type(function).__name__}; what is the same "
                f"for all slots is an argument of connect"
            )
    return Slots(
        path_of(directory, "directory"),
        whole_at_least(n, 1, "n"),
        token,
        agent,
        finite_at_least(wait_s, 0.0, "wait_s"),
    )
