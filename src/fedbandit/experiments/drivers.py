"""How a spec is played: the simulator, or a driver that does what the simulator does not offer."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbandit.errors import InvalidParameter
from fedbandit.experiments.spec import Spec
from fedbandit.simulation.runner import simulate
from fedbandit.simulation.trace import COLUMNS, Trace

Column = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run leaves: columns over the recorded rounds, all of one length, and single facts."""

    columns: Mapping[str, Column]
    facts: Mapping[str, float] = field(default_factory=dict)


Driver = Callable[[Spec, int], Outcome]

# Drivers are named in specs and found by name, so that a spec can be played in any process. Your own driver is named
# by its place, "module:function": to play a spec is to run the code that it names.
DRIVERS = {
    "simulate": "fedbandit.experiments.drivers:simulated",
    "mail": "fedbandit.experiments.mail:delivered_by_mail",
    "coverage": "fedbandit.experiments.coverage:watched",
    "quitting": "fedbandit.experiments.quitting:with_quitters",
    "two-arms": "fedbandit.experiments.two_arms:two_rounds_each",
    "subfleet": "fedbandit.experiments.subfleet:partly_federated",
}


def play(spec: Spec, seed: int) -> Outcome:
    """Run a spec with a seed by the driver that it names."""
    name = str(spec.driver.get("name"))
    module, colon, function = DRIVERS.get(name, name).partition(":")
    if not colon:
        raise InvalidParameter(f"expected a driver among {', '.join(DRIVERS)} or 'module:function', got {name!r}")
    driver: Driver = getattr(importlib.import_module(module), function)
    return driver(spec, seed)


def simulated(spec: Spec, seed: int) -> Outcome:
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
    return Outcome(columns_of(trace))


def columns_of(trace: Trace) -> dict[str, Column]:
    """The cumulative columns of a trace by name."""
    return {name: np.asarray(getattr(trace, name)) for name in COLUMNS}
