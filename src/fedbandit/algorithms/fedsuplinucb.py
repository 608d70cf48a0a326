"""FedSupLinUCB (after Fan et al. 2023): layers of FedLinUCB for finite decision sets; docs/systems.md has the proof."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedbandit.algorithms.base import BaseAgent, replies_in
from fedbandit.algorithms.control import check_default, check_defaults
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.fedlinucb import FedLinUCB, FedLinUCBAgent, FedLinUCBServer
from fedbandit.algorithms.messages import Download, Poll, Pull, Receipt, Reply, Request, Upload, n_bytes
from fedbandit.algorithms.rules import LinearRule
from fedbandit.algorithms.scoring import DecisionBasis, check_k
from fedbandit.algorithms.server import BaseServer
from fedbandit.core import radius as radii
from fedbandit.core.arrays import (
    Matrix,
    Vector,
    as_reward,
    at_least,
    finite,
    finite_at_least,
    is_listing,
    whole_at_least,
)
from fedbandit.core.decision_sets import DecisionSet, first_best, has_best
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import DimensionMismatch, InvalidInput, InvalidParameter
from fedbandit.registry import Algorithm, option
from fedbandit.wire.identifiers import check_agent_id

NOT_LEARNT = -1  # the layer of a decision whose reward no layer may learn


@dataclass(frozen=True, kw_only=True)
class FedSupLinUCB(LinearRule):
    """Layers 0 … S, S = ⌈log₂ d⌉, each a FedLinUCB of its own with trigger 1 + `alpha` (published: 1/M²).

    A round descends from layer to layer while all remaining actions are known to 2^(−s) · d^1.5/√T, and is learnt by
    the layer where it stops. `beta` is the radius of layer 0, `upper_beta` that of the others (`beta` if left out and
    a number; `fb.theory.layer_radius` for the guarantee). `n_rounds` is T, the rounds of all agents together.
    """

    n_rounds: int = field(
        metadata=option(
            "T, which sets the levels of its layers",
            default=lambda sizes: sizes.n_rounds,
            default_help="the rounds of the run",
        )
    )
    alpha: float = field(
        default=1.0,
        metadata=option(
            "determinant growth that triggers an exchange of a layer",
            default=lambda sizes: sizes.n_agents**-2.0,
            default_help="1/M²",
            letter="a",
        ),
    )
    upper_beta: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "n_rounds", whole_at_least(self.n_rounds, 1, "n_rounds"))
        object.__setattr__(self, "alpha", at_least(self.alpha, 0.0, "alpha"))
        if self.upper_beta is None:
            if not isinstance(self.radius, radii.Fixed):
                raise InvalidParameter(
                    "expected upper_beta as a number where beta is a formula; fb.theory.layer_radius computes it"
                )
            object.__setattr__(self, "upper_beta", self.radius.beta)
        else:
            object.__setattr__(self, "upper_beta", finite_at_least(self.upper_beta, 0.0, "upper_beta"))

    @property
    def n_layers(self) -> int:
        """S = ⌈log₂ d⌉ layers above layer 0, at least one."""
        return max(1, math.ceil(math.log2(self.dim)))

    @cached_property
    def levels(self) -> tuple[float, ...]:
        """The bonus β‖x‖ below which actions pass each layer: 2^(−s) · d^1.5/√T."""
        first = self.dim**1.5 / math.sqrt(self.n_rounds)
        return tuple(first / 2**s for s in range(self.n_layers + 1))

    @cached_property
    def layer_rules(self) -> tuple[FedLinUCB, ...]:
        """The FedLinUCB of each layer."""
        common: dict[str, Any] = {"dim": self.dim, "lam": self.lam, "alpha": self.alpha}
        upper = FedLinUCB(beta=float(self.upper_beta or 0.0), **common)
        return (FedLinUCB(beta=self.beta, **common), *(upper for _ in range(self.n_layers)))

    @property
    def trigger_level(self) -> float:
        return self.alpha

    def agent(self, agent_id: str, *, incarnation: str | None = None) -> FedSupLinUCBAgent:
        """A new agent at the prior."""
        return FedSupLinUCBAgent(self, check_agent_id(agent_id), incarnation)

    def server(self) -> FedSupLinUCBServer:
        """A new server at the prior."""
        return FedSupLinUCBServer(self, self.prior)


@dataclass(frozen=True, slots=True)
class LayerUpload(Upload):
    """An upload of one layer; sequences count per layer."""

    layer: int = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of its numbers, the layer among them."""
        return n_bytes(self.stats.dim) + 8


@dataclass(frozen=True, slots=True)
class LayerDownload(Download):
    """The server's statistics of one layer."""

    layer: int = 0

    @property
    def n_bytes(self) -> int:
        """Bytes of its numbers, the layer among them."""
        return n_bytes(self.stats.dim) + 8


def layer_choice(
    layers: Sequence[DecisionBasis], levels: Sequence[float], X: Matrix, *, upper_beta: float
) -> tuple[int, int]:
    """The row to play, and the layer that learns it (`NOT_LEARNT`: none); `layers` are what each layer decides on.

    Layer 0 may look at its estimates; layer s ≥ 1 stops a round by widths only, so that what it learns does not depend
    on its own rewards.
    """
    alive = np.arange(len(X))
    for s, (basis, level) in enumerate(zip(layers, levels, strict=True)):
        rows = X[alive]
        bonus = (basis.beta if s == 0 else upper_beta) * basis.estimate.widths(rows)
        means = basis.estimate.predict(rows)
        upper = means + bonus
        if s == 0:
            stopped = _stop_at_first(means, bonus, level)
            if stopped is not None:
                return int(alive[stopped]), 0
            alive = alive[upper >= (means - bonus).max()]
            continue
        if bonus.max() > level:
            return int(alive[first_best(bonus)]), s
        if s == len(layers) - 1:
            return int(alive[first_best(upper)]), NOT_LEARNT
        alive = alive[upper >= upper.max() - 2 * level]
    raise InvalidInput("expected at least two layers")


def _stop_at_first(means: Vector, bonus: Vector, level: float) -> int | None:
    """Layer 0: the optimistic action if it is uncertain, else the most uncertain one that may be the best."""
    upper = means + bonus
    best = first_best(upper)
    if bonus[best] > level:
        return best
    plausible = np.flatnonzero(upper >= (means - bonus).max())
    widest = int(plausible[first_best(bonus[plausible])])
    return widest if bonus[widest] > level else None


class FedSupLinUCBAgent(BaseAgent):
    """One FedLinUCB agent per layer; a decision is learnt by the layer that stopped it."""

    rule: FedSupLinUCB

    def __init__(self, rule: FedSupLinUCB, agent_id: str, incarnation: str | None) -> None:
        super().__init__(rule, agent_id, incarnation)
        self.layers: list[FedLinUCBAgent] = [
            layer.agent(self.agent_id, incarnation=self.incarnation) for layer in rule.layer_rules
        ]
        self._layer_of: dict[int, int] = {}  # number of a pending decision -> layer
        self.n_not_learnt = 0

    def _basis(self) -> DecisionBasis:
        """What `predict` and `scores` rest on: layer 0."""
        return self.layers[0]._basis()

    def choose(self, actions: ArrayLike | DecisionSet, *, k: int | None = None, default: int | None = None) -> Any:
        """The action of the layer where the round stops; with `k`, then the one of the rows that are left, and so on.

        Only the first of k is learnt: the rows left for the others depend on rewards that upper layers must not see.
        """
        if has_best(actions):
            raise InvalidInput("FedSupLinUCB chooses from a finite array of actions, got a decision set with best()")
        X = finite(self._read(actions), "actions")
        check_default(default, len(X))
        if k is not None:
            check_k(k, X)
        return self._choose_rows(X, k)

    def _choose_rows(self, X: Matrix, k: int | None) -> Any:
        with self._lock:
            bases = [layer._basis() for layer in self.layers]
            left, decisions = np.arange(len(X)), []
            for i in range(k or 1):
                at, layer = layer_choice(
                    bases, self.rule.levels, X[left], upper_beta=float(self.rule.upper_beta or 0.0)
                )
                index = int(left[at])
                decisions.append(self._issue(index, X[index].copy(), self.model_version))
                self._layer_of[self._newest] = layer if i == 0 else NOT_LEARNT
                left = np.delete(left, at)
            if len(self._layer_of) > 2 * len(self._pending) + 16:  # expired and dropped decisions
                self._layer_of = {n: s for n, s in self._layer_of.items() if n in self._pending}
        return decisions[0] if k is None else decisions

    def choose_many(
        self,
        decision_sets: Sequence[ArrayLike],
        *,
        k: int | None = None,
        defaults: Sequence[int | None] | None = None,
    ) -> Any:
        """What `choose` gives for each decision set; nothing is decided if one set is bad."""
        if not is_listing(decision_sets) and not hasattr(decision_sets, "__len__"):
            raise InvalidInput(f"expected a list of decision sets, got {type(decision_sets).__name__}")
        arrays = [finite(self._read(actions), "actions") for actions in decision_sets]
        for X, default in zip(arrays, check_defaults(defaults, len(arrays)), strict=True):
            check_default(default, len(X))
            if k is not None:
                check_k(k, X)
        return [self._choose_rows(X, k) for X in arrays]

    def observe(self, decision: Decision | ArrayLike, reward: float) -> Upload | None:
        """Book a reward in its decision's layer; a row that `choose` did not pick belongs to layer 0."""
        value = as_reward(reward)
        with self._lock:
            layer = 0
            if isinstance(decision, Decision):
                number = self._number_of(decision)
                x = self._settle(decision)
                layer = self._layer_of.pop(number, NOT_LEARNT)
            else:
                x = self._row(decision)
            if layer == NOT_LEARNT:
                self.n_not_learnt += 1
                self.n_rounds += 1
                return None
            upload = self.layers[layer].observe(x, value)
            self.n_rounds += 1
            return self._labelled(layer, upload)

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> Upload | None:
        """Learn rows from elsewhere in layer 0, the only one that may."""
        with self._lock:
            upload = self.layers[0].partial_fit(self._read(X), y)
            self.n_rounds = sum(layer.n_rounds for layer in self.layers) + self.n_not_learnt
            return self._labelled(0, upload)

    @property
    def local(self) -> SufficientStats:
        """What all layers gathered since their last uploads."""
        with self._lock:
            total = SufficientStats.zeros(self.dim)
            for layer in self.layers:
                total = total + layer.local
            return total

    def adopt(self, message: Reply | Iterable[Reply]) -> Upload | None:
        """Give a download to its layer; the upload that is due in turn."""
        if not isinstance(message, Download | Poll | Receipt):
            answers = [self.adopt(reply) for reply in replies_in(message) if reply.agent_id == self.agent_id]
            return next((answer for answer in answers if answer is not None), None)
        if message.agent_id != self.agent_id:
            raise InvalidInput(f"expected a reply for agent {self.agent_id!r}, got one for {message.agent_id!r}")
        if isinstance(message, Download) and message.stats.dim != self.dim:
            raise DimensionMismatch(f"expected a model with {self.dim} features, got {message.stats.dim}")
        if not isinstance(message, LayerDownload):
            raise InvalidInput(f"expected the download of a layer, got {type(message).__name__}")
        if not 0 <= message.layer < len(self.layers):
            raise InvalidInput(f"expected a layer from 0 to {len(self.layers) - 1}, got {message.layer}")
        with self._lock:
            layer = self.layers[message.layer]
            before = layer.n_switches
            plain = Download(message.agent_id, message.version, message.stats, message.acknowledged)
            upload = self._labelled(message.layer, layer.adopt(plain))
            self.n_switches += layer.n_switches - before
            self.model_version += layer.n_switches - before
            return upload

    @staticmethod
    def _labelled(layer: int, upload: Upload | None) -> LayerUpload | None:
        if upload is None:
            return None
        names = (upload.agent_id, upload.incarnation, upload.sequence, upload.stats, upload.growth)
        return LayerUpload(*names, layer=layer)

    def _state(self) -> dict[str, Any]:
        layer_of = {str(number): layer for number, layer in self._layer_of.items()}
        for layer in self.layers:
            layer._decisions = itertools.count()  # saving skips a number, and layers make no decisions of their own
        blobs = [layer.to_bytes() for layer in self.layers]
        return {"layers": blobs, "layer_of": layer_of, "not_learnt": self.n_not_learnt}

    def _restore(self, state: dict[str, Any]) -> None:
        from fedbandit.algorithms.snapshot import load

        self.layers = [load(blob) for blob in state["layers"]]
        self._layer_of = {int(number): layer for number, layer in state["layer_of"].items()}
        self.n_not_learnt = state["not_learnt"]


class FedSupLinUCBServer(BaseServer):
    """One FedLinUCB server per layer; `stats` holds λI and the data of all layers together."""

    rule: FedSupLinUCB

    def __init__(self, rule: FedSupLinUCB, prior: SufficientStats) -> None:
        super().__init__(rule, prior)
        self.layers: list[FedLinUCBServer] = [layer.server() for layer in rule.layer_rules]

    def receive(self, message: Request) -> Download | Receipt | tuple[Reply, ...]:
        """Merge an upload into its layer once, and answer the sender with that layer."""
        if isinstance(message, Pull):
            return tuple(self._answer(s, message) for s in range(len(self.layers)))
        if not isinstance(message, LayerUpload):
            raise InvalidInput(f"expected the upload of a layer, got {type(message).__name__}")
        if not 0 <= message.layer < len(self.layers):
            raise InvalidInput(f"expected a layer from 0 to {len(self.layers) - 1}, got {message.layer}")
        before = self.layers[message.layer].version
        answer = self._answer(message.layer, message)
        if self.layers[message.layer].version > before:
            self.stats = self.stats + message.stats
            self.version += 1
        return answer

    def _answer(self, layer: int, message: Request) -> LayerDownload:
        reply = self.layers[layer].receive(message)
        if not isinstance(reply, Download):
            raise InvalidInput(f"expected a download of layer {layer}, got {type(reply).__name__}")
        return LayerDownload(reply.agent_id, reply.version, reply.stats, reply.acknowledged, layer=layer)

    def _state(self) -> dict[str, Any]:
        return {"layers": [layer.to_bytes() for layer in self.layers]}

    def _restore(self, state: dict[str, Any]) -> None:
        from fedbandit.algorithms.snapshot import load

        self.layers = [load(blob) for blob in state["layers"]]


FEDSUPLINUCB = Algorithm(
    name="fedsuplinucb",
    rule=FedSupLinUCB,
    example={"n_rounds": 1_000, "alpha": 0.1},
    traits=frozenset({"any-time", "any-rows", "saves"}),
)
