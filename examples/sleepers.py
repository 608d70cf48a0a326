"""Sleepers: twelve battery-powered devices learn together, although they mostly sleep and the server is killed once.

    python examples/sleepers.py

A live fleet: a server process on this machine and agents of the SDK with a `state_dir` each, connected by HTTP.
A device wakes, works for a while and is switched off; unsent observations stay in its journal. In the middle the
server is killed (SIGKILL) and unavailable for a quarter of the day: devices that wake then decide on the model they
have. At the end every device wakes and sends the rest, and the server must have counted every observation exactly once.

The task is synthetic: which of ten radio settings works best, given 6 measurements of the surroundings.
"""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import urllib3
from fleets import WAYS, compare, options, save, three_fleets, titled, windows
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import fedbandit as fb
from fedbandit.experiments.output.figures import panels

N_DEVICES, DIM, N_SETTINGS, ROUNDS_A_TICK = 12, 6, 10, 5
NUMBERS = {"alpha": 0.5, "beta": 0.3, "lam": 0.3}
NOISE = 0.3


class Server:
    """`fedbandit serve` in a process of its own; it can be killed and started again on the same data and port."""

    def __init__(self, data: Path) -> None:
        self.data, self.port, self.token = data, 0, secrets.token_urlsafe(32)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "fedbandit.cli.serve", "--data", str(self.data), "--port", str(self.port)]
        environment = {**os.environ, "FEDBANDIT_ADMIN_TOKEN": self.token, "FEDBANDIT_LOG_LEVEL": "error"}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]  # "fedbandit serves on http://127.0.0.1:…"
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def call(self, method: str, path: str, body: dict | None = None) -> dict:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = urllib3.request(method, f"{self.url}/v1/{path}", json=body, headers=headers)
        assert answer.status < 300, answer.data
        return answer.json()


@dataclass
class Device:
    """One device: when it is awake, and the results of its decisions."""

    name: str
    token: str
    state_dir: Path
    awake: np.ndarray  # (ticks,) of bool
    agent: fb.LiveAgent | None = None
    rewards: list[float] = field(default_factory=list)
    exchanges: list[tuple[int, int]] = field(default_factory=list)  # (tick, exchanges so far)
    n_unreachable: int = 0  # wake-ups without a server

    def wake(self, url: str) -> None:
        """Continue from the journal; the server is needed only for the first start."""
        self.agent = fb.connect(url, model="radio", token=self.token, state_dir=self.state_dir)
        self.n_unreachable += self.agent.status().reachable is False

    def sleep(self, tick: int) -> None:
        """Switch off: nothing is sent, nothing is lost."""
        if self.agent is not None:
            self.agent.close()
            self.exchanges.append((tick, self.agent.status().exchanges))
            self.agent = None


class Surroundings:
    """Decision sets and rewards of each device's n-th decision: the same for every way to learn."""

    def __init__(self, seed: int, n_rounds: int) -> None:
        theta_rng, set_rng, noise_rng = np.random.default_rng(seed).spawn(3)
        self.theta = theta_rng.normal(size=DIM)
        self.theta /= np.linalg.norm(self.theta)
        self.X = set_rng.uniform(-1, 1, size=(N_DEVICES, n_rounds, N_SETTINGS, DIM)) / np.sqrt(DIM)
        self.noise = NOISE * noise_rng.normal(size=(N_DEVICES, n_rounds))

    def play(self, m: int, n: int, choose: Callable[[np.ndarray], fb.Decision]) -> tuple[fb.Decision, float, float]:
        """A decision, its reward, and how far it is from the best."""
        decision = choose(self.X[m, n])
        means = self.X[m, n] @ self.theta
        mean = float(decision.x @ self.theta)
        return decision, mean + float(self.noise[m, n]), float(means.max()) - mean


def naps(rng: np.random.Generator, n_ticks: int) -> np.ndarray:
    """Awake at first, then naps of about 12 ticks and work of about 5."""
    awake = np.zeros(n_ticks, dtype=bool)
    t = 0
    while t < n_ticks:
        length = 2 + rng.poisson(3)
        awake[t : t + length] = True
        t += length + 2 + rng.poisson(10)
    return awake


def live_day(server: Server, world: Surroundings, devices: list[Device], away: range) -> list[tuple[int, int, float]]:
    """Simulate the day; (device, its decision number, regret) in order of time."""
    story = []
    for tick in range(len(devices[0].awake)):
        if tick == away.start:
            server.kill()
        if tick == away.stop:
            server.start()
        for m, device in enumerate(devices):
            if not device.awake[tick]:
                device.sleep(tick)
                continue
            if device.agent is None:
                device.wake(server.url)
            for _ in range(ROUNDS_A_TICK):
                n = len(device.rewards)
                decision, reward, missed = world.play(m, n, device.agent.choose)
                device.agent.observe(decision, reward)  # in the journal when this returns; sent in the background
                device.rewards.append(reward)
                story.append((m, n, missed))
            device.exchanges.append((tick, device.agent.status().exchanges))
        time.sleep(0.01)  # a tick; the background thread of each agent exchanges meanwhile
    return story


def yardsticks(world: Surroundings, story: list[tuple[int, int, float]]) -> dict[str, np.ndarray]:
    """Regret of learning alone and of sharing everything, on the same decisions in the same order."""
    fleets = [fleet for fleet in three_fleets(N_DEVICES, dim=DIM, **NUMBERS) if fleet.name != "together"]
    missed = {fleet.name: np.empty(len(story)) for fleet in fleets}
    for i, (m, n, _) in enumerate(story):
        for fleet in fleets:
            decision, reward, missed[fleet.name][i] = world.play(m, n, fleet.agents[m].choose)
            fleet.observe(m, decision, reward)
    return missed


def main() -> None:
    chosen = options("Sleepers: devices that sleep, a server that dies.", "sleepers.svg")
    logging.getLogger("fedbandit.sdk").setLevel(logging.ERROR)  # warnings about the unavailable server are expected
    n_ticks = 32 if chosen.quick else 160
    away = range(n_ticks // 3, n_ticks // 3 + n_ticks // 4)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "server")
        try:
            server.call("POST", "models", {"name": "radio", "dim": DIM, **NUMBERS})
            devices = []
            for m, rng in enumerate(np.random.default_rng(1).spawn(N_DEVICES)):
                name = f"device-{m + 1}"
                token = server.call("POST", "models/radio/agents", {"name": name})["token"]
                devices.append(Device(name, token, Path(folder) / name, naps(rng, n_ticks)))
            world = Surroundings(0, n_ticks * ROUNDS_A_TICK)
            story = live_day(server, world, devices, away)
            for device in devices:  # every device wakes once more and sends the rest
                device.sleep(n_ticks)
                device.wake(server.url)
                device.agent.flush()
                device.sleep(n_ticks)
            counted = server.call("GET", "models/radio")
        finally:
            server.kill()
    missed = {**yardsticks(world, story), "together": np.array([value for *_, value in story])}
    report(devices, counted, missed, len(away), n_ticks)
    save(draw(devices, missed, away, n_ticks), chosen.figure, "examples/sleepers.py · a live run · synthetic radio")


def report(devices: list[Device], counted: dict, missed: dict[str, np.ndarray], n_away: int, n_ticks: int) -> None:
    """Print the results; exit with status 1 if the server's counts are not those of the devices."""
    n_decisions = sum(len(device.rewards) for device in devices)
    asleep = 100 * (1 - np.mean([device.awake for device in devices]))
    n_exchanges = sum(device.exchanges[-1][1] for device in devices)
    lonely = sum(device.n_unreachable for device in devices)
    print(
        f"{N_DEVICES} devices, asleep {asleep:.0f} % of the day; "
        f"the server was killed and away for {100 * n_away / n_ticks:.0f} % of it"
    )
    print(f"{n_decisions:,} decisions, {n_exchanges} exchanges; {lonely} wake-ups without a server")
    reward_sum = sum(sum(device.rewards) for device in devices)
    exact = counted["n_obs"] == n_decisions and abs(counted["reward_sum"] - reward_sum) < 1e-9 * n_decisions
    print(
        f"counted by the server: {counted['n_obs']:,} of {n_decisions:,}; "
        f"rewards {'agree' if exact else 'DO NOT AGREE'}"
    )
    for name in WAYS:
        late = missed[name][-len(missed[name]) // 3 :].mean()
        print(f"  {name:10}  missed per decision, last third {late:.3f}")
    if not exact:
        sys.exit(1)


def draw(devices: list[Device], missed: dict[str, np.ndarray], away: range, n_ticks: int) -> Figure:
    """Draw when devices were awake and exchanged, and the regret of the three ways."""
    figure, (day, worth) = panels(1, 2, width=10.5, height=4.0)
    day.axvspan(away.start, away.stop, color="#d55e00", alpha=0.15, linewidth=0)
    for m, device in enumerate(devices):
        spans = np.flatnonzero(np.diff(np.concatenate([[0], device.awake.astype(int), [0]])))
        day.broken_barh(
            [(a, b - a) for a, b in zip(spans[::2], spans[1::2], strict=True)], (m + 0.6, 0.8), color="#9cc9e3"
        )
        steps = np.diff([0] + [count for _, count in device.exchanges])
        ticks = [tick for (tick, _), step in zip(device.exchanges, steps, strict=True) if step > 0]
        day.plot(ticks, [m + 1] * len(ticks), "|", color="#1b1f24", markersize=7)
    day.set(xlabel="time (ticks of 5 decisions)", ylabel="device", ylim=(0.4, N_DEVICES + 0.6), xlim=(0, n_ticks + 1))
    day.set_yticks(range(1, N_DEVICES + 1, 2))
    day.grid(axis="y", visible=False)
    day.legend(
        handles=[
            Line2D([], [], color="#9cc9e3", linewidth=6, label="awake"),
            Line2D([], [], color="#1b1f24", marker="|", linestyle="none", label="exchange"),
            Line2D([], [], color="#f7dfcf", linewidth=6, label="no server"),
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.16),
        ncols=3,
        frameon=False,
        fontsize=8.5,
    )
    n_windows = 12
    x = (np.arange(n_windows) + 1) * len(missed["alone"]) / n_windows
    compare(worth, x, {name: windows(missed[name][None, :], n_windows) for name in WAYS})
    worth.set_ylim(bottom=0.0)
    worth.set(xlabel="decisions, all devices together", ylabel="reward missed per decision")
    titled(day, "A day of twelve devices")
    titled(worth, "What sharing was worth")
    return figure


if __name__ == "__main__":
    main()
