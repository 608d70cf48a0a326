"""All that ever travels between agents and the server: immutable values with names.

Uploads and downloads carry statistics and are what communication counts. Polls, pulls and receipts carry none: they
say who should send, and cost what a TCP acknowledgement costs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from fedbandit.core.statistics import SufficientStats, pack_symmetric, packed_length


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
        return hashlib.blake2b(packed_bytes(self.stats), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Download:
    """The server's statistics, λI included, for the agent named (Algorithm 1, line 12)."""

    agent_id: str
    version: int  # uploads merged so far
    stats: SufficientStats
    acknowledged: int = 0  # the last sequence of this agent's incarnation that is merged


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


def n_scalars(dim: int) -> int:
    """Scalars in one upload or download as the literature counts them: d(d+1)/2 + d."""
    return packed_length(dim) + dim


def n_bytes(dim: int) -> int:
    """Bytes of one upload's or download's numbers on our wire: the scalars, n_obs, Σr and Σr², eight bytes each."""
    return 8 * (n_scalars(dim) + 3)
