"""A fleet where agents leave for good, by chance or out of disappointment, and take their buffers with them."""

from __future__ import annotations

import numpy as np

from fedbandit.algorithms.fedlinucb import FedLinUCBAgent
from fedbandit.errors import InvalidParameter
from fedbandit.experiments.coverage import WatchedFleet
from fedbandit.experiments.drivers import Outcome
from fedbandit.experiments.loop import opened
from fedbandit.experiments.spec import Spec
from fedbandit.simulation.runner import value_of
from fedbandit.simulation.worlds import generator

WHY = ("nobody", "chance", "disappointment")


def with_quitters(spec: Spec, seed: int) -> Outcome:
    """Agents come one after another and stay until they have exchanged, or until they quit.

    The driver's `why` says who quits: `nobody`; with `chance` an agent leaves after a round with probability `rate`;
    with `disappointment` it leaves when the reward falls short of what its model predicted by more than `shortfall`.
    Quitters never upload. Facts: `worst_error` in radii, `uploads`, `quitters`, `rate` of quitting a round.
    """
    why = str(spec.driver.get("why", "nobody"))
    if why not in WHY:
        raise InvalidParameter(f"expected why among {', '.join(WHY)}, got {why!r}")
    rate, shortfall = float(spec.driver.get("rate", 0.0)), float(spec.driver.get("shortfall", 0.0))
    rng = generator(np.random.SeedSequence([seed, 3]))
    stream, blocks = opened(spec, seed)
    if stream.theta_star is None:
        raise InvalidParameter("coverage needs a world that knows its theta_star")
    fleet = WatchedFleet(spec, stream.theta_star)
    rows, m, n_quit, t, regret = [], 0, 0, 0, 0.0
    marks = set(np.unique(np.geomspace(10, spec.n_rounds, 40).astype(int)).tolist()) | {spec.n_rounds}
    for _, block in blocks:
        for i in range(min(len(block), spec.n_rounds - t)):
            t += 1
            agent = _arriving(fleet, str(m))
            actions = block.actions(i)
            decision = agent.choose(actions)
            mean, best = value_of(decision.index, decision.x, actions, block, i, stream)
            reward = mean + float(block.noise[i])
            expected = float(agent.model.theta_hat @ decision.x)
            left = (why == "chance" and rng.random() < rate) or (
                why == "disappointment" and reward < expected - shortfall
            )
            upload = agent.observe(decision, reward)
            if upload is not None and not left:
                fleet.exchange(upload)
            n_quit += left
            m += left or upload is not None
            regret += best - mean
            if t in marks:
                rows.append((t, fleet.worst, fleet.n_up, n_quit, regret, fleet.n_up, fleet.n_down, fleet.n_switches))
    names = ("rounds", "worst_error", "uploads", "quitters", "regret", "messages_up", "messages_down", "switches")
    table = np.array(rows)
    facts = {"worst_error": fleet.worst, "uploads": fleet.n_up, "quitters": n_quit, "rate": n_quit / spec.n_rounds}
    return Outcome({name: table[:, k] for k, name in enumerate(names)}, {k: float(v) for k, v in facts.items()})


def _arriving(fleet: WatchedFleet, agent_id: str) -> FedLinUCBAgent:
    """The agent of this name; a newcomer downloads first, so that it knows what the fleet knows."""
    is_new = agent_id not in fleet.agents
    agent = fleet.agent(agent_id)
    if not isinstance(agent, FedLinUCBAgent):
        raise InvalidParameter("only FedLinUCB agents can quit here")
    pull = agent.arrive() if is_new else None
    if pull is not None:
        fleet.exchange(pull)
    return agent
