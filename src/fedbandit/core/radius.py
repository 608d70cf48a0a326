"""The confidence radius β as an object: a bound on ‖θ̂ − θ*‖_Σ from the evidence behind a model.

`fb.radius.fixed(0.5)`, `paper`, `adaptive`, `exogenous` and `counted` make them; each is evaluated when a model is
adopted. Which one holds when is in docs/theory.md; `fixed` has no guarantee and is what published experiments use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar

from fedbandit.core import theory
from fedbandit.core.arrays import finite_at_least, keep_whole
from fedbandit.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence behind a model: all inputs of a radius."""

    dim: int
    lam: float
    alpha: float
    rho: float  # log det Σ − d log λ
    n_obs: int
    n_uploads: int
    trigger: str = "determinant"
    own_buffer: bool = False  # whether the agent held data that the model lacks when it adopted it


class _Checked:
    """Every radius has the same ranges: probabilities in (0, 1), bounds ≥ 0, counts ≥ 1."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.name in ("n_agents", "n_rounds"):
                if value is not None or field.default is MISSING:
                    keep_whole(self, field.name, 1)
            elif field.name == "delta":
                if not 0 < finite_at_least(value, 0.0, "delta") < 1:
                    raise InvalidParameter(f"expected delta between 0 and 1, got {value}")
            else:
                number = finite_at_least(value, 0.0, field.name)
                if not isinstance(value, (int, float)):  # an int stays one: settings are compared as written
                    object.__setattr__(self, field.name, number)


@dataclass(frozen=True, slots=True)
class Fixed(_Checked):
    """A constant β without a guarantee."""

    kind: ClassVar[str] = "fixed"
    beta: float

    def __call__(self, evidence: Evidence) -> float:
        return self.beta


@dataclass(frozen=True, slots=True)
class Paper(_Checked):
    """Theorem 1 as printed."""

    kind: ClassVar[str] = "paper"
    n_agents: int
    n_rounds: int
    noise_scale: float
    theta_bound: float = 1.0
    action_bound: float = 1.0
    delta: float = 0.01

    def __call__(self, evidence: Evidence) -> float:
        return theory.paper_radius(dim=evidence.dim, lam=evidence.lam, alpha=evidence.alpha, **asdict(self))


@dataclass(frozen=True, slots=True)
class Adaptive(_Checked):
    """Holds for anything the paper allows; leave `n_rounds` out when the horizon is unknown.

    `n_agents` counts every incarnation that held data, those whose buffers were lost included.
    """

    kind: ClassVar[str] = "adaptive"
    n_agents: int
    noise_scale: float
    theta_bound: float = 1.0
    delta: float = 0.01
    n_rounds: int | None = None

    def __call__(self, evidence: Evidence) -> float:
        return theory.adaptive_radius(
            rho=evidence.rho,
            dim=evidence.dim,
            lam=evidence.lam,
            alpha=evidence.alpha,
            n_uploads=evidence.n_uploads,
            trigger=evidence.trigger,
            own_buffer=evidence.own_buffer,
            **asdict(self),
        )


@dataclass(frozen=True, slots=True)
class Exogenous(_Checked):
    """OFUL's radius; holds when nothing outside reacts to rewards that are not merged yet (docs/theory.md)."""

    kind: ClassVar[str] = "exogenous"
    noise_scale: float
    theta_bound: float = 1.0
    delta: float = 0.01

    def __call__(self, evidence: Evidence) -> float:
        return theory.exogenous_radius(rho=evidence.rho, lam=evidence.lam, **asdict(self))


@dataclass(frozen=True, slots=True)
class Counted(_Checked):
    """Li and Wang's: from the number of observations, for actions of unit norm."""

    kind: ClassVar[str] = "counted"
    noise_scale: float
    theta_bound: float = 1.0
    delta: float = 0.1

    def __call__(self, evidence: Evidence) -> float:
        return theory.counted_radius(n_obs=evidence.n_obs, dim=evidence.dim, lam=evidence.lam, **asdict(self))


AnyRadius = Fixed | Paper | Adaptive | Exogenous | Counted
KINDS: dict[str, type[AnyRadius]] = {radius.kind: radius for radius in (Fixed, Paper, Adaptive, Exogenous, Counted)}


def as_radius(beta: float | AnyRadius) -> AnyRadius:
    """The radius itself, or `fixed` for a number."""
    if isinstance(beta, (Fixed, Paper, Adaptive, Exogenous, Counted)):
        return beta
    return Fixed(finite_at_least(beta, 0.0, "beta"))


def to_dict(radius: AnyRadius) -> dict[str, Any]:
    """A plain dictionary with `kind`, for files and for the wire."""
    return {"kind": radius.kind, **asdict(radius)}


def from_dict(data: dict[str, Any]) -> AnyRadius:
    """The radius of a dictionary made by `to_dict`."""
    if not isinstance(data, Mapping):
        raise InvalidParameter(f"expected a radius as a dictionary with its kind, got {data!r}")
    rest = dict(data)
    kind = rest.pop("kind", None)
    if kind not in KINDS:
        raise InvalidParameter(f"expected a radius of kind {', '.join(KINDS)}, got {kind!r}")
    known = fields(KINDS[kind])
    unknown = sorted(rest.keys() - {field.name for field in known})
    if unknown:
        takes = ", ".join(field.name for field in known)
        raise InvalidParameter(f"the {kind} radius takes {takes}; it has no {', '.join(unknown)}")
    missing = [f.name for f in known if f.default is MISSING and f.default_factory is MISSING and f.name not in rest]
    if missing:
        raise InvalidParameter(
            f"the {kind} radius needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} missing"
        )
    return KINDS[kind](**rest)


def fixed(beta: float) -> Fixed:
    """A constant β without a guarantee, as used in published experiments."""
    return Fixed(beta)


def paper(
    *,
    n_agents: int,
    n_rounds: int,
    noise_scale: float,
    theta_bound: float = 1.0,
    action_bound: float = 1.0,
    delta: float = 0.01,
) -> Paper:
    """β of Theorem 1 as printed, for comparison."""
    return Paper(n_agents, n_rounds, noise_scale, theta_bound, action_bound, delta)


def adaptive(
    *,
    n_agents: int,
    noise_scale: float,
    theta_bound: float = 1.0,
    delta: float = 0.01,
    n_rounds: int | None = None,
) -> Adaptive:
    """β that covers θ* even if decision sets, participation and upload times depend on past rewards.

    `n_agents` must be known or bounded, and counts incarnations whose buffers were lost. Which rewards are booked, and
    when, must not depend on their values: no radius here covers rewards that arrive sooner when they are good.
    """
    return Adaptive(n_agents, noise_scale, theta_bound, delta, n_rounds)


def exogenous(*, noise_scale: float, theta_bound: float = 1.0, delta: float = 0.01) -> Exogenous:
    """OFUL's β: covers θ* when nothing outside reacts to rewards that are not merged yet; for lazy rules.

    Noise must be independent of the outside world, and the times of uploads (`flush`, `upload_now`, `close`, restarts
    that lose buffers) and `forget` must not react to rewards that are not merged; docs/theory.md has the condition.
    """
    return Exogenous(noise_scale, theta_bound, delta)


def counted(*, noise_scale: float, theta_bound: float = 1.0, delta: float = 0.1) -> Counted:
    """Li and Wang's β, from the number of observations behind the model."""
    return Counted(noise_scale, theta_bound, delta)
