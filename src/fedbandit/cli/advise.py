"""`fedbandit advise LOG`: whether sharing pays off for a fleet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbandit.cli.files import check_file
from fedbandit.errors import MissingExtra

if TYPE_CHECKING:
    from fedbandit.experiments.advice.advise import Advice


def advise(
    log: Annotated[Path, typer.Argument(help="CSV or Parquet with one line per decision; see docs/real-data.md.")],
    out: Annotated[Path, typer.Option(help="File for the HTML report.")] = Path("advice.html"),
    agent: Annotated[str, typer.Option(help="Column with the agent's name.")] = "agent",
    reward: Annotated[str, typer.Option(help="Column with the reward.")] = "reward",
    action: Annotated[str, typer.Option(help="Optional column with the chosen arm.")] = "action",
    decision: Annotated[
        str, typer.Option(help="Optional column that groups the lines of one decision set.")
    ] = "decision",
    propensity: Annotated[str, typer.Option(help="Optional column with the probability of the choice.")] = "propensity",
    feature: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to use as a feature; text is allowed; may be repeated (default: all other numeric "
            "columns except identifiers)."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Column to exclude from the features; may be repeated.")
    ] = None,
    messages: Annotated[int | None, typer.Option(help="Message budget: choose the best α within it.")] = None,
    beta: Annotated[
        float | None, typer.Option(help="Confidence radius (default: 1.5 times the estimated noise).")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Decisions to simulate (default: as many as logged, at most 20 000).")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Simulated runs of each configuration, at least 2.")] = 5,
    seed: Annotated[int, typer.Option(help="First seed; the same seed gives the same report.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Read a log and report whether its agents should learn together, alone or each with its own parameter."""
    try:
        from fedbandit.durable_files import write_whole
        from fedbandit.experiments.advice.advise import advise as judge
        from fedbandit.experiments.advice.fitted_world import ALPHAS
        from fedbandit.experiments.advice.log import read_log
        from fedbandit.experiments.advice.report_page import headline, render
    except ImportError as error:
        raise MissingExtra(f"advice needs the lab extra: install fedbandit[lab] ({error})") from error
    check_file(out, "--out")
    data = read_log(
        log,
        agent=agent,
        reward=reward,
        action=action,
        decision=decision,
        propensity=propensity,
        features=feature,
        ignore=ignore or (),
    )
    with _progress((2 * len(ALPHAS) + 3) * seeds, quiet=as_json) as advance:
        advice = judge(data, seed=seed, n_seeds=seeds, n_rounds=rounds, beta=beta, messages=messages, watch=advance)
    write_whole(out, render(advice, source=log.name).encode())
    if as_json:
        print(json.dumps(facts_of(advice), indent=1))
        return
    _print(headline(advice), advice, out)


def facts_of(advice: Advice) -> dict[str, Any]:
    """The advice as plain values."""
    outlook = advice.outlook
    return {
        "verdict": advice.verdict,
        "reasons": list(advice.reasons),
        "alpha": advice.choice.alpha if advice.verdict.startswith("yes") else None,
        "reaches_its_aim": advice.reaches_its_aim,
        "features": list(advice.log.feature_names),
        "arms": None if advice.log.arms is None else list(advice.log.arms),
        "blocks": advice.log.blocks,
        "bytes": advice.choice.n_bytes,
        "raw_bytes": advice.sharing_cost.raw_bytes,
        "left_out": dict(advice.log.left_out),
        "explained": advice.explained.best,
        "explains_anything": advice.explained.anything,
        "beta": outlook.beta,
        "lam": outlook.lam,
        "gain": [advice.choice.gain.mean, advice.choice.gain.low, advice.choice.gain.high],
        "p_value": advice.test.p_value,
        "power_at_break_even": advice.test.power_at_break_even,
        "spread": advice.spread,
        "break_even": advice.break_even,
        "outliers": list(advice.outlier_names),
        "curved": advice.curved.is_significant,
        "alphas": [
            {"alpha": o.alpha, "reward": o.reward.mean, "gain": o.gain.mean, "messages": o.messages, "bytes": o.n_bytes}
            for o in outlook.federated
        ],
        "personal": advice.choice.is_personal,
        "personal_alphas": [
            {"alpha": o.alpha, "reward": o.reward.mean, "gain": o.gain.mean, "messages": o.messages, "bytes": o.n_bytes}
            for o in outlook.personal
        ],
        "clusters": None if outlook.clusters is None else outlook.clusters.reward.mean,
        "alone": outlook.alone.reward.mean,
        "shared": outlook.shared.reward.mean,
    }


def _print(title: str, advice: Advice, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedbandit.experiments.advice.report_page import table_of
    from fedbandit.experiments.compare import Interval
    from fedbandit.experiments.output.tables import around, number

    console = Console()
    console.print(f"\n[bold]{title}[/bold]\n")
    for reason in advice.reasons:
        console.print(f" • {reason}", highlight=False)
    plain = table_of(advice)
    table = Table(title=f"\n{plain.title}", title_justify="left")
    for i, name in enumerate(plain.columns):
        table.add_column(name, justify="left" if i in (0, len(plain.columns) - 1) else "right")
    for row in plain.rows:
        cells = [around(v) if isinstance(v, Interval) else "–" if v is None else v for v in row]
        table.add_row(*(number(v) if isinstance(v, float) else str(v) for v in cells))
    console.print(table)
    console.print(f"\nThe full report with figures: {out}")


@contextmanager
def _progress(total: int, *, quiet: bool) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), disable=quiet, transient=True) as progress:
        task = progress.add_task("simulating", total=total)
        yield lambda: progress.advance(task)
