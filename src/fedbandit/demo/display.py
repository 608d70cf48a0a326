"""The output of the demo: a live table of agents, and the comparison at the end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedbandit.demo.processes import AgentProcess
from fedbandit.demo.summary import Conservation, LearningResult
from fedbandit.experiments.sharing_cost import SharingCost, human_bytes

STYLES = {"killed": "bold red", "restarting": "yellow", "resumed": "bold green", "done": "green", "starting": "dim"}
PLAIN_EVERY_S = 5.0


class Display:
    """A live table on a terminal; a line every few seconds in a pipe or a log."""

    def __init__(self, console: Console, agents: Sequence[AgentProcess], headline: str) -> None:
        self._console = console
        self._agents = agents
        self._headline = headline
        self._started_at = time.monotonic()
        self._printed_at = self._started_at
        self._live = Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
            self._live.stop()

    def update(self) -> None:
        """Refresh the display."""
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
        elif time.monotonic() - self._printed_at >= PLAIN_EVERY_S:
            self._printed_at = time.monotonic()
            self._console.print(f"  {self._summary()}", highlight=False)

    def event(self, text: str) -> None:
        """Print an event above the table."""
        self._console.print(f"[dim]{time.monotonic() - self._started_at:5.1f} s[/dim]  {text}", highlight=False)

    def _summary(self) -> str:
        n_seen, n_images = sum(a.n_seen for a in self._agents), sum(a.n_images for a in self._agents)
        right = sum(sum(a.rewards.values()) for a in self._agents)
        exchanges = sum(a.exchanges for a in self._agents)
        share = right / max(n_seen, 1)
        return f"{n_seen:,} of {n_images:,} images, mean reward {share:.3f}, {exchanges:,} exchanges"

    def _render(self) -> Panel:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True)
        table.add_column("agent", no_wrap=True)
        table.add_column("images", ratio=1, min_width=10)
        table.add_column("", justify="right", no_wrap=True)
        table.add_column("reward", justify="right")
        table.add_column("exchanges", justify="right")
        table.add_column("model", justify="right")
        table.add_column("state", min_width=10)
        for agent in self._agents:
            table.add_row(
                agent.name,
                ProgressBar(
                    total=agent.n_images, completed=agent.n_seen, complete_style="cyan", finished_style="green"
                ),
                f"{agent.n_seen}/{agent.n_images}",
                f"{agent.mean_reward:.2f}" if agent.n_seen else "",
                str(agent.exchanges) if agent.exchanges else "",
                f"v{agent.version}",
                Text(agent.state, style=STYLES.get(agent.state, "")),
            )
        foot = Text(f"{self._summary()}, {time.monotonic() - self._started_at:.0f} s", style="bold")
        return Panel(Group(table, foot), title=self._headline, box=ROUNDED, padding=(0, 1))


def print_features(console: Console, link: str, *, n_agents: int, killed: str) -> None:
    """What the demo shows, and the link to its dashboard."""
    console.print(
        f"[bold]What you see[/]: {n_agents} processes learn ten classes together, one block per arm.\n"
        "  · They exchange sums, never images, and only after they learnt enough (α).\n"
        f"  · {killed} is killed on the way; its journal brings everything back, once.\n"
        "  · The dashboard says what is wrong now, who is missing and what to do; it has\n"
        "    a view per arm, shares of information, and the kill as an event and a mark.",
        highlight=False,
    )
    console.print("The dashboard, signed in (works once, while the demo runs; --keep: until Ctrl-C):", highlight=False)
    console.print(f"  {link}\n", soft_wrap=True, highlight=False)


def print_comparison(console: Console, outcomes: Sequence[LearningResult], cost: SharingCost) -> None:
    """Print rewards and messages of every way to learn."""
    table = Table(title="Was it worth it?", box=ROUNDED, title_style="bold", title_justify="left")
    table.add_column("learning")
    table.add_column("mean reward", justify="right")
    table.add_column("last quarter", justify="right")
    table.add_column("messages", justify="right")
    table.add_column("bytes", justify="right")
    for outcome in outcomes:
        style = "bold green" if outcome.name == "together" else ""
        table.add_row(
            outcome.name,
            f"{outcome.mean_reward:.3f}",
            f"{outcome.late_reward:.3f}",
            f"{outcome.n_messages:,}",
            human_bytes(outcome.n_bytes),
            style=style,
        )
    console.print()
    console.print(table)
    console.print(
        "[dim]Reward 1 for the right class; all start without data and see each image once. "
        "This is one run: `fedbandit study real` has intervals over seeds. "
        "The last two share every observation: each decision downloads before and uploads after (α = 0), "
        f"or each observation is uploaded and the model sent to all {cost.n_agents} agents.[/]",
        highlight=False,
    )
    together = next(outcome for outcome in outcomes if outcome.name == "together")
    console.print(_cost_text(together, cost), highlight=False)


def _cost_text(together: LearningResult, cost: SharingCost) -> str:
    """The fleet's messages and bytes beside the simple ways to share everything."""
    return (
        f"Together: {cost.of_two_per_decision(together.n_messages):.0%} of two messages per decision, "
        f"{cost.of_broadcast(together.n_messages):.0%} of a broadcast per decision; "
        f"{human_bytes(together.n_bytes)} where the raw rows (context, arm, reward) sent once are "
        f"{human_bytes(cost.raw_bytes)}: sums grow with the logarithm of rounds, rows with rounds; the sums are the "
        f"cheaper ones from about {cost.rounds_until_cheaper(together.n_bytes):,.0f} rounds on."
    )


def print_conservation(console: Console, found: Conservation, *, n_agents: int) -> None:
    """Whether every observation counted exactly once."""
    mark = "[bold green]✓[/]" if found.holds else "[bold red]✗[/]"
    console.print(
        f"\n{mark} Nothing lost, nothing counted twice: {n_agents} agents saw {found.seen.n_obs:,} images and "
        f"{found.seen.reward_sum:,.0f}\n  rewards; the server holds {found.held.n_obs:,} and "
        f"{found.held.reward_sum:,.0f}. Σ and b agree to {found.gap:.0e}.",
        highlight=False,
    )
