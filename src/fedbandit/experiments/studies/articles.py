"""Li and Wang's experiment: a pool of articles, one hundred and one thousand agents, every algorithm."""

from __future__ import annotations

import math

from matplotlib.axes import Axes

from fedbandit.algorithms.base import Rule
from fedbandit.core import radius
from fedbandit.experiments.baselines import (
    alone,
    asynchronous,
    fed,
    match_communication,
    match_regret,
    shared,
    synchronous,
)
from fedbandit.experiments.claims import BELOW, says_change, side
from fedbandit.experiments.compare import difference, ratio
from fedbandit.experiments.output.figures import legend, log_scale, note, panels, points, style_of
from fedbandit.experiments.output.tables import Table, number
from fedbandit.experiments.results import Cell, Group, Results
from fedbandit.experiments.sharing_cost import baseline_note
from fedbandit.experiments.spec import make_spec
from fedbandit.experiments.study import Size, Study, StudyAnswer
from fedbandit.simulation.worlds import Articles

DIM, LAM = 25, 0.1
ALPHAS, GAMMAS = (4.0, 1.0, 0.1), (5.0, 2.0)
BETA = radius.counted(noise_scale=0.1, delta=0.1)

# Measured by others with refreshed policies, mean of three seeds: regret, messages.
PUBLISHED: dict[tuple[int, str, str], tuple[float, float]] = {
    (100, "Async-LinUCB", "γ=5"): (114, 5_435),
    (100, "Async-LinUCB", "γ=2"): (81, 13_568),
    (100, "DisLinUCB", "match communication"): (108, 989),
    (100, "DisLinUCB", "match regret"): (62, 20_457),
    (100, "FedLinUCB", "α=4"): (125, 725),
    (100, "FedLinUCB", "α=1"): (97, 984),
    (100, "FedLinUCB", "α=0.1"): (75, 2_613),
    (100, "OFUL independent", ""): (1_376, 0),
    (1_000, "Async-LinUCB", "γ=5"): (651, 20_794),
    (1_000, "DisLinUCB", "match communication"): (1_029, 5_832),
    (1_000, "FedLinUCB", "α=1"): (501, 4_358),
    (1_000, "OFUL independent", ""): (10_238, 0),
}


def _rules(n_agents: int, n_rounds: int) -> list[tuple[str, str, Rule]]:
    communication = match_communication(dim=DIM, n_rounds=n_rounds)
    regret = match_regret(dim=DIM, n_agents=n_agents, n_rounds=n_rounds)
    plain = [fed(dim=DIM, beta=BETA, lam=LAM, alpha=alpha) for alpha in ALPHAS]
    helped = [fed(dim=DIM, beta=BETA, lam=LAM, alpha=alpha, options=True) for alpha in ALPHAS]
    pushed = [asynchronous(dim=DIM, beta=BETA, lam=LAM, gamma=gamma, enrolment="arrival") for gamma in GAMMAS]

    def waiting(D: float) -> Rule:
        return synchronous(dim=DIM, beta=BETA, lam=LAM, threshold=D, enrolment="arrival")

    return [
        *(("FedLinUCB", f"α={rule.alpha:g}", rule) for rule in plain),
        *(("FedLinUCB, join + arrival", f"α={rule.alpha:g}", rule) for rule in helped),
        *(("Async-LinUCB", f"γ={rule.gamma_up:g}", rule) for rule in pushed),
        ("DisLinUCB", "match communication", waiting(communication)),
        ("DisLinUCB", "match regret", waiting(regret)),
        ("OFUL independent", "", alone(dim=DIM, beta=BETA, lam=LAM)),
        ("OFUL shared", "", shared(dim=DIM, beta=BETA, lam=LAM)),
    ]


def plan(size: Size) -> list[Cell]:
    """Two fleets, every algorithm."""
    fleets = size.pick(
        tiny=((10, 600), (30, 900)), quick=((100, 10_000), (1_000, 50_000)), full=((100, 10_000), (1_000, 50_000))
    )
    seeds = {fleets[0]: size.seeds(quick=4, full=40), fleets[1]: size.seeds(quick=3, full=16)}
    return [
        Cell(
            {"M": n_agents, "system": system, "setting": setting},
            make_spec(rule, Articles(dim=DIM), n_agents=n_agents, n_rounds=n_rounds),
            seeds[n_agents, n_rounds],
        )
        for n_agents, n_rounds in fleets
        for system, setting, rule in _rules(n_agents, n_rounds)
    ]


def analyse(results: Results) -> StudyAnswer:
    """Regret against messages at the end, beside what others measured."""
    figure, axes = panels(1, 2, width=11, height=4.2)
    for axis, n_agents in zip(axes, results.each("M"), strict=True):
        _panel(axis, results, n_agents)
    axes[0].set_ylabel("regret at the end")
    legend(figure, {system: style_of(system) for system in results.each("system")}, n_columns=3)
    caption = (
        "Regret at the end against messages. Filled: ours, mean and 95 % interval. Hollow: measured by others with "
        "three seeds, where they did. Grey dashes: independent learners, who send nothing."
    )
    notes = [
        "d = 25, K = 25 of 1 000 articles, λ = 0.1, noise 0.1, Li and Wang's radius from the number of observations.",
        _beside(results),
        baseline_note([group.sharing_cost for group in results]),
        "Policies are refreshed at every download, as the articles state their algorithms; the servers of "
        "Async-LinUCB and DisLinUCB hear of an agent at its first round, as in the experiment whose numbers stand "
        "beside ours.",
    ]
    return StudyAnswer(_sentence(results), figure, caption, [_table(results)], notes)


def _panel(axis: Axes, results: Results, n_agents: int) -> None:
    for system in results.each("system", M=n_agents):
        groups = results.where(M=n_agents, system=system)
        look = style_of(system)
        if system == "OFUL independent":
            axis.axhline(groups[0].mean("regret").mean, color=look.colour, linestyle=look.line, linewidth=1.4)
            continue
        messages = [group.mean("messages").mean for group in groups]
        points(axis, messages, [group.mean("regret") for group in groups], look)
        for group, x in zip(groups, messages, strict=True):
            _name_point(axis, group, x)
    axis.set(title=f"M = {n_agents:,} agents, {results.where(M=n_agents)[0].spec.n_rounds:,} rounds", xlabel="messages")
    log_scale(axis, "x")
    log_scale(axis, "y")


def _name_point(axis: Axes, group: Group, x: float) -> None:
    look = style_of(group["system"])
    known = PUBLISHED.get((group["M"], group["system"], group["setting"]))
    if known is not None:
        axis.plot(known[1], known[0], marker=look.marker, mfc="none", mec=look.colour, ms=9, linestyle="none")
    if group["setting"] in ("α=4", "α=0.1", "γ=5", "γ=2") and "join" not in group["system"]:
        y = group.mean("regret").mean
        note(axis, group["setting"], x, y, look, shift=(6, 5))


def _table(results: Results) -> Table:
    rows = []
    for group in results:
        theirs = PUBLISHED.get((group["M"], group["system"], group["setting"]), (None, None))
        name = f"{group['system']} {group['setting']}".strip()
        ours = group.mean("regret"), group.mean("messages")
        rows.append([group["M"], name, ours[0], theirs[0], ours[1], theirs[1], group.mean("switches")])
    columns = ["M", "system", "regret", "others' regret", "messages", "others' messages", "switches"]
    return Table("Regret and communication at the end", columns, rows)


def _sentence(results: Results) -> str:
    parts = []
    for n_agents in results.each("M"):
        lonely = results.one(M=n_agents, system="OFUL independent")
        group = results.one(M=n_agents, system="FedLinUCB", setting="α=1")
        rivals = [g for g in results.where(M=n_agents) if g["system"] in ("Async-LinUCB", "DisLinUCB")]
        beaten = [f"{g['system']} {g['setting']}" for g in rivals if _dominates(group, g)]
        helped = results.one(M=n_agents, system="FedLinUCB, join + arrival", setting="α=1")
        ours, sent = group.mean("regret").mean, group.mean("messages").mean
        cut = says_change(ratio(group.at("regret"), lonely.at("regret")))
        parts.append(
            f"with {n_agents:,} agents the regret {cut} from {number(lonely.mean('regret').mean)} of independent "
            f"learners to {number(ours)} with {number(sent)} messages of FedLinUCB (α=1; two per decision would be "
            f"{number(group.sharing_cost.two_per_decision)}), shown to be better in both than "
            f"{', '.join(beaten) if beaten else 'no setting of its rivals'}; with join and arrival it is "
            f"{number(helped.mean('regret').mean)} with {number(helped.mean('messages').mean)}"
        )
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


def _beside(results: Results) -> str:
    """How far our numbers are from those that others measured."""
    gaps = []
    for group in results:
        theirs = PUBLISHED.get((group["M"], group["system"], group["setting"]))
        if theirs is not None:
            off = group.mean("regret").mean / theirs[0]
            gaps.append((abs(math.log(off)), off, f"{group['system']} {group['setting']}".strip(), group["M"]))
    if not gaps:
        return "Others measured fleets of other sizes."
    near = sum(gap < math.log(1.1) for gap, *_ in gaps)
    _, off, name, n_agents = max(gaps)
    return (
        f"Of {len(gaps)} mean regrets that others measured {near} are within 10 % of our means; farthest is {name} at "
        f"M = {n_agents:,}, where ours is {off:.2f} times theirs."
    )


def _dominates(ours: Group, theirs: Group) -> bool:
    """Whether the seeds show that ours has less regret and fewer messages."""
    gaps = (difference(ours.at(m), theirs.at(m)) for m in ("regret", "messages"))
    return all(side(gap, 0.0) == BELOW for gap in gaps)


STUDY = Study("articles", "How do all algorithms do in Li and Wang's world of articles?", plan, analyse)
