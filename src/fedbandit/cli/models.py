"""`fedbandit models`: create, list, show, export, delete."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedbandit.cli.calls import DEFAULT_URL, AsJson, CaCert, Caller, Token, Url, print_json, print_table, shown
from fedbandit.cli.warm_start import create_with_history, read_history
from fedbandit.core.radius import KINDS

app = typer.Typer(no_args_is_help=True, help="Models on a server.")
Name = Annotated[str, typer.Argument(help="Name of the model.")]
IN_A_LIST = ["name", "dim", "lam", "alpha", "effective_alpha", "version", "n_obs", "n_agents", "mean_reward"]


@app.command()
def create(
    name: Name,
    dim: Annotated[int | None, typer.Option(help="Features d; a warm start knows them from its log.")] = None,
    lam: Annotated[float, typer.Option(help="Ridge λ.")] = 1.0,
    alpha: Annotated[float, typer.Option(help="Determinant growth that triggers an exchange.")] = 1.0,
    beta: Annotated[
        float | None, typer.Option(help="Confidence radius β as a number; 1 if no radius is given.")
    ] = None,
    radius: Annotated[str | None, typer.Option(help=f"β by its kind: {', '.join(KINDS)}.")] = None,
    n_agents: Annotated[int | None, typer.Option(help="Radius: agents M, or a bound on them.")] = None,
    n_rounds: Annotated[int | None, typer.Option(help="Radius: rounds T over all agents.")] = None,
    noise_scale: Annotated[float | None, typer.Option(help="Radius: noise scale R.")] = None,
    theta_bound: Annotated[float | None, typer.Option(help="Radius: S ≥ ‖θ*‖.")] = None,
    delta: Annotated[float | None, typer.Option(help="Radius: failure probability δ.")] = None,
    action_bound: Annotated[float | None, typer.Option(help="L ≥ ‖x‖; uploads beyond it are refused.")] = None,
    reward_bound: Annotated[float | None, typer.Option(help="Largest |r|; uploads beyond it are refused.")] = None,
    features: Annotated[str | None, typer.Option(help="Names of the features: a,b,c.")] = None,
    warm_start: Annotated[
        Path | None, typer.Option(help="Begin with a log (csv or parquet), as the contribution of an agent 'history'.")
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Create a model at its prior; what it fixes now every agent gets when it connects."""
    body: dict[str, Any] = {
        "name": name,
        "dim": dim,
        "lam": lam,
        "alpha": alpha,
        "action_bound": action_bound,
        "reward_bound": reward_bound,
        "features": None if features is None else [part.strip() for part in features.split(",")],
    }
    if radius is None:
        body["beta"] = 1.0 if beta is None else beta
    else:
        numbers = {
            "beta": beta,
            "n_agents": n_agents,
            "n_rounds": n_rounds,
            "noise_scale": noise_scale,
            "theta_bound": theta_bound,
            "delta": delta,
            "action_bound": action_bound if radius == "paper" else None,
        }
        body["radius"] = {"kind": radius, **{key: value for key, value in numbers.items() if value is not None}}
    caller = Caller(url, token, ca_cert)
    if warm_start is not None:
        upload = read_history(warm_start, body)
        _print_model(create_with_history(caller, body, upload), as_json)
        return
    if dim is None:
        raise typer.BadParameter("give --dim, or --warm-start with a log")
    _print_model(caller.call("POST", "models", body=body), as_json)


@app.command("list")
def list_models(as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None) -> None:
    """All models."""
    models = Caller(url, token, ca_cert).call("GET", "models")["models"]
    if as_json:
        print_json(models)
    else:
        print_table(IN_A_LIST, [[shown(model[key]) for key in IN_A_LIST] for model in models])


@app.command()
def show(
    name: Name, as_json: AsJson = False, url: Url = DEFAULT_URL, token: Token = "", ca_cert: CaCert = None
) -> None:
    """Settings, version and totals of a model."""
    _print_model(Caller(url, token, ca_cert).call("GET", "models", name), as_json)


@app.command()
def export(
    name: Name,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File; NAME.safetensors if left out.")] = None,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Write a model as safetensors, with its settings in the metadata."""
    content = Caller(url, token, ca_cert).fetch("GET", "models", name, "export")
    path = Path(f"{name}.safetensors") if output is None else output
    path.write_bytes(content)
    typer.echo(f"wrote {path} ({len(content)} bytes)")


@app.command()
def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Delete a model with its agents and their tokens."""
    if not yes:
        typer.confirm(f"Delete model {name} with everything it has learnt?", abort=True)
    Caller(url, token, ca_cert).call("DELETE", "models", name)
    typer.echo(f"deleted {name}")


def _print_model(model: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(model)
        return
    for key, value in model.items():
        typer.echo(f"{key:16} {shown(value)}")
