"""What can be chosen by name: algorithms, worlds and participation patterns, ours and those of installed packages.

A registry maps a name to an entry. Our entries stand in a table as `"module:attribute"`, which is also how a package
names its entries in `[project.entry-points."fedbandit.algorithms"]` (or `.worlds`, `.participation`) of its
`pyproject.toml`. Nothing is imported before it is asked for; packages are searched when a name is not ours, or when a
list of names is asked for.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from fedbandit.errors import BrokenEntryPoint, InvalidParameter, UnusableEntryPoint

T = TypeVar("T")

# What an algorithm's agents do, beyond what every agent does; fedbandit.testing says which contract needs which trait.
TRAITS: Mapping[str, str] = {
    "any-time": "an agent decides and learns whenever it likes, without waiting for others",
    "any-rows": "an agent chooses from any rows, which may differ each time",
    "scores": "`choose` takes the row with the largest `scores(X).upper`, the first of equals",
    "ucb": "upper bounds are ⟨θ̂, x⟩ + β‖x‖_{Σ⁻¹}, on finite and infinite decision sets, with any `fb.radius` as β",
    "certain": "`choose` takes the same row for the same rows and model, and lists the k best on request",
    "ridge": "`predict` is ridge regression on the data that the agent knows",
    "uploads": "an agent sends its sums in uploads, one at a time, and keeps each until it is answered",
    "sums": "the server's statistics are λI and every upload, and a download carries them to any agent",
    "saves": "`to_bytes` saves an agent or a server, and `fb.load` brings it back",
    "policies": "`policy` and `explore` select how agents decide, and decisions tell their probability",
    "steps": "agents act in steps, once each (`fedbandit.algorithms.synchronous`)",
}
EVERY_TRAIT = frozenset(TRAITS) - {"steps", "policies"}  # of asynchronous algorithms


@dataclass(frozen=True, slots=True)
class RunSizes:
    """What a command knows of a run before it makes the rule: dim, M, T, noise, δ, and K where the world says it."""

    dim: int
    n_agents: int
    n_rounds: int
    noise: float
    delta: float
    n_actions: int = 0


@dataclass(frozen=True, slots=True)
class Option:
    """A field of a rule that commands offer: `--name`, with this help.

    `default` is what a command uses where none is given: a value, or a function of `RunSizes` (described by
    `default_help`); None leaves the field's own default. The option with a `letter` is the algorithm's tuning parameter
    and appears in the ids of specs.
    """

    help: str
    default: Any = None
    default_help: str = ""
    letter: str = ""

    def value_for(self, sizes: RunSizes) -> Any:
        """The value that a command uses where none is given; None if it has to leave the field out."""
        return self.default(sizes) if callable(self.default) else self.default


def option(help: str, *, default: Any = None, default_help: str = "", letter: str = "") -> dict[str, Option]:
    """Metadata of a dataclass field that commands offer: `field(default=1.0, metadata=option("…"))`."""
    return {"option": Option(help, default, default_help, letter)}


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """An algorithm by name.

    `rule` is a frozen dataclass with keyword-only fields (`fedbandit.algorithms.base.Rule`); those with `option`
    metadata become options of commands. `fixed` are numbers that the name implies. `example` are small numbers besides
    dim, beta and lam with which the contract suite runs it, `variants` more of them by name. `traits` says which
    contracts apply: all of them unless it says otherwise.
    """

    name: str
    rule: Callable[..., Any]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    example: Mapping[str, Any] = field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    traits: frozenset[str] = field(default_factory=lambda: EVERY_TRAIT)

    def __post_init__(self) -> None:
        unknown = set(self.traits) - TRAITS.keys()
        if unknown:
            raise InvalidParameter(
                f"{self.name}: expected traits among {', '.join(TRAITS)}, got {', '.join(sorted(unknown))}"
            )
        object.__setattr__(self, "traits", frozenset(self.traits))

    def make(self, **numbers: Any) -> Any:
        """The rule with these numbers."""
        return self.rule(**{**self.fixed, **numbers})

    def known(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the numbers that the rule has a field for: not every rule has a radius β or a ridge λ."""
        names = {one.name for one in self.fields}
        return {name: value for name, value in numbers.items() if name in names or not names}

    def traits_of(self, rule: Any) -> frozenset[str]:
        """The traits of a rule of this entry, with its own numbers."""
        return traits_with(self.traits, rule)

    @property
    def class_name(self) -> str:
        """The name of the rule's class, which stands in saved rules and in specs."""
        return str(getattr(self.rule, "__name__", ""))

    @property
    def options(self) -> dict[str, Option]:
        """The fields that commands offer, the rule's own first; what the algorithm's name fixes is none of them."""
        own = vars(self.rule).get("__annotations__", {})
        found = {
            one.name: one.metadata.get("option") for one in sorted(self.fields, key=lambda one: one.name not in own)
        }
        return {name: value for name, value in found.items() if isinstance(value, Option) and name not in self.fixed}

    @property
    def fields(self) -> tuple[dataclasses.Field[Any], ...]:
        """The fields of the rule."""
        return dataclasses.fields(self.rule) if dataclasses.is_dataclass(self.rule) else ()

    @property
    def examples(self) -> dict[str, dict[str, Any]]:
        """Numbers for tests by name: the entry's own name, and one for each variant."""
        own = dict(self.example)
        return {self.name: own, **{f"{self.name}-{name}": {**own, **more} for name, more in self.variants.items()}}


def traits_with(traits: frozenset[str], rule: Any) -> frozenset[str]:
    """Traits with those that the numbers of a rule add to them or take from them."""
    return (traits | getattr(rule, "added_traits", frozenset())) - getattr(rule, "forgone_traits", frozenset())


class Registry(Mapping[str, T], Generic[T]):
    """Entries by name: those of `including`, our own, those added, and those of installed packages in `group`."""

    def __init__(
        self,
        what: str,
        own: Mapping[str, str | T],
        *,
        group: str | None = None,
        including: Registry[T] | None = None,
    ) -> None:
        self.what, self.group, self.including = what, group, including
        self._own: dict[str, str | T] = dict(own)
        self._installed: dict[str, EntryPoint] | None = None
        self._loaded: dict[str, T] = {}

    # -- reading

    def find(self, name: object) -> T:
        """The entry of this name; a named error lists the names there are."""
        if isinstance(name, str) and name in self:
            return self[name]
        raise InvalidParameter(f"expected {self.what} to be one of {', '.join(self)}, got {name!r}")

    def __getitem__(self, name: str) -> T:
        if name in self._own:
            return self._own_entry(name)
        if self.including is not None and name in self.including:
            return self.including[name]
        if name in self._entry_points():
            return self._installed_entry(self._entry_points()[name])
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        if name in self._own or (self.including is not None and name in self.including):
            return True
        return name in self._entry_points()

    def __iter__(self) -> Iterator[str]:
        included = list(self.including) if self.including is not None else []
        return iter(dict.fromkeys([*included, *self._own, *self._entry_points()]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def own_names(self) -> tuple[str, ...]:
        """The names in our tables, without those of installed packages."""
        included = self.including.own_names if self.including is not None else ()
        return (*included, *self._own)

    def own(self) -> dict[str, T]:
        """Our entries."""
        return {name: self[name] for name in self.own_names}

    def usable(self) -> dict[str, T]:
        """All entries; one of a package that cannot be loaded is warned about and left out."""
        return dict(self._usable())

    def first(self, fits: Callable[[T], bool]) -> T | None:
        """The first entry that fits, ours first; nothing after it is imported."""
        return next((entry for _, entry in self._usable() if fits(entry)), None)

    def _usable(self) -> Iterator[tuple[str, T]]:
        for name in self.own_names:
            yield name, self[name]
        ours = set(self.own_names)
        for name in self:
            if name in ours:
                continue
            try:
                yield name, self[name]
            except UnusableEntryPoint as error:
                warnings.warn(f"{error}; it is left out", BrokenEntryPoint, stacklevel=3)

    # -- adding

    def add(self, name: str, entry: T) -> None:
        """Register an entry for this process; packages use entry points instead."""
        if name in self:
            raise InvalidParameter(f"there is a {self.what} {name!r} already; choose another name")
        self._own[name] = entry

    def remove(self, name: str) -> None:
        """Undo `add`."""
        del self._own[name]

    # -- loading

    def _own_entry(self, name: str) -> T:
        entry = self._own[name]
        if not isinstance(entry, str):
            return entry
        module, _, attribute = entry.partition(":")
        loaded: T = getattr(import_module(module), attribute)
        self._own[name] = loaded
        return loaded

    def _entry_points(self) -> dict[str, EntryPoint]:
        """Entry points of installed packages by name; ours come first, and the first of two packages wins."""
        if self._installed is None:
            found: Iterable[EntryPoint] = entry_points(group=self.group) if self.group is not None else ()
            self._installed = {}
            for point in found:
                if point.name not in self._own:
                    self._installed.setdefault(point.name, point)
        return self._installed

    def _installed_entry(self, point: EntryPoint) -> T:
        if point.name not in self._loaded:
            self._loaded[point.name] = self._load(point)
        return self._loaded[point.name]

    def _load(self, point: EntryPoint) -> T:
        package = point.dist.name if point.dist is not None else "an installed package"
        about = f"the {self.what} {point.name!r} of {package} ({point.value})"
        try:
            entry: T = point.load()
        except Exception as error:
            raise UnusableEntryPoint(f"{about} cannot be loaded: {type(error).__name__}: {error}") from error
        if getattr(entry, "name", None) != point.name:
            raise UnusableEntryPoint(f"{about} has the name {getattr(entry, 'name', None)!r}; both must be the same")
        return entry
