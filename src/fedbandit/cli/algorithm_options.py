"""The options of algorithms on the command line, as their entries in the registry describe them."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from fedbandit.algorithms.base import Rule
from fedbandit.algorithms.catalog import ALGORITHMS
from fedbandit.errors import InvalidParameter
from fedbandit.registry import Algorithm, Option, RunSizes

PANEL = "Options of algorithms"


def offer_options(command: Callable[..., Any], algorithms: Iterable[Algorithm]) -> None:
    """Replace `**options` of a command by one option for each that these algorithms have.

    An option that two algorithms share is offered once. A name that the command itself uses stays the command's.
    """
    signature = inspect.signature(command)
    known = get_type_hints(command, include_extras=True)
    of_command = (inspect.Parameter.POSITIONAL_OR_KEYWORD,)  # not **options, nor options that were offered before
    fixed = [p.replace(annotation=known[p.name]) for p in signature.parameters.values() if p.kind in of_command]
    taken = {p.name for p in fixed}
    offered = {name: owners for name, owners in _owners(algorithms).items() if name not in taken}
    hints = {name: _annotation(name, owners) for name, owners in offered.items()}
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in hints.items()
    ]
    command.__signature__ = signature.replace(parameters=[*fixed, *added])  # type: ignore[attr-defined]
    command.__annotations__ = {**{p.name: p.annotation for p in fixed}, **hints, "return": None}


def make_rules(
    names: Iterable[str], sizes: RunSizes, numbers: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Rule]:
    """The rule of each name; an option that was given and that none of them has is an error."""
    entries = {name: ALGORITHMS.find(name) for name in names}
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if not any(name in entry.options for entry in entries.values()):
            raise InvalidParameter(f"{_flag(name)} is no option of {'; '.join(map(_with_options, entries.values()))}")
    return {name: _make(entry, sizes, numbers, given) for name, entry in entries.items()}


def _make(entry: Algorithm, sizes: RunSizes, numbers: Mapping[str, Any], given: Mapping[str, Any]) -> Rule:
    values: dict[str, Any] = {"dim": sizes.dim, **numbers}
    for name, option in entry.options.items():
        value = given[name] if name in given else option.value_for(sizes)
        if value is not None:
            values[name] = _converted(entry, name, value)
    rule: Rule = entry.make(**values)
    return rule


def _converted(entry: Algorithm, name: str, value: Any) -> Any:
    """The value in the field's type: it is text where algorithms that share an option disagree on its type."""
    kind = _kind(entry, name)
    if isinstance(value, kind):
        return value
    try:
        if kind is bool:
            return {"true": True, "false": False}[str(value).lower()]
        return kind(value)
    except (KeyError, TypeError, ValueError):
        words = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "text")
        raise InvalidParameter(f"expected {_flag(name)} of {entry.name} as {words}, got {value!r}") from None


def _with_options(entry: Algorithm) -> str:
    flags = ", ".join(map(_flag, entry.options))
    return f"{entry.name}, which has {flags or 'no options'}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _owners(algorithms: Iterable[Algorithm]) -> dict[str, list[Algorithm]]:
    """Each option's name with the algorithms that have it."""
    found: dict[str, list[Algorithm]] = {}
    for entry in algorithms:
        for name in entry.options:
            found.setdefault(name, []).append(entry)
    return found


def _annotation(name: str, owners: list[Algorithm]) -> Any:
    """What typer reads: the type of a value and its help. Algorithms that disagree on the type get text to convert."""
    kinds = {_kind(entry, name) for entry in owners}
    kind: Any = kinds.pop() if len(kinds) == 1 else str
    names = [_flag(name)] if kind is bool else []
    return Annotated[Union[kind, None], typer.Option(*names, help=_help(name, owners), rich_help_panel=PANEL)]  # noqa: UP007


def _help(name: str, owners: list[Algorithm]) -> str:
    """`dislinucb: what it is. Default: 1.`, said once for all algorithms with the same help."""
    sentences: dict[str, list[str]] = {}
    for entry in owners:
        default = _default(entry, name, entry.options[name])
        words = f"{entry.options[name].help}." + (f" Default: {default}." if default else "")
        sentences.setdefault(words, []).append(entry.name)
    return " ".join(f"{', '.join(names)}: {words}" for words, names in sentences.items())


def _default(entry: Algorithm, name: str, option: Option) -> str:
    if option.default_help or option.default is not None:
        return option.default_help or f"{option.default}"
    default = next(one.default for one in entry.fields if one.name == name)
    return f"{default}" if isinstance(default, (str, int, float)) and not isinstance(default, bool) else ""


def _kind(entry: Algorithm, name: str) -> type:
    """The type of a value: float of `float | None`; text for what a command line cannot spell."""
    hint = get_type_hints(entry.rule)[name]
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    return hint if hint in (bool, int, float, str) else str
