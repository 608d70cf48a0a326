"""`fedbandit`: one command with a sub-command per task."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fedbandit import __version__
from fedbandit.algorithms.catalog import ALGORITHMS
from fedbandit.cli.advise import advise
from fedbandit.cli.agent import agent
from fedbandit.cli.agents import app as agents
from fedbandit.cli.algorithm_options import offer_options
from fedbandit.cli.backup import backup, copy_store, restore
from fedbandit.cli.dashboard_link import dashboard_link
from fedbandit.cli.demo import demo
from fedbandit.cli.doctor import doctor
from fedbandit.cli.enrol import app as enrol
from fedbandit.cli.evaluate import evaluate
from fedbandit.cli.models import app as models
from fedbandit.cli.plan import plan
from fedbandit.cli.reporting import run_command
from fedbandit.cli.reward import WithNegativeNumbers, reward
from fedbandit.cli.serve import serve
from fedbandit.cli.simulate import simulate
from fedbandit.cli.study import study
from fedbandit.cli.tokens import app as tokens

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Asynchronous federated contextual bandits: a fleet of agents learns one linear bandit together.",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"fedbandit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that stand before the sub-command."""


app.command(rich_help_panel="Simulation and analysis")(simulate)
app.command(rich_help_panel="Simulation and analysis")(study)
app.command(rich_help_panel="Simulation and analysis")(plan)
app.command(rich_help_panel="Simulation and analysis")(advise)
app.command(rich_help_panel="Simulation and analysis")(evaluate)
app.command(rich_help_panel="Server and fleet")(demo)
app.command(rich_help_panel="Server and fleet")(serve)
app.command("dashboard-link", rich_help_panel="Server and fleet")(dashboard_link)
app.command(rich_help_panel="Server and fleet")(agent)
app.command(rich_help_panel="Server and fleet", cls=WithNegativeNumbers)(reward)
app.command(rich_help_panel="Server and fleet")(backup)
app.command(rich_help_panel="Server and fleet")(restore)
app.command(rich_help_panel="Server and fleet")(copy_store)
app.add_typer(models, name="models", rich_help_panel="Server and fleet")
app.add_typer(agents, name="agents", rich_help_panel="Server and fleet")
app.add_typer(enrol, name="enrol", rich_help_panel="Server and fleet")
app.add_typer(tokens, name="tokens", rich_help_panel="Server and fleet")
app.command(rich_help_panel="Maintenance")(doctor)


def main() -> None:
    """Run the command line; our own errors end it with one line, not a traceback."""
    run_command(_run)


def _run() -> None:
    if sys.argv[1:2] == ["simulate"]:  # other commands need not import what installed packages register
        offer_options(simulate, ALGORITHMS.usable().values())
    app()


if __name__ == "__main__":
    main()
