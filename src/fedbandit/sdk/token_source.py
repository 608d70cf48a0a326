"""Where an agent's token comes from: text, a file that may change, or a function of the application."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from fedbandit.errors import InvalidParameter, NotReachable
from fedbandit.http_client import check_token

EXPECTED = "the agent's token as printed by `fedbandit agents add`"
TokenSource = str | os.PathLike[str] | Callable[[], str]


def token_of(source: TokenSource) -> str | Callable[[], str]:
    """The token itself, or what gives the current one before each call to the server."""
    if isinstance(source, str):
        check_token(source, EXPECTED)
        return source
    if isinstance(source, os.PathLike):
        read = _Reader(Path(source))
        read()  # a wrong path is reported at the start
        return read
    if callable(source):
        return _Checked(source)
    raise InvalidParameter(f"expected token as text, a path or a function, got {type(source).__name__}")


class _Checked:
    """A function of the application; what it raises or returns must not stop the agent for good."""

    def __init__(self, source: Callable[[], str]) -> None:
        self._source = source

    def __call__(self) -> str:
        try:
            token = self._source()
            check_token(token, EXPECTED)
        except Exception as error:  # noqa: BLE001 - the application's function: retried like a server that is away
            raise NotReachable(f"the token cannot be had: {type(error).__name__}: {error}") from None
        return token


class _Reader:
    """The content of a file, read before each call: exchanges are rare, and a secret may be replaced at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> str:
        try:
            token = self._path.read_text(encoding="ascii").strip()
            check_token(token, EXPECTED)
        except (OSError, ValueError, InvalidParameter) as error:
            raise NotReachable(f"the token cannot be read from {self._path}: {error}") from None
        return token
