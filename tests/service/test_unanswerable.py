"""Answers that cannot be given as they should: the connection is gone, or the store is away at a refusal."""

import asyncio
import json
import time

import pytest

from fedbandit.errors import StoreUnavailable
from tests.service.test_endpoint import LATE_S, ServerThread, nan, spoilt


@pytest.fixture
def server():
    made = ServerThread()
    made.start()
    yield made
    made.stop()


def errors(server):
    entries = [json.loads(line) for line in server.log.getvalue().splitlines()]
    return [entry for entry in entries if entry["level"] == "error"]


def test_a_connection_may_be_ended_with_requests_queued_behind_the_first(server):
    line = server.join("a")
    load = server.store.load
    begun, go_on = [], []

    async def slow(model):
        begun.append(model)
        while not go_on:
            await asyncio.sleep(0.01)
        return await load(model)

    server.store.load = slow
    get = f"GET /v1/models/news HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {line.token}\r\n\r\n".encode()
    line.socket.sendall(3 * get)
    wait_for(lambda: begun)
    (connection,) = server.connections._authenticated
    server.loop.call_soon_threadsafe(server.connections.drop, connection, "unread_responses")
    wait_for(lambda: len(server.connections) == 0)
    go_on.append(True)
    time.sleep(0.3)
    assert errors(server) == []


def test_a_refusal_that_cannot_be_checked_is_answered_by_what_is_missing(server):
    line = server.join("a")

    async def away(model):
        raise StoreUnavailable("the database failed: it is starting up")

    server.store.load = away
    status, _, body = line.send(spoilt("a", 2, nan))
    assert (status, json.loads(body)["error"]) == (503, "store_unavailable")
    assert errors(server) == []


def wait_for(holds):
    end = time.monotonic() + LATE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
