"""Uploads as agents make them, for tests of the server; integer data, so that sums are exact in any order."""

from __future__ import annotations

import numpy as np

from fedbandit.algorithms.messages import digest_of, packed_bytes
from fedbandit.core.radius import Fixed
from fedbandit.core.statistics import SufficientStats
from fedbandit.service.exchange.ledger import IncomingUpload
from fedbandit.wire.codec import SyncRequest
from fedbandit.wire.settings import ModelSettings

TOKEN = b"t" * 32


def settings(name: str = "news", *, dim: int = 3, **changes: object) -> ModelSettings:
    numbers = {"lam": 1.0, "alpha": 1.0, "radius": Fixed(0.5), **changes}
    return ModelSettings(name=name, dim=dim, **numbers)  # type: ignore[arg-type]


def packed(seed: int = 0, *, dim: int = 3, n: int = 4) -> bytes:
    rng = np.random.default_rng(seed)
    X, y = rng.integers(-3, 4, size=(n, dim)), rng.integers(-2, 3, size=n)
    return packed_bytes(SufficientStats.of(X.astype(float), y.astype(float)))


def incoming(
    agent: str = "a",
    sequence: int = 1,
    *,
    incarnation: str = "life-1",
    seed: int | None = None,
    token: bytes = TOKEN,
    dim: int = 3,
    growth: float = 0.5,
    unsent: int = 0,
    **drift: int,
) -> IncomingUpload:
    """An upload whose numbers follow from agent, incarnation and sequence, unless a seed is given."""
    if seed is None:
        seed = int.from_bytes(digest_of(f"{agent} {incarnation} {sequence}".encode())[:4], "little")
    stats = packed(seed, dim=dim)
    numbers = np.frombuffer(stats, dtype="<f8")
    return IncomingUpload(
        agent, incarnation, sequence, digest_of(stats), numbers, growth, token, 0, unsent, len(stats), **drift
    )


def request(upload: IncomingUpload, *, dim: int = 3, unsent: int = 0, model_version: int = 0) -> SyncRequest:
    """The same upload for the wire."""
    return SyncRequest(
        agent=upload.agent,
        incarnation=upload.incarnation,
        sequence=upload.sequence,
        digest=upload.digest,
        dim=dim,
        stats=upload.numbers.tobytes(),
        growth=upload.growth,
        unsent=unsent,
        model_version=model_version,
    )


def folded(*uploads: IncomingUpload, lam: float = 1.0, dim: int = 3) -> bytes:
    """((λI + u₁) + u₂) + …"""
    state = np.frombuffer(packed_bytes(SufficientStats.prior(dim=dim, lam=lam)), dtype="<f8").copy()
    for upload in uploads:
        state += upload.numbers
    return state.tobytes()
