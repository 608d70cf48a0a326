"""Rows of disjoint arms: each lies in one block of columns, so that Σ is block-diagonal.

With K blocks of p columns (d = K·p) a row x has its numbers in the columns of one block and zeros elsewhere. Agents
keep it as p + 1 numbers, the place of the block and the numbers in it: a *compact row*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbandit.core.arrays import Matrix, Vector, is_listing, whole_at_least
from fedbandit.core.features import arm_columns
from fedbandit.errors import InvalidParameter, NotOneBlock


def check_blocks(dim: int, blocks: int) -> int:
    """`blocks` as a whole number that divides `dim`."""
    number = whole_at_least(blocks, 1, "blocks")
    if dim % number:
        raise InvalidParameter(f"expected dim as a multiple of blocks, got dim = {dim} and blocks = {number}")
    return number


def check_arms(arms: Any, blocks: int, features: Sequence[str] | None) -> tuple[str, ...] | None:
    """Names of the blocks: those given, or those of the features where these are called `name@arm`."""
    named = _arms_of(features, blocks) if blocks > 1 else None
    if arms is None:
        return named
    if not is_listing(arms):
        raise InvalidParameter(f"expected arms as a list of names, got {arms!r}")
    names = tuple(str(name) for name in arms)
    if len(names) != blocks or blocks == 1:
        raise InvalidParameter(f"expected one name for each of blocks = {blocks} arms (two or more), got {len(names)}")
    if len(set(names)) != len(names):
        raise InvalidParameter("expected arms with different names")
    if named is not None and named != names:
        raise InvalidParameter(f"expected arms in the order of the features, {', '.join(named)}, got another one")
    return names


def _arms_of(features: Sequence[str] | None, blocks: int) -> tuple[str, ...] | None:
    """The arms in the names of features, one block after another; None if the names are not of that kind."""
    columns = arm_columns(features)
    if columns is None:
        return None
    places = [column for block in columns.values() for column in block.values()]
    if len(columns) != blocks or places != sorted(places):
        raise InvalidParameter(
            f"expected features of {blocks} arms, one block after another, got names of {len(columns)} arms"
        )
    return tuple(columns)


def split_rows(X: Matrix, blocks: int) -> tuple[NDArray[np.intp], Matrix]:
    """The block of each row of X (n, d), (n,), and the numbers in it, (n, p); `NotOneBlock` if a row is in several.

    A row of zeros is in the first block.

    >>> split_rows(np.array([[0.0, 0.0, 3.0, 4.0], [1.0, 0.0, 0.0, 0.0]]), 2)
    (array([1, 0]), array([[3., 4.],
           [1., 0.]]))
    """
    n = len(X)
    parts = X.reshape(n, blocks, -1)
    filled = (parts != 0.0).any(axis=2)
    if n and int(filled.sum(axis=1).max()) > 1:
        row = int(filled.sum(axis=1).argmax())
        found = np.flatnonzero(filled[row])
        raise NotOneBlock(
            f"expected every row in one of the {blocks} blocks of {X.shape[1] // blocks} columns and zeros elsewhere, "
            f"got a row (number {row}) with numbers in the blocks {', '.join(map(str, found[:5].tolist()))}"
            f"{', …' if len(found) > 5 else ''}; make rows by fb.block_features, or use a model without blocks"
        )
    places = filled.argmax(axis=1)
    return places, parts[np.arange(n), places]


def compact_row(x: Vector, blocks: int) -> Vector:
    """A row (d,) as the place of its block and the numbers in it, (p + 1,)."""
    places, values = split_rows(x[None], blocks)
    return joined(int(places[0]), values[0])


def joined(block: int, values: Vector) -> Vector:
    """The compact row of these numbers in this block."""
    row = np.empty(len(values) + 1)
    row[0] = block
    row[1:] = values
    return row


def full_row(row: Vector, blocks: int) -> Vector:
    """The row (d,) of a compact one.

    >>> full_row(joined(1, np.array([5.0, 6.0])), blocks=2)
    array([0., 0., 5., 6.])
    """
    x = np.zeros((blocks, len(row) - 1))
    x[int(row[0])] = row[1:]
    return x.reshape(-1)
