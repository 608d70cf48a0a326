"""`fedbandit agents`: add, list, show, revoke, forget."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from fedbandit.cli.calls import DEFAULT_URL, AsJson, CaCert, Caller, Token, Url, print_json, print_table, shown

app = typer.Typer(no_args_is_help=True, help="Agents of a model.")
Model = Annotated[str, typer.Argument(help="Name of the model.")]
Name = Annotated[str, typer.Argument(help="Name of the agent.")]
IN_A_LIST = ["name", "last_seen", "n_uploads", "n_obs", "mean_reward", "waiting", "sequence", "revoked"]


@app.command()
def add(
    model: Model,
    names: Annotated[list[str], typer.Argument(help="Names of the agents.")],
    renew: Annotated[bool, typer.Option("--renew", help="Give an agent that exists a new token.")] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Let agents in and print their tokens, which are shown only here; one agent's token stands alone on its line."""
    caller = Caller(url, token, ca_cert)
    added = [caller.call("POST", "models", model, "agents", body={"name": name, "renew": renew}) for name in names]
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
    per_page: Annotated[int, typer.Option(help="Agents on a page.")] = 50,
    sort: Annotated[
        str, typer.Option(help="name, last_seen, n_obs, n_uploads, …; '-' before it turns it round.")
    ] = "name",
    search: Annotated[str, typer.Option(help="Only names that contain this.")] = "",
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """A page of agents."""
    query = {"page": page, "per_page": per_page, "sort": sort, "search": search}
    found = Caller(url, token, ca_cert).call("GET", "models", model, "agents", query=query)
    if as_json:
        print_json(found)
        return
    print_table(IN_A_LIST, [[_cell(key, agent[key]) for key in IN_A_LIST] for agent in found["agents"]])
    typer.echo(f"{len(found['agents'])} of {found['total']}")


@app.command()
def show(
    model: Model, name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None
) -> None:
    """One agent with its weight: its share of the information, and its pull on the estimate."""
    caller = Caller(url, token, ca_cert)
    agent = caller.call("GET", "models", model, "agents", name)
    agent["weight"] = weight = caller.call("GET", "models", model, "agents", name, "weight")
    if as_json:
        print_json(agent)
        return
    told = {key: _cell(key, agent[key]) for key in [*IN_A_LIST, "incarnation", "alpha", "worst_alpha", "model_version"]}
    told["share of information"] = f"{weight['share']:.1%}"
    told["pull on the estimate"] = f"{weight['pull']:.4g}, where β = {weight['beta']:.4g}"
    print_table(["", ""], [[key, value] for key, value in told.items()])


@app.command()
def revoke(model: Model, name: Name, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None) -> None:
    """Make an agent's token worthless, at once; what it contributed stays."""
    Caller(url, token, ca_cert).call("POST", "models", model, "agents", name, "revoke")
    typer.echo(f"revoked {name}")


@app.command()
def forget(
    model: Model,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Remove an agent's contribution exactly; its incarnation cannot bring it back."""
    if not yes:
        typer.confirm(f"Remove everything that {name} contributed to {model}?", abort=True)
    after = Caller(url, token, ca_cert).call("POST", "models", model, "agents", name, "forget")
    typer.echo(f"forgot {name}; {model} has {after['n_obs']} observations at version {after['version']}")


def _cell(key: str, value: Any) -> str:
    if key == "last_seen" and value is not None:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    return shown(value)
