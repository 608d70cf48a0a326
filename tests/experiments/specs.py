"""Small specs, and drivers that misbehave, for the tests of this folder."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

import fedbandit as fb
from fedbandit.experiments.drivers.base import RunOutcome
from fedbandit.experiments.spec import SIMULATE, RunSpec, make_spec

HERE = "tests.experiments.specs"


def make_small_spec(*, driver: dict[str, Any] | None = None, n_rounds: int = 60, **rule: Any) -> RunSpec:
    """A run of milliseconds."""
    made = fb.FedLinUCB(**{"dim": 3, "alpha": 1.0, "beta": 0.5, **rule})
    world = fb.worlds.uniform(dim=3, n_actions=4)
    return make_spec(made, world, n_agents=4, n_rounds=n_rounds, driver=SIMULATE if driver is None else driver)


def named(function: str, **options: Any) -> dict[str, Any]:
    """The driver in this file with this name."""
    return {"name": f"{HERE}:{function}", **options}


def fine(spec: RunSpec, seed: int) -> RunOutcome:
    """Ends well at once."""
    return RunOutcome({"rounds": np.array([spec.n_rounds]), "regret": np.array([float(seed)])}, {"seed": float(seed)})


def slow(spec: RunSpec, seed: int) -> RunOutcome:
    """Takes a while, then ends well."""
    time.sleep(float(spec.driver.get("seconds", 0.2)))
    return fine(spec, seed)


def failing(spec: RunSpec, seed: int) -> RunOutcome:
    """Raises for odd seeds."""
    if seed % 2:
        raise ArithmeticError(f"seed {seed} is odd")
    return fine(spec, seed)


def deadly(spec: RunSpec, seed: int) -> RunOutcome:
    """Kills its own process for seed 1, as the kernel does when memory runs out."""
    if seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return fine(spec, seed)
