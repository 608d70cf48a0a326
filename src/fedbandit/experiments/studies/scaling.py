"""The same traffic spread over more and more agents."""

from __future__ import annotations

from fedbandit.algorithms.base import Rule
from fedbandit.experiments.baselines import alone, fed
from fedbandit.experiments.claims import says_change
from fedbandit.experiments.compare import interval, ratio
from fedbandit.experiments.output.figures import label_ends, line, log_scale, panels, points, style_of
from fedbandit.experiments.output.tables import Table, number
from fedbandit.experiments.results import Cell, Group, Results
from fedbandit.experiments.sharing_cost import baseline_note
from fedbandit.experiments.spec import make_spec
from fedbandit.experiments.study import Size, Study, StudyAnswer
from fedbandit.simulation.worlds import Articles

DIM, BETA, LAM = 10, 0.3, 0.1
SYSTEMS = ("FedLinUCB", "FedLinUCB, join + arrival", "OFUL independent")


def _rule(system: str) -> Rule:
    if system == "OFUL independent":
        return alone(dim=DIM, beta=BETA, lam=LAM)
    return fed(dim=DIM, beta=BETA, lam=LAM, alpha=1.0, options=system != "FedLinUCB")


def plan(size: Size) -> list[Cell]:
    """A fixed number of rounds in all, fleets of growing size."""
    n_rounds = size.pick(tiny=2_000, quick=100_000, full=1_000_000)
    fleets = size.pick(tiny=(10, 100), quick=(10, 100, 1_000, 10_000), full=(10, 100, 1_000, 10_000, 100_000))
    return [
        Cell(
            {"M": n_agents, "system": system},
            make_spec(_rule(system), Articles(dim=DIM, n_actions=10), n_agents=n_agents, n_rounds=n_rounds),
            size.seeds(quick=2, full=5),
        )
        for n_agents in fleets
        for system in SYSTEMS
    ]


def analyse(results: Results) -> StudyAnswer:
    """Regret, messages an agent and speed over M."""
    n_rounds = results.groups[0].spec.n_rounds
    figure, axes = panels(1, 3, width=12.5, height=3.5)
    for system in SYSTEMS:
        groups = results.where(system=system)
        x, look = [group["M"] for group in groups], style_of(system)
        points(axes[0], x, [interval([v / n_rounds for v in g.at("regret").values()]) for g in groups], look)
        line(axes[2], x, [_speed(g) for g in groups], look)
        if system != "OFUL independent":
            points(axes[1], x, [interval([v / g["M"] for v in g.at("messages").values()]) for g in groups], look)
    titles = ("Regret a round", "Messages an agent, in the whole run", "Simulated rounds a second")
    for i, (axis, title) in enumerate(zip(axes, titles, strict=True)):
        axis.set(title=title, xlabel="agents M")
        log_scale(axis, "x")
        log_scale(axis, "y")
        if i == 0:
            ends = [(s, results.where(system=s)[-1].mean("regret").mean / n_rounds, style_of(s)) for s in SYSTEMS]
            label_ends(axis, ends)
    caption = (
        f"{n_rounds:,} rounds in all, whatever M: with more agents each has fewer of its own. Mean and 95 % interval."
    )
    notes = [
        f"Articles world, d = {DIM}, K = 10, β = {BETA}, λ = {LAM}, α = 1, one agent active a round, chosen evenly.",
        "Speed is in rounds a second of processor time, of the fastest seed.",
        baseline_note([group.sharing_cost for group in results]),
    ]
    return StudyAnswer(_sentence(results, n_rounds), figure, caption, [_table(results)], notes)


def _speed(group: Group) -> float:
    """Rounds a second of processor time, in the fastest run: the first one may have waited for the compiler."""
    return max(run.spec.n_rounds / max(run.seconds, 1e-9) for run in group.runs.values())


def _table(results: Results) -> Table:
    rows = []
    for g in results:
        own = interval([v / g["M"] for v in g.at("messages").values()])
        rows.append([g["M"], g["system"], g.mean("regret"), g.mean("messages"), own, _speed(g)])
    columns = ["M", "system", "regret", "messages", "messages an agent", "rounds a second"]
    return Table("Scaling the fleet at constant traffic", columns, rows)


def _sentence(results: Results, n_rounds: int) -> str:
    small, large = min(results.each("M")), max(results.each("M"))
    plain, helped = (results.one(M=large, system=s).mean("regret").mean for s in SYSTEMS[:2])
    base, most = (results.one(M=size, system=SYSTEMS[0]) for size in (small, large))
    lonely = results.one(M=large, system=SYSTEMS[2]).mean("regret").mean
    sent = most.mean("messages").mean
    share = most.sharing_cost.of_two_per_decision(sent)
    return (
        f"From {small:,} to {large:,} agents on the same {n_rounds:,} rounds FedLinUCB's regret "
        f"{says_change(ratio(most.at('regret'), base.at('regret')))} from {number(base.mean('regret').mean)} to "
        f"{number(plain)} ({number(helped)} with join and arrival; independent learners {number(lonely)}); with "
        f"{large:,} agents it sends {sent / large:.1f} messages per agent, {share:.1%} of two messages per decision."
    )


STUDY = Study("scaling", "What happens when the same traffic is spread over more agents?", plan, analyse)
