"""Theorem 1's second half: how many messages there are at most, with the erratum's two-line counterexample."""

import numpy as np

import fedbandit as fb
from fedbandit import theory

TWO_LINES = {"dim": 2, "n_agents": 1, "n_rounds": 200_000, "lam": 1.0, "alpha": 0.1, "action_bound": 1.0}


def test_two_lines_send_more_messages_than_the_printed_bound_allows():
    rule = fb.FedLinUCB(dim=2, alpha=0.1, beta=0.5, lam=1.0)
    server, agent = rule.server(), rule.agent("a")
    n_messages = 0
    axes = np.eye(2)
    for t in range(200_000):  # decision sets {e₁}, {e₂} in turn
        upload = agent.observe(axes[t % 2], 0.0)
        if upload is not None:
            agent.adopt(server.receive(upload))
            n_messages += 2
    assert n_messages == 402
    assert theory.printed_message_bound(**TWO_LINES) < n_messages < theory.message_bound(**TWO_LINES)
    assert server.stats.n_obs + agent.local.n_obs == 200_000


def test_the_same_example_through_choose_and_the_runner_counts_the_same():
    features = np.eye(2)[:, None, :]  # one action a round, in turn
    world = fb.worlds.from_arrays(features, np.zeros((2, 1)), shuffle=False)
    rule = fb.FedLinUCB(dim=2, alpha=0.1, beta=0.5, lam=1.0)
    trace = fb.simulate(rule, world, n_agents=1, n_rounds=20_000, engine="reference")
    printed = theory.printed_message_bound(**{**TWO_LINES, "n_rounds": 20_000})
    corrected = theory.message_bound(**{**TWO_LINES, "n_rounds": 20_000})
    assert trace.n_messages == 2 * trace.n_switches
    assert printed < trace.n_messages < corrected


def test_the_number_of_messages_hardly_grows_with_the_horizon():
    rule = fb.FedLinUCB(dim=5, alpha=1.0, beta=0.5, lam=1.0)
    world = fb.worlds.uniform(dim=5, n_actions=5, noise=0.3)
    trace = fb.simulate(
        rule, world, n_agents=5, n_rounds=8_000, record=[1_000, 2_000, 4_000, 8_000], engine="reference"
    )
    grown = np.diff(trace.messages)
    # Each doubling of T adds about as many messages: logarithmic growth, 2(M + 1/α)·d log₂ 2 at most.
    assert grown.max() <= 2 * (5 + 1) * 5
    assert grown.max() <= 2 * grown.min()


def test_communication_above_the_lower_bound_is_what_beats_independent_learners():
    world = fb.worlds.uniform(dim=5, n_actions=10, noise=0.3)
    numbers = {"n_agents": 20, "n_rounds": 4_000, "engine": "reference"}
    together = fb.simulate(fb.FedLinUCB(dim=5, alpha=1.0, beta=0.5), world, **numbers)
    alone = fb.simulate(fb.OFUL(dim=5, beta=0.5), world, **numbers)
    frozen = fb.simulate(fb.FedLinUCB(dim=5, alpha=np.inf, beta=0.5), world, **numbers)
    bound = theory.lower_bound_messages(n_agents=20, n_rounds=4_000)
    assert together.n_messages > bound > alone.n_messages == frozen.n_messages == 0
    assert together.regret[-1] < alone.regret[-1] < frozen.regret[-1]
