"""The one decorator of the compiled engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be split over vector lanes and products fused into them; NaN and infinity keep their meaning.
FLAGS = {"reassoc", "contract", "nsz"}


def kernel(function: Function) -> Function:
    """A loop that Python calls, as machine code: compiled at its first call and kept on disk."""
    try:
        return cast(Function, numba.njit(cache=True, fastmath=FLAGS, error_model="numpy")(function))
    except RuntimeError:  # no folder to keep it in, as in a read-only container: compiled again by each process
        return inner(function)


def inner(function: Function) -> Function:
    """A part of a loop: compiled with it, kept with it."""
    return cast(Function, numba.njit(fastmath=FLAGS, error_model="numpy")(function))


def pasted(function: Function) -> Function:
    """A part that takes whole fleets: put into the loop as source, since its many arguments compile slowly."""
    return cast(Function, numba.njit(inline="always", fastmath=FLAGS, error_model="numpy")(function))


def exact_inner(function: Function) -> Function:
    """The same, rounding at every step as NumPy does: sums of statistics agree with the reference to the last bit."""
    return cast(Function, numba.njit(error_model="numpy")(function))
