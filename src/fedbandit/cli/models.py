"""`fedbandit models`: create, set, widen, list, show, export, restart, delete."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fedbandit.algorithms.policies import as_gamma
from fedbandit.cli import model_options as options
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
from fedbandit.core.gain import LEVEL
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
    alpha: options.Alpha = 1.0,
    beta: options.Beta = None,
    radius: options.RadiusKind = None,
    n_agents: options.NAgents = None,
    n_rounds: options.NRounds = None,
    noise_scale: options.NoiseScale = None,
    theta_bound: options.ThetaBound = None,
    delta: options.Delta = None,
    action_bound: options.ActionBound = None,
    reward_bound: options.RewardBound = None,
    max_rate: options.MaxRate = None,
    max_share: options.MaxShare = None,
    personal: Annotated[
        str | None,
        typer.Option(help="A parameter of its own for each agent: 'auto', or how much agents differ, κ ≥ 0."),
    ] = None,
    control: Annotated[
        float, typer.Option(help="Share of decisions that the application's own default makes, to measure the gain.")
    ] = 0.0,
    drift: options.Drift = None,
    max_silence_rounds: options.MaxSilenceRounds = None,
    max_silence_s: options.MaxSilenceS = None,
    notes: options.Notes = None,
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
    policy: options.Policy = "ucb",
    explore: options.Explore = 0.0,
    gamma: options.Gamma = "auto",
    propensity_samples: options.PropensitySamples = 100,
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
    """Create a model at its prior. Agents receive its settings when they connect. Without --radius, β is 1."""
    limits = options.limits_of(
        action_bound=action_bound,
        reward_bound=reward_bound,
        max_rate=max_rate,
        max_share=max_share,
        max_silence_rounds=max_silence_rounds,
        max_silence_s=max_silence_s,
    )
    body: dict[str, Any] = {
        "name": name,
        "dim": dim,
        "lam": lam,
        "alpha": alpha,
        **limits,
        "control": control,
        "features": options.names_in(features),
        "personal": personal,
        **options.drift_of(drift),
        **({} if notes is None else {"notes": notes}),
    }
    decides = str(policy), explore or 0.0, as_gamma(str(gamma)), propensity_samples or 0
    body |= PolicyChoice(*decides, policy_seed).to_dict()  # a server that knows no policies takes a model without one
    body |= options.radius_values(
        radius,
        beta,
        limits.get("action_bound"),
        n_agents=n_agents,
        n_rounds=n_rounds,
        noise_scale=noise_scale,
        theta_bound=theta_bound,
        delta=delta,
    ) or {"beta": 1.0}
    caller = AdminClient(url, token, ca_cert)
    if warm_start is not None:
        body["blocks"] = blocks
        upload, remarks = read_history(warm_start, body, arms=options.names_in(arms))
        for note in remarks:
            typer.echo(note, err=True)
        _print_model(create_with_history(caller, body, upload), as_json)
        return
    body["arms"], body["blocks"] = options.names_in(arms), blocks
    if dim is None:
        raise typer.BadParameter("give --dim, or --warm-start with a log")
    _print_model(caller.call("POST", "models", body=body), as_json)


@app.command("set")
def set_model(
    name: Name,
    alpha: options.Alpha = None,
    beta: options.Beta = None,
    radius: options.RadiusKind = None,
    n_agents: options.NAgents = None,
    n_rounds: options.NRounds = None,
    noise_scale: options.NoiseScale = None,
    theta_bound: options.ThetaBound = None,
    delta: options.Delta = None,
    action_bound: options.ActionBound = None,
    reward_bound: options.RewardBound = None,
    max_rate: options.MaxRate = None,
    max_share: options.MaxShare = None,
    policy: options.Policy = None,
    explore: options.Explore = None,
    gamma: options.Gamma = None,
    propensity_samples: options.PropensitySamples = None,
    drift: options.Drift = None,
    max_silence_rounds: options.MaxSilenceRounds = None,
    max_silence_s: options.MaxSilenceS = None,
    notes: options.Notes = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Change settings that leave the sums valid. Agents take them up without a restart."""
    limits = options.limits_of(
        action_bound=action_bound,
        reward_bound=reward_bound,
        max_rate=max_rate,
        max_share=max_share,
        max_silence_rounds=max_silence_rounds,
        max_silence_s=max_silence_s,
    )
    assumed = {"n_agents": n_agents, "n_rounds": n_rounds, "noise_scale": noise_scale, "theta_bound": theta_bound}
    body = limits | options.radius_values(radius, beta, limits.get("action_bound"), **assumed, delta=delta)
    others = {
        "alpha": alpha,
        "policy": policy,
        "explore": explore,
        "gamma": None if gamma is None else as_gamma(gamma),
        "propensity_samples": propensity_samples,
        "notes": notes,
    }
    body |= options.drift_of(drift) | {key: value for key, value in others.items() if value is not None}
    if not body:
        raise typer.BadParameter("give at least one setting to change")
    _print_model(AdminClient(url, token, ca_cert).call("PATCH", "models", name, body=body), as_json)


@app.command()
def widen(
    name: Name,
    arms: Annotated[str | None, typer.Option(help="Names of the arms to add: d,e.")] = None,
    add_features: Annotated[
        str | None,
        typer.Option(help="Names of the features to add: d,e; or how many, if the model's features have no names."),
    ] = None,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
    token: Token = "",
    ca_cert: CaCert = None,
) -> None:
    """Add arms or features to a model. They begin at the prior; nothing that was learnt is lost.

    Running agents go on as they are, and what they observe is still merged. They take the new arms or features up when
    they connect again.
    """
    if (arms is None) == (add_features is None):
        raise typer.BadParameter("expected --arms, for a model with named arms, or --add-features: one of the two")
    caller = AdminClient(url, token, ca_cert)
    if add_features is None:
        found = caller.call("POST", "models", name, "arms", body={"arms": options.names_in(arms)})
    else:
        added = (
            int(add_features) if add_features.isdecimal() and len(add_features) < 10 else options.names_in(add_features)
        )
        found = caller.call("POST", "models", name, "features", body={"features": added})
    _print_model(found, as_json)


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
