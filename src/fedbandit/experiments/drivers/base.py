"""Drivers, which run a spec: the simulator, or a fleet that does more than deliver messages."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbandit.errors import InvalidParameter
from fedbandit.experiments.spec import RunSpec
from fedbandit.simulation.runner import Blocks, SimulatedFleet, play_rounds, rounds_of, simulate
from fedbandit.simulation.trace import COLUMNS, Trace
from fedbandit.simulation.worlds import Stream

Column = NDArray[Any]


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The output of a run: columns over the recorded rounds, all of one length, and single facts."""

    columns: Mapping[str, Column]
    facts: Mapping[str, float] = field(default_factory=dict)


Driver = Callable[[RunSpec, int], RunOutcome]

# Drivers are named in specs and found by name, so that a spec can be run in any process. Your own driver is named
# "module:function": running a spec runs the code that it names.
DRIVERS = {
    "simulate": "fedbandit.experiments.drivers.base:simulated",
    "unreliable-network": "fedbandit.experiments.drivers.unreliable_network:over_unreliable_network",
    "coverage": "fedbandit.experiments.drivers.coverage:measure_coverage",
    "churn": "fedbandit.experiments.drivers.churn:with_churn",
    "appendix-a1": "fedbandit.experiments.drivers.appendix_a1:two_rounds_each",
    "partial-federation": "fedbandit.experiments.drivers.partial_federation:partly_federated",
    "lemmas": "fedbandit.experiments.drivers.lemmas:measure_lemmas",
    "reduction": "fedbandit.experiments.drivers.reduction:reduced",
}


def play(spec: RunSpec, seed: int) -> RunOutcome:
    """Run a spec with a seed by the driver that it names."""
    name = str(spec.driver.get("name"))
    module, colon, function = DRIVERS.get(name, name).partition(":")
    if not colon:
        raise InvalidParameter(f"expected a driver among {', '.join(DRIVERS)} or 'module:function', got {name!r}")
    driver: Driver = getattr(importlib.import_module(module), function)
    return driver(spec, seed)


def simulated(spec: RunSpec, seed: int) -> RunOutcome:
    """The run as `fb.simulate` plays it."""
    trace = simulate(
        spec.make_rule(),
        spec.make_world(),
        n_agents=spec.n_agents,
        n_rounds=spec.n_rounds,
        seed=seed,
        participation=spec.make_participation(),
        record=spec.record,
    )
    return RunOutcome(columns_of(trace))


def play_spec(fleet: SimulatedFleet, spec: RunSpec, stream: Stream, blocks: Blocks) -> dict[str, Column]:
    """Every round of the spec by a driver's own fleet, in plain Python; the columns of its trace."""
    return columns_of(play_rounds(fleet, stream, blocks, n_rounds=spec.n_rounds, record=spec.record))


def rounds_of_spec(spec: RunSpec, seed: int) -> tuple[Stream, Blocks]:
    """The world and the active agents of a spec, exactly as the simulator draws them."""
    sizes = {"n_agents": spec.n_agents, "n_rounds": spec.n_rounds}
    return rounds_of(spec.make_world(), spec.make_participation(), **sizes, seed=seed)


def columns_of(trace: Trace) -> dict[str, Column]:
    """The cumulative columns of a trace by name."""
    return {name: np.asarray(getattr(trace, name)) for name in COLUMNS}
