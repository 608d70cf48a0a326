"""A fleet whose agents leave for good, at random or after a disappointing reward, and never send their buffers."""

from __future__ import annotations

import dataclasses

import numpy as np

from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.fedlinucb import FedLinUCBAgent
from fedbandit.algorithms.messages import Upload
from fedbandit.errors import InvalidParameter
from fedbandit.experiments.drivers.base import RunOutcome, play_spec, rounds_of_spec
from fedbandit.experiments.drivers.coverage import CoverageFleet
from fedbandit.experiments.spec import RunSpec
from fedbandit.simulation.worlds import Stream, generator

WHY = ("nobody", "chance", "disappointment")


class ChurnFleet(CoverageFleet):
    """Agents are active one after another; each stays until its first exchange or until it leaves."""

    def __init__(self, spec: RunSpec, stream: Stream, seed: int) -> None:
        super().__init__(spec, stream)
        self.why = str(spec.driver.get("why", "nobody"))
        if self.why not in WHY:
            raise InvalidParameter(f"expected why among {', '.join(WHY)}, got {self.why!r}")
        self.rate = float(spec.driver.get("rate", 0.0))
        self.shortfall = float(spec.driver.get("shortfall", 0.0))
        self.rng = generator(np.random.SeedSequence([seed, 3]))
        self.n_before = self.n_quit = 0  # agents whose turn is over, and those of them that left
        self.after_round: list[tuple[float, int, int]] = []  # worst error, uploads, quitters

    def begin_round(self, t: int, agent_id: str) -> BaseAgent:
        """The agent whose turn it is, regardless of the participation pattern."""
        return super().begin_round(t, str(self.n_before))

    def end_round(self, agent: BaseAgent, decision: Decision, reward: float, upload: Upload | None) -> None:
        """The agent leaves, or exchanges if it is due; in both cases the next agent follows."""
        has_left = self._leaves(agent, decision, reward)
        if not has_left:
            super().end_round(agent, decision, reward, upload)
        self.n_quit += has_left
        self.n_before += has_left or upload is not None
        self.after_round.append((self.worst, self.n_up, self.n_quit))

    def _leaves(self, agent: BaseAgent, decision: Decision, reward: float) -> bool:
        if self.why == "chance":
            return bool(self.rng.random() < self.rate)
        if self.why == "nobody" or not isinstance(agent, FedLinUCBAgent):
            return False
        return reward < float(agent.model.theta_hat @ decision.x) - self.shortfall


def with_churn(spec: RunSpec, seed: int) -> RunOutcome:
    """Play a spec with agents that leave, by the driver's `why`.

    `nobody` leaves; with `chance` an agent leaves after a round with probability `rate`; with `disappointment` it
    leaves when the reward is below what its model predicted by more than `shortfall`. Agents that leave never upload.
    Facts: `worst_error` in radii, `uploads`, `quitters`, and the `rate` of leaving per round.
    """
    marks = np.unique(np.geomspace(min(10, spec.n_rounds), spec.n_rounds, 40).astype(int))
    stream, blocks = rounds_of_spec(spec, seed)
    fleet = ChurnFleet(spec, stream, seed)
    columns = play_spec(fleet, dataclasses.replace(spec, record=tuple(marks.tolist())), stream, blocks)
    after = np.array(fleet.after_round, dtype=np.float64)[columns["rounds"] - 1]
    columns |= {"worst_error": after[:, 0], "uploads": after[:, 1], "quitters": after[:, 2]}
    facts = {"worst_error": fleet.worst, "uploads": fleet.n_up, "quitters": fleet.n_quit}
    return RunOutcome(columns, {k: float(v) for k, v in facts.items()} | {"rate": fleet.n_quit / spec.n_rounds})
