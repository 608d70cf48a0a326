"""A memory for answers: however many pages are open, a thing is read or computed about once a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
TTL_S = 0.9
PATIENCE = 20.0  # what took long to compute is kept this many times as long
MAX_ENTRIES = 512


@dataclass(slots=True)
class _Entry:
    task: asyncio.Task[Any]
    expires: float = float("inf")


class Fresh:
    """Answers by key, each with a short life; whoever asks while one is being made waits for that one."""

    def __init__(self, ttl_s: float = TTL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: dict[Hashable, _Entry] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """The answer for this key, at most a moment old; failures are told to all who wait, and not remembered."""
        entry = self._entries.get(key)
        if entry is None or entry.expires <= self._clock():
            entry = self._start(key, make)
        # A visitor who leaves must not take the answer from the others.
        result: T = await asyncio.shield(entry.task)
        return result

    def _start(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> _Entry:
        began = self._clock()

        async def work() -> T:
            return await make()

        entry = _Entry(asyncio.get_running_loop().create_task(work()))

        def finished(task: asyncio.Task[T]) -> None:
            failed = task.cancelled() or task.exception() is not None
            now = self._clock()
            entry.expires = now if failed else now + max(self._ttl_s, PATIENCE * (now - began))

        entry.task.add_done_callback(finished)
        self._entries.pop(key, None)
        while len(self._entries) >= MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = entry
        return entry
