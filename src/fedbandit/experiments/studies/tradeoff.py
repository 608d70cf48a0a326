"""Regret against messages: the Pareto front of every system, in worlds easy and hard, for fleets small and large."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from fedbandit.algorithms.base import Rule
from fedbandit.core import radius
from fedbandit.experiments.baselines import alone, asynchronous, fed, shared, synchronous
from fedbandit.experiments.claims import ABOVE, BELOW, UNDECIDED, side
from fedbandit.experiments.compare import Interval, log_interval
from fedbandit.experiments.output.figures import LOOKS, legend, line, log_scale, panels, style_of
from fedbandit.experiments.output.tables import Table, number, span
from fedbandit.experiments.results import Cell, Group, Results
from fedbandit.experiments.sharing_cost import baseline_note
from fedbandit.experiments.spec import make_spec
from fedbandit.experiments.study import Size, Study, StudyAnswer
from fedbandit.simulation.participation import Even, Participation, Zipf
from fedbandit.simulation.worlds import Articles, Uniform, World

PLAIN, HELPED, SPECTRAL = "FedLinUCB", "FedLinUCB, join + arrival", "FedLinUCB, spectral"
FAMILIES = (PLAIN, HELPED, SPECTRAL, "Async-LinUCB", "DisLinUCB")
PATTERNS: dict[str, Participation] = {"even": Even(), "Zipf": Zipf()}
NOISES = {"uniform": {"low": 0.1, "high": 1.0}, "articles": {"low": 0.1, "high": 1.0}}


def _world(name: str, noise: float) -> World:
    return Uniform(dim=15, noise=noise) if name == "uniform" else Articles(dim=25, noise=noise)


def _rules(world: World, noise: float, n_agents: int, n_rounds: int, size: Size) -> list[tuple[str, float, Rule]]:
    d, lam = world.dim, 0.1 if world.dim == 25 else 1.0
    beta = radius.counted(noise_scale=noise, delta=0.1) if d == 25 else radius.fixed(0.5 * max(1.0, noise / 0.3))
    alphas = size.pick(
        tiny=(10.0, 0.1), quick=(30.0, 3.0, 0.3, 0.03), full=(100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
    )
    gammas = size.pick(tiny=(4.0,), quick=(20.0, 4.0, 2.0), full=(100.0, 20.0, 6.0, 3.0, 1.7, 1.2))
    shares = size.pick(tiny=(1.0,), quick=(1.0, 0.1, 0.01), full=(3.0, 1.0, 0.3, 0.1, 0.03, 0.01))
    middle = n_rounds / (d * math.log(n_rounds))  # D that is said to match communication
    spectral = [a for a in alphas if a <= 10][:: size.pick(tiny=1, quick=1, full=2)]
    return [
        *((PLAIN, a, fed(dim=d, beta=beta, lam=lam, alpha=a)) for a in alphas),
        *((HELPED, a, fed(dim=d, beta=beta, lam=lam, alpha=a, options=True)) for a in alphas),
        *((SPECTRAL, a, fed(dim=d, beta=beta, lam=lam, alpha=a, spectral=True)) for a in spectral),
        *(("Async-LinUCB", g, asynchronous(dim=d, beta=beta, lam=lam, gamma=g)) for g in gammas),
        *(("DisLinUCB", s, synchronous(dim=d, beta=beta, lam=lam, threshold=s * middle)) for s in shares),
        ("OFUL independent", 0.0, alone(dim=d, beta=beta, lam=lam)),
        ("OFUL shared", 0.0, shared(dim=d, beta=beta, lam=lam)),
    ]


def plan(size: Size) -> list[Cell]:
    """Worlds × fleets × participation × noise, and every system over its knob."""
    fleets = size.pick(
        tiny={4: 400}, quick={15: 4_000, 100: 6_000, 1_000: 8_000}, full={15: 15_000, 100: 20_000, 1_000: 50_000}
    )
    cells = []
    for name, noises in NOISES.items():
        for n_agents, n_rounds in fleets.items():
            for pattern, participation in PATTERNS.items():
                for level, noise in noises.items():
                    world = _world(name, noise)
                    keys = {"world": name, "M": n_agents, "participation": pattern, "noise": level}
                    for family, knob, rule in _rules(world, noise, n_agents, n_rounds, size):
                        spec = make_spec(
                            rule,
                            world,
                            n_agents=n_agents,
                            n_rounds=n_rounds,
                            participation=participation,
                            record=[n_rounds],
                        )
                        cells.append(Cell({**keys, "system": family, "knob": knob}, spec, size.seeds(quick=2, full=5)))
    return cells


def analyse(results: Results) -> StudyAnswer:
    """One panel for each place; where the options help at equal messages, and where they do not."""
    places = _places(results)
    columns = 4
    figure, axes = panels(math.ceil(len(places) / columns), columns, width=13, height=2.6)
    gains = []
    for axis, place in zip(axes, places, strict=False):
        _panel(axis, results, place)
        gains.append((place, gain(results, place, HELPED), gain(results, place, SPECTRAL)))
    for i, axis in enumerate(axes):
        if i % columns == 0:
            axis.set_ylabel("regret")
        if i >= len(places) - columns:
            axis.set_xlabel("messages")
        if i >= len(places):
            axis.set_axis_off()
    legend(figure, {name: LOOKS[name] for name in (*FAMILIES, "OFUL shared", "OFUL independent")}, n_columns=4)
    caption = (
        "Regret at the end against messages, both logarithmic, one point for each setting of a system's knob (mean "
        "over seeds). Lower left is better. Grey line: independent learners; black line: everything shared."
    )
    sentence = f"{_sentence(gains)} {_says_front(results, places)}"
    notes = [*_notes(), baseline_note([group.sharing_cost for group in results])]
    return StudyAnswer(sentence, figure, caption, [_gain_table(gains), _front_table(results, places)], notes)


Place = dict[str, object]


def _places(results: Results) -> list[Place]:
    names = ("world", "M", "participation", "noise")
    return [dict(zip(names, key, strict=True)) for key in dict.fromkeys(tuple(g[n] for n in names) for g in results)]


def _title(place: Place) -> str:
    return f"{place['world']}, M={place['M']}, {place['participation']}, {place['noise']} noise"


def _panel(axis: Axes, results: Results, place: Place) -> None:
    for family in FAMILIES:
        groups = results.where(**place, system=family)
        xy = sorted((g.mean("messages").mean, g.mean("regret").mean) for g in groups)
        kept = [(x, y) for x, y in xy if x > 0]
        line(axis, [x for x, _ in kept], [y for _, y in kept], style_of(family), markersize=4, linewidth=1.3)
    for name in ("OFUL independent", "OFUL shared"):
        look = style_of(name)
        level = results.one(**place, system=name).mean("regret").mean
        axis.axhline(level, color=look.colour, linestyle=look.line, linewidth=1.1)
    axis.set_title(_title(place), fontsize=8)
    axis.tick_params(labelsize=7.5)
    log_scale(axis, "x")
    log_scale(axis, "y")


def gain(results: Results, place: Place, family: str) -> Interval | None:
    """Regret of a family relative to plain FedLinUCB at equal messages: geometric mean over its points, by seed.

    Plain FedLinUCB's regret at a number of messages is read off its own curve, straight between its points in
    logarithms; points outside of that curve are left out. None if no point can be compared.
    """
    plain, other = results.where(**place, system=PLAIN), results.where(**place, system=family)
    seeds = sorted(set.intersection(*(set(g.runs) for g in [*plain, *other])))
    values = [v for v in (_log_gain(plain, other, seed) for seed in seeds) if v is not None]
    return log_interval(np.exp(values)) if values else None


def _log_gain(plain: Sequence[Group], other: Sequence[Group], seed: int) -> float | None:
    curve = sorted(
        (math.log(g.at("messages")[seed]), math.log(g.at("regret")[seed])) for g in plain if g.at("messages")[seed] > 0
    )
    x, y = np.array([p[0] for p in curve]), np.array([p[1] for p in curve])
    gaps = []
    for g in other:
        sent, regret = g.at("messages")[seed], g.at("regret")[seed]
        if len(x) > 1 and sent > 0 and x[0] <= math.log(sent) <= x[-1]:
            gaps.append(math.log(regret) - float(np.interp(math.log(sent), x, y)))
    return float(np.mean(gaps)) if gaps else None


Gain = tuple[Place, Interval | None, Interval | None]


def _gain_table(gains: Sequence[Gain]) -> Table:
    def cell(value: Interval | None) -> str:
        return "–" if value is None else span(value)

    def verdict(value: Interval | None) -> str:
        if value is None or not math.isfinite(value.half):
            return "–"
        return {BELOW: "helps", ABOVE: "hurts", UNDECIDED: "no clear gain"}[side(value, 1.0)]

    rows = [[*place.values(), cell(a), verdict(a), cell(b), verdict(b)] for place, a, b in gains]
    columns = ["world", "M", "participation", "noise", "join + arrival", "it", "spectral", "it"]
    return Table("Regret relative to plain FedLinUCB at equal messages (geometric mean along the curve)", columns, rows)


def _front(results: Results, place: Place) -> dict[str, tuple[int, int]]:
    """Of each family: its points that no other beats in both regret and messages, and all its points."""
    groups = [g for g in results.where(**place) if g["system"] in FAMILIES]
    values = {id(g): (g.mean("messages").mean, g.mean("regret").mean) for g in groups}
    front = [g for g in groups if not any(_beats(values[id(h)], values[id(g)]) for h in groups)]
    return {f: (sum(g["system"] == f for g in front), sum(g["system"] == f for g in groups)) for f in FAMILIES}


def _says_front(results: Results, places: Sequence[Place]) -> str:
    counts = [_front(results, place) for place in places]
    held = {family: sum(count[family][0] for count in counts) for family in FAMILIES}
    every = {family: sum(count[family][1] for count in counts) for family in FAMILIES}
    parts = [f"{held[f]} of {every[f]} of {f}" for f in sorted(FAMILIES, key=lambda f: -held[f] / max(every[f], 1))]
    return f"On the Pareto fronts of the means lie {', '.join(parts)}."


def _front_table(results: Results, places: Sequence[Place]) -> Table:
    """The systems that nobody beats in both regret and messages."""
    rows = [[*place.values(), *(f"{n} of {m}" for n, m in _front(results, place).values())] for place in places]
    return Table("Points on the Pareto front", ["world", "M", "participation", "noise", *FAMILIES], rows)


def _beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] <= b[0] and a[1] <= b[1] and a != b


def _sentence(gains: Sequence[Gain]) -> str:
    known = [(place, value) for place, value, _ in gains if value is not None and math.isfinite(value.half)]
    if not known:
        return "The curves do not overlap enough to compare them at equal messages."
    helps, others, hurts = ([(p, v) for p, v in known if side(v, 1.0) == which] for which in (BELOW, UNDECIDED, ABOVE))
    best = min(known, key=lambda item: item[1].mean)
    text = (
        f"At equal messages join and arrival help FedLinUCB in {len(helps)} of {len(known)} places, most in "
        f"{_title(best[0])} (regret times {span(best[1])})"
    )
    if hurts:
        text += f"; they hurt in {len(hurts)}, " + "; ".join(f"{_title(p)} ({span(v)})" for p, v in hurts[:4])
    if others:
        worst = sorted(others, key=lambda item: -item[1].mean)
        named = "; ".join(f"{_title(p)} ({span(v)})" for p, v in worst[:4])
        text += f"; undecided in {len(others)}, with the largest means in {named}"
    spectral = [b for _, _, b in gains if b is not None and math.isfinite(b.half)]
    saved = sum(side(v, 1.0) == BELOW for v in spectral)
    return f"{text}. The spectral trigger helps in {number(saved)} of {len(spectral)}."


def _notes() -> list[str]:
    return [
        "Uniform: d = 15, β = 0.5 (1.67 at high noise), λ = 1. Articles: d = 25, Li and Wang's radius, λ = 0.1. "
        "Noise 0.1 and 1.",
        "FedLinUCB over α, Async-LinUCB over γ, DisLinUCB over D as multiples of T/(d log T).",
        "The servers of Async-LinUCB and DisLinUCB know the whole fleet from the start, so that a newcomer may have a "
        "model before it first acts; FedLinUCB has that only with join.",
        "DisLinUCB is shown at its best here: everybody can be polled at any moment (see the study of asynchrony).",
        "Two curves that both use a fixed radius compare communication schemes, not guarantees.",
    ]


STUDY = Study("tradeoff", "What does a message buy, and where do the options beyond the paper pay?", plan, analyse)
