"""What newcomers meet first is true: README, CONTRIBUTING, CITATION and the files of the code host."""

from __future__ import annotations

import re
import tomllib

import yaml
from PIL import Image

from tests.documentation.blocks import ROOT, blocks_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_readme_shows_a_short_example_within_its_first_45_lines() -> None:
    first = next(block for block in blocks_of(ROOT / "README.md") if block.language == "python")
    lines = [line for line in first.code.splitlines() if line.strip()]
    assert len(lines) <= 10
    assert first.line + len(first.code.splitlines()) <= 45


def test_the_badges_say_what_the_project_file_says() -> None:
    badges = " ".join(re.findall(r"^\[!\[([^\]]*)\]", README, re.MULTILINE))
    assert PROJECT["license"] in badges
    assert PROJECT["requires-python"].removeprefix(">=") in badges
    assert ("Development Status :: 3 - Alpha" in PROJECT["classifiers"]) == ("alpha" in badges)
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_moving_picture_lasts_fifteen_seconds_and_is_small() -> None:
    path = ROOT / "docs" / "assets" / "fleet.gif"
    assert "docs/assets/fleet.gif" in README and path.stat().st_size < 1_000_000
    with Image.open(path) as picture:
        lasts_ms = 0
        for frame in range(picture.n_frames):  # type: ignore[attr-defined]
            picture.seek(frame)
            lasts_ms += picture.info["duration"]
    assert 14_000 <= lasts_ms <= 16_000


def test_every_place_and_target_that_the_contributing_page_names_exists() -> None:
    _, table = CONTRIBUTING.split("## Where additions go")
    places = re.findall(r"`((?:src|tests|docs|examples)/[^`]*)`", CONTRIBUTING)
    assert len(places) > 10
    assert [place for place in places if not (ROOT / place).exists()] == []
    for names, place in re.findall(r"`([A-Z][A-Za-z_]+)`(?: of| in) `(src/[^`]*)`", table):
        assert re.search(rf"^(class )?{names}\b", (ROOT / place).read_text(encoding="utf-8"), re.MULTILINE), names
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:`|^)make ([a-z-]+)", CONTRIBUTING, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_citation_has_the_version_and_licence_of_the_project() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0" and citation["message"] and citation["authors"]
    assert (str(citation["version"]), citation["license"]) == (PROJECT["version"], PROJECT["license"])


def test_the_code_host_runs_what_everybody_can_run() -> None:
    folder = ROOT / ".github"
    jobs = yaml.safe_load((folder / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    for form in (folder / "ISSUE_TEMPLATE").glob("*.yml"):
        assert {"name", "description", "body"} <= yaml.safe_load(form.read_text(encoding="utf-8")).keys(), form.name
