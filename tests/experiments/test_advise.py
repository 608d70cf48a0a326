"""Advice from a log: agents that differ are recognised, agents that do not are not accused."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import typer
from pyarrow import parquet
from typer.testing import CliRunner

import fedbandit as fb
from fedbandit.cli.advise import advise as command
from fedbandit.errors import FormatError, InvalidInput, InvalidParameter
from fedbandit.experiments.advice import fitted_world, homogeneity
from fedbandit.experiments.advice.advise import advise
from fedbandit.experiments.advice.explained_variance import explained_by
from fedbandit.experiments.advice.fitted_world import FittedWorld, prospects, rounds_to_independence
from fedbandit.experiments.advice.homogeneity import Fit, common_test, curvature
from fedbandit.experiments.advice.log import columns_of, log_from_arrays, read_log
from fedbandit.experiments.advice.outliers import outliers
from fedbandit.experiments.advice.report_page import headline, render
from fedbandit.simulation.datasets.table import unusable
from fedbandit.simulation.participation import ByRows
from fedbandit.wire.settings import ModelDescription

TERMS = {"name": "deployed", "settings": "", "features": None}


@pytest.fixture
def quick(monkeypatch):
    """Fewer draws for the power curve, which most tests do not look at."""
    monkeypatch.setattr(homogeneity, "SPREADS", (0.3,))
    monkeypatch.setattr(homogeneity, "N_POWER", 40)


def fleet_log(*, seed=0, n_agents=10, n=1000, dim=4, spread=0.0, opposite=0, rewards="gaussian", noise_only=False):
    """A log of agents around one θ: `spread` apart, the first `opposite` of them against it."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, dim)) / np.sqrt(dim)
    agents = rng.integers(n_agents, size=n)
    theta = rng.standard_normal(dim)
    own = theta / np.linalg.norm(theta) + spread * rng.standard_normal((n_agents, dim))
    own[:opposite] *= -1
    own *= 0.0 if noise_only else 1.0
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
def test_one_parameter_for_all_is_advised_against_where_it_hurts():
    advice = advise(fleet_log(n_agents=6, opposite=3), n_seeds=3)
    assert advice.verdict != "yes"
    common = advice.outlook.recommended()
    assert common.gain.high < 0
    assert advice.outlook.shared.reward.mean < advice.outlook.alone.reward.mean
    assert any("differ beyond chance" in reason for reason in advice.reasons)
    assert any("With a parameter for each agent" in reason for reason in advice.reasons)


@pytest.mark.usefixtures("quick")
def test_a_parameter_for_each_agent_is_advised_where_it_wins():
    advice = advise(fleet_log(n_agents=30, n=2000, dim=6, spread=0.5), n_seeds=4)
    assert advice.verdict == "yes, personal"
    assert advice.choice.is_personal
    assert advice.choice.lead_over(advice.outlook.alone).low > 0
    assert advice.choice.lead_over(advice.outlook.recommended()).low > 0
    assert advice.outlook.clusters is not None
    assert "each agent with a parameter of its own" in render(advice, source="log")
    assert any("--personal auto" in reason for reason in advice.reasons)


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
    assert advice.outlier_names == ("0", "1")
    assert advice.log is log
    assert advice.outlook.n_rounds == len(log.without([0, 1]))


@pytest.mark.usefixtures("quick")
def arms_log(n=400):
    """Three disjoint arms of two features, four agents."""
    rng = np.random.default_rng(0)
    contexts, arms = np.column_stack([rng.standard_normal(n), np.ones(n)]), rng.integers(3, size=n)
    rewards = np.einsum("ij,ij->i", contexts, rng.standard_normal((3, 2))[arms]) + 0.3 * rng.standard_normal(n)
    rows = np.zeros((n, 3, 3, 2))
    rows[:, np.arange(3), np.arange(3)] = contexts[:, None]
    log = log_from_arrays(None, rewards, agents=np.arange(n) % 4, offers=rows.reshape(n, 3, 6), chosen=arms)
    return replace(log, arms=("a", "b", "c"))


def test_disjoint_arms_are_played_and_recommended_as_blocks_with_equal_numbers(monkeypatch):
    log = arms_log()
    assert (log.blocks, replace(log, arms=None).blocks) == (3, 1)
    numbers = {"n_seeds": 2, "n_rounds": 200, "alphas": (0.3, 3.0)}
    dense = prospects(replace(log, arms=None), Fit(log), **numbers)
    for most_dense in (0, 128):  # eager systems by blocks, and by the dense kernels
        monkeypatch.setattr(fitted_world, "MOST_DENSE", most_dense)
        by_blocks = prospects(log, Fit(log), **numbers)
        for kind in ("federated", "personal"):
            for ours, theirs in zip(getattr(by_blocks, kind), getattr(dense, kind), strict=True):
                assert ours.messages == theirs.messages > 0
                assert ours.n_bytes < theirs.n_bytes
                np.testing.assert_allclose(ours.rewards, theirs.rewards, rtol=1e-9)
        assert by_blocks.shared.messages == dense.shared.messages
        np.testing.assert_allclose(by_blocks.shared.rewards, dense.shared.rewards, rtol=1e-9)
        np.testing.assert_allclose(by_blocks.alone.rewards, dense.alone.rewards, rtol=1e-9)
    advice = advise(log, **numbers)
    assert any("blocks = 3" in reason for reason in advice.reasons)
    assert not any("blocks" in reason for reason in advise(replace(log, arms=None), **numbers).reasons)
    assert advice.sharing_cost.raw_bytes == 8 * (2 + 2) * 200


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
    bent = [curvature(Fit(fleet_log(seed=s, rewards="bent")), rng, n_bootstrap=199).is_significant for s in range(5)]
    straight = [curvature(Fit(fleet_log(seed=s)), rng, n_bootstrap=199).is_significant for s in range(10)]
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


def test_agents_are_simulated_as_they_are_deployed():
    """Live agents join: with few decisions each, that is half of what sharing gains (46 % without, 97 % with)."""
    log = fleet_log(n_agents=100, n=500)
    outlook = prospects(log, Fit(log), n_seeds=3, alphas=(0.3,))
    assert outlook.share_of_gain(outlook.federated[0]) > 0.85
    deployed = ModelDescription.from_dict(
        {**TERMS, "dim": log.dim, "alpha": 0.3, "lam": outlook.lam, "radius": {"kind": "fixed", "beta": outlook.beta}}
    ).settings.rule()
    counts = tuple(np.bincount(log.agents, minlength=100).tolist())
    traces = [
        fb.simulate(
            deployed, FittedWorld(log, Fit(log)), n_agents=100, n_rounds=500, seed=s, participation=ByRows(counts)
        )
        for s in range(3)
    ]
    assert outlook.federated[0].messages == np.mean([trace.n_messages for trace in traces])
    assert outlook.federated[0].reward.mean == pytest.approx(np.mean([trace.reward[-1] for trace in traces]) / 500)


def noise_csv(path, *, seed=0, signal=0.0, n=300):
    """Lines with an identifier, a text column, a line number, and rewards that follow the price by `signal`."""
    rng = np.random.default_rng(seed)
    lines = ["agent,user_id,colour,line,price,novelty,reward"]
    for i in range(n):
        price, novelty, noise = rng.normal(size=3)
        colour = ("red", "blue")[int(rng.integers(2))]
        reward = signal * price + noise
        lines.append(f"shop-{i % 6},{rng.integers(10_000)},{colour},{i},{price:.3f},{novelty:.3f},{reward:.3f}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.usefixtures("quick")
def test_features_and_columns_that_are_none_are_named_with_the_reason(tmp_path):
    log = read_log(noise_csv(tmp_path / "log.csv", signal=1.0))
    assert log.feature_names == ("price", "novelty")
    left_out = dict(log.left_out)
    assert left_out.keys() == {"user_id", "colour", "line"}
    assert "identifier" in left_out["user_id"]
    assert "text of 2 different values" in left_out["colour"]
    assert "line number" in left_out["line"]
    page = tmp_path / "advice.html"
    result = CliRunner().invoke(app, [str(tmp_path / "log.csv"), "--out", str(page), "--seeds", "2", "--rounds", "300"])
    printed = " ".join(result.output.split())
    assert "Features: price, novelty." in printed
    assert "Columns that are not used: user_id (" in printed
    assert "user_id (its name" in page.read_text(encoding="utf-8")


def test_text_that_is_asked_for_becomes_columns(tmp_path):
    path = noise_csv(tmp_path / "log.csv")
    log = read_log(path, features=["colour", "price"])
    assert log.feature_names == ("colour=blue", "colour=red", "price")
    np.testing.assert_array_equal(log.x[:, :2].sum(axis=1), 1.0)
    assert read_log(path, ignore=["novelty"]).feature_names == ("price",)
    assert read_log(path, features=["user_id"]).feature_names == ("user_id",)
    with pytest.raises(FormatError, match="expected the columns"):
        read_log(path, features=["prize"])
    with pytest.raises(FormatError, match="expected the columns"):
        read_log(path, ignore=["prize"])


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *((name, True) for name in ("user_id", "id", "userId", "USER ID", "userid", "uuid")),
        *((name, False) for name in ("bid", "paid", "humid", "idle", "grid")),
    ],
)
def test_identifiers_are_recognised_by_name_and_words_that_end_alike_are_not(name, is_one):
    values = np.array([5, 3, 5, 9])
    agents = np.array(["a", "a", "b", "b"])
    assert (unusable(name, values, agents) is not None) == is_one
    assert unusable(name, values + 0.5, agents) is None  # numbers with a fraction identify nothing


def test_a_number_for_each_agent_is_no_feature():
    agents = np.repeat(["a", "b", "c"], 4)
    assert "numbers the agents" in unusable("code", np.repeat([7, 3, 4], 4), agents)
    assert unusable("size", np.repeat([7, 3, 7], 4), agents) is None


@pytest.mark.usefixtures("quick")
def test_features_that_predict_nothing_are_never_a_yes(tmp_path):
    # Of the seeds 0 to 19 these two showed a gain that is not chance by its interval, and were a "yes" once.
    advices = [advise(read_log(noise_csv(tmp_path / "log.csv", seed=seed)), n_seeds=3) for seed in (0, 6, 11)]
    assert not any(advice.verdict.startswith("yes") for advice in advices)
    # A gain that the simulation shows is one of a model that was fitted to noise.
    shown = [advice for advice in advices if advice.choice.gain.low > 0]
    assert shown
    assert all("do not predict" in headline(advice) for advice in shown)
    assert all("fitted to noise" in " ".join(advice.reasons) for advice in shown)


def test_noise_explains_nothing_and_a_weak_signal_does():
    noise = [explained_by(fleet_log(seed=s, n=600, noise_only=True)).anything for s in range(60)]
    # At most one in twenty by construction; Binomial(60, 0.05): more than 8 happen once in 200.
    assert sum(noise) <= 8
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 2))
    weak = log_from_arrays(x, 0.15 * x[:, 0] + rng.standard_normal(4000), agents=np.arange(4000) % 5)
    assert explained_by(weak).anything
    assert explained_by(weak).best < 0.05


def test_a_missing_constant_is_pointed_out():
    log = fleet_log(n=600)
    shifted = log_from_arrays(log.x, log.rewards + 5.0, agents=log.agents)
    found = explained_by(shifted)
    assert found.best < 0 < 0.3 < found.shared_with_constant


@pytest.mark.usefixtures("quick")
def test_it_is_said_when_no_alpha_reaches_the_aim():
    log = fleet_log(n_agents=15, n=900)
    advice = advise(log, n_seeds=3, alphas=(3.0, 10.0))
    assert advice.verdict == "yes"
    assert not advice.reaches_its_aim
    assert any("No α that was tried keeps 90% of the largest gain" in reason for reason in advice.reasons)
    assert "best tried" in render(advice, source="log")
    assert "recommended" not in render(advice, source="log")
    poor = advise(log, n_seeds=3, messages=5, alphas=(1.0, 3.0))
    assert any("No α that was tried stays within 5 messages" in reason for reason in poor.reasons)
    assert advise(log, n_seeds=3, alphas=(0.1, 10.0)).reaches_its_aim


@pytest.mark.parametrize(
    "wrong",
    [{"n_seeds": 1}, {"n_seeds": 0}, {"n_rounds": 0}, {"beta": float("nan")}, {"beta": -1.0}, {"messages": -1}],
    ids=str,
)
@pytest.mark.usefixtures("quick")
def test_numbers_that_advice_cannot_use_are_named_errors(wrong):
    with pytest.raises(InvalidParameter, match="expected"):
        advise(fleet_log(n=60, n_agents=2), **wrong)


def test_a_log_without_agents_is_a_named_error(tmp_path):
    path = tmp_path / "log.parquet"
    parquet.write_table(pa.table({"x": [1.0], "reward": [1.0]}), path)
    result = CliRunner().invoke(app, [str(path)])
    assert isinstance(result.exception, FormatError)
