"""The demo from beginning to end: start a server, let a fleet loose, kill one of them, sum up, verify."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from fedbandit.core.arrays import finite_at_least, whole_at_least
from fedbandit.core.statistics import SufficientStats
from fedbandit.demo.display import Display, print_conservation, print_verdict
from fedbandit.demo.images import Images, deal
from fedbandit.demo.processes import AgentProcess, DemoFailed, ServerProcess, make_agents
from fedbandit.demo.summary import (
    Conservation,
    LearningResult,
    alone,
    every_decision,
    everything_shared,
    in_order,
    seen,
    sharing_cost,
)
from fedbandit.demo.worker import Task
from fedbandit.experiments.sharing_cost import SharingCost
from fedbandit.http_client import AdminClient
from fedbandit.wire.codec import decode_reply, download_of

MODEL = "digits"
KILL_AT = 0.4  # of its images
DOWN_S = 2.0
KEPT_PACE_S = 0.5  # mean time between images of an agent that goes on for people to look at
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """What to show."""

    n_agents: int = 8
    alpha: float = 4.0
    beta: float = 0.3
    lam: float = 0.3
    play_s: float = 25.0
    n_images: int | None = None  # all of them
    seed: int = 0

    def __post_init__(self) -> None:
        finite_at_least(self.play_s, 0.0, "seconds", strictly=True)
        finite_at_least(self.alpha, 0.0, "alpha")
        finite_at_least(self.beta, 0.0, "beta")
        finite_at_least(self.lam, 0.0, "lam", strictly=True)
        whole_at_least(self.seed, 0, "seed")


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What came of it."""

    outcomes: tuple[LearningResult, ...]
    cost: SharingCost
    conservation: Conservation
    killed: AgentProcess
    seconds: float

    @property
    def succeeded(self) -> bool:
        """Nothing was lost or counted twice, and the killed agent came back."""
        return self.conservation.holds and self.killed.resumed_at is not None


@contextmanager
def playing(plan: DemoPlan, folder: Path, console: Console) -> Iterator[tuple[DemoResult, Stage]]:
    """Run the demo in a folder; the server lives until the block ends."""
    with ExitStack() as stack:
        with console.status("Starting a server and reading the images …"):
            server = ServerProcess(folder / "server", folder / "server.log")
            stack.callback(server.stop)
            parts = deal(plan.n_agents, plan.seed, plan.n_images)
            agents = _enrol(plan, parts, server, folder)
        stage = Stage(server, agents)
        stack.callback(stage.clear)
        yield _play(plan, parts, agents, server, console), stage


@dataclass(frozen=True, slots=True)
class Stage:
    """What is left when the play is over."""

    server: ServerProcess
    agents: list[AgentProcess]

    def go_on(self) -> None:
        """The agents begin again, slowly, so that there is something to look at."""
        for agent in self.agents:
            task = replace(Task.load(agent.task_path), pace_s=KEPT_PACE_S, forever=True)
            task.save(agent.task_path)
            agent.start()

    def clear(self) -> None:
        """End the agents."""
        for agent in self.agents:
            agent.stop()


def _enrol(plan: DemoPlan, parts: list[Images], server: ServerProcess, folder: Path) -> list[AgentProcess]:
    """Make the model and the agents on the server; each agent gets a token, its images and a place for its journal."""
    caller = AdminClient(server.url, server.admin_token)
    numbers = {"dim": parts[0].dim, "alpha": plan.alpha, "beta": plan.beta, "lam": plan.lam}
    caller.call("POST", "models", body={"name": MODEL, **numbers})
    tasks, tokens, sizes = {}, {}, {}
    for m, part in enumerate(parts):
        name = f"agent-{m + 1}"
        part.save(folder / f"{name}.npz")
        pace_s = plan.play_s / max(len(part), 1)
        state_dir = folder / "journals" / name
        tasks[name] = Task(server.url, MODEL, name, str(folder / f"{name}.npz"), str(state_dir), pace_s, plan.seed + m)
        tokens[name] = caller.call("POST", "models", MODEL, "agents", body={"name": name})["token"]
        sizes[name] = len(part)
    return make_agents(tasks, tokens, sizes, folder)


def _play(
    plan: DemoPlan, parts: list[Images], agents: list[AgentProcess], server: ServerProcess, console: Console
) -> DemoResult:
    begun = time.monotonic()
    victim = agents[len(agents) // 2]
    headline = f"{len(agents)} agents, one model ({parts[0].dim} features) at {server.url}"
    with ThreadPoolExecutor(1) as pool:
        # The yardsticks are computed while the agents play, from the same images in the same order.
        yardsticks = pool.submit(
            lambda: [learn(parts, beta=plan.beta, lam=plan.lam) for learn in (alone, every_decision, everything_shared)]
        )
        try:
            with Display(console, agents, headline) as display:
                for agent in agents:
                    agent.start()
                _watch(agents, victim, display)
        finally:
            for agent in agents:
                agent.stop()
        first, *others = yardsticks.result()
    found = Conservation(seen(parts, [agent.arms for agent in agents]), _held(server, plan.lam))
    outcomes = (first, _together(parts, agents), *others)
    return DemoResult(outcomes, sharing_cost(parts), found, victim, time.monotonic() - begun)


def _watch(agents: list[AgentProcess], victim: AgentProcess, display: Display) -> None:
    """Until all are done; the victim is killed on the way, and started again."""
    restart_at: float | None = None
    silent_since, n_seen = time.monotonic(), -1
    while any(agent.state != "done" for agent in agents):
        now = time.monotonic()
        if victim.state == "running" and victim.asked == victim.n_seen >= KILL_AT * victim.n_images:
            victim.kill()
            restart_at = now + DOWN_S
            display.say(f"[bold red]{victim.name} killed[/] (SIGKILL) at image {victim.n_seen}; the others go on.")
        if restart_at is not None and now >= restart_at:
            restart_at = None
            victim.start()
            display.say(f"{victim.name} started again from its journal.")
        for agent in agents:
            agent.check()
        total = sum(agent.n_seen for agent in agents)
        if total != n_seen:
            n_seen, silent_since = total, now
        if now - silent_since > PATIENCE_S:
            raise DemoFailed(f"nothing happened for {PATIENCE_S:.0f} s; the agents' logs are beside their images")
        display.update()
        time.sleep(0.02 if victim.state == "running" else 0.1)


def _together(parts: list[Images], agents: list[AgentProcess]) -> LearningResult:
    """What the live fleet got; an exchange is an upload and a download, a refresh a download."""
    rewards = in_order(parts, [agent.rewards for agent in agents])
    n_messages = sum(2 * agent.exchanges + agent.refreshes for agent in agents)
    return LearningResult("together", rewards, n_messages, sum(agent.n_bytes for agent in agents))


def _held(server: ServerProcess, lam: float) -> SufficientStats:
    """The server's statistics, without the ridge."""
    body = AdminClient(server.url, server.admin_token).fetch(
        "GET", "models", MODEL, "state", query={"incarnation": "demo"}
    )
    held = download_of(decode_reply(body)).stats
    return held - SufficientStats.prior(dim=held.dim, lam=lam)


def print_result(console: Console, plan: DemoPlan, result: DemoResult) -> None:
    """The answers."""
    victim = result.killed
    console.print(
        f"\n{victim.name} came back from its journal at image {victim.resumed_at}, with "
        f"{victim.carried_over or 'no'} decision waiting for its reward.",
        highlight=False,
    )
    n_images = len(result.outcomes[0].rewards)
    print_verdict(console, result.outcomes, result.cost)
    print_conservation(console, result.conservation, n_agents=plan.n_agents)
    console.print(
        f"  {n_images:,} images, α = {plan.alpha:g}, β = {plan.beta:g}, λ = {plan.lam:g}; {result.seconds:.0f} s.",
        highlight=False,
    )
