"""A model on the server: its settings, its counts and the growth that its uploads reported."""

from __future__ import annotations

import hashlib
import math
import re
import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedbandit.core.drift import Discount
from fedbandit.core.group_sums import NO_GROUPS, GroupSums
from fedbandit.wire.settings import ModelSettings

GROWTH_BLOCK = 512
WEAK_TAG = re.compile(r'W/"(\d{1,19})-[0-9a-f]{8}-([0-9a-f]{16})-(\d{1,19})"')


class GrowthWindow(NamedTuple):
    """The largest growth among the last 512 to 1024 uploads, and ever, in constant space."""

    n: int = 0  # uploads in the current block
    block: float = 0.0
    previous: float = 0.0
    most: float = 0.0

    def add(self, growth: float) -> GrowthWindow:
        """The window after one more upload."""
        most = max(self.most, growth)
        if self.n >= GROWTH_BLOCK:
            return GrowthWindow(1, growth, self.block, most)
        return GrowthWindow(self.n + 1, max(self.block, growth), self.previous, most)

    @property
    def recent(self) -> float:
        """The largest growth among recent uploads."""
        return max(self.block, self.previous)


NO_GROWTH = GrowthWindow()


@dataclass(frozen=True, slots=True)
class Model:
    """A model with its counts, without its sums."""

    settings: ModelSettings
    uid: str  # random; a model that was deleted and created again has another
    created: float
    version: int = 0  # changes of the state: uploads merged, and contributions forgotten
    n_uploads: int = 0
    n_bytes: int = 0  # received in uploads that were merged
    n_obs: int = 0
    reward_sum: float = 0.0
    reward_sq_sum: float = 0.0
    growth: GrowthWindow = NO_GROWTH
    n_agents: int = 0
    generation: int = 0  # how often data were taken out or put back: forget, quarantine, release, restart
    n_retired: int = 0  # agents that were retired; `n_agents` are those at work
    groups: GroupSums = NO_GROUPS  # rewards by group, where the model has a control group
    epoch: int = 0  # restarts
    clock: int = 0  # observations merged, over all epochs
    n_discarded: int = 0  # observations in uploads of earlier epochs, and of alarms
    n_rewards: int = 0  # kept for the owners of their decisions
    n_answered: int = 0  # of rewards that are remembered

    @property
    def settings_id(self) -> str:
        """Identifies the settings; another one after the model was deleted and created again."""
        return settings_id(self.settings, self.uid)

    @property
    def tag(self) -> str:
        """The ETag of the state; it contains the sums, since a restored server repeats version numbers."""
        sums = zlib.crc32(repr((self.n_obs, self.reward_sum, self.reward_sq_sum)).encode())
        return f'"{self.version}-{sums:08x}-{self.settings_id}-{self.generation}"'

    def has_all_of(self, weak_tag: str) -> bool:
        """Whether the state differs from that of `W/"…"`, an earlier tag, only by uploads that were added since."""
        match = WEAK_TAG.fullmatch(weak_tag)
        if match is None:
            return False
        version, settings, generation = match.groups()
        return (settings, generation) == (self.settings_id, str(self.generation)) and int(version) <= self.version

    @property
    def effective_alpha(self) -> float:
        """The α that the guarantee must be computed with now: latency lets buffers grow past the model's own."""
        return max(self.settings.alpha, alpha_of(self.growth.recent))

    @property
    def worst_alpha(self) -> float:
        """The same over all uploads."""
        return max(self.settings.alpha, alpha_of(self.growth.most))

    @property
    def n_seen(self) -> int:
        """Observations in all uploads so far: merged in any epoch, or discarded."""
        return max(self.clock, self.n_obs) + self.n_discarded

    @property
    def raw_bytes(self) -> int:
        """Bytes of the raw rows of all observations, each sent once as float64, to compare `n_bytes` with.

        A row is the features of the choice and the reward; with blocks it is the context, the arm and the reward.
        """
        return raw_bytes(self.settings, self.n_seen)

    def to_dict(self) -> dict[str, Any]:
        """The response of `GET /v1/models/{m}`."""
        return {
            **self.settings.to_dict(),
            "action_bound": self.settings.largest_action,
            "reward_bound": self.settings.largest_reward,
            "max_rate": self.settings.observation_rate,
            "max_share": self.settings.max_share,
            "settings": self.settings_id,
            "uid": self.uid,
            "created": self.created,
            "version": self.version,
            "generation": self.generation,
            "epoch": self.epoch,
            "n_obs": self.n_obs,
            "n_merged": self.clock,
            "n_discarded": self.n_discarded,
            "reward_sum": self.reward_sum,
            "reward_sq_sum": self.reward_sq_sum,
            "mean_reward": self.reward_sum / self.n_obs if self.n_obs else None,
            "n_agents": self.n_agents,
            "n_retired": self.n_retired,
            "n_rewards": self.n_rewards,
            "n_uploads": self.n_uploads,
            "n_bytes": self.n_bytes,
            "raw_bytes": self.raw_bytes,
            "effective_alpha": self.effective_alpha,
            "worst_alpha": self.worst_alpha,
        }


def epoch_fields(model: Model, discarded: int, outcome: str = "") -> dict[str, Any]:
    """The fields of a reply about a world that changes, without those at their default."""
    clock = model.clock if isinstance(model.settings.drift, Discount) else 0
    values = {"epoch": model.epoch, "clock": clock, "discarded": discarded, "outcome": outcome}
    return {name: value for name, value in values.items() if value}


@lru_cache(maxsize=1024)  # part of every response
def settings_id(settings: ModelSettings, uid: str) -> str:
    """Sixteen hexadecimal digits for settings and the model that has them."""
    return hashlib.sha256(f"{uid}\n{replace(settings, notes='').to_json()}".encode()).hexdigest()[:16]


def raw_bytes(settings: ModelSettings, n_obs: int) -> int:
    """Bytes of so many raw rows."""
    numbers = settings.dim + 1 if settings.blocks == 1 else settings.dim // settings.blocks + 2
    return 8 * numbers * n_obs


def alpha_of(growth: float) -> float:
    """exp(growth) − 1, the determinant growth that an upload reported; finite, so that JSON can carry it."""
    return math.expm1(min(growth, 700.0))


def totals_of(state: bytes) -> tuple[int, float, float]:
    """n_obs, Σr and Σr² of a packed state."""
    n_obs, reward_sum, reward_sq_sum = np.frombuffer(state, dtype="<f8")[-3:].tolist()
    return int(n_obs), reward_sum, reward_sq_sum
