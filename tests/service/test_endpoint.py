"""The exchange endpoint behind the real HTTP protocol: responses do not depend on how the bytes of a request arrive.

The server runs in this process, on a real socket.
"""

import asyncio
import contextlib
import io
import itertools
import json
import socket
import threading
import time

import numpy as np
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit.errors import AlreadyExists, BodyTooSlow
from fedbandit.service.admin import operations
from fedbandit.service.admin.auth import hash_token
from fedbandit.service.app import make_app
from fedbandit.service.container import make_container
from fedbandit.service.exchange.handler import ExchangeHandler
from fedbandit.service.process import _config, _listen, connections_of
from fedbandit.service.settings import ServerSettings
from fedbandit.service.stores.memory import MemoryStore
from fedbandit.service.telemetry import make_logger
from fedbandit.wire import codec
from fedbandit.wire.settings import ModelSettings
from tests.service.uploads import incoming, request

LATE_S = 20.0


class ServerThread:
    """A server in a thread, with its parts accessible."""

    def __init__(self, **settings) -> None:
        self.log = io.BytesIO()
        options = ServerSettings(admin_token="admin-token-of-the-tests", **settings)
        self.store = MemoryStore()
        self.container = make_container(options, make_logger("debug", self.log), store=self.store)
        self.handler = ExchangeHandler(self.container)
        self.listener = _listen("127.0.0.1", 0)
        self.connections = connections_of(self.container)
        app = make_app(self.container, handler=self.handler)
        self.config = _config(options, app, self.connections)
        self.uvicorn = uvicorn.Server(self.config)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.uvicorn.run(sockets=[self.listener])

    def start(self) -> None:
        self.thread.start()
        end = time.monotonic() + LATE_S
        while not self.uvicorn.started:
            assert time.monotonic() < end
            time.sleep(0.01)
        self.call(operations.first_admin_token(self.container))

    def stop(self) -> None:
        self.uvicorn.should_exit = True
        self.thread.join(LATE_S)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self.container.history._task.get_loop()

    def call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LATE_S)

    def create(self, model, dim):
        settings = ModelSettings(name=model, dim=dim, lam=1.0, alpha=1.0, radius=fb.radius.fixed(0.5))
        self.call(operations.create_model(self.container, settings))

    def join(self, agent, model="news", dim=3):
        """A model if there is none yet, and an agent whose first upload is merged, so that it is known."""
        with contextlib.suppress(AlreadyExists):
            self.create(model, dim)
        token = self.call(operations.add_agent(self.container, model, agent))
        line = Line(self, token, model)
        assert line.send(body_of(agent, 1))[0] == 200
        return line


OPEN: list["Line"] = []


@pytest.fixture(autouse=True)
def hang_up():
    yield
    while OPEN:
        OPEN.pop().socket.close()


class Line:
    """A connection that says what it is told to."""

    def __init__(self, server, token, model="news") -> None:
        self.token, self.model = token, model
        self.server = server
        self.again()

    def again(self):
        if self not in OPEN:
            OPEN.append(self)
        else:
            self.socket.close()
        self.socket = socket.create_connection(self.server.listener.getsockname(), timeout=LATE_S)
        self.rest = b""

    def message(self, body, *, more="", version="1.1", length=None):
        head = (
            f"POST /v1/models/{self.model}/sync HTTP/{version}\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Length: {len(body) if length is None else length}\r\n{more}\r\n"
        )
        return head.encode() + body

    def chunked(self, body):
        head = self.message(b"", more="Transfer-Encoding: chunked\r\n").replace(b"Content-Length: 0\r\n", b"")
        chunk = b"%x\r\n" % len(body) + body + b"\r\n" if body else b""
        return head + chunk + b"0\r\n\r\n"

    def send(self, body, **options):
        self.socket.sendall(self.message(body, **options))
        return self.answer()

    def answer(self):
        """Status, headers and body of the next answer."""
        while b"\r\n\r\n" not in self.rest:
            self._more()
        head, _, self.rest = self.rest.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        assert len(headers) == len(lines), "a header came twice"
        length = int(headers["content-length"])
        while len(self.rest) < length:
            self._more()
        body, self.rest = self.rest[:length], self.rest[length:]
        return int(first.split()[1]), headers, body

    def _more(self):
        piece = self.socket.recv(1 << 16)
        assert piece, "the server hung up"
        self.rest += piece

    def is_closed(self):
        """Waits for the server to hang up."""
        return self.socket.recv(1 << 16) == b""


def body_of(agent, sequence, **changes):
    return codec.encode(request(incoming(agent, sequence), **changes))


def spoilt(agent, sequence, change):
    """An upload whose numbers somebody changed, with a digest that fits."""
    honest = incoming(agent, sequence)
    numbers = honest.numbers.copy()
    change(numbers)
    digest = codec.digest_of(numbers.tobytes())
    return codec.encode(request(honest._replace(numbers=numbers, digest=digest)))


@pytest.fixture(scope="module")
def server():
    made = ServerThread(body_timeout_s=1.0, head_timeout_s=0.5)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def own_server():
    """For tests after which nothing is as before."""
    made = ServerThread()
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def other_server():
    """A second server, to compare with."""
    made = ServerThread(body_timeout_s=1.0, head_timeout_s=0.5)
    made.start()
    yield made
    made.stop()


def nan(numbers):
    numbers[0] = np.nan


def indefinite(numbers):
    numbers[1] = 1e6


def empty(numbers):
    numbers[-3] = 0


BODIES = {
    "the next": lambda agent: body_of(agent, 2),
    "the same again": lambda agent: body_of(agent, 1),
    "a gap": lambda agent: body_of(agent, 7),
    "other content": lambda agent: codec.encode(request(incoming(agent, 1, seed=99))),
    "somebody else's": lambda agent: body_of("nobody", 2),
    "no message": lambda agent: b"what is this?",
    "nothing": lambda agent: b"",
    "half": lambda agent: body_of(agent, 2)[:100],
    "another dimension": lambda agent: codec.encode(request(incoming(agent, 2, dim=4), dim=4)),
    "not a number": lambda agent: spoilt(agent, 2, nan),
    "indefinite": lambda agent: spoilt(agent, 2, indefinite),
    "of no observations": lambda agent: spoilt(agent, 2, empty),
    "an old life's": lambda agent: codec.encode(request(incoming(agent, 1, incarnation="life-0"))),
}


@pytest.mark.parametrize("what", BODIES)
def test_whole_and_chunked_bodies_get_the_same_response(server, what):
    answers = []
    for is_chunked in (False, True):
        model = f"{what.replace(' ', '-').replace(chr(39), '')}-{is_chunked}".lower()
        line = server.join("shop", model)
        line.socket.sendall((line.chunked if is_chunked else line.message)(BODIES[what]("shop")))
        status, headers, body = line.answer()
        told = json.loads(body) if status != 200 else codec.decode_reply(body)
        if status == 200:
            assert headers["etag"].startswith(f'"{told.version}-')
            told = (told.agent, told.version, told.acknowledged, told.dim, told.stats)
            headers["etag"] = "there"
        else:
            told["message"] = told["message"].replace(model, "")
        del headers["x-request-id"], headers["date"]
        answers.append((status, headers, told, server.call(server.store.load(model)).n_uploads))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("size", [1, 7, 150, 350])
def test_a_message_may_come_in_pieces(server, size):
    line = server.join(f"pieces-{size}")
    message = line.message(body_of(f"pieces-{size}", 2))
    line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for at in range(0, len(message), size):
        line.socket.sendall(message[at : at + size])
        if at % 50 < size:
            time.sleep(0.002)  # so that not all arrive in one
    status, _, body = line.answer()
    assert (status, codec.decode_reply(body).acknowledged) == (200, 2)


def test_a_head_inside_of_a_body_is_part_of_the_body(server):
    """A refused request whose body, piece by piece, looks like requests that came before."""
    line = server.join("smuggler")
    whole = line.message(body_of("smuggler", 2))
    assert line.send(body_of("smuggler", 2))[0] == 200
    whole_again = line.message(body_of("smuggler", 3))
    assert len(whole_again) == len(whole)
    line.socket.sendall(line.message(b"", length=3 * len(whole)).replace(line.token.encode(), b"x" * 43))
    assert line.answer()[0] == 401  # and its body is yet to come
    for _ in range(3):
        line.socket.sendall(whole_again)
        time.sleep(0.05)
    assert line.send(body_of("smuggler", 3))[0] == 200
    assert server.call(server.store.agent("news", "smuggler")).n_uploads == 3


def test_stray_line_breaks_after_a_body_do_no_harm(server):
    line = server.join("old-fashioned")
    for sequence in range(2, 6):
        line.socket.sendall(line.message(body_of("old-fashioned", sequence)) + b"\r\n")
        assert line.answer()[0] == 200


def test_what_is_pipelined_is_answered_in_order(server):
    line = server.join("pipe")
    line.socket.sendall(b"".join(line.message(body_of("pipe", sequence)) for sequence in range(2, 8)))
    answers = [line.answer() for _ in range(2, 8)]
    assert [codec.decode_reply(body).acknowledged for _, _, body in answers] == list(range(2, 8))
    assert line.send(body_of("pipe", 8))[0] == 200


@pytest.mark.parametrize("options", [{"more": "Connection: close\r\n"}, {"version": "1.0"}])
def test_a_connection_ends_when_the_client_wants_it(server, options):
    agent = f"ends-{'version' in options}"
    line = server.join(agent)
    status, headers, _ = line.send(body_of(agent, 2), **options)
    assert (status, headers["connection"]) == (200, "close")
    assert line.is_closed()


def test_revoking_is_immediate_on_an_open_connection(server):
    line = server.join("leaver")
    assert line.send(body_of("leaver", 2))[0] == 200
    server.call(server.store.revoke("news", "leaver", now=0.0))
    for _ in range(2):
        status, headers, body = line.send(body_of("leaver", 3))
        assert (status, json.loads(body)["error"]) == (401, "unauthenticated")
        assert "revoked" in json.loads(body)["message"]
        assert headers["www-authenticate"] == "Bearer"
    assert server.call(server.store.agent("news", "leaver")).n_uploads == 2


def test_a_replaced_token_opens_nothing_and_the_new_one_does(server):
    line = server.join("changer")
    assert line.send(body_of("changer", 2))[0] == 200
    new = server.call(operations.add_agent(server.container, "news", "changer", renew=True))
    assert line.send(body_of("changer", 3))[0] == 401
    line.token = new
    assert line.send(body_of("changer", 3))[0] == 200


def test_a_token_is_good_for_its_own_model_only(server):
    line = server.join("local", "here")
    server.join("other", "there")
    line.model = "there"
    assert line.send(body_of("local", 2))[0] == 403
    line.model = "here"
    assert line.send(body_of("local", 2))[0] == 200


def test_a_model_made_anew_with_other_settings(server):
    line = server.join("phoenix", "ashes")
    server.call(server.store.delete("ashes"))
    assert line.send(body_of("phoenix", 2))[0] in (401, 404)
    server.create("ashes", 4)
    line.token = server.call(operations.add_agent(server.container, "ashes", "phoenix"))
    bodies = codec.encode(request(incoming("phoenix", 1, dim=4), dim=4))
    assert line.send(bodies)[0] == 200


def test_a_body_that_stops_half_way_is_cut_by_name_and_its_memory_is_free(server):
    line = server.join("slow")
    body = body_of("slow", 2)
    line.socket.sendall(line.message(body)[:-10])
    status, headers, told = line.answer()
    assert (status, json.loads(told)["error"], headers["connection"]) == (408, BodyTooSlow.code, "close")
    assert line.is_closed()
    assert server.container.memory.n_bytes == 0
    line.again()
    assert line.send(body)[0] == 200


@pytest.mark.parametrize("size", [200_000, 3_000_000])
def test_a_client_that_is_still_sending_can_read_why_it_was_refused(server, size):
    """A closed socket with something unread is reset, and the reset may arrive before the answer is read."""
    line = server.join(f"talker-{size}")
    line.socket.sendall(line.message(b"", length=size))
    for _ in range(0, size, 10_000):
        line.socket.sendall(bytes(10_000))
    status, headers, body = line.answer()
    assert (status, headers["connection"], json.loads(body)["error"]) == (413, "close", "body_too_large")
    assert line.is_closed()


def test_nobody_is_heard_for_ever(server):
    line = server.join("chatter")
    line.socket.sendall(line.message(b"", length=1 << 30))
    with pytest.raises(OSError):
        line.socket.sendall(bytes(40_000_000))


def test_a_client_that_leaves_in_the_middle_holds_nothing(server):
    line = server.join("gone")
    line.socket.sendall(line.message(body_of("gone", 2))[:-10])
    end = time.monotonic() + LATE_S
    while not server.container.memory.n_bytes:
        assert time.monotonic() < end
        time.sleep(0.005)
    line.socket.close()
    while server.container.memory.n_bytes:
        assert time.monotonic() < end, "the body's memory was never given back"
        time.sleep(0.005)
    assert server.call(server.store.agent("news", "gone")).n_uploads == 1


def test_shed_uploads_are_told_when_to_come_back_and_the_connection_stays(server, monkeypatch):
    line = server.join("crowd")

    monkeypatch.setattr(server.container.coordinator, "overload_reason", lambda model: "too many")
    ids = set()
    for _ in range(4):
        status, headers, body = line.send(body_of("crowd", 2))
        assert (status, headers["retry-after"], json.loads(body)["error"]) == (503, "1", "overloaded")
        ids.add(headers["x-request-id"])
    assert len(ids) == 4
    pieces = line.message(body_of("crowd", 2))
    line.socket.sendall(pieces[:-9])
    assert line.answer()[0] == 503  # before its body is here; the rest of that is no request
    line.socket.sendall(pieces[-9:])
    monkeypatch.undo()
    assert line.send(body_of("crowd", 2))[0] == 200
    monkeypatch.setattr(server.container.coordinator, "overload_reason", lambda model: "too many")
    status, headers, _ = line.send(body_of("crowd", 3), more="Connection: close\r\n")
    assert (status, headers["connection"]) == (503, "close")
    assert line.is_closed()


def dribble(line, n_times):
    for _ in range(n_times):
        line.socket.sendall(b"xxxxxxxxxx")
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["head", "shed", "refused"])
def test_what_stays_half_is_closed_however_it_dribbles(server, monkeypatch, kind):
    line = server.join(f"half-{kind}")
    message = line.message(bytes(10_000))
    if kind == "shed":
        monkeypatch.setattr(server.container.coordinator, "overload_reason", lambda model: "too many")
    if kind == "refused":
        message = message.replace(line.token.encode(), b"x" * 43)
    cut = message.index(b"Host: x") + 7
    line.socket.sendall(message[:cut])
    if kind != "head":
        line.socket.sendall(message[cut:1000])
        assert line.answer()[0] in (401, 503)
    with pytest.raises(OSError):
        dribble(line, 900)


def test_thousands_that_are_shed_make_one_line_a_second(own_server, monkeypatch):
    server = own_server
    line = server.join("crowd")

    monkeypatch.setattr(server.container.coordinator, "overload_reason", lambda model: "too many")
    for _ in range(50):
        assert line.send(body_of("crowd", 2))[0] == 503
    end = time.monotonic() + LATE_S
    told = 0
    while told < 50:
        assert time.monotonic() < end
        time.sleep(0.05)
        entries = [json.loads(text) for text in server.log.getvalue().splitlines()]
        told = sum(entry["n"] for entry in entries if entry["event"] == "load_shedding")
    assert told == 50
    assert sum(entry["event"] == "exchange" for entry in entries) == 1  # the first upload
    text, _ = server.container.metrics.render()
    assert b'fedbandit_refusals_total{reason="overloaded"} 50.0' in text
    assert b'fedbandit_exchanges_total{model="news",result="refused"} 50.0' in text


def test_what_nobody_foresaw_is_answered_and_logged(server, monkeypatch):
    line = server.join("odd")

    def broken(*_):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(server.handler, "checked", broken)
    status, headers, body = line.send(body_of("odd", 2))
    assert (status, json.loads(body)["error"]) == (500, "internal_error")
    logged = [json.loads(text) for text in server.log.getvalue().splitlines()]
    (told,) = [entry for entry in logged if entry["event"] == "internal_error" and entry["agent"] == "odd"]
    assert told["request"] == headers["x-request-id"]
    assert "planted" in told["exception"]
    monkeypatch.undo()
    assert line.send(body_of("odd", 2))[0] == 200


def test_an_exchange_leaves_a_line_and_a_count(server):
    line = server.join("diary", "logged")
    _, headers, _ = line.send(body_of("diary", 2))
    entries = [json.loads(text) for text in server.log.getvalue().splitlines()]
    (entry,) = [entry for entry in entries if entry.get("request") == headers["x-request-id"]]
    assert entry["event"] == "exchange"
    told = {"model": "logged", "agent": "diary", "sequence": 2, "version": 2, "result": "merged", "status": 200}
    assert told.items() <= entry.items()
    text, _ = server.container.metrics.render()
    assert b'fedbandit_exchanges_total{model="logged",result="merged"} 2.0' in text
    assert line.token not in server.log.getvalue().decode()


def test_a_stopping_server_answers_what_it_has_taken(own_server):
    server = own_server
    line = server.join("last")
    merge, taken, go_on = server.store.merge, threading.Event(), threading.Event()

    async def slow(*args, **options):
        taken.set()
        while not go_on.is_set():
            await asyncio.sleep(0.005)
        return await merge(*args, **options)

    server.store.merge = slow
    line.socket.sendall(line.message(body_of("last", 2)))
    assert taken.wait(LATE_S)
    server.uvicorn.should_exit = True
    end = time.monotonic() + LATE_S
    while any(connection.cycle.keep_alive for connection in list(server.uvicorn.server_state.connections)):
        assert time.monotonic() < end, "the server does not begin to stop"
        time.sleep(0.005)
    go_on.set()
    status, headers, body = line.answer()
    assert (status, headers["connection"], codec.decode_reply(body).acknowledged) == (200, "close", 2)
    assert line.is_closed()
    server.thread.join(LATE_S)
    assert not server.thread.is_alive()


def test_silence_after_an_exchange_ends_a_connection(own_server):
    own_server.config.timeout_keep_alive = 1
    line = own_server.join("silent")
    began = time.monotonic()
    while time.monotonic() < began + 1.5:  # busy for longer than the silence may last
        assert line.send(body_of("silent", 1))[0] == 200
        time.sleep(0.1)
    assert line.is_closed()


# -- any conversation


KINDS = st.sampled_from(
    ("next", "next", "next", "same", "gap", "garbage", "empty", "header", "chunked", "get", "stranger", "break", "last")
)
GOODBYE = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
counter = itertools.count()


def spoken(kinds, token, model):
    """The bytes of a conversation; both servers get the same."""
    line = Line.__new__(Line)
    line.token, line.model = token, model
    said, sequence = [], 1
    for kind in kinds:
        upload = body_of("shop", sequence + (kind == "next") + 5 * (kind == "gap"))
        if kind in ("next", "same", "gap"):
            said.append(line.message(upload))
            sequence += kind == "next"
        elif kind == "garbage":
            said.append(line.message(b"x" * len(upload)))
        elif kind == "empty":
            said.append(line.message(b""))
        elif kind == "header":
            said.append(line.message(upload, more=f"X-Y: {sequence}\r\n"))
        elif kind == "chunked":
            said.append(line.chunked(upload))
        elif kind == "get":
            said.append(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        elif kind == "stranger":
            said.append(line.message(upload).replace(token.encode(), b"y" * len(token)))
        elif kind == "break":
            said.append(b"\r\n")
        else:
            said.append(line.message(upload, more="Connection: close\r\n"))
    return b"".join(said)


def heard(server, token, model, pieces):
    """Status and words of every answer, until the server has nothing more to say."""
    line = Line(server, token, model)
    try:
        for piece in (*pieces, GOODBYE):
            line.socket.sendall(piece)
            time.sleep(0.001)
    except OSError:
        pass  # it hung up, as it may after what it was told
    answers = []
    with contextlib.suppress(AssertionError, OSError):
        while True:
            status, headers, body = line.answer()
            told = body
            if status == 200 and headers["content-type"] == codec.CONTENT_TYPE:
                reply = codec.decode_reply(body)
                told = (reply.version, reply.acknowledged, reply.stats)
            answers.append((status, headers.get("connection"), told))
    return answers


@settings(max_examples=60, deadline=None)
@given(kinds=st.lists(KINDS, min_size=1, max_size=9), data=st.data())
def test_responses_do_not_depend_on_how_a_conversation_is_cut(server, other_server, kinds, data):
    model = f"talk-{next(counter):06}"  # of one length, since cuts are drawn below
    token = "fb_" + model.ljust(40, "t")
    for each in (server, other_server):
        each.create(model, 3)
        each.call(each.store.enroll(model, "shop", hash_token(token), now=0.0))
        assert Line(each, token, model).send(body_of("shop", 1))[0] == 200
    whole = spoken(kinds, token, model)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12), label="cuts"))
    pieces = [whole[a:b] for a, b in itertools.pairwise([0, *cuts, len(whole)])]
    assert heard(server, token, model, [whole]) == heard(other_server, token, model, pieces)
    assert server.call(server.store.state(model)).packed == other_server.call(other_server.store.state(model)).packed
