"""`python -m tests.crash_model`: run histories of a seeded fleet, and shrink one that fails."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tests.crash_model.history import OFF, Outcome, histories, plan_of

CHUNK = 100


@dataclass
class Total:
    """Results of histories."""

    n_histories: int = 0
    n_steps: int = 0
    n_hits: int = 0
    cpu_s: float = 0.0
    failed: list[Outcome] = field(default_factory=list)

    def add(self, other: Total) -> None:
        """Add the results of another worker."""
        self.n_histories += other.n_histories
        self.n_steps += other.n_steps
        self.n_hits += other.n_hits
        self.cpu_s += other.cpu_s
        self.failed += other.failed

    def __str__(self) -> str:
        rate = self.n_steps / max(self.cpu_s, 1e-9)
        per_hour = 3600 * self.n_histories / max(self.cpu_s, 1e-9)
        return (
            f"{self.n_histories} histories, {self.n_steps} steps, {self.n_hits} faults, {self.cpu_s:.0f} s of CPU: "
            f"{rate:.0f} steps per second, {per_hour:.0f} histories per CPU hour; {len(self.failed)} failed"
        )


def run(seeds: range, off: frozenset[str], **model: Any) -> Total:
    """Run the histories of these seeds; `model` is what their models have, as `Server.model_has` takes it."""
    total, began = Total(), time.process_time()
    with histories(**model) as runner:
        for seed in seeds:
            outcome = runner.run(plan_of(seed, off, restarts=model.get("drift") is not None), off)
            total.n_histories += 1
            total.n_steps += outcome.n_steps
            total.n_hits += outcome.n_hits
            if outcome.failure:
                total.failed.append(outcome)
    total.cpu_s = time.process_time() - began
    return total


def replay(seed: int, off: frozenset[str], **model: Any) -> int:
    """Run one history, and shrink it if it fails."""
    with histories(**model) as runner:
        plan = plan_of(seed, off, restarts=model.get("drift") is not None)
        outcome = runner.run(plan, off)
        print(plan)
        if not outcome.failure:
            print(f"passes; {outcome.n_steps} steps")
            return 0
        print(f"fails at step {outcome.at}: {outcome.failure}\n\nshrunk:")
        shorter, outcome = runner.shrink(plan, outcome, off)
        print(f"{shorter}\nfails at step {outcome.at}: {outcome.failure}\n{outcome.trace}")
        return 1


def chunks(first: int, n: int) -> Iterator[range]:
    """Split the seeds into chunks."""
    for begin in range(first, first + n, CHUNK):
        yield range(begin, min(begin + CHUNK, first + n))


def main(arguments: list[str] | None = None) -> int:
    """Run, print the results, and return 1 if any history failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash_model", description=__doc__)
    parser.add_argument("--histories", type=int, default=1000, help="number of histories (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first history; the others follow (default: 0)")
    parser.add_argument("--workers", type=int, default=1, help="number of processes (default: 1)")
    parser.add_argument("--replay", type=int, help="run the history of this seed, and shrink it if it fails")
    parser.add_argument(
        "--on", action="append", default=[], help="enable a kind of fault that is off by default, or 'all'"
    )
    parser.add_argument("--every", type=int, default=0, help="print totals after this many histories")
    options = parser.parse_args(arguments)
    off = frozenset() if "all" in options.on else frozenset(OFF) - set(options.on)
    if options.replay is not None:
        return replay(options.replay, off)
    for name in sorted(off):
        print(f"off: {name} ({OFF[name]})")
    total, shown = Total(), 0
    pieces = chunks(options.seed, options.histories)
    with ProcessPoolExecutor(options.workers) as pool:
        while batch := list(islice(pieces, options.workers)):
            for found in pool.map(run, batch, [off] * len(batch)):
                for outcome in found.failed:
                    print(f"seed {outcome.seed} fails at step {outcome.at}: {outcome.failure}", flush=True)
                total.add(found)
            if options.every and total.n_histories - shown >= options.every:
                shown = total.n_histories
                print(total, flush=True)
    print(total)
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main())
