"""`fedbandit agents`: add, list, show, revoke, retire, prune, forget, quarantine, release."""

from __future__ import annotations

from typing import Annotated, Any

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

app = typer.Typer(no_args_is_help=True, help="Manage the agents of a model.")
Model = Annotated[str, typer.Argument(help="Name of the model.")]
Name = Annotated[str, typer.Argument(help="Name of the agent.")]
IN_A_LIST = ["name", "last_seen", "n_uploads", "n_obs", "mean_reward", "unsent", "sequence", "revoked", "quarantined"]


@app.command()
def add(
    model: Model,
    names: Annotated[list[str], typer.Argument(help="Names of the agents.")],
    renew: Annotated[bool, typer.Option("--renew", help="Issue a new token for an existing agent.")] = False,
    overlap: Annotated[
        str | None,
        typer.Option(help="With --renew: how long the old token stays valid, as 15m, 24h, 7d (default: not)."),
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Add agents and print their tokens, which are shown only once."""
    caller = AdminClient(url, token, ca_cert)
    more: dict[str, Any] = {"renew": renew}
    if overlap is not None:
        if not renew:
            raise typer.BadParameter("--overlap needs --renew")
        more["overlap_s"] = seconds_of(overlap, "--overlap")
    added = [caller.call("POST", "models", model, "agents", body={"name": name, **more}) for name in names]
    if as_json:
        print_json(added if len(added) > 1 else added[0])
    elif len(added) == 1:
        typer.echo(added[0]["token"])
    else:
        for agent in added:
            typer.echo(f"{agent['name']} {agent['token']}")


@app.command("list")
def list_agents(
    model: Model,
    page: Annotated[int, typer.Option(help="Page, from 1.")] = 1,
    per_page: Annotated[int, typer.Option(help="Agents per page.")] = 50,
    sort: Annotated[
        str, typer.Option(help="Sort by name, last_seen, n_obs, n_uploads, …; a leading '-' reverses the order.")
    ] = "name",
    search: Annotated[str, typer.Option(help="Only names that contain this text.")] = "",
    retired: Annotated[bool, typer.Option("--retired", help="List agents that were retired instead.")] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """List the agents of a model, one page at a time."""
    query = {"page": page, "per_page": per_page, "sort": sort, "search": search, "retired": retired}
    found = AdminClient(url, token, ca_cert).call("GET", "models", model, "agents", query=query)
    if as_json:
        print_json(found)
        return
    print_table(IN_A_LIST, [[shown(agent[key], key) for key in IN_A_LIST] for agent in found["agents"]])
    typer.echo(f"{len(found['agents'])} of {found['total']}")


@app.command()
def show(
    model: Model, name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None
) -> None:
    """Show one agent with its share of the information and its influence on the estimate."""
    caller = AdminClient(url, token, ca_cert)
    agent = caller.call("GET", "models", model, "agents", name)
    agent["influence"] = influence = caller.call("GET", "models", model, "agents", name, "influence")
    if as_json:
        print_json(agent)
        return
    told = {key: shown(agent[key], key) for key in [*IN_A_LIST, "incarnation", "alpha", "worst_alpha", "model_version"]}
    told["share of information"] = f"{influence['share']:.1%}"
    told["influence on the estimate"] = f"{shown(influence['shift'])}, where β = {shown(influence['beta'])}"
    print_table(["", ""], [[key, value] for key, value in told.items()])


@app.command()
def revoke(model: Model, name: Name, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None) -> None:
    """Revoke an agent's token immediately; its contribution stays."""
    AdminClient(url, token, ca_cert).call("POST", "models", model, "agents", name, "revoke")
    typer.echo(f"revoked {name}")


@app.command()
def retire(
    model: Model,
    names: Annotated[list[str], typer.Argument(help="Names of the agents.")],
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """End agents that will not come back: their tokens are invalid, their contributions stay."""
    caller = AdminClient(url, token, ca_cert)
    for name in names:
        caller.call("POST", "models", model, "agents", name, "retire")
        typer.echo(f"retired {name}")


@app.command()
def unretire(model: Model, name: Name, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None) -> None:
    """Bring a retired agent back: its token is valid again."""
    AdminClient(url, token, ca_cert).call("POST", "models", model, "agents", name, "unretire")
    typer.echo(f"{name} is at work again")


@app.command()
def prune(
    model: Model,
    prune_after: Annotated[
        str, typer.Option("--prune-after", help="Agents without an upload for this long are silent: 12h, 30d.")
    ] = "30d",
    retire_them: Annotated[bool, typer.Option("--retire", help="Retire them; otherwise they are only listed.")] = False,
    fold: Annotated[
        bool,
        typer.Option("--fold", help="Fold all retired agents into one row; they can then be forgotten only together."),
    ] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """List silent agents, the longest silent first, or retire them; at most 10 000 in one call."""
    body = {"after_s": seconds_of(prune_after, "--prune-after"), "retire": retire_them, "fold": fold}
    found = AdminClient(url, token, ca_cert).call("POST", "models", model, "prune", body=body)
    if as_json:
        print_json(found)
        return
    for name in found["agents"]:
        typer.echo(f"retired {name}" if retire_them else name)
    if fold:
        typer.echo(f"folded {found['n_folded']} retired agents")


@app.command()
def forget(
    model: Model,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Remove an agent's contribution exactly; this incarnation cannot upload it again."""
    if not yes:
        typer.confirm(f"Remove everything that {name} contributed to {model}?", abort=True)
    after = AdminClient(url, token, ca_cert).call("POST", "models", model, "agents", name, "forget")
    typer.echo(f"forgot {name}; {model} has {after['n_obs']} observations at version {after['version']}")


@app.command()
def quarantine(model: Model, name: Name, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None) -> None:
    """Remove an agent's contribution from the model and hold its further uploads until it is released or forgotten."""
    after = AdminClient(url, token, ca_cert).call("POST", "models", model, "agents", name, "quarantine")
    typer.echo(f"{name} is in quarantine; {model} has {after['n_obs']} observations at version {after['version']}")


@app.command()
def release(model: Model, name: Name, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None) -> None:
    """Release an agent from quarantine: merge its contribution and everything it uploaded meanwhile."""
    after = AdminClient(url, token, ca_cert).call("POST", "models", model, "agents", name, "release")
    typer.echo(f"released {name}; {model} has {after['n_obs']} observations at version {after['version']}")
