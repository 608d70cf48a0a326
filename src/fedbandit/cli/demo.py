"""`fedbandit demo`: a server and a fleet of agent processes on this machine."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbandit.cli.files import check_directory
from fedbandit.errors import InvalidParameter

if TYPE_CHECKING:
    from rich.console import Console

    from fedbandit.demo.processes import ServerProcess


def demo(
    agents: Annotated[int, typer.Option(help="Agent processes.", min=2, max=64)] = 8,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the server and the agents running afterwards, until Ctrl-C.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="Keep everything in this (new) directory.")] = None,
    seconds: Annotated[float, typer.Option(help="Seconds that the agents take for their images.", min=1.0)] = 25.0,
    alpha: Annotated[float, typer.Option(help="Determinant growth that triggers an exchange.")] = 4.0,
    beta: Annotated[float, typer.Option(help="Confidence radius.")] = 0.3,
    lam: Annotated[float, typer.Option(help="Ridge strength.")] = 0.3,
    images: Annotated[int | None, typer.Option(help="Use fewer than the 1,797 images.", min=50)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the order of images.")] = 0,
    open_it: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open the dashboard in a browser; by default on a terminal with one."),
    ] = None,
) -> None:
    """Run a server and agent processes that learn handwritten digits together; one agent is killed during the run."""
    from rich.console import Console

    from fedbandit.demo.run import DemoPlan, print_result, running_demo

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: stops all processes
    console = Console()
    plan = DemoPlan(n_agents=agents, alpha=alpha, beta=beta, lam=lam, run_s=seconds, n_images=images, seed=seed)
    with tempfile.TemporaryDirectory(prefix="fedbandit-demo-") as temporary:
        folder = _new_directory(data) if data is not None else Path(temporary)
        try:
            is_opened = console.is_terminal if open_it is None else open_it
            with running_demo(plan, folder, console, open_it=is_opened) as (result, session):
                print_result(console, plan, result)
                if keep:
                    session.continue_slowly()
                    _print_access(console, session.server)
                    session.server.wait()
        except KeyboardInterrupt:
            console.print("\nEnded." if keep else "\nInterrupted.")
            raise typer.Exit(0 if keep else 130) from None
    if not result.succeeded:
        raise typer.Exit(1)


def _print_access(console: Console, server: ServerProcess) -> None:
    text = (
        "\nThe server and its agents run until Ctrl-C. The dashboard, signed in (the link works once, for 10 minutes):"
    )
    console.print(text, highlight=False)
    console.print(f"  {server.link('/models/digits')}", soft_wrap=True, highlight=False)
    console.print("The command line, and further links by [bold]fedbandit dashboard-link[/]:", highlight=False)
    access = f"  export FEDBANDIT_URL={server.url} FEDBANDIT_TOKEN={server.admin_token}"
    console.print(access, soft_wrap=True, highlight=False)
    console.print("  fedbandit models show digits", highlight=False)


def _new_directory(path: Path) -> Path:
    check_directory(path, "--data")
    if path.exists() and any(path.iterdir()):
        raise InvalidParameter(f"expected a new or empty directory for the demo, got {path}")
    path.mkdir(parents=True, exist_ok=True)
    return path
