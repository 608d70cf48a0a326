"""Insert each defect into a copy of the source, run its tests, and list the survivors.

python -m tests.mutants [--only TEXT ...] [--workers 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import NoReturn

from tests.mutants.catalog import ROOT, SOURCE, Defect, defects

TIME_LIMIT_S = 300
LEAST_KILLED = 0.95
LIBRARIES = ("numpy", "hypothesis", "httpx", "fastapi", "uvicorn", "msgspec", "urllib3", "anyio")
OPTIONS = ("-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")


@dataclass(frozen=True, slots=True)
class Trial:
    """Tests to run on the package as it is (no defect), or with one defect."""

    tests: tuple[str, ...]
    defect: Defect | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a trial: killed, SURVIVED (all tests passed), TIMEOUT, or BROKEN (nothing was tested)."""

    trial: Trial
    verdict: str
    last_lines: str
    seconds: float


def preload() -> None:
    """Import what every run needs and no defect can change; the runs are forks of this process."""
    os.environ |= {"HYPOTHESIS_PROFILE": "mutants", "OPENBLAS_NUM_THREADS": "1"}  # the same examples each time
    for plugin in entry_points(group="pytest11"):
        plugin.load()
    for name in LIBRARIES:
        import_module(name)


def run_in_fork(trial: Trial, folder: Path) -> NoReturn:
    """The tests of a trial in this process, a fork: the package is a copy in the folder, output goes to a file."""
    code = 3
    try:
        os.setsid()
        with (folder / "output.txt").open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        package = folder / "fedbandit"
        shutil.rmtree(package, ignore_errors=True)
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("fedbandit-*"))  # machine code of numba
        if trial.defect is not None:
            (package / trial.defect.file).write_text(trial.defect.planted(), encoding="utf-8")
        # Machine code is kept between the runs in one folder; its path has a digest of its sources.
        os.environ |= {"PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "numba")}
        sys.path.insert(0, str(folder))
        import pytest

        code = int(pytest.main([*OPTIONS, *trial.tests]))
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def verdict_of(status: int) -> str:
    """pytest: 0 all passed, 1 some failed; a signal that ended the process counts as a failure."""
    if os.WIFSIGNALED(status):
        return "killed"
    return {0: "SURVIVED", 1: "killed"}.get(os.WEXITSTATUS(status), "BROKEN")


def run_all(trials: list[Trial], workers: int) -> Iterator[Result]:
    """Yield results as they arrive, from this many forks at a time."""
    waiting = list(reversed(trials))
    running: dict[int, tuple[Trial, Path, float]] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as root:
        free = [Path(root) / str(n) for n in range(workers)]
        for folder in free:
            folder.mkdir()
        while waiting or running:
            while waiting and free:
                trial, folder = waiting.pop(), free.pop()
                pid = os.fork()
                if pid == 0:
                    run_in_fork(trial, folder)
                running[pid] = trial, folder, time.monotonic()
            for pid, (trial, folder, begun) in list(running.items()):
                seconds = time.monotonic() - begun
                ended, status = os.waitpid(pid, os.WNOHANG)
                is_late = not ended and seconds > TIME_LIMIT_S
                if is_late:
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                    ended, status = os.waitpid(pid, 0)
                if ended:
                    del running[pid]
                    lines = (folder / "output.txt").read_text(errors="replace").splitlines()
                    # No test has finished: the defect may hang, or the machine is overloaded.
                    verdict = "TIMEOUT" if is_late else verdict_of(status)
                    free.append(folder)
                    yield Result(trial, verdict, "\n".join(lines[-30 if verdict == "BROKEN" else -3 :]), seconds)
            time.sleep(0.05)


def baseline(chosen: list[Defect]) -> list[Trial]:
    """The tests of these defects without a defect, by folder."""
    folders: dict[Path, set[str]] = defaultdict(set)
    for test in {test for defect in chosen for test in defect.tests}:
        folders[Path(test.split("::")[0]).parent].add(test)
    return [Trial(tuple(sorted(tests))) for tests in folders.values()]


def chosen_defects(texts: list[str]) -> list[Defect]:
    """The defects whose layer, name or file contains one of the texts; all if there is none."""
    return [
        defect
        for defect in defects()
        if not texts or any(text in f"{defect.layer} {defect.name} {defect.file}" for text in texts)
    ]


def main() -> int:
    """Try the defects; fail if more than one in twenty survives, or if a run is broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", default=[], help="only defects whose layer, name or file contains one of these"
    )
    parser.add_argument("--workers", type=int, default=2, help="number of concurrent runs")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--skip-baseline", action="store_true", help="do not run the tests without a defect first")
    arguments = parser.parse_args()
    chosen = chosen_defects(arguments.only)
    if not chosen:
        parser.error(f"no defect has one of {arguments.only} in its layer, name or file")
    os.chdir(ROOT)
    preload()
    if not arguments.skip_baseline:
        failing = [result for result in run_all(baseline(chosen), arguments.workers) if result.verdict != "SURVIVED"]
        if failing:
            print("The tests fail without any defect:", *(result.last_lines for result in failing), sep="\n")
            return 2
    verdicts = []
    for result in run_all([Trial(defect.tests, defect) for defect in chosen], arguments.workers):
        defect = result.trial.defect
        assert defect is not None
        noticed = next((line for line in result.last_lines.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
        print(
            f"{result.verdict:9} {result.seconds:6.1f} s  {defect.layer:11} {defect.name}  {noticed[:160]}", flush=True
        )
        if result.verdict != "killed":
            print("    " + result.last_lines.replace("\n", "\n    "), flush=True)
        verdicts.append({"name": defect.name, "layer": defect.layer, "file": defect.file, "verdict": result.verdict})
    if arguments.json:
        arguments.json.write_text(json.dumps(verdicts, indent=1) + "\n", encoding="utf-8")
    return report(verdicts)


def report(verdicts: list[dict[str, str]]) -> int:
    """Print how many were killed by layer, and the survivors by name; the exit code."""
    for layer in sorted({entry["layer"] for entry in verdicts}):
        of_layer = [entry["verdict"] == "killed" for entry in verdicts if entry["layer"] == layer]
        print(f"{layer:11} {sum(of_layer):3} of {len(of_layer):3} killed")
    survivors = [entry["name"] for entry in verdicts if entry["verdict"] != "killed"]
    n_killed = len(verdicts) - len(survivors)
    print(f"{n_killed} of {len(verdicts)} inserted defects killed; not killed: {', '.join(survivors) or 'none'}")
    broken = any(entry["verdict"] == "BROKEN" for entry in verdicts)
    return 1 if broken or n_killed < LEAST_KILLED * len(verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
