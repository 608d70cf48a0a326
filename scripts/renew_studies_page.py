"""Copy the figures of finished studies into docs/figures, and their answers into docs/studies.md.

    python scripts/renew_studies_page.py runs/full

The directory is one that `fedbandit study all --full --out runs/full` wrote; nothing is run. Answers of studies that
have no runs there, or not all of them, stay as they are.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fedbandit.experiments.output.report import Section
from fedbandit.experiments.studies import STUDIES
from fedbandit.experiments.study import read_results, saved_plans
from fedbandit.experiments.study_runner import answered

DOCS = Path(__file__).resolve().parents[1] / "docs"
BEGIN, END = "<!-- answers: written by scripts/renew_studies_page.py -->", "<!-- end of answers -->"


def main(root: Path) -> None:
    """Draw every study that has runs there, and rewrite the page between its two marks."""
    names = [name for name in STUDIES if name in saved_plans(root) and is_complete(root, name)]
    sections = [answered(STUDIES[name], root, root) for name in names]
    for section in sections:
        (DOCS / "figures" / f"{section.name}.svg").write_text(section.svg, encoding="utf-8")
        for other in (root / "figures").glob(f"{section.name}-*.svg"):
            (DOCS / "figures" / other.name).write_bytes(other.read_bytes())
    page = DOCS / "studies.md"
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    answers, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}{renewed(answers, sections)}{END}{after}", encoding="utf-8")


def is_complete(root: Path, name: str) -> bool:
    """Whether all planned runs are there; a study without some of them is named and left as it is."""
    missing = read_results(root, name).n_missing
    if missing:
        print(f"{name}: {missing} runs are missing; its answer on the page stays", file=sys.stderr)
    return missing == 0


def renewed(answers: str, sections: list[Section]) -> str:
    """The page's answers, with those of these sections in the place of what stood there; the others stay."""
    command = re.compile(r"`fedbandit study (\w+) --\w+`")
    kept = {found[1]: part for part in re.split(r"(?m)^(?=### )", answers) if (found := command.search(part))}
    kept |= {section.name: as_markdown(section) + "\n" for section in sections}
    return "\n\n" + "".join(kept[name] for name in STUDIES if name in kept)


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
