"""Messages <-> bytes: msgpack maps with named fields, statistics as raw little-endian float64, a format version.

A body is at most a few hundred bytes longer than its numbers. Decoding is typed: whatever the bytes are, the result is
a message or a `FormatError`, and nothing is ever executed. docs/protocol.md has the layout for other languages.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec
import numpy as np

from fedbandit.algorithms.messages import (
    Download,
    Upload,
    digest_of,
    drift_fields,
    n_packed,
    packed_bytes,
    stats_from_bytes,
)
from fedbandit.core.arrays import Vector
from fedbandit.core.block_packing import (
    diagonal_places,
    expanded,
    leading_columns,
    n_touched_numbers,
    touched_numbers,
)
from fedbandit.core.group_sums import NO_GROUPS, PACKED, GroupSums
from fedbandit.errors import FormatError, UnsupportedFormat
from fedbandit.pauses import pause_point

VERSION = 1
BLOCK_VERSION = 2  # of messages of models with blocks: whoever does not know them refuses the version by name
CONTENT_TYPE = "application/vnd.fedbandit.v1+msgpack"
REWARDS_HEADER = "fedbandit-rewards"  # of a reply: how many rewards wait for agents of the model; absent if none
MAX_DIM = 4096
MAX_BLOCK_DIM = 1 << 20  # of a model with blocks, whose numbers must be no more than those of MAX_DIM
LARGEST_SUM = 1e170  # more than all uploads that can ever come: 2⁵³ numbers of at most 1e150
COUNT_LIMIT = 1 << 53  # of versions, sequences and observations: beyond it a float64 cannot count
ENVELOPE = 1024  # more than any field but the statistics needs together


class SyncRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An upload on the wire. `stats` is Σ (upper triangle, row by row), b, n_obs, Σr, Σr²: 8 bytes each."""

    v: int = VERSION
    agent: str
    incarnation: str
    sequence: int
    digest: bytes  # first 16 bytes of SHA-256 of `stats`, followed by `groups` where there are any
    dim: int
    stats: bytes
    growth: float  # log det(Σ_m + Σ_loc) − log det Σ_m when the upload was made
    model_version: int = 0  # of the model that the agent decides on
    unsent: int = 0  # observations that the agent holds besides this upload
    groups: bytes | msgspec.UnsetType = msgspec.UNSET  # with `control`: n, Σr, Σr² of control, then of treatment
    # A world that changes; each is left out at its default.
    epoch: int | msgspec.UnsetType = msgspec.UNSET  # 0: restarts of the model before its observations were made
    alarm: bool | msgspec.UnsetType = msgspec.UNSET  # False: whether the agent found a change
    dropped: int | msgspec.UnsetType = msgspec.UNSET  # 0: observations that the agent discarded since its last upload
    clock: int | msgspec.UnsetType = msgspec.UNSET  # 0: of the agent's model, where sums are discounted


class SyncReply(msgspec.Struct, frozen=True, kw_only=True):
    """A download on the wire; `stats` is laid out as in a request, with λ on the diagonal of Σ."""

    v: int = VERSION
    agent: str
    version: int  # uploads merged so far
    acknowledged: int  # last merged sequence of this agent's incarnation
    dim: int
    stats: bytes
    settings: str = ""  # changes when the model's settings do
    excluded: bool | msgspec.UnsetType = msgspec.UNSET  # true: the agent's uploads are not in `stats` (quarantine)
    # A world that changes; each is left out at its default.
    epoch: int | msgspec.UnsetType = msgspec.UNSET  # 0: restarts of the model so far
    clock: int | msgspec.UnsetType = msgspec.UNSET  # 0: observations merged so far, where sums are discounted
    discarded: int | msgspec.UnsetType = msgspec.UNSET  # 0: observations of this agent that were discarded so far
    outcome: str | msgspec.UnsetType = msgspec.UNSET  # "": why this upload was discarded


class BlockSyncRequest(SyncRequest, frozen=True, kw_only=True):
    """An upload to a model with blocks: the sums of the blocks that its observations touched.

    `stats` has the upper triangles of these blocks one after another, their parts of b, then n_obs, Σr and Σr².
    """

    v: int = BLOCK_VERSION
    blocks: int
    touched: bytes  # numbers of these blocks, ascending, as little-endian uint32; `digest` covers touched + stats
    known: bytes | msgspec.UnsetType = msgspec.UNSET  # checksums of the agent's blocks: the reply may leave these out


class BlockSyncReply(SyncReply, frozen=True, kw_only=True):
    """A download of a model with blocks: the triangles of all blocks, b, n_obs, Σr, Σr².

    Of an upload with `known` it may have `changed`: then `stats` has these blocks only, as an upload has its touched
    ones, and `digest` is that of the packed statistics of all blocks.
    """

    v: int = BLOCK_VERSION
    blocks: int
    changed: bytes | msgspec.UnsetType = msgspec.UNSET  # numbers of blocks, as in `touched`
    digest: bytes | msgspec.UnsetType = msgspec.UNSET


_block_request_decoder = msgspec.msgpack.Decoder(BlockSyncRequest)
_block_reply_decoder = msgspec.msgpack.Decoder(BlockSyncReply)
_request_decoder = msgspec.msgpack.Decoder(SyncRequest)
_reply_decoder = msgspec.msgpack.Decoder(SyncReply)
_encoder = msgspec.msgpack.Encoder()
Message = TypeVar("Message", SyncRequest, SyncReply)


def max_bytes(dim: int, blocks: int = 1) -> int:
    """The longest body that a message for this many features may have."""
    return 8 * n_packed(dim, blocks) + (8 * blocks if blocks > 1 else 0) + ENVELOPE


def is_possible(dim: int, blocks: int = 1) -> bool:
    """Whether a model may have this size: blocks of equal width, and no more numbers than 4096 dense features."""
    if blocks == 1:
        return 1 <= dim <= MAX_DIM
    return 1 < blocks <= dim <= MAX_BLOCK_DIM and dim % blocks == 0 and n_packed(dim, blocks) <= n_packed(MAX_DIM)


def encode(message: SyncRequest | SyncReply) -> bytes:
    """The bytes of a message."""
    return _encoder.encode(message)


def fields_of(message: SyncRequest | SyncReply) -> dict[str, Any]:
    """The fields of a message that travel, by name: optional ones only where they are set."""
    return {name: value for name, value in msgspec.structs.asdict(message).items() if value is not msgspec.UNSET}


def decode_request(body: bytes | memoryview) -> SyncRequest:
    """The request in a body, with every field checked that can be checked without knowing the model."""
    request = _decode(_request_decoder, _block_request_decoder, body)
    if not 1 <= len(request.agent) <= 200:
        raise _malformed("agent: 1 to 200 characters")
    if not 1 <= len(request.incarnation) <= 64:
        raise _malformed("incarnation: 1 to 64 characters")
    if not 1 <= request.sequence < COUNT_LIMIT:
        raise _malformed("sequence: 1 or more")
    if request.model_version < 0 or request.unsent < 0:
        raise _malformed("model_version and unsent: 0 or more")
    if not all(0 <= (count or 0) < COUNT_LIMIT for count in (request.epoch, request.dropped, request.clock)):
        raise _malformed("epoch, dropped and clock: 0 or more, below 2⁵³")
    if not math.isfinite(request.growth):
        raise _malformed("growth: a finite number")
    digested = request.touched + request.stats if isinstance(request, BlockSyncRequest) else request.stats
    if request.groups:
        if len(request.groups) != PACKED.size:
            raise _malformed(f"groups: {PACKED.size} bytes")
        digested += request.groups
    if request.digest != digest_of(digested):
        raise _malformed("digest: the first 16 bytes of SHA-256 of stats and groups")
    return request


def decode_reply(body: bytes) -> SyncReply:
    """The reply in a body."""
    reply = _decode(_reply_decoder, _block_reply_decoder, body)
    if not (0 <= reply.version < COUNT_LIMIT and 0 <= reply.acknowledged < COUNT_LIMIT):
        raise _malformed("version and acknowledged: 0 or more, below 2⁵³")
    if not all(0 <= (count or 0) < COUNT_LIMIT for count in (reply.epoch, reply.clock, reply.discarded)):
        raise _malformed("epoch, clock and discarded: 0 or more, below 2⁵³")
    return reply


def _decode(
    decoder: msgspec.msgpack.Decoder[Message],
    block_decoder: msgspec.msgpack.Decoder[BlockSyncRequest] | msgspec.msgpack.Decoder[BlockSyncReply],
    body: bytes | memoryview,
) -> Message:
    try:
        message = decoder.decode(body)
        if message.v == BLOCK_VERSION:
            return _checked_blocks(_decode_blocks(block_decoder, body))  # type: ignore[return-value]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise FormatError(f"the body is not a fedbandit message: {error}") from None
    if message.v != VERSION:
        raise UnsupportedFormat(f"expected format version {VERSION} or {BLOCK_VERSION}, got {message.v}")
    if not 1 <= message.dim <= MAX_DIM:
        raise _malformed(f"dim: 1 to {MAX_DIM}")
    if len(message.stats) != 8 * n_packed(message.dim):
        raise _malformed(f"stats: {8 * n_packed(message.dim)} bytes")
    return message


def _decode_blocks(
    decoder: msgspec.msgpack.Decoder[BlockSyncRequest] | msgspec.msgpack.Decoder[BlockSyncReply],
    body: bytes | memoryview,
) -> BlockSyncRequest | BlockSyncReply:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise UnsupportedFormat(
            f"expected format version {VERSION}, or {BLOCK_VERSION} for a model with blocks, got {BLOCK_VERSION} and "
            f"no such message: {error}"
        ) from None


def _checked_blocks(message: BlockSyncRequest | BlockSyncReply) -> BlockSyncRequest | BlockSyncReply:
    if not (message.blocks > 1 and is_possible(message.dim, message.blocks)):
        raise _malformed(f"blocks: 2 or more of equal width, {8 * n_packed(MAX_DIM)} bytes of numbers at most")
    n_numbers = n_packed(message.dim, message.blocks)
    name = "touched" if isinstance(message, BlockSyncRequest) else "changed"
    listed = message.touched if isinstance(message, BlockSyncRequest) else message.changed
    if listed is not msgspec.UNSET:
        places = np.frombuffer(listed, dtype="<u4") if len(listed) % 4 == 0 else None
        if places is None or len(places) > message.blocks or not _is_ascending(places, message.blocks):
            raise _malformed(f"{name}: ascending numbers of blocks below {message.blocks}, four bytes each")
        n_numbers = n_touched_numbers(message.dim // message.blocks, len(places))
    if isinstance(message, BlockSyncRequest) and len(message.known or b"") not in (0, 4 * message.blocks):
        raise _malformed(f"known: {4 * message.blocks} bytes, four for each block")
    if len(message.stats) != 8 * n_numbers:
        raise _malformed(f"stats: {8 * n_numbers} bytes")
    return message


def _is_ascending(places: np.ndarray[tuple[int], np.dtype[np.uint32]], blocks: int) -> bool:
    return not len(places) or bool((places[1:] > places[:-1]).all() and places[-1] < blocks)


def _malformed(expected: str) -> FormatError:
    return FormatError(f"the message is malformed; expected {expected}")


def numbers_of(message: SyncRequest | SyncReply) -> Vector:
    """The packed statistics as a read-only vector, without a copy; two of them add to the packed sum."""
    return np.frombuffer(message.stats, dtype="<f8")


def expanded_numbers(request: BlockSyncRequest, blocks: int) -> Vector:
    """The packed statistics of an upload for a model with so many blocks, zeros where nothing was touched."""
    places = np.frombuffer(request.touched, dtype="<u4").astype(np.intp)
    return expanded(numbers_of(request), places, request.dim // request.blocks, blocks)


def groups_of(request: SyncRequest) -> GroupSums:
    """The rewards by group in a request."""
    return GroupSums.from_bytes(request.groups or b"")


def request_of(upload: Upload, *, model_version: int = 0, unsent: int = 0) -> SyncRequest:
    """An upload, ready for the wire."""
    if upload.stats.blocks > 1:
        return _block_request_of(upload, model_version, unsent)
    stats, groups = packed_bytes(upload.stats), b"" if upload.groups == NO_GROUPS else upload.groups.to_bytes()
    if upload.width:  # a retry is the same bytes again
        stats = leading_columns(np.frombuffer(stats, dtype="<f8"), upload.width).tobytes()
    pause_point()
    return SyncRequest(
        agent=upload.agent_id,
        incarnation=upload.incarnation,
        sequence=upload.sequence,
        digest=digest_of(stats + groups),
        dim=upload.width or upload.stats.dim,
        stats=stats,
        growth=upload.growth,
        model_version=model_version,
        unsent=unsent,
        groups=groups or msgspec.UNSET,
        **drift_fields(upload),
    )


def _block_request_of(upload: Upload, model_version: int, unsent: int) -> BlockSyncRequest:
    places, numbers = touched_numbers(upload.stats)
    touched, stats = places.astype("<u4").tobytes(), numbers.astype("<f8").tobytes()
    groups = upload.groups.to_bytes()
    return BlockSyncRequest(
        agent=upload.agent_id,
        incarnation=upload.incarnation,
        sequence=upload.sequence,
        digest=digest_of(touched + stats + groups),
        dim=upload.stats.dim,
        stats=stats,
        growth=upload.growth,
        model_version=model_version,
        unsent=unsent,
        blocks=upload.stats.blocks,
        touched=touched,
        groups=groups or msgspec.UNSET,
        **drift_fields(upload),
    )


def upload_of(request: SyncRequest) -> Upload:
    """The upload in a request."""
    if isinstance(request, BlockSyncRequest):
        numbers = expanded_numbers(request, request.blocks)
        stats = stats_from_bytes(numbers.astype("<f8").tobytes(), request.dim, request.blocks)
    else:
        stats = stats_from_bytes(request.stats, request.dim)
    return Upload(
        request.agent,
        request.incarnation,
        request.sequence,
        stats,
        request.growth,
        epoch=request.epoch or 0,
        alarm=request.alarm or False,
        dropped=request.dropped or 0,
        clock=request.clock or 0,
        groups=groups_of(request),
    )


def reply_of(download: Download, *, settings: str = "") -> SyncReply:
    """A download, ready for the wire."""
    return make_reply(
        download.stats.blocks,
        agent=download.agent_id,
        version=download.version,
        acknowledged=download.acknowledged,
        dim=download.stats.dim,
        stats=packed_bytes(download.stats),
        settings=settings,
        excluded=True if download.excluded else msgspec.UNSET,
        epoch=download.epoch or msgspec.UNSET,
        clock=download.clock or msgspec.UNSET,
        discarded=download.discarded or msgspec.UNSET,
        outcome=download.outcome or msgspec.UNSET,
    )


def make_reply(blocks: int, **fields: Any) -> SyncReply:
    """A reply in the form that a model with so many blocks has."""
    return SyncReply(**fields) if blocks == 1 else BlockSyncReply(blocks=blocks, **fields)


def blocks_of(message: SyncRequest | SyncReply) -> int:
    """Number of blocks of the model that a message belongs to."""
    return message.blocks if isinstance(message, BlockSyncRequest | BlockSyncReply) else 1


def download_of(reply: SyncReply) -> Download:
    """The download in a reply."""
    return Download(
        reply.agent,
        reply.version,
        stats_from_bytes(reply.stats, reply.dim, blocks_of(reply)),
        reply.acknowledged,
        epoch=reply.epoch or 0,
        clock=reply.clock or 0,
        discarded=reply.discarded or 0,
        outcome=reply.outcome or "",
        excluded=reply.excluded is True,
    )


def require_sound(reply: SyncReply, lam: float) -> None:
    """`FormatError` unless the numbers can be a server's: finite, Σ = λI plus sums of squares, a count."""
    numbers = numbers_of(reply)
    top, bottom = float(numbers.max()), float(numbers.min())
    if not (top <= LARGEST_SUM and bottom >= -LARGEST_SUM):  # a NaN is in neither range
        raise FormatError("expected the finite statistics of a model")
    pause_point()
    diagonal = numbers[diagonal_places(reply.dim, blocks_of(reply))]
    if float(diagonal.min()) < lam * (1 - 1e-9) or not 0 <= numbers[-3] <= COUNT_LIMIT:
        raise FormatError(f"expected a model whose Σ has at least λ = {lam:g} on its diagonal, and 0 ≤ n_obs ≤ 2⁵³")
