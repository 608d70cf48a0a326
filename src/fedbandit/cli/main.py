"""`fedbandit`: one command with a sub-command per task."""

from __future__ import annotations

import io
import sys
import warnings
from typing import Annotated, Any

from fedbandit.errors import FedbanditError, FedbanditWarning, MissingExtra

try:
    import typer
except ImportError as error:  # pragma: no cover - the base install has no command line
    raise MissingExtra("the command line needs typer and rich: pip install 'fedbandit[cli]'") from error

from fedbandit import __version__
from fedbandit.algorithms.catalog import ALGORITHMS
from fedbandit.cli.advise import advise
from fedbandit.cli.agent import agent
from fedbandit.cli.agents import app as agents
from fedbandit.cli.algorithm_options import offer_options
from fedbandit.cli.backup import backup, restore
from fedbandit.cli.demo import demo
from fedbandit.cli.doctor import doctor
from fedbandit.cli.models import app as models
from fedbandit.cli.plan import plan
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


app.command(rich_help_panel="Ask questions")(simulate)
app.command(rich_help_panel="Ask questions")(study)
app.command(rich_help_panel="Ask questions")(plan)
app.command(rich_help_panel="Ask questions")(advise)
app.command(rich_help_panel="Run a fleet")(demo)
app.command(rich_help_panel="Run a fleet")(serve)
app.command(rich_help_panel="Run a fleet")(agent)
app.command(rich_help_panel="Run a fleet")(backup)
app.command(rich_help_panel="Run a fleet")(restore)
app.add_typer(models, name="models", rich_help_panel="Run a fleet")
app.add_typer(agents, name="agents", rich_help_panel="Run a fleet")
app.add_typer(tokens, name="tokens", rich_help_panel="Run a fleet")
app.command(rich_help_panel="Maintenance")(doctor)


def _show_warning(show: Any) -> Any:
    """`warnings.showwarning` that writes our own warnings as one sentence, without a line of our source."""

    def shown(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, FedbanditWarning):
            print(f"fedbandit: warning: {message}", file=sys.stderr)
        else:
            show(message, category, *where, **more)

    return shown


def main() -> None:
    """Run the command line; our own errors end it with a sentence, not a traceback."""
    warnings.showwarning = _show_warning(warnings.showwarning)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    try:
        if sys.argv[1:2] == ["simulate"]:  # other commands need not import what installed packages register
            offer_options(simulate, ALGORITHMS.usable().values())
        app()
    except FedbanditError as error:
        print(f"fedbandit: {error.code}: {error}", file=sys.stderr)
        sys.exit(2)
    except MemoryError as error:
        print(f"fedbandit: out_of_memory: this needs more memory than there is: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        if error.errno is None:
            raise
        print(f"fedbandit: system_error: {error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
