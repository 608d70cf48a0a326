"""Advice as an HTML report: the verdict, four figures and the table of α, in one self-contained file."""

from __future__ import annotations

import html
import io
import math
from importlib import resources
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from fedbandit.experiments.advice.advise import Advice, shortened
from fedbandit.experiments.advice.homogeneity import Fit
from fedbandit.experiments.output.figures import (
    LOOKS,
    SERIES,
    in_style,
    label_ends,
    line,
    log_scale,
    note,
    panels,
    points,
)
from fedbandit.experiments.output.svg import inline_svg
from fedbandit.experiments.output.tables import Table
from fedbandit.experiments.sharing_cost import human_bytes

HEADLINES = {
    "yes": "Yes: learn together.",
    "yes, personal": "Yes: learn together, each agent with a parameter of its own.",
    "yes, without some": "Yes, without {names}.",
    "no": "No: your agents are better off alone.",
    "unclear": "The log is inconclusive.",
}
FED, ALONE, SHARED = LOOKS["FedLinUCB"], LOOKS["OFUL independent"], LOOKS["OFUL shared"]
PERSONAL = LOOKS["FedLinUCB, personal"]


def headline(advice: Advice) -> str:
    """The verdict as a sentence."""
    if advice.verdict == "unclear" and not advice.explained.anything:
        return "The log is inconclusive: its features do not predict the rewards."
    return HEADLINES[advice.verdict].format(names=shortened(advice.outlier_names, 5))


def table_of(advice: Advice) -> Table:
    """Every way to learn: reward, gain over learning alone, messages."""
    outlook = advice.outlook
    rows = [
        [
            o.system,
            o.reward,
            o.gain if o is not outlook.alone else None,
            o.messages,
            human_bytes(o.n_bytes),
            _mark(advice, o),
        ]
        for o in (outlook.alone, *outlook.federated, *outlook.personal, outlook.clusters, outlook.shared)
        if o is not None
    ]
    raw = human_bytes(advice.sharing_cost.raw_bytes)
    title = f"{outlook.n_rounds:,} more decisions, β = {outlook.beta:.3g}, λ = {outlook.lam:.3g}; their raw rows: {raw}"
    return Table(title, ["learning", "reward per decision", "gain over alone", "messages", "bytes", ""], rows)


def _mark(advice: Advice, outcome: Any) -> str:
    if outcome is not advice.choice or not advice.verdict.startswith("yes"):
        return ""
    if advice.reaches_its_aim:
        return "recommended"
    return (
        "over the budget"
        if advice.budget is not None
        else f"best tried: {advice.outlook.share_of_gain(outcome):.0%} of the gain"
    )


def render(advice: Advice, *, source: str) -> str:
    """The report as HTML."""
    style = resources.files("fedbandit.experiments.output").joinpath("report.css").read_text(encoding="utf-8")
    reasons = "".join(f"<li>{html.escape(reason)}</li>" for reason in advice.reasons)
    log = advice.log
    facts = f"{len(log):,} decisions of {log.n_agents:,} agents, {log.dim} features, from {html.escape(source)}."
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>fedbandit: is sharing worth it?</title>\n<style>{style}</style></head>\n"
        '<body><header><p class="brand">fedbandit</p><h1>Is sharing worth it for this fleet?</h1>'
        f'<p class="lede">{facts}</p></header><main><section><p class="kicker">advice</p>'
        f'<h2>{html.escape(headline(advice))}</h2><ul class="notes">{reasons}</ul>'
        f'<figure><div class="wide">{inline_svg(picture(advice), "advice")}</div>'
        f"<figcaption>{html.escape(CAPTION)}</figcaption></figure>"
        f'<div class="wide">{table_of(advice).to_html()}</div>{_caveats(advice)}</section></main></body></html>\n'
    )


CAPTION = (
    "Reward gained over learning alone against messages, in a world fitted to the log, with 95 % intervals over runs. "
    "How large a spread between agents the test would have found. The distance of each agent from the rest. Variance "
    "of rewards that is predicted out of sample."
)


def _caveats(advice: Advice) -> str:
    offered = (
        "Decision sets are those of the log."
        if advice.log.offers is not None
        else "The log has only actions that were taken: decision sets are ten of an agent's own rows. If the old "
        "policy avoided some actions, gains may be larger than shown."
    )
    lines = [
        f"Gains are simulated: agents' parameters are drawn from their posterior given the log, the noise is "
        f"{advice.noise:.3g}. {offered}",
        "FedLinUCB is simulated as live agents run it: each downloads a model before its first decision, and another "
        "with each upload. Agents that all connect before there is data download an empty model: they gain less.",
        "Personal agents have no regret guarantee: they decide on their own rewards before these are merged.",
        "A spread of h means that an agent's expected reward differs from the common model's by h times the noise, "
        "typically. Sharing pays off while h < √(d / an agent's decisions).",
        "Tests use the wild bootstrap at the 5 % level; outliers are found by Chow's test with Holm's correction.",
    ]
    return '<ul class="notes">' + "".join(f"<li>{html.escape(text)}</li>" for text in lines) + "</ul>"


def picture(advice: Advice) -> str:
    """Four panels as SVG text."""
    figure, axes = panels(2, 2, width=10.5, height=3.3)
    with in_style():
        _gains(axes[0], advice)
        _power(axes[1], advice)
        _agents(axes[2], advice)
        _variance(axes[3], advice)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": "fedbandit", "Title": "advice"})
    return out.getvalue()


def _gains(axis: Axes, advice: Advice) -> None:
    outlook = advice.outlook
    points(axis, [o.messages for o in outlook.federated], [o.gain for o in outlook.federated], FED)
    for o in outlook.federated:
        note(axis, f"{o.alpha:g}", o.messages, o.gain.mean, FED)
    if outlook.personal:
        points(axis, [o.messages for o in outlook.personal], [o.gain for o in outlook.personal], PERSONAL)
    everything = outlook.shared.gain
    axis.axhspan(everything.low, everything.high, color=SHARED.colour, alpha=0.12, linewidth=0)
    axis.axhline(everything.mean, color=SHARED.colour, linestyle=SHARED.line)
    axis.axhline(0.0, color=ALONE.colour, linestyle=ALONE.line)
    axis.set(title="Gain of sharing and its cost", xlabel="messages (numbers at points: α)")
    axis.set_ylabel("reward per decision, less that of alone")
    log_scale(axis)
    ends = [("alone", 0.0, ALONE), ("all shared", everything.mean, SHARED)]
    if outlook.personal:
        ends.append(("personal", outlook.personal[0].gain.mean, PERSONAL))
    label_ends(axis, ends, gap=0.09)


def _power(axis: Axes, advice: Advice) -> None:
    spreads = list(advice.test.power)
    line(axis, spreads, list(advice.test.power.values()), SERIES[0])
    axis.axvline(advice.break_even, color=SERIES[1].colour, linestyle=SERIES[1].line)
    note(axis, "sharing no longer pays off", advice.break_even, 0.06, SERIES[1])
    if advice.spread > 0:
        axis.axvline(advice.spread, color=SERIES[2].colour, linestyle=SERIES[2].line)
        note(axis, "this fleet", advice.spread, 0.16, SERIES[2])
    axis.set(
        title="Power of the test",
        xlabel="spread between agents, in units of the noise",
        ylabel="probability of detection",
        ylim=(0, 1.04),
    )
    log_scale(axis)


def _agents(axis: Axes, advice: Advice) -> None:
    fit = Fit(advice.log)
    lengths = np.linalg.norm(fit.deviations(), axis=1) / fit.noise
    order = np.argsort(-lengths, kind="stable")
    outlying = set(advice.outliers.agents) if advice.outliers.core else set()
    colours = [SERIES[1].colour if m in outlying else SERIES[0].colour for m in order]
    axis.bar(np.arange(len(order)), lengths[order], color=colours, width=0.8)
    shown = order[: min(len(order), 12)] if len(order) > 12 else order
    axis.set_xticks(np.arange(len(shown)), [advice.log.agent_names[m][:12] for m in shown], rotation=45, ha="right")
    axis.set(title="Agents by distance", ylabel="distance from the rest / noise")
    if not lengths.any():
        axis.set_ylim(0, 1)
        axis.text(0.5, 0.5, "none: no spread beyond chance", transform=axis.transAxes, ha="center")
    axis.grid(axis="x", visible=False)


def _variance(axis: Axes, advice: Advice) -> None:
    values = [advice.explained.shared, advice.explained.own, advice.explained.both]
    names = ["one model for all", "each its own", "own, drawn to common"]
    axis.barh(names[::-1], [max(v, 0.0) for v in values[::-1]], color=[SERIES[2].colour, ALONE.colour, FED.colour])
    for place, value in enumerate(values[::-1]):
        axis.text(max(value, 0.0), place, f" {value:.1%}", va="center", fontsize=9)
    top = max([v for v in values if math.isfinite(v)] + [0.01])
    axis.set(title="Variance explained by the features", xlabel="variance predicted out of sample", xlim=(0, 1.2 * top))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.grid(axis="y", visible=False)
