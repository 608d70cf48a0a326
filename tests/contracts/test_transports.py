"""What every transport promises: bytes go out, an answer comes back, and failures are one of two errors."""

from __future__ import annotations

import socket

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.messages import Upload
from fedbandit.errors import NotReachable, Refused
from fedbandit.sdk import HttpTransport, LocalServer
from fedbandit.wire.codec import download_of, encode, request_of
from fedbandit.wire.settings import ModelDescription
from tests.live import running_server
from tests.sdk.stub import running_stub

RULE = fb.FedLinUCB(dim=3, alpha=0.5, beta=0.5, join=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(params=["local", "http", "server"])
def transport(request):
    """Agent "a" of model "local", fresh."""
    if request.param == "local":
        yield LocalServer(RULE).transport("a")
    elif request.param == "http":
        with running_stub(LocalServer(RULE)) as stub:
            way = HttpTransport(stub.url, model="local", token=stub.token)
            yield way
            way.close()
    else:
        server = request.getfixturevalue("server")
        server.add_model("local", dim=3, alpha=0.5, beta=0.5)
        way = HttpTransport(server.url, model="local", token=server.add_agent("local", "a"))
        yield way
        way.close()
        server.call("DELETE", "/v1/models/local")


def upload(sequence=1, x=(1.0, 2.0, 3.0), incarnation="first", agent="a"):
    return Upload(agent, incarnation, sequence, fb.SufficientStats.of([x], [1.0]), growth=0.5)


def send(transport, *args, **changes):
    return download_of(transport.sync(encode(request_of(upload(*args, **changes))), timeout_s=10.0).reply)


def test_it_describes_the_model(transport):
    found = ModelDescription.from_dict(transport.describe(timeout_s=10.0))
    assert found.settings.rule().to_dict() == RULE.to_dict()
    assert (found.settings.name, found.agent_id) == ("local", "a")
    assert found.settings_id


def test_an_upload_is_merged_and_answered_with_the_state(transport):
    download = send(transport)
    assert (download.agent_id, download.version, download.acknowledged) == ("a", 1, 1)
    assert np.array_equal(download.stats.Sigma, np.outer([1, 2, 3], [1, 2, 3]) + np.eye(3))
    assert np.array_equal(download.stats.b, [1.0, 2.0, 3.0])


def test_a_retry_changes_nothing(transport):
    first, second = send(transport), send(transport)
    assert first == second


def test_the_state_is_sent_once_and_recognised_after(transport):
    before = transport.state("first", None, timeout_s=10.0)
    assert before.reply.version == 0 and before.tag
    assert transport.state("first", before.tag, timeout_s=10.0) is None
    send(transport)
    after = transport.state("first", before.tag, timeout_s=10.0)
    assert (after.reply.version, after.reply.acknowledged) == (1, 1)
    assert transport.state("another", None, timeout_s=10.0).reply.acknowledged == 0


def test_a_tag_that_comes_with_the_answer_to_an_upload_recognises_the_state(transport):
    answer = transport.sync(encode(request_of(upload())), timeout_s=10.0)
    if answer.tag is not None:  # without one the next refresh costs a whole download
        assert transport.state("first", answer.tag, timeout_s=10.0) is None


def test_settings_are_named_alike_everywhere(transport):
    settings = ModelDescription.from_dict(transport.describe(timeout_s=10.0)).settings_id
    assert transport.state("first", None, timeout_s=10.0).reply.settings == settings
    assert transport.sync(encode(request_of(upload())), timeout_s=10.0).reply.settings == settings


@pytest.mark.parametrize(
    ("changes", "reason", "status"),
    [
        ({"sequence": 3}, "sequence_gap", 409),
        ({"sequence": 1, "x": (9.0, 9.0, 9.0)}, "sequence_conflict", 409),
        ({"incarnation": "old", "sequence": 2}, "stale_incarnation", 409),
        ({"agent": "b"}, "forbidden", 403),
    ],
)
def test_what_must_not_be_merged_is_refused_with_its_reason(transport, changes, reason, status):
    send(transport, incarnation="old")
    send(transport)
    with pytest.raises(Refused) as caught:
        send(transport, **changes)
    assert (caught.value.reason, caught.value.status) == (reason, status)
    assert transport.state("first", None, timeout_s=10.0).reply.version == 2


def test_words_instead_of_a_message_are_refused(transport):
    with pytest.raises(Refused):
        transport.sync(b"hello", timeout_s=10.0)


def test_nobody_at_the_other_end_is_not_reachable(transport):
    transport.close()
    if isinstance(transport, HttpTransport):  # closing gives up connections; the next call would make a new one
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            transport = HttpTransport(f"http://127.0.0.1:{unused.getsockname()[1]}", model="m", token="t")
            with pytest.raises(NotReachable):
                transport.describe(timeout_s=1.0)
        return
    with pytest.raises(NotReachable):
        transport.describe(timeout_s=1.0)
