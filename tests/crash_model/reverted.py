"""`python -m tests.crash_model.reverted`: revert fixes in a copy of the source, one by one, and count histories.

Each entry undoes the mending of one defect that hostile testing found. The histories of a fleet must find it again: the
figures are the first seed that fails and how many histories that took.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fedbandit"
Edit = tuple[str, str, str]  # file below src/fedbandit, a text that occurs there once, its replacement


@dataclass(frozen=True, slots=True)
class Reverted:
    """One reverted fix."""

    name: str
    what: str
    edits: tuple[Edit, ...]

    def plant(self, package: Path) -> None:
        """Revert the fix in this copy of the package."""
        for file, old, new in self.edits:
            text = (package / file).read_text(encoding="utf-8")
            if text.count(old) != 1:
                raise ValueError(
                    f"{self.name}: expected a text once in {file}, found it {text.count(old)} times: {old}"
                )
            (package / file).write_text(text.replace(old, new), encoding="utf-8")


FIXES = (
    Reverted(
        "D1",
        "a decision that a kill left in the ring and in the table is settled in the ring only",
        (
            (
                "sdk/journal/journal.py",
                "        (self._ring or self._require_ring()).settle(number)\n",
                "        if (self._ring or self._require_ring()).settle(number):\n            return\n",
            ),
            ("sdk/journal/journal.py", "if is_old or pending.number in found:", "if is_old:"),
        ),
    ),
    Reverted(
        "D2",
        "a download acknowledges the upload in flight by its number alone",
        (
            (
                "sdk/sync_client.py",
                "if flight is not None and answers != flight.sequence and reply.acknowledged == flight.sequence:",
                "if False:",
            ),
        ),
    ),
    Reverted(
        "D3",
        "cached settings are not compared with the model that the upload is merged into",
        (
            (
                "service/exchange/handler.py",
                "            settings_id=context.cached.settings_id,\n",
                "            settings_id=None,\n",
            ),
            (
                "service/exchange/handler.py",
                "        context.cached = CachedSettings.of(await self._container.store.load(context.model))\n",
                "        if context.model in self._settings:\n"
                "            context.cached = self._settings[context.model]\n"
                "            return\n"
                "        context.cached = CachedSettings.of(await self._container.store.load(context.model))\n",
            ),
            (
                "service/exchange/handler.py",
                "return (await self._container.store.load(context.model)).settings_id == context.cached.settings_id",
                "return True",
            ),
        ),
    ),
    Reverted(
        "D10",
        "an exception inside `observe` is passed on without bringing the step to an end",
        (
            (
                "sdk/durable_agent.py",
                "        except BaseException:\n            self.finish()\n            raise\n",
                "        except BaseException:\n            self._step = None\n            raise\n",
            ),
        ),
    ),
    Reverted(
        "D10, written and not noted",
        "an exception between the write of a record and the note of its end leaves the record",
        (("sdk/durable_agent.py", "            self.journal.take_back()\n", "            pass\n"),),
    ),
    Reverted(
        "D12",
        "a restore moves the old store away and the new one in, without a marker",
        (
            ("service/stores/sqlite/replacement.py", "        _write_marker(directory, _free_name(directory))\n", ""),
            (
                "service/stores/sqlite/replacement.py",
                "    return complete_replacement(directory)\n",
                "    aside = directory / _free_name(directory)\n"
                "    aside.mkdir(mode=0o700)\n"
                "    for path in [directory / name for name in FILES if (directory / name).exists()]:\n"
                "        path.rename(aside / path.name)\n"
                "    draft.rename(directory / FILE_NAME)\n"
                "    sync(directory)\n"
                "    return aside\n",
            ),
        ),
    ),
    Reverted(
        "D18",
        "an agent that rejoined does not ask whether the server has what it took along",
        (("sdk/sync_client.py", "if sequence == 1 and self.durable.earlier:", "if False:"),),
    ),
)

SEARCH = """
import json, sys
from tests.crash_model.history import OFF, histories, plan_of
off = frozenset(OFF)
found = None
with histories() as runner:
    for seed in range(*map(int, sys.argv[1:])):
        outcome = runner.run(plan_of(seed, off), off)
        if outcome.failure:
            found = {"seed": seed, "at": outcome.at, "failure": outcome.failure}
            break
print(json.dumps(found))
"""


def search(fix: Reverted, *, first: int, n: int) -> dict[str, Any] | None:
    """Run histories without this fix until one fails that passes with it, at most `n`; its seed and failure."""
    begin, end = first, first + n
    while begin < end:
        found = _first_failure(fix, begin, end)
        if found is None or _first_failure(None, found["seed"], found["seed"] + 1) is None:
            return found
        begin = found["seed"] + 1
    return None


def _first_failure(fix: Reverted | None, begin: int, end: int) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory(prefix="reverted-") as folder:
        package = Path(folder) / "src" / "fedbandit"
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__", "fedbandit-*"))
        if fix is not None:
            fix.plant(package)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package.parent), str(ROOT)])}
        command = [sys.executable, "-c", SEARCH, str(begin), str(end)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
        if done.returncode:
            raise RuntimeError(f"the histories did not run: {done.stderr[-2000:]}")
        found: dict[str, Any] | None = json.loads(done.stdout)
        return found


def main() -> int:
    """Search for each, print the result, and return 1 unless all were found."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash_model.reverted", description=__doc__)
    parser.add_argument(
        "--histories", type=int, default=4000, help="maximum number of histories per fix (default: 4000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the first history (default: 0)")
    parser.add_argument("--only", action="append", default=[], help="name of a fix; repeatable")
    options = parser.parse_args()
    missed = 0
    for fix in FIXES:
        if not options.only or fix.name in options.only:
            found = search(fix, first=options.seed, n=options.histories)
            missed += found is None
            if found is None:
                print(f"{fix.name}: not found by {options.histories} histories", flush=True)
            else:
                n = found["seed"] - options.seed + 1
                print(f"{fix.name}: {n} histories, seed {found['seed']}: {found['failure'][:140]}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
