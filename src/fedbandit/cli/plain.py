"""The part of typer that `agent` and `doctor` use, on argparse: they run in the base install, without an extra."""

from __future__ import annotations

import argparse
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, get_args, get_type_hints

from fedbandit.errors import InvalidParameter

Command = Callable[..., None]


@dataclass(frozen=True, slots=True)
class OptionInfo:
    """What `Option` declares."""

    names: tuple[str, ...]
    help: str
    envvar: str | None


def Option(*names: str, help: str = "", envvar: str | None = None, **others: Any) -> OptionInfo:  # noqa: N802
    """Declare an option as `typer.Option` does; settings that argparse has not are ignored."""
    return OptionInfo(names, help, envvar)


class Exit(SystemExit):
    """End the command with this status."""


def echo(text: str = "") -> None:
    """Print one line."""
    print(text)


def run(commands: Mapping[str, Command], version: str, arguments: Sequence[str] | None = None) -> None:
    """Parse the arguments and call the command that they name."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        raise InvalidParameter(
            f"without the extra fedbandit[cli] there are the commands {', '.join(commands)}, got {arguments[0]!r}; "
            f"install fedbandit[cli] for the others (in a checkout: pip install '.[cli]')"
        )
    parser = argparse.ArgumentParser(prog="fedbandit", description="The commands of the base install.")
    parser.add_argument("--version", action="version", version=version, help="Print the version and exit.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in commands.items():
        words = inspect.getdoc(command) or ""
        _add_options(subparsers.add_parser(name, help=words.partition(".")[0], description=words), command)
    values = vars(parser.parse_args(arguments))
    commands[values.pop("command")](**values)


def _add_options(parser: argparse.ArgumentParser, command: Command) -> None:
    """One option for each parameter of the command.

    >>> def greet(name: str, loud: bool = False) -> None: ...
    >>> parser = argparse.ArgumentParser()
    >>> _add_options(parser, greet)
    >>> parser.parse_args(["--name", "Ada", "--loud"])
    Namespace(name='Ada', loud=True)
    """
    hints = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        annotated = getattr(hints[name], "__metadata__", None)
        info = annotated[0] if annotated else OptionInfo((), "", None)
        kind = _type_of(get_args(hints[name])[0] if annotated else hints[name])
        names = info.names or ("--" + name.replace("_", "-"),)
        if kind is bool:
            parser.add_argument(*names, dest=name, action="store_true", help=info.help)
            continue
        given = os.environ.get(info.envvar) if info.envvar else None
        is_required = parameter.default is inspect.Parameter.empty and given is None
        default = parameter.default if given is None else kind(given)
        source = f" [env: {info.envvar}]" if info.envvar else ""
        parser.add_argument(
            *names, dest=name, type=kind, default=default, required=is_required, help=info.help + source
        )


def _type_of(hint: Any) -> Any:
    """The type of `hint`, None left out."""
    return next((part for part in get_args(hint) if part is not NoneType), hint)
