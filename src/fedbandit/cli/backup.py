"""`fedbandit backup` and `fedbandit restore`: copies of a server's directory. PostgreSQL has pg_dump and pg_restore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path, typer.Option(envvar="FEDBANDIT_DATA", help="Directory of the embedded store.")]


def backup(
    out: Annotated[Path, typer.Option(help="File to write; it must not exist.")],
    data: Data = Path("fedbandit-data"),
) -> None:
    """Copy the store of a running server into one file."""
    from fedbandit.service.admin.backup import backup as make

    make(data, out)
    typer.echo(f"wrote a backup of {data} to {out}")


def restore(
    source: Annotated[Path, typer.Option("--from", help="A file that `fedbandit backup` wrote.")],
    data: Data = Path("fedbandit-data"),
) -> None:
    """Replace the store of a stopped server by a backup; the old store is moved aside."""
    from fedbandit.service.admin.backup import restore as bring_back

    aside = bring_back(data, source)
    typer.echo(f"restored {data} from {source}" + ("" if aside is None else f"; the previous store is in {aside}"))
