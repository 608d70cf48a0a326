"""HTTP/1.1 as bytes on a socket: every way to say how long a body is, and whatever else may come."""

import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit.errors import NotReachable
from fedbandit.http_client import HttpClient
from fedbandit.http_connection import FIRST, MAX_HEAD_BYTES, HttpConnection, Malformed, TooLong

REQUEST = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
BODY = b"twelve bytes"
SIZED = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\nETag: "a"\r\n\r\n' + BODY
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7;a=b\r\ntwelve \r\n5\r\nbytes\r\n0\r\nX: y\r\n\r\n"
TO_THE_END = b"HTTP/1.0 200 OK\r\nX: 1\r\n\r\n" + BODY
INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"


def ask(*pieces, most=1000, ends=True, timeout_s=5.0):
    """The response to one request, from a server that sends these pieces; and whether another one could be sent."""
    ours, theirs = socket.socketpair()
    connection = HttpConnection(ours, lambda: None)

    def answer():
        theirs.recv(len(REQUEST), socket.MSG_WAITALL)
        for piece in pieces:
            theirs.sendall(piece)
        if ends:
            theirs.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        until = time.monotonic() + timeout_s
        head, content = connection.request(REQUEST, b"", max_body_bytes=most, until=until)
        thread.join(5.0)
        return head, content, connection.is_usable()
    finally:
        thread.join(5.0)
        connection.close()
        theirs.close()


@pytest.mark.parametrize("answer", [SIZED, CHUNKED, TO_THE_END, INTERIM + SIZED, INTERIM * 3 + CHUNKED])
def test_a_body_ends_where_its_headers_say(answer):
    head, content, _ = ask(answer)
    assert (head.status, content) == (200, BODY)


@given(at=st.integers(0, len(INTERIM + CHUNKED)), again=st.integers(0, len(INTERIM + CHUNKED)))
def test_it_does_not_matter_in_which_pieces_a_response_comes(at, again):
    first, second = sorted((at, again))
    whole = INTERIM + CHUNKED
    head, content, _ = ask(whole[:first], whole[first:second], whole[second:])
    assert (head.status, content) == (200, BODY)


def test_names_of_headers_have_small_letters_and_repeated_ones_are_joined():
    head, _, _ = ask(b'HTTP/1.1 204 No\r\nETag:  W/"a" \r\nVary: a\r\nvary: b\r\n\r\n')
    assert head.headers == {"etag": 'W/"a"', "vary": "a, b"}


@pytest.mark.parametrize(
    ("answer", "is_usable"),
    [
        (SIZED, True),
        (CHUNKED, True),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 12\r\n\r\n", True),
        (SIZED.replace(b"ETag", b"Connection: close\r\nETag"), False),
        (SIZED.replace(b"1.1", b"1.0"), False),
        (SIZED.replace(b"1.1", b"1.0").replace(b"ETag", b"Connection: Keep-Alive\r\nETag"), True),
        (CHUNKED.replace(b"Transfer", b"Content-Length: 12\r\nTransfer"), False),
        (SIZED + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", False),  # an answer to nobody's question
    ],
)
def test_a_connection_is_used_again_only_if_nothing_is_in_doubt(answer, is_usable):
    assert ask(answer, ends=False)[2] is is_usable
    assert ask(answer)[2] is False  # the server has closed it


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n" * 20,
        SIZED[:-1],
        CHUNKED[:-4],
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * (MAX_HEAD_BYTES + 100),
    ],
)
def test_what_is_no_response_is_an_error(answer):
    with pytest.raises((Malformed, OSError)):
        ask(answer)


@given(st.binary(max_size=200), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", SIZED[:-12], CHUNKED[:60]]))
def test_any_bytes_are_a_response_or_a_named_error(data, prefix):
    try:
        head, content, _ = ask(prefix + data)
    except (Malformed, TooLong, ConnectionError):
        return
    assert 200 <= head.status <= 999 and len(content) <= 1000


@pytest.mark.parametrize("answer", [SIZED, CHUNKED, TO_THE_END])
def test_a_body_may_be_as_long_as_allowed_and_no_longer(answer):
    assert ask(answer, most=len(BODY))[1] == BODY
    with pytest.raises(TooLong):
        ask(answer, most=len(BODY) - 1)


def test_a_length_that_is_only_announced_takes_no_memory():
    with pytest.raises(ConnectionError):
        ask(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", most=1 << 40)


def test_a_server_that_says_nothing_more_is_given_up_at_the_deadline():
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        ask(SIZED[:-1], ends=False, timeout_s=0.1)
    assert time.monotonic() - begun < 3.0


def test_a_refusal_that_comes_before_the_body_was_sent_is_read():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse():
            with listening.accept()[0] as accepted:
                accepted.recv(1000)
                accepted.sendall(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
                accepted.shutdown(socket.SHUT_WR)
                while accepted.recv(1 << 20):
                    pass

        thread = threading.Thread(target=refuse)
        thread.start()
        client = HttpClient(f"http://127.0.0.1:{listening.getsockname()[1]}")
        reply = client.request("POST", "/", timeout_s=10.0, body=b"x" * (8 << 20))
        thread.join(10.0)
        client.close()
    assert reply.status == 413


@pytest.mark.parametrize("n_bytes", [0, 1, FIRST, FIRST + 1, 3 << 20])
def test_a_body_of_any_length_arrives_as_it_was(n_bytes):
    body = bytes(range(256)) * (n_bytes // 256) + b"x" * (n_bytes % 256)
    received = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            with listening.accept()[0] as accepted:
                while not received.endswith(b"\r\n\r\n" + body):
                    received.extend(accepted.recv(1 << 20))
                accepted.sendall(SIZED)

        thread = threading.Thread(target=serve)
        thread.start()
        client = HttpClient(f"http://127.0.0.1:{listening.getsockname()[1]}/under", token="t")
        assert client.request("POST", "/x", timeout_s=10.0, body=body).body == BODY
        thread.join(10.0)
        client.close()
    head = received[: len(received) - len(body)].decode().split("\r\n")
    assert head[0] == "POST /under/x HTTP/1.1" and f"Content-Length: {n_bytes}" in head
    assert "Authorization: Bearer t" in head


def test_no_header_can_add_a_line():
    client = HttpClient("http://127.0.0.1:1")
    with pytest.raises(NotReachable, match="line breaks"):
        client.request("GET", "/", timeout_s=1.0, headers={"If-None-Match": "a\r\nX: y"})
