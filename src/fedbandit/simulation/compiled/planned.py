"""Phases of planned pulls as machine code (DELB, Fed-PE): no decision is made within a phase.

The fleet is the reference's own: agents and server exchange messages at the end of each phase as they always do, and
only the pulls in between are played by the kernel. Decision sets must stay as they are, which is checked here for whole
blocks, as the agents check it for single rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, cast

import numpy as np

from fedbandit.algorithms.planned_pulls import PlannedAgent
from fedbandit.algorithms.synchronous import SCALAR_BYTES, SynchronousRule
from fedbandit.core.arrays import Matrix, Vector
from fedbandit.errors import InvalidInput
from fedbandit.simulation.block_checks import without_repeats
from fedbandit.simulation.compiled.blocks import new_log, padded, plain, with_room
from fedbandit.simulation.compiled.jit import kernel
from fedbandit.simulation.compiled.round_block import RoundLog
from fedbandit.simulation.synchronous_fleet import SynchronousFleet, not_in_steps
from fedbandit.simulation.trace import Recorder
from fedbandit.simulation.worlds import Block, Index, Stream


class Plans(NamedTuple):
    """The plans of M agents with at most E entries, and how far each is."""

    rows: Index  # (M, E)
    counts: Index  # (M, E)
    n_entries: Index  # (M,)
    entry: Index  # (M,)
    left: Index  # (M,), pulls left of the entry
    sums: Matrix  # (M, E), of rewards
    n_done: Index  # (1,), agents whose plan is done


@kernel
def play_plans(
    plans: Plans, means: Matrix, best: Vector, noise: Matrix, active: Index, log: RoundLog, start: int, stop: int
) -> int:
    """Rounds start … stop − 1 of a block, or until the step that ends the phase is over; the round to go on with.

    `means` is (n, K), or (1, K) if all rounds have the same, `best` the largest of each row, `noise` (n, 1) or (n, K).
    """
    rows, counts, n_entries, entry, left, rewards, n_done = plans
    sums, totals, choices, sums_at, counts_at = log
    M = len(entry)
    repeats, by_action = len(means) == 1, noise.shape[1] > 1
    for i in range(start, stop):
        m = active[i]
        e = entry[m]
        k = rows[m, e]
        at = 0 if repeats else i
        mean = means[at, k]
        reward = mean + noise[i, k if by_action else 0]
        sums[0] += best[at] - mean
        sums[1] += reward
        choices[i] = k
        rewards[m, e] += reward
        left[m] -= 1
        if left[m] == 0:
            entry[m] = e + 1
            if e + 1 < n_entries[m]:
                left[m] = counts[m, e + 1]
            else:
                n_done[0] += 1
        for j in range(2):
            sums_at[i, j] = sums[j]
        for j in range(len(totals)):
            counts_at[i, j] = totals[j]
        if m == M - 1 and n_done[0] > 0:
            return i + 1
    return stop


def play_planned(
    rule: SynchronousRule,
    recorder: Recorder,
    stream: Stream,
    blocks: Iterator[tuple[Index, Block]],
    n_agents: int,
    n_rounds: int,
    report: Callable[[int], None],
) -> None:
    """All rounds of a run; the trace of `play_rounds`, rounding apart."""
    fleet = SynchronousFleet(rule, n_agents, getattr(stream, "fixed_actions", None))
    agents = [cast(PlannedAgent, agent) for agent in fleet.agents.values()]
    log, t = new_log(1), 0
    plans = plans_of(agents)
    _count(fleet, log)
    for active, block in blocks:
        n = min(len(block), n_rounds - t)
        _check_steps(active[:n], t, rule, n_agents)
        _check_unchanged(agents, active[:n], block)
        log = with_room(log, len(block))
        block = padded(block)
        means, who = plain(without_repeats(cast(Matrix, block.means))), plain(active, np.int64)
        noise = plain(block.noise if block.noise.ndim == 2 else block.noise[:, None])
        best = means.max(axis=1)
        _check_rows(plans, means.shape[1])
        i = 0
        while i < n:
            i = int(play_plans(plans, means, best, noise, who, log, i, n))
            if plans.n_done[0] > 0 and who[i - 1] == n_agents - 1:
                plans = _end_phase(fleet, agents, plans)
                _check_rows(plans, means.shape[1])
                _count(fleet, log)
                log.counts_at[i - 1] = log.counts
        counts = np.column_stack((log.counts_at, SCALAR_BYTES * log.counts_at[:, 3]))
        recorder.note_block(t, active[:n], log.choices, log.sums_at, counts)
        t += n
        report(n)


def plans_of(agents: list[PlannedAgent]) -> Plans:
    """The plans that these agents are about to start."""
    sizes = np.array([len(agent.plan.rows) for agent in agents], dtype=np.int64)
    shape = (len(agents), int(sizes.max()))
    rows, counts = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    for m, agent in enumerate(agents):
        rows[m, : sizes[m]], counts[m, : sizes[m]] = agent.plan.rows, agent.plan.counts
    if sizes.min() < 1 or len({agent.plan.n_pulls for agent in agents}) != 1:
        raise InvalidInput("expected plans of the same number of pulls for all agents, at least one")
    entry = np.zeros(len(agents), dtype=np.int64)
    return Plans(rows, counts, sizes, entry, counts[:, 0].copy(), np.zeros(shape), np.zeros(1, dtype=np.int64))


def _end_phase(fleet: SynchronousFleet, agents: list[PlannedAgent], plans: Plans) -> Plans:
    """The messages at the end of the phase, by the reference's own fleet; the next plans."""
    for m, agent in enumerate(agents):
        agent.finish(plans.sums[m, : plans.n_entries[m]])
    fleet.end_step()
    return plans_of(agents)


def _count(fleet: SynchronousFleet, log: RoundLog) -> None:
    log.counts[:] = (fleet.n_up, fleet.n_down, fleet.n_switches, fleet.n_scalars)


def _check_steps(active: Index, t: int, rule: SynchronousRule, n_agents: int) -> None:
    expected = (t + np.arange(len(active))) % n_agents
    wrong = np.flatnonzero(active != expected)
    if len(wrong):
        raise not_in_steps(t + int(wrong[0]) + 1, int(active[wrong[0]]), rule)


def _check_rows(plans: Plans, n_actions: int) -> None:
    if plans.rows.min() < 0 or plans.rows.max() >= n_actions:
        raise InvalidInput(f"expected {int(plans.rows.max()) + 1} actions in every round, as the plans have")


def _check_unchanged(agents: list[PlannedAgent], active: Index, block: Block) -> None:
    """Every agent is offered what it was offered in its first round."""
    if block.decision_set is not None:
        agents[int(active[0])].choose(cast(Matrix, block.decision_set))  # the reference's error
    for i in range(len(active) if block.sizes is not None else min(len(active), len(agents))):
        agents[int(active[i])].meet(np.asarray(block.actions(i)))
    # Steps: round i is the same agent's as round i − M.
    M = len(agents)
    offered = without_repeats(cast(Matrix, block.rows if block.array is None else block.array)[: len(active)])
    if len(offered) > M:
        differs = (offered[M:] != offered[:-M]).any(axis=tuple(range(1, offered.ndim)))
        for later in np.flatnonzero(differs):
            agents[int(active[later + M])].meet(np.asarray(block.actions(int(later) + M)))
