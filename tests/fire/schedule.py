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
}
KINDS = {**PROCESS, **WORLD, **WEATHER}
ONLY = {"fill_server_disk": "sqlite", "restart_postgres": "postgres"}
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
    agents, servers = names("agent", n_agents), names("server", n_servers)
    pool = servers if kind.endswith("_server") else agents if kind.endswith("_agent") else agents + servers
    victim = rng.choice(pool) if kind in PROCESS or kind == "move_clock" else ""
    value = rng.choice(OFFSETS_S) if kind == "move_clock" else float(rng.randrange(65_536))
    return Action(round(at_s, 3), kind, victim, round(rng.uniform(shortest, longest), 3), value)
