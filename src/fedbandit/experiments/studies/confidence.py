"""The four radii: coverage, the regret of each, and the limits of the exogenous one."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.core import radius
from fedbandit.experiments.baselines import fed
from fedbandit.experiments.claims import says_coverage
from fedbandit.experiments.compare import Interval, exponent, proportion, ratio
from fedbandit.experiments.output.figures import (
    INK,
    SERIES,
    SeriesStyle,
    band,
    label_ends,
    log_scale,
    note,
    panels,
    points,
)
from fedbandit.experiments.output.tables import Table, number, span
from fedbandit.experiments.results import Cell, Group, Results
from fedbandit.experiments.spec import make_spec
from fedbandit.experiments.study import Size, Study, StudyAnswer
from fedbandit.simulation.participation import Bursts, Even, Participation, Zipf
from fedbandit.simulation.worlds import Adversarial, Sphere, Uniform, World
from fedbandit.simulation.worlds.hypercube import Hypercube

NOISE, DELTA = 0.3, 0.01
RADII = ("fixed", "exogenous", "adaptive", "paper")
ALPHAS = ("1/M", "1/M²")
QUITTERS = ("nobody", "chance", "disappointment")


def make_radius(kind: str, n_agents: int, n_rounds: int) -> radius.AnyRadius:
    """One of the four radii for this fleet."""
    if kind == "fixed":
        return radius.fixed(0.5)
    if kind == "exogenous":
        return radius.exogenous(noise_scale=NOISE, delta=DELTA)
    if kind == "adaptive":
        return radius.adaptive(n_agents=n_agents, noise_scale=NOISE, delta=DELTA, n_rounds=n_rounds)
    return radius.paper(n_agents=n_agents, n_rounds=n_rounds, noise_scale=NOISE, delta=DELTA)


def plan(size: Size) -> list[Cell]:
    """Coverage of four radii; α = 1/M against 1/M² over growing fleets; the quitting fleet."""
    return [*_coverage_cells(size), *_alpha_cells(size), *_quitting_cells(size)]


def _coverage_cells(size: Size) -> list[Cell]:
    M, T, d = size.pick(tiny=(5, 400, 5), quick=(15, 1_000, 15), full=(15, 10_000, 15))
    cells = []
    for kind in RADII:
        for name, alpha in (("1", 1.0), ("1/M", 1 / M), ("1/M²", 1 / M**2)):
            rule = fed(dim=d, beta=make_radius(kind, M, T), alpha=alpha)
            driver = {"name": "coverage"}
            spec = make_spec(rule, Uniform(dim=d, noise=NOISE), n_agents=M, n_rounds=T, driver=driver)
            keys = {"part": "coverage", "radius": kind, "alpha": name}
            cells.append(Cell(keys, spec, size.seeds(quick=6, full=40, tiny=2)))
    return cells


def _places() -> dict[str, tuple[World, Participation]]:
    return {
        "sphere, even": (Sphere(dim=8, n_actions=20, noise=NOISE), Even()),
        "sphere, Zipf": (Sphere(dim=8, n_actions=20, noise=NOISE), Zipf()),
        "hypercube, even": (Hypercube(dim=5, gap=0.004, noise=NOISE), Even()),
        "adversarial, sessions": (Adversarial(dim=8, gap=0.2, phase=200, noise=NOISE), Bursts(length=50.0)),
    }


def _alpha_cells(size: Size) -> list[Cell]:
    fleets = size.pick(tiny=(2, 4), quick=(4, 16, 64), full=(4, 8, 16, 32, 64, 128))
    T = size.pick(tiny=1_000, quick=30_000, full=400_000)
    beta = radius.exogenous(noise_scale=NOISE, delta=DELTA)
    cells = []
    for place, (world, pattern) in _places().items():
        for M in fleets:
            for name, alpha in (("1/M", 1 / M), ("1/M²", 1 / M**2)):
                rule = fed(dim=world.dim, beta=beta, alpha=alpha)
                spec = make_spec(rule, world, n_agents=M, n_rounds=T, participation=pattern, record=[T])
                keys = {"part": "alpha", "place": place, "M": M, "alpha": name}
                cells.append(Cell(keys, spec, size.seeds(quick=3, full=10)))
    return cells


def _quitting_cells(size: Size) -> list[Cell]:
    d, T = 5, size.pick(tiny=3_000, quick=4_000, full=10_000)
    rule = FedLinUCB(dim=d, beta=radius.exogenous(noise_scale=NOISE, delta=DELTA), alpha=0.05, join=True)
    drivers: dict[str, dict[str, Any]] = {
        "nobody": {"why": "nobody"},
        "chance": {"why": "chance", "rate": 0.26},
        "disappointment": {"why": "disappointment", "shortfall": NOISE},
    }
    world = Uniform(dim=d, noise=NOISE)
    return [
        Cell(
            {"part": "churn", "who": who},
            make_spec(rule, world, n_agents=T, n_rounds=T, driver={"name": "churn", **drivers[who]}),
            size.seeds(quick=5, full=60, tiny=3),
        )
        for who in QUITTERS
    ]


def analyse(results: Results) -> StudyAnswer:
    """Coverage and cost; the two alphas over M; agents that leave."""
    figure, axes = panels(2, 2, width=11, height=3.4)
    _draw_coverage(axes[0], results)
    _draw_alpha(axes[1], results, "messages")
    _draw_quitting(axes[2], results)
    _draw_alpha(axes[3], results, "regret")
    tables = [_coverage_table(results), _alpha_table(results), _quitting_table(results)]
    caption = (
        "Top left: largest error of any model in a run, in radii (must stay below 1), against regret; a marker for "
        "each radius and α. Right: α = 1/M (solid) against the paper's 1/M² (dashed) under the exogenous radius. "
        "Bottom left: the largest error so far, when agents leave and their buffers are lost. Mean and 95 % "
        "intervals."
    )
    return StudyAnswer(_sentence(results), figure, caption, tables, _notes(results))


def _draw_coverage(axis: Axes, results: Results) -> None:
    for kind, look in zip(RADII, SERIES, strict=False):
        groups = results.where(part="coverage", radius=kind)
        x = [g.fact_mean("worst_error").mean for g in groups]
        y = [g.mean("regret") for g in groups]
        points(axis, x, y, look)
        note(axis, f"{kind}, α=1", x[0], y[0].mean, look, shift=(8, 2))
        if abs(math.log(x[-1] / x[0])) > 0.3:
            note(axis, "α=1/M²", x[-1], y[-1].mean, look, shift=(-8, -6), ha="right")
    axis.axvline(1.0, color=INK, linewidth=0.9)
    axis.margins(x=0.22)
    axis.set(title="Four radii: error and regret", ylabel="regret at the end")
    axis.set_xlabel("largest error ‖θ̂ − θ*‖ of a run in the norm of Σ, in radii")
    log_scale(axis, "x")
    log_scale(axis, "y")


def _draw_alpha(axis: Axes, results: Results, measure: str) -> None:
    ends = []
    for place, look in zip(results.each("place"), SERIES, strict=False):
        for alpha, style in zip(ALPHAS, ("-", "--"), strict=True):
            groups = results.where(part="alpha", place=place, alpha=alpha)
            drawn = SeriesStyle(look.colour, style, look.marker)
            points(axis, [g["M"] for g in groups], [g.mean(measure) for g in groups], drawn)
            if alpha == ALPHAS[0]:
                ends.append((place, groups[-1].mean(measure).mean, drawn))
    axis.set(title=f"{measure.capitalize()}: α = 1/M (solid), 1/M² (dashed)", xlabel="agents M", ylabel=measure)
    log_scale(axis, "x")
    log_scale(axis, "y")
    label_ends(axis, ends)


def _draw_quitting(axis: Axes, results: Results) -> None:
    ends = []
    for who, look in zip(QUITTERS, SERIES, strict=False):
        group = results.one(part="churn", who=who)
        means = band(axis, group.rounds, group.curve("worst_error").values(), look)
        ends.append((f"quits: {who}", float(means[-1]), look))
    axis.axhline(1.0, color=INK, linewidth=0.9)
    axis.set(title="The exogenous radius when agents quit", xlabel="round", ylabel="largest error so far, in radii")
    log_scale(axis, "x")
    label_ends(axis, ends)


def _covered(group: Group) -> Interval:
    return proportion([worst <= 1 for worst in group.fact("worst_error").values()])


def _coverage_table(results: Results) -> Table:
    rows = []
    for g in results.where(part="coverage"):
        held, worst = _covered(g), max(g.fact("worst_error").values())
        runs = f"{round(held.mean * held.n)} of {held.n}"
        rows.append(
            [g["radius"], g["alpha"], g.fact_mean("beta"), runs, f"{worst:.2f}", g.mean("regret"), g.mean("messages")]
        )
    columns = ["radius", "α", "β at the end", "runs covered", "worst error / β", "regret", "messages"]
    return Table("Four radii in the authors' world", columns, rows)


def _alpha_table(results: Results) -> Table:
    rows = []
    for place in results.each("place"):
        for M in results.each("M", place=place):
            ours, theirs = (results.one(part="alpha", place=place, M=M, alpha=a) for a in ALPHAS)
            regret, sent = (ratio(ours.at(m), theirs.at(m)) for m in ("regret", "messages"))
            both = [g.mean(m) for m in ("regret", "messages") for g in (ours, theirs)]
            rows.append([place, M, *both, span(regret), span(sent, 3)])
    columns = [
        "world",
        "M",
        "regret 1/M",
        "regret 1/M²",
        "messages 1/M",
        "messages 1/M²",
        "regret ratio",
        "messages ratio",
    ]
    return Table("α = 1/M against the paper's 1/M² under the exogenous radius", columns, rows)


def _quitting_table(results: Results) -> Table:
    rows = []
    for who in QUITTERS:
        g = results.one(part="churn", who=who)
        held = _covered(g)
        errors = f"{g.fact_mean('worst_error').mean:.2f} (at most {max(g.fact('worst_error').values()):.2f})"
        rows.append(
            [who, f"{round(held.mean * held.n)} of {held.n}", errors, g.fact_mean("uploads"), g.fact_mean("quitters")]
        )
    return Table("The quitting fleet", ["who quits", "runs covered", "largest error / β", "uploads", "quitters"], rows)


def _growth(results: Results, place: str, alpha: str, measure: str) -> Interval:
    groups = results.where(part="alpha", place=place, alpha=alpha)
    return exponent([g["M"] for g in groups], [g.at(measure) for g in groups])


def _sentence(results: Results) -> str:
    return " ".join([_says_coverage(results), _says_alpha(results), _says_quitting(results)])


def _says_coverage(results: Results) -> str:
    parts = []
    for kind in RADII:
        groups = results.where(part="coverage", radius=kind)
        held = sum(round(_covered(g).mean * len(g.runs)) for g in groups)
        costs = [g.mean("regret").mean for g in groups]
        span_text = f"{number(min(costs))} to {number(max(costs))}"
        parts.append(f"{kind} covered θ* in {held} of {sum(len(g.runs) for g in groups)} runs at regret {span_text}")
    return f"Over α from 1 to 1/M² the radius {'; '.join(parts)}."


def _says_alpha(results: Results) -> str:
    lines = []
    for place in results.each("place"):
        M = max(results.each("M", place=place))
        ours, theirs = (results.one(part="alpha", place=place, M=M, alpha=a) for a in ALPHAS)
        regret, sent = (ratio(ours.at(m), theirs.at(m)) for m in ("regret", "messages"))
        slopes = [span(_growth(results, place, a, "messages")) for a in ALPHAS]
        lines.append(
            f"{place}: messages grow as M to the {slopes[0]} against {slopes[1]}, and at M = {M} α = 1/M has "
            f"{span(regret)} times the regret with {span(sent)} times the messages"
        )
    return f"With the exogenous radius, {'; '.join(lines)}."


def _says_quitting(results: Results) -> str:
    held = {who: _covered(results.one(part="churn", who=who)) for who in QUITTERS}
    counts = {who: f"{round(h.mean * h.n)} of {h.n}" for who, h in held.items()}
    return (
        f"Where agents leave after a disappointing reward that radius "
        f"{says_coverage(held['disappointment'], 1 - DELTA)}: covered in {counts['disappointment']} runs, against "
        f"{counts['chance']} when as many leave by chance and {counts['nobody']} when none leaves."
    )


def _notes(results: Results) -> list[str]:
    spec = results.where(part="coverage")[0].spec
    return [
        f"Coverage: uniform world, d = {spec.dim}, M = {spec.n_agents}, T = {spec.n_rounds:,}, noise {NOISE}, δ = "
        f"{DELTA}. A run is covered if θ* is inside the ellipsoid of every model that any agent used.",
        "The claim for α = 1/M is ours, not the paper's: regret Õ(d√T + dM), messages O(dM log T). It would show as a "
        "growing ratio of regrets over M in the second table if it were wrong.",
        "Messages cannot exceed 2T, which bends the curves of α = 1/M² for large M.",
        "Quitting: agents come one after another, download on arrival and stay until they have exchanged once; the "
        f"disappointed leave when a reward is more than {NOISE} below their estimate, and never upload.",
    ]


STUDY = Study(
    "confidence", "Which confidence radius covers θ*, what does it cost, and when does it fail?", plan, analyse
)
