"""Block features and hashed features."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit.errors import DimensionMismatch, EmptyDecisionSet, InvalidInput, InvalidParameter, NotFinite

RECORD = {"hour": 0.5, "item": "tea", "tags": ["hot", "green"], "new": True, "note": None}


@given(st.integers(1, 5), st.integers(1, 6), st.booleans(), st.integers(0, 100))
def test_a_linear_model_on_blocks_is_one_model_for_each_arm(p, n_arms, bias, seed):
    rng = np.random.default_rng(seed)
    context = rng.standard_normal(p)
    X = fb.block_features(context, n_arms, bias=bias)
    q = p + bias
    assert X.shape == (n_arms, n_arms * q)
    theta = rng.standard_normal((n_arms, q))
    own = theta[:, :p] @ context + (theta[:, p] if bias else 0.0)
    np.testing.assert_allclose(X @ theta.ravel(), own)


def test_many_contexts_give_the_same_rows_as_one_by_one():
    contexts = np.random.default_rng(0).standard_normal((4, 3))
    together = fb.block_features(contexts, 5)
    assert together.shape == (4, 5, 20)
    np.testing.assert_array_equal(together[2], fb.block_features(contexts[2], 5))


@pytest.mark.parametrize(
    ("context", "error"),
    [(np.zeros((2, 2, 2)), DimensionMismatch), ([np.nan], NotFinite), ("word", InvalidInput)],
)
def test_a_context_that_cannot_be_used_is_a_named_error(context, error):
    with pytest.raises(error):
        fb.block_features(context, 3)


def test_blocks_need_a_feature_or_a_bias():
    with pytest.raises(EmptyDecisionSet):
        fb.block_features([], 3, bias=False)
    with pytest.raises(InvalidParameter):
        fb.block_features([1.0], 0)


def test_hashed_rows_are_the_same_in_another_process_with_another_hash_seed():
    hashing = fb.HashingFeatures(dim=16, crosses=[("item", "hour")])
    program = (
        f"import fedbandit as fb; print(fb.HashingFeatures(dim=16, crosses=[('item', 'hour')])([{RECORD!r}]).tolist())"
    )
    for seed in ("1", "2"):
        finished = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        )
        assert finished.stdout.strip() == str(hashing([RECORD]).tolist())


def test_hashed_rows_do_not_depend_on_the_order_of_keys():
    hashing = fb.HashingFeatures(dim=32)
    backwards = dict(reversed(RECORD.items())) | {"tags": ["green", "hot"]}
    np.testing.assert_allclose(hashing([RECORD]), hashing([backwards]))


def test_numbers_keep_their_value_and_words_count_one():
    hashing = fb.HashingFeatures(dim=4096, bias=False)
    assert np.abs(hashing.row({"hour": 0.25})).sum() == 0.25
    assert np.abs(hashing.row({"item": "tea"})).sum() == 1.0
    assert np.abs(hashing.row({"a": None})).sum() == 0.0
    np.testing.assert_allclose(hashing.row({"hour": 0.25}) * 2, hashing.row({"hour": 0.5}))
    assert fb.HashingFeatures(dim=8).row({})[0] == 1.0


def test_a_cross_tells_pairs_apart_that_a_sum_cannot():
    pairs = [{"user": u, "item": i} for u in "ab" for i in "xy"]
    likes = np.array([1.0, 0.0, 0.0, 1.0])  # a likes x, b likes y: no sum of two terms expresses that
    plain = fb.HashingFeatures(dim=64)(pairs)
    crossed = fb.HashingFeatures(dim=64, crosses=[("user", "item")])(pairs)
    error = [np.abs(X @ np.linalg.lstsq(X, likes, rcond=None)[0] - likes).max() for X in (plain, crossed)]
    assert error[0] > 0.4
    assert error[1] < 1e-9


def test_another_seed_gives_other_columns():
    rows = [fb.HashingFeatures(dim=64, seed=seed).row({f"f{i}": 1.0 for i in range(10)}) for seed in (0, 1)]
    assert not np.array_equal(*rows)


def test_signs_and_columns_are_spread_evenly():
    hashing = fb.HashingFeatures(dim=16, bias=False)
    X = np.stack([hashing.row({f"f{i}": 1.0}) for i in range(3200)])
    assert abs(X.sum()) < 4 * np.sqrt(3200)
    # 200 expected a column; four standard deviations are 55.
    assert np.abs(np.abs(X).sum(axis=0) - 200).max() < 55


@pytest.mark.parametrize(
    ("records", "error"),
    [
        ([], EmptyDecisionSet),
        ({"a": 1}, InvalidInput),
        ([{"a": object()}], InvalidParameter),
        ([{"a": np.inf}], NotFinite),
    ],
)
def test_records_that_cannot_be_used_are_a_named_error(records, error):
    with pytest.raises(error):
        fb.HashingFeatures(dim=8)(records)


def test_the_lines_of_a_data_frame_are_records():
    frame = pd.DataFrame({"hour": [0.5, 0.25], "item": ["tea", "milk"]})
    hashing = fb.HashingFeatures(dim=64)
    expected = hashing(frame.to_dict("records"))
    np.testing.assert_array_equal(hashing(frame), expected)
    np.testing.assert_array_equal(hashing(pa.Table.from_pandas(frame)), expected)
    with pytest.raises(InvalidInput, match="a record as a dictionary"):
        hashing(["hour", "item"])
