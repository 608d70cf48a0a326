"""Limits on memory, descriptors and time of a client, with and without a token, on every route that reads a body.

A real server process each time. The sizes are small enough for a quick run and many times what is allowed.
"""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path

import pytest

from fedbandit.service.http.bounded_protocol import MAX_PIPELINED
from fedbandit.wire import codec
from tests.security.limits import (
    Crowd,
    Growth,
    answer,
    drip,
    eventually,
    is_closed,
    limited_server,
    log_events,
    n_closed,
    n_open_files,
    push,
    rss_mb,
)
from tests.service.uploads import incoming, request

READING = (
    "/login",
    "/logout",
    "/v1/models",
    "/v1/models/news/agents",
    "/v1/tokens",
    "/v1/models/news/sync",
)
BIG_DIM = 300


def post(path, length, *, token="", more=""):
    secret = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{secret}Content-Length: {length}\r\n{more}\r\n".encode()


def get(path, token):
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Short times, so that tests are quick."""
    folder = tmp_path_factory.mktemp("limits")
    with limited_server(folder, body_timeout_s=1, head_timeout_s=1, max_inflight_mb=16, max_outgoing_mb=16) as running:
        running.add_model("news")
        running.add_model("large", dim=BIG_DIM)
        yield running


@pytest.fixture(scope="module")
def tokens(server):
    return {
        "none": "",
        "wrong": "fb_" + "x" * 43,
        "agent": server.add_agent("news", "a"),
        "viewer": server.call("POST", "/v1/tokens", {"name": "v"})["token"],
        "admin": server.admin_token,
    }


WHO = ("none", "wrong", "agent", "viewer", "admin")


# -- time


@pytest.mark.parametrize("path", READING)
def test_no_route_waits_for_a_body_longer_than_the_limit(server, tokens, path):
    with Crowd(server) as crowd:
        lines = dict(zip(WHO, crowd.open(len(WHO)), strict=True))
        for who, line in lines.items():
            line.sendall(post(path, 100, token=tokens[who]) + b"name=")
        for who, line in lines.items():
            assert answer(line)[0] in (303, 401, 403, 408), who
            assert is_closed(line, 5.0), who


def test_a_body_that_drips_does_not_last_longer(server):
    with Crowd(server) as crowd:
        (line,) = crowd.open()
        line.sendall(post("/login", 8000))
        assert drip(line, b"x", for_s=5.0)


def test_a_head_that_drips_is_ended(server):
    with Crowd(server) as crowd:
        (line,) = crowd.open()
        line.sendall(b"GET /healthz HTTP/1.1\r\na: ")
        assert drip(line, b"b", for_s=5.0)  # only the time limit applies


# -- heads


HEADS = {
    "many headers": lambda n: b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: " + b"b: c\r\n" * (n // 6),
    "long headers": lambda n: b"GET / HTTP/1.1\r\nHost: x\r\n" + (b"a: " + b"b" * 8000 + b"\r\n") * (n // 8005),
    "one long value": lambda n: b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"b" * n,
    "one long name": lambda n: b"GET / HTTP/1.1\r\nHost: x\r\n" + b"b" * n,
    "a long address": lambda n: b"GET /" + b"b" * n,
    "trailers": lambda n: (
        b"POST /login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"b: c\r\n" * (n // 6)
    ),
    "one long trailer": lambda n: (
        b"POST /login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\na: " + b"b" * n
    ),
    "a chunk's extension": lambda n: (
        b"POST /login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;a=" + b"b" * n
    ),
}


def assert_head_is_refused(server, what, n_bytes):
    growth = Growth(server)
    with Crowd(server) as crowd:
        (line,) = crowd.open()
        assert push(line, HEADS[what](n_bytes)) < n_bytes, "all of it was read"
        status, headers, told = answer(line)
        if status:  # unless the connection was reset first
            assert (status, told["error"], headers["connection"]) == (431, "head_too_large", "close")
    assert growth.mb < 20
    assert server.request("GET", "/healthz").status == 200


@pytest.mark.parametrize("what", HEADS)
def test_a_long_head_costs_no_memory(server, what):
    assert_head_is_refused(server, what, 30_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("what", HEADS)
def test_an_endless_head_costs_no_memory(server, what):
    assert_head_is_refused(server, what, 600_000_000)


@pytest.mark.parametrize("n", [17_000, 60_000])
def test_a_head_beyond_the_limit_is_refused_by_name(server, n):
    with Crowd(server) as crowd:
        for text in (b"a: " + b"b" * n, b"c: d\r\n" * (n // 6)):
            (line,) = crowd.open()
            line.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + text + b"\r\n\r\n")
            status, headers, told = answer(line)
            assert (status, told["error"], headers["connection"]) == (431, "head_too_large", "close")
            assert "x-request-id" in headers


def test_a_head_within_the_limit_is_served_however_it_comes(server):
    message = b"GET /healthz HTTP/1.1\r\nHost: x\r\nCookie: " + b"c" * 12_000 + b"\r\n\r\n"
    with Crowd(server) as crowd:
        (line,) = crowd.open()
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for size in (1 << 20, 5000, 700):
            for at in range(0, len(message), size):
                line.sendall(message[at : at + size])
                time.sleep(0.001)
            assert answer(line)[0] == 200


def test_half_heads_on_many_connections_cost_little(server):
    growth = Growth(server)
    with Crowd(server) as crowd:
        for line in crowd.open(300):
            line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 30 + b"c: " + b"d" * 15_000)
        assert server.request("GET", "/healthz").status == 200
        assert growth.mb < 40
        assert all(is_closed(line, 5.0) for line in crowd.sockets)


# -- bodies


def assert_bodies_stay_within_memory(server, tokens, path, who, n):
    size = 900_000
    growth = Growth(server)
    with Crowd(server) as crowd:
        lines = crowd.open(n)
        for line in lines:
            line.settimeout(0.2)
            push(line, post(path, size + 100, token=tokens[who]) + bytes(size))
        eventually(lambda: False, 0.3)
        assert growth.mb < 400  # 20 on a quiet machine, 195 on a very busy one; 2 300 without the limit
    assert eventually(lambda: server.request("GET", "/healthz").status == 200)


@pytest.mark.parametrize("who", ["none", "wrong", "viewer", "admin"])
@pytest.mark.parametrize("path", ["/login", "/v1/models", "/v1/models/news/sync", "/nothing", "/healthz"])
def test_bodies_on_many_connections_cost_no_more_than_the_limit(server, tokens, path, who):
    assert_bodies_stay_within_memory(server, tokens, path, who, 120)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/login", "/v1/models", "/v1/models/news/sync"])
def test_bodies_without_a_token_on_two_thousand_connections(server, tokens, path):
    assert_bodies_stay_within_memory(server, tokens, path, "none", 2000)


def test_nobody_without_a_token_is_asked_for_a_body(server, tokens):
    """The answer comes before the body, and before `100 Continue`."""
    with Crowd(server) as crowd:
        for path in ("/v1/models", "/v1/tokens", "/v1/models/news/sync"):
            for who in ("none", "wrong"):
                (line,) = crowd.open()
                line.sendall(post(path, 100_000, token=tokens[who], more="Expect: 100-continue\r\n"))
                assert answer(line)[0] == 401


def test_requests_far_ahead_of_their_answers_are_refused(server):
    with Crowd(server) as crowd:
        (line,) = crowd.open()
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
        data = b""
        with contextlib.suppress(ConnectionError):
            while piece := line.recv(1 << 16):
                data += piece
        statuses = [text.split()[0] for text in data.split(b"HTTP/1.1 ")[1:]]
        assert statuses == [b"200"] * (MAX_PIPELINED + 1) + [b"503"]


def test_pipelined_requests_are_bounded(server):
    growth = Growth(server)
    with Crowd(server) as crowd:
        for line in crowd.open(20, receive_buffer=4096):
            line.settimeout(0.1)
            push(line, b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 20_000)
        assert growth.mb < 60
        assert server.request("GET", "/healthz").status == 200


# -- unread replies


def assert_unread_responses_stay_within_memory(server, ask, n, *, within_s=10.0):
    growth, before = Growth(server), n_closed(server, "unread_responses")
    with Crowd(server) as crowd:
        for line in crowd.open(n, receive_buffer=4096):
            line.sendall(ask * 3)
        assert eventually(lambda: n_closed(server, "unread_responses") >= before + n, within_s), "they are still there"
        assert growth.mb < 70
    assert server.request("GET", "/healthz").status == 200


def test_clients_that_never_read_are_dropped(server):
    """Each answer is 363 kB; without a limit they would hold 109 MB and more."""
    assert_unread_responses_stay_within_memory(server, get("/v1/models/large/state", server.admin_token), 300)


def test_clients_that_never_read_uploads_answers_are_dropped(server):
    token = server.add_agent("large", "silent")
    body = codec.encode(request(incoming("silent", 1, dim=BIG_DIM), dim=BIG_DIM))
    ask = post("/v1/models/large/sync", len(body), token=token) + body
    growth, before = Growth(server), n_closed(server, "unread_responses")
    with Crowd(server) as crowd:
        for line in crowd.open(80, receive_buffer=4096):
            line.sendall(ask)
        # How many are refused with 503 instead depends on how fast the others are merged.
        assert eventually(lambda: n_closed(server, "unread_responses") >= before + 10)
        assert growth.mb < 90


def test_a_client_that_reads_slowly_gets_all(server):
    with Crowd(server) as crowd:
        (line,) = crowd.open(receive_buffer=4096)
        line.sendall(get("/v1/models/large/state", server.admin_token))
        data = b""
        while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < 8 * BIG_DIM * (BIG_DIM + 3) // 2:
            piece = line.recv(1024)
            assert piece, "the server gave up"
            data += piece
            time.sleep(0.005)


# -- connections


@pytest.fixture(scope="module")
def small_server(tmp_path_factory):
    """A server with 256 descriptors."""
    with limited_server(tmp_path_factory.mktemp("small"), n_descriptors="-n 256") as running:
        running.add_model("news")
        yield running


@pytest.mark.parametrize("said", [b"", b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nname="])
def test_silent_sockets_do_not_keep_others_out(small_server, said):
    server = small_server
    token = server.add_agent("news", f"working-{len(said)}")
    with Crowd(server) as crowd:
        (known,) = crowd.open()
        for sequence in (1, 2):
            body = codec.encode(request(incoming(f"working-{len(said)}", sequence)))
            known.sendall(post("/v1/models/news/sync", len(body), token=token) + body)
            assert answer(known)[0] == 200
        for line in crowd.open(400):
            if said:
                push(line, said)
        # A new client is accepted, and an authenticated one stays connected.
        server.http.clear()
        began = time.monotonic()
        assert server.request("GET", "/healthz").status == 200
        assert server.request("GET", "/v1/models").status == 200
        assert time.monotonic() - began < 5.0
        body = codec.encode(request(incoming(f"working-{len(said)}", 3)))
        known.sendall(post("/v1/models/news/sync", len(body), token=token) + body)
        assert answer(known)[0] == 200
        assert n_open_files(server) < 256
        assert eventually(lambda: log_events(server, "connections_closed"))
        told = log_events(server, "connections_closed")[-1]
        assert told["limit"] < 256 and told["reasons"]["connection_limit"] > 0
        assert n_closed(server, "connection_limit") >= 100


def test_connections_with_tokens_fill_the_limit_and_the_idle_ones_make_room(small_server):
    server = small_server
    with Crowd(server) as crowd:
        for _ in range(300):
            (line,) = crowd.open()
            line.sendall(get("/v1/models", server.admin_token))
            assert answer(line)[0] == 200
        assert n_open_files(server) < 256


def test_soft_descriptor_limit_is_raised(tmp_path):
    with limited_server(tmp_path, n_descriptors="-Sn 100") as server:
        text = Path(f"/proc/{server.pid}/limits").read_text()
        soft, hard = next(line.split()[3:5] for line in text.splitlines() if line.startswith("Max open files"))
        assert soft == hard


# -- malformed requests


MALFORMED = {
    "no http": b"hello\r\n\r\n",
    "a bad method": b"GE T / HTTP/1.1\r\n\r\n",
    "a bad version": b"GET / HTTP/9.9\r\n\r\n",
    "a bad header": b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
    "a control character": b"GET / HTTP/1.1\r\nA: \x00\r\n\r\n",
    "two lengths": b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "length and chunks": (
        b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "a length that is no number": b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
    "a bad chunk": b"POST /login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "an address that is none": b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
    "a tunnel": b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: elsewhere\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_requests_are_answered_in_the_one_shape(server, what):
    with Crowd(server) as crowd:
        (line,) = crowd.open()
        line.sendall(MALFORMED[what])
        status, headers, told = answer(line)
        assert status == 400
        assert set(told) == {"error", "message"} and told["error"] == "malformed_request"
        assert headers["connection"] == "close" and "x-request-id" in headers
        assert is_closed(line, 5.0)


def test_what_comes_before_a_malformed_request_has_its_answer_first(server):
    with Crowd(server) as crowd:
        (line,) = crowd.open()
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nwhat?\r\n\r\n")
        data = b""
        while piece := line.recv(1 << 16):
            data += piece
        assert [text.split()[0] for text in data.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400"]


# -- upgrades


def test_an_upload_that_offers_http2_is_served(server):
    token = server.add_agent("news", "h2c")
    offer = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
    with Crowd(server) as crowd:
        (line,) = crowd.open()
        for sequence in (1, 2, 3):
            body = codec.encode(request(incoming("h2c", sequence)))
            message = post("/v1/models/news/sync", len(body), token=token, more=offer) + body
            cut = len(message) if sequence == 1 else len(message) - len(body) + 7 * (sequence - 2)
            line.sendall(message[:cut])
            time.sleep(0.05)
            line.sendall(message[cut:])
            assert answer(line)[0] == 200
        line.sendall(f"GET /healthz HTTP/1.1\r\nHost: x\r\n{offer}\r\n".encode())
        assert answer(line)[0] == 200
    assert server.call("GET", "/v1/models/news/agents/h2c")["n_uploads"] == 3


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
def test_a_body_behind_an_upgrade_is_no_request(server, offer):
    hidden = get("/v1/models", server.admin_token)
    with Crowd(server) as crowd:
        (line,) = crowd.open()
        more = f"Connection: Upgrade\r\nUpgrade: {offer}\r\n"
        line.sendall(post("/healthz", len(hidden), more=more))
        time.sleep(0.1)
        line.sendall(hidden)
        assert answer(line)[0] == 405
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert answer(line)[2] == {"status": "ok"}, "the body was served as a request"


# -- streams


def test_the_stream_of_a_revoked_viewer_ends_within_seconds(server):
    token = server.call("POST", "/v1/tokens", {"name": "leaver"})["token"]
    with Crowd(server) as crowd:
        (line,) = crowd.open()
        line.sendall(get("/live/models/news", token))
        assert b"event: update" in line.recv(1 << 16) + line.recv(1 << 16)
        server.call("DELETE", "/v1/tokens/leaver")
        revoked, data = time.monotonic(), b""
        while b"event: failure" not in data:
            data += line.recv(1 << 16)
            assert time.monotonic() < revoked + 3.0, "it goes on"
        assert b"unauthenticated" in data


def test_after_all_of_this_the_server_is_as_small_as_before(server):
    assert rss_mb(server.pid) < 250
    assert eventually(lambda: n_open_files(server) < 60)
