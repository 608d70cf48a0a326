"""Copy the figures of finished studies into docs/figures, and their answers into docs/studies.md.

    python scripts/renew_studies_page.py runs/full

The directory is one that `fedbandit study all --full --out runs/full` wrote; nothing is run.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fedbandit.experiments.laboratory import answered
from fedbandit.experiments.report import Section
from fedbandit.experiments.studies import STUDIES
from fedbandit.experiments.study import saved_plans

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN, END = "<!-- answers: written by scripts/renew_studies_page.py -->", "<!-- end of answers -->"


def main(root: Path) -> None:
    """Draw every study that has runs there, and rewrite the page between its two marks."""
    names = [name for name in STUDIES if name in saved_plans(root)]
    sections = [answered(STUDIES[name], root, root) for name in names]
    for section in sections:
        (DOCS / "figures" / f"{section.name}.svg").write_text(section.svg, encoding="utf-8")
    page = DOCS / "studies.md"
    text = page.read_text(encoding="utf-8")
    answers = "\n".join([BEGIN, "", *map(as_markdown, sections), END])
    page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: answers, text, flags=re.DOTALL), encoding="utf-8")


def as_markdown(section: Section) -> str:
    """A section of the page: question, answer, figure."""
    sentence = section.sentence.replace("*", "\\*")
    rounds = section.n_rounds / 1e6
    cost = f"{section.n_runs:,} runs, {rounds:,.1f} million rounds, {section.seconds:,.0f} s of processor time"
    return (
        f"### {section.question}\n\n{sentence}\n\n![{section.caption}](figures/{section.name}.svg)\n\n"
        f"{section.caption} ({cost}: `{section.command}`.)\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
