"""`fedbandit dashboard-link`: a link that opens the dashboard signed in, once."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import Annotated

import typer

from fedbandit.cli.admin_client import DEFAULT_URL, AdminClient, CaCert, Token, Url
from fedbandit.cli.durations import seconds_of


def dashboard_link(
    to: Annotated[str, typer.Option(help="The view that it opens, such as /models/news.")] = "/",
    ttl: Annotated[str, typer.Option(help="How long it is valid, such as 90s or 10m; at most 15m.")] = "5m",
    open_it: Annotated[bool, typer.Option("--open", help="Open it in a browser on this machine.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Print a link that opens the dashboard signed in as a viewer, once."""
    link = new_link(AdminClient(url, token, ca_cert), url, target=to, ttl_s=seconds_of(ttl, "--ttl"))
    typer.echo(link)
    if open_it and not open_in_browser(link):
        typer.echo("there is no browser here that can be opened", err=True)


def new_link(client: AdminClient, url: str, *, target: str, ttl_s: float) -> str:
    """The address of a new link."""
    answer = client.call("POST", "sign-in-links", body={"target": target, "ttl_s": ttl_s})
    return url.rstrip("/") + str(answer["path"])


def open_in_browser(link: str) -> bool:
    """Open a link in a browser with a window; False where there is none."""
    has_window = sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    try:
        return has_window and webbrowser.open(link)
    except webbrowser.Error:
        return False
