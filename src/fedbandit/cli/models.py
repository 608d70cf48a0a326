"""`fedbandit models`: create, set, list, show, export, restart, delete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbandit.algorithms.policies import as_gamma
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
from fedbandit.cli.imported_model import create_from, read_export
from fedbandit.cli.warm_start import create_with_history, read_history
from fedbandit.core import drift as drifts
from fedbandit.core.gain import LEVEL
from fedbandit.core.radius import KINDS
from fedbandit.http_client import EXPORT_TIMEOUT_S
from fedbandit.wire.policy_choice import PolicyChoice

app = typer.Typer(no_args_is_help=True, help="Manage the models of a server.")
Name = Annotated[str, typer.Argument(help="Name of the model.")]
IN_A_LIST = ["name", "dim", "lam", "alpha", "effective_alpha", "version", "n_obs", "n_agents", "mean_reward"]
IN_A_GAIN = ["n_control", "n_treatment", "mean_control", "mean_treatment", "gain", "low", "high", "relative", "n_more"]
IN_AN_INSIGHT = ["explanation", "beta", "beta_needed", "normal_alpha", "noise", "information"]


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
    personal: Annotated[
        str | None,
        typer.Option(help="A parameter of its own for each agent: 'auto', or how much agents differ, κ ≥ 0."),
    ] = None,
    control: Annotated[
        float, typer.Option(help="Share of decisions that the application's own default makes, to measure the gain.")
    ] = 0.0,
    drift: Annotated[
        str | None,
        typer.Option(help="A world that changes: restart:R with the noise scale, or discount:H with the horizon."),
    ] = None,
    max_silence_rounds: Annotated[
        int | None, typer.Option(help="Most own rounds of an agent without an exchange (default: no limit).")
    ] = None,
    max_silence_s: Annotated[
        float | None, typer.Option(help="Most seconds that observations stay unsent (default: no limit).")
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
            help="Names of disjoint arms, a,b,c: one block of columns each, dim/arms wide. With --warm-start and a log "
            "with arms: their order (default: sorted by name)."
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(help="How agents decide: 'ucb', 'inverse-gap' or 'thompson'."),
    ] = "ucb",
    explore: Annotated[float, typer.Option(help="Share of decisions that are uniformly random, 0 to 1.")] = 0.0,
    gamma: Annotated[str, typer.Option(help="Sharpness of 'inverse-gap': a number, or 'auto' for √(n K/d).")] = "auto",
    propensity_samples: Annotated[
        int, typer.Option(help="Draws for the probability of a 'thompson' decision; 0: it tells none.")
    ] = 100,
    policy_seed: Annotated[int, typer.Option(help="Seed of the policy's random numbers.")] = 0,
    blocks: Annotated[
        int | None,
        typer.Option(
            help="Disjoint arms K without names: every row lies in one of K blocks of dim/K columns. With --warm-start "
            "and a log with arms it is their number; 1 makes a dense model."
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
        "control": control,
        "features": names_in(features),
        "personal": personal,
        "drift": None if drift is None else drifts.to_dict(drifts.read(drift)),
        "max_silence_rounds": max_silence_rounds,
        "max_silence_s": max_silence_s,
    }
    chosen = PolicyChoice(policy, explore, as_gamma(gamma), propensity_samples, policy_seed)
    body |= chosen.to_dict()  # a server that knows no policies takes a model without one
    body |= radius_values(
        radius,
        beta,
        action_bound,
        n_agents=n_agents,
        n_rounds=n_rounds,
        noise_scale=noise_scale,
        theta_bound=theta_bound,
        delta=delta,
    ) or {"beta": 1.0}
    caller = AdminClient(url, token, ca_cert)
    if warm_start is not None:
        body["blocks"] = blocks
        upload, notes = read_history(warm_start, body, arms=names_in(arms))
        for note in notes:
            typer.echo(note, err=True)
        _print_model(create_with_history(caller, body, upload), as_json)
        return
    body["arms"], body["blocks"] = names_in(arms), blocks
    if dim is None:
        raise typer.BadParameter("give --dim, or --warm-start with a log")
    _print_model(caller.call("POST", "models", body=body), as_json)


def radius_values(
    kind: str | None, beta: float | None, action_bound: float | None, **assumed: float | None
) -> dict[str, Any]:
    """`radius` or `beta` of a request; empty if neither was given."""
    numbers = {key: value for key, value in assumed.items() if value is not None}
    if kind is not None:
        more = {"beta": beta, "action_bound": action_bound if kind == "paper" else None}
        return {"radius": {"kind": kind, **numbers, **{key: value for key, value in more.items() if value is not None}}}
    if numbers:
        options = ", ".join("--" + key.replace("_", "-") for key in numbers)
        raise typer.BadParameter(f"{options}: only used with --radius; give one, one of {', '.join(KINDS)}")
    return {} if beta is None else {"beta": beta}


@app.command("set")
def set_model(
    name: Name,
    alpha: Annotated[float | None, typer.Option(help="Determinant growth that triggers an exchange.")] = None,
    beta: Annotated[float | None, typer.Option(help="Confidence radius β as a number.")] = None,
    radius: Annotated[str | None, typer.Option(help=f"β by its kind: {', '.join(KINDS)}.")] = None,
    n_agents: Annotated[int | None, typer.Option(help="Radius: agents M, or a bound on them.")] = None,
    n_rounds: Annotated[int | None, typer.Option(help="Radius: rounds T over all agents.")] = None,
    noise_scale: Annotated[float | None, typer.Option(help="Radius: noise scale R.")] = None,
    theta_bound: Annotated[float | None, typer.Option(help="Radius: S ≥ ‖θ*‖.")] = None,
    delta: Annotated[float | None, typer.Option(help="Radius: failure probability δ.")] = None,
    action_bound: Annotated[str | None, typer.Option(help="L ≥ ‖x‖ of uploads from now on, or 'none'.")] = None,
    reward_bound: Annotated[str | None, typer.Option(help="Largest |r| of uploads from now on, or 'none'.")] = None,
    max_rate: Annotated[str | None, typer.Option(help="Observations per second of one agent, or 'none'.")] = None,
    max_share: Annotated[str | None, typer.Option(help="Largest share of the information, or 'none'.")] = None,
    policy: Annotated[str | None, typer.Option(help="ucb, inverse-gap or thompson.")] = None,
    explore: Annotated[float | None, typer.Option(help="Probability of an action at random.")] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Change settings that leave the sums valid. Agents take them up without a restart."""
    given = {"action_bound": action_bound, "reward_bound": reward_bound, "max_rate": max_rate, "max_share": max_share}
    limits = {key: _limit(key, text) for key, text in given.items() if text is not None}
    assumed = {"n_agents": n_agents, "n_rounds": n_rounds, "noise_scale": noise_scale, "theta_bound": theta_bound}
    body = limits | radius_values(radius, beta, limits.get("action_bound"), **assumed, delta=delta)
    others = {"alpha": alpha, "policy": policy, "explore": explore}
    body |= {key: value for key, value in others.items() if value is not None}
    if not body:
        raise typer.BadParameter("give at least one setting to change")
    _print_model(AdminClient(url, token, ca_cert).call("PATCH", "models", name, body=body), as_json)


def _limit(name: str, text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        option = "--" + name.replace("_", "-")
        raise typer.BadParameter(f"expected {option} as a number or 'none', got {text!r}") from None


@app.command()
def widen(
    name: Name,
    arms: Annotated[str, typer.Option(help="Names of the arms to add: d,e.")],
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Add arms to a model that has named arms. They begin at the prior; nothing that was learnt is lost.

    Running agents go on with the arms that they know, keep what they observe, and take the new arms up when they
    connect again.
    """
    body = {"arms": names_in(arms)}
    _print_model(AdminClient(url, token, ca_cert).call("POST", "models", name, "arms", body=body), as_json)


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
    """Show a model's settings and totals, the checks of its assumptions, and the largest shares of information."""
    caller = AdminClient(url, token, ca_cert)
    model = caller.call("GET", "models", name)
    if "agent" not in model:  # an agent's token may read its model, but not the shares of others
        model["insight"] = caller.call("GET", "models", name, "insight")
    _print_model(model, as_json)


@app.command()
def gain(
    name: Name,
    level: Annotated[float, typer.Option(help="Probability that any of all intervals misses the gain.")] = LEVEL,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Show the gain over control, for a model with --control; its interval may be looked at at any time."""
    found = AdminClient(url, token, ca_cert).call("GET", "models", name, "gain", query={"level": level})
    if as_json:
        print_json(found)
        return
    typer.echo(found["words"])
    for key in IN_A_GAIN:
        typer.echo(f"{key:16} {shown(found[key])}")


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


@app.command("import")
def import_model(
    file: Annotated[Path, typer.Argument(help="A file that `models export` wrote, by any server.")],
    name: Annotated[str | None, typer.Option(help="Name of the new model (default: the exported one's).")] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Create a model from an exported file; its sums become the contribution of an agent named "imported"."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from None
    settings, upload = read_export(content)
    wanted = settings if name is None else replace(settings, name=name)
    _print_model(create_from(AdminClient(url, token, ca_cert), wanted, upload), as_json)


@app.command()
def copy(
    name: Name,
    new: Annotated[str, typer.Argument(help="Name of the copy.")],
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Copy a model under another name, without its agents: their sums become those of an agent named "imported"."""
    caller = AdminClient(url, token, ca_cert)
    content = caller.fetch("GET", "models", name, "export", timeout_s=EXPORT_TIMEOUT_S)
    settings, upload = read_export(content)
    _print_model(create_from(caller, replace(settings, name=new), upload), as_json)


@app.command()
def restart(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Restart a model at its prior, because the world has changed; agents, tokens and counts stay."""
    if not yes:
        typer.confirm(f"Restart model {name} without what it has learnt?", abort=True)
    _print_model(AdminClient(url, token, ca_cert).call("POST", "models", name, "restart"), as_json)


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
        lines += [("check", _check_words(it)) for it in insight["checks"]]
        lines += [("share", f"{it['agent']} {it['share']:.1%}") for it in insight["largest_shares"]]
        lines.append(("share", f"the prior {insight['prior_share']:.1%}"))
    for key, text in lines:
        typer.echo(f"{key:16} {text}")


def _check_words(check: dict[str, Any]) -> str:
    advice = f"; {check['advice']}" if check["advice"] else ""
    return f"{check['state']:12} {check['assumption']}: {check['evidence']}{advice}"
