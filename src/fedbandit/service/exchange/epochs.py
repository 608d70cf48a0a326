"""Epochs in a fold: which uploads are discarded, when a model restarts, and how sums lose weight with age.

The arithmetic of algorithms/epochs.py on packed sums. A fold changes an `EpochState`; stores read it before
and write it after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fedbandit.algorithms.messages import CHANGE_ALARM, OLDER_EPOCH, packed_bytes, stats_from_bytes
from fedbandit.core.arrays import Vector
from fedbandit.core.change import ChangeDetector
from fedbandit.core.drift import Discount, Restart
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.structure import ridge_model
from fedbandit.wire.settings import ModelSettings

BY_AGENT = "an agent found a change"
BY_SERVER = "the server found a change"
BY_UPLOAD = "an upload was of a later epoch"  # after the restore of an older backup
BY_HAND = "by hand"


class ModelRestart(NamedTuple):
    """A restart during a fold, and whose upload led to it."""

    agent: str
    reason: str


@dataclass(slots=True)
class EpochState:
    """The epoch of a model during a fold."""

    settings: ModelSettings
    epoch: int = 0
    clock: int = 0  # observations merged, over all epochs
    n_discarded: int = 0
    detector: bytes | None = None  # the blocks of the server's tests, as `ChangeDetector.state` gives them
    restarts: list[ModelRestart] = field(default_factory=list)
    _tests: ChangeDetector | None = None

    def outcome_of(self, epoch: int, alarm: bool) -> str:
        """Why an upload of this epoch is discarded; "" if it is merged."""
        if epoch < self.epoch:
            return OLDER_EPOCH
        return CHANGE_ALARM if alarm and isinstance(self.settings.drift, Restart) else ""

    def restart(self, agent: str, reason: str, *, epoch: int | None = None) -> Vector:
        """Begin a new epoch; the sums at the prior."""
        self.epoch = self.epoch + 1 if epoch is None else epoch
        self.detector, self._tests = None, None
        self.restarts.append(ModelRestart(agent, reason))
        return prior_of(self.settings)

    def aged(self, state: Vector, numbers: Vector, upload_clock: int) -> Vector:
        """The sums with an upload, all weighted by age where the model discounts."""
        drift, n_obs = self.settings.drift, int(numbers[-3])
        if not isinstance(drift, Discount):
            return state + numbers
        clock, prior = self.clock + n_obs, prior_of(self.settings)
        older = weighted(state - prior, drift.weight(n_obs))
        return prior + older + weighted(numbers, drift.weight(clock - min(upload_clock, clock)))

    def moved(self, total: Vector, stamp: int) -> Vector:
        """The sums of one agent as of this stamp, weighted for the clock now."""
        drift = self.settings.drift
        return weighted(total, drift.weight(self.clock - stamp)) if isinstance(drift, Discount) else total

    def weight_of(self, upload_clock: int) -> float:
        """What an upload that is merged now counts for."""
        drift = self.settings.drift
        return drift.weight(self.clock - min(upload_clock, self.clock)) if isinstance(drift, Discount) else 1.0

    def finds_change(self, before: Vector, numbers: Vector, after: Vector) -> bool:
        """Test a merged upload with those before it; whether there is an alarm."""
        if not isinstance(self.settings.drift, Restart):
            return False
        dim, blocks = self.settings.dim, self.settings.blocks
        if self._tests is None:
            self._tests = self.settings.drift.server_detector(dim, self.settings.lam, blocks)
            if self.detector is not None:
                self._tests.restore(_unpacked(self.detector, self.settings))
        models = (ridge_model(stats_from_bytes(sums.tobytes(), dim, blocks)) for sums in (before, after))
        return self._tests.add(stats_from_bytes(numbers.tobytes(), dim, blocks), *models) is not None

    def packed_detector(self) -> bytes | None:
        """The blocks of the server's tests after the fold; none where it has no tests any more."""
        if not isinstance(self.settings.drift, Restart):
            return None
        return self.detector if self._tests is None else _packed(self._tests.state())


def prior_of(settings: ModelSettings) -> Vector:
    """The packed sums before any upload; writable."""
    return np.frombuffer(settings.prior(), dtype="<f8").copy()


def weighted(numbers: Vector, weight: float) -> Vector:
    """Σ and b times the weight; counts and sums of rewards stay as they are."""
    if weight == 1.0:
        return numbers
    scaled = weight * numbers
    scaled[-3:] = numbers[-3:]
    return scaled


def _packed(state: dict[str, dict[str, SufficientStats]]) -> bytes:
    plain = {part: {level: packed_bytes(sums) for level, sums in levels.items()} for part, levels in state.items()}
    return msgspec.msgpack.encode(plain)


def _unpacked(blob: bytes, settings: ModelSettings) -> dict[str, Any]:
    parts = msgspec.msgpack.decode(blob, type=dict[str, dict[str, bytes]])
    dim, blocks = settings.dim, settings.blocks
    return {
        part: {key: stats_from_bytes(sums, dim, blocks) for key, sums in levels.items()}
        for part, levels in parts.items()
    }


def widened_tests(blob: bytes | None, widen: Callable[[bytes, float], bytes], lam: float) -> bytes | None:
    """The server's tests with each of their sums widened; the models that they refer to have λ on the diagonal."""
    if blob is None:
        return None
    parts = msgspec.msgpack.decode(blob, type=dict[str, dict[str, bytes]])
    wider = {
        part: {key: widen(sums, lam if part == "references" else 0.0) for key, sums in levels.items()}
        for part, levels in parts.items()
    }
    return msgspec.msgpack.encode(wider)
