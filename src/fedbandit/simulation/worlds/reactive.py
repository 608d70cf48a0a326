"""Worlds that react: the paper's adversary, who sees every past choice and reward and sets up the next round.

m_t and D_t may depend on all that happened before round t, also on rewards that are still in agents' buffers. So a
round is drawn only when the one before it is over; the reference engine plays such runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, overload

import numpy as np
from numpy.typing import ArrayLike

from fedbandit.core.arrays import Matrix, Vector, as_matrix, as_vector, finite_at_least, frozen, is_listing
from fedbandit.core.decision_sets import DecisionSet
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.worlds.base import Block, generator
from fedbandit.simulation.worlds.noise import check_noise_kind, with_noise_of


@dataclass(frozen=True, slots=True)
class PlayedRound:
    """All that one round showed: who acted, on what, with which reward, and whether messages travelled after it."""

    agent: int
    actions: Matrix | DecisionSet
    index: int | None
    x: Vector
    reward: float
    exchanged: bool


class History(Sequence[PlayedRound]):
    """The rounds so far, oldest first."""

    def __init__(self) -> None:
        self._rounds: list[PlayedRound] = []

    @overload
    def __getitem__(self, at: int) -> PlayedRound: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[PlayedRound]: ...
    def __getitem__(self, at: int | slice) -> PlayedRound | Sequence[PlayedRound]:
        return self._rounds[at]

    def __len__(self) -> int:
        return len(self._rounds)

    def __iter__(self) -> Iterator[PlayedRound]:
        return iter(self._rounds)

    @property
    def last(self) -> PlayedRound | None:
        """The round before this one; None in the first."""
        return self._rounds[-1] if self._rounds else None

    def of(self, agent: int) -> list[PlayedRound]:
        """The rounds of one agent."""
        return [played for played in self._rounds if played.agent == agent]

    def add(self, played: PlayedRound) -> None:
        """Called by the loop when a round is over."""
        self._rounds.append(played)


NextActions = Callable[[History, int, np.random.Generator], ArrayLike]


@dataclass(frozen=True, eq=False)
class ReactiveWorld:
    """D_t = `actions`(history, m_t, rng): any function of all past rounds and of who is active; ⟨θ*, x⟩ plus noise.

    `actions` returns (K, d) rows; K may differ each time. It is called once per round, in order, with a generator of
    its own, and should keep nothing between calls: the history has it all.
    """

    name: ClassVar[str] = "reactive"
    actions: NextActions
    theta_star: Vector
    noise: float = 0.3
    noise_kind: str | None = None

    def __post_init__(self) -> None:
        if not is_listing(self.theta_star) or len(self.theta_star) == 0:
            raise InvalidParameter(f"expected theta_star as a list of at least one number, got {self.theta_star!r}")
        theta_star = as_vector(self.theta_star, len(self.theta_star), "theta_star")
        object.__setattr__(self, "theta_star", frozen(theta_star.copy()))
        object.__setattr__(self, "noise", finite_at_least(self.noise, 0.0, "noise"))
        check_noise_kind(self)
        actions: Any = self.actions
        if not callable(actions) or isinstance(actions, type):
            raise InvalidParameter(f"expected actions as a function of history, agent and rng, got {self.actions!r}")

    @property
    def dim(self) -> int:
        return len(self.theta_star)

    @property
    def block_rounds(self) -> int:
        return 1

    def stream(self, seed: np.random.SeedSequence) -> ReactiveStream:
        """One seeded run."""
        return ReactiveStream(self, seed)


class ReactiveStream:
    """One run; `history` is set by whoever plays it."""

    def __init__(self, world: ReactiveWorld, seed: np.random.SeedSequence) -> None:
        self.world = world
        self.theta_star: Vector | None = world.theta_star
        self.history = History()
        choices, noise = seed.spawn(2)
        self._rng, self._noise_rng = generator(choices), generator(noise)

    def draw(self, active: Any) -> Block:
        """The next round, for the agent that is active in it."""
        world = self.world
        rows = as_matrix(self.world.actions(self.history, int(active[0]), self._rng), world.dim)
        block = Block(np.empty(0), (rows @ world.theta_star)[None, :], rows[None, :, :])
        return with_noise_of(world.noise_kind, block, 1, world.noise, self._noise_rng)


def reactive(
    actions: NextActions,
    *,
    theta_star: ArrayLike,
    noise: float = 0.3,
    noise_kind: str | None = None,
) -> ReactiveWorld:
    """A world in which D_t depends on all past choices and rewards: `actions(history, agent, rng)` gives its rows.

    >>> import fedbandit as fb
    >>> def again_after_a_good_reward(history, agent, rng):
    ...     rows = rng.standard_normal((3, 2))
    ...     return [history.last.x, *rows] if len(history) and history.last.reward > 0 else rows
    >>> world = fb.worlds.reactive(again_after_a_good_reward, theta_star=[0.6, 0.8])
    >>> fb.simulate(fb.FedLinUCB(dim=2, alpha=1.0, beta=0.5), world, n_agents=2, n_rounds=5).rounds[-1].item()
    5
    """
    return ReactiveWorld(actions, theta_star, noise, noise_kind)  # type: ignore[arg-type]
