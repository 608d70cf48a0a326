"""All that ever travels between agents and the server: immutable values with names.

Uploads and downloads carry statistics and are what communication counts. Polls, pulls and receipts carry none: they
say who should send, and cost what a TCP acknowledgement costs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from fedbandit.core.arrays import frozen
from fedbandit.core.statistics import SufficientStats, pack_symmetric, packed_length, unpack_symmetric
from fedbandit.errors import FormatError


@dataclass(frozen=True, slots=True)
class Upload:
    """What an agent gathered since its last upload (Algorithm 1, line 9)."""

    agent_id: str
    incarnation: str  # born with the agent's state: tells two lives of one identity apart
    sequence: int  # 1, 2, …: lets the server recognise a retry
    stats: SufficientStats
    growth: float  # log det(Σ_m + Σ_loc) − log det Σ_m when it was made

    def digest(self) -> bytes:
        """Sixteen bytes that two uploads share only if their statistics are equal to the last bit."""
        return digest_of(packed_bytes(self.stats))

    @property
    def n_scalars(self) -> int:
        """Numbers that it carries, as the literature counts them."""
        return n_scalars(self.stats.dim)

    @property
    def n_bytes(self) -> int:
        """Bytes of its numbers on our wire."""
        return n_bytes(self.stats.dim)


@dataclass(frozen=True, slots=True)
class Download:
    """The server's statistics, λI included, for the agent named (Algorithm 1, line 12)."""

    agent_id: str
    version: int  # uploads merged so far
    stats: SufficientStats
    acknowledged: int = 0  # the last sequence of this agent's incarnation that is merged

    @property
    def n_scalars(self) -> int:
        """Numbers that it carries, as the literature counts them."""
        return n_scalars(self.stats.dim)

    @property
    def n_bytes(self) -> int:
        """Bytes of its numbers on our wire."""
        return n_bytes(self.stats.dim)


@dataclass(frozen=True, slots=True)
class Poll:
    """The server asks the agent named for its buffer; only synchronous algorithms do."""

    agent_id: str


@dataclass(frozen=True, slots=True)
class Pull:
    """An agent asks for a download without an upload: when it joins, or on arrival at its next round."""

    agent_id: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """The upload is merged; no statistics come back now."""

    agent_id: str
    acknowledged: int


Request = Upload | Pull
Reply = Download | Poll | Receipt


def packed_bytes(stats: SufficientStats) -> bytes:
    """Upper triangle of Σ, b, n_obs, Σr, Σr² as little-endian float64: the canonical bytes of statistics."""
    tail = np.array([stats.n_obs, stats.reward_sum, stats.reward_sq_sum])
    return np.concatenate([pack_symmetric(stats.Sigma), stats.b, tail]).astype("<f8").tobytes()


def digest_of(packed: bytes) -> bytes:
    """The first sixteen bytes of SHA-256, which every language and every browser has."""
    return hashlib.sha256(packed).digest()[:16]


def n_packed(dim: int) -> int:
    """Numbers in the canonical bytes of statistics: d(d+1)/2 + d + 3."""
    return packed_length(dim) + dim + 3


def stats_from_bytes(packed: bytes, dim: int) -> SufficientStats:
    """The statistics of canonical bytes."""
    if len(packed) != 8 * n_packed(dim):
        raise FormatError(f"expected {8 * n_packed(dim)} bytes of statistics for {dim} features, got {len(packed)}")
    numbers = np.frombuffer(packed, dtype="<f8").astype(np.float64)
    n = packed_length(dim)
    n_obs, reward_sum, reward_sq_sum = numbers[n + dim :].tolist()
    if not (np.isfinite(n_obs) and n_obs == int(n_obs)):
        raise FormatError(f"expected a whole number of observations, got {n_obs}")
    Sigma = frozen(unpack_symmetric(numbers[:n], dim))
    return SufficientStats(Sigma, frozen(numbers[n : n + dim].copy()), int(n_obs), reward_sum, reward_sq_sum)


def n_scalars(dim: int) -> int:
    """Scalars in one upload or download as the literature counts them: d(d+1)/2 + d."""
    return packed_length(dim) + dim


def n_bytes(dim: int) -> int:
    """Bytes of one upload's or download's numbers on our wire: the scalars, n_obs, Σr and Σr², eight bytes each."""
    return 8 * n_packed(dim)
