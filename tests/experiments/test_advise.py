"""Advice from a log: agents that differ are recognised, agents that do not are not accused."""

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import typer
from pyarrow import parquet
from typer.testing import CliRunner

from fedbandit.cli.advise import advise as command
from fedbandit.errors import FormatError, InvalidInput
from fedbandit.experiments import advise_stats
from fedbandit.experiments.advise import advise, explained_by
from fedbandit.experiments.advise_outliers import outliers
from fedbandit.experiments.advise_page import render
from fedbandit.experiments.advise_stats import Fit, common_test, curvature
from fedbandit.experiments.advise_world import FittedWorld, rounds_to_independence
from fedbandit.experiments.logged import columns_of, log_from_arrays


@pytest.fixture
def quick(monkeypatch):
    """Fewer draws for the power curve, which most tests do not look at."""
    monkeypatch.setattr(advise_stats, "SPREADS", (0.3,))
    monkeypatch.setattr(advise_stats, "N_POWER", 40)


def fleet_log(*, seed=0, n_agents=10, n=1000, dim=4, spread=0.0, opposite=0, rewards="gaussian"):
    """A log of agents around one θ: `spread` apart, the first `opposite` of them against it."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, dim)) / np.sqrt(dim)
    agents = rng.integers(n_agents, size=n)
    theta = rng.standard_normal(dim)
    own = theta / np.linalg.norm(theta) + spread * rng.standard_normal((n_agents, dim))
    own[:opposite] *= -1
    means = np.einsum("ij,ij->i", x, own[agents])
    if rewards == "binary":
        y = (rng.random(n) < np.clip(0.5 + 0.3 * means, 0, 1)).astype(float)
        x = np.hstack([x, np.ones((n, 1))])
    elif rewards == "bent":
        y = means + means**2 + 0.3 * rng.standard_normal(n)
    elif rewards == "uneven noise":
        y = means + (0.1 + 0.5 * (agents % 3)) * rng.standard_normal(n)
    else:
        y = means + 0.3 * rng.standard_normal(n)
    return log_from_arrays(x, y, agents=agents)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("rewards", ["gaussian", "binary", "uneven noise"])
def test_a_fleet_with_one_parameter_is_not_accused(rewards):
    fits = [Fit(fleet_log(seed=seed, n=600, rewards=rewards)) for seed in range(20)]
    rng = np.random.default_rng(0)
    rejected = sum(common_test(fit, rng, n_bootstrap=199).differs for fit in fits)
    accused = sum(bool(outliers(fit).agents) for fit in fits)
    # Binomial(20, 0.05): more than 4 happen once in 400.
    assert rejected <= 4
    assert accused <= 4


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "changes",
    [{}, {"rewards": "binary"}, {"rewards": "uneven noise"}, {"n_agents": 60, "n": 600}, {"n_agents": 2}],
    ids=["plain", "binary", "uneven noise", "many small agents", "two agents"],
)
def test_the_size_of_every_test_is_what_it_says(changes):
    rng = np.random.default_rng(1)
    fits = [Fit(fleet_log(seed=seed, **changes)) for seed in range(400)]
    rates = {
        "common": np.mean([common_test(fit, rng, n_bootstrap=199).differs for fit in fits]),
        "outliers": np.mean([bool(outliers(fit).agents) for fit in fits]),
        "curvature": np.mean([curvature(fit, rng, n_bootstrap=199).p_value < 0.05 for fit in fits]),
    }
    # 5 % of 400; three and a half standard deviations are 3.8 points.
    assert all(rate < 0.088 for rate in rates.values()), rates


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("rewards", ["gaussian", "binary"])
@pytest.mark.parametrize(("n_agents", "opposite"), [(10, 5), (2, 1), (60, 30)])
def test_agents_with_opposite_parameters_are_recognised(n_agents, opposite, rewards):
    log = fleet_log(n_agents=n_agents, opposite=opposite, n=3000, rewards=rewards)
    fit = Fit(log)
    test = common_test(fit, np.random.default_rng(0), n_bootstrap=199)
    assert test.p_value <= 0.01
    if (n_agents, rewards) != (60, "binary"):  # 50 clicks an agent show that agents differ, not which ones
        assert not outliers(fit).core
        assert fit.spread > fit.break_even


@pytest.mark.usefixtures("quick")
def test_sharing_is_advised_against_where_it_hurts():
    advice = advise(fleet_log(n_agents=6, opposite=3), n_seeds=3)
    assert advice.verdict == "no"
    assert advice.choice.gain.high < 0
    assert advice.outlook.shared.reward.mean < advice.outlook.alone.reward.mean
    assert any("differ beyond chance" in reason for reason in advice.reasons)
    assert "better off alone" in render(advice, source="log")


@pytest.mark.usefixtures("quick")
def test_sharing_is_advised_where_it_helps_with_an_alpha_and_its_price():
    advice = advise(fleet_log(n_agents=15, n=900), n_seeds=3)
    assert advice.verdict == "yes"
    assert advice.choice.alpha in [o.alpha for o in advice.outlook.federated]
    assert advice.choice.messages < 0.1 * advice.outlook.shared.messages
    messages = [o.messages for o in advice.outlook.federated]
    assert messages == sorted(messages, reverse=True)


@pytest.mark.usefixtures("quick")
def test_the_few_who_do_not_belong_are_named_and_left_out():
    log = fleet_log(n_agents=12, opposite=2, n=1500)
    advice = advise(log, n_seeds=3)
    assert advice.verdict == "yes, without some"
    assert advice.stranger_names == ("0", "1")
    assert advice.log is log
    assert advice.outlook.n_rounds == len(log.without([0, 1]))


@pytest.mark.usefixtures("quick")
def test_a_budget_of_messages_is_kept():
    log = fleet_log(n_agents=15, n=900)
    outlook = advise(log, n_seeds=3).outlook
    budget = int(outlook.federated[3].messages)
    choice = outlook.recommended(budget)
    assert choice.messages <= budget
    assert choice.reward.mean == max(o.reward.mean for o in outlook.federated if o.messages <= budget)


@pytest.mark.usefixtures("quick")
def test_a_short_log_is_told_that_it_is_short():
    advice = advise(fleet_log(n_agents=3, n=45), n_seeds=3)
    assert advice.test.power_at_break_even < 0.8 or advice.test.differs
    assert any("too short" in reason for reason in advice.reasons) or advice.test.differs


def test_power_grows_with_the_spread_and_a_spread_of_that_size_is_found():
    fit = Fit(fleet_log(seed=1))
    power = common_test(fit, np.random.default_rng(0)).power
    values = list(power.values())
    assert values[0] < 0.3
    assert values[-1] > 0.95
    assert all(b > a - 0.1 for a, b in pairwise(values))
    half = min(h for h, p in power.items() if p > 0.9)
    # The spread is in units of the noise (0.3) of rewards, features have length 1: θ spreads by h·0.3.
    fits = [Fit(fleet_log(seed=seed, spread=0.3 * half)) for seed in range(10)]
    found = [common_test(f, np.random.default_rng(0), n_bootstrap=199).differs for f in fits]
    assert np.mean(found) >= 0.7


@pytest.mark.parametrize("spread", [0.15, 0.3])
def test_the_spread_is_estimated_well(spread):
    found = [Fit(fleet_log(seed=seed, n_agents=20, n=2000, spread=spread)).spread for seed in range(10)]
    assert np.mean(found) == pytest.approx(spread / 0.3, rel=0.15)


def test_no_spread_means_never_alone():
    fit = Fit(fleet_log())
    fit.__dict__["spread"] = 0.0
    assert rounds_to_independence(fit) == np.inf
    np.testing.assert_array_equal(fit.deviations(), 0.0)


def test_bent_rewards_are_told_from_straight_ones():
    rng = np.random.default_rng(0)
    bent = [curvature(Fit(fleet_log(seed=s, rewards="bent")), rng, n_bootstrap=199).is_bent for s in range(5)]
    straight = [curvature(Fit(fleet_log(seed=s)), rng, n_bootstrap=199).is_bent for s in range(10)]
    assert all(bent)
    assert sum(straight) <= 1


def test_own_models_explain_more_where_agents_differ_and_less_where_they_do_not():
    same, other = explained_by(fleet_log(n=400)), explained_by(fleet_log(n=2000, opposite=5))
    assert same.shared > same.own
    assert other.own > other.shared + 0.3


def test_a_fitted_world_repeats_itself_and_has_the_offers_of_the_log():
    log = fleet_log(n_agents=4, n=200)
    world = FittedWorld(log, Fit(log))
    active = np.arange(256) % 4
    first, again = (world.stream(np.random.SeedSequence(3)).draw(active) for _ in range(2))
    np.testing.assert_array_equal(first.array, again.array)
    own = {tuple(row) for row in log.of_agent(0)[0]}
    assert {tuple(row) for row in first.array[0]} <= own
    offers = np.random.default_rng(0).standard_normal((200, 3, 2))
    known = log_from_arrays(None, np.ones(200), offers=offers, chosen=np.zeros(200), agents=np.arange(200) % 4)
    block = FittedWorld(known, Fit(known)).stream(np.random.SeedSequence(0)).draw(active)
    assert block.array.shape == (256, 3, 2)


@pytest.mark.parametrize(
    "log",
    [
        log_from_arrays(np.ones((100, 1)), np.ones(100)),
        log_from_arrays(np.ones((20, 1)), np.ones(20), agents=np.arange(20) % 2),
        log_from_arrays(np.zeros((100, 1)), np.ones(100), agents=np.arange(100) % 2),
    ],
    ids=["one agent", "too short", "no features"],
)
def test_a_log_that_cannot_say_anything_is_a_named_error(log):
    with pytest.raises(InvalidInput):
        advise(log)


def test_redundant_features_do_no_harm():
    log = fleet_log()
    doubled = log_from_arrays(np.hstack([log.x, log.x]), log.rewards, agents=log.agents)
    a, b = Fit(log), Fit(doubled)
    assert b.rank == a.rank
    assert b.spread == pytest.approx(a.spread)
    np.testing.assert_allclose(doubled.x @ b.parameters()[0], log.x @ a.parameters()[0], atol=1e-8)


# -- the command


app = typer.Typer()
app.command()(command)


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "log.parquet"
    parquet.write_table(pa.table(dict(columns_of(fleet_log(n_agents=6, opposite=3, n=600)))), path)
    return path


@pytest.mark.usefixtures("quick")
def test_the_command_prints_a_verdict_and_writes_a_page_that_needs_nothing_else(written, tmp_path):
    page = tmp_path / "advice.html"
    result = CliRunner().invoke(app, [str(written), "--out", str(page), "--seeds", "4"])
    assert result.exit_code == 0, result.output
    assert "better off alone" in result.output
    text = page.read_text(encoding="utf-8")
    assert "<svg" in text
    assert "<script" not in text
    assert 'src="' not in text and "@import" not in text and 'href="http' not in text


@pytest.mark.usefixtures("quick")
def test_the_command_speaks_json_and_repeats_itself(written, tmp_path):
    options = [str(written), "--out", str(tmp_path / "advice.html"), "--seeds", "4", "--json"]
    first, again = (CliRunner().invoke(app, options).stdout for _ in range(2))
    facts = json.loads(first)
    assert facts["verdict"] == "no"
    assert facts["alpha"] is None
    assert first == again


def test_a_log_without_agents_is_a_named_error(tmp_path):
    path = tmp_path / "log.parquet"
    parquet.write_table(pa.table({"x": [1.0], "reward": [1.0]}), path)
    result = CliRunner().invoke(app, [str(path)])
    assert isinstance(result.exception, FormatError)
