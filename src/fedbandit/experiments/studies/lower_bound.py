"""Theorem 2: with fewer than about M/log(T/M) messages no algorithm beats independent learners; Min et al. ask dM."""

from __future__ import annotations

import math

from fedbandit.algorithms.base import Rule
from fedbandit.core.theory import lower_bound_messages, min_lower_bound_messages
from fedbandit.experiments.baselines import alone, asynchronous, fed, shared, synchronous
from fedbandit.experiments.claims import BELOW, says_few, side
from fedbandit.experiments.compare import Interval, ratio
from fedbandit.experiments.output.figures import (
    INK,
    SERIES,
    SeriesStyle,
    label_ends,
    log_scale,
    panels,
    points,
    style_of,
)
from fedbandit.experiments.output.tables import Table, number, span
from fedbandit.experiments.results import Cell, Results
from fedbandit.experiments.sharing_cost import baseline_note
from fedbandit.experiments.spec import SIMULATE, make_spec
from fedbandit.experiments.study import Size, Study, StudyAnswer
from fedbandit.simulation.worlds.hypercube import Hypercube

DIM, BETA = 5, 1.0
PART = "some share, the rest alone"
ALONE = "OFUL independent"
REDUCED = "FedLinUCB, isolated"
SILENT = 0.005  # where settings without a message are drawn
QUICK_SHARES = (3.0, 2.0, 1.5, 1.2, 1.0, 0.7, 0.1, 1e-3, 1e-5, 1e-7)
FULL_SHARES = (3.0, 2.0, 1.5, 1.3, 1.2, 1.1, 1.0, 0.8, 0.5, 0.2, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)


def _looks() -> dict[str, SeriesStyle]:
    return {
        PART: SERIES[4],
        REDUCED: SERIES[3],
        **{name: style_of(name) for name in ("FedLinUCB", "Async-LinUCB", "DisLinUCB", "OFUL shared")},
    }


def plan(size: Size) -> list[Cell]:
    """The hard instance for agents that have T/M rounds each, and every way to send few messages."""
    n_agents, own = size.pick(tiny=(16, 60), quick=(256, 150), full=(256, 500))
    n_rounds = n_agents * own
    world = Hypercube(dim=DIM, gap=math.sqrt(DIM / own))
    most = (1 + own / DIM) ** DIM  # how far an agent's own data can raise the determinant: few exceed it
    shares = size.pick(tiny=(1.0, 1e-3), quick=QUICK_SHARES, full=FULL_SHARES)
    few = size.pick(tiny=(1e-3,), quick=(1.0, 1e-3), full=(0.8, 1e-4))
    waits = size.pick(tiny=(0.1,), quick=(1.0, 0.6, 0.1, 0.01), full=(1.1, 1.0, 0.8, 0.5, 0.2, 0.1, 0.03, 0.01))
    parts = size.pick(tiny=(4,), quick=(128, 64, 32, 8, 2), full=(128, 64, 32, 16, 8, 4, 2, 1))
    reduction: dict[str, object] = {"name": "reduction"}
    some = fed(dim=DIM, beta=BETA, alpha=30.0, options=True)
    rules: list[tuple[str, float, Rule, dict[str, object]]] = [
        (ALONE, 0.0, alone(dim=DIM, beta=BETA), dict(SIMULATE)),
        ("OFUL shared", 0.0, shared(dim=DIM, beta=BETA), dict(SIMULATE)),
        *(("FedLinUCB", s, fed(dim=DIM, beta=BETA, alpha=s * most), dict(SIMULATE)) for s in shares),
        *(("Async-LinUCB", s, asynchronous(dim=DIM, beta=BETA, gamma=1 + s * most), dict(SIMULATE)) for s in shares),
        *(("DisLinUCB", w, _waiting(w, own, most), dict(SIMULATE)) for w in waits),
        *((REDUCED, s, fed(dim=DIM, beta=BETA, alpha=s * most), {**reduction}) for s in few),
        *((PART, 1 / p, some, {"name": "partial-federation", "members": n_agents // p}) for p in parts),
    ]
    seeds = size.seeds(quick=3, full=12, tiny=3)
    return [
        Cell(
            {"system": system, "knob": knob},
            make_spec(rule, world, n_agents=n_agents, n_rounds=n_rounds, record=[n_rounds], driver=driver),
            seeds,
        )
        for system, knob, rule, driver in rules
    ]


def _waiting(share: float, own: int, most: float) -> Rule:
    return synchronous(dim=DIM, beta=BETA, threshold=share * own * math.log(most))


def _dimensions(results: Results) -> float:
    """dM, the order of messages of Min et al. (2023), in units of M/log(T/M)."""
    spec = results.groups[0].spec
    unit = lower_bound_messages(n_agents=spec.n_agents, n_rounds=spec.n_rounds)
    return min_lower_bound_messages(dim=DIM, n_agents=spec.n_agents) / unit


def _relative(results: Results) -> dict[str, list[tuple[float, Interval]]]:
    """Of every system: messages in units of M/log(T/M), and regret relative to independent learners."""
    base = results.one(system=ALONE)
    unit = lower_bound_messages(n_agents=base.spec.n_agents, n_rounds=base.spec.n_rounds)
    found: dict[str, list[tuple[float, Interval]]] = {}
    for group in results:
        sent = group.mean("messages").mean / unit
        if group["system"] != ALONE:
            found.setdefault(group["system"], []).append((sent, ratio(group.at("regret"), base.at("regret"))))
    return {system: sorted(values, key=lambda v: v[0]) for system, values in found.items()}


def analyse(results: Results) -> StudyAnswer:
    """Relative regret over messages in units of the bound."""
    relative = _relative(results)
    figure, (axis,) = panels(1, 1, width=9, height=4.4)
    looks = _looks()
    ends = []
    for system, values in relative.items():
        if system == "OFUL shared":
            axis.axhline(values[0][1].mean, color=looks[system].colour, linestyle=looks[system].line, linewidth=1.2)
            ends.append((system, values[0][1].mean, looks[system]))
            continue
        silent, shown = [r for x, r in values if x == 0], [(x, r) for x, r in values if x > 0]
        points(axis, [SILENT] * len(silent), silent, looks[system], join=False)
        points(axis, [x for x, _ in shown], [r for _, r in shown], looks[system])
        ends.append((system, shown[-1][1].mean, looks[system]))
    axis.axhline(1.0, color=INK, linewidth=1.0)
    marks = ((1.0, "M / log(T/M) messages", "left"), (_dimensions(results), "dM messages", "right"))
    for at, words, ha in marks:
        axis.axvline(at, color=INK, linewidth=1.0, linestyle=":")
        axis.annotate(
            words,
            (at, 0.15),
            xycoords=("data", "axes fraction"),
            xytext=(4 if ha == "left" else -4, 0),
            ha=ha,
            textcoords="offset points",
            fontsize=8.5,
        )
    axis.annotate(
        "independent learners",
        (0.01, 1.0),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        fontsize=8.5,
    )
    axis.set(
        xlabel="messages, in units of M / log(T/M)  (far left: none at all)",
        ylabel="regret / regret of independent learners",
    )
    log_scale(axis, "x")
    log_scale(axis, "y")
    label_ends(axis, ends)
    spec = results.groups[0].spec
    caption = (
        f"Hypercube of d = {DIM}, noise 1, gap √(dM/T), M = {spec.n_agents}, T = {spec.n_rounds:,}: the instance on "
        "which one agent cannot learn the signs alone. Paired ratios, 95 % intervals."
    )
    notes = [*_notes(), baseline_note([group.sharing_cost for group in results])]
    return StudyAnswer(_sentence(results, relative), figure, caption, [_table(results, relative)], notes)


def _table(results: Results, relative: dict[str, list[tuple[float, Interval]]]) -> Table:
    rows = [[system, f"{x:.2f}", span(r)] for system, values in relative.items() for x, r in values]
    del results
    return Table(
        "Regret relative to independent learners", ["system", "messages / (M/log(T/M))", "relative regret"], rows
    )


def _sentence(results: Results, relative: dict[str, list[tuple[float, Interval]]]) -> str:
    spec = results.groups[0].spec
    unit = lower_bound_messages(n_agents=spec.n_agents, n_rounds=spec.n_rounds)
    every = [(x, r, system) for system, values in relative.items() for x, r in values if system != REDUCED]
    few = [r for x, r, _ in every if 0 < x < 1]
    half = min(((x, system) for x, r, system in every if side(r, 0.5) == BELOW), default=None)
    text = f"M/log(T/M) is {number(unit)} messages here. "
    text += f"Below it {says_few(few)}. " if few else "No setting tried sends fewer messages, but more than none. "
    if half is None:
        text += "No setting tried is shown to halve the regret. "
    else:
        text += f"The cheapest setting shown to halve the regret sends {half[0]:.1f} times as many ({half[1]}). "
    isolated = [r for _, r in relative[REDUCED]]
    n_better = sum(side(r, 1.0) == BELOW for r in isolated)
    return text + (
        f"dM, the order of Min et al., is {_dimensions(results):.1f} times as many. Isolated after their first "
        f"message, as in the proof, agents are better than independent learners in {n_better} of {len(isolated)} "
        "settings."
    )


def _notes() -> list[str]:
    return [
        "The theorem leaves its constant open; it states that the regret stays of the order of independent learners' "
        "below.",
        "“Some share” lets a part of the fleet run FedLinUCB with join and arrival while the others learn alone: the "
        "best use of few messages found here, and still linear in the share of agents that communicate.",
        "“Isolated” is the construction in the proof of Theorem 2: an agent runs FedLinUCB until it would first "
        "communicate, then OFUL from an empty state. Its messages are those that would have been sent.",
        "Min et al. (2023) state their order for linear Markov decision processes; docs/theory.md says what follows "
        "for bandits and what does not.",
        "Few messages by a large α leave FedLinUCB's lazy agents on old models, so it is then worse than learning "
        "alone.",
    ]


STUDY = Study("lower_bound", "Can any system beat independent learners with very few messages?", plan, analyse)
