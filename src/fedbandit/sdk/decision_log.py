"""The decision log: one JSON line per decision and one per reward, written by a thread, for evaluation afterwards.

It is no journal: what the application waits for is one append to a list in memory. Lines of the last half second are
lost with the process, lines that cannot be written (a full disk) are counted and left out, and neither `choose` nor
`observe` ever waits for it or fails by it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedbandit.algorithms.decision import Decision
from fedbandit.core.arrays import finite_at_least
from fedbandit.core.decision_sets import has_best
from fedbandit.errors import InvalidParameter

logger = logging.getLogger("fedbandit.sdk")
FORMAT = 1
PATTERN = "decisions-*.jsonl"
ROWS = ("chosen", "all")
MOST_LINES, MOST_BYTES = 10_000, 32 << 20  # in memory
PAUSE_S = 0.5  # between writes
FILES = 8  # that share the space


class DecisionLog:
    """Files of one agent in a directory of its own; `rows` is what is logged of a decision set."""

    def __init__(
        self,
        directory: Path,
        *,
        rows: str = "chosen",
        most_mb: float = 100.0,
        head: dict[str, Any] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        if rows not in ROWS:
            raise InvalidParameter(f"expected decision_log_rows as one of {', '.join(map(repr, ROWS))}, got {rows!r}")
        self.directory, self.rows = directory, rows
        self.n_lines = self.n_dropped = 0
        self.error: str | None = None  # why lines are being dropped; None: they are not
        self._most_bytes = int(finite_at_least(most_mb, 0.0, "decision_log_mb", strictly=True) * (1 << 20))
        self._head = msgspec.json.encode({"format": FORMAT, "rows": rows, **(head or {})}) + b"\n"
        self._now = now
        self._queue: deque[tuple[Any, ...]] = deque()
        self._encoder = msgspec.json.Encoder(enc_hook=_plain)
        self._n_bytes = 0  # of rows in memory
        self._file: int | None = None
        self._size = 0
        self._n_files = 0
        self._writing = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidParameter(f"expected decision_log as a directory that can be made: {error}") from None

    # -- called by the application's threads -------------------------------------------------------------------

    def decided(self, made: Decision | list[Decision], actions: Any) -> None:
        """Note a decision, or those of a list; `actions` are the rows that it was made from, for `rows="all"`."""
        try:
            rows = None
            if self.rows == "all" and actions is not None and not has_best(actions):
                rows = np.array(actions, dtype=np.float64)  # a copy: the caller may change it before it is written
            for decision in made if isinstance(made, list) else (made,):
                self._add((self._now(), decision, rows), 0 if rows is None else rows.nbytes)
        except Exception as error:  # noqa: BLE001 - no memory, no thread: the decision is made
            self._give_up(error, 1)

    def decided_each(self, made: Sequence[Any], decision_sets: Sequence[Any]) -> None:
        """Note the decisions of `choose_many`."""
        for each, actions in zip(made, decision_sets, strict=True):
            self.decided(each, actions)

    def rewarded(self, decision_id: str, reward: float) -> None:
        """Note the reward of a decision."""
        try:
            self._add((self._now(), decision_id, float(reward)))
        except Exception as error:  # noqa: BLE001 - as above
            self._give_up(error, 1)

    def _add(self, item: tuple[Any, ...], n_bytes: int = 0) -> None:
        if len(self._queue) >= MOST_LINES or self._n_bytes > MOST_BYTES:
            self.n_dropped += 1
            return
        self._n_bytes += n_bytes
        self._queue.append(item)
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        with self._writing:
            if self._thread is None and not self._ending.is_set() and os.getpid() == self._pid:
                self._thread = threading.Thread(target=self._run, name="fedbandit-decision-log", daemon=True)
                self._thread.start()

    # -- the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ending.wait(PAUSE_S):
            self.flush()

    def flush(self) -> None:
        """Write what is in memory; lines that cannot be written are counted."""
        if os.getpid() != self._pid:
            return  # a child after a fork: the lines belong to its parent
        with self._writing:
            n = len(self._queue)
            if n == 0:
                return
            items = [self._queue.popleft() for _ in range(n)]
            self._n_bytes = 0
            try:
                self._write(b"".join(self._line(item) for item in items))
                self.n_lines += n
                self.error = None
            except Exception as error:  # noqa: BLE001 - whatever it is, deciding goes on
                self._close_file()
                self._give_up(error, n)

    def _give_up(self, error: Exception, n: int) -> None:
        """Count lines that are lost, and say why, once."""
        self.n_dropped += n
        if self.error is None:
            logger.error("the decision log in %s cannot be written: %s", self.directory, error)
        self.error = f"{type(error).__name__}: {error}"

    def _line(self, item: tuple[Any, ...]) -> bytes:
        made_at, what, more = item
        if isinstance(what, str):
            return self._encoder.encode({"id": what, "time": made_at, "reward": more}) + b"\n"
        line: dict[str, Any] = {
            "id": what.id,
            "time": made_at,
            "agent": what.agent_id,
            "version": what.model_version,
            "index": what.index,
            "x": what.x,
            "propensity": what.propensity,
            "score": what.score,
            "policy": what.policy,
        }
        for name in ("group", "block", "arm"):
            value = getattr(what, name, None)
            if value is not None:
                line[name] = value
        if more is not None:
            line["rows"] = more
        return self._encoder.encode(line) + b"\n"

    def _write(self, content: bytes) -> None:
        if self._file is None or self._size + len(content) > self._most_bytes // FILES:
            self._next_file(len(content))
        assert self._file is not None
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            os.ftruncate(self._file, self._size)  # no half a line
            raise
        self._size += len(content)

    def _next_file(self, n_bytes: int) -> None:
        self._close_file()
        self._make_room(n_bytes + len(self._head))
        self._n_files += 1
        name = f"decisions-{int(self._now() * 1000):014d}-{self._n_files:06d}-{self._pid}.jsonl"
        self._file = os.open(self.directory / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o600)
        os.write(self._file, self._head)
        self._size = len(self._head)

    def _make_room(self, n_bytes: int) -> None:
        """Remove the oldest files until this many bytes fit."""
        files = sorted(self.directory.glob(PATTERN))
        sizes = [path.stat().st_size for path in files]
        while files and sum(sizes) + n_bytes > self._most_bytes - self._most_bytes // FILES:
            files.pop(0).unlink(missing_ok=True)
            sizes.pop(0)

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def status(self) -> dict[str, Any]:
        """What the agent's status shows of it."""
        return {
            "decision_log": str(self.directory),
            "log_lines": self.n_lines,
            "log_dropped": self.n_dropped,
            "log_error": self.error,
        }

    def close(self) -> None:
        """Write the rest and stop."""
        self._ending.set()
        self.flush()
        if os.getpid() == self._pid:
            with self._writing:
                self._close_file()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else str(value)
