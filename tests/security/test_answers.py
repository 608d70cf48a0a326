"""Invalid replies: each is a named error, and an agent with saved state continues to decide."""

import json
import socket
import threading
from contextlib import contextmanager, suppress

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import FedbanditError, LiveError, NotReachable
from fedbandit.http_client import parse_retry_after
from fedbandit.sdk import HttpTransport, open_agent
from fedbandit.wire import codec
from fedbandit.wire.settings import ModelDescription
from tests.sdk.helpers import make_hub
from tests.sdk.stub import running_stub

X = np.eye(3)
TOKEN = "secret-token"
DEEP = b"[" * 100_000 + b"]" * 100_000


def head(status="200 OK", **headers):
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"


def whole(body, status="200 OK", **headers):
    return head(status, Content_Length=len(body), **headers) + body


def message(**changes):
    """A state of the server with some fields changed."""
    stats = np.concatenate([np.eye(3)[np.triu_indices(3)], np.zeros(3), [0.0, 0.0, 0.0]]).astype("<f8").tobytes()
    fields = {"v": 1, "agent": "a", "version": 1, "acknowledged": 0, "dim": 3, "stats": stats, "settings": "1"}
    return codec._encoder.encode({**fields, **changes})


ANSWERS = {
    "Latin-1 in JSON": whole(b'{"error": "caf\xe9"}', "500 Oops"),
    "Latin-1 in a refusal": whole(b'{"error": "caf\xe9", "message": "\xff"}', "403 No"),
    "JSON without end": whole(b'{"error": ' + DEEP + b"}", "500 Oops"),
    "an error that is no text": whole(b'{"error": {"a": [1, 2]}, "message": 7}', "409 Conflict"),
    "a lone surrogate": whole(b'{"error": "\\ud800", "message": "x\\n\\u0000y"}', "422 No"),
    "a huge year": whole(b"{}", "503 Busy", Retry_After="Fri, 31 Dec 99999 23:59:59 GMT"),
    "the last year": whole(b"{}", "503 Busy", Retry_After="Fri, 31 Dec 9999 23:59:59 -2359"),
    "a zone beyond a day": whole(b"{}", "503 Busy", Retry_After="Fri, 31 Dec 2027 23:59:59 +9999"),
    "an endless number": whole(b"{}", "429 Busy", Retry_After="9" * 5000),
    "a version of 2^63": whole(message(version=1 << 63)),
    "a version of 2^64 - 1": whole(message(version=(1 << 64) - 1)),
    "an acknowledgement of 2^63": whole(message(acknowledged=1 << 63)),
    "msgpack without end": whole(b"\x91" * 100_000),
    "text that is not UTF-8": whole(message().replace(b"\xa1a", b"\xa1\xff")),
    "a status that is none": b"HTTP/1.1 abc OK\r\n\r\n",
    "a status of five digits": b"HTTP/1.1 99999 OK\r\nContent-Length: 0\r\n\r\n",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(500)) + b"\r\n",
    "a header without end": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    "two lengths": head(Content_Length="5, 7") + b"hello",
    "a length that is none": head(Content_Length="many") + b"hello",
    "a chunk that is none": head(Transfer_Encoding="chunked") + b"zz\r\nhello\r\n",
    "a tag that cannot be sent back": whole(b"x", ETag='"caf\xe9\x01"'),
    "nothing": b"",
}


@contextmanager
def server_that_says(answer):
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    connection.settimeout(0.2)
                    connection.recv(65536)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


@pytest.mark.parametrize("name", ANSWERS)
def test_a_hostile_answer_is_a_named_error_to_every_call(name):
    with server_that_says(ANSWERS[name]) as url:
        transport = HttpTransport(url, model="local", token=TOKEN)
        for call in (
            lambda: transport.describe(timeout_s=2.0),
            lambda: transport.sync(b"upload", timeout_s=2.0),
            lambda: transport.state("life", None, timeout_s=2.0),
        ):
            with pytest.raises(FedbanditError):
                call()
        transport.close()


REFUSALS = (
    b"HTTP/1.1 403",
    b"HTTP/1.1 409",
    b"HTTP/1.1 422",
)  # a start fails with a named error, whatever their body is


@pytest.mark.parametrize("name", [name for name, answer in ANSWERS.items() if not answer.startswith(REFUSALS)])
def test_an_agent_with_a_past_starts_and_decides_on_hostile_answers(name, tmp_path):
    with running_stub(make_hub()) as stub, fb.connect(stub.url, model="local", token=TOKEN, state_dir=tmp_path) as a:
        a.observe(a.choose(X), 1.0)
        a.flush(5.0)
    with (
        server_that_says(ANSWERS[name]) as url,
        fb.connect(url, model="local", token=TOKEN, state_dir=tmp_path, timeout_s=2.0) as agent,
    ):
        agent.observe(agent.choose(X), 1.0)
        assert agent.status().last_error_code == "not_reachable"
        assert agent.status().rounds == 2


SETTINGS = {"name": "local", "dim": 3, "lam": 1.0, "alpha": 0.5, "radius": {"kind": "constant", "beta": 0.5}}


@pytest.mark.parametrize(
    "changes",
    [
        *({"dim": 10**9}, {"dim": True}, {"dim": "3"}, {"dim": None}, {"dim": 3.5}, {"lam": "x"}, {"lam": [1]}),
        *({"lam": 10**400}, {"alpha": {}}, {"alpha": "many"}, {"radius": 7}, {"radius": {}}, {"radius": None}),
        *({"features": 5}, {"features": [1, 2, 3]}, {"features": {"a": 1}}, {"action_bound": "x"}),
        *({"reward_bound": 10**400}, {"reward_bound": []}, {"action_bound": {"a": [[]]}}),
    ],
    ids=str,
)
def test_settings_that_are_none_are_named_and_do_not_stop_an_agent_with_a_past(changes, tmp_path):
    with pytest.raises(fb.errors.FormatError):
        ModelDescription.from_dict({**SETTINGS, **changes})
    hub = make_hub()
    open_agent(hub.transport("a"), model="local", state_dir=tmp_path).close()
    way = hub.transport("a")
    honest = way.describe(timeout_s=1.0)
    way.describe = lambda *, timeout_s: {**honest, **changes}
    with open_agent(way, model="local", state_dir=tmp_path) as agent:
        agent.choose(X)
    with pytest.raises(LiveError, match="a first start needs the server"):
        open_agent(way, model="local")


@pytest.mark.parametrize("header", ["Fri, 31 Dec 99999 23:59:59 GMT", "9" * 400, "-1", "nan", "Fri, 99 Foo", "::"])
def test_a_wish_that_cannot_be_read_is_none(header):
    from datetime import UTC, datetime

    found = parse_retry_after(header, datetime.now(UTC))
    assert found is None or found >= 0.0


def test_the_words_of_a_server_fit_a_log_line():
    body = json.dumps({"error": "bad\nname", "message": "a\r\nforged line \u0000" + "x" * 10_000}).encode()
    with server_that_says(whole(body, "500 Oops")) as url:
        transport = HttpTransport(url, model="local", token=TOKEN)
        with pytest.raises(NotReachable) as caught:
            transport.sync(b"upload", timeout_s=2.0)
        assert str(caught.value).isprintable() and len(str(caught.value)) < 800
        transport.close()
