"""A study: a question, the runs that answer it, and their analysis."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedbandit.durable_files import write_whole
from fedbandit.errors import FormatError, InvalidParameter
from fedbandit.experiments.output.tables import Table
from fedbandit.experiments.results import Cell, Results
from fedbandit.experiments.run_store import RunStore
from fedbandit.experiments.spec import RunSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = ("tiny", "quick", "full")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Size:
    """How much a study runs: `full` for committed figures, `quick` for a first look, `tiny` for tests."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in SIZES:
            raise InvalidParameter(f"expected a size among {', '.join(SIZES)}, got {self.name!r}")

    def pick(self, *, tiny: T, quick: T, full: T) -> T:
        """The one of three values that belongs to this size."""
        return {"tiny": tiny, "quick": quick, "full": full}[self.name]

    def seeds(self, *, quick: int, full: int, tiny: int = 2) -> tuple[int, ...]:
        """The seeds 0, 1, … of this size."""
        return tuple(range(self.pick(tiny=tiny, quick=quick, full=full)))


@dataclass(frozen=True, slots=True)
class StudyAnswer:
    """The result of a study: a sentence computed from the runs, the figure, the tables, and notes.

    `others` are figures beside the report's own, by the suffix of the study's name in their file names.
    """

    sentence: str
    figure: Figure
    caption: str
    tables: Sequence[Table]
    notes: Sequence[str] = ()
    others: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Study:
    """A question with its plan of runs and its analysis."""

    name: str
    question: str
    plan: Callable[[Size], list[Cell]]
    analyse: Callable[[Results], StudyAnswer]

    def command(self, size: str) -> str:
        """The command that makes this study again."""
        return f"fedbandit study {self.name}" + (f" --{size}" if size != "tiny" else "")


def tasks_of(cells: Sequence[Cell]) -> list[tuple[RunSpec, int]]:
    """Every spec with every seed."""
    return [(cell.spec, seed) for cell in cells for seed in cell.seeds]


def save_plan(root: Path, name: str, size: str, cells: Sequence[Cell]) -> None:
    """Save the plan of a study, so that its runs can be read after the study has changed."""
    plan = {"study": name, "size": size, "cells": [_cell_to_dict(cell) for cell in cells]}
    write_whole(root / "plans" / f"{name}.json", json.dumps(plan, indent=1, ensure_ascii=False).encode())


def load_plan(root: Path, name: str) -> tuple[str, list[Cell]]:
    """The size and the cells that `save_plan` wrote."""
    path = root / "plans" / f"{name}.json"
    if not path.is_file():
        raise InvalidParameter(f"{root} has no runs of the study {name!r}; make them by: fedbandit study {name}")
    try:
        plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return str(plan["size"]), [_cell_from_dict(cell) for cell in plan["cells"]]
    except (KeyError, ValueError, TypeError) as error:
        raise FormatError(f"{path} is no plan that fedbandit wrote: {error}") from None


def saved_plans(root: Path) -> list[str]:
    """The studies whose runs are in a directory."""
    return sorted(path.stem for path in (root / "plans").glob("*.json"))


def read_results(root: Path, name: str) -> Results:
    """The runs of a study that are on disk."""
    size, cells = load_plan(root, name)
    return Results.read(RunStore(root), cells, size)


def _cell_to_dict(cell: Cell) -> dict[str, Any]:
    return {"keys": dict(cell.keys), "id": cell.spec.id, "spec": cell.spec.to_dict(), "seeds": list(cell.seeds)}


def _cell_from_dict(data: dict[str, Any]) -> Cell:
    return Cell(data["keys"], RunSpec.from_dict(data["spec"]), tuple(data["seeds"]))
