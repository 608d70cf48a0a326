"""Errors and warnings of a command as one line on standard error, without a traceback."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Callable
from typing import Any

from fedbandit.errors import FedbanditError, FedbanditWarning


def run_command(command: Callable[[], object]) -> None:
    """Run the command line; our own errors end it with one line and a status."""
    warnings.showwarning = _show_warning(warnings.showwarning)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be UTF-8
    try:
        command()
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


def _show_warning(show: Any) -> Any:
    """`warnings.showwarning` that writes our own warnings as one sentence, without a line of our source."""

    def shown(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, FedbanditWarning):
            print(f"fedbandit: warning: {message}", file=sys.stderr)
        else:
            show(message, category, *where, **more)

    return shown
