"""Shared by the examples: three ways for a fleet to learn, and the style of their figures."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import fedbandit as fb
from fedbandit.experiments.output.figures import LOOKS, QUIET, SeriesStyle, band, in_style, label_ends

FIGURES = Path(__file__).resolve().parents[1] / "docs" / "figures"
WAYS = {
    "alone": LOOKS["OFUL independent"],
    "together": LOOKS["FedLinUCB"],
    "all shared": LOOKS["OFUL shared"],
}


@dataclass
class Fleet:
    """Agents that learn in one of three ways; `choose` and `observe` are the library's."""

    name: str
    agents: Sequence[Any]
    server: Any = None
    n_messages: int = 0

    def observe(self, m: int, decision: fb.Decision, reward: float) -> None:
        """Agent m observes a reward; if that triggers an upload, it is exchanged for a download."""
        upload = self.agents[m].observe(decision, reward)
        if self.name == "all shared":
            self.n_messages += 1 + len(self.agents)  # one upload, and a download to everybody, at every decision
        while upload is not None:
            self.n_messages += 2
            upload = self.agents[m].adopt(self.server.receive(upload))


def three_fleets(n_agents: int, *, dim: int, alpha: float, beta: float, lam: float) -> list[Fleet]:
    """Alone: no exchanges. Together: FedLinUCB. All shared: one model receives everything immediately."""
    lonely = fb.OFUL(dim=dim, beta=beta, lam=lam)
    rule = fb.FedLinUCB(dim=dim, alpha=alpha, beta=beta, lam=lam)
    everybody = lonely.agent("everybody")
    return [
        Fleet("alone", [lonely.agent(f"agent-{m}") for m in range(n_agents)]),
        Fleet("together", [rule.agent(f"agent-{m}") for m in range(n_agents)], rule.server()),
        Fleet("all shared", [everybody] * n_agents),
    ]


def options(about: str, figure: str) -> argparse.Namespace:
    """Options: `--quick` for a small run, `--figure` for the output file."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="a few seconds instead of a minute; the answer is rougher")
    parser.add_argument("--figure", type=Path, default=FIGURES / f"examples-{figure}", help="an SVG file")
    return parser.parse_args()


def windows(values: np.ndarray, n: int) -> np.ndarray:
    """Means of n windows of equal length, (seeds, rounds) -> (seeds, n)."""
    return values[:, : values.shape[1] // n * n].reshape(len(values), n, -1).mean(axis=2)


def compare(
    axis: Axes, x: np.ndarray, results: Mapping[str, np.ndarray], looks: Mapping[str, SeriesStyle] = WAYS
) -> None:
    """Draw a line for each way: the mean over seeds with its 95 % interval, labelled at the end."""
    ends = [(name, float(band(axis, x, by_seed, looks[name])[-1]), looks[name]) for name, by_seed in results.items()]
    axis.set_xlim(x[0], x[-1])
    label_ends(axis, ends)


def titled(axis: Axes, title: str) -> None:
    """Set the title in the style of the figures."""
    with in_style():
        axis.set_title(title)


def save(figure: Figure, path: Path, foot: str) -> None:
    """Write the figure as SVG, with the same bytes for the same numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    out = StringIO()
    with in_style():
        figure.supxlabel(foot, x=0.01, ha="left", fontsize=7, color=QUIET)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": "fedbandit"})
    path.write_text(re.sub(r"[ \t]+$", "", out.getvalue(), flags=re.MULTILINE), encoding="utf-8")
    print(f"figure: {path}")


def around(values: np.ndarray, unit: str = "", digits: int = 1) -> str:
    """Mean ± half of the 95 % interval over seeds."""
    half = 1.96 * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{np.mean(values):.{digits}f} ± {half:.{digits}f}{unit}"
