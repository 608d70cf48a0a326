"""How much agents may differ, as an object: θ_m = θ + δ_m with δ_m ~ N(0, κR²I), one θ_m for each agent.

`fb.personal.fixed(kappa)` states κ, `fb.personal.auto()` has each agent choose it from its own data. κ = 0 says that
all agents have the same θ, a large κ that the fleet's estimate is no more than a place to start from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from fedbandit.core.arrays import finite_at_least
from fedbandit.errors import InvalidParameter

LARGEST_KAPPA = 1e12  # beyond it the prior is lost to rounding beside the agent's own data


@dataclass(frozen=True, slots=True)
class Fixed:
    """A stated κ."""

    kind: ClassVar[str] = "fixed"
    kappa: float

    def __post_init__(self) -> None:
        kappa = finite_at_least(self.kappa, 0.0, "kappa")
        if kappa > LARGEST_KAPPA:
            raise InvalidParameter(f"expected kappa ≤ {LARGEST_KAPPA:g}, got {kappa:g}; fb.OFUL learns entirely alone")
        object.__setattr__(self, "kappa", kappa)


@dataclass(frozen=True, slots=True)
class Auto:
    """κ by the marginal likelihood of the agent's own observations."""

    kind: ClassVar[str] = "auto"


Personal = Fixed | Auto
KINDS: dict[str, type[Personal]] = {kind.kind: kind for kind in (Fixed, Auto)}


def fixed(kappa: float) -> Fixed:
    """Agents differ by δ_m ~ N(0, κR²I): a stated κ ≥ 0, the same for all agents.

    >>> fixed(10.0).kappa
    10.0
    """
    return Fixed(kappa)


def auto() -> Auto:
    """Each agent chooses its κ, again and again, by the marginal likelihood of its own observations."""
    return Auto()


def as_personal(value: Personal | str | float) -> Personal:
    """The object itself, `auto` for its name, `fixed` for a number (or a number as text, from a command line).

    >>> as_personal("auto"), as_personal("0.5")
    (Auto(), Fixed(kappa=0.5))
    """
    if isinstance(value, Fixed | Auto):
        return value
    if isinstance(value, Mapping):
        return from_dict(dict(value))
    if value == Auto.kind:
        return Auto()
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise InvalidParameter(f"expected personal as 'auto' or a number κ ≥ 0, got {value!r}") from None
    return Fixed(value)


def to_dict(personal: Personal) -> dict[str, Any]:
    """A plain dictionary with `kind`, for files and for the wire."""
    return {"kind": personal.kind, **asdict(personal)}


def from_dict(data: dict[str, Any]) -> Personal:
    """The object of a dictionary made by `to_dict`."""
    if not isinstance(data, Mapping):
        raise InvalidParameter(f"expected personal as a dictionary with its kind, got {data!r}")
    rest = dict(data)
    kind = rest.pop("kind", None)
    if kind not in KINDS:
        raise InvalidParameter(f"expected personal of kind {', '.join(KINDS)}, got {kind!r}")
    names = {field.name for field in fields(KINDS[kind])}
    if rest.keys() != names:
        takes = ", ".join(sorted(names)) or "nothing else"
        raise InvalidParameter(f"personal of kind {kind} takes {takes}, got {', '.join(sorted(rest)) or 'nothing'}")
    return KINDS[kind](**rest)
