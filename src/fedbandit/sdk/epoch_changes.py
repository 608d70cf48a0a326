"""What an agent takes along into a new incarnation, or into a model that was created again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedbandit.algorithms.fedlinucb import FedLinUCBAgent
from fedbandit.algorithms.messages import Upload
from fedbandit.core.statistics import RunningStats
from fedbandit.core.structure import running_stats


def taken_over(agent: FedLinUCBAgent, taken: Mapping[int, Upload]) -> tuple[RunningStats, int]:
    """A buffer with all of these uploads and of the old buffer that is of this epoch, and how much is dropped.

    What was made in an earlier epoch is discarded: the server that comes back must not learn from it.
    """
    world, uploads = agent.world, list(taken.values())
    n_old = sum(upload.stats.n_obs for upload in uploads if upload.epoch != world.epoch)
    current = [upload for upload in uploads if upload.epoch == world.epoch]
    buffer = running_stats(agent.dim, agent.blocks)
    buffer.add(sum((upload.stats for upload in current), start=agent.local))
    buffer.groups = sum((upload.groups for upload in current), start=agent.local_groups)
    return buffer, world.n_dropped + n_old + sum(upload.dropped for upload in uploads)


def begin_first_epoch(agent: FedLinUCBAgent) -> None:
    """The model was created again: what this agent holds joins its first epoch."""
    with agent._lock:
        world, sent = agent.world, agent.in_flight
        world.epoch = world.clock = 0
        if sent is not None:
            agent.in_flight = replace(sent, epoch=0, clock=0, alarm=False)
