"""The top of a model's view: what is wrong now, who is missing, and what to do about each."""

from __future__ import annotations

from fedbandit.dashboard.components import marked, url, when, word_link
from fedbandit.dashboard.markup import Child, Html, tag
from fedbandit.service.formatting import count, plural
from fedbandit.service.problems import MissingAgent, Problem, ProblemReport

LABELS = {"bad": "problem", "warn": "attention", "note": "to know"}
STATES = {"overdue": "overdue", "silent": "silent", "never": "never seen"}
MAX_SHOWN = 8


def problems_now(model: str, report: ProblemReport) -> Html:
    """Problems first, then the agents that are missing; one line when there are neither."""
    if not report.problems and not report.missing:
        return tag("section", tag("h2", "Nothing is wrong now"), _calm(report), class_="now clear")
    title = "What is wrong now" if not report.is_clear else "Worth knowing"
    wrong = tag(
        "div",
        tag("h2", title if report.problems else "Nothing else is wrong"),
        tag("ul", [_problem(model, problem) for problem in report.problems], class_="now-list")
        if report.problems
        else _calm(report),
    )
    state = "bad" if any(problem.severity == "bad" for problem in report.problems) else "warn"
    if report.is_clear:
        state = "clear"
    return tag("section", wrong, _missing(model, report), class_=f"now {state}")


def _calm(report: ProblemReport) -> Html:
    text = "No assumption is contradicted, and no upload was refused in the last hour."
    n_quiet = report.n_silent - len(report.missing)
    if n_quiet > 0:
        text += f" {plural(n_quiet, 'agent')} without contact in the last 10 min: not longer than expected."
    return tag("p", text, " ", word_link("next-upload"), class_="text")


def _problem(model: str, problem: Problem) -> Html:
    badge = tag("span", LABELS[problem.severity], class_=f"badge {problem.severity}")
    who: list[Child] = []
    for agent in problem.agents:
        who += [" ", tag("a", agent, href=url("models", model, "agents", agent))]
    at = [" · ", when(problem.at)] if problem.at is not None else None
    head = tag("p", badge, " ", problem.what, who, at, " ", word_link(problem.word))
    advice = tag("p", tag("strong", "What to do: "), marked(problem.advice), class_="text") if problem.advice else None
    return tag("li", head, advice)


def _missing(model: str, report: ProblemReport) -> Html:
    if not report.missing:
        return tag("div", tag("h2", "Nobody is missing"))
    n = len(report.missing)
    rest = tag("p", f"and {count(n - MAX_SHOWN)} more", class_="text") if n > MAX_SHOWN else None
    where = tag("a", "Agents, longest silent first", href=url("models", model, "agents", sort="last_seen"))
    items = [_agent(model, agent) for agent in report.missing[:MAX_SHOWN]]
    title = f"Who is missing: {plural(n, 'agent')}"
    return tag("div", tag("h2", title), tag("ul", items, class_="now-list"), rest, tag("p", where, class_="text"))


def _agent(model: str, missing: MissingAgent) -> Html:
    badge = tag("span", STATES[missing.state], class_="badge warn")
    link = tag("a", missing.agent, href=url("models", model, "agents", missing.agent))
    head = tag("p", badge, " ", link, " ", tag("span", missing.what), " ", word_link("next-upload"))
    return tag("li", head, tag("p", tag("strong", "What to do: "), marked(missing.advice), class_="text"))
