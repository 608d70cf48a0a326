"""The two array types, and the checks that turn anything array-like into them."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbandit.errors import DimensionMismatch, EmptyDecisionSet, InvalidInput, InvalidParameter, NotFinite

Vector = NDArray[np.float64]  # (d,)
Matrix = NDArray[np.float64]  # (k, d) or (d, d)

LARGEST = 1e70  # of a feature or a reward: the sums of 1e10 squares stay below the 1e150 that a server accepts

MOST_COUNTED = 1 << 53  # beyond it a float64 cannot count

# Scores this close (relatively) are a tie, and the lowest index wins: at the start all unit-norm actions tie
# exactly, and without a rule the result would depend on the rounding of each engine.
TIE = 1e-12


def frozen(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same array, made read-only, so that it can be shared without a copy."""
    array.setflags(write=False)
    return array


def as_float_array(values: ArrayLike, what: str) -> NDArray[np.float64]:
    """`values` as float64, or an error that names what was received."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"expected {what} as numbers, got {type(values).__name__}: {error}") from None


def as_matrix(values: ArrayLike, dim: int, what: str = "actions") -> Matrix:
    """`values` as a (k, dim) array with k ≥ 1. Finiteness is checked by the caller, often at lower cost."""
    array = as_float_array(values, what)
    if array.ndim != 2:
        if array.size == 0:
            raise EmptyDecisionSet(f"expected at least one row of {what}, got none")
        raise DimensionMismatch(
            f"expected {what} of shape (k, {dim}), one row each, got shape {array.shape}; "
            f"write X.reshape(1, -1) for a single row"
        )
    if array.shape[0] == 0:
        raise EmptyDecisionSet(f"expected at least one row of {what}, got none")
    if array.shape[1] != dim:
        raise DimensionMismatch(
            f"expected {what} with {dim} features, got {array.shape[1]}; was the agent made for another model, "
            f"or the model widened since?"
        )
    return array


def as_vector(values: ArrayLike, dim: int, what: str = "action") -> Vector:
    """`values` as a finite (dim,) array."""
    array = as_float_array(values, what)
    if array.shape != (dim,):
        raise DimensionMismatch(f"expected {what} of shape ({dim},), got shape {array.shape}")
    return finite(array, what)


def finite(array: NDArray[np.float64], what: str) -> NDArray[np.float64]:
    """The array itself if every entry is a finite number of at most 1e70 in size."""
    usable = np.abs(array) <= LARGEST
    if not usable.all():
        bad = int(array.size - np.count_nonzero(usable))
        raise NotFinite(f"expected finite {what}, got {bad} entries that are NaN, infinite or beyond ±{LARGEST:g}")
    return array


def as_reward(value: Any) -> float:
    """`value` as a finite float of at most 1e70 in size."""
    try:
        reward = float(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"expected the reward as a number, got {value!r}") from None
    if not abs(reward) <= LARGEST:
        raise NotFinite(f"expected a finite reward within ±{LARGEST:g}, got {reward}")
    return reward


def is_listing(value: Any) -> bool:
    """Whether the value is a list-like collection; text, bytes and dictionaries are not."""
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping, type))


def is_among(value: Any, words: Container[str]) -> bool:
    """Whether the value is one of these strings."""
    return isinstance(value, str) and value in words


def path_of(value: Any, name: str) -> Path:
    """`value` as a path, from text or a path."""
    if isinstance(value, (str, PathLike)):
        text = fspath(value)
        if isinstance(text, str) and "\0" not in text:
            return Path(text)
    raise InvalidParameter(f"expected {name} as a path, got {value!r}")


def at_least(value: float, least: float, name: str, *, strictly: bool = False) -> float:
    """`value` as a float that is ≥ least (or > least); infinity passes, NaN does not."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidParameter(f"expected {name} as a number, got {value!r}") from None
    except OverflowError:
        raise InvalidParameter(f"expected {name} as a number that fits into 64 bits") from None
    if number > least or (number == least and not strictly):
        return number
    raise InvalidParameter(f"expected {name} {'>' if strictly else '≥'} {least:g}, got {number:g}")


def finite_at_least(value: float, least: float, name: str, *, strictly: bool = False) -> float:
    """`value` as a finite float that is ≥ least (or > least)."""
    number = at_least(value, least, name, strictly=strictly)
    if math.isinf(number):
        raise InvalidParameter(f"expected a finite {name}, got {number}")
    return number


def keep_finite(thing: Any, name: str, least: float, *, strictly: bool = False) -> None:
    """Make this field of a frozen dataclass a finite float that is ≥ least (or > least)."""
    object.__setattr__(thing, name, finite_at_least(getattr(thing, name), least, name, strictly=strictly))


def keep_whole(thing: Any, name: str, least: int) -> None:
    """Make this field of a frozen dataclass an int that is ≥ least; 1e3 is accepted as 1000."""
    object.__setattr__(thing, name, whole_at_least(getattr(thing, name), least, name))


def whole_at_least(value: int, least: int, name: str) -> int:
    """`value` as an int that is ≥ least."""
    try:
        number = int(value)
        is_whole = not isinstance(value, bool) and bool(number == value)
    except (TypeError, ValueError, OverflowError):
        number, is_whole = least, False
    if not is_whole or number < least:
        raise InvalidParameter(f"expected {name} as a whole number ≥ {least}, got {value!r}")
    if number > MOST_COUNTED:
        raise InvalidParameter(f"expected {name} as a whole number from {least} to {MOST_COUNTED}")
    return number


def frame_names(values: Any) -> list[str] | None:
    """Names of the columns of a data frame (pandas, polars, pyarrow); None for anything else."""
    if hasattr(values, "to_numpy"):
        return [str(name) for name in values.columns] if hasattr(values, "columns") else None
    names = getattr(values, "column_names", None)  # of pyarrow, whose `columns` are the data
    return None if names is None else [str(name) for name in names]


def frame_numbers(frame: Any) -> Any:
    """The content of a data frame as an array."""
    return frame.to_numpy() if hasattr(frame, "to_numpy") else np.asarray(frame)
