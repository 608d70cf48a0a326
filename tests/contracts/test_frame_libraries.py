"""pandas, polars and pyarrow: the same rows in any of them give the same, and columns are checked the same way."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import fedbandit as fb
from fedbandit import errors
from fedbandit.experiments.advice.log import read_log
from tests.builders import is_certain, make_rule, play, rows
from tests.sdk.helpers import make_hub, make_live

NAMES = ["age", "price", "hour"]
FRAMES = {
    "pandas": lambda columns: pd.DataFrame(columns),
    "polars": lambda columns: pl.DataFrame(columns, strict=False),
    "pyarrow": lambda columns: pa.table(columns),
}
every_library = pytest.mark.parametrize("library", FRAMES)


def frame_of(library: str, X: np.ndarray, names: list[str] = NAMES):
    return FRAMES[library](dict(zip(names, X.T.tolist(), strict=True)))


@every_library
@pytest.mark.parametrize("name", ["fedlinucb", "fedlinucb-thompson", "oful-independent"])
def test_every_agent_reads_every_frame(name, library):
    agent, X = play(make_rule(name), 30).agent("0"), rows(5)
    frame, series = frame_of(library, X), pd.Series(np.ones(5)) if library == "pandas" else pl.Series(np.ones(5))
    if is_certain(name):
        assert agent.choose(frame).index == agent.choose(X).index
    else:  # the same draw for the same number of a decision
        assert fb.load(agent.to_bytes()).choose(frame).index == agent.choose(X).index
    assert agent.choose_many([frame, frame])[1].index in range(5)
    np.testing.assert_allclose(agent.predict(frame), agent.predict(X), rtol=1e-12)
    np.testing.assert_allclose(agent.scores(frame).upper, agent.scores(X).upper, rtol=1e-12)
    agent.partial_fit(frame, series)
    agent.partial_fit(frame, pa.chunked_array([np.ones(5)]))
    assert agent.features == tuple(NAMES)


@every_library
def test_names_and_their_order_are_checked(library):
    agent = make_rule(features=NAMES).agent("a")
    for names, words in (
        (["price", "age", "hour"], "the order differs"),
        (["age", "price", "day"], r"missing \['hour'\], unexpected \['day'\]"),
    ):
        frame = frame_of(library, rows(4), names)
        for call in (agent.choose, agent.predict, agent.scores, lambda it: agent.partial_fit(it, np.ones(4))):
            with pytest.raises(errors.FeatureMismatch, match=words):
                call(frame)
        with pytest.raises(errors.FeatureMismatch, match=words):
            agent.observe(frame_of(library, rows(1), names), 1.0)
    assert agent.n_rounds == 0


@every_library
def test_one_line_of_a_frame_is_a_row(library):
    agents = [make_rule(features=NAMES).agent("a") for _ in range(2)]
    X = rows(1)
    agents[0].observe(X[0], 2.0)
    agents[1].observe(frame_of(library, X), 2.0)
    assert agents[0].local == agents[1].local
    with pytest.raises(errors.DimensionMismatch):
        agents[1].observe(frame_of(library, rows(2)), 2.0)


@every_library
@pytest.mark.parametrize(
    ("column", "error"), [(["x", "y"], errors.InvalidInput), ([1.0, None], errors.NotFinite), ([1, 2], None)]
)
def test_columns_of_other_types(library, column, error):
    agent = make_rule().agent("a")
    frame = FRAMES[library]({"age": [0.5, 0.25], "price": column, "hour": [True, False]})
    if error is None:
        expected = np.array([[0.5, 1.0, 1.0], [0.25, 2.0, 0.0]])
        np.testing.assert_allclose(agent.scores(frame).widths, agent.scores(expected).widths)
        return
    with pytest.raises(error):
        agent.choose(frame)


def test_a_query_that_was_not_run_is_no_frame():
    with pytest.raises(errors.InvalidInput):
        make_rule().agent("a").choose(frame_of("polars", rows(4)).lazy())


@every_library
def test_a_live_agent_and_its_decision_log_take_frames(tmp_path, library):
    names = [*NAMES[:2], "best"]  # pandas gives a column of this name as an attribute
    with make_live(make_hub(features=names), decision_log=tmp_path, decision_log_rows="all", sync="inline") as agent:
        frame = frame_of(library, rows(4), names)
        decision = agent.choose(frame)
        agent.observe(decision, 1.0)
        agent.observe(frame_of(library, rows(1), names), 0.5)
        agent.partial_fit(frame, np.ones(4))
    lines = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    logged = [line["rows"] for line in lines if isinstance(line.get("rows"), list)]
    np.testing.assert_allclose(logged, [rows(4)])


@every_library
def test_features_are_made_from_frames(library):
    records = {"hour": [0.5, 0.25], "item": ["tea", "milk"]}
    hashing = fb.HashingFeatures(dim=64)
    lines = [{"hour": 0.5, "item": "tea"}, {"hour": 0.25, "item": "milk"}]
    np.testing.assert_array_equal(hashing(FRAMES[library](records)), hashing(lines))
    X = rows(4)
    np.testing.assert_array_equal(fb.block_features(frame_of(library, X), 3), fb.block_features(X, 3))


@every_library
def test_a_log_is_read_from_a_frame_as_from_a_file(tmp_path, library):
    n = 40
    columns = {
        "agent": [f"a{i % 3}" for i in range(n)],
        "reward": [i * 7 % 5 / 5 for i in range(n)],
        "x": [i * 3 % 11 / 11 for i in range(n)],
        "y": [i * 5 % 7 / 7 for i in range(n)],
    }
    path = tmp_path / "log.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    expected, found = read_log(path), read_log(FRAMES[library](columns))
    assert found.feature_names == expected.feature_names == ("x", "y")
    np.testing.assert_allclose(found.x, expected.x)
    np.testing.assert_allclose(found.rewards, expected.rewards)
    assert found.agent_names == expected.agent_names
    with pytest.raises(errors.FormatError, match="'reward' in the data frame"):
        read_log(FRAMES[library]({"agent": ["a"], "x": [1.0]}))
    with pytest.raises(errors.FormatError, match="no lines"):
        read_log(FRAMES[library]({"agent": [], "reward": []}))


def test_an_index_of_pandas_is_no_feature():
    columns = {"agent": ["a", "b"], "reward": [1.0, 0.0], "x": [0.5, 0.25]}
    assert read_log(pd.DataFrame(columns, index=[7, 9])).feature_names == ("x",)


def test_what_comes_out_makes_a_frame_as_it_is():
    """Arrays by name: polars and pandas take them without a conversion."""
    trace = fb.simulate(make_rule(), fb.worlds.Sphere(dim=3), n_agents=2, n_rounds=50, seed=0, engine="reference")
    columns = {"rounds": trace.rounds, "regret": trace.regret, "messages": trace.messages_up}
    assert (
        pl.DataFrame(columns)["regret"].to_list() == pd.DataFrame(columns)["regret"].tolist() == trace.regret.tolist()
    )
    agent = play(make_rule(), 10).agent("0")
    scores = agent.scores(frame_of("polars", rows(4)))
    found = frame_of("polars", rows(4)).with_columns(upper=scores.upper, width=scores.widths)
    assert found["upper"].to_list() == scores.upper.tolist()


def test_neither_library_is_imported_by_the_base():
    script = (
        "import sys, fedbandit as fb; fb.FedLinUCB(dim=2, beta=1.0).agent('a').choose([[1, 2]]); "
        "assert not {'pandas', 'polars', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
