"""Figures as SVG text: the same bytes for the same data, with the spec ids inside."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence

from matplotlib.figure import Figure

from fedbandit.experiments.output.figures import BLUE, FAINT, INK, PAPER, QUIET, in_style


def to_svg(figure: Figure, *, title: str, study: str, spec_ids: Sequence[str]) -> str:
    """The figure as SVG text, the same for the same data: no date, fixed ids; spec ids in the metadata and below."""
    with in_style():
        rest = f" and {len(spec_ids) - 2} more" if len(spec_ids) > 2 else ""
        foot = f"fedbandit study {study} · {', '.join(spec_ids[:2])}{rest}"
        figure.supxlabel(foot, x=0.01, ha="left", fontsize=6.5, color=QUIET)
        out = io.StringIO()
        figure.savefig(
            out,
            format="svg",
            metadata={
                "Date": None,
                "Creator": "fedbandit",
                "Title": title,
                "Description": f"study {study}; specs {' '.join(spec_ids)}",
            },
        )
    return re.sub(r"[ \t]+$", "", out.getvalue(), flags=re.MULTILINE)


def inline_svg(svg: str, prefix: str, label: str = "") -> str:
    """An SVG file as part of an HTML page: ids of its own, colours that follow the page's light and dark."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', body)
    body = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", body)
    body = re.sub(r'xlink:href="#([^"]+)"', rf'href="#{prefix}-\1"', body)
    body = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", body)
    body = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", body, count=1)
    body = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", body, count=1)
    body = body.replace("<svg ", f'<svg role="img" aria-label="{html.escape(label)}" ', 1)
    for colour, name in ((INK, "ink"), (PAPER, "paper"), (FAINT, "faint"), (QUIET, "quiet"), (BLUE, "blue")):
        body = body.replace(colour, f"var(--{name}, {colour})")
    return body
