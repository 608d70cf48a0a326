"""CLUB (Gentile, Li and Zappella 2014): users in unknown clusters, served by one central learner."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbandit.algorithms.messages import Download, Pull, Receipt, Reply, Request
from fedbandit.algorithms.rules import LinearRule
from fedbandit.algorithms.scoring import DecisionBasis
from fedbandit.algorithms.send_each import SendEachAgent
from fedbandit.algorithms.server import BaseServer
from fedbandit.core import radius as radii
from fedbandit.core.arrays import Matrix, Vector, keep_finite, keep_whole
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import InvalidParameter
from fedbandit.registry import Algorithm, option
from fedbandit.wire.identifiers import check_agent_id


@dataclass(frozen=True, kw_only=True)
class CLUB(LinearRule):
    """A graph over users starts random, and loses the edge between users whose estimates differ too much.

    A user is served by the data of its connected component: argmax ⟨w, x⟩ + a √(xᵀΣ⁻¹x log(t+1)) with a = `beta`. The
    edge (i, l) is deleted when ‖w_i − w_l‖ > CB_i + CB_l, CB_i = a₂ √((1 + log(1 + T_i))/(1 + T_i)), a₂ = `edge_width`,
    after T_i rounds of user i. Two users start with an edge with probability min(1, `density` · log n/n). Every round
    costs a download and an upload: the algorithm is central, and a baseline for agents that differ.
    """

    edge_width: float = field(default=1.0, metadata=option("a₂, how far estimates of users with an edge may differ"))
    density: float = field(default=3.0, metadata=option("edges at the start, in units of log n/n"))
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.radius, radii.Fixed):
            raise InvalidParameter(f"expected beta of CLUB as a number, got {self.beta!r}")
        keep_finite(self, "edge_width", 0.0)
        keep_finite(self, "density", 0.0)
        keep_whole(self, "seed", 0)

    def agent(self, agent_id: str, *, incarnation: str | None = None) -> CLUBAgent:
        """A new agent at the prior."""
        return CLUBAgent(self, check_agent_id(agent_id), incarnation)

    def server(self) -> CLUBServer:
        """A new server with no users."""
        return CLUBServer(self, self.prior)

    def exploration(self, version: int) -> float:
        """a √log(t+1) in round t = version + 1."""
        fixed = self.radius
        return fixed.beta * math.sqrt(math.log(version + 2)) if isinstance(fixed, radii.Fixed) else math.nan


class CLUBAgent(SendEachAgent):
    """Asks for its cluster's model before each decision, and sends each observation."""

    rule: CLUB

    def _basis(self) -> DecisionBasis:
        return DecisionBasis(self.model, self.rule.exploration(self.model_version), self.model_version)

    def arrive(self) -> Pull | None:
        """Ask for the model of the cluster."""
        return Pull(self.agent_id, self.incarnation)


class CLUBServer(BaseServer):
    """Keeps the sums of each user, the graph, and the sums of each connected component."""

    rule: CLUB

    def __init__(self, rule: CLUB, prior: SufficientStats) -> None:
        super().__init__(rule, prior)
        self.users: dict[str, int] = {}  # name -> vertex
        self.sums: list[SufficientStats] = []
        self.estimates: Matrix = np.zeros((0, rule.dim))  # w_i
        self.edges: NDArray[np.bool_] = np.zeros((0, 0), dtype=bool)
        self.cluster: NDArray[np.int64] = np.zeros(0, dtype=np.int64)  # of each vertex, named by its first vertex
        self.cluster_sums: dict[int, SufficientStats] = {}

    def enroll(self, agent_ids: Iterable[str]) -> None:
        """Users, with random edges among themselves and to those who are known."""
        new = [name for name in dict.fromkeys(agent_ids) if name not in self.users]
        if not new:
            return
        n_before, n = len(self.users), len(self.users) + len(new)
        self.users.update({name: n_before + i for i, name in enumerate(new)})
        self.sums += [SufficientStats.zeros(self.dim)] * len(new)
        self.estimates = np.concatenate([self.estimates, np.zeros((len(new), self.dim))])
        edges = np.zeros((n, n), dtype=bool)
        edges[:n_before, :n_before] = self.edges
        edges[n_before:] = self._drawn_edges(n_before, n)
        self.edges = edges | edges.T
        self._find_clusters(range(n))

    def _drawn_edges(self, n_before: int, n: int) -> NDArray[np.bool_]:
        """Rows n_before … n − 1 of the lower triangle; the seed and n_before fix them."""
        rng = np.random.default_rng([self.rule.seed, n_before])
        chance = min(1.0, self.rule.density * math.log(n) / n) if n > 1 else 0.0
        below = np.arange(n) < np.arange(n_before, n)[:, None]
        return np.asarray((rng.random((n - n_before, n)) < chance) & below)

    def receive(self, message: Request) -> Download | Receipt | tuple[Reply, ...]:
        """A pull is answered with the sums of the user's cluster; an upload changes the user, and perhaps the graph."""
        if isinstance(message, Pull):
            self.enroll([message.agent_id])
            return self._download(message.agent_id, message.incarnation)
        if self._merge_once(message):
            self.enroll([message.agent_id])
            self._learn(self.users[message.agent_id], message.stats)
        return Receipt(message.agent_id, self._download(message.agent_id, message.incarnation).acknowledged)

    def _download(self, agent_id: str, incarnation: str | None = None) -> Download:
        common = super()._download(agent_id, incarnation)
        if agent_id not in self.users:
            return Download(agent_id, common.version, self.rule.prior, common.acknowledged)
        sums = self.cluster_sums[int(self.cluster[self.users[agent_id]])]
        return Download(agent_id, common.version, self.rule.prior + sums, common.acknowledged)

    def _learn(self, user: int, stats: SufficientStats) -> None:
        self.sums[user] = self.sums[user] + stats
        mine = int(self.cluster[user])
        self.cluster_sums[mine] = self.cluster_sums[mine] + stats
        self.estimates[user] = RidgeModel(self.rule.prior + self.sums[user]).theta_hat
        neighbours = np.flatnonzero(self.edges[user])
        distances = np.linalg.norm(self.estimates[neighbours] - self.estimates[user], axis=1)
        n_rounds = np.array([self.sums[i].n_obs for i in neighbours])
        own = edge_bound(np.array([self.sums[user].n_obs]), self.rule.edge_width)
        gone = neighbours[distances > own + edge_bound(n_rounds, self.rule.edge_width)]
        if len(gone):
            self.edges[user, gone] = self.edges[gone, user] = False
            self._find_clusters(np.flatnonzero(self.cluster == mine).tolist())

    def _find_clusters(self, vertices: Iterable[int]) -> None:
        """Connected components among these vertices, which have no edge to others, and their sums."""
        if len(self.cluster) < len(self.users):
            self.cluster, self.cluster_sums = np.zeros(len(self.users), dtype=np.int64), {}
        left = np.zeros(len(self.users), dtype=bool)
        left[list(vertices)] = True
        while left.any():
            first = int(np.argmax(left))
            members = self._component(first)
            left[members] = False
            self.cluster[members] = first
            total = SufficientStats.zeros(self.dim)
            for i in np.flatnonzero(members):
                total = total + self.sums[i]
            self.cluster_sums[first] = total

    def _component(self, first: int) -> NDArray[np.bool_]:
        """The vertices that `first` can reach."""
        reached = np.zeros(len(self.users), dtype=bool)
        reached[first] = True
        frontier = reached
        while frontier.any():
            frontier = self.edges[frontier].any(axis=0) & ~reached
            reached = reached | frontier
        return reached

    @property
    def n_clusters(self) -> int:
        """Connected components of the graph."""
        return len(np.unique(self.cluster))

    def _state(self) -> dict[str, Any]:
        return {
            "users": list(self.users),
            "sums": {str(i): stats for i, stats in enumerate(self.sums)},
            "edges": np.packbits(self.edges).tobytes(),
            "cluster": self.cluster.tolist(),
            "cluster_sums": {str(first): stats for first, stats in self.cluster_sums.items()},
        }

    def _restore(self, state: dict[str, Any]) -> None:
        n = len(state["users"])
        self.users = {name: i for i, name in enumerate(state["users"])}
        self.sums = [state["sums"][str(i)] for i in range(n)]
        self.estimates = np.array([RidgeModel(self.rule.prior + sums).theta_hat for sums in self.sums])
        self.estimates = self.estimates.reshape(n, self.dim)
        bits = np.unpackbits(np.frombuffer(state["edges"], dtype=np.uint8), count=n * n)
        self.edges = bits.reshape(n, n).astype(bool)
        self.cluster = np.array(state["cluster"], dtype=np.int64)
        self.cluster_sums = {int(first): stats for first, stats in state["cluster_sums"].items()}


def edge_bound(n_rounds: NDArray[Any], width: float) -> Vector:
    """CB = a₂ √((1 + log(1 + T))/(1 + T)) after T rounds of a user."""
    n = np.asarray(n_rounds, dtype=np.float64)
    return np.asarray(width * np.sqrt((1.0 + np.log1p(n)) / (1.0 + n)))


ENTRY = Algorithm(
    name="club", rule=CLUB, traits=frozenset({"any-time", "any-rows", "scores", "ridge", "uploads", "saves"})
)
