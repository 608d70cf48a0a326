"""`fedbandit evaluate LOG`: what another policy, model or feature set would have earned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbandit.errors import MissingExtra

if TYPE_CHECKING:
    from fedbandit.core.ridge import RidgeModel
    from fedbandit.experiments.advice.policy_comparison import Comparison
    from fedbandit.experiments.compare import Interval


def evaluate(
    log: Annotated[
        Path, typer.Argument(help="Directory of a decision log (decision_log=), a .jsonl file, CSV or Parquet.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="Policy to judge: greedy, ucb, inverse-gap, thompson or uniform; may be repeated (default: all)."
        ),
    ] = None,
    feature: Annotated[
        list[str] | None, typer.Option(help="Feature that the judged model uses; may be repeated (default: all).")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Feature that it does not use; may be repeated.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="Model to judge instead, as `fedbandit models export` writes it.")
    ] = None,
    train: Annotated[
        float | None,
        typer.Option(
            help="First part of the log, which the judged model is fitted to; the rest judges it (default: 0.5, with "
            "--model 0)."
        ),
    ] = None,
    beta: Annotated[float, typer.Option(help="Radius of ucb and thompson.")] = 1.0,
    explore: Annotated[float, typer.Option(help="Uniform share of the judged policies, 0 to 1.")] = 0.0,
    gamma: Annotated[str, typer.Option(help="Sharpness of inverse-gap: a number, or auto.")] = "auto",
    lam: Annotated[float, typer.Option(help="Ridge λ of the fitted models.")] = 1.0,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Estimate from a log with probabilities what other policies would have earned, with intervals."""
    try:
        from fedbandit.algorithms.policies import as_gamma
        from fedbandit.experiments.advice.log import read_log
        from fedbandit.experiments.advice.policy_comparison import TARGETS, TargetPolicy, compare_policies
    except ImportError as error:
        raise MissingExtra(f"evaluation needs the lab extra: install fedbandit[lab] ({error})") from error
    data = read_log(log, features=feature, ignore=ignore or ())
    targets = [TargetPolicy(name=name, beta=beta, explore=explore, gamma=as_gamma(gamma)) for name in policy or TARGETS]
    judged = None if model is None else read_model(model)
    part = train if train is not None else 0.0 if judged is not None else 0.5
    found = compare_policies(data, targets, train=part, lam=lam, model=judged, level=level)
    if as_json:
        about = {"features": list(data.feature_names), "left_out": dict(data.left_out)}
        typer.echo(json.dumps({**about, **facts_of(found)}, indent=1))
        return
    _print(found, data.left_out)


def read_model(path: Path) -> RidgeModel:
    """The model of a file that `fedbandit models export` wrote."""
    from fedbandit.core.ridge import RidgeModel
    from fedbandit.core.statistics import SufficientStats
    from fedbandit.errors import FormatError

    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError as error:
        raise MissingExtra(f"reading a model needs the server extra: install fedbandit[server] ({error})") from error
    try:
        content = load_file(path)
        return RidgeModel(SufficientStats(content["Sigma"], content["b"], int(content["n_obs"].reshape(-1)[0])))
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise FormatError(f"expected a model as `fedbandit models export` writes it, got {path}: {error}") from None


def facts_of(found: Comparison) -> dict[str, Any]:
    """The comparison as plain values."""
    return {
        "n_train": found.n_train,
        "n_test": found.n_test,
        "logged": _span(found.logged),
        "policies": [
            {
                "policy": it.policy.name,
                "ips": _span(it.estimates.ips),
                "snips": _span(it.estimates.snips),
                "dr": _span(it.estimates.dr),
                "gain": _span(it.gain),
                "n_effective": it.estimates.n_effective,
                "largest_weight": it.estimates.largest_weight,
                "is_thin": it.estimates.is_thin,
            }
            for it in found.judged
        ],
    }


def _span(span: Interval) -> list[float]:
    return [span.mean, span.low, span.high]


def _print(found: Comparison, left_out: tuple[tuple[str, str], ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedbandit.experiments.output.tables import around, number

    console = Console()
    table = Table(title=f"\nReward per decision, judged on {found.n_test} of {found.n_train + found.n_test} decisions")
    for name in ("policy", "IPS", "SNIPS", "DR", "gain (DR)", "effective n"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    table.add_row("as logged", "", "", around(found.logged), "", number(float(found.n_test)))
    for it in found.judged:
        spans = (it.estimates.ips, it.estimates.snips, it.estimates.dr, it.gain)
        mark = " (thin)" if it.estimates.is_thin else ""
        table.add_row(it.policy.name, *map(around, spans), number(round(it.estimates.n_effective)) + mark)
    console.print(table)
    console.print("IPS: inverse propensity; SNIPS: self-normalised; DR: doubly robust; gain: over what was logged")
    for what, why in left_out:
        console.print(f" • left out: {what}, {why}", highlight=False)
    if any(it.estimates.is_thin for it in found.judged):
        console.print(" • thin: too little of the log agrees with the policy to trust its intervals", highlight=False)
