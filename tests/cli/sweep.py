"""Every command of `fedbandit` with its parameters, and how it ends when one of them has a hostile value."""

from __future__ import annotations

import inspect
import io
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, get_args, get_type_hints
from unittest import mock

import typer

from fedbandit.cli.main import app, main

SLOW_S = 180  # an invocation that takes longer, also while others compile beside it, would not end
LEAKS = ("HTTPConnection(", "HTTPSConnection(", "object at 0x", "Traceback", "urllib3", 'File "')
BOX = str.maketrans(dict.fromkeys("│╭╮╰╯─", " "))

# Never a number that means anything. Zero, infinity and the like may be one, but must not end in a traceback.
NO_NUMBER = ["", "nonsense", "nan", "-1", "-inf", "a\0b", "1,5"]
NUMBERS = ["0", "inf", "1" + "0" * 30, "1e300", "1e-300", "1e400"]
NAMES = ["0", "-", "--", "x\udcff", "a\nb", "..", "🙂", "a" * 300]
PLACES = ["no/such/file", ".", "file.txt", "file.txt/x", "folder"]
VALUES = [*NO_NUMBER, *NUMBERS, *NAMES, *PLACES]
A_FEW_NUMBERS = ["nonsense", "nan", "-1", "1" + "0" * 30]
A_FEW_TEXTS = ["", "nonsense", "x\udcff", "..", "file.txt/x"]


@dataclass(frozen=True)
class Parameter:
    """An option with a value, or an argument."""

    name: str  # as it is typed; an argument's in capitals
    kind: type  # int, float, str or Path
    is_argument: bool
    place: int  # of an argument: how many stand before it

    @property
    def is_number(self) -> bool:
        return self.kind in (int, float)


def commands() -> dict[str, Any]:
    """Every command that does something, by its words: "simulate", "models create", …"""
    root: Any = typer.main.get_command(app)
    return dict(_leaves(root, ()))


def _leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(words), command
        return
    for name, inner in command.commands.items():
        yield from _leaves(inner, (*words, name))


def parameters_of(command: Any) -> list[Parameter]:
    """All that take a value; flags take none."""
    hints = get_type_hints(inspect.unwrap(command.callback))
    found, n_arguments = [], 0
    for each in command.params:
        if getattr(each, "is_flag", False):
            continue
        is_argument = each.param_type_name == "argument"
        name = each.name.upper() if is_argument else each.opts[0]
        found.append(Parameter(name, _kind(hints[each.name]), is_argument, n_arguments))
        n_arguments += is_argument
    return found


def _kind(hint: Any) -> type:
    """The type of one value: int of `list[int] | None`."""
    if hint in (int, float, str, Path):
        return hint  # type: ignore[no-any-return]
    return next(_kind(part) for part in get_args(hint) if part is not type(None))


@dataclass(frozen=True, eq=False)
class Base:
    """Words with which a command does its work quickly, or ends at its last step."""

    options: list[str | Callable[[], str]] = field(default_factory=list)
    arguments: list[str | Callable[[], str]] = field(default_factory=list)

    def words(self, command: str, parameter: Parameter | None = None, value: str = "") -> list[str]:
        """The command line; the last one of two equal options counts."""
        options = [each if isinstance(each, str) else each() for each in self.options]
        arguments = [each if isinstance(each, str) else each() for each in self.arguments]
        if parameter is not None and parameter.is_argument:
            arguments[parameter.place] = value
        elif parameter is not None:
            options += [parameter.name, value]
        return [*command.split(), *options, "--", *arguments]


@dataclass(frozen=True)
class Ending:
    """How a command ended; `problem` is a defect of ours."""

    status: int
    text: str
    problem: str = ""

    @property
    def sentence(self) -> str:
        """What was said, without boxes and line breaks."""
        return " ".join(self.text.translate(BOX).split())


def invoke(words: list[str], lines: str = "") -> Ending:
    """Run `fedbandit` with these words in this process, as a shell would."""
    out, error, source = (io.TextIOWrapper(io.BytesIO(content), "utf-8") for content in (b"", b"", lines.encode()))
    error.reconfigure(errors="backslashreplace")  # as Python's own standard error
    status, problem = 0, ""
    with (
        mock.patch.multiple(sys, argv=["fedbandit", *words], stdout=out, stderr=error, stdin=source),
        warnings.catch_warnings(),
        _in_time(),
    ):
        warnings.simplefilter("default")
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1 if end.code else 0
        except BaseException as raised:  # noqa: BLE001 - what people would see as a traceback
            last = traceback.extract_tb(raised.__traceback__)[-1]
            status, problem = 1, f"{raised!r} at {last.filename}:{last.lineno}"
    text = _read(out) + _read(error)
    return Ending(status, text, problem or _problem(status, text))


def _read(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined,no-any-return]


def _problem(status: int, text: str) -> str:
    if status == 0:
        return ""
    leak = next((each for each in LEAKS if each in text), None)
    if leak is not None:
        return f"says {leak!r}: {text[-300:]}"
    if not text.strip():
        return f"ends with {status} without a word"
    return "" if status in (1, 2) else f"ends with {status}: {text[-300:]}"


class TooSlow(Exception):
    """The command did not end in time."""


@contextmanager
def _in_time() -> Iterator[None]:
    """Bound the time, and put back what commands that run for long change in their process."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise TooSlow(f"no end within {SLOW_S} s")

    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    before, interval = signal.signal(signal.SIGALRM, stop), sys.getswitchinterval()
    signal.alarm(SLOW_S)
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in {**kept, signal.SIGALRM: before}.items():
            signal.signal(number, handler)
        sys.setswitchinterval(interval)
