"""Fed-PE: initial pulls, joint estimates, elimination, exact counts, and the published counts of a comparison."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.fedpe import ActiveArms, GlobalEstimates, LocalEstimates
from fedbandit.errors import DimensionMismatch, InvalidInput, InvalidParameter
from fedbandit.simulation.synchronous_fleet import SynchronousFleet
from fedbandit.simulation.worlds import generator


class Wire:
    """A fleet whose plans are finished at once, with all messages kept."""

    def __init__(self, rule, world, n_agents, *, seed=0, noise=1.0):
        stream = world.stream(np.random.SeedSequence(seed))
        block = stream.draw(np.arange(n_agents))
        self.features = [block.actions(m) for m in range(n_agents)]
        self.means = block.means
        self.rng, self.noise = generator(np.random.SeedSequence(seed + 1)), noise
        self.fleet = SynchronousFleet(rule, n_agents)
        self.sent, self.replies = [], []
        receive = self.fleet.server.end_step

        def listening(messages):
            self.sent += messages.values()
            replies = receive(messages)
            self.replies += replies
            return replies

        self.fleet.server.end_step = listening

    @property
    def server(self):
        return self.fleet.server

    def play_phase(self):
        for m, agent in enumerate(self.fleet.agents.values()):
            agent.meet(self.features[m])
            n = agent.plan.counts
            noise = self.noise * np.sqrt(n) * self.rng.standard_normal(len(n))
            agent.finish(n * self.means[m, agent.plan.rows] + noise)
        self.fleet.end_step()

    def numbers(self, kind, messages):
        return sum(message.n_scalars for message in messages if isinstance(message, kind))


def small(**changes):
    rule = fb.FedPE(**{"dim": 2, "n_arms": 3, "n_steps": 200, **changes})
    world = fb.worlds.fixed_features(dim=2, n_actions=3, shared=rule.parameters == "shared")
    return rule, world


@pytest.mark.parametrize("parameters", ["per-arm", "shared"])
def test_without_noise_estimates_are_exact_and_only_the_best_arms_stay(parameters):
    wire = Wire(*small(parameters=parameters), 6, noise=0.0)
    for _ in range(22):
        wire.play_phase()
        best = wire.means.argmax(axis=1)
        assert all(arm in agent.active for arm, agent in zip(best, wire.fleet.agents.values(), strict=True))
    for m, agent in enumerate(wire.fleet.agents.values()):
        assert agent.best_arm == best[m]
        gaps = wire.means[m].max() - wire.means[m]
        assert set(agent.active.tolist()) <= set(np.flatnonzero(gaps < 0.1).tolist())


def test_joint_estimates_are_least_squares_over_all_agents():
    wire = Wire(*small(), 5)
    agents = list(wire.fleet.agents.values())
    for m, agent in enumerate(agents):
        agent.meet(wire.features[m])
        agent.finish(np.arange(1.0, 4.0) + m)
    wire.fleet.end_step()
    estimates = next(reply for reply in wire.replies if isinstance(reply, GlobalEstimates))
    for a in range(3):
        E = np.array([X[a] / np.linalg.norm(X[a]) for X in wire.features])
        y = np.array([(a + 1.0 + m) / np.linalg.norm(X[a]) for m, X in enumerate(wire.features)])
        np.testing.assert_allclose(estimates.theta[a], np.linalg.lstsq(E, y, rcond=None)[0])
        np.testing.assert_allclose(estimates.squares[a], wire.server.confidence * np.linalg.inv(E.T @ E))


def test_every_number_of_every_message_is_counted():
    wire = Wire(*small(), 4)
    wire.play_phase()
    assert wire.numbers(LocalEstimates, wire.sent) == 4 * 3 * 2  # K vectors of d numbers from each agent
    assert wire.numbers(GlobalEstimates, wire.replies) == 4 * 3 * (2 + 3)  # θ_a and the triangle of V_a to each
    assert wire.numbers(ActiveArms, wire.sent) == sum(len(agent.active) for agent in wire.fleet.agents.values())
    total = sum(message.n_scalars for message in [*wire.sent, *wire.replies])
    assert (wire.fleet.n_up, wire.fleet.n_down) == (8, 8)
    assert (wire.fleet.n_scalars, wire.fleet.n_bytes) == (total, 8 * total)


def test_all_plans_of_a_phase_take_the_same_number_of_steps():
    wire = Wire(*small(), 4)
    for phase in range(1, 12):
        wire.play_phase()
        lengths = {agent.plan.n_pulls for agent in wire.fleet.agents.values()}
        assert lengths == {2**phase + 3}
        used = [agent.plan.counts[: agent.plan.n_reported].sum() for agent in wire.fleet.agents.values()]
        assert all(2**phase <= n <= 2**phase + 3 for n in used)


def test_a_mean_of_zero_keeps_its_direction():
    wire = Wire(*small(), 4)
    for m, agent in enumerate(wire.fleet.agents.values()):
        agent.meet(wire.features[m])
        agent.finish(np.zeros(3))
    wire.fleet.end_step()
    unit = np.array([X / np.linalg.norm(X, axis=1, keepdims=True) for X in wire.features])
    np.testing.assert_allclose(wire.server.directions, unit)


def test_features_that_change_are_short_or_too_few_are_refused():
    agent = small()[0].agent("a")
    X = np.eye(3, 2) + np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    with pytest.raises(DimensionMismatch, match="3 arms"):
        agent.choose(X[:2])
    with pytest.raises(InvalidInput, match="shortest"):
        agent.choose(X / 4)
    agent.observe(agent.choose(X), 1.0)
    with pytest.raises(InvalidInput, match="never change"):
        agent.choose(2 * X)


@pytest.mark.parametrize(
    "bad", [{"n_arms": 0}, {"delta": 1.0}, {"parameters": "joint"}, {"shortest": 0.0}, {"width_factor": 0.0}]
)
def test_bad_numbers_are_refused(bad):
    with pytest.raises(InvalidParameter):
        small(**bad)


def test_the_confidence_is_the_smaller_of_two_bounds():
    rule = fb.FedPE(dim=3, n_arms=10, n_steps=2**17)
    assert rule.n_phases == 17
    few, many = rule.confidence(1), rule.confidence(10**6)
    assert few == pytest.approx(2 * np.log(20 * 1 * 10 * 17))
    assert few < rule.confidence(3) < many
    assert rule.confidence(10**7) == many  # the covering bound does not grow with M


def salgia_zhao(seed=0, **options):
    """The comparison's run: the wire after the first pulls and 19 phases, and active pairs at the start of each."""
    rule = fb.FedPE(dim=20, n_arms=120, n_steps=10**6, parameters="shared", shortest=1.0, **options)
    world = fb.worlds.fixed_features(dim=20, n_actions=120, shared=True, shortest=1.0)
    wire = Wire(rule, world, 10, seed=seed)
    wire.play_phase()  # each arm once
    wire.sent.clear()
    n_left = []
    for _ in range(19):
        n_left.append(int(wire.server.active.sum()))
        wire.play_phase()
    return wire, n_left


@pytest.mark.parametrize("seed", [1, 3, 4, 5])
def test_the_comparison_of_salgia_and_zhao_sends_the_bits_that_they_publish(seed):
    """d = 20, M = 10, K = 120, 19 phases, widths 10 ‖x‖_V; 32 bits a number: 72 960 up per agent, 249 900 down.

    They count neither the pulls of every arm at the start nor which arms are active; a broadcast once, with all d²
    entries of V; and 7 bits for the index of an assigned arm. Our design is nearer to the optimum and eliminates by the
    largest lower bound, so that in some seeds (0 and 2) less than 3d pairs are left for the last phase.
    """
    wire, n_left = salgia_zhao(seed, width_factor=10.0)
    rule = wire.server.rule
    assert min(n_left) >= rule.n_pairs == 60
    assert 32 * wire.numbers(LocalEstimates, wire.sent) / 10 == 72_960
    n_assigned = 19 * rule.n_pairs  # of phases 1 … 19; the twentieth was assigned and not played
    assert wire.server.n_pairs_allocated == n_assigned + np.count_nonzero(wire.server.counts)
    assert 32 * (20 + 20**2) * 18 + 7 * n_assigned == 249_900
    assert sum(rule.phase_length(p) for p in range(1, 19)) < 10**6 < sum(rule.phase_length(p) for p in range(1, 20))


@pytest.mark.parametrize("options", [{"delta": 0.1}, {"delta": 0.01}, {"width_factor": 10.0}])
def test_no_run_of_the_comparison_sends_more_than_3d_vectors_per_phase(options):
    """The published number is the largest possible; 94 % of it is reached with the printed width, 99.7 % with 10."""
    wire, n_left = salgia_zhao(0, **options)
    bits = 32 * wire.numbers(LocalEstimates, wire.sent) / 10
    assert min(n_left) < 60
    assert bits == 64 * sum(min(60, n) for n in n_left)
    assert (0.99 if "width_factor" in options else 0.93) * 72_960 < bits < 72_960


def test_a_factor_of_widths_replaces_the_derived_one_and_specs_without_it_stay_as_they_were():
    rule = fb.FedPE(dim=3, n_arms=10, n_steps=2**17, width_factor=2.5)
    assert rule.confidence(1) == rule.confidence(100) == 6.25
    assert fb.FedPE(**{k: v for k, v in rule.to_dict().items() if k != "algorithm"}) == rule
    assert "width_factor" not in fb.FedPE(dim=3, n_arms=10, n_steps=2**17).to_dict()


@pytest.mark.slow
def test_agents_of_the_papers_setting_learn_together():
    """M = 100, K = 10, d = 3, 2^17 steps, unit noise: regret per agent grows by less and less in the last phases."""
    pytest.importorskip("numba")
    rule, n = fb.FedPE(dim=3, n_arms=10, n_steps=2**17), 2**17
    points = [100 * n // 4, 100 * n // 2, 100 * n]
    trace = fb.simulate(rule, fb.worlds.fixed_features(), n_agents=100, n_rounds=100 * n, record=points)
    quarter, half, whole = (trace.at(t)["regret"] / 100 for t in points)
    assert whole - half < 0.5 * half
    assert half - quarter < 0.7 * quarter
    alone = fb.FedPE(dim=3, n_arms=10, n_steps=2**17)
    single = [
        fb.simulate(alone, fb.worlds.fixed_features(), n_agents=1, n_rounds=n, seed=seed).regret[-1]
        for seed in range(5)
    ]
    assert whole < 0.5 * np.mean(single)
