"""From studies to files: run what is missing, answer each question, write figures, tables and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedbandit.durable_files import write_whole
from fedbandit.errors import FedbanditError
from fedbandit.experiments.output.figures import in_style, panels
from fedbandit.experiments.output.report import Section, render
from fedbandit.experiments.output.svg import to_svg
from fedbandit.experiments.output.tables import tidy
from fedbandit.experiments.results import Results
from fedbandit.experiments.run_store import RunStore
from fedbandit.experiments.study import Size, Study, StudyAnswer, read_results, save_plan, tasks_of
from fedbandit.experiments.sweep import Cluster, Tally, Watch, sweep
from fedbandit.experiments.workers import Task

REPORT = "report.html"


def plan_all(studies: Sequence[Study], size: Size, root: Path) -> list[Task]:
    """Save the plans of all studies; returns all their runs."""
    tasks: list[Task] = []
    for study in studies:
        cells = study.plan(size)
        save_plan(root, study.name, size.name, cells)
        tasks += tasks_of(cells)
    return tasks


def conduct(
    studies: Sequence[Study],
    size: Size,
    root: Path,
    *,
    n_jobs: int | None = None,
    cluster: Cluster | None = None,
    watch: Watch | None = None,
) -> Tally:
    """Run everything that the studies need and that is not in `root` yet, in one sweep."""
    return sweep(RunStore(root), plan_all(studies, size, root), n_jobs=n_jobs, cluster=cluster, watch=watch)


def present(studies: Sequence[Study], root: Path, out: Path) -> Path:
    """Answer every study from the runs in `root`; write figures, tables and the report to `out`."""
    return write_report([answered(study, root, out) for study in studies], out)


def write_report(sections: Sequence[Section], out: Path) -> Path:
    """Write the report of these sections; returns its path."""
    report = out / REPORT
    write_whole(report, render(sections).encode())
    return report


def answered(study: Study, root: Path, out: Path) -> Section:
    """One study's answer from the runs in `root`; its figure and tables are written to `out`."""
    results = read_results(root, study.name)
    answer = _answer(study, results)
    if results.n_missing:
        n_made = results.n_planned - results.n_missing
        answer = replace(answer, sentence=f"From {n_made:,} of {results.n_planned:,} planned runs: {answer.sentence}")
    svg = to_svg(answer.figure, title=study.question, study=study.name, spec_ids=results.spec_ids())
    write_whole(out / "figures" / f"{study.name}.svg", svg.encode())
    for word, figure in answer.others.items():
        other = to_svg(figure, title=study.question, study=study.name, spec_ids=results.spec_ids())
        write_whole(out / "figures" / f"{study.name}-{word}.svg", other.encode())
    for i, table in enumerate([*answer.tables, tidy(results)]):
        name = f"{study.name}-all" if i == len(answer.tables) else f"{study.name}-{i + 1}"
        write_whole(out / "tables" / f"{name}.csv", table.to_csv().encode())
    runs = [run for group in results for run in group.runs.values()]
    return Section(
        name=study.name,
        question=study.question,
        sentence=answer.sentence,
        svg=svg,
        caption=answer.caption,
        tables=answer.tables,
        notes=[*answer.notes, *results.bytes_notes()],
        command=study.command(results.size),
        size=results.size,
        n_runs=len(runs),
        n_rounds=sum(run.spec.n_rounds for run in runs),
        seconds=sum(run.seconds for run in runs),
        failures=results.failures,
        versions=[dict(kind) for kind in sorted({tuple(sorted(run.versions.items())) for run in runs})],
    )


def _answer(study: Study, results: Results) -> StudyAnswer:
    with in_style():
        try:
            return study.analyse(results)
        except (FedbanditError, LookupError, ArithmeticError, ValueError) as error:
            # Runs that failed, or were not made yet, may leave a question open; the report is written and says so.
            # Where all runs are present it is a defect of the study.
            if not results.n_missing:
                raise
            figure, (axis,) = panels(1, 1, height=1.0)
            axis.set_axis_off()
            axis.text(0.0, 0.5, "no figure: runs are missing", fontsize=11)
            return StudyAnswer(f"No answer, because runs are missing: {error}", figure, "", ())
