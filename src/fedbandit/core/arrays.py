"""The two array types, and the checks that turn anything array-like into them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedbandit.errors import DimensionMismatch, EmptyDecisionSet, InvalidInput, InvalidParameter, NotFinite

Vector = NDArray[np.float64]  # (d,)
Matrix = NDArray[np.float64]  # (k, d) or (d, d)


def frozen(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same array, made read-only, so that it can be shared without a copy."""
    array.flags.writeable = False
    return array


def as_float_array(values: ArrayLike, what: str) -> NDArray[np.float64]:
    """`values` as float64, or a named error that says what came instead."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"expected {what} as numbers, got {type(values).__name__}: {error}") from None


def as_matrix(values: ArrayLike, dim: int, what: str = "actions") -> Matrix:
    """`values` as a (k, dim) array with k ≥ 1. Finiteness is left to the caller, who can often check it for less."""
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
            f"expected {what} with {dim} features, got {array.shape[1]}; was the agent made for another model?"
        )
    return array


def as_vector(values: ArrayLike, dim: int, what: str = "action") -> Vector:
    """`values` as a finite (dim,) array."""
    array = as_float_array(values, what)
    if array.shape != (dim,):
        raise DimensionMismatch(f"expected {what} of shape ({dim},), got shape {array.shape}")
    return finite(array, what)


def finite(array: NDArray[np.float64], what: str) -> NDArray[np.float64]:
    """The array itself if every entry is finite."""
    if not np.isfinite(array).all():
        bad = int(array.size - np.count_nonzero(np.isfinite(array)))
        raise NotFinite(f"expected finite {what}, got {bad} entries that are NaN or infinite")
    return array


def as_reward(value: Any) -> float:
    """`value` as a finite float."""
    try:
        reward = float(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"expected the reward as a number, got {value!r}") from None
    if not math.isfinite(reward):
        raise NotFinite(f"expected a finite reward, got {reward}")
    return reward


def at_least(value: float, least: float, name: str, *, strictly: bool = False) -> float:
    """`value` as a float that is ≥ least (or > least); infinity passes, NaN does not."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidParameter(f"expected {name} as a number, got {value!r}") from None
    if number > least or (number == least and not strictly):
        return number
    raise InvalidParameter(f"expected {name} {'>' if strictly else '≥'} {least:g}, got {number:g}")


def finite_at_least(value: float, least: float, name: str, *, strictly: bool = False) -> float:
    """`value` as a finite float that is ≥ least (or > least)."""
    number = at_least(value, least, name, strictly=strictly)
    if math.isinf(number):
        raise InvalidParameter(f"expected a finite {name}, got {number}")
    return number


def whole_at_least(value: int, least: int, name: str) -> int:
    """`value` as an int that is ≥ least."""
    if isinstance(value, bool) or int(value) != value or value < least:
        raise InvalidParameter(f"expected {name} as a whole number ≥ {least}, got {value!r}")
    return int(value)
