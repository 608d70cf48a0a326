"""What newcomers meet first is true: README, CONTRIBUTING, CITATION and the files of the code host."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from PIL import Image

from fedbandit.registry import TRAITS
from tests.documentation.blocks import ROOT, blocks_of
from tests.installed import install

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


ADDED = next(block for block in blocks_of(ROOT / "CONTRIBUTING.md") if block.title == "periodic_ucb.py")
NEW_WORLD = """
from dataclasses import dataclass
from typing import ClassVar
from fedbandit.simulation.participation import Zipf
from fedbandit.simulation.worlds import Uniform

@dataclass(frozen=True, kw_only=True)
class Small(Uniform):
    name: ClassVar[str] = "small"
    dim: int = 2

@dataclass(frozen=True)
class Steep(Zipf):
    name: ClassVar[str] = "steep"
    exponent: float = 3.0
"""
NEW_WORLD_POINTS = {
    "fedbandit.worlds": {"small": "small_world:Small"},
    "fedbandit.participation": {"steep": "small_world:Steep"},
    "fedbandit.algorithms": {"broken": "no_such_module:RULE"},
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's algorithm as a package, and a package with a world, a pattern and a broken entry."""
    folder = tmp_path_factory.mktemp("installed")
    toml = next(block for block in blocks_of(ROOT / "CONTRIBUTING.md") if block.language == "toml")
    points = tomllib.loads(toml.code)["project"]["entry-points"]
    install(folder, "periodic_ucb", ADDED.code, points)
    return install(folder, "small_world", NEW_WORLD, NEW_WORLD_POINTS)


def python(*words: str, first: Path) -> subprocess.CompletedProcess[str]:
    """Run Python in the repository with this folder before all others."""
    path = os.pathsep.join([str(first), str(ROOT / "src")])
    command = [sys.executable, *words]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


def test_the_traits_on_the_page_are_those_of_the_registry() -> None:
    shown = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", CONTRIBUTING, re.MULTILINE))
    assert shown.items() >= dict(TRAITS).items()


def test_an_installed_algorithm_joins_the_contract_suite(installed: Path) -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore::fedbandit.errors.BrokenEntryPoint")
    done = python(*words, "tests/contracts/test_agents.py", "-k", "periodic-ucb", first=installed)
    assert done.returncode == 0, done.stdout
    assert int(re.findall(r"(\d+) passed", done.stdout)[0]) > 60


def test_an_installed_algorithm_is_checked_saved_and_named_in_specs(installed: Path) -> None:
    program = """
import fedbandit as fb
from fedbandit.experiments.spec import RunSpec, make_spec
from periodic_ucb import PeriodicUCB
rule = PeriodicUCB(dim=2, beta=0.5, period=4)
print(len(fb.testing.check_algorithm(rule)))
print(type(fb.load(rule.agent("a").to_bytes())).__name__)
from small_world import Small, Steep
spec = make_spec(rule, Small(), n_agents=3, n_rounds=50, participation=Steep())
again = RunSpec.from_dict(spec.to_dict())
print(again.make_world() == Small() and again.make_participation() == Steep() and again.make_rule().period)
print(spec.id)
"""
    done = python("-c", program, first=installed)
    n_contracts, agent, period, name = done.stdout.split()
    assert int(n_contracts) > 30
    assert (agent, period) == ("PeriodicAgent", "4")
    assert name.startswith("periodicucb-small-d2-m3-p4-")


def test_an_installed_algorithm_world_and_pattern_are_options_of_the_command_line(installed: Path) -> None:
    run = ("-m", "fedbandit", "simulate", "--algorithm", "periodic-ucb", "--rounds", "60", "--agents", "3")
    done = python(*run, "--period", "5", "--world", "small", "--participation", "steep", "--json", first=installed)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["messages"] > 0
    assert "the algorithm 'broken' of small_world (no_such_module:RULE) cannot be loaded" in done.stderr
    refused = python(*run, "--threshold", "5", first=installed)
    assert refused.returncode == 2
    assert "--threshold is no option of periodic-ucb, which has --period" in refused.stderr
    shown = " ".join(python("-m", "fedbandit", "simulate", "--help", first=installed).stdout.split())
    assert "--period" in shown and "periodic-ucb: observations between two" in shown


def test_a_broken_package_does_not_break_help_and_is_named_when_it_is_asked_for(installed: Path) -> None:
    shown = python("-m", "fedbandit", "--help", first=installed)
    assert (shown.returncode, shown.stderr) == (0, "")
    asked = python("-m", "fedbandit", "simulate", "--algorithm", "broken", first=installed)
    assert asked.returncode == 2
    assert "unusable_entry_point: the algorithm 'broken' of small_world" in asked.stderr
    assert "Traceback" not in asked.stderr


def test_a_file_and_a_line_add_the_algorithm_to_the_library_its_commands_and_its_reference(tmp_path: Path) -> None:
    package = tmp_path / "fedbandit"
    shutil.copytree(ROOT / "src" / "fedbandit", package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "algorithms" / ADDED.title).write_text(ADDED.code, encoding="utf-8")
    line = next(block.code for block in blocks_of(ROOT / "CONTRIBUTING.md") if '"periodic-ucb": "' in block.code)
    catalog = package / "algorithms" / "catalog.py"
    text = catalog.read_text(encoding="utf-8")
    catalog.write_text(text.replace('        "fedlinucb"', f'        {line}        "fedlinucb"', 1), encoding="utf-8")
    program = """
import fedbandit as fb
from scripts.make_reference import pages
from scripts.reference_api import described, meaning
assert all(meaning(*each) for each in described())
texts = {path.stem: text for path, text in pages().items()}
print("## fb.PeriodicUCB" in texts["algorithms"], "periodic-ucb: observations between" in texts["cli"])
print(fb.PeriodicUCB(dim=2, beta=0.5).period)
"""
    done = python("-c", program, first=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:3] == ["True", "True", "10"]
    files = ("tests/contracts/test_agents.py", "tests/test_registry.py")
    suites = python("-m", "pytest", "-q", "-p", "no:cacheprovider", *files, first=tmp_path)
    assert suites.returncode == 0, suites.stdout
