"""Histories: a seed gives a plan, and a failing plan is shrunk while it fails in the same way."""

from __future__ import annotations

import re
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from fedbandit.sdk.journal import pending_ring
from fedbandit.sdk.journal.layout import open_database
from fedbandit.service.admin import operations
from tests.crash_model import virtual
from tests.crash_model.accounting import Failure
from tests.crash_model.device import Options
from tests.crash_model.recovery import calm
from tests.crash_model.seams import FAILURES, KILLS, Fault, Process, read_tree, running
from tests.crash_model.server import MODEL, Loop, Server, settings_of
from tests.crash_model.steps import Step, take
from tests.crash_model.virtual import Session
from tests.crash_model.world import NAMES, Template, World

# Kinds of faults that show known limitations, each with the name of the limitation.
OFF: dict[str, str] = {
    "damage": "a shortened, changed or deleted journal.db-wal can look like an older snapshot (D11)",
    "kept by copies": "two agents on copies of a directory, after a restore: a kept upload of one is taken for merged "
    "when the other has sent another one under its number, because a reply has no digest",
    "stale copies": "copies of messages of an earlier incarnation that arrive after a restore or a recreation",
    "signal in a timed wait": "an exception just as `flush` acquires its lock leaves it held (`seams.SPARED`)",
}
BIG_RING = (64, 1024)  # as in the product
LONGEST_S = 120.0
# How often each step is taken; those of the second table in half of the histories, of the third in a few.
OFTEN = {"choose": 8, "observe": 10, "observe_row": 5, "flush": 3, "refresh": 2, "background": 3}
SOMETIMES = {
    "learn_batch": 2, "observe_again": 2, "expire": 2, "settle_all": 1, "rejoin": 2, "reopen": 2, "kill": 4,
    "cut_power": 3, "move_clock": 1, "bring_late": 4, "kill_server": 2, "stop_server": 1, "cut_line": 3, "backup": 3,
    "restore": 4, "forget": 2, "quarantine": 2, "revoke": 1, "renew": 1, "remake": 1,
}  # fmt: skip
RARELY = {"copy": 2, "set_aside": 3, "bring_back": 2, "damage": 2, "first_start": 1, "migrate": 1, "poison": 1}
# Half of the histories have a theme instead: few kinds of steps, so that they follow each other often.
THEMES: tuple[dict[str, int], ...] = (
    {
        "choose": 6,
        "observe": 8,
        "observe_row": 1,
        "expire": 1,
        "settle_all": 1,
        "kill": 3,
        "reopen": 1,
        "observe_again": 1,
    },
    {"observe_row": 8, "flush": 6, "backup": 4, "restore": 5, "rejoin": 4, "refresh": 1, "bring_late": 2, "kill": 1},
    {"observe_row": 6, "flush": 4, "copy": 2, "set_aside": 2, "bring_back": 2, "refresh": 3, "kill": 2, "reopen": 1},
    {
        "observe_row": 6,
        "flush": 3,
        "forget": 2,
        "quarantine": 2,
        "remake": 1,
        "revoke": 1,
        "renew": 1,
        "reopen": 3,
        "backup": 1,
        "restore": 1,
    },
    {"upload_some": 6, "observe_row": 2, "backup": 4, "restore": 2, "go_back_twice": 3, "rejoin": 1},
    {"fill_ring": 4, "choose": 1, "observe": 6, "kill": 4, "flush": 2},
    {"observe": 5, "observe_row": 5, "choose": 3, "kill": 2, "cut_power": 3, "damage": 1, "flush": 2, "cut_line": 2},
)
NET = ("lost", "late", "unanswered", "twice", "old answer", "")


@dataclass(frozen=True)
class Plan:
    """Everything that will happen in one history."""

    seed: int
    n_agents: int
    options: tuple[Options, ...]
    steps: tuple[Step, ...]
    big_ring: bool = False

    @property
    def is_fresh(self) -> bool:
        """Whether the agents start in empty directories; other histories skip that work."""
        return self.seed % 4 == 1

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.n_agents} agents {self.options[: self.n_agents]}"]
        return "\n".join([*lines, *(f"  {n:3d} {step}" for n, step in enumerate(self.steps))])


@dataclass
class Outcome:
    """How a history ended."""

    seed: int
    n_steps: int = 0
    failure: str = ""
    n_hits: int = 0  # faults that occurred
    at: int = -1  # the step that failed; the number of steps: in the recovery at the end
    trace: str = field(default="", repr=False)

    @property
    def kind(self) -> str:
        """The failure without its numbers, for comparison."""
        return re.sub(r"^[abc] |[0-9]+", "", self.failure)[:40]


def plan_of(seed: int, off: frozenset[str] = frozenset(OFF), *, restarts: bool = False) -> Plan:
    """The history of a seed; with `restarts`, operators restart the model now and then."""
    plan = _plan_of(seed, off)
    if not restarts:
        return plan
    rng, steps = Random(f"{seed} restarts"), list(plan.steps)
    trouble = rng.choice((0.0, 0.3, 0.6))
    for _ in range(rng.choice((0, 1, 2, 4))):
        steps.insert(rng.randrange(len(steps) + 1), _step(rng, "restart_model", trouble, off))
    return replace(plan, steps=tuple(steps))


def _plan_of(seed: int, off: frozenset[str]) -> Plan:
    rng = Random(seed)
    weights = dict(OFTEN)
    weights |= {kind: weight for kind, weight in SOMETIMES.items() if rng.random() < 0.5}
    weights |= {kind: weight for kind, weight in RARELY.items() if rng.random() < 0.15}
    if rng.random() < 0.5:
        weights = dict(rng.choice(THEMES))
    weights = {kind: weight for kind, weight in weights.items() if kind not in off}
    options = tuple(
        Options(
            durability=rng.choice(("fast", "fast", "strict")),
            sync=rng.choice(("inline", "inline", "background")),
            n_kept=rng.choice((1000, 1000, 2, 1, 0)),
            min_upload=rng.choice((1, 1, 1, 3)),
        )
        for _ in range(3)
    )
    n_steps, trouble = rng.choice((8, 14, 24, 40)), rng.choice((0.0, 0.1, 0.3, 0.6))
    kinds = rng.choices(list(weights), list(weights.values()), k=n_steps)
    big = rng.random() < 1 / 400
    steps = [_step(rng, kind, trouble, off) for kind in kinds]
    if big:
        steps.insert(len(steps) // 3, _step(rng, "choose_many", 1.0, off | {"interrupt"}))
        steps.insert(len(steps) // 2, _step(rng, "choose_many", trouble, off))
    return Plan(seed, rng.choice((1, 2, 2, 3)), options, tuple(steps), big)


def _step(rng: Random, kind: str, trouble: float, off: frozenset[str]) -> Step:
    fault = _fault(rng, trouble, off)
    net = tuple(rng.choice(NET) for _ in range(rng.choice((0, 0, 1, 2)))) if rng.random() < trouble else ()
    server_fault = _fault(rng, trouble / 2, off | {"interrupt"})
    a, b = rng.randrange(10_000), rng.randrange(10_000)
    return Step(kind, rng.randrange(6), a, b, fault, server_fault, net, rng.randrange(2))


def _fault(rng: Random, trouble: float, off: frozenset[str]) -> Fault | None:
    if rng.random() >= trouble:
        return None
    modes = [mode for mode in (*KILLS, *KILLS, *FAILURES, "size limit", "interrupt", "interrupt") if mode not in off]
    mode = rng.choice(modes)
    at = rng.randrange(rng.choice((60, 500) if mode == "interrupt" else (8, 30, 90)))
    return Fault(mode, at, rng.choice((0.0, 0.3, 0.9, 1.0)))


class Histories:
    """Runs histories one after the other; `with histories():` makes one."""

    def __init__(self, **model: Any) -> None:
        self.loop = Loop()
        Server.model_has(**model)
        self._template = self._make_template()

    def _make_template(self) -> Template:
        Session.begin(0)
        with TemporaryDirectory() as folder:
            server = Server(Path(folder), self.loop)
            server.replace({})
            server.start()
            server.manage(lambda parts: operations.create_model(parts, settings_of(0)), None)
            tokens = {
                name: server.manage(lambda parts, name=name: operations.add_agent(parts, MODEL, name), None)  # type: ignore[misc]
                for name in NAMES
            }
            server.stop()
            journal = Path(folder) / "agent"
            journal.mkdir()
            with running(Process(journal)):
                open_database(journal / "journal.db", "NORMAL").close()
            return Template(read_tree(server.directory), tokens, read_tree(journal))

    def run(self, plan: Plan, off: frozenset[str] = frozenset(OFF)) -> Outcome:
        """Run a history to its end, or to its first failure."""
        Session.begin(plan.seed)
        outcome = Outcome(plan.seed)
        slots, pending_ring.SLOTS = pending_ring.SLOTS, BIG_RING if plan.big_ring else pending_ring.SLOTS
        world: World | None = None
        n_hits = Process.n_hits
        try:
            with _no_longer_than(LONGEST_S):
                cuts = any(step.kind == "cut_power" for step in plan.steps)
                world = World(
                    self.loop, n_agents=plan.n_agents, options=list(plan.options), cuts_power=cuts,
                    template=self._template, off=off, is_fresh=plan.is_fresh,
                )  # fmt: skip
                for outcome.at, step in enumerate(plan.steps):
                    take(world, step)
                outcome.at = len(plan.steps)
                calm(world)
        except Exception as error:  # noqa: BLE001 - any error is a failure of this history
            outcome.failure = str(error) if isinstance(error, Failure) else f"the harness failed: {error!r}"
            outcome.trace = traceback.format_exc()
        finally:
            pending_ring.SLOTS = slots
            outcome.n_hits = Process.n_hits - n_hits
            if world is not None:
                outcome.n_steps = world.count_steps()
                world.close()
        return outcome

    def shrink(self, plan: Plan, outcome: Outcome, off: frozenset[str] = frozenset(OFF)) -> tuple[Plan, Outcome]:
        """Remove steps, then faults, while the history fails in the same way."""

        def fails(steps: list[Step]) -> Outcome | None:
            found = self.run(replace(plan, steps=tuple(steps)), off)
            return found if found.failure and found.kind == outcome.kind else None

        steps, best = list(plan.steps[: outcome.at + 1]), outcome
        size = max(len(steps) // 2, 1)
        while True:
            at, shorter = 0, False
            while at < len(steps):
                found = fails(steps[:at] + steps[at + size :])
                if found is not None:
                    steps, best, shorter = steps[:at] + steps[at + size :], found, True
                else:
                    at += size
            if size == 1 and not shorter:
                break
            size = max(size // 2, 1)
        for n, step in enumerate(steps):
            for simpler in (replace(step, fault=None), replace(step, server_fault=None), replace(step, net=())):
                tried = [*steps[:n], simpler, *steps[n + 1 :]]
                found = fails(tried) if simpler != steps[n] else None
                if found is not None:
                    steps, best = tried, found
        return replace(plan, steps=tuple(steps)), best

    def close(self) -> None:
        """The end."""
        Server.model_has()
        self.loop.close()


@contextmanager
def histories(**model: Any) -> Iterator[Histories]:
    """A runner with the operating-system interfaces replaced; `model` is what `Server.model_has` takes."""
    with virtual.virtual():
        found = Histories(**model)
        try:
            yield found
        finally:
            found.close()


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """A history that hangs fails; only the main thread can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def give_up(*_: Any) -> None:
        raise Failure(f"the history hangs: it took longer than {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
