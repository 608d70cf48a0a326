"""The runs of a study, found by the study's own keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedbandit.core.arrays import Vector
from fedbandit.errors import InvalidParameter
from fedbandit.experiments.compare import Interval, interval
from fedbandit.experiments.run_store import FailedRun, RunStore, StoredRun
from fedbandit.experiments.sharing_cost import SharingCost, human_bytes, range_text
from fedbandit.experiments.spec import RunSpec
from fedbandit.simulation.trace import columns_of_messages

Keys = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One spec of a study with the study's own keys for it, and its seeds."""

    keys: Keys
    spec: RunSpec
    seeds: tuple[int, ...]


class Group:
    """The finished runs of one cell."""

    def __init__(self, cell: Cell, runs: Sequence[StoredRun]) -> None:
        self.cell = cell
        self.spec = cell.spec
        self.keys = cell.keys
        self.runs = {run.seed: run for run in runs}

    def __getitem__(self, key: str) -> Any:
        return self.keys[key]

    @cached_property
    def rounds(self) -> Vector:
        """The recorded rounds."""
        return np.asarray(next(iter(self.runs.values())).columns["rounds"])

    @cached_property
    def sharing_cost(self) -> SharingCost:
        """What sharing everything would send in these runs."""
        spec = self.spec
        numbers = getattr(spec.make_world(), "row_numbers", None)
        size = {"dim": spec.dim, "blocks": int(spec.rule.get("blocks", 1))}
        return SharingCost(n_agents=spec.n_agents, n_rounds=spec.n_rounds, row_numbers=numbers, **size)

    def curve(self, measure: str) -> dict[int, Vector]:
        """The measure at each recorded round, by seed."""
        return {seed: column_of(run, measure) for seed, run in self.runs.items()}

    def at(self, measure: str, round_number: int | None = None) -> dict[int, float]:
        """The measure at a recorded round (the end when left out), by seed."""
        place = -1 if round_number is None else self._place(round_number)
        return {seed: float(column_of(run, measure)[place]) for seed, run in self.runs.items()}

    def fact(self, name: str) -> dict[int, float]:
        """A single fact of each run, by seed."""
        return {seed: float(run.facts[name]) for seed, run in self.runs.items()}

    def fact_mean(self, name: str) -> Interval:
        """Mean and interval over seeds of a single fact."""
        return interval(list(self.fact(name).values()))

    def mean(self, measure: str, round_number: int | None = None) -> Interval:
        """Mean and interval over seeds."""
        return interval(list(self.at(measure, round_number).values()))

    def _place(self, round_number: int) -> int:
        found = np.flatnonzero(self.rounds == round_number)
        if len(found) == 0:
            raise InvalidParameter(f"round {round_number} was not recorded by {self.spec.id}")
        return int(found[0])


def column_of(run: StoredRun, measure: str) -> Vector:
    """A recorded column, or one that follows from the others: messages, and of old runs scalars and bytes."""
    if measure == "messages":
        return np.asarray(run.columns["messages_up"] + run.columns["messages_down"], dtype=np.float64)
    if measure not in run.columns:
        return np.asarray(columns_of_messages(run.columns, run.spec.dim)[measure], dtype=np.float64)
    return np.asarray(run.columns[measure], dtype=np.float64)


def _sends_by_trigger(group: Group) -> bool:
    """Whether these are runs of FedLinUCB with α > 0 that sent messages."""
    rule, columns = group.spec.rule, next(iter(group.runs.values())).columns
    is_triggered = rule.get("algorithm") == "FedLinUCB" and float(rule["alpha"]) > 0.0
    return is_triggered and "messages_up" in columns and group.mean("bytes").mean > 0.0


class Results:
    """All groups of a study that have at least one run, in the order of its plan, and what failed."""

    def __init__(self, groups: Sequence[Group], failures: Sequence[FailedRun] = (), size: str = "quick") -> None:
        self.groups = [group for group in groups if group.runs]
        self.n_planned = sum(len(group.cell.seeds) for group in groups)
        self.n_missing = self.n_planned - sum(len(group.runs) for group in groups)
        self.failures = tuple(failures)
        self.size = size

    @classmethod
    def read(cls, store: RunStore, cells: Sequence[Cell], size: str) -> Results:
        """Everything of these cells that is on disk."""
        groups = []
        failures: list[FailedRun] = []
        for cell in cells:
            done = [seed for seed in cell.seeds if store.has(cell.spec, seed)]
            groups.append(Group(cell, [store.load(cell.spec, seed) for seed in done]))
            failed = (store.failure(cell.spec, seed) for seed in cell.seeds if seed not in done)
            failures.extend(failure for failure in failed if failure is not None)
        return cls(groups, failures, size)

    def where(self, **keys: Any) -> list[Group]:
        """All groups with these keys."""
        return [group for group in self.groups if all(group.keys.get(k) == v for k, v in keys.items())]

    def one(self, **keys: Any) -> Group:
        """The only group with these keys."""
        found = self.where(**keys)
        if len(found) != 1:
            raise InvalidParameter(f"expected one group of runs with {keys}, found {len(found)}")
        return found[0]

    def each(self, key: str, **keys: Any) -> list[Any]:
        """The values of a key among the groups with these keys, in the order of the plan."""
        return list(dict.fromkeys(group.keys[key] for group in self.where(**keys) if key in group.keys))

    def bytes_notes(self) -> list[str]:
        """Bytes of FedLinUCB's messages beside those of raw rows; empty where no such fleet sent anything."""
        sent = [group for group in self.groups if _sends_by_trigger(group)]
        if not sent:
            return []
        sizes = [group.mean("bytes").mean for group in sent]
        rows = [group.sharing_cost for group in sent]
        until = [cost.rounds_until_cheaper(size) for cost, size in zip(rows, sizes, strict=True)]
        return [
            f"In bytes, FedLinUCB's messages are {range_text(sizes, human_bytes)} per run, and the raw rows, each sent "
            f"once, {range_text([cost.raw_bytes for cost in rows], human_bytes)}. Rows grow with the rounds, messages "
            f"with their logarithm at most: the sums are fewer bytes from about {range_text(until)} rounds on."
        ]

    def spec_ids(self) -> list[str]:
        """The ids of all specs."""
        return sorted({group.spec.id for group in self.groups})

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)
