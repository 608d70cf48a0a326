"""Downloads without the blocks that the agent has: `known` in an upload, `changed` in the reply to it.

An agent that asks for them sends a checksum of each block of its model (four bytes), and the server leaves out the
blocks with the same one. Nobody keeps anything for it, so servers may be restarted, restored and many. Checksums may
collide; the digest of the whole model, which such a reply carries, tells, and the agent asks for all blocks then.
"""

from __future__ import annotations

import zlib

import msgspec
import numpy as np

from fedbandit.algorithms.messages import digest_of, packed_bytes, touched_bytes
from fedbandit.core.arrays import Vector
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import FormatError
from fedbandit.pauses import pause_point
from fedbandit.wire.codec import BlockSyncReply, BlockSyncRequest, SyncReply, SyncRequest

FIELD_BYTES = 48  # of the two fields more, at most


def checksums(packed: bytes, p: int, blocks: int) -> bytes:
    """CRC-32 of the numbers of each block in packed statistics, little-endian, four bytes each."""
    rows = _by_block(np.frombuffer(packed, dtype="<f8"), p, blocks)
    return np.array([zlib.crc32(row) for row in rows], dtype="<u4").tobytes()


def known_of(request: SyncRequest) -> bytes:
    """The checksums in a request; empty if it asks for all blocks."""
    known = request.known if isinstance(request, BlockSyncRequest) else msgspec.UNSET
    return b"" if known is msgspec.UNSET else known


class ChangedBlocks:
    """Shortens the replies that share one state of a model."""

    def __init__(self, packed: bytes, p: int, blocks: int) -> None:
        self._p, self._blocks, self._packed = p, blocks, packed
        self._checksums: np.ndarray[tuple[int], np.dtype[np.uint32]] | None = None
        self._digest = b""

    def shortened(self, reply: SyncReply, known: bytes) -> SyncReply:
        """The reply without the blocks that the agent knows; as it is where that is no shorter."""
        if not isinstance(reply, BlockSyncReply) or len(known) != 4 * self._blocks:
            return reply
        if self._checksums is None:
            self._checksums = np.frombuffer(checksums(self._packed, self._p, self._blocks), dtype="<u4")
            self._digest = digest_of(self._packed)
        places = np.flatnonzero(self._checksums != np.frombuffer(known, dtype="<u4"))
        if touched_bytes(self._p, len(places)) + FIELD_BYTES >= len(self._packed):
            return reply
        numbers = np.frombuffer(self._packed, dtype="<f8")
        triangle = self._p * (self._p + 1) // 2
        Sigma, b, totals = np.split(numbers, [self._blocks * triangle, len(numbers) - 3])
        parts = (Sigma.reshape(self._blocks, -1)[places], b.reshape(self._blocks, -1)[places], totals)
        return msgspec.structs.replace(
            reply,
            stats=b"".join(part.tobytes() for part in parts),
            changed=places.astype("<u4").tobytes(),
            digest=self._digest,
        )


def completed(reply: SyncReply, held: bytes | None) -> SyncReply:
    """The reply with all blocks, given the packed statistics of the model whose checksums were sent."""
    if not isinstance(reply, BlockSyncReply) or reply.changed is msgspec.UNSET:
        return reply
    if held is None:
        raise FormatError("expected all blocks of the model, which were asked for, got some")
    p, K = reply.dim // reply.blocks, reply.blocks
    triangle, places = p * (p + 1) // 2, np.frombuffer(reply.changed, dtype="<u4").astype(np.intp)
    numbers, m = np.frombuffer(held, dtype="<f8").copy(), len(places)
    if len(numbers) != K * (triangle + p) + 3:
        raise FormatError(f"expected changes of a model with other blocks than {K} of {p} columns")
    new = np.frombuffer(reply.stats, dtype="<f8")
    numbers[: K * triangle].reshape(K, triangle)[places] = new[: m * triangle].reshape(m, triangle)
    numbers[K * triangle : -3].reshape(K, p)[places] = new[m * triangle : -3].reshape(m, p)
    numbers[-3:] = new[-3:]
    stats = numbers.tobytes()
    if reply.digest != digest_of(stats):
        raise FormatError("the blocks that were left out are not those that the agent has")
    return msgspec.structs.replace(reply, stats=stats, changed=msgspec.UNSET, digest=msgspec.UNSET)


class KnownBlocks:
    """What an agent says of the blocks that it has, and needs to complete the answer."""

    def __init__(self) -> None:
        self._held: bytes | None = None  # the model whose checksums the last upload carries
        self._wants_all = False  # the last answer did not fit to it

    def named_in(self, request: SyncRequest, held: SufficientStats) -> SyncRequest:
        """The request with checksums of the model's blocks, where it has any."""
        if not isinstance(request, BlockSyncRequest) or self._wants_all:
            self._held = None
            return request
        self._held = packed_bytes(held)
        pause_point()
        return msgspec.structs.replace(request, known=checksums(self._held, held.dim // held.blocks, held.blocks))

    def completed(self, reply: SyncReply) -> SyncReply:
        """The reply with the blocks that were left out; `FormatError` if these are others, and then all are asked for.

        A reply may also be that of an earlier request: then it fits no more, or is complete.
        """
        self._wants_all = True
        whole = completed(reply, self._held)
        self._wants_all = False
        return whole


def _by_block(numbers: Vector, p: int, blocks: int) -> Vector:
    """The numbers of each block in one row."""
    n_triangles = blocks * (p * (p + 1) // 2)
    parts = numbers[:n_triangles].reshape(blocks, -1), numbers[n_triangles:-3].reshape(blocks, -1)
    return np.ascontiguousarray(np.hstack(parts))
