"""A user's table as a world."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import fedbandit as fb
from fedbandit.errors import DimensionMismatch, FormatError, InvalidInput, NotFinite
from fedbandit.simulation.datasets.catalog import from_parquet

COLUMNS = {
    "agent": ["b", "b", "a", "a", "a", "b", "b"],
    "decision": [7, 7, 8, 8, 8, 9, 9],
    "price": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    "fresh": [True, False, True, True, False, False, False],
    "colour": ["x"] * 7,
    "reward": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7],
}


def written(tmp_path, **changes):
    path = tmp_path / "log.parquet"
    parquet.write_table(pa.table(COLUMNS | changes), path)
    return path


def test_lines_become_decisions_of_their_agents(tmp_path):
    world = from_parquet(written(tmp_path), shuffle=False)
    assert world.agent_names == ("a", "b")
    assert world.feature_names == ("price", "fresh")
    assert world.row_counts == (1, 2)
    block = world.stream(np.random.SeedSequence(0)).draw(np.array([1, 0, 1]))
    np.testing.assert_array_equal(block.actions(0)[:, 0], [1.0, 2.0, 1.0])  # filled up by the first
    np.testing.assert_array_equal(block.means[1], [0.3, 0.4, 0.5])
    np.testing.assert_array_equal(block.actions(2)[:, 0], [6.0, 7.0, 6.0])


def test_it_is_offered_beside_the_other_worlds_and_plays(tmp_path):
    world = fb.worlds.from_parquet(written(tmp_path), features=["price"])
    trace = fb.simulate(
        fb.FedLinUCB(dim=1, beta=0.5), world, n_agents=2, n_rounds=3, participation=fb.participation.by_rows(world)
    )
    assert 0.1 + 0.3 + 0.6 <= trace.reward[-1] <= 0.2 + 0.5 + 0.7


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"agent": ["a", "b", "a", "a", "a", "b", "b"]}, InvalidInput),
        ({"reward": [float("nan")] * 7}, NotFinite),
        ({"price": [float("inf")] * 7}, NotFinite),
    ],
)
def test_tables_that_cannot_be_used_are_a_named_error(tmp_path, changes, error):
    with pytest.raises(error):
        from_parquet(written(tmp_path, **changes))


def test_missing_columns_and_files_are_a_named_error(tmp_path):
    path = written(tmp_path)
    with pytest.raises(FormatError, match="shop"):
        from_parquet(path, agent="shop")
    with pytest.raises(FormatError, match="size"):
        from_parquet(path, features=["size"])
    with pytest.raises(DimensionMismatch):
        from_parquet(path, features=[])
    with pytest.raises(FormatError, match="no file"):
        from_parquet(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(FormatError, match="parquet or csv"):
        from_parquet(tmp_path / "text.parquet")
