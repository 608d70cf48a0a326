"""HTTP as it is met: proxies, lost replies, wrong tokens, a server that asks for time."""

import json
import logging
import socket

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import InvalidParameter, NotReachable, Refused
from fedbandit.http_client import AdminClient
from fedbandit.sdk import HttpTransport, aconnect
from tests.sdk.helpers import make_hub, wait_until
from tests.sdk.stub import running_stub

X = np.eye(3)
TOKEN = "secret-token"


@pytest.fixture
def stub():
    with running_stub(make_hub()) as running:
        yield running


def join(stub, **options):
    return fb.connect(stub.url, model="local", token=TOKEN, **options)


def problem(status, code="problem", headers=None):
    return status, headers or {}, json.dumps({"error": code, "message": "in words"}).encode()


def test_connecting_gives_an_agent_by_its_token(stub):
    with join(stub) as agent:
        assert agent.agent_id == "a"
        agent.observe(agent.choose(X), 1.0)
        agent.flush(5.0)
        assert agent.status().reachable and agent.status().server == stub.url
        assert agent.status().bytes_sent > 0 and agent.status().bytes_received > 0
    assert stub.hub.server.stats.n_obs == 1


def test_one_connection_is_kept_alive(stub):
    with join(stub) as agent:
        for _ in range(5):
            agent.observe(X[0], 1.0)
            agent.flush(5.0)
            agent.refresh()
    assert len(stub.connections) == 1


def test_an_unchanged_model_is_not_sent_again(stub):
    with join(stub) as agent:
        agent.observe(X[0], 1.0)
        agent.flush(5.0)
        before = agent.status().bytes_received
        assert agent.refresh() is False
        assert agent.status().bytes_received == before
    assert "If-None-Match" in stub.requests[-1][2]


def test_a_tag_that_a_proxy_has_weakened_goes_back_as_the_server_made_it(stub):
    """With a weak one the server would be asked something else: whether data were taken out."""
    message = stub.message

    def weakened(answer):
        status, headers, content = message(answer)
        return status, {**headers, "ETag": f"W/{headers['ETag']}"}, content

    stub.message = weakened
    with join(stub) as agent:
        agent.observe(X[0], 1.0)
        agent.flush(5.0)
        before = agent.status().bytes_received
        assert agent.refresh() is False
        assert agent.status().bytes_received == before


def test_a_reply_lost_on_the_way_counts_once(stub):
    with join(stub, sync="inline") as agent:
        stub.script.append("drop")
        agent.observe(X[0], 1.0)
        assert stub.hub.server.stats.n_obs == 1 and agent.status().in_flight == 1
        agent.flush(5.0)
        assert stub.hub.server.stats.n_obs == 1 and agent.status().in_flight == 0


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_trouble_of_the_server_is_met_with_patience(stub, status):
    with join(stub) as agent:
        stub.script.append(problem(status, headers={"Retry-After": "0.2"}))
        agent.observe(X[0], 1.0)
        wait_until(lambda: stub.hub.server.stats.n_obs == 1)


def test_a_login_page_in_between_is_waited_out(stub):
    with join(stub) as agent:
        stub.script.append((200, {"Content-Type": "text/html"}, b"<html>please sign in</html>"))
        agent.observe(X[0], 1.0)
        wait_until(lambda: stub.hub.server.stats.n_obs == 1)
    stub.script.append((200, {"Content-Type": "text/html"}, b"<html>please sign in</html>"))
    with pytest.raises(NotReachable, match="something else"):
        join(stub)


@pytest.mark.parametrize(
    ("status", "code"), [(401, "unauthenticated"), (409, "sequence_gap"), (413, ""), (422, "x"), (302, "")]
)
def test_a_no_is_a_no(stub, status, code):
    with join(stub, sync="inline") as agent:
        stub.script.append(problem(status, code))
        agent.observe(X[0], 1.0)
        assert agent.status().last_error_code == (code or f"http_{status}")
        assert "in words" in str(agent.status().last_error) and str(status) in str(agent.status().last_error)
        assert agent.choose(X) is not None
        n = len(stub.requests)
        agent.observe(X[0], 1.0)
        assert len(stub.requests) == n


def test_a_wrong_token_or_model_is_told_at_the_start(stub):
    with pytest.raises(Refused) as caught:
        fb.connect(stub.url, model="local", token="wrong")
    assert (caught.value.reason, caught.value.status) == ("unauthenticated", 401)
    with pytest.raises(Refused) as caught:
        fb.connect(stub.url, model="another", token=TOKEN)
    assert caught.value.reason == "unknown_model"


def test_nobody_at_the_address_is_told_in_time():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(NotReachable, match="did not answer") as refused:
            fb.connect(url, model="local", token=TOKEN, timeout_s=1.0)
        assert "Connection refused" in str(refused.value)
        assert "HTTPConnection" not in str(refused.value) and "object at" not in str(refused.value)
        with pytest.raises(NotReachable, match="did not answer") as from_command:
            AdminClient(url, TOKEN).call("GET", "models")
        assert "Connection refused" in str(from_command.value)
        assert "HTTPConnection" not in str(from_command.value) and "object at" not in str(from_command.value)
        unused.listen()  # accepts, and says nothing
        with pytest.raises(NotReachable):
            fb.connect(url, model="local", token=TOKEN, timeout_s=0.2)


def test_a_flood_is_cut_off(stub):
    transport = HttpTransport(stub.url, model="local", token=TOKEN)
    transport.describe(timeout_s=5.0)
    stub.script.append((200, {}, b"x" * (2 << 20)))
    with pytest.raises(NotReachable, match="more than"):
        transport.state("first", None, timeout_s=5.0)
    transport.close()


def test_the_token_is_never_logged(stub, caplog):
    with caplog.at_level(logging.DEBUG), join(stub) as agent:
        stub.script.extend([problem(500), problem(409)])
        agent.observe(X[0], 1.0)
        wait_until(lambda: agent.status().last_error_code == "problem")
        assert TOKEN not in caplog.text + repr(agent) + repr(agent.status()) + repr(vars(agent._client))
        assert TOKEN not in repr(agent._client.transport)


@pytest.mark.parametrize(
    "url", ["bandit.example", "ftp://bandit.example", "", "https://", "http://me:pw@bandit.example"]
)
def test_an_address_must_be_one(url):
    with pytest.raises(InvalidParameter) as caught:
        fb.connect(url, model="m", token="t")
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "schlüssel"])
def test_a_token_must_be_one(token):
    with pytest.raises(InvalidParameter):
        fb.connect("http://127.0.0.1:1", model="m", token=token)


def test_certificates_that_are_not_there_are_named(tmp_path):
    with pytest.raises(InvalidParameter, match="certificates"):
        fb.connect("https://127.0.0.1:1", model="m", token="t", ca=tmp_path / "none.pem")


def test_an_unencrypted_token_gives_a_warning(caplog):
    transport = HttpTransport("http://bandit.example", model="m", token="t")
    assert transport.exposes_token
    assert not HttpTransport("http://127.0.0.1:1", model="m", token="t").exposes_token
    assert not HttpTransport("https://bandit.example", model="m", token="t").exposes_token


def test_an_event_loop_connects_without_blocking(stub):
    import asyncio

    async def application():
        async with await aconnect(stub.url, model="local", token=TOKEN) as agent:
            agent.observe(agent.choose(X), 1.0)
            await agent.aflush(5.0)

    asyncio.run(application())
    assert stub.hub.server.stats.n_obs == 1
