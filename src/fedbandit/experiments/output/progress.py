"""A progress bar over rounds: speed, time left and failed runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from fedbandit.experiments.sweep import Finished, Task, Watch


@contextmanager
def progress_bar(tasks: Sequence[Task], *, title: str = "runs") -> Iterator[Watch]:
    """A context that shows progress; yields the function to call with each finished run."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        disable=not console.is_terminal,
    )
    row = bar.add_task(title, total=len(tasks), speed="", left="")
    clock = _Clock(sum(spec.n_rounds for spec, _ in tasks))

    def watch(finished: Finished) -> None:
        clock.done(finished.task[0].n_rounds, bar.tasks[0].elapsed or 0.0)
        bar.update(row, advance=1, speed=clock.speed, left=clock.left)
        if finished.failure is not None:
            console.print(f"failed: {finished.failure.spec_id}, seed {finished.failure.seed}: {finished.failure.error}")

    with bar:
        yield watch


class _Clock:
    """Speed and time left, from rounds done and seconds gone."""

    def __init__(self, n_rounds: int) -> None:
        self.total, self.n_done, self.seconds = n_rounds, 0, 0.0

    def done(self, n_rounds: int, seconds: float) -> None:
        self.n_done += n_rounds
        self.seconds = seconds

    @property
    def speed(self) -> str:
        return f"{self.n_done / self.seconds:,.0f} rounds/s" if self.seconds > 0 else ""

    @property
    def left(self) -> str:
        if self.n_done == 0 or self.seconds <= 0:
            return ""
        seconds = (self.total - self.n_done) * self.seconds / self.n_done
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d} left"
