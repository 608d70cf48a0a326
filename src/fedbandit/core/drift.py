"""What a fleet does about a world that changes: `fb.drift.restart` and `fb.drift.discount`.

`restart` tests blocks of observations for a change and begins anew when it finds one: for a world that changes now and
then. `discount` weights observations by their age: for one that changes all the time.
How to choose is in docs/how-to/changing-world.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from fedbandit.core.arrays import at_least, finite_at_least, keep_finite, keep_whole
from fedbandit.core.change import ChangeDetector, ChangeSensitivity
from fedbandit.errors import InvalidParameter

OLD = 0.3  # horizons; a discounted model that is older is replaced


@dataclass(frozen=True, slots=True)
class Restart:
    """Detect a change and restart; see `restart`."""

    kind: ClassVar[str] = "restart"
    noise_scale: float
    theta_bound: float = 1.0
    false_alarm: float = 1e-6
    agent_block: int = 30
    server_block: int = 100
    n_levels: int = 6

    def __post_init__(self) -> None:
        keep_finite(self, "noise_scale", 0.0, strictly=True)
        keep_finite(self, "theta_bound", 0.0)
        if not 0.0 < finite_at_least(self.false_alarm, 0.0, "false_alarm") < 1.0:
            raise InvalidParameter(f"expected false_alarm between 0 and 1, got {self.false_alarm}")
        for name in ("agent_block", "server_block", "n_levels"):
            keep_whole(self, name, 1)
        if self.n_levels > 30:
            raise InvalidParameter(f"expected n_levels from 1 to 30, got {self.n_levels}")

    def agent_detector(self, dim: int, lam: float, blocks: int = 1) -> ChangeDetector:
        """What an agent tests its own observations with."""
        return self._detector(dim, lam, self.agent_block, blocks)

    def server_detector(self, dim: int, lam: float, blocks: int = 1) -> ChangeDetector:
        """What the server tests uploads with."""
        return self._detector(dim, lam, self.server_block, blocks)

    def _detector(self, dim: int, lam: float, first: int, blocks: int) -> ChangeDetector:
        sensitivity = ChangeSensitivity(self.noise_scale, lam, self.theta_bound, self.false_alarm)
        return ChangeDetector(dim, first=first, n_levels=self.n_levels, sensitivity=sensitivity, column_blocks=blocks)


@dataclass(frozen=True, slots=True)
class Discount:
    """Weight observations by their age; see `discount`."""

    kind: ClassVar[str] = "discount"
    horizon: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "horizon", at_least(self.horizon, 0.0, "horizon", strictly=True))

    def weight(self, age: float) -> float:
        """exp(−age/H): what sums of this age count for; sums of the future are not enlarged."""
        return math.exp(-max(age, 0.0) / self.horizon)


AnyDrift = Restart | Discount
KINDS: dict[str, type[AnyDrift]] = {kind.kind: kind for kind in (Restart, Discount)}


def restart(
    *,
    noise_scale: float,
    theta_bound: float = 1.0,
    false_alarm: float = 1e-6,
    agent_block: int = 30,
    server_block: int = 100,
    n_levels: int = 6,
) -> Restart:
    """Test for changes, and restart the model when one is found.

    `noise_scale` is the R of the rewards, known or over-estimated: with one that is too small, noise looks like a
    change. Agents test their own observations in blocks of `agent_block`, twice that, and so on for `n_levels` levels;
    the server tests uploads in blocks of `server_block`, likewise. `false_alarm` is the probability that one test of a
    world that did not change says that it did.
    """
    return Restart(noise_scale, theta_bound, false_alarm, agent_block, server_block, n_levels)


def discount(*, horizon: float) -> Discount:
    """Weight an observation by exp(−age/`horizon`), its age in observations that the server merged since.

    An agent exchanges at the trigger, or when its model is older than 0.3 horizons.
    """
    return Discount(horizon)


def as_drift(value: Any) -> AnyDrift | None:
    """The value itself, or what text says: `restart:R` with the noise scale, `discount:H` with the horizon."""
    if value is None or isinstance(value, (Restart, Discount)):
        return value
    if isinstance(value, str):
        kind, _, number = value.partition(":")
        try:
            if kind in KINDS:
                return KINDS[kind](float(number))
        except ValueError:
            pass
    raise InvalidParameter(
        f"expected drift as fb.drift.restart(noise_scale=…), fb.drift.discount(horizon=…), "
        f"'restart:R' or 'discount:H', got {value!r}"
    )


def read(text: str) -> AnyDrift:
    """What text says: `restart:R` with the noise scale, or `discount:H` with the horizon."""
    drift = as_drift(text)
    assert drift is not None
    return drift


def to_dict(drift: AnyDrift) -> dict[str, Any]:
    """A plain dictionary with `kind`, for files and for the wire."""
    return {"kind": drift.kind, **asdict(drift)}


def from_dict(data: Any) -> AnyDrift | None:
    """The drift of a dictionary made by `to_dict`."""
    if data is None:
        return None
    if not isinstance(data, Mapping):
        return as_drift(data)
    rest = dict(data)
    kind = rest.pop("kind", None)
    if kind not in KINDS:
        raise InvalidParameter(f"expected drift of kind {', '.join(KINDS)}, got {kind!r}")
    known = {field.name for field in fields(KINDS[kind])}
    unknown = sorted(rest.keys() - known)
    if unknown:
        raise InvalidParameter(f"drift {kind!r} takes {', '.join(sorted(known))}; it has no {', '.join(unknown)}")
    try:
        return KINDS[kind](**rest)
    except TypeError:
        needed = "noise_scale" if kind == Restart.kind else "horizon"
        raise InvalidParameter(f"drift {kind!r} needs {needed}, which is missing") from None
