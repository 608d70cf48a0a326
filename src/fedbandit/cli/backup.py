"""`fedbandit backup`, `restore`, `copy-store`: copies of a server's directory. PostgreSQL has its own tools."""

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


def copy_store(
    to: Annotated[str, typer.Option(help="postgresql://… of an empty database.")],
    data: Data = Path("fedbandit-data"),
) -> None:
    """Copy the store of a stopped server to PostgreSQL, with agents and tokens; the directory stays as it is."""
    import asyncio

    from fedbandit.service.admin.store_copy import copy_to_postgres

    found = asyncio.run(copy_to_postgres(data, to))
    typer.echo(
        f"copied {found.n_rows['models']} models and {found.n_rows['agents']} agents, {found.n_obs} observations"
    )
