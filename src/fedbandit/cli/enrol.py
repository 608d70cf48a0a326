"""`fedbandit enrol`: secrets by which machines get an agent of their own."""

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
from fedbandit.cli.durations import seconds_of
from fedbandit.http_client import server_fingerprint
from fedbandit.wire.enrolment import EnrolmentString

app = typer.Typer(no_args_is_help=True, help="Let machines that come and go enrol themselves.")
Model = Annotated[str, typer.Argument(help="Name of the model.")]
Name = Annotated[str, typer.Argument(help="Name of the enrolment.")]
COLUMNS = ["name", "state", "n_used", "max_uses", "name_prefix", "created", "expires"]


@app.command()
def create(
    model: Model,
    name: Annotated[str, typer.Option(help="Name of the enrolment; given by the server if left out.")] = "",
    max_uses: Annotated[int | None, typer.Option(help="Agents that it may enrol; without a limit if left out.")] = None,
    ttl: Annotated[str, typer.Option(help="How long it is valid: 90s, 15m, 24h, 30d; or 'none'.")] = "24h",
    name_prefix: Annotated[str, typer.Option(help="How the names of its agents begin, such as 'web-'.")] = "",
    pin: Annotated[
        bool, typer.Option("--pin", help="Put the fingerprint of the server's certificate into the string.")
    ] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Create an enrolment and print its string, which is shown only once."""
    fingerprint = server_fingerprint(url, ca=ca_cert) if pin else None
    ttl_s = None if ttl == "none" else seconds_of(ttl, "--ttl")
    body = {"name": name, "max_uses": max_uses, "name_prefix": name_prefix, "ttl_s": ttl_s}
    made = AdminClient(url, token, ca_cert).call("POST", "models", model, "enrolments", body=body)
    made["enrol"] = str(EnrolmentString(made.pop("secret"), fingerprint))
    if as_json:
        print_json(made)
    else:
        typer.echo(made["enrol"])


@app.command("list")
def list_enrolments(
    model: Model, as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None
) -> None:
    """List the enrolments of a model with their uses, without the secrets."""
    found = AdminClient(url, token, ca_cert).call("GET", "models", model, "enrolments")["enrolments"]
    if as_json:
        print_json(found)
        return
    print_table(COLUMNS, [[shown(item[key], key) for key in COLUMNS] for item in found])


@app.command()
def revoke(model: Model, name: Name, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None) -> None:
    """Revoke an enrolment immediately; the agents that it enrolled stay valid."""
    AdminClient(url, token, ca_cert).call("POST", "models", model, "enrolments", name, "revoke")
    typer.echo(f"revoked {name}")
