"""Server-sent events: a page hears once a second of what has changed on it, and of nothing else."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from fedbandit.dashboard.figures import Series
from fedbandit.dashboard.frame import Frame
from fedbandit.dashboard.markup import as_json
from fedbandit.errors import FedbanditError, Overloaded

INTERVAL_S = 1.0
BEAT_S = 5.0  # a sign of life when nothing changes
CHECK_S = 30.0  # how often the visitor's token is looked at again
MAX_STREAMS = 200


class Changes:
    """What a page knows already, so that only the rest is sent: constant in size however long it is open."""

    def __init__(self) -> None:
        self._parts: dict[str, bytes] = {}
        self._series: dict[str, Any] = {}

    def since(self, frame: Frame) -> dict[str, Any]:
        """The parts and the points that are new in this frame."""
        news: dict[str, Any] = {}
        parts = {name: html for name, html in frame.parts.items() if self._is_new(name, html)}
        series = {name: found for name, line in frame.series.items() if (found := self._points(name, line))}
        if parts:
            news["parts"] = parts
        if series:
            news["series"] = series
        return news

    def _is_new(self, name: str, html: str) -> bool:
        digest = hashlib.blake2b(html.encode(), digest_size=16).digest()
        if self._parts.get(name) == digest:
            return False
        self._parts[name] = digest
        return True

    def _points(self, name: str, line: Series) -> dict[str, Any] | None:
        if not line.append:
            key = (len(line.x), line.x[-1:], line.y[-1:])
            if self._series.get(name) == key:
                return None
            self._series[name] = key
            return _rounded(line.x, line.y, "all")
        last = self._series.get(name)
        if not line.x or line.x[-1] == last:
            return None if last is not None or line.x else self._first(name, line)
        first = 0 if last is None else next((i for i, x in enumerate(line.x) if x > last), len(line.x))
        self._series[name] = line.x[-1]
        return _rounded(line.x[first:], line.y[first:], "all" if last is None else "more")

    def _first(self, name: str, line: Series) -> dict[str, Any] | None:
        """An empty line is told once, so that the page says "no data yet" instead of waiting."""
        if name in self._series:
            return None
        self._series[name] = None
        return _rounded(line.x, line.y, "all")


def _rounded(x: list[float], y: list[float | None], how: str) -> dict[str, Any]:
    """Fewer digits than a float has, more than a screen has pixels."""
    return {"how": how, "x": [round(at, 2) for at in x], "y": [None if v is None else float(f"{v:.5g}") for v in y]}


class Streams:
    """Opens streams, counts them, and ends them when the server does."""

    def __init__(self, stopping: asyncio.Event, clock: Callable[[], float], log: Any) -> None:
        self._stopping = stopping
        self._log = log
        self._clock = clock
        self._n_open = 0

    def require_room(self) -> None:
        """`Overloaded` when too many pages are open."""
        if self._n_open >= MAX_STREAMS:
            raise Overloaded(f"{MAX_STREAMS} pages are open already")

    async def events(
        self, look: Callable[[], Awaitable[Frame]], still_welcome: Callable[[], Awaitable[Any]]
    ) -> AsyncIterator[str]:
        """The text of a stream: what changes, each second, until nothing will, or the visitor or the server goes."""
        self._n_open += 1
        try:
            yield "retry: 1500\n\n"
            async for event in self._loop(look, still_welcome):
                yield event
        finally:
            self._n_open -= 1

    async def _loop(
        self, look: Callable[[], Awaitable[Frame]], still_welcome: Callable[[], Awaitable[Any]]
    ) -> AsyncIterator[str]:
        changes, quiet_s, unchecked_s = Changes(), BEAT_S, 0.0
        while not self._stopping.is_set():
            try:
                if unchecked_s >= CHECK_S:
                    await still_welcome()
                    unchecked_s = 0.0
                frame = await look()
            except FedbanditError as error:
                yield _event("trouble", {"error": error.code, "message": str(error)})
                return
            except Exception as error:  # noqa: BLE001 - the visitor hears of it, the operator gets the traceback
                self._log.error("page_failed", exc_info=error)
                yield _event("trouble", {"error": "internal_error", "message": "the server failed"})
                return
            news = changes.since(frame)
            if news or quiet_s >= BEAT_S:
                yield _event("news", {"now": round(self._clock(), 3), "shape": frame.shape, **news})
                quiet_s = 0.0
            if frame.is_final:
                yield _event("over", {})
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), INTERVAL_S)
            quiet_s += INTERVAL_S
            unchecked_s += INTERVAL_S


def _event(kind: str, data: Mapping[str, Any]) -> str:
    return f"event: {kind}\ndata: {as_json(data)}\n\n"
