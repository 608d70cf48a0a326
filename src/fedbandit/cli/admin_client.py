"""Options and output that the commands for a running server share."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

try:
    import typer
except ImportError:  # the base install
    from fedbandit.cli import plain as typer  # type: ignore[no-redef]

from fedbandit.http_client import AdminClient

__all__ = [
    "DEFAULT_URL",
    "AdminClient",
    "AsJson",
    "CaCert",
    "Token",
    "Url",
    "print_json",
    "print_table",
    "shown",
]

Url = Annotated[str, typer.Option("--url", envvar="FEDBANDIT_URL", help="Address of the server.")]
Token = Annotated[str, typer.Option("--token", envvar="FEDBANDIT_TOKEN", help="Token of an administrator.")]
CaCert = Annotated[
    str | None, typer.Option("--ca-cert", envvar="FEDBANDIT_CA_CERT", help="Trust this certificate authority, PEM.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT_URL = "http://127.0.0.1:8700"
TIMES = {"created", "expires", "last_seen", "retired"}  # fields of the API that are seconds since 1970


def print_json(value: Any) -> None:
    """Print one value as indented JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Print aligned columns, also into a pipe."""
    widths = [max(len(line[place]) for line in [columns, *rows]) for place in range(len(columns))]
    for line in [columns, *rows]:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def shown(value: Any, name: str = "") -> str:
    """A value for a table cell; what `name` says is a point in time is shown in UTC.

    >>> shown(0.123456789), shown(None), shown(1794810000.0, "created")
    ('0.123457', '-', '2026-11-16 06:20:00Z')
    """
    if value is None:
        return "-"
    if name in TIMES:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
