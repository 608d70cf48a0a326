"""A spec names a run completely, all but its seed, and has a short readable id."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from fedbandit.algorithms.base import Rule
from fedbandit.algorithms.catalog import algorithm_of, rule_from_dict
from fedbandit.algorithms.synchronous import SynchronousRule, is_synchronous
from fedbandit.core.arrays import is_listing, keep_whole, whole_at_least
from fedbandit.errors import FormatError, InvalidParameter
from fedbandit.registry import Registry
from fedbandit.simulation.datasets.catalog import EVERY
from fedbandit.simulation.participation import PARTICIPATION, ByRows, Even, Participation, Steps, episodes, sequence
from fedbandit.simulation.worlds import World
from fedbandit.simulation.worlds.hypercube import Hypercube

SIMULATE: Mapping[str, Any] = {"name": "simulate"}
EVERY_WORLD: Registry[Callable[..., World]] = Registry("world", {Hypercube.name: Hypercube}, including=EVERY)
EVERY_PATTERN: Registry[Callable[..., Participation]] = Registry(
    "participation",
    {ByRows.name: ByRows, "sequence": sequence, "episodes": episodes},
    including=PARTICIPATION,
)
ID_DIGITS = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class RunSpec:
    """A run without its seed: rule, world, participation, numbers of agents and rounds, and driver.

    Two specs are equal if their canonical JSON is; `id` is the same in every session and on every machine.

    >>> import fedbandit as fb
    >>> rule = fb.FedLinUCB(dim=15, alpha=1.0, beta=0.5)
    >>> make_spec(rule, fb.worlds.uniform(dim=15), n_agents=15, n_rounds=30_000).id
    'fedlinucb-uniform-d15-m15-a1-ce7380'
    """

    rule: Mapping[str, Any]
    world: Mapping[str, Any]
    participation: Mapping[str, Any]
    n_agents: int
    n_rounds: int
    record: str | tuple[int, ...] = "log"
    driver: Mapping[str, Any] = field(default_factory=lambda: SIMULATE)

    def __post_init__(self) -> None:
        keep_whole(self, "n_agents", 1)
        keep_whole(self, "n_rounds", 1)
        for name in ("rule", "world", "participation", "driver"):
            object.__setattr__(self, name, _canonical(getattr(self, name)))
        if not isinstance(self.record, str):
            if not is_listing(self.record):
                raise InvalidParameter(f"expected record 'log', 'all' or a list of rounds, got {self.record!r}")
            object.__setattr__(self, "record", tuple(whole_at_least(t, 1, "a round to record") for t in self.record))

    @functools.cached_property
    def canonical(self) -> str:
        """The one JSON text of this spec: sorted keys, no spaces, whole numbers without a point."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @functools.cached_property
    def id(self) -> str:
        """A readable id: algorithm, world, sizes, tuning parameter, and six hex digits of a hash."""
        digest = hashlib.sha256(self.canonical.encode()).hexdigest()[:ID_DIGITS]
        parts = [_slug(self.rule), str(self.world["name"]), f"d{self.dim}", f"m{self.n_agents}", *_knob(self.rule)]
        if self.driver["name"] != "simulate":
            parts.append(str(self.driver["name"]).rpartition(":")[2])
        return "-".join([*parts, digest])

    @property
    def dim(self) -> int:
        """Number of features d."""
        return int(self.rule["dim"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunSpec) and self.canonical == other.canonical

    def __hash__(self) -> int:
        return hash(self.canonical)

    def make_rule(self) -> Rule:
        """The rule object."""
        return rule_from_dict(dict(self.rule))

    def make_world(self) -> World:
        """The world object."""
        world: World = _make(EVERY_WORLD, self.world, "world")
        return world

    def make_participation(self) -> Participation:
        """The participation pattern."""
        pattern: Participation = _make(EVERY_PATTERN, self.participation, "participation")
        return pattern

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "record": self.record if isinstance(self.record, str) else list(self.record)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunSpec:
        """The spec of a dictionary made by `to_dict`."""
        try:
            return cls(**data)
        except TypeError as error:
            raise FormatError(f"expected a spec as written by Spec.to_dict: {error}") from None


def make_spec(
    rule: Rule | SynchronousRule,
    world: World,
    *,
    n_agents: int,
    n_rounds: int,
    participation: Participation | None = None,
    record: str | Sequence[int] = "log",
    driver: Mapping[str, Any] = SIMULATE,
) -> RunSpec:
    """The spec of a run given by objects: the same arguments as `fb.simulate`, without the seed."""
    if isinstance(rule, type) or not hasattr(rule, "to_dict"):
        raise InvalidParameter(f"expected a rule such as fb.FedLinUCB(dim=…, alpha=…, beta=…), got {rule!r}")
    return RunSpec(
        rule=rule.to_dict(),
        world=_describe(world, EVERY_WORLD, "world"),
        participation={"name": Steps.name if is_synchronous(rule) else Even.name}
        if participation is None
        else _describe(participation, EVERY_PATTERN, "participation"),
        n_agents=n_agents,
        n_rounds=n_rounds,
        record=record if isinstance(record, str) else cast(tuple[int, ...], record),
        driver=driver,
    )


def _describe(thing: Any, known: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A dataclass with a name as a plain dictionary."""
    if getattr(thing, "name", None) not in known or not dataclasses.is_dataclass(thing) or isinstance(thing, type):
        raise InvalidParameter(f"expected a {what} among {', '.join(known)}, which a spec can name; got {thing!r}")
    return {"name": thing.name, **dataclasses.asdict(thing)}  # type: ignore[attr-defined]


def _make(known: Mapping[str, Callable[..., Any]], data: Mapping[str, Any], what: str) -> Any:
    numbers = dict(data)
    name = numbers.pop("name", None)
    if name not in known:
        raise InvalidParameter(f"expected a {what} among {', '.join(known)}, got {name!r}")
    try:
        # An explicit list of agents is the one argument that its maker takes by position.
        lists = [numbers.pop(key) for key in ("agents", "sets") if key in numbers]
        return known[name](*lists, **numbers)
    except TypeError as error:
        raise InvalidParameter(f"the {what} {name!r} cannot be made from {numbers}: {error}") from None


def _canonical(value: Any) -> Any:
    """The same values with one way to write each: whole floats as ints, infinity as text, None left out."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in sorted(value.items()) if item is not None}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, float):
        if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    return value


def _slug(rule: Mapping[str, Any]) -> str:
    name = str(rule["algorithm"])
    if name == "OFUL":
        return f"oful-{rule['mode']}"
    extras = [rule.get("join") and "join", rule.get("refresh") == "arrival" and "late", _trigger(rule)]
    return "+".join([name.lower(), *(str(extra) for extra in extras if extra)])


def _trigger(rule: Mapping[str, Any]) -> str | None:
    return "spectral" if rule.get("trigger") == "spectral" else None


def _knob(rule: Mapping[str, Any]) -> list[str]:
    """The tuning parameter that the algorithm's entry names by a letter, such as a1 for alpha = 1."""
    entry = algorithm_of(rule["algorithm"])
    options = entry.options.items() if entry is not None else ()
    return [f"{option.letter}{_short(rule[name])}" for name, option in options if option.letter and name in rule]


def _short(value: Any) -> str:
    return value if isinstance(value, str) else f"{float(value):.3g}".replace("e-0", "e-").replace("e+0", "e")


__all__ = ["EVERY_PATTERN", "EVERY_WORLD", "SIMULATE", "RunSpec", "make_spec"]
