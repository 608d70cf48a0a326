"""`fedbandit advise LOG`: is sharing worth it for this fleet?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedbandit.errors import MissingExtra

if TYPE_CHECKING:
    from fedbandit.experiments.advise import Advice


def advise(
    log: Annotated[Path, typer.Argument(help="csv or parquet, one line a decision; see docs/real-data.md.")],
    out: Annotated[Path, typer.Option(help="Where the page goes.")] = Path("advice.html"),
    agent: Annotated[str, typer.Option(help="Column: who decided.")] = "agent",
    reward: Annotated[str, typer.Option(help="Column: what it paid.")] = "reward",
    action: Annotated[str, typer.Option(help="Column, if there: which arm was taken.")] = "action",
    decision: Annotated[str, typer.Option(help="Column, if there: lines of one decision set.")] = "decision",
    propensity: Annotated[str, typer.Option(help="Column, if there: how probable the choice was.")] = "propensity",
    feature: Annotated[
        list[str] | None, typer.Option(help="Column that is a feature; all other numeric columns when left out.")
    ] = None,
    messages: Annotated[int | None, typer.Option(help="A budget: the best α with at most so many messages.")] = None,
    beta: Annotated[float | None, typer.Option(help="Confidence radius; 1.5 times the noise when left out.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Decisions to simulate; as many as logged, up to 20 000.")] = None,
    seeds: Annotated[int, typer.Option(help="Simulated runs of each way to learn.")] = 5,
    seed: Annotated[int, typer.Option(help="The first seed; the same seed gives the same page.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the facts as JSON.")] = False,
) -> None:
    """Read a log and say whether its agents should learn together, who does not belong, and which α to take."""
    try:
        from fedbandit.experiments.advise import advise as judge
        from fedbandit.experiments.advise_page import headline, render
        from fedbandit.experiments.advise_world import ALPHAS
        from fedbandit.experiments.logged import read_log
        from fedbandit.experiments.store import write_whole
    except ImportError as error:
        raise MissingExtra(f"advice needs the lab extra: pip install 'fedbandit[lab]' ({error})") from error
    data = read_log(
        log,
        agent=agent,
        reward=reward,
        action=action,
        decision=decision,
        propensity=propensity,
        features=feature,
    )
    with _progress((len(ALPHAS) + 2) * seeds, quiet=as_json) as advance:
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
        "beta": outlook.beta,
        "lam": outlook.lam,
        "gain": [advice.choice.gain.mean, advice.choice.gain.low, advice.choice.gain.high],
        "p_value": advice.test.p_value,
        "power_at_break_even": advice.test.power_at_break_even,
        "spread": advice.spread,
        "break_even": advice.break_even,
        "outliers": list(advice.stranger_names),
        "curved": advice.curved.is_bent,
        "alphas": [
            {"alpha": o.alpha, "reward": o.reward.mean, "gain": o.gain.mean, "messages": o.messages}
            for o in outlook.federated
        ],
        "alone": outlook.alone.reward.mean,
        "shared": outlook.shared.reward.mean,
    }


def _print(title: str, advice: Advice, out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedbandit.experiments.advise_page import table_of
    from fedbandit.experiments.summary import Interval
    from fedbandit.experiments.tables import around, number

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
    console.print(f"\nThe whole story with figures: {out}")


def _progress(total: int, *, quiet: bool) -> Any:
    from contextlib import contextmanager

    @contextmanager
    def bar() -> Any:
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), disable=quiet, transient=True) as progress:
            task = progress.add_task("simulating", total=total)
            yield lambda: progress.advance(task)

    return bar()
