"""Every example runs as a stranger would run it, answers, and draws its figure; the committed figures are there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NAMES = ("news", "doses", "prices", "sleepers")
NUMBER = r"-?[\d,]+(?:\.\d+)?"


def run(name: str, figure: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), "--quick", "--figure", str(figure)],
        cwd=figure.parent,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert done.stderr == "", "an example has nothing to complain about"
    return done.stdout


def number_after(text: str, way: str, label: str = "") -> float:
    """The first number of a way's line, after a label if one is given."""
    (line,) = re.findall(rf"^  {way}  .*$", text, re.MULTILINE)
    found = re.search(rf"{label}\s*({NUMBER})", line.removeprefix(f"  {way}"))
    assert found is not None, line
    return float(found[1].replace(",", ""))


def words_of(svg: Path) -> str:
    """Text is drawn as paths; matplotlib leaves it in comments, which ElementTree would drop."""
    ElementTree.parse(svg)
    return " ".join(re.findall(r"<!-- (.*?) -->", svg.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_answers_and_draws(name: str, tmp_path: Path) -> None:
    out = run(name, tmp_path / f"{name}.svg")
    label = {"news": "", "doses": "missed per patient", "prices": "all", "sleepers": "last third"}[name]
    alone, shared = (number_after(out, way, label) for way in ("alone", "all shared"))
    # Prices tell what was won, the others what was missed. Quick runs are rough; alone and all shared are far apart.
    assert alone < shared if name == "prices" else alone > shared
    drawn = words_of(tmp_path / f"{name}.svg")
    assert all(way in drawn for way in ("alone", "together", "all shared"))
    if name == "sleepers":
        counted = re.search(rf"counted by the server: ({NUMBER}) of ({NUMBER}); rewards agree", out)
        assert counted is not None and counted[1] == counted[2]
        n_alone = re.search(r"; (\d+) wake-ups without a server", out)
        assert n_alone is not None and int(n_alone[1]) > 0, "no device woke during the outage"


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_figure_is_small_says_what_it_shows_and_stands_in_the_page(name: str) -> None:
    figure = ROOT / "docs" / "figures" / f"examples-{name}.svg"
    assert figure.stat().st_size < 200_000
    assert f"examples/{name}.py" in words_of(figure)
    assert "synthetic" in words_of(figure)
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert f"(figures/examples-{name}.svg)" in page and f"python examples/{name}.py" in page


def test_every_example_has_a_test() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*NAMES, "fleets"}
