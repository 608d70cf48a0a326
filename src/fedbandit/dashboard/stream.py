"""Server-sent events: each open view receives its changes, once per second."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from fedbandit.dashboard.chart_series import ChartSeries
from fedbandit.dashboard.components import RenderedView
from fedbandit.dashboard.markup import as_json
from fedbandit.errors import FedbanditError, Overloaded

INTERVAL_S = 1.0
HEARTBEAT_S = 5.0  # an event is sent this often even when nothing changes
MAX_STREAMS = 200


class StreamChanges:
    """What one stream has already sent, so that only changes are sent; of bounded size."""

    def __init__(self) -> None:
        self._parts: dict[str, bytes] = {}
        self._series: dict[str, Any] = {}

    def since(self, rendered: RenderedView) -> dict[str, Any]:
        """The parts and the points that are new in this version of the view."""
        parts = {name: html for name, html in rendered.parts.items() if self._is_new(name, html)}
        series = {name: found for name, line in rendered.series.items() if (found := self._points(name, line))}
        return {name: found for name, found in (("parts", parts), ("series", series)) if found}

    def _is_new(self, name: str, html: str) -> bool:
        digest = hashlib.blake2b(html.encode(), digest_size=16).digest()
        if self._parts.get(name) == digest:
            return False
        self._parts[name] = digest
        return True

    def _points(self, name: str, line: ChartSeries) -> dict[str, Any] | None:
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

    def _first(self, name: str, line: ChartSeries) -> dict[str, Any] | None:
        """Send an empty line once, so that its chart shows "No data yet"."""
        if name in self._series:
            return None
        self._series[name] = None
        return _rounded(line.x, line.y, "all")


def _rounded(x: list[float], y: list[float | None], how: str) -> dict[str, Any]:
    """Points with as many digits as a chart can show."""
    return {"how": how, "x": [round(at, 2) for at in x], "y": [None if v is None else float(f"{v:.5g}") for v in y]}


class EventStreams:
    """Opens streams, counts them, and ends them when the server stops."""

    def __init__(self, stopping: asyncio.Event, clock: Callable[[], float], log: Any) -> None:
        self._stopping = stopping
        self._log = log
        self._clock = clock
        self._n_open = 0

    def require_room(self) -> None:
        """`Overloaded` when too many streams are open."""
        if self._n_open >= MAX_STREAMS:
            raise Overloaded(f"{MAX_STREAMS} views are open already")

    async def events(
        self, render: Callable[[], Awaitable[RenderedView]], authorise: Callable[[], Awaitable[Any]]
    ) -> AsyncIterator[str]:
        """The events of a stream, every second, until the visitor disconnects or the server stops."""
        self._n_open += 1
        try:
            yield "retry: 1500\n\n"
            async for event in self._loop(render, authorise):
                yield event
        finally:
            self._n_open -= 1

    async def _loop(
        self, render: Callable[[], Awaitable[RenderedView]], authorise: Callable[[], Awaitable[Any]]
    ) -> AsyncIterator[str]:
        changes, quiet_s = StreamChanges(), HEARTBEAT_S
        while not self._stopping.is_set():
            try:
                await authorise()  # each time: a token may have been revoked since
                rendered = await render()
            except FedbanditError as error:
                yield _event("failure", {"error": error.code, "message": str(error)})
                return
            except Exception as error:  # noqa: BLE001 - shown to the visitor, logged with its traceback
                self._log.error("view_failed", exc_info=error)
                yield _event("failure", {"error": "internal_error", "message": "the server failed"})
                return
            update = changes.since(rendered)
            if update or quiet_s >= HEARTBEAT_S:
                yield _event("update", {"now": round(self._clock(), 3), "shape": rendered.shape, **update})
                quiet_s = 0.0
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), INTERVAL_S)
            quiet_s += INTERVAL_S


def _event(kind: str, data: Mapping[str, Any]) -> str:
    return f"event: {kind}\ndata: {as_json(data)}\n\n"
