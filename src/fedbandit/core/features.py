"""Feature construction: one block of columns per arm, and hashed columns for dictionaries."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbandit.core.arrays import Matrix, as_float_array, finite, is_listing, keep_whole, whole_at_least
from fedbandit.errors import DimensionMismatch, EmptyDecisionSet, FeatureMismatch, InvalidInput, InvalidParameter


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


def block_names(context: Sequence[str], arms: Sequence[str], *, bias: bool = True) -> tuple[str, ...]:
    """Names of the columns that `block_features` makes: `name@arm`, and `1@arm` for the constant.

    >>> block_names(["hour"], ["tea", "milk"])
    ('hour@tea', '1@tea', 'hour@milk', '1@milk')
    """
    return tuple(f"{name}@{arm}" for arm in arms for name in (*context, *(["1"] if bias else [])))


class NamedRows(np.ndarray[Any, np.dtype[np.float64]]):
    """Rows (k, d) with the names of their columns, so that an agent can check them as it checks a data frame's."""

    _names: tuple[str, ...] = ()

    def __array_finalize__(self, source: Any) -> None:
        self._names = getattr(source, "_names", ())

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        if self.ndim != 2 or len(self._names) != self.shape[1]:
            raise AttributeError("an array derived from these rows has other columns, without names")
        return self._names

    def to_numpy(self) -> NDArray[np.float64]:
        """The numbers alone."""
        return self.view(np.ndarray)


def arm_features(
    context: Mapping[str, float] | ArrayLike, arms: Sequence[str], *, features: Sequence[str] | None
) -> NamedRows:
    """One row for each named arm, in the columns that a model's feature names (`name@arm`) give to that arm.

    Row i belongs to `arms[i]`, whatever the order of the arms in the model, and `arms` may be only those on offer now.
    `context` is a mapping from names to numbers, or an array of shape (p,) in the order of the model's names. Pass
    `features=agent.features`: a warm start from a log with arms sets them. The rows carry the names of their columns,
    and an agent of a model with other columns rejects them.

    >>> arm_features({"hour": 0.5}, ["tea", "milk"], features=("hour@milk", "1@milk", "hour@tea", "1@tea"))
    NamedRows([[0. , 0. , 0.5, 1. ],
               [0.5, 1. , 0. , 0. ]])
    """
    if not is_listing(arms):
        raise InvalidParameter(f"expected arms as a list of names, got {arms!r}")
    arms = list(arms)
    places = arm_columns(features)
    if places is None:
        raise FeatureMismatch(
            f"expected features named 'name@arm', got {features}; was the model made from a log with arms?"
        )
    unknown = [str(arm) for arm in arms if str(arm) not in places]
    if unknown:
        raise FeatureMismatch(f"expected arms among {', '.join(places)}, got {', '.join(unknown)}")
    if len(arms) == 0:
        raise EmptyDecisionSet("expected at least one arm, got none")
    inputs = [name for name in places[str(arms[0])] if name != "1"]
    values = {**_by_name(context, inputs), "1": 1.0}
    X = np.zeros((len(arms), sum(map(len, places.values()))))
    for row, arm in zip(X, arms, strict=True):
        for name, column in places[str(arm)].items():
            row[column] = values[name]
    rows = finite(X, "context").view(NamedRows)
    rows._names = tuple(str(name) for name in features or ())  # as in `arm_columns`, where they were checked
    return rows


def arm_columns(features: Sequence[str] | None) -> dict[str, dict[str, int]] | None:
    """Arms in the order of their blocks, each with its columns by name; None where names are not those of arms."""
    if features is None or not is_listing(features):
        return None
    features = list(features)
    places: dict[str, dict[str, int]] = {}
    for column, text in enumerate(features):
        name, mark, arm = str(text).partition("@")
        if not mark:
            return None
        places.setdefault(arm, {})[name] = column
    blocks = {tuple(sorted(block)) for block in places.values()}
    return places if len(blocks) == 1 and sum(map(len, places.values())) == len(features) else None


def values_by_name(context: Mapping[str, float], names: Sequence[str]) -> NDArray[np.float64]:
    """The numbers of a context in the order of these columns; the column "1" is a constant."""
    values = {**_by_name(context, [name for name in names if name != "1"]), "1": 1.0}
    return finite(np.array([values[name] for name in names]), "context")


def _by_name(context: Any, inputs: list[str]) -> dict[str, float]:
    if isinstance(context, Mapping):
        if set(map(str, context)) != set(inputs):
            raise FeatureMismatch(f"expected a context with {inputs}, got {sorted(map(str, context))}")
        numbers = as_float_array([context[name] for name in inputs], "context")
        if numbers.shape != (len(inputs),):
            raise DimensionMismatch(f"expected one number for each of {inputs}, got others")
    else:
        numbers = as_float_array(context, "context")
        if numbers.shape != (len(inputs),):
            raise DimensionMismatch(f"expected a context of {inputs}, shape ({len(inputs)},), got {numbers.shape}")
    return dict(zip(inputs, numbers.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class HashingFeatures:
    """Dictionaries to rows of `dim` numbers, with the same columns on every agent without communication.

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
        keep_whole(self, "dim", 2 if self.bias else 1)
        object.__setattr__(self, "crosses", _pairs(self.crosses))
        keep_whole(self, "seed", 0)

    def __call__(self, records: Iterable[Mapping[str, Any]]) -> Matrix:
        """One row of `dim` numbers for each record: a list of dictionaries, or a data frame with one line for each."""
        if isinstance(records, Mapping):
            raise InvalidInput("expected a list of dictionaries, one for each action, got one dictionary")
        rows = [self.row(record) for record in _records(records)]
        if not rows:
            raise EmptyDecisionSet("expected at least one record, got none")
        return np.stack(rows)

    def row(self, record: Mapping[str, Any]) -> NDArray[np.float64]:
        """The row of one record, (dim,)."""
        if not isinstance(record, Mapping):
            raise InvalidInput(f"expected a record as a dictionary from names to values, got {type(record).__name__}")
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


def _pairs(crosses: Any) -> tuple[tuple[str, str], ...]:
    try:
        pairs = [(str(a), str(b)) for a, b in crosses]
    except (TypeError, ValueError):
        raise InvalidParameter(f"expected crosses as a list of pairs of names, got {crosses!r}") from None
    return tuple(pairs)


def _records(records: Any) -> Iterable[Mapping[str, Any]]:
    """Records of a list, or the lines of a data frame (pandas, polars, pyarrow) as dictionaries."""
    if hasattr(records, "to_dicts"):  # polars
        return records.to_dicts()  # type: ignore[no-any-return]
    if hasattr(records, "to_pylist"):  # pyarrow
        return records.to_pylist()  # type: ignore[no-any-return]
    if hasattr(records, "columns") and hasattr(records, "to_dict"):  # pandas
        return records.to_dict("records")  # type: ignore[no-any-return]
    if isinstance(records, (str, bytes)) or not isinstance(records, Iterable):
        raise InvalidInput(f"expected a list of dictionaries, one for each action, got {type(records).__name__}")
    return records


def _entries(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """The texts to hash for one item of a record, each with its weight."""
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
    """Column and sign of a feature: from BLAKE2, which gives the same result in every process and language."""
    digest = hashlib.blake2b(f"{seed}:{text}".encode(), digest_size=9).digest()
    return int.from_bytes(digest[:8], "little") % n_columns, 1.0 if digest[8] & 1 else -1.0
