"""The network between agents and servers: a proxy that drops, delays, duplicates, reorders and truncates messages."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from random import Random
from typing import NamedTuple

from tests.chaos.traffic_monitor import Monitors, TrafficMonitor

CHANCE = 0.5  # for each request, while a fault is active
ALWAYS = ("drip_replies",)
LONGEST_DELAY_S = 4.0  # longer than the agents' time limit
ANSWER_S = 20.0
DRIP_S = 0.1  # between two bytes, far below any limit on one read
Broken = (OSError, EOFError, asyncio.IncompleteReadError, TimeoutError)


class Exchange(NamedTuple):
    """One message: its head, unchanged, and its body."""

    head: bytes
    body: bytes

    @property
    def raw(self) -> bytes:
        return self.head + self.body

    @property
    def path(self) -> str:
        return self.head.split(b" ", 2)[1].decode()

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])


class Proxy:
    """Runs in a thread with an event loop of its own."""

    def __init__(self, ports: list[int], traffic: TrafficMonitor | Monitors, seed: int) -> None:
        self.ports, self.traffic, self.port = ports, traffic, 0
        self.counts: Counter[str] = Counter()
        self._rng = Random(f"network {seed}")
        self._until: dict[str, float] = {}
        self._tasks: set[asyncio.Task[object]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10.0)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    def inject(self, kind: str, seconds: float) -> None:
        """Activate a fault for some seconds."""
        self._until[kind] = time.monotonic() + seconds

    def clear_faults(self) -> None:
        self._until.clear()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- one client

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await _read(reader)
                self.traffic.request(request.path, request.body)
                reply = await self._carry(request)
                if reply is None or not await self._answer(writer, reply):
                    return
        except Broken:
            return
        finally:
            writer.close()

    def _hits(self, kind: str) -> bool:
        if time.monotonic() >= self._until.get(kind, 0.0):
            return False
        if kind not in ALWAYS and self._rng.random() >= CHANCE:
            return False
        self.counts[kind] += 1
        return True

    async def _carry(self, request: Exchange) -> Exchange | None:
        """The reply to a request, or None where the connection is closed instead."""
        if self._hits("drop_requests"):
            return None
        if self._hits("delay"):
            await asyncio.sleep(self._rng.uniform(0.0, LONGEST_DELAY_S))
        if self._hits("cut_requests"):
            await self._send_half(request)
            return None
        if self._hits("reorder"):  # the agent's retry arrives before this one
            self._later(request)
            return None
        if self._hits("replay_late"):
            self._later(request)
        if self._hits("duplicate"):
            both = await asyncio.gather(self._forward(request), self._forward(request))
            return self._rng.choice(both)
        return await self._forward(request)

    async def _answer(self, writer: asyncio.StreamWriter, reply: Exchange) -> bool:
        if self._hits("cut_replies"):
            return False
        if self._hits("halve_replies"):
            writer.write(reply.raw[: len(reply.raw) // 2])
            await writer.drain()
            return False
        if self._hits("drip_replies"):
            return await self._drip(writer, reply.raw)
        writer.write(reply.raw)
        await writer.drain()
        return True

    async def _drip(self, writer: asyncio.StreamWriter, raw: bytes) -> bool:
        """Send a byte at a time until the client disconnects or the fault ends; then send the rest."""
        for n in range(len(raw)):
            if time.monotonic() >= self._until.get("drip_replies", 0.0):
                writer.write(raw[n:])
                break
            writer.write(raw[n : n + 1])
            await writer.drain()
            await asyncio.sleep(DRIP_S)
            if writer.transport.is_closing():
                return False
        await writer.drain()
        return True

    def _later(self, request: Exchange) -> None:
        async def send() -> None:
            await asyncio.sleep(self._rng.uniform(0.2, 5.0))
            await self._forward(request)

        task = self._loop.create_task(send())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- one server

    async def _forward(self, request: Exchange) -> Exchange | None:
        """Forward to any reachable server; None if there is none, or without a reply."""
        for port in self._rng.sample(self.ports, len(self.ports)):
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
            try:
                writer.write(request.raw)
                reply = await asyncio.wait_for(_read(reader), ANSWER_S)
                self.traffic.reply(request.path, request.body, reply.status, reply.body)
                return reply
            except Broken:
                self.counts["servers_broke_off"] += 1
                return None
            finally:
                writer.close()
        self.counts["no_server"] += 1
        return None

    async def _send_half(self, request: Exchange) -> None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self._rng.choice(self.ports))
            writer.write(request.raw[: len(request.raw) // 2])
            await writer.drain()
            writer.close()
        except OSError:
            return


async def _read(reader: asyncio.StreamReader) -> Exchange:
    """A request or a response whose body has a length, or none."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return Exchange(head, await reader.readexactly(length))
