"""Published experiments, run again: the authors' own, and Li and Wang's.

Their means carry an uncertainty of sd/√20, ours likewise; two standard errors of the difference are allowed, as far
as theirs are published. Message counts are nearly deterministic and are held to much closer limits.
"""

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import pytest

import fedbandit as fb

N_SEEDS, N_ROUNDS = 20, 30_000
UNIFORM = fb.worlds.uniform(dim=15, n_actions=25, noise=0.3)
FED = fb.FedLinUCB(dim=15, alpha=1.0, beta=0.5, lam=1.0)
ASYNC = fb.AsyncLinUCB(dim=15, gamma_up=6.0, gamma_down=6.0, beta=0.5, lam=1.0)
SHARED = fb.OFUL(dim=15, mode="shared", beta=0.5, lam=1.0)


def slow(test):
    """Minutes on two free cores, and more on busy ones."""
    return pytest.mark.slow(pytest.mark.timeout(1800)(test))


@dataclass(frozen=True)
class Job:
    rule: object
    world: object
    n_agents: int
    n_rounds: int
    seed: int


def play(job):
    """Regret and messages at the end, by the reference loop."""
    trace = fb.simulate(
        job.rule, job.world, n_agents=job.n_agents, n_rounds=job.n_rounds, seed=job.seed, engine="reference"
    )
    return float(trace.regret[-1]), trace.n_messages


def play_all(rule, world, *, n_agents, n_rounds=N_ROUNDS, n_seeds=N_SEEDS):
    """Regrets and messages over seeds, (n_seeds,) each, in two processes."""
    jobs = [Job(rule, world, n_agents, n_rounds, seed) for seed in range(n_seeds)]
    with ProcessPoolExecutor(min(2, os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        regrets, messages = zip(*pool.map(play, jobs), strict=True)
    return np.array(regrets), np.array(messages)


def assert_within_two_standard_errors(regrets, *, mean, sd):
    error = math.sqrt(regrets.var(ddof=1) / len(regrets) + sd**2 / 20)
    assert abs(regrets.mean() - mean) <= 2 * error, f"{regrets.mean():.1f} against {mean} ± {error:.1f}"
    assert error < 0.1 * mean, "so wide an error would accept anything"


# -- the authors' experiment


@slow
@pytest.mark.parametrize(("n_agents", "mean", "sd", "n_messages"), [(15, 92.2, 10.1, 392), (30, 117.8, 21.9, 488)])
def test_fedlinucb_in_the_authors_world(n_agents, mean, sd, n_messages):
    regrets, messages = play_all(FED, UNIFORM, n_agents=n_agents)
    assert_within_two_standard_errors(regrets, mean=mean, sd=sd)
    # The authors start at a zero matrix and count 400 and 503; from λI it is 392 for M = 15, and 488 for M = 30.
    assert messages.mean() == pytest.approx(n_messages, abs=6)


@slow
@pytest.mark.parametrize(("n_agents", "n_messages"), [(15, 705), (30, 1290)])
def test_async_linucb_sends_exactly_the_published_number_of_messages_for_every_seed(n_agents, n_messages):
    regrets, messages = play_all(ASYNC, UNIFORM, n_agents=n_agents)
    assert messages.tolist() == [n_messages] * N_SEEDS
    published = {15: (112.8, 15.4), 30: (167.7, 21.6)}[n_agents]
    assert_within_two_standard_errors(regrets, mean=published[0], sd=published[1])


@slow
def test_shared_oful_in_the_authors_world():
    # One agent makes the choices of the whole fleet (the next test) at a fraction of the cost, so that one sample of
    # seeds stands beside both published means: the authors' runs with M = 15 and with M = 30 differ by chance alone.
    regrets, _ = play_all(SHARED, UNIFORM, n_agents=1)
    assert_within_two_standard_errors(regrets, mean=60.0, sd=9.9)
    assert_within_two_standard_errors(regrets, mean=63.7, sd=9.9)


@pytest.mark.parametrize("seed", range(2))
def test_a_shared_fleet_makes_the_choices_of_a_single_agent(seed):
    numbers = {"n_rounds": 250, "seed": seed, "record": "all", "engine": "reference"}
    alone, fleet = (fb.simulate(SHARED, UNIFORM, n_agents=n_agents, **numbers) for n_agents in (1, 15))
    np.testing.assert_array_equal(alone.choices, fleet.choices)
    np.testing.assert_array_equal(alone.regret, fleet.regret)
    assert fleet.n_messages == 250 * (15 + 1)


@pytest.mark.parametrize(("n_agents", "n_messages"), [(15, 705), (30, 1290)])
def test_one_seed_of_async_linucb_sends_exactly_the_published_number_of_messages(n_agents, n_messages):
    assert play(Job(ASYNC, UNIFORM, n_agents, N_ROUNDS, 0))[1] == n_messages


def test_one_seed_of_fedlinucb_sends_about_the_published_number_of_messages():
    regret, n_messages = play(Job(FED, UNIFORM, 15, N_ROUNDS, 0))
    assert n_messages == pytest.approx(392, abs=6)
    # Over seeds the regret is 92 with a deviation of 10 to 17: this only excludes another order of magnitude.
    assert 40 < regret < 160


# -- Li and Wang's experiment


def articles_table():
    """Rule, regret, messages and how far the messages may be off, for each row of the published table.

    Li and Wang's scripts create a client at its first round, so that nobody is pushed to or polled before. (The authors
    of FedLinUCB know all agents from the start; with M = 100 that is 8 500 messages instead of 5 435 for γ = 5.)
    """
    late = {"enrolment": "arrival"}
    common = {"dim": 25, "lam": 0.1, "beta": fb.radius.counted(noise_scale=0.1, delta=0.1)}
    T, d, M = 10_000, 25, 100
    match_communication, match_regret = T / (d * math.log(T)), T / (M * d * math.log(T))
    return {
        "async 5": (fb.AsyncLinUCB(gamma_up=5.0, gamma_down=5.0, **common, **late), 114, 5_435, 0.05),
        "async 2": (fb.AsyncLinUCB(gamma_up=2.0, gamma_down=2.0, **common, **late), 81, 13_568, 0.05),
        # Five synchronisations of 2M = 200 messages: one more or less a run is a fifth.
        "dis communication": (fb.DisLinUCB(threshold=match_communication, **common, **late), 108, 989, 0.2),
        "dis regret": (fb.DisLinUCB(threshold=match_regret, **common, **late), 62, 20_457, 0.05),
        "fed 4": (fb.FedLinUCB(alpha=4.0, **common), 125, 725, 0.02),
        "fed 1": (fb.FedLinUCB(alpha=1.0, **common), 97, 984, 0.02),
        "fed 0.1": (fb.FedLinUCB(alpha=0.1, **common), 75, 2_613, 0.02),
        "independent": (fb.OFUL(**common), 1_376, 0, 0.0),
    }


@slow
def test_li_and_wangs_world_has_the_orders_and_sizes_of_the_table():
    measured = {}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        for name, (rule, regret, n_messages, off) in articles_table().items():
            jobs = [Job(rule, fb.worlds.articles(), 100, 10_000, seed) for seed in range(3)]
            regrets, messages = map(np.array, zip(*pool.map(play, jobs), strict=True))
            measured[name] = float(regrets.mean()), float(messages.mean())
            # Each seed draws θ* and the articles anew, and regret varies by a tenth between seeds: three standard
            # errors of the difference of two means of three are 3 · 0.1 · √(2/3) ≈ a quarter.
            assert regrets.mean() == pytest.approx(regret, rel=0.25), name
            assert messages.mean() == pytest.approx(n_messages, rel=off), name
    for better, worse in (
        ("dis regret", "fed 0.1"),
        ("fed 0.1", "fed 1"),
        ("fed 1", "fed 4"),
        ("fed 4", "independent"),
        ("async 2", "async 5"),
        ("async 5", "independent"),
        ("dis regret", "dis communication"),
    ):
        assert measured[better][0] < measured[worse][0], (better, worse)
    messages = [measured[name][1] for name in ("independent", "fed 4", "fed 1", "fed 0.1", "async 5", "async 2")]
    assert messages == sorted(messages)
    assert measured["dis regret"][1] > measured["async 2"][1]
