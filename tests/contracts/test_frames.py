"""Every agent reads pandas frames and remembers their columns; a rule is equal to what is read back."""

import json

import numpy as np
import pandas as pd
import pytest

import fedbandit as fb
from fedbandit import errors
from fedbandit.algorithms.catalog import rule_from_dict
from fedbandit.algorithms.rules import deliberate_radius
from tests.builders import is_certain, make_rule, names_with, play, rows, state_of

every_rule = pytest.mark.parametrize("name", names_with("any-time", "any-rows"))


@every_rule
def test_arrays_and_frames_give_the_same_answers(name):
    agent = play(make_rule(name), 30).agent("0")
    X = rows(5)
    frame = pd.DataFrame(X, columns=["age", "price", "hour"])
    if is_certain(name):
        assert agent.choose(frame).index == agent.choose(X).index
    else:  # the same draw for the same number of a decision
        assert fb.load(agent.to_bytes()).choose(frame).index == agent.choose(X).index
    np.testing.assert_allclose(agent.predict(frame), agent.predict(X))
    agent.partial_fit(frame, pd.Series(np.ones(5)))


@every_rule
def test_column_names_are_remembered_and_checked(name):
    agent = make_rule(name).agent("a")
    frame = pd.DataFrame(rows(4), columns=["age", "price", "hour"])
    agent.choose(frame)
    assert agent.features == ("age", "price", "hour")
    with pytest.raises(errors.FeatureMismatch, match="the order differs"):
        agent.choose(frame[["price", "age", "hour"]])
    with pytest.raises(errors.FeatureMismatch, match=r"missing \['hour'\], unexpected \['day'\]"):
        agent.predict(frame.rename(columns={"hour": "day"}))
    with pytest.raises(errors.FeatureMismatch):
        agent.partial_fit(frame[["age", "price"]], np.ones(4))
    agent.choose(rows(4))  # plain arrays carry no names to check


def test_column_names_of_the_rule_hold_from_the_start():
    agent = make_rule(features=["age", "price", "hour"]).agent("a")
    with pytest.raises(errors.FeatureMismatch):
        agent.choose(pd.DataFrame(rows(4), columns=["a", "b", "c"]))


BAD_FRAMES = {
    "NaN": (pd.DataFrame([[1.0, np.nan, 2.0]], columns=list("abc")), errors.NotFinite, "1 entries"),
    "words": (pd.DataFrame([["x", "y", "z"]], columns=list("abc")), errors.InvalidInput, "as numbers"),
    "too narrow": (pd.DataFrame([[1.0, 2.0]], columns=list("ab")), errors.DimensionMismatch, "3 features, got 2"),
}


@pytest.mark.parametrize("bad", BAD_FRAMES)
@every_rule
def test_a_bad_frame_is_a_named_error_and_changes_nothing(name, bad):
    frame, error, words = BAD_FRAMES[bad]
    agent = play(make_rule(name), 25).agent("0")
    before = state_of(agent)
    calls = [
        lambda: agent.choose(frame),
        *([lambda: agent.choose(frame, k=1)] if is_certain(name) else []),  # a list has no probability
        lambda: agent.choose_many([rows(2), frame]),
        lambda: agent.predict(frame),
        lambda: agent.scores(frame),
        lambda: agent.partial_fit(frame, np.ones(len(frame))),
    ]
    for call in calls:
        with pytest.raises(error, match=words):
            call()
    assert state_of(agent) == before


@every_rule
def test_columns_are_saved(name):
    agent = make_rule(name).agent("a")
    agent.choose(pd.DataFrame(rows(4), columns=["age", "price", "hour"]))
    restored = fb.load(agent.to_bytes())
    assert state_of(restored) == state_of(agent)
    assert restored.features == ("age", "price", "hour")


@pytest.mark.parametrize("name", names_with("ucb"))
def test_a_rule_is_equal_to_what_is_read_back(name):
    with deliberate_radius():
        rule = make_rule(name, beta=fb.radius.exogenous(noise_scale=0.2), features=["a", "b", "c"])
    assert rule_from_dict(json.loads(json.dumps(rule.to_dict()))) == rule
