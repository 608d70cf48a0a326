"""What the adversary does, and when: a pure function of the seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

# kind -> how often it is in a deck, shortest and longest seconds that it lasts
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
    "remake_model": (1, 0.0, 0.0),
    "kill_in_delete": (1, 0.0, 0.0),
    "kill_tool": (3, 0.0, 0.0),
}
WORLD = {
    "fill_server_disk": (1, 1.0, 5.0),
    "fill_agent_disk": (1, 1.0, 5.0),
    "move_clock": (2, 0.0, 0.0),
    "restart_postgres": (1, 0.0, 0.0),
}
WEATHER = {
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
KINDS = {**PROCESS, **CROWDS, **ADMIN, **WORLD, **WEATHER}
ONLY = {"fill_server_disk": "sqlite", "restart_postgres": "postgres"}
TENANT = "tenant"  # the agent of the model that is deleted and created again
OFFSETS_S = (-3e8, -86_400.0, -3600.0, -5.0, 5.0, 3600.0, 86_400.0, 3e8)


@dataclass(frozen=True, slots=True)
class Action:
    """One blow: when in its storm, what, whom, how long, and a number that some kinds need."""

    at_s: float
    kind: str
    victim: str
    seconds: float
    value: float


def names(prefix: str, count: int) -> list[str]:
    """`agent-0`, `agent-1`, …"""
    return [f"{prefix}-{number}" for number in range(count)]


def hoarders(n_agents: int) -> list[str]:
    """The agents that keep thousands of decisions pending: every third."""
    return names("agent", n_agents)[::3]


def storms(
    seed: int, *, store: str, n_agents: int, n_servers: int, n_storms: int, storm_s: float, gap_s: float
) -> list[list[Action]]:
    """The actions of every storm, in order of time. Kinds are dealt from shuffled decks, so that none is left out."""
    rng = Random(f"{seed} {store} {n_agents} {n_servers}")
    deck: list[str] = []
    found = []
    for _ in range(n_storms):
        actions, at_s = [], rng.uniform(0.0, gap_s)
        while at_s < storm_s:
            deck = deck or _deck(rng, store)
            actions.append(_action(rng, deck.pop(), at_s, n_agents, n_servers))
            at_s += rng.uniform(0.0, 2.0 * gap_s)
        found.append(actions)
    return found


def _deck(rng: Random, store: str) -> list[str]:
    deck = [kind for kind, (count, _, _) in KINDS.items() if ONLY.get(kind, store) == store for _ in range(count)]
    rng.shuffle(deck)
    return deck


def _action(rng: Random, kind: str, at_s: float, n_agents: int, n_servers: int) -> Action:
    _, shortest, longest = KINDS[kind]
    pool = _victims(kind, n_agents, n_servers)
    victim = rng.choice(pool) if pool else ""
    value = rng.choice(OFFSETS_S) if kind == "move_clock" else float(rng.randrange(65_536))
    return Action(round(at_s, 3), kind, victim, round(rng.uniform(shortest, longest), 3), value)


def _victims(kind: str, n_agents: int, n_servers: int) -> list[str]:
    """Whom it may hit."""
    agents, servers = [*names("agent", n_agents), TENANT], names("server", n_servers)
    if kind == "kill_in_burst":
        return hoarders(n_agents)
    if kind.endswith("_server") or kind in CROWDS or kind == "kill_in_delete":
        return servers
    if kind.endswith("_agent"):
        return agents
    return agents + servers if kind == "move_clock" else []
