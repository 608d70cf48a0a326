"""Steps of operators with the product's own tools, and late messages of the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedbandit.algorithms.messages import Upload
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import FedbanditError, StoreUnavailable
from fedbandit.service.admin import backup as tools
from fedbandit.service.admin import operations
from fedbandit.service.stores import schema
from fedbandit.service.stores.sqlite.store import FILE_NAME, opened
from fedbandit.wire import codec
from tests.crash_model.accounting import Failure, require
from tests.crash_model.device import DATABASE, LOG, RING, Device
from tests.crash_model.seams import Fault, Killed
from tests.crash_model.server import DIM, MODEL, Server, settings_of
from tests.crash_model.world import Saved, World

if TYPE_CHECKING:
    from tests.crash_model.steps import Step

STRANGER = "z"


def attempt(work: Callable[[], Any], fault: Fault | None) -> BaseException | None:
    """Run a tool; its error, if any. Errors need a fault as their cause, and a name."""
    try:
        work()
    except Killed as killed:
        return killed
    except FedbanditError as error:
        require(fault is not None, f"a tool failed without a cause: {error!r}")
        return error
    except Failure:
        raise
    except Exception as error:
        raise Failure(f"an unnamed error: {error!r}") from error
    return None


def bring_late(world: World, step: Step) -> None:
    """The network delivers copies of old messages, in any order, one of each agent in a batch."""
    found: dict[str, bytes] = {}
    for number in (step.a, step.b):
        if world.bodies:
            name, body = world.bodies[number % len(world.bodies)]
            found[name] = body
    if found:
        world.deliver(list(found.items()))


def kill_server(world: World, step: Step) -> None:
    """SIGKILL; with a fault, the next start is killed or fails."""
    world.server.kill()
    if step.fault is not None:
        attempt(lambda: world.server.start(step.fault), step.fault)
    world.up()


def stop_server(world: World, step: Step) -> None:
    """SIGTERM, and a start."""
    world.server.stop()
    world.up()


def cut_line(world: World, step: Step) -> None:
    """An agent is offline, or online again."""
    device = world.devices[step.who % len(world.devices)]
    device.wire.is_cut = step.a % 2 == 0


def backup(world: World, step: Step) -> None:
    """`fedbandit backup` beside the running server."""
    folder = world.folder / "backups"
    folder.mkdir(exist_ok=True)
    out = folder / f"copy-{len(list(folder.iterdir()))}-{step.a}"
    ending = attempt(
        lambda: world.server.run_tool(lambda: tools.backup(world.server.directory, out), step.fault), step.fault
    )
    require(ending is not None or out.exists(), "a successful backup does not exist")
    if out.exists():
        tools.check(out)
        accounting = world.accounting
        merged, fates = frozenset(accounting.merged), dict(accounting.fates)
        saved = Saved(out, world.rows(), merged, dict(world.tokens), world.variant, fates)
        world.backups = [*world.backups[-2:], saved]


def restore(world: World, step: Step) -> None:
    """`fedbandit restore` of any backup; however it ends, the next start serves the old store or the new one."""
    if not world.backups:
        return
    saved, before = world.backups[step.a % len(world.backups)], world.rows()
    if step.b % 2:
        world.server.stop()
    else:
        world.server.kill()
    ending = attempt(
        lambda: world.server.run_tool(lambda: tools.restore(world.server.directory, saved.path), step.fault), step.fault
    )
    world.up()
    now = world.rows()
    require(ending is not None or now == saved.rows, "a successful restore did not restore the backup")
    require(now in (before, saved.rows), "after a restore the store is neither the old one nor the backup")
    if now == saved.rows and now != before:
        is_same = before is not None and now is not None and before.uid == now.uid
        _went_back(world, saved, is_same_model=is_same)


def go_back_twice(world: World, step: Step) -> None:
    """The oldest backup is restored, agents rejoin, and then a newer backup is restored."""
    restore(world, replace(step, a=0))
    for device in world.devices:
        if not device.is_copied and not device.is_damaged:
            world.do(device, lambda agent: agent.rejoin())
    restore(world, replace(step, a=len(world.backups) - 1, fault=None))


def _went_back(world: World, saved: Saved, *, is_same_model: bool) -> None:
    """Agents resend what the backup lacks and they keep, except uploads to another model."""
    gone = set(world.accounting.merged_ids())
    world.accounting.merged, world.accounting.fates = set(saved.merged), dict(saved.fates)
    held: set[int] = set()
    for device in world.devices:
        is_sent_again = is_same_model and not (device.is_copied and "kept by copies" in world.off)
        held |= device.held if is_sent_again else device.held - device.kept
    world.accounting.excused |= gone - set(world.accounting.merged_ids()) - held
    world.tokens, world.variant, world.went_back = dict(saved.tokens), saved.variant, True
    world.is_revoked = {name for name, _, revoked in (() if saved.rows is None else saved.rows.tokens) if revoked}


def forget(world: World, step: Step) -> None:
    """Forget an agent's contribution."""
    name = world.devices[step.who % len(world.devices)].name
    attempt(
        lambda: world.server.manage(lambda parts: operations.forget_agent(parts, MODEL, name), step.fault), step.fault
    )
    world.up()
    rows = world.rows()
    theirs = {key for key in world.accounting.merged if key[0] == name}
    if rows is not None and theirs and any(row[0] == name and not row[1] for row in rows.agents):
        world.accounting.excused |= {number for key in theirs for number in world.accounting.ids_of(key)}
        world.accounting.forgotten |= {key[1] for key in theirs}
        world.accounting.merged -= theirs


def revoke(world: World, step: Step) -> None:
    """Revoke an agent's token."""
    name = world.devices[step.who % len(world.devices)].name
    attempt(
        lambda: world.server.manage(lambda parts: operations.revoke_agent(parts, MODEL, name), step.fault), step.fault
    )
    world.up()
    world.is_revoked.add(name)


def quarantine(world: World, step: Step) -> None:
    """Quarantine or release an agent; after a fault either state is possible."""
    name, before, on = world.devices[step.who % len(world.devices)].name, world.rows(), step.a % 2 == 0
    ending = set_apart(world, name, step.fault, on=on)
    now = world.rows()
    if before is None or now is None:
        return
    was, is_now = (name,) in before.apart, (name,) in now.apart
    require(is_now == on or (ending is not None and is_now == was), f"{name} is in quarantine: {is_now}, expected {on}")


def set_apart(world: World, name: str, fault: Fault | None, *, on: bool) -> BaseException | None:
    """`fedbandit agents quarantine` or `release`."""
    ending = attempt(
        lambda: world.server.manage(lambda parts: operations.quarantine_agent(parts, MODEL, name, on=on), fault), fault
    )
    world.up()
    return ending


def renew(world: World, step: Step) -> None:
    """Give an agent another token."""
    world.enroll(world.devices[step.who % len(world.devices)].name)


def remake(world: World, step: Step) -> None:
    """Delete the model and create it with other settings, while caches are filled."""
    replica = step.replica
    attempt(
        lambda: world.server.manage(lambda parts: operations.delete_model(parts, MODEL), step.fault, replica),
        step.fault,
    )
    world.up()
    if world.rows() is not None:
        return
    world.accounting.excused |= set(world.accounting.merged_ids())
    for device in world.devices:
        world.accounting.excused |= device.kept  # they were answered by the deleted model
    world.accounting.merged, world.variant, world.went_back = set(), step.a, True
    world.server.manage(lambda parts: operations.create_model(parts, settings_of(step.a)), None, replica)
    for name in {device.name for device in world.devices}:
        world.enroll(name)
    probe_bounds(world, step)


def probe_bounds(world: World, step: Step) -> None:
    """An upload of another agent outside of the bounds is refused exactly if the model has bounds now."""
    world.enroll(STRANGER)
    for replica in (0, 1):
        body = _upload(world, 100.0, 100.0, f"probe-{replica}")
        reply = world.server.exchange([(world.tokens[STRANGER], body)], replica, None)[0]
        expected = 422 if world.variant % 3 == 1 else 200
        what = f"an upload outside of bounds was answered {reply.status} on replica {replica}, expected {expected}"
        require(reply.status == expected, f"{what}: {reply.body[:200]!r}")
    world.server.manage(lambda parts: operations.forget_agent(parts, MODEL, STRANGER), None)


def _upload(world: World, x: float, reward: float, incarnation: str) -> bytes:
    """An upload of another agent with one observation (x, 0, …) and a reward."""
    zeros = SufficientStats.zeros(DIM * Server.blocks, blocks=Server.blocks)
    Sigma, b = zeros.Sigma.copy(), zeros.b.copy()
    Sigma.flat[0] = x * x
    b[0] = x * reward
    stats = SufficientStats(Sigma, b, 1, reward, reward * reward)
    name, rows = f"{incarnation}-{len(world.accounting.values)}", world.rows()
    return codec.encode(codec.request_of(Upload(STRANGER, name, 1, stats, 1.0, epoch=rows.epoch if rows else 0)))


def restart_model(world: World, step: Step) -> None:
    """`fedbandit models restart`: a new epoch, or after a fault perhaps none."""
    before = world.rows()
    if before is None:
        return
    ending = attempt(
        lambda: world.server.manage(lambda parts: operations.restart_model(parts, MODEL), step.fault, step.replica),
        step.fault,
    )
    world.up()
    now = world.rows()
    require(now is not None, "a restart deleted the model")
    assert now is not None
    is_new = now.epoch == before.epoch + 1
    require(is_new or (ending is not None and now.epoch == before.epoch), f"epoch {before.epoch} → {now.epoch}")


def poison(world: World, step: Step) -> None:
    """The most extreme plausible upload: every agent still decides, and `forget` removes it."""
    if world.rows() is None:
        return
    world.enroll(STRANGER)
    body = _upload(world, 1.0, 1e75, "poison")
    world.server.exchange([(world.tokens[STRANGER], body)], step.replica, None)
    for device in world.devices:
        world.do(device, lambda agent: agent.refresh())
        if device.agent is not None:
            world.check_decisions(device)
    world.server.manage(lambda parts: operations.forget_agent(parts, MODEL, STRANGER), None)
    for device in world.devices:
        world.do(device, lambda agent: agent.refresh())


def first_start(world: World, step: Step) -> None:
    """A first start on an empty directory, killed or failing, and then a complete one."""
    _another_server(world, step, {})


def migrate(world: World, step: Step) -> None:
    """A start on a store of an older version, killed or failing, and then a complete one."""
    folder = world.folder / f"old-{world.n_places}"
    folder.mkdir()
    with opened(folder / FILE_NAME) as connection:
        connection.execute(schema.VERSION_TABLE)
        for statement in schema.migrations("sqlite")[0].statements:
            connection.execute(statement)
        connection.execute("INSERT INTO schema_version VALUES (1)")
    _another_server(world, step, {FILE_NAME: (folder / FILE_NAME).read_bytes()})


def _another_server(world: World, step: Step, files: dict[str, bytes]) -> None:
    world.n_places += 1
    folder = world.folder / f"another-{world.n_places}"
    folder.mkdir()
    server = Server(folder, world.server.loop)
    server.replace(files)
    ending = attempt(lambda: server.start(step.fault), step.fault)
    if ending is not None:
        token = server.start()
        require(token is not None or isinstance(ending, Killed | StoreUnavailable), "no admin token was printed")
    server.manage(lambda parts: operations.create_model(parts, settings_of(0)), None)
    server.kill()
    world.n_steps += server.n_steps


def after_damage(world: World, device: Device, name: str, what: str) -> None:
    """After damage that was not detected: a log may have lost its tail, a ring some decisions."""
    memory = device.memory
    if name == DATABASE[0] and what == "flip":
        world.begin_anew(device)
        return
    if name == LOG:
        lost = memory.n_rounds - device.durable.agent.n_rounds
        while lost > 0 and memory.line:
            number = memory.line.pop()
            world.accounting.cancel(number)
            lost -= world.accounting.weights[number]
        require(lost == 0, "a damaged log lost data that had been sent, without an error")
        memory.n_rounds = device.durable.agent.n_rounds
    if name in (RING, LOG):
        assert device.agent is not None
        waiting = {decision.id for decision in device.agent.pending}
        memory.waiting = {key: decision for key, decision in memory.waiting.items() if key in waiting}
        memory.settled = {key: number for key, number in memory.settled.items() if key not in waiting}


OperatorStep = Callable[[World, "Step"], None]
STEPS: dict[str, OperatorStep] = {
    step.__name__: step
    for step in (bring_late, kill_server, stop_server, cut_line, backup, restore, go_back_twice, forget, quarantine,
                 revoke, renew, remake, restart_model, poison, first_start, migrate)
}  # fmt: skip
