"""The loop of Algorithm 1: what it counts, and that it plays what it was asked to play."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit import errors, participation, worlds
from fedbandit.simulation.runner import SimulatedFleet, new_fleet, rounds_of
from tests.builders import is_certain, make_rule, make_world, names_with, play_round


def run(rule=None, world=None, **changes):
    numbers = {"n_agents": 3, "n_rounds": 60, "seed": 2, "record": "all", "engine": "reference", **changes}
    return fb.simulate(rule or make_rule(), world or make_world(), **numbers)


@pytest.mark.parametrize("name", names_with("any-time", "any-rows"))
def test_the_loop_is_choosing_rewarding_observing_and_exchanging(name):
    rule, world = make_rule(name), make_world()
    trace = run(rule, world)
    fleet = new_fleet(rule, 3, seed=2)
    regret = reward_sum = 0.0
    t = 0
    stream, blocks = rounds_of(world, participation.uniform(), n_agents=3, n_rounds=60, seed=2)
    for active, block in blocks:
        for i in range(min(len(block), 60 - t)):
            X = block.actions(i)
            agent = fleet.begin_round(t + 1, str(active[i]))
            decision = agent.choose(X)
            index = decision.index
            reward = float(X[index] @ stream.theta_star + block.noise[i])
            upload = agent.observe(decision, reward)
            if upload is not None:
                fleet.exchange(upload)
            regret += float((X @ stream.theta_star).max() - X[index] @ stream.theta_star)
            reward_sum += reward
            assert (trace.agents[t], trace.choices[t]) == (active[i], index)
            assert trace.regret[t] == pytest.approx(regret) and trace.reward[t] == pytest.approx(reward_sum)
            assert (trace.messages_up[t], trace.messages_down[t]) == (fleet.n_up, fleet.n_down)
            t += 1
    assert t == 60
    assert trace.n_switches == sum(agent.n_switches for agent in fleet.agents.values())


@pytest.mark.parametrize("world", ["uniform", "articles", "sphere", "adversarial", "ball"])
@pytest.mark.parametrize("name", names_with("any-time", "any-rows"))
def test_every_algorithm_plays_every_world(name, world):
    if world == "ball" and (name not in names_with("ucb") or not is_certain(name)):
        pytest.skip("only UCB agents without random draws choose from infinite decision sets")
    made = worlds.ball(dim=3) if world == "ball" else getattr(worlds, world)(dim=3, n_actions=4)
    trace = run(make_rule(name), made, n_rounds=40)
    assert np.isfinite(trace.regret).all() and (np.diff(trace.regret) >= -1e-12).all()
    assert (trace.choices == -1).all() == (world == "ball")


@pytest.mark.parametrize(
    "pattern",
    [
        participation.uniform(),
        participation.zipf(),
        participation.round_robin(),
        participation.bursts(),
        participation.outages(),
        participation.random_episodes(),
        participation.sequence([0, 0, 2, 1], repeat=True),
        participation.episodes([[0, 2], [1]]),
    ],
    ids=lambda pattern: pattern.name,
)
def test_every_pattern_of_participation_can_be_played(pattern):
    trace = run(participation=pattern)
    assert set(trace.agents.tolist()) <= {0, 1, 2}
    assert trace.n_messages == 2 * trace.n_switches > 0


def test_own_data_with_agents_is_played_by_its_agents():
    rng = np.random.default_rng(0)
    features, owners = rng.standard_normal((40, 4, 3)), rng.integers(3, size=40)
    rewards = features @ np.array([1.0, 0.5, -0.5])
    world = worlds.from_arrays(features, rewards, agents=owners)
    trace = run(make_rule(alpha=0.1), world, n_rounds=300)
    assert trace.regret[-1] - trace.regret[150] < 0.3 * trace.regret[150], "it learns"


def test_a_decision_set_of_ones_own_needs_no_means():
    class Corners:
        """The corners of a cube, as an object."""

        def best(self, theta_hat, width, beta):
            grid = np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, -1).T
            return grid[np.argmax(grid @ theta_hat + beta * width(grid))]

    class World:
        name = "corners"
        dim = 3
        block_rounds = 16

        def stream(self, seed):
            rng = np.random.default_rng(seed)

            class Stream:
                theta_star = np.array([0.5, -0.2, 0.1])

                def draw(self, active):
                    return worlds.Block(0.1 * rng.standard_normal(len(active)), decision_set=Corners())

            return Stream()

    trace = run(world=World(), n_rounds=200)
    assert trace.regret[-1] < 0.3 * 200 * 0.8
    assert trace.regret[-1] - trace.regret[99] < 0.05 * 100 * 0.8, "in the end it nearly always plays sign(θ*)"


def test_progress_adds_up_to_the_rounds_played():
    calls = []
    run(n_rounds=20_000 // 3, record="log", progress=calls.append, world=make_world(n_actions=2), n_agents=1)
    assert sum(calls) == 20_000 // 3 and len(calls) > 1


def test_an_explicit_sequence_must_be_long_enough():
    with pytest.raises(errors.InvalidParameter, match="has 2 rounds, 60 were asked for"):
        run(participation=participation.sequence([0, 1]))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"n_agents": 0}, errors.InvalidParameter),
        ({"n_rounds": 0}, errors.InvalidParameter),
        ({"n_rounds": 1.5}, errors.InvalidParameter),
        ({"engine": "steam"}, errors.InvalidParameter),
        ({"rule": make_rule(dim=4)}, errors.DimensionMismatch),
    ],
)
def test_what_cannot_be_simulated_is_a_named_error(changes, error):
    with pytest.raises(error):
        run(**changes)


def test_a_fleet_delivers_until_nobody_has_more_to_say():
    fleet = SimulatedFleet(make_rule("dislinucb", threshold=0.0), 3)
    play_round(fleet, "0", np.eye(3), 1.0)
    assert (fleet.n_up, fleet.n_down) == (3, 3)
    assert all(agent.in_flight is None for agent in fleet.agents.values())


def test_more_sharing_means_less_regret_and_more_messages():
    world = make_world(dim=5, n_actions=10)
    numbers = {"n_agents": 10, "n_rounds": 2_000, "record": "log", "engine": "reference"}
    rules = [
        fb.OFUL(dim=5, beta=0.5, mode="shared"),
        fb.FedLinUCB(dim=5, beta=0.5, alpha=0.1),
        fb.FedLinUCB(dim=5, beta=0.5, alpha=3.0),
        fb.OFUL(dim=5, beta=0.5),
    ]
    # Sums over five seeds: single runs differ by a third, the rules by a half.
    traces = [[fb.simulate(rule, world, seed=seed, **numbers) for seed in range(5)] for rule in rules]
    regrets = [sum(trace.regret[-1] for trace in runs) for runs in traces]
    messages = [sum(trace.n_messages for trace in runs) for runs in traces]
    assert regrets == sorted(regrets)
    assert messages == sorted(messages, reverse=True)
