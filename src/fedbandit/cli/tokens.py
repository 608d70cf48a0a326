"""`fedbandit tokens`: who may look, and who may manage."""

from __future__ import annotations

from typing import Annotated

import typer

from fedbandit.cli.calls import DEFAULT_URL, AsJson, CaCert, Caller, Token, Url, print_json, print_table, shown

app = typer.Typer(no_args_is_help=True, help="Tokens of people: viewers and administrators.")
Name = Annotated[str, typer.Argument(help="Whose token it is.")]


@app.command()
def add(
    name: Name,
    role: Annotated[str, typer.Option(help="'viewer' looks, 'admin' manages.")] = "viewer",
    replace: Annotated[bool, typer.Option("--replace", help="Make an older token of this name worthless.")] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Make a token and print it, once."""
    body = {"name": name, "role": role, "replace": replace}
    answer = Caller(url, token, ca_cert).call("POST", "tokens", body=body)
    if as_json:
        print_json(answer)
    else:
        typer.echo(answer["token"])


@app.command("list")
def list_tokens(as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None) -> None:
    """Names and roles; nobody can see a token again."""
    tokens = Caller(url, token, ca_cert).call("GET", "tokens")["tokens"]
    if as_json:
        print_json(tokens)
    else:
        columns = list(tokens[0]) if tokens else ["name", "role"]
        print_table(columns, [[shown(entry[key]) for key in columns] for entry in tokens])


@app.command()
def revoke(name: Name, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None) -> None:
    """Make a token worthless, at once."""
    Caller(url, token, ca_cert).call("DELETE", "tokens", name)
    typer.echo(f"revoked {name}")
