"""Algorithm 1 while the intermediate statements of the paper's proof are measured after every round."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.fedlinucb import FedLinUCBAgent
from fedbandit.algorithms.messages import Upload
from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.theory import epoch_of
from fedbandit.errors import InvalidParameter
from fedbandit.experiments.drivers.base import Column, RunOutcome, play_spec, rounds_of_spec
from fedbandit.experiments.spec import RunSpec
from fedbandit.simulation.runner import SimulatedFleet
from fedbandit.simulation.worlds import Stream

MEASURED = (
    "agent",  # m_t
    "model_round",  # the round of the exchange that the model of m_t comes from; 0: the prior
    "width",  # ‖x_t‖ in the norm of Σ_m⁻¹
    "beta",
    "model_error",  # ‖θ* − θ̂_m‖ in the norm of Σ_m, in units of β
    "epoch",  # of det Σ_ser, after the round
    "covariance",  # λ_max(Σ_ser⁻¹ Σ_all)
    "behind",  # λ_max(Σ_m⁻¹ Σ_all) of the active agent, in the order of time
    "buffer",  # λ_max(Σ_ser⁻¹ Σ_loc) of the active agent
    "buffer_noise",  # ‖u_loc‖ in the norm of (αλI + Σ_loc)⁻¹, before an upload
    "global_error",  # ‖θ̂_all − θ*‖ in the norm of Σ_all
    "set_aside",  # rounds so far in which an agent exchanged for the first time since det Σ_all doubled
)


class MeasuredFleet(SimulatedFleet):
    """A FedLinUCB fleet that knows θ* and records what the lemmas of the paper are about."""

    def __init__(self, spec: RunSpec, stream: Stream) -> None:
        super().__init__(spec.make_rule(), spec.n_agents)
        if stream.theta_star is None:
            raise InvalidParameter("the lemmas can only be measured in a world that knows its theta_star")
        self.theta_star: Vector = stream.theta_star
        self.alpha, self.lam = float(spec.rule.get("alpha", math.nan)), float(spec.rule["lam"])
        if not 0 < self.alpha < math.inf:
            raise InvalidParameter(f"expected FedLinUCB with a finite alpha > 0, got alpha = {self.alpha}")
        dim = spec.dim
        self.everything = SufficientStats.prior(dim=dim, lam=self.lam)
        self.buffers: dict[str, tuple[Matrix, Vector]] = {}
        self.model_rounds: dict[str, int] = {}
        self.buffered: dict[str, list[int]] = {}  # the rounds whose observations an agent holds back
        self.merged_rounds = np.zeros(spec.n_rounds)  # in which round an observation reached the server; 0: never
        self.doubling_of: dict[str, int] = {}  # of det Σ_all, at an agent's last exchange
        self.n_set_aside = 0
        self.rows: list[tuple[float, ...]] = []
        self._prior_log_det = dim * math.log(self.lam)
        self._t = 0

    def begin_round(self, t: int, agent_id: str) -> BaseAgent:
        """Note the round; the agent decides on the model that it has now."""
        self._t = t
        return super().begin_round(t, agent_id)

    def end_round(self, agent: BaseAgent, decision: Decision, reward: float, upload: Upload | None) -> None:
        """Measure the decision, deliver the upload, then measure what the server and the agents hold."""
        if not isinstance(agent, FedLinUCBAgent):
            raise InvalidParameter(f"the lemmas are about FedLinUCB only, got {type(agent).__name__}")
        name, x = agent.agent_id, decision.x
        model = agent.model
        before = (
            float(name),
            self.model_rounds.get(name, 0),
            float(model.widths(x[None])[0]),
            agent.beta,
            model.distance(self.theta_star) / agent.beta if agent.beta > 0 else math.inf,
        )
        noise_norm = self._gather(name, x, reward)
        n_switches = agent.n_switches
        super().end_round(agent, decision, reward, upload)
        if agent.n_switches > n_switches:
            self._note_exchange(name)
        self.rows.append((*before, *self._after(name, model), noise_norm, self._global_error(), self.n_set_aside))

    def _gather(self, name: str, x: Vector, reward: float) -> float:
        """Add the observation to Σ_all and to the agent's buffer; the norm of the noise in that buffer."""
        Sigma, u = self.buffers.get(name, (np.zeros((len(x), len(x))), np.zeros(len(x))))
        Sigma, u = Sigma + np.outer(x, x), u + (reward - float(x @ self.theta_star)) * x
        self.buffers[name] = (Sigma, u)
        self.buffered.setdefault(name, []).append(self._t)
        self.everything = self.everything + SufficientStats.of([x], [reward])
        ridge = self.alpha * self.lam * np.eye(len(x))
        return math.sqrt(float(u @ np.linalg.solve(ridge + Sigma, u)))

    def _note_exchange(self, name: str) -> None:
        doubling = epoch_of(max(float(np.linalg.slogdet(self.everything.Sigma)[1]) - self._prior_log_det, 0.0))
        if self.doubling_of.get(name) != doubling:
            self.n_set_aside += 1
        self.doubling_of[name] = doubling
        self.merged_rounds[np.array(self.buffered.pop(name)) - 1] = self._t
        self.model_rounds[name] = self._t
        del self.buffers[name]

    def _after(self, name: str, model: RidgeModel) -> tuple[float, float, float, float]:
        """Epoch, covariance, behind and buffer after the round; `model` is the one that the agent decided on."""
        server = RidgeModel(self.server.stats)
        dim = len(self.theta_star)
        held = self.buffers.get(name, (np.zeros((dim, dim)),))[0]
        return (
            epoch_of(max(server.log_det - self._prior_log_det, 0.0)),
            _largest_ratio(server, self.everything.Sigma),
            _largest_ratio(model, self.everything.Sigma),
            _largest_ratio(server, held),
        )

    def _global_error(self) -> float:
        return RidgeModel(self.everything).distance(self.theta_star)


def _largest_ratio(model: RidgeModel, Sigma: Matrix) -> float:
    """λ_max(Σ_model⁻¹ Σ)."""
    W = model.factor.W
    return float(np.linalg.eigvalsh(W @ Sigma @ W.T)[-1])


def measure_lemmas(spec: RunSpec, seed: int) -> RunOutcome:
    """Play a spec and measure after every round; the spec must record "all".

    Columns beside those of a trace: `MEASURED`, and `merged_round`, the round in which the observation of each round
    reached the server (0: it never did). Observation s is behind the model used in round t if it was merged, and
    merged_round[s] ≤ model_round[t].
    """
    if spec.record != "all":
        raise InvalidParameter(f"the lemmas are measured in every round: expected record 'all', got {spec.record!r}")
    stream, blocks = rounds_of_spec(spec, seed)
    fleet = MeasuredFleet(spec, stream)
    columns = play_spec(fleet, spec, stream, blocks)
    measured = dict(zip(MEASURED, np.array(fleet.rows).T, strict=True))
    return RunOutcome({**columns, **measured, "merged_round": fleet.merged_rounds})


def known_at_decision(columns: Mapping[str, Column]) -> Matrix:
    """Entry (t, s) is 1 if observation s was behind the model that round t decided on, else 0; rounds from 0 here."""
    merged, model = np.asarray(columns["merged_round"]), np.asarray(columns["model_round"])
    return ((merged[None, :] > 0) & (merged[None, :] <= model[:, None])).astype(np.float64)
