"""`python -m tests.chaos --store sqlite --minutes 5 --seed 1`: a seed gives the same faults at the same times."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.run import Run, Size


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--store", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agents", type=int, default=6)
    parser.add_argument("--folder", type=Path, help="output folder; kept (default: a temporary one, kept on failure)")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="fb-chaos-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))  # processes and mounts are cleaned up
    size = Size(seconds=60.0 * given.minutes, n_agents=given.agents)
    summary = Run(folder, given.store, given.seed, size).go()
    print(json.dumps(summary, indent=1))
    if summary["violations"]:
        print(f"violations found; history, logs and records are in {folder}", file=sys.stderr)
        return 1
    if given.folder is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
