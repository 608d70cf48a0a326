"""`fedbandit study`: answer a question by simulation, with a figure and intervals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbandit.cli.files import check_directory
from fedbandit.core.arrays import whole_at_least
from fedbandit.errors import InvalidParameter, MissingExtra

if TYPE_CHECKING:
    from fedbandit.experiments.study import Study
    from fedbandit.experiments.sweep import Cluster, Tally

DEFAULT_OUT = Path("runs/studies")
INTERRUPTED = 130  # the exit status of shells after Ctrl-C


def study(
    name: Annotated[str | None, typer.Argument(help="A study, or 'all'; see --list.")] = None,
    full: Annotated[
        bool, typer.Option("--full/--quick", help="Full size (up to an hour for all studies) or a quick version.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Directory for runs, figures, tables and report.html (default: runs/studies).")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Redraw from the runs in this directory; nothing is run.")
    ] = None,
    engine: Annotated[str, typer.Option(help="'local' processes, or 'ray'.")] = "local",
    address: Annotated[str | None, typer.Option(help="Ray: address of the cluster (default: a local one).")] = None,
    jobs: Annotated[int | None, typer.Option(help="Number of processes (default: all cores).")] = None,
    show: Annotated[bool, typer.Option("--list", help="List the studies and exit.")] = False,
) -> None:
    """Answer a question by simulation: runs, a figure with intervals, tables, and one HTML page.

    It can be interrupted at any time; the same command resumes it. Exit status 1 means that some runs failed.
    """
    studies = _chosen(name, show=show)
    if studies is None:
        return
    cluster = _cluster(engine, address, jobs)
    if source is not None:
        _report(_those_with_runs(studies, name, source), source, check_directory(out or source, "--out"))
        return
    root = check_directory(out or DEFAULT_OUT, "--out")
    tally = _run(studies, "full" if full else "quick", root, jobs, cluster)
    _report(studies, root, root)
    _end(tally)


def _chosen(name: str | None, *, show: bool) -> list[Study] | None:
    try:
        from fedbandit.experiments.studies import STUDIES, chosen
    except ImportError as error:
        raise MissingExtra(f"studies need the lab extra: install fedbandit[lab] ({error})") from error
    if show or name is None:
        width = max(map(len, STUDIES))
        for each in STUDIES.values():
            typer.echo(f"{each.name:<{width}}  {each.question}")
        return None
    return chosen(name)


def _cluster(engine: str, address: str | None, jobs: int | None) -> Cluster | None:
    from fedbandit.experiments.sweep import Cluster

    if jobs is not None:
        whole_at_least(jobs, 1, "jobs")
    if engine not in ("local", "ray"):
        raise InvalidParameter(f"expected engine 'local' or 'ray', got {engine!r}")
    if engine == "local":
        if address is not None:
            raise InvalidParameter("an address is for --engine ray")
        return None
    return Cluster(address, n_cpus=jobs)


def _run(studies: list[Study], size: str, out: Path, jobs: int | None, cluster: Cluster | None) -> Tally:
    from fedbandit.experiments.output.progress import progress_bar
    from fedbandit.experiments.run_store import RunStore
    from fedbandit.experiments.study import Size
    from fedbandit.experiments.study_runner import plan_all
    from fedbandit.experiments.sweep import pending, sweep

    tasks = plan_all(studies, Size(size), out)
    waiting = pending(RunStore(out), tasks)
    typer.echo(f"{len(waiting)} runs to make, {len(set(tasks)) - len(waiting)} found in {out}", err=True)
    try:
        with progress_bar(waiting, title=studies[0].name if len(studies) == 1 else "all studies") as watch:
            return sweep(RunStore(out), tasks, n_jobs=jobs, cluster=cluster, watch=watch)
    except KeyboardInterrupt:
        left = len(pending(RunStore(out), tasks))
        typer.echo(f"interrupted with {left} runs left; the same command resumes here", err=True)
        sys.exit(INTERRUPTED)


def _those_with_runs(studies: list[Study], name: str | None, source: Path) -> list[Study]:
    """The studies with runs in a directory; a study given by name must be among them."""
    from fedbandit.experiments.study import saved_plans

    there = saved_plans(source)
    if name == "all":
        studies = [each for each in studies if each.name in there]
        if not studies:
            raise InvalidParameter(f"{source} has no runs of any study")
    return studies


def _report(studies: list[Study], root: Path, out: Path) -> None:
    from fedbandit.experiments.study_runner import answered, write_report

    sections = []
    for each in studies:
        section = answered(each, root, out)
        sections.append(section)
        typer.echo(f"\n{each.question}\n  {section.sentence}")
    typer.echo(f"\n{write_report(sections, out)}")


def _end(tally: Tally) -> None:
    for failure in tally.failures[:10]:
        typer.echo(f"failed: {failure.spec_id}, seed {failure.seed}: {failure.error}", err=True)
    if tally.failures:
        typer.echo(f"{len(tally.failures)} runs failed; the same command retries them", err=True)
        raise typer.Exit(1)
