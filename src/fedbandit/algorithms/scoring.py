"""What a policy says of actions: scores, the estimate and radius that they rest on, and the search for the best."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import LARGEST, Matrix, Vector, finite, whole_at_least
from fedbandit.core.decision_sets import first_best
from fedbandit.core.products import MAX_WORK
from fedbandit.errors import InvalidInput

MANY_NUMBERS = 2048  # decision sets from here on are searched by bounds first
FEWEST_TOGETHER = 4  # sets that are worth copying into one array


@dataclass(frozen=True, slots=True)
class Scores:
    """What a policy thinks of each action: `upper` = `means` + β·`widths`, all (k,)."""

    means: Vector
    widths: Vector
    upper: Vector


class Estimate(Protocol):
    """Anything that can judge actions: a frozen `RidgeModel` or an `EagerEstimate`."""

    @property
    def theta_hat(self) -> Vector: ...
    @property
    def inverse(self) -> Matrix: ...
    @property
    def log_det(self) -> float: ...
    @property
    def n_obs(self) -> int: ...
    def predict(self, actions: Matrix) -> Vector: ...
    def widths(self, actions: Matrix) -> Vector: ...
    def whitened(self, actions: Matrix) -> Matrix: ...
    def upper(self, actions: Matrix, beta: float) -> Vector: ...
    def contenders(self, actions: Matrix, beta: float) -> NDArray[np.intp] | None: ...


class DecisionBasis(NamedTuple):
    """What a decision rests on."""

    estimate: Estimate
    beta: float
    version: int

    def best(self, X: Matrix) -> int:
        """Index of the row with the largest upper bound, or a named error."""
        return self.search(X)[0]

    def search(self, X: Matrix) -> tuple[int, float]:
        """Index of the row with the largest upper bound, and that bound, or a named error."""
        estimate, beta, _ = self
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is a named error below, not a warning
            if X.size >= MANY_NUMBERS:
                rows = estimate.contenders(X, beta)
                if rows is not None:
                    upper = estimate.upper(X[rows], beta)
                    index = first_best(upper)
                    score = upper.item(index)
                    if abs(score) <= LARGEST and beta > 0.0:
                        return int(rows[index]), score
            upper = estimate.upper(X, beta)
            index = first_best(upper)
        score = upper.item(index)
        # A NaN or an infinity anywhere in X makes the best bound NaN or infinite, unless β = 0 hides the widths.
        if not abs(score) <= LARGEST or beta == 0.0:
            check_scores(X, upper)
        return index, score

    def search_each(self, arrays: list[Matrix]) -> list[tuple[int, float]]:
        """`search` of each array; small ones are scored together, as many as fit one product."""
        chosen: list[tuple[int, float]] = []
        together: list[Matrix] = []
        room = 0
        for X in arrays:
            work = X.size * X.shape[1]
            is_small = X.size < MANY_NUMBERS and work <= MAX_WORK
            if not is_small or work > room:
                chosen += self._search_together(together)
                together, room = [], MAX_WORK
            if is_small:
                together.append(X)
                room -= work
            else:
                chosen.append(self.search(X))
        return chosen + self._search_together(together)

    def _search_together(self, arrays: list[Matrix]) -> list[tuple[int, float]]:
        if len(arrays) < FEWEST_TOGETHER:
            return [self.search(X) for X in arrays]
        X = np.concatenate(arrays)
        with np.errstate(over="ignore", invalid="ignore"):
            upper = self.estimate.upper(X, self.beta)
        ends = list(itertools.accumulate(len(part) for part in arrays))
        chosen = [first_best(upper[end - len(part) : end]) for part, end in zip(arrays, ends, strict=True)]
        best = upper[[end - len(part) + index for part, end, index in zip(arrays, ends, chosen, strict=True)]]
        if not np.abs(best).max() <= LARGEST or self.beta == 0.0:
            check_scores(X, upper)
        return list(zip(chosen, best.tolist(), strict=True))

    def upper(self, X: Matrix) -> Vector:
        """Upper bounds of all rows, finite or a named error."""
        with np.errstate(over="ignore", invalid="ignore"):
            upper = self.estimate.upper(X, self.beta)
        check_scores(X, upper)
        return upper


def check_k(k: int, X: Matrix) -> None:
    """`InvalidInput` unless there are k rows to choose."""
    check_number_of(k, len(X))


def check_number_of(k: int, n_actions: int) -> None:
    """`InvalidInput` unless k of so many actions can be chosen."""
    if not 1 <= whole_at_least(k, 1, "k") <= n_actions:
        raise InvalidInput(f"expected k between 1 and the {n_actions} actions there are, got {k}")


def check_scores(X: Matrix, upper: Vector) -> None:
    """Rows and their scores are finite, or a named error."""
    finite(X, "actions")
    finite(upper, "scores of these actions")
