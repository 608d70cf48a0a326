"""One self-contained HTML page: per question an answer, a figure, tables, and the command that remakes them."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from fedbandit.experiments.output.svg import inline_svg
from fedbandit.experiments.output.tables import Table
from fedbandit.experiments.run_store import FailedRun

LONG_TABLE = 14  # rows


@dataclass(frozen=True, slots=True)
class Section:
    """One study in the report."""

    name: str
    question: str
    sentence: str
    svg: str
    caption: str
    tables: Sequence[Table]
    notes: Sequence[str]
    command: str
    size: str
    n_runs: int
    n_rounds: int
    seconds: float
    failures: Sequence[FailedRun]
    versions: Sequence[Mapping[str, str]]


def render(sections: Sequence[Section], *, title: str = "Results of the studies") -> str:
    """The whole page."""
    style = resources.files("fedbandit.experiments.output").joinpath("report.css").read_text(encoding="utf-8")
    contents = "".join(f'<li><a href="#{s.name}">{html.escape(s.question)}</a></li>' for s in sections)
    body = "\n".join(map(_section, sections))
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>fedbandit: {html.escape(title.lower())}</title>\n<style>{style}</style></head>\n"
        f'<body><header><p class="brand">fedbandit</p><h1>{html.escape(title)}</h1>'
        f'<p class="lede">{_overview(sections)}</p><nav><ol>{contents}</ol></nav></header>\n'
        f"<main>{body}</main>\n<footer>{_provenance(sections)}</footer></body></html>\n"
    )


def _overview(sections: Sequence[Section]) -> str:
    runs, rounds = sum(s.n_runs for s in sections), sum(s.n_rounds for s in sections)
    failed = sum(len(s.failures) for s in sections)
    text = f"{len(sections)} questions, {runs:,} simulated runs, {_million(rounds)} rounds. "
    text += (
        "Means are over seeds; what stands behind ± or in brackets is a 95 % interval of the mean (not a standard "
        "deviation). Every sentence is computed from the runs below it, and claims only what its interval implies."
    )
    return text + (f" <strong>{failed} runs failed.</strong>" if failed else "")


def _section(section: Section) -> str:
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in section.notes)
    tables = "\n".join(map(_table, section.tables))
    return (
        f'<section id="{section.name}"><p class="kicker">{section.name}</p><h2>{html.escape(section.question)}</h2>'
        f'<p class="answer">{_prose(section.sentence)}</p>{_failures(section)}'
        f'<figure><div class="wide">{inline_svg(section.svg, section.name, section.caption)}</div>'
        f"<figcaption>{html.escape(section.caption)}</figcaption></figure>"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
        + tables
        + f'<p class="remake">{section.n_runs:,} runs, {_million(section.n_rounds)} rounds, '
        f"{section.seconds:,.0f} s of processor time. Make it again:</p>"
        f"<pre>{html.escape(section.command)}</pre></section>"
    )


def _prose(text: str) -> str:
    """A sentence as HTML; exponents written `T^0.5` are raised."""
    return re.sub(r"\^(-?\d+(?:\.\d+)?)", r"<sup>\1</sup>", html.escape(text)).replace("<sup>-", "<sup>−")


def _table(table: Table) -> str:
    """A table, folded if it is long."""
    shown = " open" if len(table.rows) <= LONG_TABLE else ""
    name = html.escape(table.title)
    return f'<details{shown}><summary>{name}</summary><div class="wide">{table.to_html()}</div></details>'


def _failures(section: Section) -> str:
    if not section.failures:
        return ""
    items = "".join(
        f"<li><code>{html.escape(f.spec_id)}</code>, seed {f.seed}: {html.escape(f.error)}</li>"
        for f in section.failures[:20]
    )
    more = f"<li>and {len(section.failures) - 20} more</li>" if len(section.failures) > 20 else ""
    headline = f"<strong>{len(section.failures)} runs failed and are left out.</strong>"
    return f'<div class="failed">{headline}<ul>{items}{more}</ul></div>'


def _provenance(sections: Sequence[Section]) -> str:
    kinds = {tuple(sorted(v.items())) for section in sections for v in section.versions}
    lines = [", ".join(f"{name} {number}" for name, number in kind) for kind in sorted(kinds)]
    return "<p>Made with " + html.escape("; and with ".join(lines)) + ".</p>"


def _million(n_rounds: int) -> str:
    return f"{n_rounds / 1e6:,.1f} million" if n_rounds >= 1e6 else f"{n_rounds:,}"
