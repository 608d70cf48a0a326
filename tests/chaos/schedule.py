"""Which faults are injected when: a pure function of the seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

# kind -> how often it is in a list of kinds, shortest and longest duration in seconds
PROCESS = {
    "kill_agent": (4, 0.0, 2.0),
    "pause_agent": (2, 0.3, 8.0),
    "kill_server": (2, 0.0, 2.0),
    "pause_server": (1, 0.3, 6.0),
    "stop_server": (1, 0.0, 1.0),
    "kill_in_burst": (6, 0.0, 0.0),  # an agent with thousands of pending decisions, while it makes more
}
CROWDS = {
    "endless_heads": (1, 2.0, 5.0),
    "slow_bodies": (1, 4.0, 10.0),
    "never_read": (1, 8.0, 14.0),
    "silent": (1, 2.0, 5.0),
}
ADMIN = {
    "recreate_model": (1, 0.0, 0.0),
    "kill_in_delete": (1, 0.0, 0.0),
    "kill_tool": (3, 0.0, 0.0),
}
WORLD = {
    "fill_server_disk": (1, 1.0, 5.0),
    "fill_agent_disk": (1, 1.0, 5.0),
    "move_clock": (2, 0.0, 0.0),
    "restart_postgres": (1, 0.0, 0.0),
}
NETWORK = {
    "drop_requests": (1, 0.5, 3.0),
    "cut_requests": (1, 0.5, 3.0),
    "delay": (1, 0.5, 3.0),
    "duplicate": (2, 0.5, 3.0),
    "replay_late": (1, 0.5, 3.0),
    "reorder": (1, 0.5, 3.0),
    "cut_replies": (2, 0.5, 3.0),
    "halve_replies": (1, 0.5, 3.0),
    "drip_replies": (1, 6.0, 12.0),  # longer than the margin of a call
}
# Of the fleets, drawn apart from the others.
FLEET = {
    "kill_fleet_process": (6, 0.0, 2.0),
    "pause_fleet_process": (2, 0.3, 5.0),
    "kill_in_enrolment": (4, 0.0, 0.0),
    "fresh_directory": (2, 0.0, 0.0),
    "retire": (2, 0.0, 0.0),
    "prune": (1, 0.0, 0.0),
    "fold": (1, 0.0, 0.0),
    "replace_enrolment": (1, 0.0, 0.0),
    "restart_fleet_model": (1, 0.0, 0.0),
    "fill_fleet_disk": (1, 1.0, 3.0),
    "move_fleet_clock": (1, 0.0, 0.0),
}
FLEET_KINDS = {"pod": 2, "worker": 2, "shop": 2, "mover": 2}  # processes of each kind
REPORTER = "reporter"
KINDS = {**PROCESS, **CROWDS, **ADMIN, **WORLD, **NETWORK}
ONLY = {"fill_server_disk": "sqlite", "restart_postgres": "postgres"}
TENANT = "tenant"  # the agent of the model that is deleted and created again
OFFSETS_S = (-3e8, -86_400.0, -3600.0, -5.0, 5.0, 3600.0, 86_400.0, 3e8)


@dataclass(frozen=True, slots=True)
class Action:
    """One fault: time within its phase, kind, target, duration, and a number that some kinds need."""

    at_s: float
    kind: str
    target: str
    seconds: float
    value: float


def names(prefix: str, count: int) -> list[str]:
    """`agent-0`, `agent-1`, …"""
    return [f"{prefix}-{number}" for number in range(count)]


def fleet_agents() -> list[str]:
    """The agent processes of the fleets."""
    return [name for kind, count in FLEET_KINDS.items() for name in names(kind, count)]


def agents_with_many_pending(n_agents: int) -> list[str]:
    """The agents that keep thousands of decisions pending: every third."""
    return names("agent", n_agents)[::3]


def phases(
    seed: int,
    *,
    store: str,
    n_agents: int,
    n_servers: int,
    n_phases: int,
    phase_s: float,
    gap_s: float,
    restarts: bool = False,
) -> list[list[Action]]:
    """The actions of every phase, in order of time. Kinds are drawn from shuffled lists, so that none is left out.

    With `restarts`, operators also restart the model, about every ten seconds.
    """
    rng = Random(f"{seed} {store} {n_agents} {n_servers}")
    kinds: list[str] = []
    found = []
    for _ in range(n_phases):
        actions, at_s = [], rng.uniform(0.0, gap_s)
        while at_s < phase_s:
            kinds = kinds or _shuffled_kinds(rng, store)
            actions.append(_action(rng, kinds.pop(), at_s, n_agents, n_servers))
            at_s += rng.uniform(0.0, 2.0 * gap_s)
        found.append(actions)
    return [_with_restarts(rng, actions, phase_s) for actions in found] if restarts else found


def fleet_phases(seed: int, *, store: str, n_phases: int, phase_s: float, gap_s: float) -> list[list[Action]]:
    """The actions on the fleets in every phase, drawn in the same way from a list of their own."""
    rng = Random(f"fleets {seed} {store}")
    kinds: list[str] = []
    found = []
    for _ in range(n_phases):
        actions, at_s = [], rng.uniform(0.0, gap_s)
        while at_s < phase_s:
            if not kinds:
                kinds = [kind for kind, (count, _, _) in FLEET.items() for _ in range(count)]
                rng.shuffle(kinds)
            actions.append(_fleet_action(rng, kinds.pop(), at_s))
            at_s += rng.uniform(0.0, 2.0 * gap_s)
        found.append(actions)
    return found


def _fleet_action(rng: Random, kind: str, at_s: float) -> Action:
    _, shortest, longest = FLEET[kind]
    pool = fleet_agents()
    if kind.endswith("_fleet_process"):
        pool = [*pool, REPORTER]
    if kind == "fresh_directory":
        pool = [name for name in pool if name.startswith(("pod", "mover"))]
    value = rng.choice(OFFSETS_S) if kind == "move_fleet_clock" else float(rng.randrange(65_536))
    return Action(round(at_s, 3), kind, rng.choice(pool), round(rng.uniform(shortest, longest), 3), value)


def _with_restarts(rng: Random, actions: list[Action], phase_s: float) -> list[Action]:
    times = [round(rng.uniform(0.0, phase_s), 3) for _ in range(max(2, int(phase_s / 10.0)))]
    more = [Action(at_s, "restart_model", "", 0.0, float(rng.randrange(65_536))) for at_s in times]
    return sorted([*actions, *more], key=lambda action: action.at_s)


def _shuffled_kinds(rng: Random, store: str) -> list[str]:
    kinds = [kind for kind, (count, _, _) in KINDS.items() if ONLY.get(kind, store) == store for _ in range(count)]
    rng.shuffle(kinds)
    return kinds


def _action(rng: Random, kind: str, at_s: float, n_agents: int, n_servers: int) -> Action:
    _, shortest, longest = KINDS[kind]
    pool = _targets(kind, n_agents, n_servers)
    target = rng.choice(pool) if pool else ""
    value = rng.choice(OFFSETS_S) if kind == "move_clock" else float(rng.randrange(65_536))
    return Action(round(at_s, 3), kind, target, round(rng.uniform(shortest, longest), 3), value)


def _targets(kind: str, n_agents: int, n_servers: int) -> list[str]:
    """Possible targets of a kind."""
    agents, servers = [*names("agent", n_agents), TENANT], names("server", n_servers)
    if kind == "kill_in_burst":
        return agents_with_many_pending(n_agents)
    if kind.endswith("_server") or kind in CROWDS or kind == "kill_in_delete":
        return servers
    if kind.endswith("_agent"):
        return agents
    return agents + servers if kind == "move_clock" else []
