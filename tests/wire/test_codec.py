"""Whatever the bytes are, decoding gives the message that was encoded or a FormatError; sizes are as documented."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit import SufficientStats, Upload
from fedbandit.algorithms.messages import Download, digest_of, n_packed, packed_bytes
from fedbandit.errors import FormatError, UnsupportedFormat
from fedbandit.wire import codec

names = st.text(st.characters(min_codepoint=33, exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60)
counts = st.integers(0, (1 << 53) - 1)


@st.composite
def statistics(draw: st.DrawFn) -> SufficientStats:
    dim = draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    n = draw(st.integers(1, 6))
    scale = 10.0 ** draw(st.integers(-30, 30))
    return SufficientStats.of(scale * rng.standard_normal((n, dim)), rng.standard_normal(n))


uploads = st.builds(
    Upload,
    names,
    names,
    st.integers(1, (1 << 53) - 1),
    statistics(),
    st.floats(allow_nan=False, allow_infinity=False),
)
downloads = st.builds(Download, names, counts, statistics(), counts)
requests = st.builds(lambda upload, v, w: codec.request_of(upload, model_version=v, unsent=w), uploads, counts, counts)
replies = st.builds(lambda download, settings: codec.reply_of(download, settings=settings), downloads, st.text())


@given(uploads, counts, counts)
def test_uploads_round_trip_to_the_last_bit(upload: Upload, model_version: int, unsent: int) -> None:
    request = codec.decode_request(codec.encode(codec.request_of(upload, model_version=model_version, unsent=unsent)))
    assert codec.upload_of(request) == upload
    assert (request.model_version, request.unsent) == (model_version, unsent)
    assert request.digest == upload.digest()


@given(downloads, st.text())
def test_downloads_round_trip_to_the_last_bit(download: Download, settings: str) -> None:
    reply = codec.decode_reply(codec.encode(codec.reply_of(download, settings=settings)))
    assert codec.download_of(reply) == download
    assert reply.settings == settings


@st.composite
def mutations(draw: st.DrawFn, messages: st.SearchStrategy[codec.SyncRequest | codec.SyncReply]) -> bytes:
    """An encoded message, cut, prolonged, or with some bytes changed."""
    body = bytearray(codec.encode(draw(messages)))
    kind = draw(st.sampled_from(["cut", "longer", "changed", "spliced"]))
    if kind == "cut":
        del body[draw(st.integers(0, len(body) - 1)) :]
    elif kind == "longer":
        body += draw(st.binary(min_size=1, max_size=20))
    elif kind == "spliced":
        at = draw(st.integers(0, len(body)))
        body[at:at] = draw(st.binary(min_size=1, max_size=20))
    else:
        for _ in range(draw(st.integers(1, 6))):
            body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body)


@given(mutations(requests))
def test_mutated_requests_are_refused_by_name_or_make_sense(body: bytes) -> None:
    try:
        request = codec.decode_request(body)
        upload = codec.upload_of(request)
    except FormatError:  # UnsupportedFormat is one
        return
    assert request.v == codec.VERSION
    assert upload.digest() == request.digest
    assert 1 <= len(request.agent) <= 200 and 1 <= len(request.incarnation) <= 64 and request.sequence >= 1


@given(mutations(replies))
def test_mutated_replies_are_refused_by_name_or_make_sense(body: bytes) -> None:
    try:
        reply = codec.decode_reply(body)
        codec.download_of(reply)
    except FormatError:
        return
    assert len(reply.stats) == 8 * n_packed(reply.dim)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(body: bytes) -> None:
    for decode in (codec.decode_request, codec.decode_reply):
        with pytest.raises(FormatError):
            decode(body)


def test_bytes_nested_without_end_are_refused() -> None:
    for opening in (b"\x91", b"\x81\xa1a"):
        for decode in (codec.decode_request, codec.decode_reply):
            with pytest.raises(FormatError):
                decode(opening * 100_000)


@given(requests, st.integers(2, 1 << 40))
def test_another_version_is_named_as_such(request: codec.SyncRequest, version: int) -> None:
    body = msgspec.msgpack.encode({**codec.fields_of(request), "v": version})
    with pytest.raises(UnsupportedFormat):
        codec.decode_request(body)


@given(requests, st.dictionaries(names, st.integers() | st.text() | st.binary(), max_size=3))
def test_unknown_keys_are_ignored(request: codec.SyncRequest, more: dict[str, object]) -> None:
    known = codec.fields_of(request)
    small = {key: value for key, value in more.items() if not isinstance(value, int) or abs(value) < 1 << 63}
    assert codec.decode_request(msgspec.msgpack.encode({**small, **known})) == request


@pytest.mark.parametrize("dim", [1, 2, 3, 25, 100])
def test_sizes_are_as_documented(dim: int) -> None:
    """8·(d(d+1)/2 + d + 3) bytes of numbers, and some two hundred bytes around them."""
    stats = SufficientStats.of(np.eye(dim), np.ones(dim))
    packed = packed_bytes(stats)
    assert len(packed) == 8 * (dim * (dim + 1) // 2 + dim + 3)
    assert len(digest_of(packed)) == 16
    request = codec.encode(codec.request_of(Upload("shop-1", "0" * 32, 1000, stats, 0.7), model_version=10**6))
    reply = codec.encode(codec.reply_of(Download("shop-1", 10**6, stats, 1000), settings="0" * 16))
    for body in (request, reply):
        assert len(packed) < len(body) <= len(packed) + 220
        assert len(body) <= codec.max_bytes(dim)


def test_the_longest_message_fits_into_the_limit() -> None:
    stats = SufficientStats.of(np.eye(2), np.ones(2))
    last = (1 << 53) - 1
    upload = Upload("ü" * 200, "ü" * 64, last, stats, -1e-300)
    assert len(codec.encode(codec.request_of(upload, model_version=last, unsent=last))) <= codec.max_bytes(2)


@given(uploads)
def test_a_wrong_digest_is_refused(upload: Upload) -> None:
    request = codec.request_of(upload)
    other = codec.request_of(dataclasses.replace(upload, stats=upload.stats + upload.stats))
    with pytest.raises(FormatError, match="digest"):
        codec.decode_request(codec.encode(msgspec.structs.replace(request, digest=other.digest)))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"agent": ""}, "agent"),
        ({"agent": "a" * 201}, "agent"),
        ({"incarnation": ""}, "incarnation"),
        ({"incarnation": "i" * 65}, "incarnation"),
        ({"sequence": 0}, "sequence"),
        ({"sequence": 1 << 53}, "sequence"),
        ({"model_version": -1}, "model_version"),
        ({"unsent": -1}, "unsent"),
        ({"growth": float("nan")}, "growth"),
        ({"growth": float("inf")}, "growth"),
        ({"dim": 0}, "dim"),
        ({"dim": codec.MAX_DIM + 1, "stats": b"\0" * 8 * n_packed(codec.MAX_DIM + 1)}, "dim"),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, dict) else ",".join(value),  # stats are 67 MB
)
def test_each_field_of_a_request_is_checked_by_name(changes: dict[str, object], expected: str) -> None:
    request = codec.request_of(Upload("shop-1", "1" * 32, 1, SufficientStats.of(np.eye(2), np.ones(2)), 0.5))
    with pytest.raises(FormatError, match=f"expected .*{expected}"):
        codec.decode_request(codec.encode(msgspec.structs.replace(request, **changes)))


@pytest.mark.parametrize("extra", [-8, -1, 1, 8])
def test_statistics_of_another_length_are_refused(extra: int) -> None:
    request = codec.request_of(Upload("shop-1", "1" * 32, 1, SufficientStats.of(np.eye(2), np.ones(2)), 0.5))
    stats = (request.stats + b"\0" * 8)[: len(request.stats) + extra]
    with pytest.raises(FormatError, match="stats"):
        codec.decode_request(codec.encode(msgspec.structs.replace(request, stats=stats, digest=digest_of(stats))))


@pytest.mark.parametrize("field", ["version", "acknowledged"])
def test_negative_counts_in_a_reply_are_refused(field: str) -> None:
    reply = codec.reply_of(Download("shop-1", 3, SufficientStats.prior(dim=2, lam=1.0), 2))
    with pytest.raises(FormatError, match=field):
        codec.decode_reply(codec.encode(msgspec.structs.replace(reply, **{field: -1})))


def test_every_entry_of_the_diagonal_has_the_ridge() -> None:
    good = SufficientStats.prior(dim=3, lam=2.0) + SufficientStats.of([[1.0, 0.0, 0.0]], [1.0])
    codec.require_sound(codec.reply_of(Download("shop-1", 1, good, 0)), 2.0)
    for place in range(3):
        Sigma = good.Sigma.copy()
        Sigma[place, place] = 1.9
        with pytest.raises(FormatError):
            codec.require_sound(codec.reply_of(Download("shop-1", 1, dataclasses.replace(good, Sigma=Sigma), 0)), 2.0)
