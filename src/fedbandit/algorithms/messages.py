"""All that ever travels between agents and the server: immutable values with names.

Uploads and downloads carry statistics and are what communication counts. Polls, pulls and receipts carry none: they
say who should send, and cost what a TCP acknowledgement costs.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbandit.core.arrays import frozen
from fedbandit.core.block_packing import n_touched_numbers, touched_blocks
from fedbandit.core.group_sums import NO_GROUPS, GroupSums
from fedbandit.core.statistics import SufficientStats, pack_symmetric, packed_length, unpack_symmetric
from fedbandit.errors import FormatError
from fedbandit.pauses import pause_point


@dataclass(frozen=True, slots=True)
class Upload:
    """What an agent gathered since its last upload (Algorithm 1, line 9)."""

    agent_id: str
    incarnation: str  # born with the agent's state: tells two lives of one identity apart
    sequence: int  # 1, 2, …: lets the server recognise a retry
    stats: SufficientStats
    growth: float  # log det(Σ_m + Σ_loc) − log det Σ_m when it was made
    epoch: int = 0  # restarts of the model before its observations were made
    alarm: bool = False  # whether the agent found a change: the server restarts, and the upload is discarded
    dropped: int = 0  # observations of an earlier epoch that the agent discarded itself since its last upload
    clock: int = 0  # where sums are discounted: the server's clock when the agent's model was made
    groups: GroupSums = NO_GROUPS  # rewards by group, where a share of decisions is made by the application's default
    width: int = 0  # features that the model had when it was made, before some were added; 0: as many as `stats`

    def digest(self) -> bytes:
        """Sixteen bytes that two uploads share only if their sums are equal to the last bit."""
        return digest_of(packed_bytes(self.stats) + self.groups.to_bytes())

    @property
    def n_scalars(self) -> int:
        """Numbers that it carries, as the literature counts them."""
        return n_scalars(self.stats.dim, self.stats.blocks)

    @property
    def n_bytes(self) -> int:
        """Bytes of its numbers on our wire; with blocks, of those that its observations touched."""
        if self.stats.blocks == 1:
            return n_bytes(self.stats.dim)
        return touched_bytes(self.stats.dim // self.stats.blocks, len(touched_blocks(self.stats)))


@dataclass(frozen=True, slots=True)
class Download:
    """The server's statistics, λI included, for the agent named (Algorithm 1, line 12)."""

    agent_id: str
    version: int  # uploads merged so far
    stats: SufficientStats
    acknowledged: int = 0  # the last sequence of this agent's incarnation that is merged
    epoch: int = 0  # restarts of the model so far
    clock: int = 0  # where sums are discounted: observations merged so far, over all epochs
    discarded: int = 0  # observations of this agent that were discarded so far
    outcome: str = ""  # why the upload that this answers was discarded: `OLDER_EPOCH` or `CHANGE_ALARM`; "" if merged
    excluded: bool = False  # the agent is in quarantine: its merged uploads are not in these statistics

    @property
    def n_scalars(self) -> int:
        """Numbers that it carries, as the literature counts them."""
        return n_scalars(self.stats.dim, self.stats.blocks)

    @property
    def n_bytes(self) -> int:
        """Bytes of its numbers on our wire."""
        return n_bytes(self.stats.dim, self.stats.blocks)


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


OLDER_EPOCH = "older_epoch"  # the upload was made before a restart that the agent had not heard of
CHANGE_ALARM = "change_alarm"  # the upload reported a change; its time depends on rewards, so it counts for nothing
DRIFT_FIELDS = ("epoch", "alarm", "dropped", "clock")

Request = Upload | Pull
Reply = Download | Poll | Receipt


def drift_fields(upload: Upload) -> dict[str, Any]:
    """Those fields of an upload about a changing world that are not at their default."""
    return {name: value for name in DRIFT_FIELDS if (value := getattr(upload, name))}


def packed_bytes(stats: SufficientStats) -> bytes:
    """Upper triangle of Σ, b, n_obs, Σr, Σr² as little-endian float64: the canonical bytes of statistics."""
    tail = np.array([stats.n_obs, stats.reward_sum, stats.reward_sq_sum])
    return np.concatenate([pack_symmetric(stats.Sigma), stats.b, tail]).astype("<f8", copy=False).tobytes()


def digest_of(packed: bytes) -> bytes:
    """The first sixteen bytes of SHA-256, which every language and every browser has."""
    return hashlib.sha256(packed).digest()[:16]


def n_packed(dim: int, blocks: int = 1) -> int:
    """Numbers in the canonical bytes of statistics: d(d+1)/2 + d + 3, with K blocks K·p(p+1)/2 + d + 3."""
    return packed_length(dim, blocks) + dim + 3


def stats_from_bytes(packed: bytes, dim: int, blocks: int = 1) -> SufficientStats:
    """The statistics of canonical bytes."""
    size = 8 * n_packed(dim, blocks)
    if len(packed) != size:
        within = f" in {blocks} blocks" if blocks > 1 else ""
        raise FormatError(f"expected {size} bytes of statistics for {dim} features{within}, got {len(packed)}")
    numbers = np.frombuffer(packed, dtype="<f8").astype(np.float64, copy=False)
    n = packed_length(dim, blocks)
    n_obs, reward_sum, reward_sq_sum = numbers[n + dim :].tolist()
    if not n_obs.is_integer():  # nor is an infinity or NaN
        raise FormatError(f"expected a whole number of observations, got {n_obs}")
    pause_point()
    Sigma = frozen(unpack_symmetric(numbers[:n], dim, blocks))
    return SufficientStats(Sigma, frozen(numbers[n : n + dim].copy()), int(n_obs), reward_sum, reward_sq_sum)


def n_scalars(dim: int, blocks: int = 1) -> int:
    """Scalars in one upload or download as the literature counts them: d(d+1)/2 + d, or K·p(p+1)/2 + d."""
    return packed_length(dim, blocks) + dim


def touched_bytes(p: int, n_touched: int) -> int:
    """Bytes of an upload's numbers where it touched so many blocks of p columns: with four for each block's number."""
    return 8 * n_touched_numbers(p, n_touched) + 4 * n_touched


def n_bytes(dim: int, blocks: int = 1) -> int:
    """Bytes of one upload's or download's numbers on our wire: the scalars, n_obs, Σr and Σr², eight bytes each."""
    return 8 * n_packed(dim, blocks)
