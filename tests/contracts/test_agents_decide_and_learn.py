"""What every agent of every algorithm does with decision sets and rewards: the whole catalog, with all options."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit import errors
from fedbandit.algorithms.catalog import ALGORITHMS
from fedbandit.simulation.runner import SimulatedFleet
from tests.builders import RULE_NAMES, UPLOADING, make_rule, play, rows

every_rule = pytest.mark.parametrize("name", RULE_NAMES)


def test_the_suite_knows_every_algorithm_of_the_catalog():
    assert set(ALGORITHMS.own_names) <= set(RULE_NAMES)
    assert {type(make_rule(name)) for name in RULE_NAMES} == {entry.rule for entry in ALGORITHMS.values()}


@every_rule
def test_choose_returns_a_decision_with_its_row_index_and_version(name):
    agent = play(make_rule(name), 30).agent("0")
    X = rows(6)
    decision = agent.choose(X)
    np.testing.assert_array_equal(decision.x, X[decision.index])
    assert decision.agent_id == "0" and decision.model_version == agent.model_version
    X[decision.index] = 0.0
    assert decision.x.any(), "the decision keeps its own copy of the row"
    with pytest.raises(ValueError, match="read-only"):
        decision.x[0] = 1.0


@every_rule
def test_the_choice_has_the_largest_upper_bound(name):
    agent = play(make_rule(name), 40).agent("0")
    for seed in range(20):
        X = rows(9, seed=seed)
        scores = agent.scores(X)
        np.testing.assert_allclose(scores.upper, scores.means + 0.5 * scores.widths, rtol=1e-12)
        np.testing.assert_allclose(scores.means, agent.predict(X), rtol=1e-9, atol=1e-12)
        assert agent.choose(X).index == int(scores.upper.argmax())


@every_rule
def test_a_large_decision_set_is_searched_as_exactly_as_a_small_one(name):
    agent = play(make_rule(name, dim=8), 60).agent("0")
    rng = np.random.default_rng(0)
    for spread in (0.0, 1.0):  # rows of equal and of very different length
        X = rng.standard_normal((700, 8)) * 10.0 ** (spread * rng.uniform(-2, 1, size=(700, 1)))
        X[650] = X[40] = X[int(agent.scores(X).upper.argmax())]  # a tie: the lowest index must win
        best = agent.scores(X).upper
        expected = int((best >= best.max() - 1e-12 * abs(best.max())).argmax())
        assert agent.choose(X).index == expected


@every_rule
def test_top_k_lists_different_rows_best_first_and_begins_with_the_choice(name):
    agent = play(make_rule(name), 40).agent("0")
    X = rows(8)
    top = [decision.index for decision in agent.choose(X, k=8)]
    assert sorted(top) == list(range(8))
    assert top == np.argsort(-agent.scores(X).upper, kind="stable").tolist()
    assert [decision.index for decision in agent.choose(X, k=3)] == top[:3]
    assert agent.choose(X).index == top[0]


@every_rule
def test_choosing_many_equals_choosing_one_by_one(name):
    agent = play(make_rule(name), 40).agent("0")
    sets = [rows(k, seed=k).tolist() if k % 2 else rows(k, seed=k) for k in (1, 5, 3, 12)]
    together = agent.choose_many(sets)
    for decision, X in zip(together, sets, strict=True):
        alone = agent.choose(X)
        assert decision.index == alone.index
        np.testing.assert_array_equal(decision.x, alone.x)
    assert len({decision.id for decision in together}) == len(sets)
    assert agent.choose_many([]) == []


@every_rule
def test_infinite_decision_sets_are_chosen_from_by_their_own_best(name):
    agent = play(make_rule(name), 40).agent("0")
    decision = agent.choose(fb.Ball(3, radius=2.0))
    assert decision.index is None
    assert np.linalg.norm(decision.x) == pytest.approx(2.0)
    others = rows(500)
    others *= 2.0 / np.linalg.norm(others, axis=1)[:, None]
    assert agent.scores(others).upper.max() <= agent.scores(decision.x[None]).upper[0] + 1e-9
    agent.observe(decision, 1.0)
    with pytest.raises(errors.InvalidInput, match="top k"):
        agent.choose(fb.Ball(3), k=2)


@every_rule
def test_a_decision_set_of_ones_own_that_answers_nonsense_is_a_named_error(name):
    class Own:
        def __init__(self, answer):
            self.answer = answer

        def best(self, theta_hat, width, beta):
            return self.answer

    agent = make_rule(name).agent("a")
    assert agent.choose(Own([1.0, 0.0, 0.0])).x.tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(errors.DimensionMismatch):
        agent.choose(Own([1.0, 0.0]))
    with pytest.raises(errors.NotFinite):
        agent.choose(Own([np.nan, 0.0, 0.0]))


@every_rule
def test_at_the_start_everybody_ties_and_the_first_action_is_chosen(name):
    X = rows(30, 5)
    X /= np.linalg.norm(X, axis=1)[:, None]
    assert make_rule(name, dim=5).agent("a").choose(X).index == 0


@every_rule
def test_choosing_learns_nothing(name):
    agent = play(make_rule(name), 25).agent("0")
    before = agent.predict(np.eye(3))
    for seed in range(5):
        agent.choose(rows(4, seed=seed))
    np.testing.assert_array_equal(agent.predict(np.eye(3)), before)


@every_rule
def test_a_fleet_learns_what_pays(name):
    theta = np.array([0.6, -0.3, 0.1])
    rng = np.random.default_rng(0)
    fleet = SimulatedFleet(make_rule(name), 2)
    for t in range(400):
        X = rng.uniform(-1, 1, size=(5, 3))
        agent = fleet.agent(str(t % 2))
        pull = agent.arrive()
        if pull is not None:
            fleet.exchange(pull)
        decision = agent.choose(X)
        upload = agent.observe(decision, float(decision.x @ theta + 0.1 * rng.standard_normal()))
        if upload is not None:
            fleet.exchange(upload)
    for agent_id in ("0", "1"):
        np.testing.assert_allclose(fleet.agent(agent_id).predict(np.eye(3)), theta, atol=0.1)


@every_rule
def test_rewards_may_come_late_and_in_any_order(name):
    rule = make_rule(name)
    agent = rule.agent("a")
    decisions = [agent.choose(rows(4, seed=seed)) for seed in range(12)]
    assert agent.n_pending == 12
    order = np.random.default_rng(0).permutation(12)
    fleet = SimulatedFleet(rule, 1)
    fleet.agents["a"] = agent
    for i in order:
        upload = agent.observe(decisions[i], float(i))
        if upload is not None:
            fleet.exchange(upload)
    assert agent.n_pending == 0
    assert agent.n_rounds == 12
    for decision in decisions:
        with pytest.raises(errors.AlreadyObserved):
            agent.observe(decision, 1.0)


@every_rule
def test_partial_fit_knows_as_much_as_observing_row_by_row(name):
    X, y = rows(20), rows(20, 1, seed=1)[:, 0]
    batch, single = SimulatedFleet(make_rule(name), 1), SimulatedFleet(make_rule(name), 1)
    upload = batch.agent("0").partial_fit(X, y)
    if upload is not None:
        batch.exchange(upload)
    for x, reward in zip(X, y, strict=True):
        upload = single.agent("0").observe(x, float(reward))
        if upload is not None:
            single.exchange(upload)
    assert batch.agent("0").n_rounds == single.agent("0").n_rounds == 20
    known = [fleet.server.stats + fleet.agent("0").local for fleet in (batch, single)]
    if name in UPLOADING:
        np.testing.assert_allclose(known[0].Sigma, known[1].Sigma, rtol=1e-9)
        np.testing.assert_allclose(known[0].b, known[1].b, rtol=1e-9, atol=1e-12)
        assert known[0].n_obs == known[1].n_obs == 20
    else:  # twenty Gaussian rows are far past any switch, so the batch is in the model
        theta = np.linalg.solve(np.eye(3) + X.T @ X, X.T @ y)
        np.testing.assert_allclose(batch.agent("0").predict(np.eye(3)), theta, rtol=1e-8)


@every_rule
@pytest.mark.filterwarnings("ignore::fedbandit.errors.UnprovenRadius")  # it widens, whatever it promises
@pytest.mark.parametrize(
    "beta",
    [
        fb.radius.adaptive(n_agents=2, noise_scale=0.3),
        fb.radius.exogenous(noise_scale=0.3),
        fb.radius.counted(noise_scale=0.3),
    ],
    ids=lambda beta: beta.kind,
)
def test_a_theory_radius_widens_as_the_model_rests_on_more(name, beta):
    rule = make_rule(name, beta=beta)
    fleet = play(rule, 60)
    X = rows(4)

    def radius_of(agent):
        scores = agent.scores(X)
        return (scores.upper - scores.means) / scores.widths

    fresh, experienced = radius_of(rule.agent("x")), radius_of(fleet.agent("0"))
    np.testing.assert_allclose(fresh, fresh[0])
    np.testing.assert_allclose(experienced, experienced[0])
    assert experienced[0] > fresh[0] > 0


@every_rule
@pytest.mark.parametrize("k", [None, 1, 3])
def test_choosing_many_is_the_loop_for_sets_of_any_size(name, k):
    """Small sets are scored together, sets of 700 rows and more by bounds first, as `choose` does."""
    agent = play(make_rule(name), 40).agent("0")
    sizes = (5, 700, 3, 4, 1500, 683, 682, 3, *(10,) * 60, 2000, 7)
    sets = [rows(n, seed=i) for i, n in enumerate(sizes)]
    together = agent.choose_many(sets, k=k)
    alone = [agent.choose(X, k=k) for X in sets]
    if k is None:
        assert [decision.index for decision in together] == [decision.index for decision in alone]
    else:
        assert [[d.index for d in several] for several in together] == [[d.index for d in several] for several in alone]


@every_rule
@pytest.mark.parametrize(
    "bad", [[[np.nan, 0.0, 0.0]], [[np.inf, 0.0, 0.0]], np.zeros((2, 4)), np.zeros((0, 3)), [[1e200, 0.0, 0.0]]]
)
def test_choosing_many_decides_nothing_if_one_set_is_bad(name, bad):
    agent = make_rule(name).agent("0")
    before = agent.n_pending
    with pytest.raises(errors.InvalidInput):
        agent.choose_many([rows(2), bad, rows(3)])
    with pytest.raises(errors.InvalidInput):
        agent.choose_many([rows(2), rows(3)], k=3)
    assert agent.n_pending == before
