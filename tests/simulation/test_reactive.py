"""Rounds that depend on all past rewards: what the adversary sees, and the paper's examples as such runs."""

import math

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import DimensionMismatch, InvalidInput, InvalidParameter, NotFinite
from fedbandit.simulation.runner import SimulatedFleet, play_rounds, rounds_of

RULE = fb.FedLinUCB(dim=2, alpha=0.5, beta=0.5)


def next_after_a_bad_reward(history, n_agents, rng):
    last = history.last
    return 0 if last is None else (last.agent + (last.reward < 0)) % n_agents


def last_direction_again(history, agent, rng):
    rows = rng.standard_normal((int(rng.integers(1, 4)), 2))
    return [history.last.x, *rows] if len(history) and history.last.reward > 0 else rows


def simulate(world=None, participation=None, **changes):
    run = {"n_agents": 3, "n_rounds": 60, "record": "all", "seed": 1, **changes}
    world = fb.worlds.reactive(last_direction_again, theta_star=[0.6, 0.8]) if world is None else world
    return fb.simulate(run.pop("rule", RULE), world, participation=participation, **run)


def test_the_history_has_every_round_before_this_one():
    lengths, seen = [], []

    def watching(history, agent, rng):
        lengths.append(len(history))
        seen[:] = list(history)
        return rng.standard_normal((3, 2))

    trace = simulate(
        fb.worlds.reactive(watching, theta_star=[1.0, 0.0]), fb.participation.reactive(next_after_a_bad_reward)
    )
    assert lengths == list(range(60))
    assert [played.agent for played in seen] == trace.agents[:-1].tolist()
    assert [played.index for played in seen] == trace.choices[:-1].tolist()
    np.testing.assert_allclose(np.cumsum([played.reward for played in seen]), trace.reward[:-1])
    exchanged = np.diff(trace.messages, prepend=0) > 0
    assert [played.exchanged for played in seen] == exchanged[:-1].tolist()
    assert all(np.array_equal(played.actions[played.index], played.x) for played in seen)


def test_who_is_active_follows_the_rewards():
    noisy = fb.worlds.sphere(dim=2, n_actions=3, noise=2.0)
    trace = simulate(noisy, fb.participation.reactive(next_after_a_bad_reward))
    rewards = np.diff(trace.reward, prepend=0.0)
    expected = np.concatenate([[0], np.cumsum(rewards[:-1] < 0) % 3])
    assert np.array_equal(trace.agents, expected)
    assert len(set(trace.agents)) == 3


def test_a_drawn_world_is_the_same_under_participation_that_reacts():
    world = fb.worlds.sphere(dim=2, n_actions=4)
    in_turn = fb.participation.reactive(lambda history, n_agents, rng: len(history) % n_agents)
    reacting, plain = simulate(world, in_turn), simulate(world, fb.participation.round_robin(), engine="reference")
    assert np.array_equal(reacting.regret, plain.regret) and np.array_equal(reacting.messages, plain.messages)


def test_a_run_is_repeated_by_its_seed_and_named_by_its_function():
    one, again, other = simulate(), simulate(), simulate(seed=2)
    assert np.array_equal(one.regret, again.regret) and not np.array_equal(one.regret, other.regret)
    assert one.about["world"]["actions"]["function"].endswith("last_direction_again")
    assert one.id == again.id


def test_synchronous_systems_can_be_played_in_worlds_that_react():
    trace = simulate(rule=fb.DCB(dim=2, beta=0.5))
    assert trace.agents[:6].tolist() == [0, 1, 2, 0, 1, 2]


def test_the_compiled_engine_says_that_it_cannot():
    pytest.importorskip("numba")
    for how in (
        {},
        {"world": fb.worlds.uniform(dim=2), "participation": fb.participation.reactive(next_after_a_bad_reward)},
    ):
        with pytest.raises(InvalidParameter, match="react to rewards; engine='reference' can"):
            simulate(**how, engine="compiled")


@pytest.mark.parametrize(
    ("actions", "error"),
    [
        (lambda history, agent, rng: np.ones((2, 3)), DimensionMismatch),
        (lambda history, agent, rng: [], InvalidInput),
        (lambda history, agent, rng: [[np.nan, 1.0]], NotFinite),
        (lambda history, agent, rng: "rows", InvalidInput),
    ],
)
def test_bad_rows_are_named_errors(actions, error):
    with pytest.raises(error):
        simulate(fb.worlds.reactive(actions, theta_star=[1.0, 0.0]))


@pytest.mark.parametrize("agent", [-1, 3, 1.5, None, "1"])
def test_agents_that_do_not_exist_are_named_errors(agent):
    with pytest.raises(InvalidParameter):
        simulate(participation=fb.participation.reactive(lambda history, n_agents, rng: agent))


# -- the examples of the theory: one dimension, θ* = 0, x = 1, λ = 1, α = 1: an agent's second round uploads both

EXOGENOUS = fb.radius.exogenous(noise_scale=1.0, theta_bound=0.0, delta=0.01)
COIN = fb.worlds.reactive(lambda history, agent, rng: [[1.0]], theta_star=[0.0], noise=1.0)


def error_in_radii(pattern, *, n_agents, n_rounds, seed):
    """‖θ̂ − θ*‖_Σ at the server in units of the exogenous radius, after a run."""
    fleet = SimulatedFleet(fb.FedLinUCB(dim=1, lam=1.0, alpha=1.0, beta=EXOGENOUS), n_agents)
    rounds = rounds_of(COIN, fb.participation.reactive(pattern), n_agents=n_agents, n_rounds=n_rounds, seed=seed)
    play_rounds(fleet, *rounds, n_rounds=n_rounds, record=[n_rounds])
    stats = fleet.server.stats
    rho = math.log(float(stats.Sigma[0, 0]))
    beta = EXOGENOUS(fb.radius.Evidence(1, 1.0, 1.0, rho, stats.n_obs, fleet.server.version))
    return abs(float(stats.b[0])) / math.sqrt(float(stats.Sigma[0, 0])) / beta


def leave_after_a_disappointment(history, n_agents, rng):
    last = history.last
    if last is None:
        return 0
    return last.agent + 1 if last.exchanged or last.reward < 0 else last.agent


def leave_by_chance(history, n_agents, rng):
    last = history.last
    if last is None:
        return 0
    return last.agent + 1 if last.exchanged or rng.random() < 0.5 else last.agent


def good_news_first(history, n_agents, rng):
    """Everybody acts once; then those come back, and upload, whose first reward was best."""
    if len(history) < n_agents:
        return len(history)
    first = [played.reward for played in history[:n_agents]]
    return int(np.argsort(first)[::-1][len(history) - n_agents])


def test_a_fleet_that_quits_after_bad_rewards_breaks_the_exogenous_radius():
    sizes = {"n_agents": 700, "n_rounds": 700}
    assert min(error_in_radii(leave_after_a_disappointment, **sizes, seed=s) for s in range(3)) > 1.5
    assert max(error_in_radii(leave_by_chance, **sizes, seed=s) for s in range(3)) <= 1.0


def test_a_fleet_that_brings_good_news_first_breaks_the_exogenous_radius_until_all_have_reported():
    half = [error_in_radii(good_news_first, n_agents=300, n_rounds=450, seed=s) for s in range(3)]
    whole = [error_in_radii(good_news_first, n_agents=300, n_rounds=600, seed=s) for s in range(3)]
    assert min(half) > 1.5
    assert max(whole) <= 1.0


# -- Appendix A.1: two arms, θ* = 0, rewards ±1, an eager policy; each agent acts twice

ARMS = np.array([[3.0, 0.0], [0.0, 1 / math.sqrt(10)]])
N_AGENTS = 1000


def play_a1(rule, participation):
    seen = []

    def arms(history, agent, rng):
        seen[:] = list(history)
        return ARMS

    world = fb.worlds.reactive(arms, theta_star=[0.0, 0.0], noise_kind="signs")
    n_rounds = 2 * N_AGENTS
    fleet = SimulatedFleet(rule, 0)
    rounds = rounds_of(world, participation, n_agents=N_AGENTS, n_rounds=n_rounds + 1, seed=0)
    play_rounds(fleet, *rounds, n_rounds=n_rounds + 1, record=[n_rounds])  # one more round, to see all of them
    return fleet, seen


def test_in_the_synchronous_half_of_a1_the_data_of_all_tell_the_truth():
    """All agents upload after each step, so the server has everything, and arm A's mean reward is 0 there."""
    _, seen = play_a1(fb.OFUL(dim=2, beta=0.5), fb.participation.steps())
    first, second = seen[:N_AGENTS], seen[N_AGENTS:]
    assert all(played.index == 0 for played in first)
    assert [played.index == 0 for played in second] == [played.reward == 1.0 for played in first]
    rewards = [played.reward for played in seen if played.index == 0]
    assert abs(sum(rewards) / len(rewards)) < 4 / math.sqrt(len(rewards))
    lucky = [a.reward + b.reward for a, b in zip(first, second, strict=True) if b.index == 0]
    assert sum(lucky) / (2 * len(lucky)) == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(len(lucky)))


def test_in_the_asynchronous_half_of_a1_the_server_is_biased():
    in_turn = fb.participation.sequence([m for m in range(N_AGENTS) for _ in range(2)], repeat=True)
    rule = fb.AsyncLinUCB(dim=2, beta=0.5, gamma_up=18.5, gamma_down=math.inf)
    fleet, _ = play_a1(rule, in_turn)
    stats = fleet.server.stats
    assert stats.reward_sum / stats.n_obs == pytest.approx(0.5, abs=0.1)
