"""TLS and mutual TLS with right, wrong, expired and missing certificates on both sides, by the SDK and by a socket."""

from __future__ import annotations

import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import urllib3

import fedbandit as fb
from fedbandit.errors import InvalidParameter, NotReachable
from fedbandit.service.settings import ServerSettings
from tests.live import LiveServer, running_server
from tests.security.certificates import make_certificates
from tests.security.limits import (
    Crowd,
    answer,
    eventually,
    is_closed,
    limited_server,
    log_events,
    n_closed,
    n_open_files,
)

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command"),
    pytest.mark.filterwarnings("ignore:Unverified HTTPS request"),  # the administrator's calls, not what is tested
]
REFUSED = (ssl.SSLError, ConnectionError)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@contextmanager
def serving(folder: Path, place: Path, certificate: str, *, mutual: bool = False) -> Iterator[LiveServer]:
    options = {"tls_cert": folder / f"{certificate}.pem", "tls_key": folder / f"{certificate}.key"}
    if mutual:
        options["client_ca"] = folder / "ca.pem"
    with running_server(place, **options) as server:
        context = ssl._create_unverified_context()  # the administrator's calls are not verified in this test
        context.load_cert_chain(folder / "agent.pem", folder / "agent.key")
        server.http = urllib3.PoolManager(retries=False, ssl_context=context, assert_hostname=False)
        yield server


@pytest.fixture(scope="module")
def strict(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that requires client certificates."""
    with serving(folder, tmp_path_factory.mktemp("strict"), "server", mutual=True) as server:
        server.add_model("news", alpha=0.0)
        yield server


def own(folder: Path, name: str | None) -> dict[str, Path]:
    """The options of a client with this certificate."""
    return {} if name is None else {"cert": folder / f"{name}.pem", "key": folder / f"{name}.key"}


def raw_status(server: LiveServer, folder: Path, name: str | None, *, ca: str = "ca") -> bytes:
    """The first line of the answer to a health check over a socket of our own."""
    context = ssl.create_default_context(cafile=folder / f"{ca}.pem")
    if name is not None:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        return line.recv(4096).split(b"\r\n")[0]


def test_an_agent_with_the_right_certificate_is_served(strict: LiveServer, folder: Path) -> None:
    token = strict.add_agent("news", "right")
    assert raw_status(strict, folder, "agent") == b"HTTP/1.1 200 OK"
    with fb.connect(strict.url, model="news", token=token, ca=folder / "ca.pem", **own(folder, "agent")) as agent:
        agent.observe(np.ones(3), 1.0)
        agent.flush(10.0)
        assert agent.status().exchanges == 1


@pytest.mark.parametrize("name", [None, "agent-expired", "agent-foreign", "agent-for-servers"])
def test_a_server_that_wants_certificates_refuses(strict: LiveServer, folder: Path, name: str | None) -> None:
    try:
        answer = raw_status(strict, folder, name)
    except REFUSED:
        answer = b""
    assert answer == b""  # with TLS 1.3 a client may send before it is rejected; there is no reply in any case
    token = strict.add_agent("news", f"agent-{name}")
    with pytest.raises(NotReachable):
        fb.connect(strict.url, model="news", token=token, ca=folder / "ca.pem", **own(folder, name))
    assert strict.call("GET", f"/v1/models/news/agents/agent-{name}")["last_seen"] is None


@pytest.mark.parametrize("certificate", ["server-expired", "server-elsewhere", "server-foreign"])
def test_an_agent_refuses_a_server(folder: Path, tmp_path: Path, certificate: str) -> None:
    with serving(folder, tmp_path, certificate) as server:
        server.add_model("news")
        token = server.add_agent("news", "a")
        with pytest.raises(ssl.SSLCertVerificationError):
            raw_status(server, folder, None)
        with pytest.raises(NotReachable, match="certificate") as refused:
            fb.connect(server.url, model="news", token=token, ca=folder / "ca.pem")
        assert token not in repr(refused.value)
        calls = [line for line in server.log().splitlines() if '"GET"' in line and "/v1/models/news" in line]
        assert calls == []  # it closed the connection before its token was sent


def test_an_agent_refuses_a_server_of_an_authority_it_was_not_told_of(folder: Path, strict: LiveServer) -> None:
    with pytest.raises(NotReachable, match="certificate"):
        fb.connect(strict.url, model="news", token="fb_" + "x" * 43, **own(folder, "agent"))
    with pytest.raises(ssl.SSLCertVerificationError):
        raw_status(strict, folder, "agent", ca="foreign")


def test_plain_http_gets_no_answer_from_a_server_with_tls(strict: LiveServer) -> None:
    with socket.create_connection(("127.0.0.1", strict.port), timeout=10) as plain:
        plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        try:
            answer = plain.recv(100)
        except ConnectionError:
            answer = b""
        assert not answer.startswith(b"HTTP")


def test_old_protocols_are_refused(strict: LiveServer, folder: Path) -> None:
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "agent.pem", folder / "agent.key")
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", strict.port), timeout=10) as plain, pytest.raises(REFUSED):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


# -- incomplete handshakes


@contextmanager
def limited(folder: Path, place: Path, **limits: object) -> Iterator[LiveServer]:
    tls = {"tls_cert": folder / "server.pem", "tls_key": folder / "server.key"}
    with limited_server(place, **tls, **limits) as server:
        server.http = urllib3.PoolManager(retries=False, ca_certs=str(folder / "ca.pem"))
        server.add_model("news")
        yield server


@pytest.fixture(scope="module")
def small(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with 256 descriptors."""
    with limited(folder, tmp_path_factory.mktemp("small"), n_descriptors="-n 256") as server:
        yield server


@pytest.fixture(scope="module")
def hasty(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server with a second for a handshake."""
    with limited(folder, tmp_path_factory.mktemp("hasty"), head_timeout_s=1.0) as server:
        yield server


def client_hello(folder: Path) -> bytes:
    """The first message of a client, as it would be sent."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0], ids=["nothing", "half a message", "one message"])
def test_handshakes_that_are_never_completed_keep_nobody_out(small: LiveServer, folder: Path, part: float) -> None:
    hello = client_hello(folder)
    said = hello[: int(part * len(hello))]
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    ask = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {small.admin_token}\r\n\r\n".encode()
    before = n_closed(small, "connection_limit")
    with Crowd(small) as crowd:
        plain = socket.create_connection(("127.0.0.1", small.port), timeout=10)
        with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as known:
            known.sendall(ask)
            assert answer(known)[0] == 200
            for line in crowd.open(400):
                line.sendall(said)
            small.http.clear()
            assert small.request("GET", "/v1/models").status == 200  # a new client is accepted
            known.sendall(ask)
            assert answer(known)[0] == 200  # and an authenticated one stays connected
            assert n_open_files(small) < 256
            assert n_closed(small, "connection_limit") >= before + 100
            assert eventually(lambda: log_events(small, "connections_closed"))


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0], ids=["nothing", "half a message", "one message"])
def test_a_handshake_that_goes_on_is_ended_in_time(hasty: LiveServer, folder: Path, part: float) -> None:
    hello, before = client_hello(folder), n_closed(hasty, "too_slow")
    with Crowd(hasty) as crowd:
        lines = crowd.open(5)
        for line in lines:
            line.sendall(hello[: int(part * len(hello))])
        assert all(is_closed(line, 5.0) for line in lines)
    assert n_closed(hasty, "too_slow") == before + 5
    assert eventually(lambda: n_open_files(hasty) < 60)


def test_a_handshake_that_fails_is_counted(hasty: LiveServer) -> None:
    before = n_closed(hasty, "tls_handshake")
    with Crowd(hasty) as crowd:
        (line,) = crowd.open()
        line.sendall(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        assert is_closed(line, 5.0)
    assert eventually(lambda: n_closed(hasty, "tls_handshake") == before + 1)


def test_a_request_right_behind_the_handshake_is_served(hasty: LiveServer, folder: Path) -> None:
    """The last message of the handshake and the first request in one packet."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context(cafile=folder / "ca.pem").wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=10) as plain:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                plain.sendall(outgoing.read())
                incoming.write(plain.recv(1 << 16))
        tls.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        plain.sendall(outgoing.read())
        received = b""
        while b'"ok"' not in received:
            incoming.write(plain.recv(1 << 16))
            try:
                received += tls.read(1 << 16)
            except ssl.SSLWantReadError:
                continue
        assert received.startswith(b"HTTP/1.1 200 OK")


def test_certificates_that_cannot_be_used_are_named(folder: Path, tmp_path: Path) -> None:
    for cert, key in (("nothing", "server.key"), ("server.pem", "agent.key"), ("server.csr", "server.key")):
        settings = {"tls_cert": folder / cert, "tls_key": folder / key}
        with pytest.raises(AssertionError, match="invalid_parameter: cannot use"), running_server(tmp_path, **settings):
            pytest.fail("it serves")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "bandit.example"])
def test_beyond_this_machine_there_is_no_server_without_tls_unless_told_so(host: str) -> None:
    with pytest.raises(InvalidParameter, match="in the clear"):
        ServerSettings(host=host)
    assert ServerSettings(host=host, insecure=True).scheme == "http"
    assert ServerSettings(host=host, tls_cert="c", tls_key="k").scheme == "https"


def test_the_command_refuses_it_too(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="refusing to listen"), running_server(tmp_path, host="192.0.2.1"):
        pytest.fail("it listens beyond this machine without TLS")
