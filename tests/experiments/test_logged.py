"""Logs and what they say about another policy, against simulations where the truth is known."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

import fedbandit as fb
from fedbandit.errors import DimensionMismatch, FormatError, InvalidInput
from fedbandit.experiments.advice.evaluation import PolicyEstimates, as_probabilities, evaluate, greedy, replay
from fedbandit.experiments.advice.log import DecisionData, columns_of, history, log_from_arrays, read_log

DIM, K, NOISE = 4, 5, 0.3
THETA = np.array([0.6, -0.4, 0.3, 0.1])
TARGET = greedy([0.5, 0.5, 0.5, 0.5], explore=0.2)


def logged(n, *, seed=0, n_agents=3, sharp=1.0, curved=False):
    """A log of a softmax policy: arms by chance, better ones more often; rewards linear or not."""
    rng = np.random.default_rng(seed)
    offers = rng.standard_normal((n, K, DIM)) / np.sqrt(DIM)
    means = offers @ THETA + (offers[:, :, 0] ** 2 if curved else 0.0)
    odds = np.exp(sharp * offers @ THETA)
    odds /= odds.sum(axis=1, keepdims=True)
    chosen = (odds.cumsum(axis=1) > rng.random((n, 1))).argmax(axis=1)
    rounds = np.arange(n)
    rewards = means[rounds, chosen] + NOISE * rng.standard_normal(n)
    log = log_from_arrays(
        None,
        rewards,
        agents=rng.integers(n_agents, size=n),
        propensities=odds[rounds, chosen],
        offers=offers,
        chosen=chosen,
    )
    return log, means


def truth_of(policy, *, curved=False, n=400_000):
    """The mean reward of a policy, by drawing very many rounds."""
    rng = np.random.default_rng(99)
    offers = rng.standard_normal((n, K, DIM)) / np.sqrt(DIM)
    means = offers @ THETA + (offers[:, :, 0] ** 2 if curved else 0.0)
    return float((as_probabilities(policy(offers), np.full(n, K)) * means).sum(axis=1).mean())


@pytest.mark.parametrize("curved", [False, True], ids=["linear", "curved"])
def test_three_estimators_find_the_truth_within_their_intervals(curved):
    log, _ = logged(20_000, seed=1, curved=curved)
    truth = truth_of(TARGET, curved=curved)
    found = evaluate(log, TARGET)
    for name in ("ips", "snips", "dr"):
        span = getattr(found, name)
        # One seed: half as wide again as the 95 % interval, which the truth leaves in 0.3 % of logs.
        assert abs(span.mean - truth) < 1.5 * span.half, name
    assert found.dr.half < found.ips.half
    assert not found.is_thin


@pytest.mark.slow
@pytest.mark.parametrize("curved", [False, True], ids=["linear", "curved"])
def test_intervals_cover_the_truth_as_often_as_they_say(curved):
    truth = truth_of(TARGET, curved=curved, n=2_000_000)
    runs = [evaluate(logged(2_000, seed=seed, curved=curved)[0], TARGET) for seed in range(400)]
    for name in ("ips", "snips", "dr"):
        covered = np.mean([getattr(run, name).contains(truth) for run in runs])
        # 95 % of 400; three and a half standard deviations are 3.8 points.
        assert 0.912 < covered < 0.988, (name, covered)


def test_a_policy_that_repeats_the_logging_policy_earns_what_was_earned():
    log, _ = logged(5_000, sharp=0.0)
    found = evaluate(log, lambda offers: np.full(offers.shape[:2], 1.0 / K))
    assert found.ips.mean == pytest.approx(log.rewards.mean())
    assert found.snips.mean == pytest.approx(log.rewards.mean())
    assert found.n_effective == pytest.approx(len(log))


def test_ignoring_propensities_would_be_wrong_and_weighing_is_right():
    log, means = logged(20_000, sharp=4.0)
    uniform = evaluate(log, lambda offers: np.full(offers.shape[:2], 1.0 / K))
    assert log.rewards.mean() > means.mean() + 0.2
    assert uniform.snips.contains(means.mean())


def test_cut_weights_bring_the_estimate_towards_the_log():
    log, _ = logged(5_000, sharp=4.0)
    plain, cut = evaluate(log, TARGET), evaluate(log, TARGET, largest_weight=2.0)
    assert cut.largest_weight == 2.0 < plain.largest_weight
    assert cut.ips.half < plain.ips.half


def test_a_policy_the_log_says_nothing_about_is_called_thin():
    log, _ = logged(300, sharp=8.0)
    found = evaluate(log, greedy(-THETA))
    assert isinstance(found, PolicyEstimates) and found.is_thin


# -- replay


def online(rule, n, *, seed, n_agents=3):
    """Mean reward of a rule that plays n rounds live in the same world."""
    rng = np.random.default_rng(10_000 + seed)
    from fedbandit.simulation.runner import SimulatedFleet

    fleet, total = SimulatedFleet(rule, n_agents), 0.0
    for _ in range(n):
        agent = fleet.agent(str(rng.integers(n_agents)))
        offer = rng.standard_normal((K, DIM)) / np.sqrt(DIM)
        decision = agent.choose(offer)
        total += offer[decision.index] @ THETA
        upload = agent.observe(decision, offer[decision.index] @ THETA + NOISE * rng.standard_normal())
        if upload is not None:
            fleet.exchange(upload)
    return total / n


RULE = fb.FedLinUCB(dim=DIM, alpha=0.5, beta=0.5)


@pytest.mark.parametrize("sharp", [0.0, 1.0], ids=["uniform log", "known propensities"])
def test_replay_earns_what_the_rule_earns_live(sharp):
    runs = [replay(RULE, logged(1_500, seed=seed, sharp=sharp)[0]) for seed in range(8)]
    n = int(np.mean([run.n_accepted for run in runs]))
    live = [online(RULE, n, seed=seed) for seed in range(8)]
    replayed = [run.reward.mean for run in runs]
    error = np.sqrt((np.var(live, ddof=1) + np.var(replayed, ddof=1)) / 8)
    assert abs(np.mean(replayed) - np.mean(live)) < 3 * error
    assert all(run.n_messages > 0 for run in runs)


def test_replay_of_a_uniform_log_keeps_one_round_in_k():
    run = replay(RULE, logged(4_000, sharp=0.0)[0])
    assert run.n_events == 4_000
    # Binomial with 800 expected; four deviations are 101.
    assert abs(run.n_accepted - 4_000 / K) < 101
    assert len(run.rewards) == run.n_accepted


def test_replay_and_weights_need_the_actions_on_offer():
    log = log_from_arrays(np.eye(3), [1.0, 0.0, 1.0])
    for call in (lambda: replay(fb.FedLinUCB(dim=3, beta=0.5), log), lambda: evaluate(log, greedy(np.ones(3)))):
        with pytest.raises(InvalidInput, match="on offer"):
            call()
    known, _ = logged(10)
    bare = DecisionData(
        known.x, known.rewards, known.agents, known.agent_names, known.feature_names, None, known.offers
    )
    with pytest.raises(InvalidInput):
        evaluate(bare, TARGET)


# -- files


def write(path, columns):
    table = pa.table(columns)
    if path.suffix == ".csv":
        csv.write_csv(table, path)
    else:
        parquet.write_table(table, path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_log_of_chosen_rows_survives_a_file(tmp_path, suffix):
    log, _ = logged(50)
    again = read_log(write(tmp_path / f"log{suffix}", columns_of(log)))
    np.testing.assert_allclose(again.x, log.x)
    np.testing.assert_allclose(again.rewards, log.rewards)
    np.testing.assert_allclose(again.propensities, log.propensities)
    np.testing.assert_array_equal(again.agents, log.agents)
    assert again.agent_names == log.agent_names
    assert again.offers is None


def test_a_log_of_arms_gets_a_block_for_each_arm(tmp_path):
    columns = {"agent": ["a", "b", "a"], "hour": [1.0, 2.0, 3.0], "action": ["tea", "milk", "tea"], "reward": [1, 0, 1]}
    log = read_log(write(tmp_path / "log.csv", columns))
    assert log.feature_names == ("hour@milk", "1@milk", "hour@tea", "1@tea")
    np.testing.assert_array_equal(log.x, [[0, 0, 1, 1], [2, 1, 0, 0], [0, 0, 3, 1]])
    assert log.offers.shape == (3, 2, 4)
    by_blocks, dense = history(log, lam=0.5), history(replace(log, arms=None), lam=0.5)
    assert by_blocks.stats.blocks == log.blocks == 2
    np.testing.assert_array_equal(by_blocks.stats.dense().Sigma, dense.stats.Sigma)
    assert by_blocks.growth == pytest.approx(dense.growth)


def test_a_log_of_offers_keeps_what_was_not_chosen(tmp_path):
    columns = {
        "agent": ["b", "b", "a", "a", "a"],
        "decision": [2, 2, 1, 1, 1],
        "price": [1.0, 2.0, 3.0, 4.0, 5.0],
        "propensity": [0.5, 0.5, 0.2, 0.3, 0.5],
        "reward": [None, 0.7, 0.1, None, None],
    }
    log = read_log(write(tmp_path / "log.parquet", columns))
    np.testing.assert_array_equal(log.x[:, 0], [2.0, 3.0])
    np.testing.assert_array_equal(log.sizes, [2, 3])
    np.testing.assert_array_equal(log.propensities, [0.5, 0.2])
    np.testing.assert_array_equal(log.offers[0, :, 0], [1.0, 2.0, 1.0])
    columns["reward"] = [0.3, 0.7, 0.1, None, None]
    with pytest.raises(FormatError, match="exactly one"):
        read_log(write(tmp_path / "log.parquet", columns))


def test_what_a_log_lacks_is_a_named_error(tmp_path):
    path = write(tmp_path / "log.csv", {"agent": ["a"], "x": [1.0], "reward": [1.0]})
    with pytest.raises(FormatError, match="gain"):
        read_log(path, reward="gain")
    with pytest.raises(FormatError, match="deciding agent"):
        read_log(path, agent="shop")
    with pytest.raises(InvalidInput, match="propensities"):
        log_from_arrays([[1.0]], [1.0], propensities=[0.0])
    with pytest.raises(DimensionMismatch):
        log_from_arrays([[1.0]], [1.0, 2.0])
    with pytest.raises(DimensionMismatch):
        log_from_arrays(None, [1.0], offers=np.zeros((1, 2, 3)), chosen=[5])


def test_a_log_without_some_agents_numbers_the_others_anew():
    log, _ = logged(30, n_agents=4)
    rest = log.without([1])
    assert rest.agent_names == ("0", "2", "3")
    np.testing.assert_array_equal(rest.of_agent(1)[1], log.of_agent(2)[1])


# -- warm start


def test_history_is_an_agent_whose_upload_makes_a_new_fleet_as_good_as_its_log():
    log, _ = logged(2_000)
    server = RULE.server()
    server.receive(history(log))
    newcomer = fb.FedLinUCB(dim=DIM, alpha=0.5, beta=0.5, join=True).agent("new")
    newcomer.adopt(server.receive(newcomer.arrive()))
    np.testing.assert_allclose(newcomer.model.theta_hat, THETA, atol=0.1)
    assert newcomer.model.stats.n_obs == 2_000


def test_the_same_history_counts_once_and_can_be_read_from_a_file(tmp_path):
    log, _ = logged(100)
    upload = history(log, lam=RULE.lam)
    server = RULE.server()
    server.receive(upload)
    before = server.stats
    server.receive(history(write(tmp_path / "log.parquet", columns_of(log)), lam=RULE.lam))
    assert server.stats == before
    assert upload.agent_id == "history"
    expected = np.linalg.slogdet(np.eye(DIM) + log.x.T @ log.x)[1]
    assert upload.growth == pytest.approx(expected)
