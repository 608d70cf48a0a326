"""`fedbandit serve`: a server on a directory or on PostgreSQL."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from fedbandit.errors import FedbanditError, MissingExtra

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    data: Annotated[str | None, typer.Option(help="Directory of the embedded store (default: fedbandit-data).")] = None,
    database: Annotated[str | None, typer.Option(help="postgresql://… instead of a directory.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (default: 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for any free one (default: 8700).")] = None,
    tls_cert: Annotated[str | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Private key, PEM.")] = None,
    client_ca: Annotated[str | None, typer.Option(help="Accept only clients with a certificate of this CA.")] = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="Listen beyond this machine without TLS.")] = None,
    open_dashboard: Annotated[
        bool | None, typer.Option("--open-dashboard", help="Show the dashboard without a token, on this machine only.")
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Accept agents in web pages of this origin (CORS); may be repeated.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error (default: info).")] = None,
    max_batch: Annotated[int | None, typer.Option(help="Uploads in one transaction (default: 128).")] = None,
    max_queue: Annotated[
        int | None, typer.Option(help="Queued uploads per model before the server answers 503 (default: 1024).")
    ] = None,
    pool_size: Annotated[int | None, typer.Option(help="Connections to PostgreSQL (default: 8).")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings as TOML.")] = None,
    new_admin_token: Annotated[
        bool, typer.Option("--new-admin-token", help="Replace the admin token and print the new one.")
    ] = False,
    while_stdin: Annotated[
        bool, typer.Option("--while-stdin", help="Exit when standard input closes.", hidden=True)
    ] = False,
) -> None:
    """Start a server. The first start prints an admin token once. SIGTERM stops it after all replies are sent."""
    try:
        from fedbandit.dashboard.routes import dashboard_routes
        from fedbandit.service.process import run
        from fedbandit.service.settings import read_settings
    except ImportError as error:
        raise MissingExtra(f"a server needs the server extra: install fedbandit[server] ({error})") from error

    options = {
        "data": data,
        "database": database,
        "host": host,
        "port": port,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "client_ca": client_ca,
        "insecure": insecure,
        "open_dashboard": open_dashboard,
        "allow_origin": tuple(allow_origin) if allow_origin else None,
        "log_level": log_level,
        "max_batch": max_batch,
        "max_queue": max_queue,
        "pool_size": pool_size,
    }
    if data is not None and database is not None:
        raise typer.BadParameter("give --data or --database, not both")
    if while_stdin:
        _end_with_stdin()
    run(read_settings(options, file=config), new_admin_token=new_admin_token, say=_say, dashboard=dashboard_routes)


def _end_with_stdin() -> None:
    """Send SIGTERM to this process when its standard input closes, even if the parent was killed."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="fedbandit-stdin", daemon=True).start()


def _say(line: str) -> None:
    """Write to standard output without buffering, also when it is a pipe."""
    print(line, flush=True)


if __name__ == "__main__":
    try:
        app()
    except FedbanditError as error:
        sys.exit(f"fedbandit: {error.code}: {error}")
