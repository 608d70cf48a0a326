"""Calls end in time whatever the server does, and `flush` tries as long as it was told to."""

import socket
import threading
import time
from contextlib import contextmanager, suppress
from random import Random

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import NotReachable
from fedbandit.sdk import HttpTransport
from fedbandit.sdk.sync_client import Backoff
from tests.sdk.helpers import Way, make_hub, make_live

X = np.eye(3)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n"


@contextmanager
def dripping_server(start: bytes, drip: bytes):
    """Reads whatever comes, answers with `start` and then with `drip` every 50 ms, for ten seconds."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve(connection):
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(start)
            for _ in range(200):  # so that a call without a deadline fails, and does not hang
                if over.wait(0.05):
                    return
                connection.sendall(drip)

    def accept():
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.close()


@pytest.mark.parametrize(
    ("start", "drip"),
    [(b"", b"H"), (b"HTTP/1.1 200 OK\r\n", b"X"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n"), (HEAD + b"\r\n", b"x")],
    ids=["status line", "headers", "interim answers", "body"],
)
def test_a_dripping_server_takes_no_longer_than_the_timeout(start, drip):
    with dripping_server(start, drip) as url:
        transport = HttpTransport(url, model="m", token="t")
        begun = time.monotonic()
        with pytest.raises(NotReachable):
            transport.sync(b"upload", timeout_s=0.4)
        assert time.monotonic() - begun < 1.5
        transport.close()


def test_a_server_that_does_not_read_takes_no_longer_than_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transport = HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}", model="m", token="t")
        begun = time.monotonic()
        with pytest.raises(NotReachable):
            transport.sync(bytes(50_000_000), timeout_s=0.4)
        assert time.monotonic() - begun < 3.0
        transport.close()


def test_connecting_to_a_dripping_server_ends_in_time():
    with dripping_server(HEAD + b"\r\n", b" ") as url:
        begun = time.monotonic()
        with pytest.raises(NotReachable):
            fb.connect(url, model="m", token="t", timeout_s=0.4)
        assert time.monotonic() - begun < 3.0


def test_flush_tries_until_its_deadline_whatever_the_back_off_is():
    hub = make_hub(alpha=np.inf)
    way = Way(hub)
    with make_live(way, backoff=Backoff(Random(1), first_s=300.0, most_s=300.0)) as agent:
        way.down = True
        agent.observe(X[0], 1.0)
        with pytest.raises(NotReachable):
            agent.flush(0.1)
        assert agent.status().next_attempt_s > 5.0  # by the back-off it would not be tried again soon
        threading.Timer(0.3, lambda: setattr(way, "down", False)).start()
        begun = time.monotonic()
        agent.flush(30.0)
        assert time.monotonic() - begun < 5.0
        assert hub.server.stats.n_obs == 1


def test_the_tries_of_flush_do_not_put_off_those_of_the_background():
    way = Way(make_hub(alpha=np.inf))
    with make_live(way, backoff=Backoff(Random(1), first_s=8.0, most_s=600.0)) as agent:
        way.down = True
        agent.observe(X[0], 1.0)
        with pytest.raises(NotReachable):
            agent.flush(0.8)
        assert len(way.bodies) >= 4
        assert agent._client._backoff.n_failures == 1
        way.down = False


def test_a_flush_keeps_its_time_over_several_tries():
    way = Way(make_hub(alpha=np.inf))
    with make_live(way, timeout_s=10.0) as agent:
        agent.observe(X[0], 1.0)
        way.gate.clear()  # each try takes as long as it may
        begun = time.monotonic()
        with pytest.raises(NotReachable, match="1 observations are kept"):
            agent.flush(0.5)
        assert time.monotonic() - begun < 1.5
        way.gate.set()
