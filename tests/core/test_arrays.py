"""Anything array-like becomes an array, or an error that names what was expected and what was received."""

import math

import numpy as np
import pytest

from fedbandit.core import arrays
from fedbandit.errors import DimensionMismatch, EmptyDecisionSet, InvalidInput, InvalidParameter, NotFinite


@pytest.mark.parametrize("values", [[[1, 2], [3, 4]], ((1, 2), (3, 4)), np.array([[1, 2], [3, 4]], dtype=np.int8)])
def test_nested_lists_tuples_and_integers_become_a_float_matrix(values):
    matrix = arrays.as_matrix(values, 2)
    assert matrix.dtype == np.float64
    np.testing.assert_array_equal(matrix, [[1.0, 2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ([[1.0, 2.0, 3.0]], DimensionMismatch, "with 2 features, got 3"),
        ([1.0, 2.0], DimensionMismatch, r"reshape\(1, -1\)"),
        ([[[1.0, 2.0]]], DimensionMismatch, r"got shape \(1, 1, 2\)"),
        ([], EmptyDecisionSet, "at least one row"),
        (np.empty((0, 2)), EmptyDecisionSet, "at least one row"),
        ([["a", "b"]], InvalidInput, "as numbers"),
        ([[1.0], [1.0, 2.0]], InvalidInput, "as numbers"),
        (None, InvalidInput, "got shape"),
    ],
)
def test_what_is_no_matrix_of_the_right_width_is_a_named_error(values, error, words):
    with pytest.raises(error, match=words):
        arrays.as_matrix(values, 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e101, -1e101])
def test_numbers_that_are_not_finite_or_whose_squares_could_overflow_are_refused(bad):
    with pytest.raises(NotFinite, match="got 1 entries"):
        arrays.as_vector([0.0, bad], 2)
    with pytest.raises(NotFinite, match="reward"):
        arrays.as_reward(bad)


def test_the_largest_number_that_passes_can_be_squared_divided_by_a_tiny_ridge_and_summed_for_ever():
    largest = float(arrays.as_vector([1e70], 1)[0])
    assert math.isfinite(largest * largest / 1e-12 * 1e18)


def test_a_reward_is_a_number():
    assert arrays.as_reward(np.float32(0.5)) == 0.5
    assert arrays.as_reward(True) == 1.0
    for nothing in (None, "many", [1.0, 2.0]):
        with pytest.raises(InvalidInput, match="reward as a number"):
            arrays.as_reward(nothing)


def test_bounds_are_checked_and_named():
    assert arrays.at_least(0, 0.0, "alpha") == 0.0
    assert arrays.at_least(math.inf, 0.0, "alpha") == math.inf
    for value, strictly in ((-1e-9, False), (0.0, True), (math.nan, False)):
        with pytest.raises(InvalidParameter, match="alpha"):
            arrays.at_least(value, 0.0, "alpha", strictly=strictly)
    with pytest.raises(InvalidParameter, match="alpha as a number"):
        arrays.at_least("much", 0.0, "alpha")
    with pytest.raises(InvalidParameter, match="finite lam"):
        arrays.finite_at_least(math.inf, 0.0, "lam")


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "three", None, math.nan, math.inf])
def test_a_count_is_a_whole_number(value):
    assert arrays.whole_at_least(np.int64(3), 1, "dim") == 3
    with pytest.raises(InvalidParameter, match="dim as a whole number ≥ 1"):
        arrays.whole_at_least(value, 1, "dim")
