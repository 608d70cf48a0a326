"""The upload that the benches of the server send: a template, whose name and sequence are put in place by bytes."""

from __future__ import annotations

import numpy as np

from fedbandit.algorithms.messages import digest_of, packed_bytes
from fedbandit.core.statistics import SufficientStats
from fedbandit.wire.codec import SyncRequest

SEQUENCE = 0x7FFF0001  # stands in the template where the sequence goes
SEQUENCE_BYTES = b"\xce" + SEQUENCE.to_bytes(4, "big")  # as msgpack writes it


def upload_of(agent: str, dim: int, seed: int) -> SyncRequest:
    """Statistics of 2d observations."""
    rng = np.random.default_rng(seed)
    stats = packed_bytes(SufficientStats.of(rng.normal(size=(2 * dim, dim)), rng.normal(size=2 * dim)))
    return SyncRequest(
        agent=agent,
        incarnation="bench",
        sequence=SEQUENCE,
        digest=digest_of(stats),
        dim=dim,
        stats=stats,
        growth=0.7,
    )
