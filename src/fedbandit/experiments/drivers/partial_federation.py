"""Partial federation: some agents share all their data, the others learn alone."""

from __future__ import annotations

import numpy as np

from fedbandit.algorithms.base import Rule
from fedbandit.algorithms.oful import OFUL
from fedbandit.core.radius import from_dict as radius_from_dict
from fedbandit.experiments.baselines import alone
from fedbandit.experiments.drivers.base import RunOutcome, columns_of
from fedbandit.experiments.spec import RunSpec
from fedbandit.simulation.runner import simulate
from fedbandit.simulation.trace import COLUMNS, Trace


def partly_federated(spec: RunSpec, seed: int) -> RunOutcome:
    """`members` of the M agents run the spec's rule together, the rest are independent OFULs; columns at the end only.

    Every agent has T/M rounds. The two parts do not interact, so they are two simulations of the same seed, added up.
    """
    members = int(spec.driver["members"])
    own = spec.n_rounds // spec.n_agents
    rule, world = spec.make_rule(), spec.make_world()
    parts: list[Trace] = []
    sides: tuple[tuple[Rule, int], ...] = ((rule, members), (_independent_rule(spec), spec.n_agents - members))
    for who, n_agents in sides:
        if n_agents > 0:
            rounds = own * n_agents
            parts.append(simulate(who, world, n_agents=n_agents, n_rounds=rounds, seed=seed, record=[rounds]))
    ends = [columns_of(part) for part in parts]
    return RunOutcome({name: np.sum([end[name] for end in ends], axis=0) for name in COLUMNS})


def _independent_rule(spec: RunSpec) -> OFUL:
    return alone(dim=spec.dim, beta=radius_from_dict(dict(spec.rule["beta"])), lam=float(spec.rule["lam"]))
