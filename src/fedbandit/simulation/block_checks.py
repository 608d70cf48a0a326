"""Checks of what a world and a participation pattern return, made before an engine reads it.

Kernels index arrays without bounds checks, and worlds and participation patterns are user code: an agent number beyond
the fleet or a row number beyond the table would read foreign memory. Both engines take their blocks from
`runner.rounds_of`, which calls these functions, so both raise the same named errors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import LARGEST, Vector, as_float_array, as_vector
from fedbandit.core.decision_sets import Ball
from fedbandit.errors import DimensionMismatch, EmptyDecisionSet, InvalidInput, InvalidParameter, NotFinite
from fedbandit.simulation.worlds import Block, Index


def checked_active(active: Any, n_agents: int, n: int) -> Index:
    """The active agents of n rounds as int64, each from 0 to n_agents − 1."""
    array = np.asarray(active)
    if array.shape != (n,):
        raise DimensionMismatch(f"expected the active agents of {n} rounds, shape ({n},), got {_shape(active, array)}")
    return _indices(array, n_agents, "active agents")


def checked_theta_star(theta_star: Any, dim: int) -> Vector | None:
    """θ* of a stream: None, or finite with one entry per feature."""
    return None if theta_star is None else as_vector(theta_star, dim, "theta_star")


class BlockChecker:
    """Checks the blocks of one stream. A table that several blocks share is read once; it must not change in place."""

    def __init__(self, dim: int, theta_star: Vector | None) -> None:
        self.dim, self.theta_star = dim, theta_star
        self._source: Any = None
        self._table: NDArray[np.float64] = np.empty((0, dim))

    def __call__(self, block: Block, n: int) -> Block:
        """The block with arrays of the expected types, shapes and sizes; means are filled in where θ* gives them."""
        if not isinstance(block, Block):
            raise InvalidInput(f"expected a Block from the world's stream, got {type(block).__name__}")
        by_action = np.ndim(block.noise) == 2
        if block.array is not None:
            array = as_float_array(block.array, "actions")
            _check_shape(array, (n, None, self.dim), "actions")
            _check_size(array, "actions")
            noise = _bounded(block.noise, (n, array.shape[1]) if by_action else (n,), "noise")
            sizes = _checked_sizes(block.sizes, n, array.shape[1])
            return self._with_means(replace(block, noise=noise, array=array, sizes=sizes), array.shape[1])
        if block.table is not None and block.rows is not None:
            table = self._checked_table(block.table)
            rows = np.asarray(block.rows)
            _check_shape(rows, (n, None), "rows of the table")
            rows = _indices(rows, len(table), "rows of the table")
            noise = _bounded(block.noise, (n, rows.shape[1]) if by_action else (n,), "noise")
            sizes = _checked_sizes(block.sizes, n, rows.shape[1])
            return self._with_means(replace(block, noise=noise, table=table, rows=rows, sizes=sizes), rows.shape[1])
        if block.decision_set is None:
            raise InvalidParameter("a block needs actions: an array, a table with rows, or a decision set")
        self._check_decision_set(block.decision_set)
        return replace(block, noise=_bounded(block.noise, (n,), "noise"), sizes=None)

    def _with_means(self, block: Block, n_actions: int) -> Block:
        n = len(block.noise)
        if block.means is None:
            if self.theta_star is None:
                raise InvalidParameter("a world needs theta_star, or the means of all actions in every block")
            actions = block.array if block.array is not None else block.table
            values = np.asarray(actions) @ self.theta_star
            means = values if block.rows is None or block.array is not None else values[block.rows]
        else:
            means = _bounded(block.means, (n, n_actions), "means")
        largest = _check_size(means, "means") + _check_size(block.noise, "noise")
        if largest > LARGEST:
            raise NotFinite(f"expected rewards within ±{LARGEST:g}, got means and noise of up to {largest:g} together")
        return replace(block, means=means)

    def _checked_table(self, source: Any) -> NDArray[np.float64]:
        if self._source is not source:
            table = as_float_array(source, "table")
            _check_shape(table, (None, self.dim), "table")
            _check_size(table, "table")
            self._source, self._table = source, table
        return self._table

    def _check_decision_set(self, decision_set: Any) -> None:
        if not callable(getattr(decision_set, "best", None)):
            raise InvalidInput(f"expected a decision set with a method best, got {type(decision_set).__name__}")
        if isinstance(decision_set, Ball) and decision_set.dim != self.dim:
            raise DimensionMismatch(f"expected a ball with {self.dim} features, got {decision_set.dim}")
        if self.theta_star is None:
            raise InvalidParameter("a world of infinite decision sets needs theta_star")


def _bounded(values: Any, shape: tuple[int, ...], what: str) -> NDArray[np.float64]:
    array = as_float_array(values, what)
    _check_shape(array, shape, what)
    _check_size(array, what)
    return array


def _check_shape(array: NDArray[Any], shape: tuple[int | None, ...], what: str) -> None:
    wanted = "(" + ", ".join("k" if n is None else str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"
    if array.ndim != len(shape) or any(n is not None and n != m for n, m in zip(shape, array.shape, strict=True)):
        raise DimensionMismatch(f"expected {what} of shape {wanted}, got shape {array.shape}")
    if array.size == 0:
        raise EmptyDecisionSet(f"expected {what} of shape {wanted} with at least one entry, got shape {array.shape}")


def _check_size(array: NDArray[np.float64], what: str) -> float:
    """The largest size of an entry; all must be numbers within ±1e70."""
    # Two reductions instead of a mask: no temporary of the block's size. NaN fails the comparison.
    distinct = without_repeats(array)
    largest = float(max(distinct.max(), -distinct.min()))
    if not largest <= LARGEST:
        raise NotFinite(f"expected finite {what}, got entries that are NaN, infinite or beyond ±{LARGEST:g}")
    return largest


def without_repeats(array: NDArray[Any]) -> NDArray[Any]:
    """The first row of an array that repeats it in memory (as `np.broadcast_to` makes it), else the array."""
    return array[:1] if array.ndim > 1 and len(array) > 1 and array.strides[0] == 0 else array


def _indices(array: NDArray[Any], limit: int, what: str) -> Index:
    if array.dtype.kind not in "iu":
        raise InvalidInput(f"expected {what} as whole numbers, got an array of {array.dtype}")
    distinct = without_repeats(array)
    if distinct.min() < 0 or distinct.max() >= limit:
        raise InvalidParameter(f"expected {what} from 0 to {limit - 1}, got {array.min()} to {array.max()}")
    return array.astype(np.int64, copy=False)


def _checked_sizes(sizes: Any, n: int, n_actions: int) -> Index | None:
    """How many actions each round offers: from 1 to K."""
    if sizes is None:
        return None
    array = np.asarray(sizes)
    _check_shape(array, (n,), "sizes")
    array = _indices(array, n_actions + 1, "sizes")
    if array.min() < 1:
        raise EmptyDecisionSet("expected at least one action in every round, got a round with size 0")
    return array


def _shape(value: Any, array: NDArray[Any]) -> str:
    return f"shape {array.shape}" if array.ndim else type(value).__name__
