"""The intermediate statements of the paper's proofs, measured in every round, beside printed and corrected bounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedbandit.core import radius, theory
from fedbandit.core.arrays import Vector
from fedbandit.experiments.baselines import fed
from fedbandit.experiments.drivers.lemmas import known_at_decision
from fedbandit.experiments.output.figures import BLUE, FAINT, INK, SERIES, SeriesStyle, line, log_scale, panels
from fedbandit.experiments.output.tables import Table, number
from fedbandit.experiments.results import Cell, Group, Results
from fedbandit.experiments.spec import make_spec
from fedbandit.experiments.study import Size, Study, StudyAnswer
from fedbandit.simulation.worlds import Adversarial, Sphere

NOISE, DELTA, LAM, S, L = 0.3, 0.05, 1.0, 1.0, 1.0
ALPHAS = ("1/M²", "1/M", "1")
SHOWN = "1/M"
SHORT = 80  # rounds of the trace whose knowledge is drawn
PRINTED, CORRECTED = SeriesStyle("#d55e00", (0, (4, 2)), ""), SeriesStyle(INK, (0, (1, 1)), "")


def plan(size: Size) -> list[Cell]:
    """Three trigger levels on the unit sphere, a short trace to draw, and the example that breaks the message bound."""
    M, T, d = size.pick(tiny=(4, 250, 3), quick=(10, 2_000, 5), full=(10, 10_000, 5))
    seeds = size.seeds(quick=4, full=10, tiny=2)
    measured: dict[str, Any] = {"record": "all", "driver": {"name": "lemmas"}}
    world = Sphere(dim=d, n_actions=20, noise=NOISE)
    beta = radius.adaptive(n_agents=M, noise_scale=NOISE, delta=DELTA, n_rounds=T)
    cells = [
        Cell(
            {"part": "statements", "alpha": name},
            make_spec(fed(dim=d, beta=beta, alpha=alpha, lam=LAM), world, n_agents=M, n_rounds=T, **measured),
            seeds,
        )
        for name, alpha in zip(ALPHAS, (1 / M**2, 1 / M, 1.0), strict=True)
    ]
    short = fed(dim=3, beta=0.5, alpha=0.5, lam=LAM)
    small = Sphere(dim=3, n_actions=10, noise=NOISE)
    cells.append(Cell({"part": "knowledge"}, make_spec(short, small, n_agents=5, n_rounds=SHORT, **measured), (0,)))
    rounds = size.pick(tiny=20_000, quick=200_000, full=200_000)
    in_turn = Adversarial(dim=2, n_actions=2, phase=1, noise=NOISE)
    one = fed(dim=2, beta=0.5, alpha=0.1, lam=LAM)
    cells.append(Cell({"part": "two lines"}, make_spec(one, in_turn, n_agents=1, n_rounds=rounds), (0,)))
    return cells


def _sizes(group: Group) -> dict[str, Any]:
    spec = group.spec
    return {"dim": spec.dim, "n_rounds": spec.n_rounds, "lam": LAM, "action_bound": L}


def _noise(group: Group) -> dict[str, Any]:
    return {**_sizes(group), "noise_scale": NOISE, "delta": DELTA}


def _alpha(group: Group) -> float:
    return float(group.spec.rule["alpha"])


def _per_epoch(group: Group) -> list[Vector]:
    """Messages in each epoch of det Σ_ser, one array per seed; an exchange belongs to the epoch that it ends in."""
    found = []
    for seed, epochs in group.curve("epoch").items():
        sent = np.diff(group.curve("messages")[seed], prepend=0.0)
        found.append(np.bincount(epochs.astype(np.int64), weights=sent).astype(np.float64))
    return found


def _largest(group: Group, measure: str) -> float:
    return float(max(curve.max() for curve in group.curve(measure).values()))


def _regret_ratio(group: Group) -> list[Vector]:
    """Regret of each round in units of 2β‖x‖, one array per seed."""
    regret, beta, width = group.curve("regret"), group.curve("beta"), group.curve("width")
    return [np.diff(regret[s], prepend=0.0) / (2 * beta[s] * width[s]) for s in regret]


Row = tuple[str, float, float | None, float]  # statement, largest measured, printed bound, corrected bound


def _statements(group: Group) -> list[Row]:
    """Each statement with its largest value in any run and its bounds; None where the paper's bound is right."""
    M, alpha = group.spec.n_agents, _alpha(group)
    sizes, noise = _sizes(group), _noise(group)
    local = {**noise, "alpha": alpha}
    sent = {**sizes, "n_agents": M, "alpha": alpha}
    return [
        (
            "messages in an epoch",
            max(float(e.max()) for e in _per_epoch(group)),
            None,
            theory.messages_per_epoch(n_agents=M, alpha=alpha),
        ),
        ("epochs", _largest(group, "epoch") + 1, _printed_epochs(group), theory.max_epochs(**sizes)),
        ("messages", _largest(group, "messages"), theory.printed_message_bound(**sent), theory.message_bound(**sent)),
        ("λ_max(Σ_ser⁻¹ Σ_loc)", _largest(group, "buffer"), None, alpha),
        ("λ_max(Σ_ser⁻¹ Σ_all)", _largest(group, "covariance"), None, 1 + M * alpha),
        (
            "noise in a buffer",
            _largest(group, "buffer_noise"),
            theory.printed_buffer_noise_bound(**local, theta_bound=S),
            theory.buffer_noise_bound(**local),
        ),
        (
            "error of θ̂_all",
            _largest(group, "global_error"),
            theory.printed_global_error_bound(**noise, theta_bound=S),
            theory.global_error_bound(**noise, theta_bound=S),
        ),
        ("error of an agent's model / β", _largest(group, "model_error"), None, 1.0),
        ("regret of a round / 2β‖x‖", max(float(r.max()) for r in _regret_ratio(group)), None, 1.0),
        (
            "rounds set aside",
            _largest(group, "set_aside"),
            theory.printed_set_aside_bound(**sizes, n_agents=M),
            theory.set_aside_bound(**sizes, n_agents=M),
        ),
    ]


def _printed_epochs(group: Group) -> float:
    numbers = {**_sizes(group), "n_agents": 1, "alpha": math.inf}
    return theory.printed_message_bound(**numbers) / 2


def _holds(row: Row) -> bool:
    return row[1] <= row[3] * (1 + 1e-9)


def analyse(results: Results) -> StudyAnswer:
    """Who knew what when; then each statement as a curve with its bounds."""
    figure, axes = panels(5, 2, width=11, height=2.9)
    knowledge, shown = results.one(part="knowledge"), results.one(part="statements", alpha=SHOWN)
    _draw_server(axes[0], knowledge)
    _draw_knowledge(axes[1], knowledge)
    _draw_epochs(axes[2], results)
    _draw_two_lines(axes[3], results.one(part="two lines"))
    _draw_covariance(axes[4], results, "covariance", "Σ_all against Σ_ser")
    _draw_covariance(axes[5], results, "behind", "Σ_all against the active agent's Σ_m, in order of time")
    noise = _noise(shown)
    local = {**noise, "alpha": _alpha(shown)}
    _draw_bounded(
        axes[6],
        shown,
        "buffer_noise",
        "Noise in the active agent's buffer",
        theory.printed_buffer_noise_bound(**local, theta_bound=S),
        theory.buffer_noise_bound(**local),
    )
    _draw_bounded(
        axes[7],
        shown,
        "global_error",
        "Error of θ̂_all, the estimate from all data",
        theory.printed_global_error_bound(**noise, theta_bound=S),
        theory.global_error_bound(**noise, theta_bound=S),
    )
    _draw_regret(axes[8], shown)
    _draw_set_aside(axes[9], shown)
    spec = shown.spec
    caption = (
        f"Top: {SHORT} rounds of 5 agents. Left, which observations are at the server at the end; right, which "
        "observations were behind the model of each decision (a synchronous system would fill the triangle below the "
        f"diagonal). Below: M = {spec.n_agents}, d = {spec.dim}, T = {spec.n_rounds:,} on the unit sphere, λ = 1, "
        f"δ = {DELTA}, β adaptive; every seed is a line, through the largest value of each stretch of rounds. Orange: "
        "bounds as printed; dotted: corrected."
    )
    return StudyAnswer(_sentence(results), figure, caption, [_table(results)], _notes())


def _draw_server(axis: Axes, group: Group) -> None:
    """The paper's picture of an ill-defined filtration: each agent's own rounds, and what has reached the server."""
    columns = next(iter(group.runs.values())).columns
    agents, merged = columns["agent"].astype(int), columns["merged_round"]
    own = np.zeros(group.spec.n_agents, dtype=int)
    for m, at in zip(agents, merged, strict=True):
        own[m] += 1
        axis.plot(own[m], m, marker="s", markersize=7, color=BLUE if at > 0 else FAINT, markeredgecolor=INK, mew=0.5)
    least = int(own.min())
    box: Any = {"fill": False, "edgecolor": "#009e73", "linestyle": "--", "linewidth": 1.4}
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((0.4, -0.6), least + 0.2, group.spec.n_agents + 0.2, **box))
    axis.set(title="At the server (blue), not sent (grey)", xlabel="own round of the agent", ylabel="agent")
    axis.set_yticks(range(group.spec.n_agents))
    axis.set_ylim(-0.9, group.spec.n_agents - 0.1)
    words = f"dashed: what a synchronous system shares after {least} rounds each"
    axis.annotate(words, (0.99, 0.99), xycoords="axes fraction", ha="right", va="top", fontsize=8, color="#009e73")


def _draw_knowledge(axis: Axes, group: Group) -> None:
    columns = next(iter(group.runs.values())).columns
    known = known_at_decision(columns)
    n = len(known)
    look: Any = {"cmap": "gray", "vmin": -0.6, "vmax": 1.0, "interpolation": "nearest"}
    axis.imshow(1 - known, extent=(0.5, n + 0.5, n + 0.5, 0.5), aspect="auto", **look)
    axis.plot([0.5, n + 0.5], [0.5, n + 0.5], color="#009e73", linewidth=1.2, linestyle="--")
    axis.grid(visible=False)
    axis.set(title="Who knew what when", xlabel="observation of round s", ylabel="decision of round t")


def peaks(curve: Vector, n_points: int = 120) -> tuple[Vector, Vector]:
    """The largest value in each of some stretches of rounds, geometrically longer, and the last round of each.

    A bound holds in every round if it holds for these, and a figure of many rounds stays small.

    >>> [part.tolist() for part in peaks(np.array([1.0, 5.0, 2.0, 3.0]), 3)]
    [[1.0, 2.0, 4.0], [1.0, 5.0, 3.0]]
    """
    ends = np.unique(np.geomspace(1, len(curve), n_points).round().astype(np.int64))
    starts = np.concatenate([[0], ends[:-1]])
    return ends.astype(np.float64), np.maximum.reduceat(curve, starts)


def _draw_epochs(axis: Axes, results: Results) -> None:
    for name, look in zip(ALPHAS, SERIES, strict=False):
        group = results.one(part="statements", alpha=name)
        most = theory.messages_per_epoch(n_agents=group.spec.n_agents, alpha=_alpha(group))
        for i, counts in enumerate(_per_epoch(group)):
            label = f"α = {name}: at most {number(most)}" if i == 0 else None
            line(axis, np.arange(len(counts)), counts / most, look, marker=False, linewidth=0.9, label=label)
    axis.axhline(1.0, color=INK, linewidth=1.0)
    axis.legend(loc="upper right")
    axis.set(title="Messages in an epoch, in units of 2(M + 1/α)", xlabel="epoch: doublings of det Σ_ser")
    axis.set_ylim(0, 1.6)


def _draw_two_lines(axis: Axes, group: Group) -> None:
    rounds, sent = group.rounds, next(iter(group.curve("messages").values()))
    line(axis, rounds, sent, SERIES[0], marker=False, label="messages")
    numbers = {"dim": 2, "n_agents": 1, "lam": LAM, "alpha": 0.1, "action_bound": L}
    bounds: tuple[tuple[Callable[..., float], SeriesStyle, str], ...] = (
        (theory.printed_message_bound, PRINTED, "printed bound"),
        (theory.message_bound, CORRECTED, "corrected bound"),
    )
    for bound, look, label in bounds:
        line(axis, rounds, [bound(n_rounds=int(t), **numbers) for t in rounds], look, marker=False, label=label)
    log_scale(axis)
    axis.legend(loc="upper left")
    axis.set(title="Two directions in turn, M = 1, α = 0.1", xlabel="round", ylabel="messages")


def _draw_covariance(axis: Axes, results: Results, measure: str, title: str) -> None:
    for name, look in zip(ALPHAS, SERIES, strict=False):
        group = results.one(part="statements", alpha=name)
        for i, curve in enumerate(group.curve(measure).values()):
            label = f"α = {name}" if i == 0 else None
            line(axis, *peaks(curve), look, marker=False, linewidth=0.7, alpha=0.8, label=label)
        axis.axhline(1 + group.spec.n_agents * _alpha(group), color=look.colour, linewidth=1.2, linestyle=":")
    log_scale(axis)
    log_scale(axis, "y")
    axis.legend(loc="upper left")
    axis.set(title=title, xlabel="round", ylabel="λ_max; dotted: 1 + Mα")


def _draw_bounded(axis: Axes, group: Group, measure: str, title: str, printed: float, corrected: float) -> None:
    for curve in group.curve(measure).values():
        line(axis, *peaks(curve), SERIES[0], marker=False, linewidth=0.7, alpha=0.8)
    for bound, look, label in ((printed, PRINTED, "printed"), (corrected, CORRECTED, "corrected")):
        axis.axhline(bound, color=look.colour, linestyle=look.line, label=f"{label}: {bound:.2f}")
    log_scale(axis)
    axis.legend(loc="center right")
    axis.set(title=title, xlabel="round")


def _draw_regret(axis: Axes, group: Group) -> None:
    for ratio in _regret_ratio(group):
        axis.plot(*peaks(ratio), ".", markersize=3, color=BLUE, alpha=0.6)
    axis.axhline(1.0, color=INK, linewidth=1.0)
    log_scale(axis)
    axis.set(title="Regret of a round, in units of 2β‖x‖", xlabel="round")
    axis.set_ylim(0, 1.05)


def _draw_set_aside(axis: Axes, group: Group) -> None:
    for curve in group.curve("set_aside").values():
        line(axis, *peaks(curve), SERIES[0], marker=False, linewidth=0.9)
    numbers = {"dim": group.spec.dim, "n_agents": group.spec.n_agents, "lam": LAM, "action_bound": L}
    bounds: tuple[tuple[Callable[..., float], SeriesStyle, str], ...] = (
        (theory.printed_set_aside_bound, PRINTED, "printed bound"),
        (theory.set_aside_bound, CORRECTED, "corrected bound"),
    )
    for bound, look, label in bounds:
        rounds = peaks(group.rounds)[0]
        values = [bound(n_rounds=int(t), **numbers) for t in rounds]
        line(axis, rounds, values, look, marker=False, label=label)
    log_scale(axis)
    axis.legend(loc="upper left")
    axis.set(title="Rounds that the proof sets aside", xlabel="round")


def _table(results: Results) -> Table:
    rows: list[list[Any]] = []
    for group in results.where(part="statements"):
        for row in _statements(group):
            name, value, printed, corrected = row
            as_printed = "as corrected" if printed is None else _digits(printed)
            rows.append(
                [group["alpha"], name, _digits(value), as_printed, _digits(corrected), "yes" if _holds(row) else "no"]
            )
    columns = ["α", "statement", "largest in any run", "bound as printed", "corrected bound", "holds"]
    return Table("Statements of the proof, and the largest value in any round of any run", columns, rows)


def _digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _sentence(results: Results) -> str:
    checks = [_holds(row) for group in results.where(part="statements") for row in _statements(group)]
    broken = checks.count(False)
    runs = sum(len(group.runs) for group in results.where(part="statements"))
    text = f"In {runs} runs, measured in every round, {len(checks) - broken} of {len(checks)} corrected bounds hold. "
    group = results.one(part="two lines")
    sent = group.mean("messages").mean
    numbers = {**_sizes(group), "n_agents": 1, "alpha": 0.1}
    printed, corrected = theory.printed_message_bound(**numbers), theory.message_bound(**numbers)
    shown = results.one(part="statements", alpha=SHOWN)
    epochs, allowed = _largest(shown, "epoch") + 1, _printed_epochs(shown)
    if epochs > allowed:
        text += (
            f"The printed number of epochs does not: {number(epochs)} where it allows {number(math.floor(allowed))}. "
        )
    word = "more than" if sent > printed else "within"
    text += (
        f"Two directions in turn send {number(sent)} messages, {word} the printed bound of "
        f"{number(math.floor(printed))} and {'within' if sent <= corrected else 'more than'} the corrected "
        f"{number(math.floor(corrected))}. "
    )
    most, limit = _largest(shown, "behind"), 1 + shown.spec.n_agents * _alpha(shown)
    word = "so the proof has to reorder the rounds" if most > limit else "so here no reordering was needed"
    return text + (
        f"In order of time Σ_all reaches {_digits(most)} times the active agent's Σ_m at α = {SHOWN}, where 1 + Mα is "
        f"{_digits(limit)}: {word}."
    )


def _notes() -> list[str]:
    return [
        "The covariance comparison Σ_m ⪰ Σ_all/(1 + Mα) is a statement about reordered rounds, in which each agent "
        "plays all rounds of a buffer at once; in order of time it need not hold, and Σ_all ⪯ (1 + Mα)Σ_ser does.",
        "Rounds set aside are counted in order of time: an agent's first exchange since det Σ_all last doubled.",
        "The bounds on noise hold with probability 1 − δ over runs; a run that exceeded one would not refute it.",
    ]


STUDY = Study(
    "lemmas", "Do the steps of the paper's proof hold in every round, and with which constants?", plan, analyse
)
