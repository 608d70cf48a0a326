"""Features for people who have none: one block for each arm, and hashed columns for dictionaries."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbandit.core.arrays import Matrix, as_float_array, finite, whole_at_least
from fedbandit.errors import DimensionMismatch, EmptyDecisionSet, InvalidInput, InvalidParameter


def block_features(context: ArrayLike, n_arms: int, *, bias: bool = True) -> NDArray[np.float64]:
    """One row for each arm, with the context in that arm's own block of columns and zeros elsewhere.

    A linear model on these rows is a separate linear model for each arm: for when the context describes the situation
    and the arms have no features. `context` is (p,) and gives (K, K·q), or (n, p) and gives (n, K, K·q), where
    q = p + 1 with `bias`, a constant 1 behind the context, and q = p without.

    >>> block_features([0.5], 2)
    array([[0.5, 1. , 0. , 0. ],
           [0. , 0. , 0.5, 1. ]])
    """
    K = whole_at_least(n_arms, 1, "n_arms")
    rows = finite(as_float_array(context, "context"), "context")
    if rows.ndim not in (1, 2):
        raise DimensionMismatch(f"expected a context of shape (p,) or (n, p), got shape {rows.shape}")
    if bias:
        rows = np.concatenate([rows, np.ones((*rows.shape[:-1], 1))], axis=-1)
    if rows.shape[-1] == 0:
        raise EmptyDecisionSet("expected at least one feature in the context, or bias=True")
    q = rows.shape[-1]
    blocks = np.zeros((*rows.shape[:-1], K, K, q))
    arms = np.arange(K)
    blocks[..., arms, arms, :] = rows[..., None, :]
    return blocks.reshape(*rows.shape[:-1], K, K * q)


@dataclass(frozen=True, kw_only=True)
class HashingFeatures:
    """Dictionaries to rows of `dim` numbers, the same columns on every agent without anybody talking.

    The column of a feature and its sign come from a hash of its name, so nothing is learnt, stored or sent, and two
    machines agree by having the same `dim` and `seed`. A number goes in with its value under its name; a word, a
    boolean or a member of a list counts 1 under `name=value`; None is left out. `crosses` adds products of pairs of
    names, which is how a linear model learns that an item suits some users only. Column 0 is a constant 1 (`bias`).
    Two features that share a column add up, with random signs: take `dim` some times the number of features.

    >>> hashing = HashingFeatures(dim=8)
    >>> X = hashing([{"hour": 0.5, "item": "tea"}, {"hour": 0.5, "item": "milk"}])
    >>> X.shape, bool((X[0] == X[1]).all())
    ((2, 8), False)
    """

    dim: int
    crosses: Sequence[tuple[str, str]] = ()
    bias: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        whole_at_least(self.dim, 2 if self.bias else 1, "dim")
        pairs = tuple((str(a), str(b)) for a, b in self.crosses)
        object.__setattr__(self, "crosses", pairs)

    def __call__(self, records: Iterable[Mapping[str, Any]]) -> Matrix:
        """One row of `dim` numbers for each record."""
        if isinstance(records, Mapping):
            raise InvalidInput("expected a list of dictionaries, one for each action, got one dictionary")
        rows = [self.row(record) for record in records]
        if not rows:
            raise EmptyDecisionSet("expected at least one record, got none")
        return np.stack(rows)

    def row(self, record: Mapping[str, Any]) -> NDArray[np.float64]:
        """The row of one record, (dim,)."""
        x = np.zeros(self.dim)
        if self.bias:
            x[0] = 1.0
        parts = {str(name): list(_entries(str(name), value)) for name, value in record.items()}
        for entries in parts.values():
            for text, value in entries:
                self._add(x, text, value)
        for first, second in self.crosses:
            for a, u in parts.get(first, ()):
                for b, v in parts.get(second, ()):
                    self._add(x, f"{a} × {b}", u * v)
        return finite(x, "features")

    def _add(self, x: NDArray[np.float64], text: str, value: float) -> None:
        first = 1 if self.bias else 0
        column, sign = _place(text, self.dim - first, self.seed)
        x[first + column] += sign * value


def _entries(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """What one item of a record says: texts to hash, each with its weight."""
    if value is None:
        return
    if isinstance(value, (str, bool, np.bool_)):
        yield f"{name}={value}", 1.0
    elif isinstance(value, numbers.Real):
        yield name, float(value)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for member in sorted(value, key=str):
            yield f"{name}={member}", 1.0
    else:
        raise InvalidParameter(f"expected {name!r} as a number, a word, a boolean or a list of them, got {value!r}")


@lru_cache(maxsize=1 << 16)
def _place(text: str, n_columns: int, seed: int) -> tuple[int, float]:
    """Column and sign of a feature: from BLAKE2, which is the same in every process, language and year."""
    digest = hashlib.blake2b(f"{seed}:{text}".encode(), digest_size=9).digest()
    return int.from_bytes(digest[:8], "little") % n_columns, 1.0 if digest[8] & 1 else -1.0
