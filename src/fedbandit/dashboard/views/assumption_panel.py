"""The panel of a model's assumptions: each with its state, its evidence and what to do."""

from __future__ import annotations

from fedbandit.dashboard.components import exports, marked, panel
from fedbandit.dashboard.markup import Html, tag
from fedbandit.service.assumptions import AssumptionCheck
from fedbandit.service.formatting import count
from fedbandit.service.monitor import MonitorReport

STATES = {"held": "good", "contradicted": "bad", "assumed": ""}
WORDS = {"held": "tested, held", "contradicted": "contradicted", "assumed": "assumed"}
ORDER = ("contradicted", "held", "assumed")


def assumptions(report: MonitorReport) -> Html:
    """All checks, contradicted ones first."""
    checks = sorted(report.checks, key=lambda check: ORDER.index(check.state))
    what = tag(
        "details",
        tag("summary", "What do the states mean?"),
        tag(
            "p",
            "Held: tested, and not contradicted at the level that stands in the evidence. Contradicted: data like "
            "these would be that unlikely if the assumption were true. Assumed: the sums on the server cannot test "
            "it, or not yet. Nothing here is ever confirmed.",
        ),
    )
    note = f"at version {count(report.insight.model.version)}"
    listed = tag("ul", [_check(check) for check in checks], class_="checks")
    files = exports(report.insight.model.settings.name, "assumptions")
    return panel("Assumptions", listed, what, note=note, word="assumptions", files=files)


def _check(check: AssumptionCheck) -> Html:
    state = tag("span", WORDS[check.state], class_=f"badge {STATES[check.state]}".strip())
    advice = tag("p", tag("strong", "What to do: "), marked(check.advice), class_="text") if check.advice else None
    return tag(
        "li",
        tag("p", state, " ", tag("strong", check.assumption)),
        tag("p", check.evidence, class_="text quiet"),
        advice,
    )
