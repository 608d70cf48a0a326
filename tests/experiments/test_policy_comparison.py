"""Other policies judged on a log: unbiased estimates, intervals that cover, refusals by name."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save

import fedbandit as fb
from fedbandit.errors import InvalidInput, InvalidParameter, MissingPropensity, NoSupport
from fedbandit.experiments.advice.log import DecisionData, log_from_arrays, read_log
from fedbandit.experiments.advice.policy_comparison import TargetPolicy, compare_policies
from tests.sdk.helpers import make_hub, make_live

THETA = np.array([0.5, -0.4, 0.2])


def logged(n: int, seed: int, **choice) -> DecisionData:
    """A log of one agent in a linear world, as the library's own policy makes it; its model learns from nothing."""
    rng = np.random.default_rng(seed)
    agent = fb.FedLinUCB(dim=3, beta=0.5, alpha=np.inf, **choice).agent("a", incarnation=f"run-{seed}")
    data = fb.SufficientStats.of(rng.standard_normal((20, 3)), rng.standard_normal(20))
    agent.model = fb.RidgeModel(data + agent.rule.prior)
    offers = rng.standard_normal((n, 4, 3))
    decisions = agent.choose_many(list(offers))
    chosen = [d.index for d in decisions]
    rewards = [float(d.x @ THETA) + 0.3 * rng.standard_normal() for d in decisions]
    propensities = None if decisions[0].propensity is None else [d.propensity for d in decisions]
    return log_from_arrays(None, rewards, offers=offers, chosen=chosen, propensities=propensities)


def truth(model: fb.RidgeModel, policy: TargetPolicy, n: int = 4000) -> float:
    """What the policy earns per decision, by fresh decision sets."""
    offers = np.random.default_rng(99).standard_normal((n, 4, 3))
    return float(np.mean([policy.probabilities(model, X) @ (X @ THETA) for X in offers]))


@pytest.mark.parametrize(
    "choice", [{"explore": 0.4}, {"policy": "inverse-gap", "gamma": 1.0}, {"policy": "thompson", "explore": 0.4}]
)
def test_estimates_are_unbiased_and_intervals_cover(choice):
    rng = np.random.default_rng(5)
    X = rng.standard_normal((200, 3))
    model = fb.RidgeModel(fb.SufficientStats.of(X, X @ THETA) + fb.SufficientStats.prior(dim=3, lam=1.0))
    policy = TargetPolicy(name="greedy")
    value, n_runs = truth(model, policy), 60
    errors, covered = {"ips": [], "snips": [], "dr": []}, {"ips": 0, "snips": 0, "dr": 0}
    for seed in range(n_runs):
        found = compare_policies(logged(250, seed, **choice), [policy], train=0.0, model=model)
        for name in errors:
            span = getattr(found.judged[0].estimates, name)
            errors[name].append(span.mean - value)
            covered[name] += span.low <= value <= span.high
    for name, found in errors.items():
        # Unbiased: the mean of the errors within 4 of its standard deviations, and 0.02 for the truth's own sampling.
        assert abs(np.mean(found)) < 4 * np.std(found) / np.sqrt(n_runs) + 0.02, name
        # 95 % intervals: at least 50 of 60 hold, which a coverage of 95 % misses with probability below 1e-3.
        assert covered[name] >= 50, (name, covered)
    assert np.std(errors["dr"]) < np.std(errors["ips"])


def test_a_better_policy_shows_a_gain_and_a_useless_feature_set_shows_none():
    log = logged(3000, 1, explore=1.0)
    found = compare_policies(log, [TargetPolicy(name=name) for name in ("greedy", "ucb", "uniform")])
    greedy, ucb, uniform = found.judged
    assert (found.n_train, found.n_test) == (1500, 1500)
    assert greedy.gain.low > 0.2 and ucb.gain.low > 0.2
    assert uniform.gain.low < 0 < uniform.gain.high
    assert uniform.estimates.n_effective == pytest.approx(1500)


def test_a_log_of_certain_decisions_is_refused_by_name():
    with pytest.raises(NoSupport, match="300 of 300 decisions were certain"):
        compare_policies(logged(300, 0), [TargetPolicy(name="greedy")])


def test_a_policy_that_takes_what_the_log_never_takes_is_refused_by_name():
    # The best row or row 0, each by a coin: two of the four rows are never taken, though no decision is certain.
    rng = np.random.default_rng(0)
    offers = rng.standard_normal((1000, 4, 3))
    best = (offers @ -THETA).argmax(axis=1)
    chosen = np.where(rng.random(1000) < 0.5, 0, best)
    chances = 0.5 * (chosen == 0) + 0.5 * (chosen == best)
    kept = chances < 1
    rewards = (offers[np.arange(1000), chosen] @ THETA)[kept]
    log = log_from_arrays(None, rewards, offers=offers[kept], chosen=chosen[kept], propensities=chances[kept])
    with pytest.raises(NoSupport, match="'greedy' have mean 0"):
        compare_policies(log, [TargetPolicy(name="greedy")])


def test_a_log_without_probabilities_is_refused_by_name():
    with pytest.raises(MissingPropensity, match="propensity"):
        compare_policies(logged(300, 0, policy="thompson", propensity_samples=0), [TargetPolicy(name="greedy")])
    log = log_from_arrays(np.ones((3, 2)), np.ones(3), propensities=np.full(3, 0.5))
    with pytest.raises(InvalidInput, match="decision_log_rows='all'"):
        compare_policies(log, [TargetPolicy(name="greedy")])
    with pytest.raises(InvalidInput, match="propensities above 0"):
        log_from_arrays(np.ones((3, 2)), np.ones(3), propensities=np.zeros(3))


def test_bad_numbers_are_named():
    log = logged(50, 0, explore=0.5)
    for numbers in ({"train": 1.0}, {"train": -0.1}, {"train": 0.0}):
        with pytest.raises(InvalidParameter, match="train"):
            compare_policies(log, [TargetPolicy(name="greedy")], **numbers)
    with pytest.raises(InvalidParameter, match="a policy among"):
        TargetPolicy(name="best")
    with pytest.raises(InvalidParameter, match="explore"):
        TargetPolicy(name="greedy", explore=2.0)


def test_the_command_judges_the_log_of_a_live_agent(tmp_path):
    rng = np.random.default_rng(0)
    hub = make_hub(policy="inverse-gap", explore=0.3, features=("a", "b", "c"))
    with make_live(hub, sync="inline", decision_log=tmp_path / "log", decision_log_rows="all") as agent:
        for _ in range(400):
            decision = agent.choose(rng.standard_normal((4, 3)))
            agent.observe(decision, float(decision.x @ THETA) + 0.1 * rng.standard_normal())
    assert len(read_log(tmp_path / "log")) == 400

    def run(*words):
        command = [sys.executable, "-m", "fedbandit", "evaluate", str(tmp_path / "log"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    found = json.loads(run("--json", "--policy", "greedy", "--policy", "uniform").stdout)
    greedy, uniform = found["policies"]
    assert (found["n_train"], found["n_test"], found["features"]) == (200, 200, ["a", "b", "c"])
    assert greedy["dr"][0] > uniform["dr"][0] and greedy["gain"][1] < greedy["gain"][0] < greedy["gain"][2]
    blind = json.loads(run("--json", "--policy", "greedy", "--feature", "c").stdout)["policies"][0]
    assert blind["dr"][0] < greedy["dr"][0]
    shown = run()
    assert shown.returncode == 0 and "gain (DR)" in shown.stdout and "as logged" in shown.stdout
    exported = tmp_path / "m.safetensors"
    stats = hub.server.stats
    exported.write_bytes(save({"Sigma": stats.Sigma, "b": stats.b, "n_obs": np.array([stats.n_obs])}))
    own = json.loads(run("--json", "--policy", "greedy", "--model", str(exported)).stdout)
    assert own["n_test"] == 400 and own["policies"][0]["dr"][0] > uniform["dr"][0]
    exported.write_bytes(b"nothing")
    broken = run("--model", str(exported))
    assert broken.returncode == 2 and "models export" in broken.stderr
    refused = run("--train", "2")
    assert refused.returncode == 2 and "expected train" in refused.stderr
