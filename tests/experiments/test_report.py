"""The command from runs to report: redrawing, failures that are not hidden, and a page that needs no network."""

import html.parser
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from fedbandit.cli.study import study
from fedbandit.errors import InvalidParameter
from fedbandit.experiments.output.figures import SERIES, line, panels
from fedbandit.experiments.output.tables import Table
from fedbandit.experiments.results import Cell
from fedbandit.experiments.studies import STUDIES
from fedbandit.experiments.study import Size, Study, StudyAnswer, load_plan, saved_plans
from fedbandit.experiments.study_runner import conduct, present
from tests.experiments.specs import make_small_spec, named

LOADS = {"src", "srcset", "data", "poster", "background", "action"}


class Links(html.parser.HTMLParser):
    """Everything that a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in LOADS or (name.endswith("href") and tag != "a"):
                self.found.append(value)


def fetched_by(page: str) -> list[str]:
    links = Links()
    links.feed(page)
    styles = re.findall(r"@import[^;]*|url\((?!#)[^)]*\)", page)
    return [link for link in links.found if not (link or "").startswith("#")] + styles


def make_study(driver: str = "fine") -> Study:
    def plan(size: Size) -> list[Cell]:
        return [Cell({"alpha": a}, make_small_spec(driver=named(driver), alpha=a), (0, 1)) for a in (1.0, 2.0)]

    def analyse(results):
        figure, (axis,) = panels(1, 1)
        line(axis, [1, 2], [1, 2], SERIES[0])
        mean = results.one(alpha=1.0).mean("regret").mean
        return StudyAnswer(f"The mean is {mean:.2f} & that's it.", figure, "caption", [Table("t", ["x"], [[mean]])])

    return Study("small", "Is it < small?", plan, analyse)


def test_a_report_needs_nothing_from_anywhere(tmp_path):
    one = make_study()
    conduct([one], Size("tiny"), tmp_path, n_jobs=2)
    page = present([one], tmp_path, tmp_path / "out").read_text(encoding="utf-8")
    assert fetched_by(page) == []
    assert "http" not in page
    assert "<script" not in page
    assert "The mean is 0.50 &amp; that&#x27;s it." in page
    assert "Is it &lt; small?" in page
    assert one.command("quick") == "fedbandit study small --quick"
    assert (tmp_path / "out" / "figures" / "small.svg").is_file()
    assert (tmp_path / "out" / "tables" / "small-all.csv").is_file()


def test_what_would_be_fetched_is_found():
    assert fetched_by('<img src="https://x/y.png"><link href="z.css"><a href="https://fine">f</a>') == [
        "https://x/y.png",
        "z.css",
    ]


def test_failed_runs_stand_in_the_report_and_the_rest_is_answered(tmp_path):
    one = make_study("failing")
    tally = conduct([one], Size("tiny"), tmp_path, n_jobs=2)
    assert len(tally.failures) == 2
    page = present([one], tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "2 runs failed and are left out" in page
    assert "ArithmeticError: seed 1 is odd" in page
    assert "The mean is 0.00" in page


def test_a_study_without_runs_has_no_answer_and_says_so(tmp_path):
    one = make_study()
    conduct([one], Size("tiny"), tmp_path, n_jobs=2)
    for path in (tmp_path / "runs").rglob("*a1-*/*.parquet"):
        path.unlink()
    page = present([one], tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "No answer, because runs are missing" in page


def test_a_study_that_was_interrupted_says_how_many_runs_it_has(tmp_path):
    one = make_study()
    conduct([one], Size("tiny"), tmp_path, n_jobs=2)
    n_planned = len(list((tmp_path / "runs").rglob("*.parquet")))
    next((tmp_path / "runs").rglob("*.parquet")).unlink()
    page = present([one], tmp_path, tmp_path).read_text(encoding="utf-8")
    assert f"From {n_planned - 1} of {n_planned} planned runs: " in page


def test_an_interrupted_study_has_no_traceback(tmp_path):
    """Analyses read groups by their place; a group without runs is not there."""

    def analyse(results):
        return StudyAnswer(f"{results.where(alpha=1.0)[0]['alpha']}", panels(1, 1)[0], "")

    one = replace(make_study(), analyse=analyse)
    conduct([one], Size("tiny"), tmp_path, n_jobs=2)
    for path in (tmp_path / "runs").rglob("*.parquet"):
        path.unlink()
    page = present([one], tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "No answer, because runs are missing" in page


def test_a_plan_is_read_back_as_it_was_written(tmp_path):
    one = make_study()
    conduct([one], Size("tiny"), tmp_path, n_jobs=2)
    size, cells = load_plan(tmp_path, "small")
    assert size == "tiny"
    assert [(c.keys, c.spec, c.seeds) for c in cells] == [(c.keys, c.spec, c.seeds) for c in one.plan(Size("tiny"))]
    assert saved_plans(tmp_path) == ["small"]
    with pytest.raises(InvalidParameter, match="no runs of the study"):
        load_plan(tmp_path, "other")


# -- the command


def invoke(*words: str):
    app = Typer()
    app.command()(study)
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def small_studies(monkeypatch):
    def use(**made: Study) -> None:
        monkeypatch.setattr("fedbandit.experiments.studies.STUDIES", made)

    return use


def test_the_command_lists_every_study():
    lines = invoke("--list").output.strip().splitlines()
    assert [line.split()[0] for line in lines] == list(STUDIES)


def test_from_draws_again_without_running(tmp_path, small_studies, monkeypatch):
    small_studies(small=make_study())
    first = invoke("small", "--out", str(tmp_path / "a"), "--jobs", "2")
    assert first.exit_code == 0, first.output
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / "runs").rglob("*")}
    monkeypatch.setattr("fedbandit.experiments.sweep.in_processes", None)  # running anything now fails
    again = invoke("small", "--from", str(tmp_path / "a"), "--out", str(tmp_path / "b"))
    assert again.exit_code == 0, again.output
    assert (tmp_path / "b" / "report.html").read_text() == (tmp_path / "a" / "report.html").read_text()
    assert not (tmp_path / "b" / "runs").exists()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / "runs").rglob("*")} == before
    everything = invoke("all", "--from", str(tmp_path / "a"))
    assert everything.exit_code == 0
    assert "The mean is 0.50" in everything.output


def test_the_exit_status_tells_of_failed_runs(tmp_path, small_studies):
    small_studies(small=make_study("failing"))
    result = invoke("small", "--out", str(tmp_path), "--jobs", "2")
    assert result.exit_code == 1
    assert "2 runs failed" in result.output
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize(
    "words",
    [("nonsense",), ("bias", "--engine", "quantum"), ("bias", "--address", "x:1"), ("bias", "--from", "nowhere")],
)
def test_bad_options_are_named_errors(tmp_path, words):
    result = invoke(*words, *(() if "--from" in words else ("--out", str(tmp_path))))
    assert isinstance(result.exception, InvalidParameter)


def test_importing_the_package_or_the_command_loads_no_laboratory():
    program = "import sys, fedbandit, fedbandit.cli.study, fedbandit.cli.plan; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(run.stdout.split())
    assert not {"matplotlib", "pyarrow", "joblib", "numba", "fedbandit.experiments"} & loaded


def test_the_style_sheet_travels_with_the_package():
    import fedbandit.experiments as experiments

    assert (Path(experiments.__file__).parent / "output" / "report.css").is_file()
