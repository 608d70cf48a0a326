"""Speed of the simulator, end to end with the world's generation, on one core: ratios in one run.

    python bench/simulator.py [--json] [--long] [--only authors]

CPU time, the best of several runs taken in turn, so that a busy machine disturbs both sides alike. The time to compile
the kernels is measured apart; they are kept on disk. With --long also 10⁷ rounds. The exit status is 1 when a target
is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[variable] = "1"

import _rivals  # noqa: E402 (threads are set before NumPy loads)

import fedbandit as fb  # noqa: E402
from fedbandit.simulation.runner import rounds_of  # noqa: E402

EVEN = fb.participation.uniform()


@dataclass(frozen=True)
class Figure:
    """One line of the table; without a target it only informs."""

    what: str
    value: float
    unit: str
    target: float | None = None
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        if self.target is None:
            return True
        return self.value <= self.target if self.at_most else self.value >= self.target


@dataclass(frozen=True)
class Setting:
    """A world and a fleet of FedLinUCB with α = 1."""

    world: object
    n_agents: int
    beta: float
    lam: float

    def ours(self, n_rounds: int, engine: str = "compiled") -> fb.Trace:
        rule = fb.FedLinUCB(dim=self.world.dim, alpha=1.0, beta=self.beta, lam=self.lam)
        return fb.simulate(rule, self.world, n_agents=self.n_agents, n_rounds=n_rounds, engine=engine)

    def rounds(self, n_rounds: int) -> Iterator:
        return rounds_of(self.world, EVEN, n_agents=self.n_agents, n_rounds=n_rounds, seed=0)[1]

    def generate(self, n_rounds: int) -> None:
        for _ in self.rounds(n_rounds):
            pass

    def rival(self, play: Callable, n_rounds: int) -> None:
        numbers = {"dim": self.world.dim, "n_agents": self.n_agents, "beta": self.beta, "lam": self.lam}
        _, uploads = play(self.rounds(n_rounds), n_rounds=n_rounds, **numbers)
        trace = self.ours(n_rounds)
        # A rival without our rule for ties may go another way; it must do the same work.
        if not abs(uploads - trace.messages_up[-1]) <= 3 + 0.05 * uploads:
            raise SystemExit(f"{play.__name__} made {uploads} uploads, ours {trace.messages_up[-1]}: not the same work")


def authors() -> Setting:
    return Setting(fb.worlds.uniform(dim=15, n_actions=25, noise=0.3), 15, 0.5, 1.0)


def articles(dim: int, n_actions: int) -> Setting:
    return Setting(fb.worlds.articles(dim=dim, n_actions=n_actions), 100, 0.5, 0.1)


# -- measuring


def seconds(*works: Callable[[], object], repeat: int = 5) -> list[float]:
    """The least CPU time of each work over some turns."""
    best = [float("inf")] * len(works)
    for _ in range(repeat):
        for i, work in enumerate(works):
            began = time.process_time()
            work()
            best[i] = min(best[i], time.process_time() - began)
    return best


def against(setting: Setting, rival: Callable[[int], object], n_ours: int, n_rival: int, repeat: int = 3) -> tuple:
    """Rounds a second of ours and of a rival that plays fewer rounds."""
    setting.ours(10)  # compiled or loaded before the clock starts
    ours, theirs = seconds(lambda: setting.ours(n_ours), lambda: rival(n_rival), repeat=repeat)
    return n_ours / ours, n_rival / theirs


def compared(name: str, rates: tuple, rival: str, target: float) -> list[Figure]:
    return [
        Figure(f"{name}: ours", rates[0], "rounds/s"),
        Figure(f"{name}: {rival}", rates[1], "rounds/s"),
        Figure(f"{name}: ours / {rival}", rates[0] / rates[1], "×", target),
    ]


# -- what is measured


def bench_authors(long: bool) -> list[Figure]:
    """The authors' setting, 30 000 rounds; the researcher's loop plays 300 of them."""
    setting = authors()
    setting.rival(_rivals.researchers_loop, 200)

    def plain(n: int) -> object:
        return _rivals.researchers_loop(
            setting.rounds(n), dim=15, n_agents=15, n_rounds=n, beta=setting.beta, lam=setting.lam
        )

    loop = against(setting, plain, 30_000, 300)
    reference = against(setting, lambda n: setting.ours(n, "reference"), 30_000, 5_000)
    name = "authors d=15 K=25 M=15"
    return compared(name, loop, "the researcher's loop", 200.0) + compared(name, reference, "our reference", 5.0)[1:]


def bench_articles(long: bool) -> list[Figure]:
    """Li and Wang's setting against well-written NumPy, and a large one against the best that NumPy gives."""
    found = []
    for dim, K, play, n, target in (
        (25, 25, _rivals.plain_numpy, 10_000, 15.0),
        (100, 100, _rivals.best_numpy, 10_000, 1.5),
    ):
        setting = articles(dim, K)
        setting.rival(play, 1_000)

        def rival(n: int, setting: Setting = setting, play: Callable = play, dim: int = dim) -> object:
            return play(setting.rounds(n), dim=dim, n_agents=100, n_rounds=n, beta=setting.beta, lam=setting.lam)

        name = play.__name__.replace("_", " ")
        found += compared(f"articles d={dim} K={K} M=100", against(setting, rival, n, n), name, target)
    return found


def bench_overhead(long: bool) -> list[Figure]:
    """Time outside the world's generation over the time of generating it."""
    found = []
    for world in (fb.worlds.uniform, fb.worlds.sphere):
        for dim in (15, 25):
            setting = Setting(world(dim=dim, n_actions=25), 15, 0.5, 1.0)
            setting.ours(10)
            total, drawn = seconds(lambda s=setting: s.ours(20_000), lambda s=setting: s.generate(20_000), repeat=9)
            name = f"{world.name} d={dim} K=25"
            found.append(Figure(f"{name}: generation", 1e9 * drawn / 20_000, "ns/round"))
            found.append(Figure(f"{name}: the rest", 1e9 * (total - drawn) / 20_000, "ns/round"))
            found.append(Figure(f"{name}: the rest / generation", (total - drawn) / drawn, "×", 1.0, at_most=True))
    return found


CHUNK = 10**5


def chunk_times(setting: Setting, n_rounds: int) -> list[float]:
    """CPU seconds of each 10⁵ rounds of one run, as its progress tells."""
    times, state = [], [0, time.process_time()]

    def progress(played: int) -> None:
        state[0] += played
        if state[0] >= CHUNK * (len(times) + 1):
            now = time.process_time()
            times.append(now - state[1])
            state[1] = now

    rule = fb.FedLinUCB(dim=setting.world.dim, alpha=1.0, beta=setting.beta, lam=setting.lam)
    run = {"n_agents": setting.n_agents, "n_rounds": n_rounds, "engine": "compiled"}
    fb.simulate(rule, setting.world, progress=progress, **run)
    return times


def bench_growth(long: bool) -> list[Figure]:
    """Rounds a second as runs get longer: the median over stretches of 10⁵ rounds, whatever the length of the run.

    The best of many stretches would favour long runs, the best of many runs short ones. Lengths take turns, because a
    shared machine's speed drifts by a tenth within a minute; a tenth is left to it.
    """
    setting = authors()
    setting.ours(10)
    times: dict[int, list[float]] = {10**5: [], 10**6: []} | ({10**7: []} if long else {})
    for turn in range(4):
        for n, found in times.items():
            if n < 10**7 or turn == 1:
                for _ in range(max(1, 10**6 // n)):
                    found += chunk_times(setting, n)
    rates = {n: CHUNK / statistics.median(found) for n, found in times.items()}
    least = 0.9 * rates[10**5]
    return [
        Figure(f"authors, T = {n:.0e}", rate, "rounds/s", None if n == 10**5 else least) for n, rate in rates.items()
    ]


MEMORY = """
import resource, sys, fedbandit as fb
world = fb.worlds.uniform(dim=10, n_actions=10)
rule, n_rounds = fb.FedLinUCB(dim=10, beta=0.5), int(sys.argv[1])
fb.simulate(rule, world, n_agents=100_000, n_rounds=n_rounds, engine="compiled")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""

COMPILING = """
import time, fedbandit as fb
world, run = fb.worlds.uniform(dim=3, n_actions=3), {"n_agents": 2, "n_rounds": 10, "engine": "compiled"}
import fedbandit.simulation.compiled
for rule in (
    fb.FedLinUCB(dim=3, beta=0.5),
    fb.OFUL(dim=3, beta=0.5),
    fb.DisLinUCB(dim=3, beta=0.5, threshold=1.0),
    fb.AsyncLinUCB(dim=3, beta=0.5, gamma_up=2.0, gamma_down=2.0),
):
    began = time.process_time()
    fb.simulate(rule, world, **run)
    print(time.process_time() - began)
"""


def child(program: str, *words: str, **environment: str) -> list[float]:
    """The numbers that a fresh process prints."""
    command = [sys.executable, "-c", program, *words]
    environment = {**os.environ, **environment}
    finished = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [float(line) for line in finished.stdout.split()]


def bench_memory(long: bool) -> list[Figure]:
    """The largest memory of a process that plays 100 000 agents."""
    n = 10**7 if long else 10**6
    gigabytes = child(MEMORY, str(n))[0]
    return [Figure(f"memory: M = 100 000, d = 10, T = {n:.0e}", gigabytes, "GB", 4.0, at_most=True)]


def bench_compiling(long: bool) -> list[Figure]:
    """What the first run on a machine pays for each kernel, and the first run of a process."""
    names = ("FedLinUCB", "OFUL", "DisLinUCB", "AsyncLinUCB")
    with tempfile.TemporaryDirectory() as folder:
        first = child(COMPILING, NUMBA_CACHE_DIR=folder)
        later = child(COMPILING, NUMBA_CACHE_DIR=folder)
    found = [Figure(f"compiling {name}", value, "s") for name, value in zip(names, first, strict=True)]
    return [*found, Figure("loading all four from disk", sum(later), "s")]


BENCHES = {
    "compiling": bench_compiling,
    "authors": bench_authors,
    "articles": bench_articles,
    "overhead": bench_overhead,
    "growth": bench_growth,
    "memory": bench_memory,
}


def show(figure: Figure) -> None:
    goal = "" if figure.target is None else f"{'≤' if figure.at_most else '≥'} {figure.target:,.4g}"
    verdict = "" if figure.target is None else "met" if figure.is_met else "MISSED"
    print(
        f"{figure.what:58s} {figure.value:14,.4g} {figure.unit:9s} {goal:>12s} {verdict}", file=sys.stderr, flush=True
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed of the simulator.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, the table to stderr")
    parser.add_argument("--long", action="store_true", help="also runs of ten million rounds")
    parser.add_argument("--only", choices=BENCHES, help="one part")
    arguments = parser.parse_args()
    figures: list[Figure] = []
    for name, bench in BENCHES.items():
        if arguments.only in (None, name):
            for figure in bench(arguments.long):
                show(figure)
                figures.append(figure)
    if arguments.json:
        print(
            json.dumps([{**asdict(figure), "met": figure.is_met} for figure in figures], ensure_ascii=False, indent=1)
        )
    missed = [figure.what for figure in figures if not figure.is_met]
    print(f"missed: {'; '.join(missed)}" if missed else "every target is met", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
