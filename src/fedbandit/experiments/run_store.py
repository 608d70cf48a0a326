"""Runs on disk: one parquet file each, with spec, seed, versions and seconds inside; written atomically."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fedbandit.durable_files import write_whole
from fedbandit.errors import FormatError
from fedbandit.experiments.drivers.base import Column, RunOutcome
from fedbandit.experiments.spec import RunSpec

KEY = b"fedbandit"
LIBRARIES = ("fedbandit", "numpy", "numba")


@dataclass(frozen=True, slots=True, eq=False)
class StoredRun:
    """A finished run: columns, single facts, and where they come from."""

    spec: RunSpec
    seed: int
    columns: Mapping[str, Column]
    facts: Mapping[str, float]
    seconds: float  # of processor time, so that a busy machine does not make a run look slow
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that ended with an error; kept until the run succeeds."""

    spec_id: str
    seed: int
    error: str  # the exception's name and message, one line
    traceback: str = ""


class RunStore:
    """A directory of runs: `runs/<spec id>/seed-7.parquet`."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def path(self, spec: RunSpec, seed: int) -> Path:
        """The path of a run."""
        return self.root / "runs" / spec.id / f"seed-{seed}.parquet"

    def has(self, spec: RunSpec, seed: int) -> bool:
        """Whether the run is finished."""
        return self.path(spec, seed).is_file()

    def save(self, spec: RunSpec, seed: int, outcome: RunOutcome, seconds: float) -> None:
        """Write a finished run; an earlier failure of it is deleted."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        header = {
            "spec": spec.to_dict(),
            "seed": seed,
            "seconds": seconds,
            "versions": versions(),
            "facts": dict(outcome.facts),
        }
        table = pa.table({name: np.asarray(column) for name, column in outcome.columns.items()})
        table = table.replace_schema_metadata({KEY: json.dumps(header).encode()})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        write_whole(self.path(spec, seed), sink.getvalue().to_pybytes())
        self._failed(spec.id, seed).unlink(missing_ok=True)

    def load(self, spec: RunSpec, seed: int) -> StoredRun:
        """Read a finished run back."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.path(spec, seed)
        try:
            table = pq.read_table(path)
            header = json.loads((table.schema.metadata or {})[KEY])
            stored = RunSpec.from_dict(header["spec"])
            columns = {name: table.column(name).to_numpy() for name in table.column_names}
        except (pa.ArrowInvalid, KeyError, ValueError) as error:
            raise FormatError(f"{path} is no run that fedbandit wrote ({error}); remove it to run it again") from None
        if stored != spec:
            raise FormatError(f"{path} holds another spec with the same id; remove it to run this one")
        return StoredRun(spec, seed, columns, header["facts"], float(header["seconds"]), header["versions"])

    def fail(self, failure: FailedRun) -> None:
        """Keep a failure, to be reported until the run succeeds."""
        record = {"error": failure.error, "traceback": failure.traceback}
        write_whole(self._failed(failure.spec_id, failure.seed), json.dumps(record, indent=1).encode())

    def failure(self, spec: RunSpec, seed: int) -> FailedRun | None:
        """How the last try of this run failed, if it did."""
        path = self._failed(spec.id, seed)
        if self.has(spec, seed) or not path.is_file():
            return None
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return FailedRun(spec.id, seed, record["error"], record["traceback"])

    def _failed(self, spec_id: str, seed: int) -> Path:
        return self.root / "runs" / spec_id / f"seed-{seed}.failed.json"


def versions() -> dict[str, str]:
    """Python and the libraries that a result may depend on; those that are not installed are left out."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
