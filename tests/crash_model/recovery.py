"""The end of a history: no more faults, operators react to errors, and everything reaches the server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedbandit.algorithms.messages import packed_bytes
from fedbandit.errors import FedbanditError, NotReachable, Refused, StateMismatch
from tests.crash_model.accounting import Failure, require
from tests.crash_model.device import Device
from tests.crash_model.operator_steps import set_apart
from tests.crash_model.seams import read_tree
from tests.crash_model.server import DIM, Server
from tests.crash_model.virtual import Session
from tests.crash_model.world import World

ROUNDS = 8


def calm(world: World) -> None:
    """Every agent makes progress; nothing that still exists is lost; every agent ends with the server's model."""
    world.up()
    for device in world.devices:
        device.wire.is_cut = False
    for _ in range(2):  # of two copies, the first detects the other's uploads only now
        for device in list(world.devices):
            _settle(world, device)
    world.check()
    rest = set(range(len(world.accounting.values))) - world.accounting.excused - set(world.accounting.merged_ids())
    for device in world.devices:
        rest -= set(device.memory.dropped)  # discarded, and reported with the next upload
    require(not rest, f"observations {sorted(rest)} did not reach the server after the faults ended")
    rows = world.rows()
    for (name,) in () if rows is None else rows.apart:
        set_apart(world, name, None, on=False)
    for device in world.devices:
        _bring_epoch(world, device)
    rows = world.rows()
    for device in world.devices:
        world.do(device, lambda agent: agent.refresh())
        require(
            rows is not None and packed_bytes(device.durable.agent.model.stats) == rows.state,
            "an agent has another model",
        )
    world.check()


def _settle(world: World, device: Device) -> None:
    problem: Any = None
    for _ in range(ROUNDS):
        Session.clock.advance(4000.0)
        if device.agent is None:
            world.start(device)
        if device.agent is None:
            world.enroll(device.name)
            continue
        device.durable.agent.rule = replace(device.durable.agent.rule, min_upload=1)
        problem = world.do(device, _send_all)
        if not isinstance(problem, BaseException):
            durable = device.durable
            require(
                durable.agent.in_flight is None and durable.n_unsent == 0,
                f"{device.name} is stuck: {device.agent.status()}",
            )
            return
        if _act(world, device, problem):
            return
    raise Failure(f"{device.name} is stuck: after {ROUNDS} rounds {problem!r}")


def _bring_epoch(world: World, device: Device) -> None:
    """A server that was restored to before a restart hears of it with the next upload of an agent that knows."""
    rows = world.rows()
    if rows is not None and device.durable.agent.world.epoch > rows.epoch:
        new = world.accounting.add(np.eye(1, DIM * Server.blocks), np.zeros(1))
        world.do(device, lambda agent: agent.observe(np.eye(1, DIM * Server.blocks)[0], 0.0), new=[new])
        _settle(world, device)
        world.check()


def _send_all(agent: Any) -> None:
    agent._client._tag = None
    agent.refresh()
    agent.flush(5.0)


def _act(world: World, device: Device, problem: FedbanditError) -> bool:
    """The operator's reaction; True if the device was removed."""
    reason = problem.reason if isinstance(problem, Refused) else problem.code
    if reason in ("unauthenticated", "forbidden"):
        world.enroll(device.name)
    elif device.is_copied or device.is_damaged:
        return _give_up(world, device)
    elif reason == "settings_changed":
        world.do(device, lambda agent: agent.close())
        device.move(read_tree(device.process.folder))
        world.start(device)
    elif reason == "sequence_gap":
        ending = world.do(device, lambda agent: agent.rejoin())
        if isinstance(ending, Refused | StateMismatch):
            _require_forgotten(world, device, ending)
            world.begin_anew(device)
    elif reason == "stale_incarnation":
        _require_forgotten(world, device, problem)
        world.begin_anew(device)
    elif reason == "sequence_conflict":  # justified, or it would have failed before
        world.begin_anew(device)
    elif isinstance(problem, NotReachable):
        world.up()
    else:
        raise Failure(f"{device.name} is stuck without a documented way out: {problem!r}")
    return False


def _give_up(world: World, device: Device) -> bool:
    """Abandon a copied or damaged directory; if it was the only one of its name, the agent starts in a new one."""
    if sum(other.name == device.name for other in world.devices) == 1:
        world.begin_anew(device)
        return False
    world.accounting.excused |= device.held | device.memory.unsent
    device.let_go()
    world.devices.remove(device)
    return True


def _require_forgotten(world: World, device: Device, problem: FedbanditError) -> None:
    known = device.memory.incarnation in world.accounting.forgotten
    require(known, f"{device.name} must start in a new directory, and was not forgotten: {problem!r}")
