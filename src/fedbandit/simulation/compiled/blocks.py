"""Conversion of a stream's blocks for the kernels, and the arrays that kernels write to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import Matrix, Vector
from fedbandit.core.decision_sets import Ball
from fedbandit.errors import InvalidParameter
from fedbandit.simulation.compiled.round_block import BALL, FRESH, TABLE, RoundBlock, RoundLog
from fedbandit.simulation.runner import best_mean
from fedbandit.simulation.worlds import Block, Index, Stream

NO_VECTOR: Vector = np.empty(0)
NO_MATRIX: Matrix = np.empty((0, 0))
NO_ROWS: Index = np.empty((0, 0), dtype=np.int64)


def plain(array: Any, dtype: Any = np.float64) -> NDArray[Any]:
    """The array contiguous and writable: one type for the compiler."""
    made = np.ascontiguousarray(array, dtype=dtype)
    return made if made.flags.writeable else made.copy()


def obstacle_in(block: Block) -> str | None:
    """Why kernels cannot play such blocks; None if they can."""
    if block.decision_set is not None and not isinstance(block.decision_set, Ball):
        return f"decision sets of type {type(block.decision_set).__name__} instead of arrays or a Ball"
    return None


class Reader:
    """Turns the blocks of a stream into offers."""

    def __init__(self, first: Block, stream: Stream, n_agents: int) -> None:
        self.ball = first.decision_set if isinstance(first.decision_set, Ball) else None
        self.best_mean = 0.0
        self.theta_star = stream.theta_star
        self.decisions, self.decided = NO_MATRIX, NO_VECTOR
        if self.ball is not None:
            if stream.theta_star is None:
                raise InvalidParameter("a world of infinite decision sets needs theta_star")
            self.best_mean = best_mean(self.ball, stream.theta_star)
            self.decisions, self.decided = np.zeros((n_agents, self.ball.dim)), np.zeros(n_agents)
        # Cached scores of rows hold for this table only.
        self._remembered = first.table
        self._source: Matrix | None = None
        self._table, self._norms = NO_MATRIX, NO_VECTOR

    @property
    def n_rows(self) -> int:
        """Rows of the table that actions come from; 0 if there is none."""
        return 0 if self._remembered is None else len(self._remembered)

    def decide(self, m: int, x: Vector) -> None:
        """Agent m plays x on the ball until its model changes."""
        self.decisions[m] = x
        self.decided[m] = float(x @ self.theta_star) if self.theta_star is not None else np.nan

    def offer(self, active: Index, block: Block) -> RoundBlock:
        """One block as kernels read it."""
        block = padded(block)
        kind, n_actions, table, norms, rows, means = self._actions(block)
        return RoundBlock(
            kind,
            n_actions,
            block.table is not None and block.table is self._remembered,
            table,
            norms,
            rows,
            means,
            plain(block.noise if block.noise.ndim == 2 else block.noise[:, None]),
            plain(active, np.int64),
            self.decided,
            float(self.best_mean),
        )

    def _actions(self, block: Block) -> tuple[int, int, Matrix, Vector, Index, Matrix]:
        if self.ball is not None:
            return BALL, 1, self.decisions, NO_VECTOR, NO_ROWS, NO_MATRIX
        means = plain(block.means)
        if block.table is not None and block.rows is not None:
            rows = plain(block.rows, np.int64)
            self._read_table(block.table)
            return TABLE, rows.shape[1], self._table, self._norms, rows, means
        if block.array is None:
            raise InvalidParameter("a block needs actions: an array, a table with rows, or a decision set")
        n, n_actions, dim = block.array.shape
        return FRESH, n_actions, plain(block.array).reshape(n * n_actions, dim), NO_VECTOR, NO_ROWS, means

    def _read_table(self, table: Matrix) -> None:
        if self._source is not table:
            self._source, self._table = table, plain(table)
            self._norms = np.sqrt(np.einsum("ij,ij->i", table, table))


def padded(block: Block) -> Block:
    """A block in which every round offers K actions: the first one again where there are fewer.

    It changes no choice: of equal actions the first is chosen.
    """
    if block.sizes is None:
        return block
    K = block.means.shape[1] if block.means is not None else 0
    columns = np.where(np.arange(K) < block.sizes[:, None], np.arange(K), 0)

    def taken(array: Any) -> Any:
        return None if array is None else np.take_along_axis(array, columns, axis=1)

    array = None if block.array is None else np.take_along_axis(block.array, columns[:, :, None], axis=1)
    noise = block.noise if block.noise.ndim == 1 else taken(block.noise)
    return replace(block, noise=noise, means=taken(block.means), array=array, rows=taken(block.rows), sizes=None)


def new_log(n: int) -> RoundLog:
    """Totals at zero, with arrays for blocks of n rounds."""
    return _log_of(np.zeros(2), np.zeros(4, dtype=np.int64), n)


def with_room(log: RoundLog, n: int) -> RoundLog:
    """The same totals, with arrays for at least n rounds."""
    return log if n <= len(log.choices) else _log_of(log.sums, log.counts, n)


def _log_of(sums: Vector, counts: Index, n: int) -> RoundLog:
    choices = np.zeros(n, dtype=np.int64)
    return RoundLog(sums, counts, choices, np.zeros((n, 2)), np.zeros((n, 4), dtype=np.int64))
