"""Messages <-> bytes: msgpack maps with named fields, statistics as raw little-endian float64, a format version.

A body is at most a few hundred bytes longer than its numbers. Decoding is typed: whatever the bytes are, the result is
a message or a `FormatError`, and nothing is ever executed. docs/protocol.md has the layout for other languages.
"""

from __future__ import annotations

import math
from typing import TypeVar

import msgspec
import numpy as np

from fedbandit.algorithms.messages import Download, Upload, digest_of, n_packed, packed_bytes, stats_from_bytes
from fedbandit.core.arrays import Vector
from fedbandit.errors import FormatError, UnsupportedFormat

VERSION = 1
CONTENT_TYPE = "application/vnd.fedbandit.v1+msgpack"
MAX_DIM = 4096
LARGEST_SUM = 1e170  # more than all uploads that can ever come: 2⁵³ numbers of at most 1e150
COUNT_LIMIT = 1 << 53  # of versions, sequences and observations: beyond it a float64 cannot count
ENVELOPE = 1024  # more than any field but the statistics needs together


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An upload on the wire. `stats` is Σ (upper triangle, row by row), b, n_obs, Σr, Σr²: 8 bytes each."""

    v: int = VERSION
    agent: str
    incarnation: str
    sequence: int
    digest: bytes  # first 16 bytes of SHA-256 of `stats`
    dim: int
    stats: bytes
    growth: float  # log det(Σ_m + Σ_loc) − log det Σ_m when the upload was made
    model_version: int = 0  # of the model that the agent decides on
    unsent: int = 0  # observations that the agent holds besides this upload


class SyncReply(msgspec.Struct, frozen=True, kw_only=True):
    """A download on the wire; `stats` is laid out as in a request, with λ on the diagonal of Σ."""

    v: int = VERSION
    agent: str
    version: int  # uploads merged so far
    acknowledged: int  # last merged sequence of this agent's incarnation
    dim: int
    stats: bytes
    settings: str = ""  # changes when the model's settings do


_request_decoder = msgspec.msgpack.Decoder(SyncRequest)
_reply_decoder = msgspec.msgpack.Decoder(SyncReply)
_encoder = msgspec.msgpack.Encoder()
Message = TypeVar("Message", SyncRequest, SyncReply)


def max_bytes(dim: int) -> int:
    """The longest body that a message for this many features may have."""
    return 8 * n_packed(dim) + ENVELOPE


def encode(message: SyncRequest | SyncReply) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def decode_request(body: bytes | memoryview) -> SyncRequest:
    """The request in a body, with every field checked that can be checked without knowing the model."""
    request = _decode(_request_decoder, body)
    if not 1 <= len(request.agent) <= 200:
        raise _malformed("agent: 1 to 200 characters")
    if not 1 <= len(request.incarnation) <= 64:
        raise _malformed("incarnation: 1 to 64 characters")
    if not 1 <= request.sequence < COUNT_LIMIT:
        raise _malformed("sequence: 1 or more")
    if request.model_version < 0 or request.unsent < 0:
        raise _malformed("model_version and unsent: 0 or more")
    if not math.isfinite(request.growth):
        raise _malformed("growth: a finite number")
    if request.digest != digest_of(request.stats):
        raise _malformed("digest: the first 16 bytes of SHA-256 of stats")
    return request


def decode_reply(body: bytes) -> SyncReply:
    """The reply in a body."""
    reply = _decode(_reply_decoder, body)
    if not (0 <= reply.version < COUNT_LIMIT and 0 <= reply.acknowledged < COUNT_LIMIT):
        raise _malformed("version and acknowledged: 0 or more, below 2⁵³")
    return reply


def _decode(decoder: msgspec.msgpack.Decoder[Message], body: bytes | memoryview) -> Message:
    try:
        message = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise FormatError(f"the body is not a fedbandit message: {error}") from None
    if message.v != VERSION:
        raise UnsupportedFormat(f"expected format version {VERSION}, got {message.v}")
    if not 1 <= message.dim <= MAX_DIM:
        raise _malformed(f"dim: 1 to {MAX_DIM}")
    if len(message.stats) != 8 * n_packed(message.dim):
        raise _malformed(f"stats: {8 * n_packed(message.dim)} bytes")
    return message


def _malformed(expected: str) -> FormatError:
    return FormatError(f"the message is malformed; expected {expected}")


def numbers_of(message: SyncRequest | SyncReply) -> Vector:
    """The packed statistics as a read-only vector, without a copy; two of them add to the packed sum."""
    return np.frombuffer(message.stats, dtype="<f8")


def request_of(upload: Upload, *, model_version: int = 0, unsent: int = 0) -> SyncRequest:
    """An upload, ready for the wire."""
    stats = packed_bytes(upload.stats)
    return SyncRequest(
        agent=upload.agent_id,
        incarnation=upload.incarnation,
        sequence=upload.sequence,
        digest=digest_of(stats),
        dim=upload.stats.dim,
        stats=stats,
        growth=upload.growth,
        model_version=model_version,
        unsent=unsent,
    )


def upload_of(request: SyncRequest) -> Upload:
    """The upload in a request."""
    stats = stats_from_bytes(request.stats, request.dim)
    return Upload(request.agent, request.incarnation, request.sequence, stats, request.growth)


def reply_of(download: Download, *, settings: str = "") -> SyncReply:
    """A download, ready for the wire."""
    return SyncReply(
        agent=download.agent_id,
        version=download.version,
        acknowledged=download.acknowledged,
        dim=download.stats.dim,
        stats=packed_bytes(download.stats),
        settings=settings,
    )


def download_of(reply: SyncReply) -> Download:
    """The download in a reply."""
    return Download(reply.agent, reply.version, stats_from_bytes(reply.stats, reply.dim), reply.acknowledged)


def require_sound(reply: SyncReply, lam: float) -> None:
    """`FormatError` unless the numbers can be a server's: finite, Σ = λI plus sums of squares, a count."""
    numbers = numbers_of(reply)
    top, bottom = float(numbers.max()), float(numbers.min())
    if not (top <= LARGEST_SUM and bottom >= -LARGEST_SUM):  # a NaN is in neither range
        raise FormatError("expected the finite statistics of a model")
    rows = np.arange(reply.dim)
    diagonal = numbers[rows * reply.dim - rows * (rows - 1) // 2]
    if float(diagonal.min()) < lam * (1 - 1e-9) or not 0 <= numbers[-3] <= COUNT_LIMIT:
        raise FormatError(f"expected a model whose Σ has at least λ = {lam:g} on its diagonal, and 0 ≤ n_obs ≤ 2⁵³")
