"""What every agent accepts, and the named error for what it does not; an error changes nothing."""

import json
import pickle

import numpy as np
import pandas as pd
import pytest

import fedbandit as fb
from fedbandit import errors
from fedbandit.simulation.runner import SimulatedFleet
from tests.builders import RULE_NAMES, make_rule, play, rows, state_of

every_rule = pytest.mark.parametrize("name", RULE_NAMES)


@every_rule
def test_nested_lists_arrays_and_frames_give_the_same_answers(name):
    agent = play(make_rule(name), 30).agent("0")
    X = rows(5)
    frame = pd.DataFrame(X, columns=["age", "price", "hour"])
    for other in (X.tolist(), tuple(map(tuple, X)), np.asfortranarray(X), frame):
        assert agent.choose(other).index == agent.choose(X).index
        np.testing.assert_allclose(agent.predict(other), agent.predict(X))
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


BAD_SETS = {
    "too narrow": ([[1.0, 2.0]], errors.DimensionMismatch, "3 features, got 2"),
    "too wide": (np.ones((2, 4)), errors.DimensionMismatch, "3 features, got 4"),
    "a single row": (np.ones(3), errors.DimensionMismatch, r"got shape \(3,\)"),
    "three axes": (np.ones((2, 3, 1)), errors.DimensionMismatch, "got shape"),
    "no rows": (np.empty((0, 3)), errors.EmptyDecisionSet, "at least one row"),
    "nothing": ([], errors.EmptyDecisionSet, "at least one row"),
    "words": ([["a", "b", "c"]], errors.InvalidInput, "as numbers"),
    "NaN": ([[1.0, 2.0, 3.0], [1.0, np.nan, 3.0]], errors.NotFinite, "1 entries"),
    "NaN in a large set": (np.where(np.eye(1000, 3, k=-900) > 0, np.nan, 1.0), errors.NotFinite, "entries"),
    "infinity": ([[1.0, 2.0, 3.0], [1.0, np.inf, 3.0]], errors.NotFinite, "1 entries"),
    "minus infinity": ([[-np.inf, 2.0, 3.0], [1.0, 1.0, 3.0]], errors.NotFinite, "1 entries"),
    "squares that overflow": ([[1.0, 0.0, 0.0], [1e160, 1e160, 0.0]], errors.NotFinite, "2 entries"),
    "huge": ([[1.0, 0.0, 0.0], [0.0, 0.0, 1e300]], errors.NotFinite, "1 entries"),
    "a frame with NaN": (pd.DataFrame([[1.0, np.nan, 2.0]], columns=list("abc")), errors.NotFinite, "1 entries"),
    "a frame of words": (pd.DataFrame([["x", "y", "z"]], columns=list("abc")), errors.InvalidInput, "as numbers"),
}


@pytest.mark.parametrize("bad", BAD_SETS)
@every_rule
def test_a_bad_decision_set_is_a_named_error_and_changes_nothing(name, bad):
    actions, error, words = BAD_SETS[bad]
    agent = play(make_rule(name), 25).agent("0")
    before = state_of(agent)
    calls = [
        lambda: agent.choose(actions),
        lambda: agent.choose(actions, k=1),
        lambda: agent.choose_many([rows(2), actions]),
        lambda: agent.predict(actions),
        lambda: agent.scores(actions),
        lambda: agent.partial_fit(actions, np.ones(len(actions))),
    ]
    for call in calls:
        with pytest.raises(error, match=words):
            call()
    assert state_of(agent) == before


BAD_OBSERVATIONS = {
    "too short": ([1.0, 2.0], 1.0, errors.DimensionMismatch),
    "a matrix": (np.ones((1, 3)), 1.0, errors.DimensionMismatch),
    "words": (["a", "b", "c"], 1.0, errors.InvalidInput),
    "NaN": ([1.0, np.nan, 0.0], 1.0, errors.NotFinite),
    "infinity": ([1.0, np.inf, 0.0], 1.0, errors.NotFinite),
    "squares that overflow": ([1e155, 0.0, 0.0], 1.0, errors.NotFinite),
    "a reward of NaN": ([1.0, 0.0, 0.0], np.nan, errors.NotFinite),
    "an infinite reward": ([1.0, 0.0, 0.0], -np.inf, errors.NotFinite),
    "a reward whose square overflows": ([1.0, 0.0, 0.0], 1e200, errors.NotFinite),
    "no reward": ([1.0, 0.0, 0.0], None, errors.InvalidInput),
    "a reward in words": ([1.0, 0.0, 0.0], "good", errors.InvalidInput),
}


@pytest.mark.parametrize("bad", BAD_OBSERVATIONS)
@every_rule
def test_a_bad_observation_is_a_named_error_and_changes_nothing(name, bad):
    row, reward, error = BAD_OBSERVATIONS[bad]
    agent = play(make_rule(name), 25).agent("0")
    before = state_of(agent)
    with pytest.raises(error):
        agent.observe(row, reward)
    assert state_of(agent) == before


@every_rule
def test_a_bad_batch_of_rewards_is_a_named_error_and_changes_nothing(name):
    agent = play(make_rule(name), 25).agent("0")
    before = state_of(agent)
    for y, error in (([1.0], errors.DimensionMismatch), ([1.0, np.nan], errors.NotFinite), ("ab", errors.InvalidInput)):
        with pytest.raises(error):
            agent.partial_fit(rows(2), y)
    assert state_of(agent) == before


@every_rule
def test_a_bad_reward_leaves_its_decision_open(name):
    agent = make_rule(name).agent("a")
    decision = agent.choose(rows(3))
    with pytest.raises(errors.NotFinite):
        agent.observe(decision, np.nan)
    assert agent.n_pending == 1
    agent.observe(decision, 1.0)


@every_rule
def test_the_largest_numbers_that_pass_never_turn_into_nan(name):
    fleet = SimulatedFleet(make_rule(name, lam=1e-6), 2)
    for i in range(40):
        x = np.array([1e70, 1.0, 1e-70]) if i % 2 else np.array([1e-50, 1e50, 1.0])
        upload = fleet.agent(str(i % 2)).observe(x, 1e70 if i % 3 else -1e50)
        if upload is not None:
            fleet.exchange(upload)
    for agent in fleet.agents.values():
        scores = agent.scores(np.eye(3))
        assert np.isfinite([scores.means, scores.widths, scores.upper]).all()
        assert agent.choose(np.eye(3)).index in (0, 1, 2)
    assert np.isfinite(fleet.server.stats.Sigma).all()


@every_rule
def test_k_must_be_possible(name):
    agent = make_rule(name).agent("a")
    for k in (0, 4, -1, 1.5):
        with pytest.raises(errors.InvalidInput, match="k"):
            agent.choose(rows(3), k=k)
    assert agent.n_pending == 0


@every_rule
@pytest.mark.parametrize(
    "numbers",
    [
        {"dim": 0},
        {"dim": 2.5},
        {"dim": "three"},
        {"lam": 0.0},
        {"lam": -1.0},
        {"lam": np.nan},
        {"lam": np.inf},
        {"beta": -0.5},
        {"beta": np.nan},
        {"beta": "wide"},
        {"features": ["a", "b"]},
    ],
    ids=str,
)
def test_numbers_out_of_range_are_refused_by_every_rule(name, numbers):
    with pytest.raises(errors.InvalidParameter):
        make_rule(name, **numbers)


@every_rule
def test_an_agent_needs_a_name_that_fits_into_an_address(name):
    rule = make_rule(name)
    for bad in ("", "two words", "x" * 201, "line\n"):
        with pytest.raises(errors.InvalidParameter, match="agent id"):
            rule.agent(bad)
    assert rule.agent("shop-7").agent_id == "shop-7"


@every_rule
def test_a_second_reward_an_unknown_and_a_foreign_decision_raise_and_change_nothing(name):
    rule = make_rule(name)
    agent, other = rule.agent("a"), rule.agent("b")
    decision = agent.choose(rows(3))
    foreign = other.choose(rows(3))
    twin = rule.agent("a").choose(rows(3))  # same name, another life
    unmade = fb.Decision(decision.id[:-1] + "7", 0, decision.x, "a", 0)
    nonsense = fb.Decision("no-number", 0, decision.x, "a", 0)
    agent.observe(decision, 1.0)
    before = state_of(agent)
    with pytest.raises(errors.AlreadyObserved, match="has its reward already"):
        agent.observe(decision, 1.0)
    for stranger in (foreign, twin, unmade, nonsense):
        with pytest.raises(errors.UnknownDecision, match="never made"):
            agent.observe(stranger, 1.0)
    assert state_of(agent) == before
    agent.observe(foreign.x, 1.0)  # as the message advises


@every_rule
def test_a_decision_with_a_tampered_row_is_refused(name):
    agent = make_rule(name).agent("a")
    decision = agent.choose(rows(3))
    for x, error in (([1.0], errors.DimensionMismatch), ([np.nan, 0.0, 0.0], errors.NotFinite)):
        with pytest.raises(error):
            agent.observe(fb.Decision(decision.id, 0, np.array(x), "a", 0), 1.0)
    agent.observe(decision, 1.0)


@every_rule
def test_an_expired_decision_is_waited_for_no_more(name):
    agent = make_rule(name).agent("a")
    decision = agent.choose(rows(3))
    agent.expire(decision)
    assert agent.n_pending == 0
    with pytest.raises(errors.AlreadyObserved, match="expired"):
        agent.observe(decision, 1.0)
    agent.expire(decision)  # once more does no harm
    with pytest.raises(errors.UnknownDecision):
        agent.expire(make_rule(name).agent("b").choose(rows(3)))


@every_rule
def test_the_oldest_decisions_are_dropped_when_too_many_wait(name):
    agent = make_rule(name).agent("a")
    agent.max_pending = 3
    first, *rest = (agent.choose(rows(2)) for _ in range(4))
    assert agent.n_pending == 3
    with pytest.raises(errors.AlreadyObserved, match="dropped as the oldest of 3"):
        agent.observe(first, 1.0)
    for decision in rest:
        agent.observe(decision, 1.0)


@every_rule
def test_a_decision_survives_json_and_pickle(name):
    agent = make_rule(name).agent("a")
    X = rows(3)
    by_json = fb.Decision.from_dict(json.loads(json.dumps(agent.choose(X).to_dict())))
    by_pickle = pickle.loads(pickle.dumps(agent.choose(X)))
    from_ball = fb.Decision.from_dict(json.loads(json.dumps(agent.choose(fb.Ball(3)).to_dict())))
    for decision in (by_json, by_pickle, from_ball):
        agent.observe(decision, 1.0)
    assert agent.n_pending == 0
