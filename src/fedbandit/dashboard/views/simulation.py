"""A simulation for visitors: what does it cost to talk less?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedbandit.dashboard.figures import Series
from fedbandit.dashboard.frame import Frame, Pieces, chart, empty, figure_cell, figure_head, panel, table
from fedbandit.dashboard.look import Look
from fedbandit.dashboard.markup import Child, Html, join, tag
from fedbandit.dashboard.runs import Run, Runs
from fedbandit.dashboard.spec import ALPHA_FACTOR, LINES, MAX_AGENTS, ROUNDS, WORLDS, Spec
from fedbandit.dashboard.words import STAYS, count, number, percent, setting
from fedbandit.dashboard.worker import Step


async def simulation(look: Look) -> Frame:
    """The page, with a run if the address names one."""
    run = look.runs.find(look.query.get("run", ""))
    pieces = Pieces()
    spec = run.spec if run is not None else Spec()
    problem = look.query.get("problem", "")
    if look.query.get("run") and run is None:
        problem = "This run is not remembered any more; start it again."
    shown = pieces.add("state", _state(look.runs, run), class_="cell wide")
    body = join(_head(), _form(spec, problem), tag("div", shown, _charts(spec), _below(pieces, run), class_="grid"))
    series = {} if run is None else _series(run)
    return Frame("Simulation", body, pieces.found, series, is_final=run is None or run.is_over)


def _head() -> Html:
    told = (
        "Several agents learn the same linear bandit in a made-up world, and five ways of sharing are played on the "
        "same decisions and the same noise. Regret is the reward lost against always choosing the best action; a "
        "message is an upload or a download."
    )
    return tag("div", tag("h1", "Simulation"), tag("p", told, class_="lead"), class_="page-head")


def _form(spec: Spec, problem: str) -> Html:
    told = tag("p", problem, class_="problem", role="alert") if problem else None
    return tag(
        "form",
        _field("World", tag("select", _options(WORLDS, spec.world), name="world", id="world"), "world"),
        _field("Agents M", _input("agents", spec.n_agents, min=2, max=MAX_AGENTS, step=1), "agents"),
        _field("Trigger α", _input("alpha", f"{spec.alpha:g}", min=0.001, max=1000, step="any"), "alpha"),
        _field(
            "Rounds T",
            tag("select", _options({str(n): count(n) for n in ROUNDS}, str(spec.n_rounds)), name="rounds", id="rounds"),
            "rounds",
        ),
        _field("Seed", _input("seed", spec.seed, min=0, max=999, step=1), "seed"),
        tag("button", "Start", type="submit", class_="primary"),
        told,
        method="post",
        action="/simulation",
        class_="setup",
    )


def _field(label: str, control: Html, name: str) -> Html:
    return tag("div", tag("label", label, for_=name), control)


def _input(name: str, value: Any, **limits: Any) -> Html:
    return tag("input", type="number", name=name, id=name, value=value, required=True, **limits)


def _options(choices: Mapping[str, str], chosen: str) -> list[Html]:
    return [tag("option", text, value=value, selected=value == chosen) for value, text in choices.items()]


def _state(runs: Runs, run: Run | None) -> Html:
    if run is None:
        return empty("Choose a world and press Start", tag("p", "It runs on the server and takes some seconds."))
    bar = tag("progress", value=round(run.progress, 3), max=1, aria_label="Rounds played")
    if run.state == "waiting":
        return tag("p", f"Waiting: {runs.ahead(run)} before this one. ", bar, class_="told")
    if run.state == "running":
        done = count(run.progress * run.spec.n_rounds)
        return tag("p", f"Playing: {done} of {count(run.spec.n_rounds)} rounds. ", bar, class_="told")
    if run.state == "failed":
        return tag("p", f"It failed: {run.problem}.", class_="problem")
    return _lesson(run)


def _lesson(run: Run) -> Html:
    """What one more factor of alpha saves, and what it costs."""
    base, more = run.steps["fedlinucb"][-1], run.steps["fedlinucb-more"][-1]
    alone = run.steps["oful-independent"][-1]
    alpha = run.spec.alpha
    saved, lost = _change(base.messages, more.messages), _change(base.regret, more.regret)
    helped = 1 - base.regret / alone.regret if alone.regret > 0 else 0.0
    return tag(
        "div",
        tag(
            "p",
            tag("strong", f"{percent(helped, 0)} less regret than alone"),
            f", for {count(base.messages)} messages among {run.spec.n_agents} agents",
            f" in {count(run.spec.n_rounds)} rounds.",
        ),
        tag(
            "p",
            tag("strong", f"One more factor of {ALPHA_FACTOR:g} in α"),
            f" (from {setting(alpha)} to {setting(ALPHA_FACTOR * alpha)}) changes messages by {saved}",
            f" and regret by {lost}.",
        ),
        class_="lesson",
    )


def _change(before: float, after: float) -> str:
    if before <= 0:
        return f"{after - before:+,.0f}"
    change = after / before - 1
    return f"{'+' if change >= 0 else '−'}{abs(100 * change):.0f}{STAYS}%"


def _charts(spec: Spec) -> Html:
    names = line_names(spec)
    lines: list[Mapping[str, str]] = [{"series": f"{key}.messages", "name": name} for key, name in names.items()]
    by_round: list[Mapping[str, str]] = [{"series": f"{key}.rounds", "name": name} for key, name in names.items()]
    axes = {"unit": "regret so far", "x": "log", "x_label": "messages so far", "zero": True, "height": 320}
    against = chart("against", "Regret against messages", lines, **axes)
    over = chart("over", "Regret over rounds", by_round, unit="regret so far", x="count", x_label="round", zero=True)
    note = "further left is quieter, lower is better"
    return join(panel("Regret against messages", against, wide=True, note=note), panel("Regret over rounds", over))


def line_names(spec: Spec) -> dict[str, str]:
    """The lines by name, those of FedLinUCB with their alpha."""
    alphas = {"fedlinucb": spec.alpha, "fedlinucb-more": ALPHA_FACTOR * spec.alpha}
    return {key: f"FedLinUCB α={alphas[key]:g}" if key in alphas else name for key, name in LINES.items()}


def _below(pieces: Pieces, run: Run | None) -> Html:
    latest = {} if run is None else {key: steps[-1] for key, steps in run.steps.items()}
    names = line_names(run.spec if run else Spec())
    if not latest:
        content: Child = empty("No numbers yet")
    else:
        content = _numbers(names, latest)
    return pieces.add("numbers", panel("Where they stand", content), class_="cell")


def _numbers(names: Mapping[str, str], latest: Mapping[str, Step]) -> Html:
    heads = ["Algorithm", figure_head("Regret"), figure_head("Messages")]
    rows = [
        [
            tag("th", names[key], scope="row"),
            figure_cell(number(step.regret)),
            figure_cell(count(step.messages)),
        ]
        for key, step in latest.items()
    ]
    return table("Regret and messages so far", heads, rows)


def _series(run: Run) -> dict[str, Series]:
    found: dict[str, Series] = {}
    for key, steps in run.steps.items():
        found[f"{key}.messages"] = _column(steps, "messages")
        found[f"{key}.rounds"] = _column(steps, "round")
    return found


def _column(steps: Sequence[Step], x: str) -> Series:
    return Series([float(getattr(step, x)) for step in steps], [step.regret for step in steps], append=False)
