import json

import pytest
from typer import Typer
from typer.testing import CliRunner

import fedbandit as fb
from fedbandit.cli.plan import plan
from fedbandit.errors import InvalidParameter
from fedbandit.experiments.planner import (
    PlannedFleet,
    Simulations,
    alpha_within_bound,
    expected_messages,
    small_fleet,
    theory_bounds,
)

FLEET = PlannedFleet(n_agents=60, dim=6, n_rounds=20_000)


def simulated(fleet: PlannedFleet, alpha: float) -> int:
    rule = fb.FedLinUCB(dim=fleet.dim, alpha=alpha, beta=1.0)
    world = fb.worlds.sphere(dim=fleet.dim, n_actions=10)
    return fb.simulate(rule, world, n_agents=fleet.n_agents, n_rounds=fleet.n_rounds, seed=5).n_messages


@pytest.mark.parametrize("alpha", [10.0, 1.0, 0.1, 0.01])
def test_the_formula_is_near_what_a_whole_fleet_really_sends(alpha):
    # Within a quarter in every size tried, from 50 to 1 000 agents and d from 5 to 25.
    assert expected_messages(FLEET, alpha) == pytest.approx(simulated(FLEET, alpha), rel=0.3)


@pytest.mark.parametrize("alpha", [1.0, 0.1])
def test_a_small_simulation_scaled_up_is_near_too(alpha):
    guess = Simulations(FLEET, budget=5_000)
    assert guess.small.n_agents < FLEET.n_agents
    assert guess.messages(alpha) == pytest.approx(simulated(FLEET, alpha), rel=0.3)


@pytest.mark.parametrize("alpha", [1.0, 0.01])
def test_nothing_expected_is_above_what_is_promised(alpha):
    assert expected_messages(FLEET, alpha) <= theory_bounds(FLEET, alpha).messages


def test_the_alpha_within_bound_keeps_the_budget_and_hardly_less_does_not():
    budget = 30_000.0
    alpha = alpha_within_bound(FLEET, budget)
    assert alpha is not None
    assert theory_bounds(FLEET, alpha).messages <= budget * (1 + 1e-9)
    assert theory_bounds(FLEET, alpha * 0.5).messages > budget
    assert alpha_within_bound(FLEET, 100.0) is None
    assert alpha_within_bound(FLEET, 2.0 * FLEET.n_rounds) == 0  # the largest number possible


def test_the_suggested_alpha_meets_its_budget():
    guess = Simulations(FLEET, budget=5_000)
    alpha = guess.alpha_for(1_500.0)
    assert alpha is not None
    assert simulated(FLEET, alpha) == pytest.approx(1_500, rel=0.3)
    assert guess.alpha_for(1.0) is None


def test_a_small_fleet_keeps_the_rounds_of_an_agent():
    small = small_fleet(PlannedFleet(n_agents=10_000, dim=5, n_rounds=10_000_000), budget=100_000)
    assert (small.n_agents, small.n_rounds) == (100, 100_000)


def test_an_impossible_fleet_is_refused():
    with pytest.raises(InvalidParameter):
        PlannedFleet(n_agents=0, dim=5, n_rounds=10)


def invoke(*words: str):
    app = Typer()
    app.command()(plan)
    return CliRunner().invoke(app, list(words))


def test_the_command_prints_a_table_and_an_answer_for_the_budget():
    result = invoke("--agents", "20", "--dim", "4", "--rounds", "1e4", "--messages", "5e3")
    assert result.exit_code == 0, result.output
    assert "20 agents, d = 4, 10,000 rounds" in result.output
    assert "5,000 messages" in result.output.replace("\n", " ")


def test_the_command_speaks_json():
    result = invoke("--agents", "20", "--dim", "4", "--rounds", "1e4", "--alpha", "0.5", "--no-simulate", "--json")
    data = json.loads(result.output)
    (row,) = data["alphas"]
    assert row["alpha"] == 0.5
    assert row["radius_exogenous"] < row["radius_adaptive"] < row["radius_paper"]
    assert "simulated_messages" not in row
