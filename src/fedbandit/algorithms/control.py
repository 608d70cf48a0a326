"""A control group: a share of decisions is made by the application's own default, so that the gain can be measured."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from fedbandit.algorithms.policies import CONTROL_POLICY, Draw, Lottery, PolicyDraws
from fedbandit.algorithms.scoring import check_scores
from fedbandit.core.arrays import Matrix, is_listing
from fedbandit.errors import InvalidInput


class ControlLottery:
    """With probability q the application's default (a uniform row, if it gave none), else what the policy draws.

    The coin is that of the decision's number, so that a restarted agent and other engines toss the same. A decision
    tells the probability of its row under both together.
    """

    def __init__(self, draws: PolicyDraws, offer: Lottery, X: Matrix, default: int | None) -> None:
        self._draws, self._offer, self._X, self._default = draws, offer, X, default
        self.policy, self.version = offer.policy, offer.version
        check_scores(X, X)  # any row may be drawn

    def draw(self, number: int) -> Draw:
        """The row of decision `number`."""
        q, coin, n_rows = self._draws.rule.control, self._draws.controlling, len(self._X)
        if coin.uniform(number, 0) < q:
            index = coin.index(number, n_rows, 1) if self._default is None else self._default
            drawn = Draw(index, self._X[index].copy(), self._offer.propensity_of(index, number), None, CONTROL_POLICY)
        else:
            drawn = self._offer.draw(number)
        if drawn.propensity is None:
            return drawn
        by_default = 1.0 / n_rows if self._default is None else float(drawn.choice == self._default)
        return drawn._replace(propensity=q * by_default + (1.0 - q) * drawn.propensity)

    def propensity_of(self, index: int, number: int) -> float | None:
        """The probability of a row."""
        inner = self._offer.propensity_of(index, number)
        if inner is None:
            return None
        q = self._draws.rule.control
        by_default = 1.0 / len(self._X) if self._default is None else float(index == self._default)
        return q * by_default + (1.0 - q) * inner


def check_default(default: Any, n_rows: int) -> int | None:
    """The application's default as a row of its decision set; None if it gave none."""
    if default is None:
        return None
    try:
        index = operator.index(default)
    except TypeError:
        raise InvalidInput(f"expected default as the number of a row, got {default!r}") from None
    if isinstance(default, bool) or not 0 <= index < n_rows:
        raise InvalidInput(f"expected default from 0 to {n_rows - 1}, a row of the decision set, got {default!r}")
    return index


def check_defaults(defaults: Any, n_sets: int) -> Sequence[Any]:
    """One default for each of several decision sets, or None for all."""
    if defaults is None:
        return [None] * n_sets
    if not is_listing(defaults):
        raise InvalidInput(f"expected defaults as a list, one for each decision set, got {defaults!r}")
    listed = list(defaults)
    if len(listed) != n_sets:
        raise InvalidInput(f"expected {n_sets} defaults, one for each decision set, got {len(listed)}")
    return listed
