"""Too much, too slow and without end: shed or cut by name, while the others go on. Real sockets, nothing timed."""

import json
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedbandit.wire import codec
from tests.live import running_server
from tests.service.uploads import incoming, request

LATE_S = 20.0  # for whatever must come by itself


def body_of(agent, sequence=1):
    return codec.encode(request(incoming(agent, sequence)))


def head_of(token, length):
    how = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return (
        f"POST /v1/models/news/sync HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: {codec.CONTENT_TYPE}\r\n{how}\r\n\r\n"
    ).encode()


def opened(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=LATE_S)


def answer_on(line):
    """Status and problem of what comes back."""
    data = b""
    while b"\r\n\r\n" not in data or not data.endswith(b"}"):
        piece = line.recv(65536)
        if not piece:
            break
        data += piece
    return int(data.split()[1]), json.loads(data.partition(b"\r\n\r\n")[2])["error"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(
        tmp_path_factory.mktemp("server"), max_queue=4, max_batch=1, environment={"FEDBANDIT_BODY_TIMEOUT_S": "1"}
    ) as running:
        running.add_model("news")
        yield running


def sends_as_usual(server, agent):
    token = server.add_agent("news", agent)
    answer = server.request("POST", "/v1/models/news/sync", token=token, body=body_of(agent))
    assert answer.status == 200, answer.data


def test_beyond_the_queue_uploads_are_shed_and_come_through_later(server):
    tokens = {f"crowd-{n}": server.add_agent("news", f"crowd-{n}") for n in range(24)}
    # Another writer holds the database, so that whatever arrives has to wait.
    blocker = sqlite3.connect(server.data_dir / "fedbandit.sqlite3", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    shed = threading.Event()

    def send(agent):
        answer = server.request("POST", "/v1/models/news/sync", token=tokens[agent], body=body_of(agent))
        if answer.status == 503:
            assert json.loads(answer.data)["error"] == "overloaded"
            assert int(answer.headers["Retry-After"]) >= 1
            shed.set()
        return agent, answer.status

    with ThreadPoolExecutor(len(tokens)) as pool:
        waiting = [pool.submit(send, agent) for agent in tokens]
        assert shed.wait(LATE_S), "nothing was shed"
        blocker.execute("ROLLBACK")
        blocker.close()
        statuses = dict(future.result() for future in waiting)
    assert set(statuses.values()) == {200, 503}
    for agent in tokens:  # a retry after the crowd is welcome, whether it was merged or shed
        assert server.request("POST", "/v1/models/news/sync", token=tokens[agent], body=body_of(agent)).status == 200
    assert server.show("news")["n_uploads"] == len(tokens)


@pytest.mark.parametrize("sent", [b"", b"half"])
def test_a_body_that_never_comes_is_cut_by_name(server, sent):
    token = server.add_agent("news", f"slow-{len(sent)}")
    with opened(server) as line:
        line.sendall(head_of(token, 100) + sent)
        sends_as_usual(server, f"other-{len(sent)}")
        assert answer_on(line) == (408, "body_too_slow")


def test_a_body_without_end_is_cut_by_name(server):
    token = server.add_agent("news", "endless")
    with opened(server) as line:
        line.sendall(head_of(token, None))
        try:
            for _ in range(10_000):
                line.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        except OSError:
            pass  # it was closed under us, as it should be
        else:
            raise AssertionError("forty megabytes were swallowed")
    sends_as_usual(server, "after-the-endless")


def test_a_body_announced_as_too_long_is_refused_unread(server):
    token = server.add_agent("news", "long")
    with opened(server) as line:
        line.sendall(head_of(token, 1 << 30))
        assert answer_on(line) == (413, "body_too_large")


def test_many_idle_connections_do_not_keep_others_out(server):
    lines = [opened(server) for _ in range(200)]
    try:
        for line in lines[:50]:
            line.sendall(b"POST /v1/mod")  # and never the rest of the head
        sends_as_usual(server, "among-idlers")
    finally:
        for line in lines:
            line.close()
