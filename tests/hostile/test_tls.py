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
from tests.hostile.certificates import make_certificates
from tests.live import LiveServer, running_server

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
        context = ssl._create_unverified_context()  # the administrator of this test trusts whoever answers
        context.load_cert_chain(folder / "agent.pem", folder / "agent.key")
        server.http = urllib3.PoolManager(retries=False, ssl_context=context, assert_hostname=False)
        yield server


@pytest.fixture(scope="module")
def strict(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that wants certificates."""
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
    assert answer == b""  # TLS 1.3 lets a client speak before it is refused; there is no answer in any case
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
        assert calls == []  # it hung up before its token was sent


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


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "bandit.example"])
def test_beyond_this_machine_there_is_no_server_without_tls_unless_told_so(host: str) -> None:
    with pytest.raises(InvalidParameter, match="in the clear"):
        ServerSettings(host=host)
    assert ServerSettings(host=host, insecure=True).scheme == "http"
    assert ServerSettings(host=host, tls_cert="c", tls_key="k").scheme == "https"


def test_the_command_refuses_it_too(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="refusing to listen"), running_server(tmp_path, host="192.0.2.1"):
        pytest.fail("it listens beyond this machine without TLS")
