"""`fedbandit plan`: messages, bytes and radii of a planned fleet."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbandit.core.arrays import finite_at_least

if TYPE_CHECKING:
    from fedbandit.experiments.planner import PlannedFleet, Simulations


def plan(
    agents: Annotated[int, typer.Option(help="Agents M.")],
    dim: Annotated[int, typer.Option(help="Features d.")],
    rounds: Annotated[float, typer.Option(help="Rounds T of all agents together; accepts 1e8.")],
    messages: Annotated[float | None, typer.Option(help="Message budget; searches for an α that meets it.")] = None,
    alpha: Annotated[list[float] | None, typer.Option(help="An α to evaluate; may be repeated.")] = None,
    days: Annotated[float, typer.Option(help="Days over which the rounds are spread.")] = 30.0,
    noise: Annotated[float, typer.Option(help="Noise scale R of the rewards.")] = 0.3,
    lam: Annotated[float, typer.Option(help="Ridge λ.")] = 1.0,
    theta_bound: Annotated[float, typer.Option(help="S, a bound on ‖θ*‖.")] = 1.0,
    action_bound: Annotated[float, typer.Option(help="L, a bound on the norm of a feature row.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Probability δ with which the radii may fail.")] = 0.01,
    blocks: Annotated[int, typer.Option(help="Disjoint arms K: a block of dim/K columns each (1: none).")] = 1,
    simulate: Annotated[bool, typer.Option("--simulate/--no-simulate", help="Also simulate a small fleet.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object instead of tables.")] = False,
) -> None:
    """Report what the theory guarantees and what a small simulation suggests for a fleet of this size."""
    from fedbandit.experiments.planner import PlannedFleet

    finite_at_least(days, 0.0, "days", strictly=True)
    if messages is not None:
        finite_at_least(messages, 1.0, "messages")
    fleet = PlannedFleet(
        n_agents=agents,
        dim=dim,
        n_rounds=int(finite_at_least(rounds, 1, "rounds")),
        lam=lam,
        noise=noise,
        theta_bound=theta_bound,
        action_bound=action_bound,
        delta=delta,
        blocks=blocks,
    )
    candidates = _candidates(agents, alpha)
    result = _plan(fleet, candidates, messages, days, simulated=simulate)
    if as_json:
        print(json.dumps(result, indent=1, ensure_ascii=False))
    else:
        _print(result)


def _candidates(agents: int, given: list[float] | None) -> dict[str, float]:
    """The values of α to evaluate: those given, or 1, 1/M and the paper's 1/M²."""
    if given:
        return {f"{value:g}": value for value in given}
    return {"1": 1.0, "1/M": 1 / agents, "1/M²": 1 / agents**2} if agents > 1 else {"1": 1.0}


def _plan(
    fleet: PlannedFleet, candidates: dict[str, float], budget: float | None, days: float, *, simulated: bool
) -> dict[str, Any]:
    from fedbandit.experiments import planner

    simulations = planner.Simulations(fleet) if simulated else None
    rows = [_row(fleet, name, value, days, simulations) for name, value in candidates.items()]
    result: dict[str, Any] = {
        "agents": fleet.n_agents,
        "dim": fleet.dim,
        "rounds": fleet.n_rounds,
        "days": days,
        "bytes_per_message": planner.bytes_per_message(fleet),
        "alphas": rows,
    }
    if simulations is not None:
        result["simulated"] = {"agents": simulations.small.n_agents, "rounds": simulations.small.n_rounds}
    if budget is not None:
        result["budget"] = _budget(fleet, budget, days, simulations)
    return result


def _row(fleet: PlannedFleet, name: str, alpha: float, days: float, simulations: Simulations | None) -> dict[str, Any]:
    from fedbandit.experiments import planner

    bounds = planner.theory_bounds(fleet, alpha)
    row: dict[str, Any] = {
        "name": name,
        "alpha": alpha,
        "message_bound": bounds.messages,
        "expected_messages": planner.expected_messages(fleet, alpha),
        "radius_exogenous": bounds.exogenous,
        "radius_adaptive": bounds.adaptive,
        "radius_paper": bounds.paper,
    }
    if simulations is not None:
        messages = simulations.messages(alpha)
        row["simulated_messages"] = messages if simulations.trials[alpha].was_needed else None
    sent = row.get("simulated_messages") or row["expected_messages"]
    rows = planner.raw_rows(fleet)
    return {
        **row,
        "bytes_per_day": planner.bytes_per_day(fleet, sent, days),
        "raw_rows_per_day": rows.raw_bytes / days,
        "cheaper_from_round": rows.rounds_until_cheaper(sent * planner.bytes_per_message(fleet)),
    }


def _budget(fleet: PlannedFleet, messages: float, days: float, simulations: Simulations | None) -> dict[str, Any]:
    from fedbandit.experiments import planner

    found: dict[str, Any] = {"messages": messages, "bound_alpha": planner.alpha_within_bound(fleet, messages)}
    if simulations is None:
        return found
    alpha = simulations.alpha_for(messages)
    found["simulated_alpha"] = alpha
    if alpha is not None:
        sent, bounds = simulations.messages(alpha), planner.theory_bounds(fleet, alpha)
        found |= {"simulated_messages": sent, "bytes_per_day": planner.bytes_per_day(fleet, sent, days)}
        found |= {"radius_exogenous": bounds.exogenous, "radius_adaptive": bounds.adaptive}
    return found


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    title = f"{result['agents']:,} agents, d = {result['dim']}, {result['rounds']:,} rounds in {result['days']:g} days"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for row in result["alphas"]:
        is_plain = row["name"] == f"{row['alpha']:g}"
        table.add_column(f"α = {row['name']}" + ("" if is_plain else f"\n= {row['alpha']:.2g}"), justify="right")
    for heading, key, form in ROWS:
        if key in result["alphas"][0]:
            table.add_row(heading, *(form(row[key]) for row in result["alphas"]))
    console.print(table)
    if "simulated" in result:
        small = result["simulated"]
        console.print(
            f"Simulation: {small['agents']:,} agents and {small['rounds']:,} rounds in the sphere world, scaled up by "
            "the formula. A message carries "
            f"{_bytes(result['bytes_per_message'])}. docs/theory.md says when each radius is valid."
        )
    if "budget" in result:
        console.print(_budget_text(result["budget"]))


def _count(value: float | None) -> str:
    if value is None:
        return "as by formula"
    return f"{value:,.0f}" if value < 1e9 else f"{value:.2e}"


def _radius(value: float) -> str:
    return f"{value:,.1f}"


def _bytes(value: float) -> str:
    from fedbandit.experiments.sharing_cost import human_bytes

    return human_bytes(value)


ROWS = (
    ("messages, at most (Theorem 1, corrected)", "message_bound", _count),
    ("messages, by formula", "expected_messages", _count),
    ("messages, by simulation", "simulated_messages", _count),
    ("bytes per day", "bytes_per_day", _bytes),
    ("raw rows, bytes per day", "raw_rows_per_day", _bytes),
    ("sums cheaper from round", "cheaper_from_round", _count),
    ("radius β, exogenous", "radius_exogenous", _radius),
    ("radius β, adaptive", "radius_adaptive", _radius),
    ("radius β, as the paper prints it", "radius_paper", _radius),
)


def _budget_text(budget: dict[str, Any]) -> str:
    wanted = _count(budget["messages"])
    alpha = budget["bound_alpha"]
    if alpha is None:
        text = f"No α is guaranteed to stay within {wanted} messages: every epoch may cost each agent one exchange. "
    elif alpha == 0:
        text = f"Every α stays within {wanted} messages: there are at most two per round. "
    else:
        text = f"α = {alpha:.3g} is guaranteed to stay within {wanted} messages. "
    if "simulated_alpha" not in budget:
        return text
    if budget["simulated_alpha"] is None:
        return text + "By simulation every α up to a million sends more."
    return text + (
        f"By simulation α = {budget['simulated_alpha']:.3g} sends {_count(budget['simulated_messages'])} "
        f"({_bytes(budget['bytes_per_day'])} per day), radius {budget['radius_exogenous']:.1f} (exogenous) or "
        f"{budget['radius_adaptive']:.1f} (adaptive)."
    )
