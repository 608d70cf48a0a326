"""`fedbandit tokens`: tokens of viewers and administrators."""

from __future__ import annotations

from typing import Annotated

import typer

from fedbandit.cli.admin_client import (
    DEFAULT_URL,
    AdminClient,
    AsJson,
    CaCert,
    Token,
    Url,
    print_json,
    print_table,
    shown,
)

app = typer.Typer(no_args_is_help=True, help="Manage the tokens of viewers and administrators.")
Name = Annotated[str, typer.Argument(help="Name of the token's owner.")]


@app.command()
def add(
    name: Name,
    role: Annotated[
        str,
        typer.Option(help="'viewer' is read-only, 'reporter' can only report rewards, 'admin' can manage everything."),
    ] = "viewer",
    replace: Annotated[bool, typer.Option("--replace", help="Revoke an older token of this name.")] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Create a token and print it; it is shown only once."""
    body = {"name": name, "role": role, "replace": replace}
    answer = AdminClient(url, token, ca_cert).call("POST", "tokens", body=body)
    if as_json:
        print_json(answer)
    else:
        typer.echo(answer["token"])


@app.command("list")
def list_tokens(as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None) -> None:
    """List the names and roles of tokens, without the tokens."""
    tokens = AdminClient(url, token, ca_cert).call("GET", "tokens")["tokens"]
    if as_json:
        print_json(tokens)
    else:
        columns = list(tokens[0]) if tokens else ["name", "role"]
        print_table(columns, [[shown(entry[key], key) for key in columns] for entry in tokens])


@app.command()
def revoke(name: Name, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None) -> None:
    """Revoke a token immediately."""
    AdminClient(url, token, ca_cert).call("DELETE", "tokens", name)
    typer.echo(f"revoked {name}")
