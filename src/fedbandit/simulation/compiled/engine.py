"""The loop of runner.py as machine code: blocks of rounds go to a kernel, totals come back at the recorded rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeGuard

from fedbandit.algorithms.async_linucb import AsyncLinUCB
from fedbandit.algorithms.base import Rule
from fedbandit.algorithms.catalog import AnyRule
from fedbandit.algorithms.dislinucb import DisLinUCB
from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.oful import OFUL
from fedbandit.errors import InvalidParameter, NotFinite
from fedbandit.simulation.compiled.blocks import Reader, new_log, obstacle_in, with_room
from fedbandit.simulation.compiled.fleets import Machine, is_lazy, machine
from fedbandit.simulation.compiled.offer import Log, Offer
from fedbandit.simulation.participation import Participation
from fedbandit.simulation.runner import rounds_of, run_reference
from fedbandit.simulation.trace import Recorder, Trace
from fedbandit.simulation.worlds import World

OUR_RULES = (FedLinUCB, OFUL, DisLinUCB, AsyncLinUCB)


def has_kernel(rule: Rule) -> TypeGuard[AnyRule]:
    """Whether a kernel plays this rule; a subclass may do anything, so it does not count. None waits for batches."""
    return type(rule) in OUR_RULES and getattr(rule, "min_upload", 1) == 1


def run_compiled(
    rule: Rule,
    world: World,
    participation: Participation,
    *,
    n_agents: int,
    n_rounds: int,
    seed: int,
    record: str | Sequence[int],
    progress: Callable[[int], None] | None = None,
    strict: bool = True,
) -> Trace:
    """Play `n_rounds` rounds of Algorithm 1 in machine code: the trace of `run_reference`, rounding apart.

    A world of decision sets that only Python can search is refused, or left to the reference if not `strict`.
    """
    if not has_kernel(rule):
        raise InvalidParameter(f"the compiled engine cannot play {type(rule).__name__}; engine='reference' can")
    recorder = Recorder(rule.dim, n_rounds, record)
    stream, blocks = rounds_of(world, participation, n_agents=n_agents, n_rounds=n_rounds, seed=seed)
    first = next(blocks)
    found = obstacle_in(first[1])
    if found is not None and strict:
        raise InvalidParameter(f"the compiled engine cannot play {found}; engine='reference' can")
    # On a ball every decision of an eager policy moves all later ones a little, and rounding errors grow from round to
    # round: only the reference's own steps give the reference's trace, and such a round is little else than its search.
    if found is not None or (first[1].decision_set is not None and not is_lazy(rule)):
        return run_reference(
            rule,
            world,
            participation,
            n_agents=n_agents,
            n_rounds=n_rounds,
            seed=seed,
            record=record,
            progress=progress,
        )
    reader = Reader(first[1], stream, n_agents)
    fleet = machine(rule, n_agents, n_rows=reader.n_rows, on_ball=reader.ball is not None)
    log = new_log(len(first[1]))
    t = 0
    for active, block in chain([first], blocks):
        played = min(len(block), n_rounds - t)
        log = with_room(log, len(block))
        play(fleet, reader, reader.offer(active, block), log, played)
        recorder.note_block(t, active[:played], log.choices, log.sums_at, log.counts_at)
        t += played
        if progress is not None:
            progress(played)
    return recorder.trace()


def play(fleet: Machine, reader: Reader, offer: Offer, log: Log, stop: int) -> None:
    """The rounds of a block; where an agent's decision on a ball is out of date, it is made here."""
    i = 0
    while i < stop:
        i = fleet.play(offer, log, i, stop)
        if i < 0:
            raise NotFinite("expected finite scores: features are too large, and their squares")
        if i < stop and reader.ball is not None and fleet.decide is not None:
            m = int(offer.active[i])
            reader.decide(m, fleet.decide(m, reader.ball))
