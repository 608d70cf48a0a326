"""Answers that cannot be given as they should: the connection is gone, or the store is away at a refusal."""

import asyncio
import json
import time

import pytest

from fedbandit.errors import StoreUnavailable
from tests.service.test_express import LATE_S, Place, nan, spoilt


@pytest.fixture
def place():
    made = Place()
    made.start()
    yield made
    made.stop()


def errors(place):
    entries = [json.loads(line) for line in place.log.getvalue().splitlines()]
    return [entry for entry in entries if entry["level"] == "error"]


def test_a_connection_may_be_ended_with_requests_queued_behind_the_first(place):
    line = place.join("a")
    load = place.store.load
    begun, go_on = [], []

    async def slow(model):
        begun.append(model)
        while not go_on:
            await asyncio.sleep(0.01)
        return await load(model)

    place.store.load = slow
    get = f"GET /v1/models/news HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {line.token}\r\n\r\n".encode()
    line.socket.sendall(3 * get)
    wait_for(lambda: begun)
    (connection,) = place.connections._known
    place.loop.call_soon_threadsafe(place.connections.drop, connection, "unread_answers")
    wait_for(lambda: len(place.connections) == 0)
    go_on.append(True)
    time.sleep(0.3)
    assert errors(place) == []


def test_a_refusal_that_cannot_be_checked_is_answered_by_what_is_missing(place):
    line = place.join("a")

    async def away(model):
        raise StoreUnavailable("the database failed: it is starting up")

    place.store.load = away
    status, _, body = line.send(spoilt("a", 2, nan))
    assert (status, json.loads(body)["error"]) == (503, "store_unavailable")
    assert errors(place) == []


def wait_for(holds):
    end = time.monotonic() + LATE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)
