"""The steps of the demo: start a server and agents, kill and restart one agent, compare and verify."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from fedbandit.cli.dashboard_link import open_in_browser
from fedbandit.core.arrays import finite_at_least, whole_at_least
from fedbandit.core.statistics import SufficientStats
from fedbandit.demo.display import Display, print_comparison, print_conservation, print_features
from fedbandit.demo.images import N_ARMS, Images, deal
from fedbandit.demo.processes import AgentProcess, DemoFailed, ServerProcess
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
from fedbandit.demo.worker import AgentTask
from fedbandit.experiments.sharing_cost import SharingCost
from fedbandit.wire.codec import decode_reply, download_of

MODEL = "digits"
KILL_AT = 0.4  # of its images
DOWN_S = 2.0
KEPT_PACE_S = 0.5  # mean time between images of an agent after the demo, with --keep
STALL_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """The options of the demo."""

    n_agents: int = 8
    alpha: float = 4.0
    beta: float = 0.3
    lam: float = 0.3
    run_s: float = 25.0
    n_images: int | None = None  # all of them
    seed: int = 0

    def __post_init__(self) -> None:
        finite_at_least(self.run_s, 0.0, "seconds", strictly=True)
        finite_at_least(self.alpha, 0.0, "alpha")
        finite_at_least(self.beta, 0.0, "beta")
        finite_at_least(self.lam, 0.0, "lam", strictly=True)
        whole_at_least(self.seed, 0, "seed")


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The results of the demo."""

    outcomes: tuple[LearningResult, ...]
    cost: SharingCost
    conservation: Conservation
    killed: AgentProcess
    seconds: float

    @property
    def succeeded(self) -> bool:
        """Whether every observation counted exactly once and the killed agent resumed."""
        return self.conservation.holds and self.killed.resumed_at is not None


@contextmanager
def running_demo(
    plan: DemoPlan, folder: Path, console: Console, *, open_it: bool = False
) -> Iterator[tuple[DemoResult, DemoSession]]:
    """Run the demo in a folder; its server and agents are stopped when the block ends."""
    with ExitStack() as stack:
        with console.status("Starting a server and reading the images …"):
            server = ServerProcess(folder / "server", folder / "server.log")
            stack.callback(server.stop)
            parts = deal(plan.n_agents, plan.seed, plan.n_images)
            agents = _enrol(plan, parts, server, folder)
        link = server.link(f"/models/{MODEL}")
        print_features(console, link, n_agents=plan.n_agents, killed=agents[len(agents) // 2].name)
        if open_it:
            open_in_browser(link)
        session = DemoSession(server, agents)
        stack.callback(session.stop_agents)
        yield _run(plan, parts, agents, server, console), session


@dataclass(frozen=True, slots=True)
class DemoSession:
    """The server and the agents of a demo."""

    server: ServerProcess
    agents: list[AgentProcess]

    def continue_slowly(self) -> None:
        """Restart the agents at a slow pace, without an end."""
        for agent in self.agents:
            task = replace(AgentTask.load(agent.task_path), pace_s=KEPT_PACE_S, forever=True)
            task.save(agent.task_path)
            agent.start()

    def stop_agents(self) -> None:
        """Stop the agents."""
        for agent in self.agents:
            agent.stop()


def _enrol(plan: DemoPlan, parts: list[Images], server: ServerProcess, folder: Path) -> list[AgentProcess]:
    """Create the model and enrol the agents; each gets a token, its images and a state directory."""
    caller = server.admin
    arms = [f"digit-{arm}" for arm in range(N_ARMS)]
    numbers = {"dim": parts[0].dim, "arms": arms, "alpha": plan.alpha, "beta": plan.beta, "lam": plan.lam}
    caller.call("POST", "models", body={"name": MODEL, **numbers})
    agents = []
    for m, part in enumerate(parts):
        name = f"agent-{m + 1}"
        images, path, state_dir = folder / f"{name}.npz", folder / f"{name}.json", folder / "journals" / name
        part.save(images)
        pace_s = plan.run_s / max(len(part), 1)
        AgentTask(server.url, MODEL, name, str(images), str(state_dir), pace_s, plan.seed + m).save(path)
        token = caller.call("POST", "models", MODEL, "agents", body={"name": name})["token"]
        agents.append(AgentProcess(name, path, len(part), token))
    return agents


def _run(
    plan: DemoPlan, parts: list[Images], agents: list[AgentProcess], server: ServerProcess, console: Console
) -> DemoResult:
    begun = time.monotonic()
    target = agents[len(agents) // 2]
    headline = f"{len(agents)} agents, one model ({parts[0].dim} features) at {server.url}"
    with ThreadPoolExecutor(1) as pool:
        # The baselines are computed while the agents run, from the same images in the same order.
        baselines = pool.submit(
            lambda: [learn(parts, beta=plan.beta, lam=plan.lam) for learn in (alone, every_decision, everything_shared)]
        )
        try:
            with Display(console, agents, headline) as display:
                for agent in agents:
                    agent.start()
                _watch(agents, target, display, server)
        finally:
            for agent in agents:
                agent.stop()
        first, *others = baselines.result()
    found = Conservation(seen(parts, [agent.arms for agent in agents]), _held(server, plan.lam))
    outcomes = (first, _together(parts, agents), *others)
    return DemoResult(outcomes, sharing_cost(parts), found, target, time.monotonic() - begun)


def _watch(agents: list[AgentProcess], target: AgentProcess, display: Display, server: ServerProcess) -> None:
    """Wait until all agents are done; kill and restart one of them meanwhile."""
    restart_at: float | None = None
    silent_since, n_seen = time.monotonic(), -1
    while any(agent.state != "done" for agent in agents):
        now = time.monotonic()
        if target.state == "running" and target.asked == target.n_seen >= KILL_AT * target.n_images:
            target.kill()
            restart_at = now + DOWN_S
            _note(server, target.name, f"killed with SIGKILL at image {target.n_seen}, by the demo")
            display.event(f"[bold red]{target.name} killed[/] (SIGKILL) at image {target.n_seen}; the others continue.")
        if restart_at is not None and now >= restart_at:
            restart_at = None
            target.start()
            display.event(f"{target.name} restarted from its journal.")
        for agent in agents:
            agent.check()
        total = sum(agent.n_seen for agent in agents)
        if total != n_seen:
            n_seen, silent_since = total, now
        if now - silent_since > STALL_TIMEOUT_S:
            raise DemoFailed(f"no progress for {STALL_TIMEOUT_S:.0f} s; the agents' logs are beside their images")
        display.update()
        time.sleep(0.02 if target.state == "running" else 0.1)


def _note(server: ServerProcess, agent: str, text: str) -> None:
    """Add a note to the model's events, which the dashboard marks on its charts."""
    server.admin.call("POST", "models", MODEL, "events", body={"agent": agent, "text": text})


def _together(parts: list[Images], agents: list[AgentProcess]) -> LearningResult:
    """The result of the live fleet; an exchange is an upload and a download, a refresh a download."""
    rewards = in_order(parts, [agent.rewards for agent in agents])
    n_messages = sum(2 * agent.exchanges + agent.refreshes for agent in agents)
    return LearningResult("together", rewards, n_messages, sum(agent.n_bytes for agent in agents))


def _held(server: ServerProcess, lam: float) -> SufficientStats:
    """The server's statistics, without the ridge."""
    body = server.admin.fetch("GET", "models", MODEL, "state", query={"incarnation": "demo"})
    held = download_of(decode_reply(body)).stats
    return held - SufficientStats.prior(dim=held.dim, lam=lam, blocks=held.blocks)


def print_result(console: Console, plan: DemoPlan, result: DemoResult) -> None:
    """Print the comparison and the check of conservation."""
    target = result.killed
    console.print(
        f"\n{target.name} resumed from its journal at image {target.resumed_at}, with "
        f"{target.carried_over or 'no'} pending decision.",
        highlight=False,
    )
    n_images = len(result.outcomes[0].rewards)
    print_comparison(console, result.outcomes, result.cost)
    print_conservation(console, result.conservation, n_agents=plan.n_agents)
    console.print(
        f"  {n_images:,} images, α = {plan.alpha:g}, β = {plan.beta:g}, λ = {plan.lam:g}; {result.seconds:.0f} s.",
        highlight=False,
    )
