"""The page of commands, from the functions that typer calls."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from fedbandit.cli.main import app

HEAD = """# Commands

<!-- Written by scripts/make_reference.py from the code: `make docs` renews it, a test compares. -->

`fedbandit --help` and `fedbandit COMMAND --help` say the same in a terminal. `fedbandit --version` prints the version,
`fedbandit --install-completion` teaches your shell the commands. A command that fails for a reason we know prints one
sentence, `fedbandit: code: what happened`, and ends with status 2.
"""


class Parameter(NamedTuple):
    """One argument or option as the page shows it."""

    shown: str
    kind: str
    default: str
    meaning: str


def page() -> str:
    """All commands, in the order of `fedbandit --help`."""
    return HEAD + "".join(_section(name, callback) for name, callback in commands())


def commands() -> Iterator[tuple[str, Any]]:
    """Each command's full name and the function behind it."""
    for command in app.registered_commands:
        yield _name(command), command.callback
    for group in app.registered_groups:
        for command in group.typer_instance.registered_commands:
            yield f"{group.name} {_name(command)}", command.callback


def _name(command: Any) -> str:
    return command.name or command.callback.__name__.removesuffix("_").replace("_", "-")


def _section(name: str, callback: Any) -> str:
    parameters = [_parameter(*item) for item in _declared(callback)]
    usage = " ".join(["fedbandit", name, *(p.shown for p in parameters if not p.shown.startswith("-")), "[OPTIONS]"])
    lines = [f"\n## fedbandit {name}", "", inspect.getdoc(callback) or "", "", "```text", usage, "```"]
    if parameters:
        lines += ["", "| option | takes | default | meaning |", "|---|---|---|---|"]
        lines += [f"| `{p.shown}` | {p.kind} | {p.default} | {p.meaning} |" for p in parameters]
    return "\n".join(lines) + "\n"


def _declared(callback: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    hints = get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        hint = hints[name]
        assert get_origin(hint) is Annotated, f"{callback.__name__}: {name} has no typer.Option or typer.Argument"
        kind, info = get_args(hint)[:2]
        yield name, kind, info, parameter.default


def _parameter(name: str, kind: Any, info: OptionInfo | ArgumentInfo, default: Any) -> Parameter:
    many, kind = _plain(kind)
    meaning = (info.help or "").replace("|", "\\|").replace("[", "\\[").replace("θ*", "θ\\*")
    if info.envvar:
        meaning += f" Environment: `{info.envvar}`."
    if isinstance(info, ArgumentInfo):
        shown = (info.metavar or name).upper() + ("..." if many else "")
    else:
        shown = ", ".join(_declarations(info)) or "--" + name.replace("_", "-")
    takes = (
        ""
        if kind is bool
        else {"Path": "a path", "str": "text", "int": "a whole number"}.get(kind.__name__, "a number")
    )
    return Parameter(
        shown, takes + (", repeatable" if many and shown.startswith("-") else ""), _shown(default), meaning
    )


def _declarations(info: OptionInfo) -> list[str]:
    first = info.default if isinstance(info.default, str) else None  # where older typers keep the first name
    names = [*([first] if first else []), *(info.param_decls or ())]
    return [name for name in names if name.startswith("-")]


def _plain(kind: Any) -> tuple[bool, type]:
    """Whether it may be given several times, and the type of one."""
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    return (True, get_args(kind)[0]) if get_origin(kind) is list else (False, kind)


def _shown(default: Any) -> str:
    if default is inspect.Parameter.empty or default is ...:
        return "required"
    if default is None or default == "":
        return ""
    return {True: "yes", False: ""}[default] if isinstance(default, bool) else f"`{default}`"
