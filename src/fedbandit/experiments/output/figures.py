"""The common style of all figures: labelled directly, series told apart by colour, line and marker."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from fedbandit.core.arrays import Vector
from fedbandit.experiments.compare import interval

BLUE = "#0072b2"
INK, PAPER, FAINT, QUIET = "#1b1f24", "#ffffff", "#d7dbe0", "#6b727c"
HOURGLASS = ((-0.8, -1.0), (0.8, -1.0), (-0.8, 1.0), (0.8, 1.0))


@dataclass(frozen=True, slots=True)
class SeriesStyle:
    """How a series is drawn: colour, line and marker, each sufficient to tell it apart."""

    colour: str
    line: Any = "-"
    marker: Any = "o"


# Okabe and Ito's colours, chosen so that neighbours also differ in lightness.
LOOKS: dict[str, SeriesStyle] = {
    "FedLinUCB": SeriesStyle(BLUE, "-", "o"),
    "FedLinUCB, join + arrival": SeriesStyle("#56b4e9", (0, (5, 1)), "s"),
    "FedLinUCB, personal": SeriesStyle("#c2185b", (0, (6, 1, 2, 1)), HOURGLASS),
    "FedLinUCB, spectral": SeriesStyle("#cc79a7", (0, (3, 1, 1, 1)), "D"),
    "Async-LinUCB": SeriesStyle("#d55e00", (0, (4, 2)), "^"),
    "DisLinUCB": SeriesStyle("#009e73", (0, (1, 1)), "v"),
    "OFUL shared": SeriesStyle(INK, (0, (6, 2, 1, 2)), "P"),
    "OFUL rare switching": SeriesStyle("#e69f00", (0, (3, 2)), "d"),
    "OFUL independent": SeriesStyle("#8a8f98", (0, (2, 2)), "X"),
    "FedSupLinUCB": SeriesStyle("#3d5a9e", (0, (8, 2)), "h"),
    "DCB": SeriesStyle("#b8860b", (0, (7, 1, 1, 1)), "<"),
    "DCCB": SeriesStyle("#8c564b", (0, (1, 2)), ">"),
    "CLUB": SeriesStyle("#7a5195", (0, (5, 2, 2, 2)), "p"),
    "DELB": SeriesStyle("#a63603", (0, (6, 1)), "8"),
    "Fed-PE": SeriesStyle("#e0607e", (0, (2, 1)), "H"),
    "FedUCB": SeriesStyle("#006d2c", (0, (1, 3)), "*"),
    "FedGLB-UCB": SeriesStyle("#1697a6", (0, (4, 1, 1, 1, 1, 1)), (4, 1, 45)),
}
SERIES = (
    SeriesStyle(BLUE, "-", "o"),
    SeriesStyle("#d55e00", (0, (4, 2)), "^"),
    SeriesStyle("#009e73", (0, (1, 1)), "v"),
    SeriesStyle("#cc79a7", (0, (3, 1, 1, 1)), "D"),
    SeriesStyle("#e69f00", (0, (6, 2, 1, 2)), "s"),
    SeriesStyle(INK, (0, (2, 2)), "X"),
)
SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
STYLE: Any = {
    "svg.fonttype": "path",
    "svg.hashsalt": "fedbandit",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


def style_of(name: str) -> SeriesStyle:
    """The style of a system, by the beginning of its name."""
    fitting = [key for key in LOOKS if name.startswith(key)]
    return LOOKS[max(fitting, key=len)] if fitting else SERIES[-1]


def panels(
    n_rows: int, n_columns: int, *, width: float = 9.0, height: float = 3.4, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of panels in our style, its axes row by row; `height` is that of a row, in inches."""
    with in_style():
        figure = Figure(figsize=(width, height * n_rows + 0.35), layout="constrained")
        axes = figure.subplots(n_rows, n_columns, squeeze=False, **options)
        for axis in axes.flat:
            axis.tick_params(length=3)
    return figure, list(axes.flat)


def line(axis: Axes, x: ArrayLike, y: ArrayLike, look: SeriesStyle, *, marker: bool = True, **options: Any) -> None:
    """One line in its style."""
    style: dict[str, Any] = {"color": look.colour, "linestyle": look.line}
    if marker:
        style |= {"marker": look.marker, "markeredgecolor": PAPER, "markeredgewidth": 0.6}
    axis.plot(np.asarray(x), np.asarray(y), **{**style, **options})


def band(axis: Axes, x: ArrayLike, by_seed: Iterable[Vector], look: SeriesStyle, *, marker: bool = False) -> Vector:
    """The mean over seeds with its interval as a shade; returns the mean."""
    data = np.stack(list(by_seed))
    spans = [interval(column) for column in data.T]
    means = np.array([s.mean for s in spans])
    if len(data) > 1:
        lows, highs = np.array([s.low for s in spans]), np.array([s.high for s in spans])
        axis.fill_between(np.asarray(x, dtype=np.float64), lows, highs, color=look.colour, alpha=0.18, linewidth=0)
    line(axis, x, means, look, marker=marker)
    return means


def points(
    axis: Axes, x: ArrayLike, spans: Sequence[Any], look: SeriesStyle, *, label: str | None = None, join: bool = True
) -> None:
    """Means with their intervals as bars, joined by a line."""
    means = np.array([s.mean for s in spans])
    finite = [np.isfinite(s.half) for s in spans]
    reach = np.array(
        [[s.mean - s.low, s.high - s.mean] if ok else [0.0, 0.0] for s, ok in zip(spans, finite, strict=True)]
    )
    axis.errorbar(
        np.asarray(x),
        means,
        yerr=reach.T,
        color=look.colour,
        linestyle=look.line if join else "none",
        marker=look.marker,
        markeredgecolor=PAPER,
        markeredgewidth=0.6,
        elinewidth=1.1,
        capsize=2,
        label=label,
    )


def note(
    axis: Axes,
    text: str,
    x: float,
    y: float,
    look: SeriesStyle,
    *,
    shift: tuple[float, float] = (5, 4),
    ha: str = "left",
) -> None:
    """A small label beside a point."""
    axis.annotate(text, (x, y), xytext=shift, textcoords="offset points", fontsize=8, color=look.colour, ha=ha)


def log_scale(axis: Axes, which: str = "x") -> None:
    """A logarithmic axis with few, plain numbers on it; call it after everything is drawn."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    (axis.set_xscale if which == "x" else axis.set_yscale)("log")
    ruler = axis.xaxis if which == "x" else axis.yaxis
    low, high = ruler.get_view_interval()
    ruler.set_major_locator(FixedLocator(log_ticks(float(low), float(high))))
    ruler.set_minor_locator(NullLocator())
    ruler.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two ends of a logarithmic axis: three to eight of them.

    >>> log_ticks(0.8, 60), log_ticks(21, 24)
    ([1.0, 3.0, 10.0, 30.0], [21.0, 22.0, 23.0, 24.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = tuple(round(step / 10, 1) for step in range(10, 100))
    for steps in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0), fine):
        every = [float(f"{step}e{power}") for power in powers for step in steps]
        ticks = [tick for tick in every if low * 0.999 <= tick <= high * 1.001]
        if len(ticks) >= 3:
            break
    if not ticks:
        return [float(f"{math.sqrt(low * high):.4g}")]
    return ticks[:: math.ceil(len(ticks) / 8)]


def short(value: float) -> str:
    """A tick's number: 0.01, 3, 20k, 5M.

    >>> short(0.05), short(2000.0), short(1e6), short(1e12), short(3e-5)
    ('0.05', '2k', '1M', '10¹²', '3·10⁻⁵')
    """
    if value > 0 and not 1e-4 <= value < 1e10:
        power = math.floor(math.log10(value) + 1e-9)
        digits = f"{value / 10.0**power:.2g}"
        return ("" if digits == "1" else f"{digits}·") + "10" + str(power).translate(SUPERSCRIPT)
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def label_ends(
    axis: Axes, labels: Sequence[tuple[str, float, SeriesStyle]], *, gap: float = 0.065, shift: float = 5
) -> None:
    """Names at the right edge, each beside the end of its line, moved apart where they would overlap."""
    if not labels:
        return
    places = [_height_of(axis, y) for _, y, _ in labels]
    for (text, _, look), place in zip(labels, _spread(places, gap), strict=True):
        axis.annotate(
            text,
            (1.0, place),
            xycoords="axes fraction",
            xytext=(shift, 0),
            textcoords="offset points",
            color=look.colour,
            va="center",
            fontsize=9,
            annotation_clip=False,
        )


def _height_of(axis: Axes, y: float) -> float:
    """Where a value stands, as a fraction of the panel's height."""
    _, pixel = axis.transData.transform((axis.get_xlim()[0], y))
    return float(axis.transAxes.inverted().transform((0.0, pixel))[1])


def _spread(places: Sequence[float], gap: float) -> list[float]:
    """The same places, moved as little as needed to keep `gap` between neighbours and to stay in the panel.

    >>> [round(place, 3) for place in _spread([0.5, 0.5], 0.1)]
    [0.45, 0.55]
    """
    order = np.argsort(places, kind="stable")
    wanted = np.asarray(places, dtype=np.float64)[order]
    # Least squares under "next ≥ last + gap" is isotonic regression of the places without their gaps.
    level = _isotonic(wanted - gap * np.arange(len(wanted)))
    moved = level + gap * np.arange(len(wanted))
    moved += min(0.0, 1.0 - moved[-1])
    moved += max(0.0, -moved[0])
    result = np.empty_like(moved)
    result[order] = moved
    return [float(place) for place in result]


def _isotonic(values: Vector) -> Vector:
    blocks: list[tuple[float, int]] = []
    for value in values:
        blocks.append((float(value), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, n), (b, m) = blocks[-2], blocks[-1]
            blocks[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return np.concatenate([np.full(n, value) for value, n in blocks])


def legend(figure: Figure, looks: Mapping[str, SeriesStyle], *, n_columns: int = 4) -> None:
    """One legend above all panels."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [], [], color=look.colour, linestyle=look.line, marker=look.marker, markersize=5, linewidth=1.8, label=name
        )
        for name, look in looks.items()
    ]
    with in_style():
        figure.legend(handles=handles, loc="outside upper left", ncols=n_columns, handlelength=3.2)


def in_style() -> AbstractContextManager[None]:
    """A context in which everything drawn has this style."""
    return mpl.rc_context(STYLE)
