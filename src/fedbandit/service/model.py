"""A model on the server: what it fixes for every agent, and where it stands."""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.messages import n_packed, packed_bytes
from fedbandit.core import radius as radii
from fedbandit.core.arrays import finite_at_least
from fedbandit.core.plausibility import Bounds
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import InvalidParameter
from fedbandit.wire.codec import MAX_DIM

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
AGENT_NAME = re.compile(r"[\w@:+=~][\w.@:+=~-]{0,199}")
LARGEST_BOUND = 1e75  # its square fits into what an upload may hold
GROWTH_BLOCK = 512


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a model fixes when it is created; every agent gets the same."""

    name: str
    dim: int
    lam: float
    alpha: float
    radius: radii.AnyRadius
    features: tuple[str, ...] | None = None
    action_bound: float | None = None
    reward_bound: float | None = None

    def __post_init__(self) -> None:
        if not MODEL_NAME.fullmatch(self.name):
            raise InvalidParameter(
                f"expected a model name of 1 to 100 letters, digits, '.', '_' or '-' that begins with a letter or "
                f"digit, got {self.name[:120]!r}"
            )
        FedLinUCB(dim=self.dim, lam=self.lam, alpha=self.alpha, beta=self.radius, features=self.features)
        if self.dim > MAX_DIM:
            raise InvalidParameter(f"expected dim ≤ {MAX_DIM}, got {self.dim}")
        finite_at_least(self.alpha, 0.0, "alpha")
        for name, bound in (("action_bound", self.action_bound), ("reward_bound", self.reward_bound)):
            if bound is not None and finite_at_least(bound, 0.0, name, strictly=True) > LARGEST_BOUND:
                raise InvalidParameter(f"expected {name} ≤ {LARGEST_BOUND:g}, got {bound:g}")

    @property
    def bounds(self) -> Bounds:
        """What an upload must respect."""
        return Bounds(self.action_bound, self.reward_bound)

    def prior(self) -> bytes:
        """The packed state before any upload: λ on the diagonal, zero elsewhere."""
        return packed_bytes(SufficientStats.prior(dim=self.dim, lam=self.lam))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for files, the database and the wire."""
        return {
            "name": self.name,
            "dim": self.dim,
            "lam": self.lam,
            "alpha": self.alpha,
            "radius": radii.to_dict(self.radius),
            "features": None if self.features is None else list(self.features),
            "action_bound": self.action_bound,
            "reward_bound": self.reward_bound,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ModelSettings:
        """The settings of a dictionary made by `to_dict`."""
        features = data.get("features")
        return cls(
            name=data["name"],
            dim=data["dim"],
            lam=float(data["lam"]),
            alpha=float(data["alpha"]),
            radius=radii.from_dict(data["radius"]),
            features=None if features is None else tuple(str(name) for name in features),
            action_bound=data.get("action_bound"),
            reward_bound=data.get("reward_bound"),
        )

    def to_json(self) -> str:
        """One line, the same for the same settings."""
        return json.dumps(self.to_dict(), sort_keys=True)


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
    """A model and where it stands, without its sums."""

    settings: ModelSettings
    uid: str  # born with the model: one that was deleted and made again is another
    created: float
    version: int = 0  # changes of the state: uploads merged, and contributions forgotten
    n_uploads: int = 0
    n_bytes: int = 0  # received in uploads that were merged
    n_obs: int = 0
    reward_sum: float = 0.0
    reward_sq_sum: float = 0.0
    growth: GrowthWindow = NO_GROWTH
    n_agents: int = 0

    @property
    def settings_id(self) -> str:
        """Changes when the settings do, and when the model was deleted and made again."""
        return settings_id(self.settings, self.uid)

    @property
    def tag(self) -> str:
        """The ETag of the model's state; the sums are in it, since a restored server comes by its versions again."""
        sums = zlib.crc32(repr((self.n_obs, self.reward_sum, self.reward_sq_sum)).encode())
        return f'"{self.version}-{sums:08x}-{self.settings_id}"'

    @property
    def effective_alpha(self) -> float:
        """The α that the guarantee must be computed with now: latency lets buffers grow past the model's own."""
        return max(self.settings.alpha, alpha_of(self.growth.recent))

    @property
    def worst_alpha(self) -> float:
        """The same over the model's whole life."""
        return max(self.settings.alpha, alpha_of(self.growth.most))

    def to_dict(self) -> dict[str, Any]:
        """What `GET /v1/models/{m}` answers."""
        return {
            **self.settings.to_dict(),
            "settings": self.settings_id,
            "created": self.created,
            "version": self.version,
            "n_obs": self.n_obs,
            "reward_sum": self.reward_sum,
            "reward_sq_sum": self.reward_sq_sum,
            "mean_reward": self.reward_sum / self.n_obs if self.n_obs else None,
            "n_agents": self.n_agents,
            "n_uploads": self.n_uploads,
            "n_bytes": self.n_bytes,
            "effective_alpha": self.effective_alpha,
            "worst_alpha": self.worst_alpha,
        }


@lru_cache(maxsize=1024)  # it is in every answer
def settings_id(settings: ModelSettings, uid: str) -> str:
    """Sixteen hexadecimal digits for settings and the model that has them."""
    return hashlib.sha256(f"{uid}\n{settings.to_json()}".encode()).hexdigest()[:16]


def alpha_of(growth: float) -> float:
    """exp(growth) − 1, the determinant growth that an upload reported; finite, so that JSON can carry it."""
    return math.expm1(min(growth, 700.0))


def totals_of(state: bytes, dim: int) -> tuple[int, float, float]:
    """n_obs, Σr and Σr² of a packed state."""
    n_obs, reward_sum, reward_sq_sum = np.frombuffer(state, dtype="<f8")[n_packed(dim) - 3 :].tolist()
    return int(n_obs), reward_sum, reward_sq_sum


def check_agent_name(name: str) -> str:
    """A name that can stand in a URL and a log line."""
    if not AGENT_NAME.fullmatch(name):
        raise InvalidParameter(
            f"expected an agent name of 1 to 200 letters, digits or any of '._-@:+=~' that does not begin with '.' or "
            f"'-', got {name[:220]!r}"
        )
    return name
