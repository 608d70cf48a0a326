"""The steps of a history: actions of applications, operators, network and machines, each with its weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from fedbandit.algorithms.decision import Decision
from fedbandit.errors import AlreadyObserved
from tests.crash_model import operator_steps as operators
from tests.crash_model.accounting import require
from tests.crash_model.device import LOG, RING, Device
from tests.crash_model.seams import Fault, Files, Killed, read_tree
from tests.crash_model.server import DIM, Server
from tests.crash_model.virtual import Session
from tests.crash_model.world import World


@dataclass(frozen=True, slots=True)
class Step:
    """One step: kind, device, two parameters, and a fault."""

    kind: str
    who: int = 0
    a: int = 0
    b: int = 0
    fault: Fault | None = None
    server_fault: Fault | None = None
    net: tuple[str, ...] = ()
    replica: int = 0

    def __str__(self) -> str:
        extra = [f"{name}={value}" for name, value in (("fault", self.fault), ("server", self.server_fault)) if value]
        return " ".join([self.kind, str(self.who), str(self.a), str(self.b), *self.net, *extra])


def row_of(number: int) -> np.ndarray:
    """A row of small integers, in one block of the model."""
    row, block = np.zeros((1, Server.blocks, DIM)), number // 49 % Server.blocks
    row[0, block] = float(number % 7 - 3), float(number // 7 % 7 - 3)
    return row.reshape(1, -1)


def row_in(decision: Decision) -> np.ndarray:
    """The row of a decision, of which the parts by block are kept only."""
    if len(decision.x) == DIM * Server.blocks:
        return decision.x[np.newaxis]
    row = np.zeros((1, Server.blocks, DIM))
    row[0, decision.block] = decision.x
    return row.reshape(1, -1)


def reward_of(number: int) -> float:
    """A small integer."""
    return float(number % 7 - 3)


def take(world: World, step: Step) -> None:
    """Run a step of a history, and check the invariants."""
    world.replica = step.replica
    world.server_fault = step.server_fault
    if step.kind in AGENT_STEPS:
        device = world.devices[step.who % len(world.devices)]
        AGENT_STEPS[step.kind](world, device, step)
    else:
        operators.STEPS[step.kind](world, step)
    world.server_fault = None
    world.check()


# -- applications


def choose(world: World, device: Device, step: Step) -> None:
    """Make decisions, one after the other."""
    got: list[Decision] = []
    actions = [row_of(step.a)[0], row_of(step.b)[0]]

    def work(agent: Any) -> None:
        for _ in range(1 + step.a % 12):
            got.append(agent.choose(actions))

    memory = device.memory
    world.do(device, work, fault=step.fault, net=step.net)
    _now_wait(device, got)
    require(memory is device.memory, "a device lost its expected state")


def fill_ring(world: World, device: Device, step: Step) -> None:
    """As many pending decisions as the ring has slots, and then one more, which moves them to the table."""
    choose(world, device, replace(step, a=7, fault=None, net=()))
    choose(world, device, replace(step, a=step.a - step.a % 12))


def _now_wait(device: Device, got: list[Decision]) -> None:
    """Record new decisions; those that the journal could not store may be missing after a restart."""
    device.memory.waiting.update({decision.id: decision for decision in got})
    device.memory.weak |= {decision.id for decision in got if int(decision.id.rpartition("-")[2]) in Session.not_kept}


def choose_many(world: World, device: Device, step: Step) -> None:
    """More decisions than the product's ring holds."""
    got: list[Decision] = []

    def work(agent: Any) -> None:
        while len(got) < 1100:
            got.extend(agent.choose_many([row_of(n) for n in range(100)]))

    world.do(device, work, fault=step.fault)
    _now_wait(device, got)


def group_of(decision: Decision) -> str:
    """The group that a reward counts in; none where the model has no control group."""
    return decision.group if Server.control else ""


def observe(world: World, device: Device, step: Step) -> None:
    """Observe the reward of a pending decision, or of a row if none is pending."""
    memory = device.memory
    names = sorted(memory.waiting, key=lambda name: int(name.rpartition("-")[2]))
    if not names:
        observe_row(world, device, step)
        return
    decision = memory.waiting[names[step.a % len(names)]]
    new = world.accounting.add(row_in(decision), np.array([reward_of(step.b)]), group_of(decision))
    ending = world.do(
        device, lambda agent: agent.observe(decision, reward_of(step.b)), fault=step.fault, net=step.net, new=[new]
    )
    if isinstance(ending, AlreadyObserved):
        require(decision.id in memory.weak, f"the reward of {decision.id} was refused: {ending}")
        del memory.waiting[decision.id]
    if new not in world.accounting.void and device.memory is memory:
        del memory.waiting[decision.id]
        memory.settled[decision.id] = new
        device.done = decision


def observe_row(world: World, device: Device, step: Step) -> None:
    """Observe the reward of a row without a decision."""
    row, reward = row_of(step.a), reward_of(step.b)
    new = world.accounting.add(row, np.array([reward]))
    world.do(device, lambda agent: agent.observe(row[0], reward), fault=step.fault, net=step.net, new=[new])


def upload_some(world: World, device: Device, step: Step) -> None:
    """A few uploads, so that an agent gets further ahead of a backup than its kept uploads."""
    for n in range(2 + step.b % 3):
        observe_row(world, device, replace(step, a=step.a + n, fault=step.fault if n == 0 else None))
        world.do(device, lambda agent: agent.flush(3.0))


def learn_batch(world: World, device: Device, step: Step) -> None:
    """Learn from rows gathered elsewhere."""
    rows = np.concatenate([row_of(step.a + n) for n in range(1 + step.b % 4)])
    rewards = np.array([reward_of(step.b + n) for n in range(len(rows))])
    new = world.accounting.add(rows, rewards)
    world.do(device, lambda agent: agent.partial_fit(rows, rewards), fault=step.fault, net=step.net, new=[new])


def observe_again(world: World, device: Device, step: Step) -> None:
    """A second reward of a decision is refused."""
    decision = device.done
    if decision is None or world.accounting.void & {device.memory.settled.get(decision.id, -2)}:
        return
    if decision.id not in device.memory.settled or device.agent is None:
        return
    ending = world.do(device, lambda agent: agent.observe(decision, 1.0))
    require(isinstance(ending, AlreadyObserved), f"a second reward led to {ending!r}")


def expire(world: World, device: Device, step: Step) -> None:
    """Expire a decision."""
    memory = device.memory
    names = sorted(memory.waiting)
    if names:
        decision = memory.waiting[names[step.a % len(names)]]
        ending = world.do(device, lambda agent: agent.expire(decision), fault=step.fault)
        if isinstance(ending, BaseException):
            memory.weak.add(decision.id)  # it may be pending or not
        elif device.agent is not None:
            del memory.waiting[decision.id]
            memory.settled[decision.id] = -1


def settle_all(world: World, device: Device, step: Step) -> None:
    """Settle all pending decisions with a default reward."""
    if device.agent is None:
        return
    waiting, memory = list(device.agent.pending)[:20], device.memory
    rewards = np.array([reward_of(step.a)])
    new = [world.accounting.add(row_in(decision), rewards, group_of(decision)) for decision in waiting]

    def work(agent: Any) -> None:
        for decision in waiting:
            agent.observe(decision, reward_of(step.a))

    world.do(device, work, fault=step.fault, net=step.net, new=new)
    for decision, number in zip(waiting, new, strict=True):
        if number not in world.accounting.void:
            memory.waiting.pop(decision.id, None)
            memory.settled[decision.id] = number


def flush(world: World, device: Device, step: Step) -> None:
    """Send everything and wait."""
    world.do(device, lambda agent: agent.flush(3.0), fault=step.fault, net=step.net)


def refresh(world: World, device: Device, step: Step) -> None:
    """Download the newest model."""
    world.do(device, lambda agent: agent.refresh(), fault=step.fault, net=step.net)


def background(world: World, device: Device, step: Step) -> None:
    """One iteration of the background thread, or the exchange of an inline agent."""

    def work(agent: Any) -> None:
        if agent._background is not None:
            agent._background.work()
        else:
            agent._exchange_inline()

    world.do(device, work, fault=step.fault, net=step.net)


def rejoin(world: World, device: Device, step: Step) -> None:
    """The way back after `sequence_gap`, which a directory that was copied does not have."""
    if not device.is_copied and not device.is_damaged:
        world.do(device, lambda agent: agent.rejoin(), fault=step.fault, net=step.net)


# -- processes and disks


def reopen(world: World, device: Device, step: Step) -> None:
    """Close and reopen."""
    if device.agent is not None:
        ending = world.do(device, lambda agent: agent.close(), fault=step.fault)
        if isinstance(ending, Killed):
            return
        device.move(read_tree(device.process.folder))
    world.start(device)


def kill(world: World, device: Device, step: Step) -> None:
    """SIGKILL between two calls; with a fault, it occurs while the next process opens."""
    device.move(read_tree(device.process.folder))
    world.start(device, step.fault if step.fault is None or step.fault.mode != "interrupt" else None)


def cut_power(world: World, device: Device, step: Step) -> None:
    """Power cut: what was not synced may be lost."""
    rng = Random(step.a)
    if device.options.durability == "fast":
        device.memory.epoch = -1  # the agent may hear of a restart once more, and drop what came after it
    device.move(device.after_power_cut(rng), boot=f"boot-{step.a}-{step.b}".encode())
    world.start(device)
    if device.agent is None:
        return
    memory = device.memory
    lost = memory.n_rounds - device.durable.agent.n_rounds
    require(lost == 0 or (lost > 0 and device.options.durability == "fast"), f"a power cut changed {lost} rounds")
    while lost > 0:
        require(bool(memory.unsent), "a power cut lost data that had been sent")
        number = max(memory.unsent)
        (memory.line if number in memory.line else memory.dropped).remove(number)
        world.accounting.cancel(number)
        lost -= world.accounting.weights[number]
    memory.n_rounds = device.durable.agent.n_rounds
    waiting = {decision.id for decision in device.agent.pending}
    memory.waiting = {name: decision for name, decision in memory.waiting.items() if name in waiting}
    memory.settled = {name: number for name, number in memory.settled.items() if number >= 0}


def move_clock(world: World, device: Device, step: Step) -> None:
    """An administrator sets the clock; or time passes."""
    if step.b % 2:
        Session.clock.wall += (step.a % 20 - 10) * 86_400.0
    else:
        Session.clock.advance(float(step.a % 5000))


def copy(world: World, device: Device, step: Step) -> None:
    """The directory is copied, and both run."""
    if device.agent is None or len(world.devices) > 3 or any(other.is_copied for other in world.devices):
        return
    twin = Device(world, device.name, world.new_place(read_tree(device.process.folder)), device.options)
    twin.process.boot = device.process.boot
    twin.memory = device.memory.copy()
    twin.held = set(device.held)
    twin.is_copied = device.is_copied = True
    world.devices.append(twin)
    world.start(twin)


def set_aside(world: World, device: Device, step: Step) -> None:
    """Copy the directory, for later."""
    if device.agent is not None and not device.is_copied:
        device.kept_aside = (read_tree(device.process.folder), device.memory.copy())


def bring_back(world: World, device: Device, step: Step) -> None:
    """Replace the directory by the old copy."""
    if device.kept_aside is None or device.is_copied:
        return
    files, memory = device.kept_aside
    world.accounting.excused |= device.held | device.memory.unsent
    device.move(files)
    device.memory, device.is_copied, device.kept_aside = memory.copy(), True, None
    world.drop_copies(device.name)
    world.start(device)


def damage(world: World, device: Device, step: Step) -> None:
    """A file is deleted, shortened or changed while no process uses it: a named error, or nothing is lost."""
    if device.agent is None or device.is_copied:
        return
    files = read_tree(device.process.folder)
    what = ("delete", "shorten", "flip")[step.a % 3]
    name = ("journal.db", "journal.db-wal", LOG, RING)[step.b % 4]
    if (
        name not in files
        or not files[name]
        or (name.endswith("wal") and what != "delete" and "damaged WAL" in world.off)
    ):
        return
    spoil(files, name, what, step.a)
    device.is_damaged = True
    device.move(files)
    before = device.memory
    world.start(device)
    if device.memory is before and device.agent is not None:
        operators.after_damage(world, device, name, what)


def spoil(files: Files, name: str, what: str, number: int) -> None:
    """Change one file of a directory."""
    data = files[name]
    if what == "delete":
        del files[name]
    elif what == "shorten":
        files[name] = data[: number * 7919 % len(data)]
    else:
        at = number * 7919 % len(data)
        files[name] = data[:at] + bytes([data[at] ^ (1 << number % 8)]) + data[at + 1 :]


AgentStep = Callable[[World, Device, Step], None]
AGENT_STEPS: dict[str, AgentStep] = {
    step.__name__: step
    for step in (choose, fill_ring, choose_many, observe, observe_row, upload_some, learn_batch, observe_again, expire,
                 settle_all, flush, refresh, background, rejoin, reopen, kill, cut_power, move_clock, copy, set_aside,
                 bring_back, damage)
}  # fmt: skip
