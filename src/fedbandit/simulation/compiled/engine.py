"""The loop of runner.py as machine code: blocks of rounds go to a kernel, totals come back at the recorded rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TypeGuard, cast

from fedbandit.algorithms.base import Rule
from fedbandit.algorithms.delb import DELB
from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.fedpe import FedPE
from fedbandit.algorithms.rules import LinearRule
from fedbandit.algorithms.synchronous import SynchronousRule
from fedbandit.errors import NotFinite, NotOneBlock
from fedbandit.simulation.compiled.blocks import Reader, new_log, obstacle_in, with_room
from fedbandit.simulation.compiled.drift_fleet import needs_drift_kernel
from fedbandit.simulation.compiled.fleets import KERNELS, CompiledFleet, compiled_fleet, is_lazy
from fedbandit.simulation.compiled.planned import play_planned
from fedbandit.simulation.compiled.round_block import RoundBlock, RoundLog
from fedbandit.simulation.participation import Participation
from fedbandit.simulation.runner import is_reactive, rounds_of
from fedbandit.simulation.trace import Recorder, Trace
from fedbandit.simulation.worlds import Block, Index, Stream, World

PLANNED_RULES = (DELB, FedPE)


def has_kernel(rule: Rule | SynchronousRule) -> TypeGuard[LinearRule]:
    """Whether a kernel plays this rule; a subclass may do anything, so it does not count. None waits for batches."""
    if getattr(rule, "personal", None) is not None and getattr(rule, "max_silence", math.inf) != math.inf:
        return False
    is_plain = getattr(rule, "min_upload", 1) == 1 and (getattr(rule, "blocks", 1) == 1 or _has_block_kernel(rule))
    return type(rule) in KERNELS and is_plain and (getattr(rule, "is_certain", True) or is_lazy(rule))


def _has_block_kernel(rule: object) -> bool:
    """Whether the kernel by blocks plays this rule: FedLinUCB as published, with join and arrival."""
    if type(rule) is not FedLinUCB or rule.trigger != "determinant" or not rule.is_certain:
        return False
    return rule.personal is None and not needs_drift_kernel(rule)


class NotCompiled(Exception):
    """What kernels cannot play, or (`by_choice`) what the reference plays just as fast."""

    def __init__(self, what: str, *, by_choice: bool = False) -> None:
        super().__init__(what)
        self.by_choice = by_choice


def run_compiled(
    rule: Rule | SynchronousRule,
    world: World,
    participation: Participation,
    *,
    n_agents: int,
    n_rounds: int,
    seed: int,
    record: str | Sequence[int],
    progress: Callable[[int], None],
) -> Trace:
    """Play `n_rounds` rounds of Algorithm 1 in machine code: the trace of `play_rounds`, rounding apart.

    `NotCompiled` if the rule has no kernel or only Python can search the world's decision sets.
    """
    if not has_kernel(rule) and type(rule) not in PLANNED_RULES:
        raise NotCompiled(type(rule).__name__)
    if is_reactive(world, participation):
        raise NotCompiled("worlds and participation that react to rewards")
    recorder = Recorder(rule.dim, n_rounds, record)
    rounds = rounds_of(world, participation, n_agents=n_agents, n_rounds=n_rounds, seed=seed)
    if type(rule) in PLANNED_RULES:
        play_planned(cast(SynchronousRule, rule), recorder, *rounds, n_agents, n_rounds, progress)
        return recorder.trace()
    assert has_kernel(rule)
    _play_blocks(rule, recorder, *rounds, n_agents, n_rounds, progress, seed)
    return recorder.trace()


def _play_blocks(
    rule: LinearRule,
    recorder: Recorder,
    stream: Stream,
    blocks: Iterator[tuple[Index, Block]],
    n_agents: int,
    n_rounds: int,
    report: Callable[[int], None],
    seed: int,
) -> None:
    first = next(blocks)
    draws = not getattr(rule, "is_certain", True)
    _check_playable(first[1], None, draws)
    # On a ball every decision of an eager policy moves all later ones a little, and rounding errors grow from round to
    # round: only the reference's own steps give the reference's trace, and such a round is little else than its search.
    if first[1].decision_set is not None and not is_lazy(rule):
        raise NotCompiled("an eager policy on a ball", by_choice=True)
    if first[1].decision_set is not None and needs_drift_kernel(rule):
        raise NotCompiled("drift or max_silence on a ball")
    if rule.blocks > 1 and (first[1].decision_set is not None or first[1].sizes is not None):
        raise NotCompiled("a rule with blocks on a ball, or on decision sets of different sizes")
    reader = Reader(first[1], stream, n_agents)
    fleet = compiled_fleet(rule, n_agents, n_rows=reader.n_rows, on_ball=reader.ball is not None, seed=seed)
    log = new_log(len(first[1]))
    t = 0
    for active, block in chain([first], blocks):
        _check_playable(block, reader, draws)
        played = min(len(block), n_rounds - t)
        log = with_room(log, len(block))
        play(fleet, reader, reader.offer(active, block), log, played)
        recorder.note_block(t, active[:played], log.choices, log.sums_at, log.counts_at, fleet.counts)
        t += played
        report(played)


def _check_playable(block: Block, reader: Reader | None, draws: bool) -> None:
    found = obstacle_in(block)
    if found is None and draws and (block.decision_set is not None or block.sizes is not None):
        found = "a policy that draws at random from a ball or from decision sets of different sizes"
    if found is None and reader is not None and block.decision_set != reader.ball:
        found = "decision sets that change from a ball to something else within a run"
    if found is not None:
        raise NotCompiled(found)


def play(fleet: CompiledFleet, reader: Reader, offer: RoundBlock, log: RoundLog, stop: int) -> None:
    """The rounds of a block; where an agent's decision on a ball is out of date, it is made here."""
    i = 0
    while i < stop:
        i = fleet.play(offer, log, i, stop)
        if i < -len(offer.active):
            raise NotOneBlock("expected every action in one block of columns and zeros elsewhere: one is in several")
        if i < 0:
            raise NotFinite("expected finite scores: features are too large, and their squares")
        if i < stop and reader.ball is not None and fleet.decide is not None:
            m = int(offer.active[i])
            reader.decide(m, fleet.decide(m, reader.ball))
