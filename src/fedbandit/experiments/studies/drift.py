"""A world that changes: learning on as if nothing had happened, detecting and restarting, discounting."""

from __future__ import annotations

import math

from matplotlib.axes import Axes

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.core import drift
from fedbandit.experiments.compare import Interval
from fedbandit.experiments.output.figures import SERIES, band, label_ends, log_scale, panels, points
from fedbandit.experiments.output.tables import Table, number
from fedbandit.experiments.results import Cell, Group, Results
from fedbandit.experiments.spec import make_spec
from fedbandit.experiments.study import Size, Study, StudyAnswer
from fedbandit.simulation.worlds import AbruptChange, RepeatedChanges, SlowChange, SmallChange, Uniform, World

DIM, ALPHA, BETA, NOISE, HORIZON = 15, 1.0, 0.5, 0.3, 3_000.0
NOTHING, DISCOUNT = "as if nothing changed", "discount H=3000"
ABRUPT, NO_CHANGE = "abrupt", "none"


def _restart(silence: int) -> str:
    return f"restart, silence {silence}"


def make_rule(system: str) -> FedLinUCB:
    """The rule of a system of this study."""
    silence, change = math.inf, drift.as_drift(None)
    if system == DISCOUNT:
        change = drift.discount(horizon=HORIZON)
    elif system != NOTHING:
        silence, change = float(system.rpartition(" ")[2]), drift.restart(noise_scale=NOISE)
    return FedLinUCB(dim=DIM, alpha=ALPHA, beta=BETA, max_silence=silence, drift=change)


def worlds(n_rounds: int) -> dict[str, World]:
    """The worlds by the kind of their change."""
    half = n_rounds // 2
    return {
        ABRUPT: AbruptChange(dim=DIM, noise=NOISE, at=half),
        "small": SmallChange(dim=DIM, noise=NOISE, at=half),
        "slow": SlowChange(dim=DIM, noise=NOISE, quarter=half),
        "repeated": RepeatedChanges(dim=DIM, noise=NOISE, every=n_rounds // 6),
        NO_CHANGE: Uniform(dim=DIM, noise=NOISE),
    }


def plan(size: Size) -> list[Cell]:
    """Every system in every world with a small fleet; a large fleet where the change is abrupt; half a run."""
    T = size.pick(tiny=1_200, quick=60_000, full=60_000)
    fleets = size.pick(tiny=(5,), quick=(15, 100), full=(15, 100))
    seeds = size.seeds(quick=3, full=5)
    cells = []
    for M in fleets:
        systems = [NOTHING, _restart(200), _restart(50), DISCOUNT] if M < 100 else [NOTHING, _restart(15), DISCOUNT]
        for change, world in worlds(T).items():
            if M < 100 or change in (ABRUPT, NO_CHANGE):
                for system in systems:
                    spec = make_spec(make_rule(system), world, n_agents=M, n_rounds=T)
                    cells.append(Cell({"part": "runs", "M": M, "change": change, "system": system}, spec, seeds))
        half = make_spec(make_rule(NOTHING), worlds(T)[NO_CHANGE], n_agents=M, n_rounds=T // 2)
        cells.append(Cell({"part": "half", "M": M}, half, seeds))
    return cells


def analyse(results: Results) -> StudyAnswer:
    """Regret over time where the change is abrupt, and the regret of every world."""
    figure, axes = panels(1, 2, width=11, height=3.8)
    M = results.each("M", part="runs")[0]
    _draw_rounds(axes[0], results, M)
    _draw_worlds(axes[1], results, M)
    caption = (
        f"M = {M}. Left: half of the signs of θ* flip in the middle of the run; mean and 95 % interval. "
        f"Right: regret at the end by the kind of change."
    )
    return StudyAnswer(_sentence(results, M), figure, caption, [_table(results)], _notes(results))


def _draw_rounds(axis: Axes, results: Results, M: int) -> None:
    labels = []
    for system, look in zip(results.each("system", part="runs", M=M), SERIES, strict=False):
        group = results.one(part="runs", M=M, change=ABRUPT, system=system)
        mean = band(axis, group.rounds, group.curve("regret").values(), look)
        labels.append((system, float(mean[-1]), look))
    axis.set(title="An abrupt change in the middle", xlabel="round", ylabel="regret")
    log_scale(axis, "y")
    label_ends(axis, labels)


def _draw_worlds(axis: Axes, results: Results, M: int) -> None:
    changes = results.each("change", part="runs", M=M)
    labels = []
    for system, look in zip(results.each("system", part="runs", M=M), SERIES, strict=False):
        spans = [results.one(part="runs", M=M, change=change, system=system).mean("regret") for change in changes]
        points(axis, range(len(changes)), spans, look, join=False)
        labels.append((system, spans[-1].mean, look))
    axis.set(title="Regret by the kind of change", xlabel="change", ylabel="regret at the end")
    log_scale(axis, "y")
    axis.set_xticks(range(len(changes)), changes)
    label_ends(axis, labels)


def _oracle(half: Group) -> tuple[Interval, Interval]:
    """A restart in the very round of the change: two runs of half the length, each from the prior."""
    return tuple(_twice(half.mean(name)) for name in ("regret", "messages"))  # type: ignore[return-value]


def _twice(one: Interval) -> Interval:
    return Interval(2.0 * one.mean, 2.0 * one.low, 2.0 * one.high, one.n)


def _table(results: Results) -> Table:
    rows: list[list[object]] = []
    for group in results.where(part="runs"):
        rows.append([group["M"], group["change"], group["system"], group.mean("regret"), group.mean("messages")])
        if group["change"] == ABRUPT and group["system"] == NOTHING:
            oracle = _oracle(results.one(part="half", M=group["M"]))
            rows.append([group["M"], ABRUPT, "restart at the right moment", *oracle])
    return Table("Regret and messages by the kind of change", ["M", "change", "system", "regret", "messages"], rows)


def _sentence(results: Results, M: int) -> str:
    def mean(system: str, change: str = ABRUPT, measure: str = "regret") -> float:
        return results.one(part="runs", M=M, change=change, system=system).mean(measure).mean

    restart = results.each("system", part="runs", M=M)[1]
    oracle = _oracle(results.one(part="half", M=M))[0].mean
    nothing = [number(mean(name, NO_CHANGE)) for name in (restart, NOTHING)]
    return (
        f"After an abrupt change, learning on {NOTHING} costs a regret of {number(mean(NOTHING))}, detection "
        f"({restart}) {number(mean(restart))} with {number(mean(restart, measure='messages'))} messages, discounting "
        f"{number(mean(DISCOUNT))}, and a restart at the right moment {number(oracle)}. Where nothing changes, "
        f"detection has {' against '.join(nothing)} without; where θ* turns slowly, discounting has "
        f"{number(mean(DISCOUNT, 'slow'))} and detection {number(mean(restart, 'slow'))}."
    )


def _notes(results: Results) -> list[str]:
    spec = results.groups[0].spec
    return [
        f"Actions of the uniform world, d = {DIM}, T = {spec.n_rounds:,}, α = {ALPHA:g}, β = {BETA}, noise {NOISE}.",
        "Silence is the most own rounds of an agent without an exchange. Tests know the noise scale.",
        "A restart at the right moment is twice a run of half the length, messages likewise.",
    ]


STUDY = Study("drift", "What does a fleet lose when the world changes?", plan, analyse)
