"""`fedbandit models`: create, list, show, export, delete."""

from __future__ import annotations

from pathlib import Path
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
from fedbandit.cli.files import check_file
from fedbandit.cli.warm_start import create_with_history, read_history
from fedbandit.core.radius import KINDS
from fedbandit.http_client import EXPORT_TIMEOUT_S

app = typer.Typer(no_args_is_help=True, help="Manage the models of a server.")
Name = Annotated[str, typer.Argument(help="Name of the model.")]
IN_A_LIST = ["name", "dim", "lam", "alpha", "effective_alpha", "version", "n_obs", "n_agents", "mean_reward"]
IN_AN_INSIGHT = ["guarantee", "explanation", "beta", "beta_needed", "normal_alpha", "noise", "information"]


@app.command()
def create(
    name: Name,
    dim: Annotated[int | None, typer.Option(help="Number of features d; a warm start takes it from its log.")] = None,
    lam: Annotated[float, typer.Option(help="Ridge λ.")] = 1.0,
    alpha: Annotated[float, typer.Option(help="Determinant growth that triggers an exchange.")] = 1.0,
    beta: Annotated[
        float | None, typer.Option(help="Confidence radius β as a number (default: 1 if no --radius is given).")
    ] = None,
    radius: Annotated[str | None, typer.Option(help=f"β by its kind: {', '.join(KINDS)}.")] = None,
    n_agents: Annotated[int | None, typer.Option(help="Radius: agents M, or a bound on them.")] = None,
    n_rounds: Annotated[int | None, typer.Option(help="Radius: rounds T over all agents.")] = None,
    noise_scale: Annotated[float | None, typer.Option(help="Radius: noise scale R.")] = None,
    theta_bound: Annotated[float | None, typer.Option(help="Radius: S ≥ ‖θ*‖.")] = None,
    delta: Annotated[float | None, typer.Option(help="Radius: failure probability δ.")] = None,
    action_bound: Annotated[
        float | None, typer.Option(help="L ≥ ‖x‖; uploads that exceed it are refused (default: 1e9).")
    ] = None,
    reward_bound: Annotated[
        float | None, typer.Option(help="Largest |r|; uploads that exceed it are refused (default: 1e9).")
    ] = None,
    max_rate: Annotated[
        float | None,
        typer.Option(help="Observations per second of one agent, on average since it was added (default: 10000)."),
    ] = None,
    max_share: Annotated[
        float | None,
        typer.Option(help="Largest share of the information that one agent may have, 0 to 1 (default: no limit)."),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(help="Names of the features in order: a,b,c. A warm start selects its columns by them."),
    ] = None,
    warm_start: Annotated[
        Path | None,
        typer.Option(help="Start from a log (CSV or Parquet), merged as the contribution of an agent 'history'."),
    ] = None,
    arms: Annotated[
        str | None,
        typer.Option(
            help="With --warm-start and a log with arms: the order of their columns, a,b,c (default: sorted by name)."
        ),
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Create a model at its prior. Agents receive its settings when they connect."""
    body: dict[str, Any] = {
        "name": name,
        "dim": dim,
        "lam": lam,
        "alpha": alpha,
        "action_bound": action_bound,
        "reward_bound": reward_bound,
        "max_rate": max_rate,
        "max_share": max_share,
        "features": names_in(features),
    }
    assumed = {
        "n_agents": n_agents,
        "n_rounds": n_rounds,
        "noise_scale": noise_scale,
        "theta_bound": theta_bound,
        "delta": delta,
    }
    numbers = {key: value for key, value in assumed.items() if value is not None}
    if radius is not None:
        more = {"beta": beta, "action_bound": action_bound if radius == "paper" else None}
        body["radius"] = {"kind": radius, **numbers, **{key: value for key, value in more.items() if value is not None}}
    elif numbers:
        options = ", ".join("--" + key.replace("_", "-") for key in numbers)
        raise typer.BadParameter(f"{options}: only used with --radius; give one, one of {', '.join(KINDS)}")
    else:
        body["beta"] = 1.0 if beta is None else beta
    caller = AdminClient(url, token, ca_cert)
    if warm_start is not None:
        upload, notes = read_history(warm_start, body, arms=names_in(arms))
        for note in notes:
            typer.echo(note, err=True)
        _print_model(create_with_history(caller, body, upload), as_json)
        return
    if arms is not None:
        raise typer.BadParameter("--arms needs --warm-start")
    if dim is None:
        raise typer.BadParameter("give --dim, or --warm-start with a log")
    _print_model(caller.call("POST", "models", body=body), as_json)


def names_in(text: str | None) -> list[str] | None:
    """`a, b` as ["a", "b"]."""
    return None if text is None else [part.strip() for part in text.split(",")]


@app.command("list")
def list_models(as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None) -> None:
    """List all models."""
    models = AdminClient(url, token, ca_cert).call("GET", "models")["models"]
    if as_json:
        print_json(models)
    else:
        print_table(IN_A_LIST, [[shown(model[key], key) for key in IN_A_LIST] for model in models])


@app.command()
def show(
    name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None
) -> None:
    """Show the settings, version and totals of a model, its guarantee, and the largest shares of information."""
    caller = AdminClient(url, token, ca_cert)
    model = caller.call("GET", "models", name)
    if "agent" not in model:  # an agent's token may read its model, but not the shares of others
        model["insight"] = caller.call("GET", "models", name, "insight")
    _print_model(model, as_json)


@app.command()
def export(
    name: Name,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (default: NAME.safetensors).")
    ] = None,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Write a model as safetensors, with its settings in the metadata."""
    path = check_file(Path(f"{name}.safetensors") if output is None else output, "--output")
    content = AdminClient(url, token, ca_cert).fetch("GET", "models", name, "export", timeout_s=EXPORT_TIMEOUT_S)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    typer.echo(f"wrote {path} ({len(content)} bytes)")


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Delete a model with its agents and their tokens."""
    if not yes:
        typer.confirm(f"Delete model {name} with everything it has learnt?", abort=True)
    AdminClient(url, token, ca_cert).call("DELETE", "models", name)
    typer.echo(f"deleted {name}")


def _print_model(model: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(model)
        return
    insight = model.pop("insight", None)
    lines = [(key, shown(value, key)) for key, value in model.items()]
    if insight is not None:
        lines += [(key, shown(insight[key])) for key in IN_AN_INSIGHT]
        lines += [("check", f"{it['assumption']}: {it['state']} ({it['evidence']})") for it in insight["checks"]]
        lines += [("share", f"{it['agent']} {it['share']:.1%}") for it in insight["largest_shares"]]
        lines.append(("share", f"the prior {insight['prior_share']:.1%}"))
    for key, text in lines:
        typer.echo(f"{key:16} {text}")
