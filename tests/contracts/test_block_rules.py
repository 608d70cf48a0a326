"""Rules with blocks: what they accept, what they refuse by name, and that an error changes nothing."""

import json
import pickle

import numpy as np
import pytest

import fedbandit as fb
from fedbandit import errors
from fedbandit.core.block_rows import full_row, split_rows
from fedbandit.core.features import block_names
from fedbandit.testing.contracts import state_of
from tests.builders import EXAMPLES, make_rule

ARMS = ("tea", "milk", "bread")
TAKING = {"fedlinucb", "oful-shared", "oful-independent", "dislinucb", "async-linucb"}


def rule(**numbers) -> fb.FedLinUCB:
    return fb.FedLinUCB(**{"dim": 6, "alpha": 0.5, "beta": 0.6, "blocks": 3, "arms": ARMS, **numbers})


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_algorithm_takes_blocks_or_refuses_them_by_name(name):
    entry, numbers = EXAMPLES[name]
    if entry.name in TAKING:
        assert entry.make(dim=6, beta=0.5, blocks=3, **numbers).agent("a").blocks == 3
    elif "blocks" in {one.name for one in entry.fields}:
        with pytest.raises(errors.InvalidParameter, match="no form by blocks"):
            entry.make(**{**entry.known({"dim": 6, "beta": 0.5}), "blocks": 3, **numbers})


@pytest.mark.parametrize("name", sorted(TAKING))
def test_without_blocks_nothing_is_written_of_them(name):
    assert {"blocks", "arms"}.isdisjoint(make_rule(name).to_dict())


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"blocks": 4}, "multiple of blocks"),
        ({"blocks": 0}, "blocks"),
        ({"blocks": 1.5}, "blocks"),
        ({"arms": ("a", "b")}, "got 2"),
        ({"arms": ("a", "b", "b")}, "different names"),
        ({"arms": "abc"}, "list of names"),
        ({"blocks": 1, "arms": ("a",)}, "two or more"),
        ({"features": ("x@a", "1@a", "x@b", "1@b", "x@c", "1@c")}, "in the order of the features"),
        ({"arms": None, "features": ("x@a", "x@b", "x@c", "1@a", "1@b", "1@c")}, "one block after another"),
        ({"arms": None, "blocks": 2, "features": ("x@a", "1@a", "x@b", "1@b", "x@c", "1@c")}, "2 arms"),
    ],
)
def test_bad_blocks_and_arms_are_refused(numbers, words):
    with pytest.raises(errors.InvalidParameter, match=words):
        rule(**numbers)


def test_a_row_in_two_blocks_is_a_named_error_and_changes_nothing():
    agent = rule().agent("a")
    agent.observe(np.eye(6)[0], 1.0)
    before, crossing = state_of(agent), np.ones((2, 6))
    for call in (
        lambda: agent.choose(crossing),
        lambda: agent.choose(crossing, k=1),
        lambda: agent.choose_many([np.eye(6), crossing]),
        lambda: agent.predict(crossing),
        lambda: agent.scores(crossing),
        lambda: agent.observe(crossing[0], 1.0),
        lambda: agent.partial_fit(crossing, [1.0, 2.0]),
    ):
        with pytest.raises(errors.NotOneBlock, match="in one of the 3 blocks of 2 columns"):
            call()
    assert state_of(agent) == before
    with pytest.raises(errors.InvalidInput, match="decision set"):
        agent.choose(fb.Ball(6))


def test_bad_contexts_and_arms_are_named_errors():
    agent = rule().agent("a")
    for context, options, error in (
        ([1.0, 2.0], {}, errors.DimensionMismatch),
        ([1.0], {"bias": False}, errors.DimensionMismatch),
        ([[1.0]], {}, errors.DimensionMismatch),
        (["word"], {}, errors.InvalidInput),
        ([np.nan], {}, errors.NotFinite),
        ([1e200], {}, errors.NotFinite),
        ({"x": 1.0}, {}, errors.FeatureMismatch),
        ([1.0], {"arms": []}, errors.EmptyDecisionSet),
        ([1.0], {"arms": ["tea", "tea"]}, errors.InvalidInput),
        ([1.0], {"arms": ["coffee"]}, errors.FeatureMismatch),
        ([1.0], {"arms": [3]}, errors.FeatureMismatch),
        ([1.0], {"arms": [-1]}, errors.FeatureMismatch),
        ([1.0], {"arms": [True]}, errors.FeatureMismatch),
        ([1.0], {"arms": [0.5]}, errors.FeatureMismatch),
        ([1.0], {"arms": "tea"}, errors.InvalidInput),
        ([1.0], {"k": 4}, errors.InvalidInput),
        ([1.0], {"k": 0}, errors.InvalidInput),
        ([1.0], {"arms": ["tea"], "k": 2}, errors.InvalidInput),
    ):
        with pytest.raises(error):
            agent.choose_context(context, **options)
    assert agent.n_pending == 0
    with pytest.raises(errors.InvalidInput, match="one block per arm"):
        rule(blocks=1, arms=None).agent("a").choose_context([1.0])
    with pytest.raises(errors.FeatureMismatch, match="have no names"):
        rule(arms=None).agent("a").choose_context([1.0], arms=["tea"])


def test_arms_have_names_and_may_be_left_out():
    agent = rule(alpha=10.0).agent("a")
    decision = agent.choose_context([0.5], arms=["bread", "milk"])
    assert (decision.index, decision.block, decision.arm) == (0, 2, "bread")
    assert decision.x.tolist() == [0.5, 1.0]
    assert agent.row_of(decision).tolist() == [0.0, 0.0, 0.0, 0.0, 0.5, 1.0]
    by_number = agent.choose_context([0.5], arms=np.array([1, 0]))
    assert (by_number.index, by_number.arm) == (0, "milk")
    agent.observe(decision, 1.0)
    assert agent.local.Sigma[2].tolist() == [[0.25, 0.5], [0.5, 1.0]]
    assert not agent.local.Sigma[:2].any()


def test_contexts_by_name_follow_the_columns_of_a_block():
    names = block_names(["hour", "rain"], ["tea", "milk"])
    agent = fb.FedLinUCB(dim=6, alpha=0.5, beta=0.6, blocks=2, features=names).agent("a")
    assert agent.arms == ("tea", "milk")
    assert agent.choose_context({"rain": 2.0, "hour": 3.0}).x.tolist() == [3.0, 2.0, 1.0]
    with pytest.raises(errors.FeatureMismatch):
        agent.choose_context({"rain": 2.0})


def test_a_decision_of_a_context_survives_json_pickle_and_saving():
    agent = rule(alpha=10.0).agent("a")
    by_json = fb.Decision.from_dict(json.loads(json.dumps(agent.choose_context([1.0]).to_dict())))
    by_pickle = pickle.loads(pickle.dumps(agent.choose_context([1.0])))
    again = fb.load(agent.to_bytes())
    assert again.blocks == 3
    assert again.arms == ARMS
    for decision in (by_json, by_pickle):
        again.observe(decision, 1.0)
        with pytest.raises(errors.AlreadyObserved):
            again.observe(decision, 1.0)
    assert again.local.n_obs == 2


@pytest.mark.parametrize(
    ("x", "block"), [(np.ones(3), 0), (np.ones(2), 3), (np.ones(2), -1), (np.full(2, np.nan), 0), (np.ones(6), None)]
)
def test_a_tampered_decision_stays_pending(x, block):
    agent = rule().agent("a")
    decision = agent.choose_context([1.0])
    with pytest.raises(errors.InvalidInput):
        agent.observe(fb.Decision(decision.id, 0, x, "a", 0, block), 1.0)
    assert agent.n_pending == 1
    agent.observe(decision, 1.0)


def test_an_upload_with_other_blocks_is_refused():
    stats = fb.SufficientStats.of(np.eye(6)[:2], [1.0, 2.0])
    server, agent = rule().server(), rule().agent("a")
    with pytest.raises(errors.DimensionMismatch, match="3 blocks"):
        server.receive(fb.Upload("a", "one", 1, stats, 0.1))
    with pytest.raises(errors.DimensionMismatch, match="3 blocks"):
        agent.adopt(fb.Download("a", 1, fb.SufficientStats.prior(dim=6, lam=1.0)))
    with pytest.raises(errors.DimensionMismatch, match="blocks"):
        _ = stats + fb.SufficientStats.zeros(6, 3)


def test_rows_of_zeros_and_extreme_numbers_stay_finite():
    fleet_rule = rule(lam=1e-6)
    server, agent = fleet_rule.server(), fleet_rule.agent("a")
    for i in range(40):
        x = np.zeros(6)
        x[2 * (i % 3) : 2 * (i % 3) + 2] = [1e70, 1e-70] if i % 2 else [0.0, 0.0]
        upload = agent.observe(x, 1e70 if i % 3 else -1e50)
        if upload is not None:
            agent.adopt(server.receive(upload))
    scores = agent.scores(np.eye(6))
    assert np.isfinite([scores.means, scores.widths, scores.upper]).all()


def test_a_message_carries_the_triangles_of_the_blocks():
    agent = rule(alpha=0.0).agent("a")
    upload = agent.observe(np.eye(6)[0], 1.0)
    assert upload.n_scalars == 3 * 3 + 6


def test_splitting_rows_and_joining_them_again_changes_nothing():
    rng = np.random.default_rng(0)
    X = np.zeros((20, 4, 3))
    X[np.arange(20), rng.integers(4, size=20)] = rng.standard_normal((20, 3))
    rows = X.reshape(20, 12)
    places, values = split_rows(rows, 4)
    for row, place, value in zip(rows, places, values, strict=True):
        assert np.array_equal(full_row(np.concatenate([[place], value]), 4), row)
