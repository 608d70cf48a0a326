"""What three ways to shorten messages would save: measured on every message of simulated fleets.

    python bench/bytes.py [--rounds 30000] [--wide-rounds 1000] [--json]

Fleets: the demo's images, digits as in study `real`, the authors' uniform world, and 1 000 arms × 10. Messages are the
bodies that live agents and servers would send. Beside each fleet's bytes as they are:

- *factor*: an upload says (Σ, b) as the triangular factor R of Σ = RᵀR and z with b = Rᵀz, r(p+1) − r(r−1)/2 numbers
  for a block of p columns and rank r instead of p(p+1)/2 + p. Both are computed from the sums alone, so they say no
  more than the sums do.
- *zlib*: the body compressed at levels 1 and 6; with the processor time of both ends per kilobyte that is saved, and
  the speed of a network below which that time is won back.
- *changed*: a download that leaves out the blocks whose sums are those of the agent's last model.
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import fedbandit as fb
from fedbandit.algorithms.messages import Download, Reply, Request, Upload, touched_bytes
from fedbandit.demo.images import N_ARMS, deal
from fedbandit.demo.run import DemoPlan
from fedbandit.experiments.sharing_cost import SharingCost, human_bytes
from fedbandit.simulation.participation import sequence
from fedbandit.simulation.runner import SimulatedFleet, play_rounds, rounds_of
from fedbandit.simulation.worlds import from_arrays
from fedbandit.wire import codec

LEVELS = (1, 6)


@dataclass
class Sizes:
    """Totals over the messages of one direction."""

    n: int = 0
    n_bytes: int = 0
    shorter: int = 0  # messages that the alternative makes shorter: as a factor, or without unchanged blocks
    alternative: int = 0  # bytes with it
    blocks: int = 0  # touched by uploads, changed in downloads
    zlib: dict[int, int] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0))
    zlib_s: dict[int, float] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0.0))

    def add(self, body: bytes, alternative: int, blocks: int) -> None:
        """A message, its size in the alternative form, and the blocks that it has to carry."""
        self.n += 1
        self.n_bytes += len(body)
        self.shorter += alternative < len(body)
        self.alternative += min(alternative, len(body))
        self.blocks += blocks
        for level in LEVELS:
            begun = time.process_time()
            packed = zlib.compress(body, level)
            zlib.decompress(packed)
            self.zlib_s[level] += time.process_time() - begun
            self.zlib[level] += min(len(packed), len(body))


def factor_numbers(stats: fb.SufficientStats) -> int:
    """Numbers of all blocks with data as triangular factors."""
    p = stats.Sigma.shape[-1]
    ranks = np.linalg.matrix_rank(stats.Sigma.reshape(-1, p, p), tol=None, hermitian=True)
    return int((ranks * (p + 1) - ranks * (ranks - 1) // 2).sum())


class MeasuredFleet(SimulatedFleet):
    """A fleet that looks at each message."""

    def __init__(self, rule: fb.FedLinUCB, n_agents: int) -> None:
        super().__init__(rule, n_agents)
        self.up, self.down = Sizes(), Sizes()
        self.held: dict[str, fb.SufficientStats] = {}

    def count(self, message: Request | Reply) -> None:
        """Count a message and what it would have been."""
        super().count(message)
        if isinstance(message, Upload):
            body = codec.encode(codec.request_of(message))
            n_all = len(body) - 8 * (codec_numbers(message.stats) - factor_numbers(message.stats))
            self.up.add(body, n_all, n_touched(message.stats))
        elif isinstance(message, Download):
            body = codec.encode(codec.reply_of(message))
            before = self.held.get(message.agent_id, self.rule.prior)
            self.held[message.agent_id] = message.stats
            changed = n_changed(before, message.stats)
            p = message.stats.dim // message.stats.blocks
            envelope = len(body) - message.n_bytes
            self.down.add(body, envelope + touched_bytes(p, changed), changed)


def n_touched(stats: fb.SufficientStats) -> int:
    """Blocks with data."""
    return int(stats.Sigma.reshape(stats.blocks, -1).any(axis=1).sum())


def n_changed(before: fb.SufficientStats, after: fb.SufficientStats) -> int:
    """Blocks that differ."""
    return int((before.Sigma != after.Sigma).reshape(after.blocks, -1).any(axis=1).sum())


def codec_numbers(stats: fb.SufficientStats) -> int:
    """Numbers of Σ and b in an upload as it is."""
    p = stats.dim // stats.blocks
    return n_touched(stats) * (p * (p + 1) // 2 + p) if stats.blocks > 1 else p * (p + 1) // 2 + p


def play(rule: fb.FedLinUCB, world: Any, n_agents: int, n_rounds: int, participation: Any = None) -> MeasuredFleet:
    """The fleet after its rounds."""
    pattern = participation or fb.participation.uniform()
    stream, blocks = rounds_of(world, pattern, n_agents=n_agents, n_rounds=n_rounds, seed=0)
    fleet = MeasuredFleet(rule, n_agents)
    play_rounds(fleet, stream, blocks, n_rounds=n_rounds, record=[n_rounds])
    return fleet


def demo() -> tuple[MeasuredFleet, SharingCost]:
    """The images of `fedbandit demo` in the order in which they are dealt out."""
    plan = DemoPlan()
    parts = deal(plan.n_agents, plan.seed, None)
    order = sorted(((m, n) for m, part in enumerate(parts) for n in range(len(part))), key=lambda pair: pair[::-1])
    agents = [m for m, _ in order]
    world = from_arrays(
        np.array([parts[m].actions(n) for m, n in order]),
        [[parts[m].reward(n, arm) for arm in range(N_ARMS)] for m, n in order],
        agents=agents,
        shuffle=False,
    )
    rule = fb.FedLinUCB(dim=parts[0].dim, blocks=N_ARMS, alpha=plan.alpha, beta=plan.beta, lam=plan.lam, join=True)
    return play(rule, world, plan.n_agents, len(order), sequence(agents)), raw(rule, plan.n_agents, len(order))


def digits(alpha: float) -> tuple[MeasuredFleet, SharingCost]:
    """Study `real` on digits."""
    world = fb.worlds.real("digits", n_agents=20)
    rule = fb.FedLinUCB(dim=world.dim, blocks=world.blocks, alpha=alpha, beta=0.2, lam=0.1)
    return play(rule, world, 20, world.n_rows), raw(rule, 20, world.n_rows)


def uniform(alpha: float, n_rounds: int) -> tuple[MeasuredFleet, SharingCost]:
    """The authors' experiment with M = 15."""
    rule = fb.FedLinUCB(dim=15, alpha=alpha, beta=0.5)
    return play(rule, fb.worlds.uniform(dim=15, n_actions=25), 15, n_rounds), raw(rule, 15, n_rounds)


def wide(alpha: float, n_rounds: int, K: int = 1000, p: int = 10) -> tuple[MeasuredFleet, SharingCost]:
    """K arms × p by contexts, 10 agents; an arm is on offer with the 49 others that were drawn for the round."""
    rule = fb.FedLinUCB(dim=K * p, blocks=K, alpha=alpha, beta=0.3)
    rng, fleet = np.random.default_rng(0), MeasuredFleet(rule, 10)
    theta = rng.standard_normal((K, p)) / p**0.5
    for t in range(1, n_rounds + 1):
        agent = fleet.begin_round(t, str(rng.integers(10)))
        context = rng.standard_normal(p) / p**0.5
        decision = agent.choose_context(context, arms=rng.choice(K, 50, replace=False), bias=False)
        reward = float(theta[decision.block] @ context + 0.3 * rng.standard_normal())
        fleet.end_round(agent, decision, reward, agent.observe(decision, reward))
    return fleet, raw(rule, 10, n_rounds)


def raw(rule: fb.FedLinUCB, n_agents: int, n_rounds: int) -> SharingCost:
    """Raw rows: context, arm and reward, or features and reward."""
    numbers = None if rule.blocks == 1 else rule.dim // rule.blocks + 2
    return SharingCost(n_agents=n_agents, n_rounds=n_rounds, dim=rule.dim, row_numbers=numbers, blocks=rule.blocks)


def figures(name: str, fleet: MeasuredFleet, cost: SharingCost) -> dict[str, Any]:
    """The figures of one fleet."""
    up, down = fleet.up, fleet.down
    total = up.n_bytes + down.n_bytes
    found: dict[str, Any] = {
        "fleet": name,
        "uploads": up.n,
        "downloads": down.n,
        "bytes_up": up.n_bytes,
        "bytes_down": down.n_bytes,
        "raw_bytes": cost.raw_bytes,
        "factor_shorter": up.shorter,
        "factor_saved": (up.n_bytes - up.alternative) / total,
        "blocks": cost.blocks,
        "touched_per_upload": up.blocks / max(up.n, 1),
        "changed_per_download": down.blocks / max(down.n, 1),
        "changed_saved": (down.n_bytes - down.alternative) / total,
    }
    for level in LEVELS:
        saved = total - up.zlib[level] - down.zlib[level]
        seconds = up.zlib_s[level] + down.zlib_s[level]
        found[f"zlib{level}_saved"] = saved / total
        found[f"zlib{level}_ms"] = 1e3 * seconds / (up.n + down.n)
        found[f"zlib{level}_Mbit_s"] = 8e-6 * saved / seconds if seconds else 0.0
    return found


def show(rows: Sequence[dict[str, Any]]) -> None:
    """A table in Markdown."""
    print(
        "| fleet | uploads, downloads | bytes up, down | raw rows | uploads shorter as a factor, all bytes saved |",
        end="",
    )
    print(
        " zlib 1, 6: saved | ms per message | pays below, Mbit/s | blocks touched, changed | without unchanged blocks |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['fleet']} | {row['uploads']}, {row['downloads']} "
            f"| {human_bytes(row['bytes_up'])}, {human_bytes(row['bytes_down'])} | {human_bytes(row['raw_bytes'])} "
            f"| {row['factor_shorter']}, {row['factor_saved']:.0%} "
            f"| {row['zlib1_saved']:.0%}, {row['zlib6_saved']:.0%} | {row['zlib1_ms']:.2g}, {row['zlib6_ms']:.2g} "
            f"| {row['zlib1_Mbit_s']:.0f}, {row['zlib6_Mbit_s']:.0f} "
            f"| {row['touched_per_upload']:.1f}, {row['changed_per_download']:.1f} of {row['blocks']} "
            f"| {row['changed_saved']:.0%} saved |"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30_000, help="of the uniform world")
    parser.add_argument("--wide-rounds", type=int, default=1000, help="of 1 000 arms")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    fleets = {
        "demo, α = 4": demo,
        "digits, α = 1": lambda: digits(1.0),
        "digits, α = 0.1": lambda: digits(0.1),
        "uniform, α = 1": lambda: uniform(1.0, options.rounds),
        "uniform, α = 0.1": lambda: uniform(0.1, options.rounds),
        "1 000 arms × 10, α = 1": lambda: wide(1.0, options.wide_rounds),
        "1 000 arms × 10, α = 100": lambda: wide(100.0, options.wide_rounds),
    }
    rows = [figures(name, *make()) for name, make in fleets.items()]
    print(json.dumps(rows, indent=1)) if options.json else show(rows)


if __name__ == "__main__":
    main()
