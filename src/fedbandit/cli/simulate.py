"""`fedbandit simulate`: one world, some algorithms, some seeds."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer

import fedbandit as fb
from fedbandit.algorithms.catalog import ALGORITHMS
from fedbandit.cli.algorithm_options import make_rules, offer_options
from fedbandit.cli.files import check_directory
from fedbandit.core.arrays import at_least, whole_at_least
from fedbandit.core.radius import AnyRadius
from fedbandit.errors import InvalidParameter
from fedbandit.registry import RunSizes
from fedbandit.simulation.datasets.catalog import EVERY, DataWorld
from fedbandit.simulation.participation import PARTICIPATION, ByRows, as_pattern
from fedbandit.simulation.worlds import World

COUNTS = ("messages", "messages_up", "messages_down", "scalars", "bytes", "switches")
COLUMNS = ("regret", *COUNTS, "seconds", "raw_bytes", "cheaper_from_round")


def simulate(
    algorithm: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of {', '.join(ALGORITHMS.own_names)}, or one that an installed package registers; may be given "
            "several times; fedlinucb when left out."
        ),
    ] = None,
    world: Annotated[
        str, typer.Option(help=f"One of {', '.join(EVERY.own_names)}, or one that an installed package registers.")
    ] = "uniform",
    agents: Annotated[int, typer.Option(help="Number of agents M.")] = 15,
    rounds: Annotated[int, typer.Option(help="Rounds T, over all agents together.")] = 30_000,
    beta: Annotated[
        str,
        typer.Option(help="Confidence radius β: a number, or exogenous, adaptive, paper, counted."),
    ] = "0.5",
    delta: Annotated[float, typer.Option(help="Failure probability δ of a radius given by name.")] = 0.1,
    lam: Annotated[float, typer.Option(help="Ridge λ.")] = 1.0,
    dim: Annotated[int | None, typer.Option(help="Number of features d (default: the world's own).")] = None,
    actions: Annotated[int | None, typer.Option(help="Actions K in a decision set.")] = None,
    noise: Annotated[float | None, typer.Option(help="Standard deviation of the noise.")] = None,
    participation: Annotated[
        str | None,
        typer.Option(
            help=f"Participation pattern: {', '.join(PARTICIPATION.own_names)}; {ByRows.name}, which plays each row of "
            "data once; or a pattern that an installed package registers. Default: uniform; steps for "
            "synchronous algorithms."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Run the seeds 0 to N−1.")] = 1,
    engine: Annotated[str, typer.Option(help="'auto', 'reference' or 'compiled'.")] = "auto",
    save: Annotated[
        Path | None,
        typer.Option(help="Write each trace to this directory as .npz, named by a hash of all settings."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list with one object per seed.")] = False,
    **options: Any,
) -> None:
    """Run algorithms in a world and print regret, communication and switches."""
    agents, rounds = whole_at_least(agents, 1, "agents"), whole_at_least(rounds, 1, "rounds")
    place = make_world(world, dim=dim, n_actions=actions, noise=noise, n_agents=agents)
    agents = place.fleet_size if isinstance(place, DataWorld) else agents
    pattern = None if participation is None else as_pattern(participation, place)
    if not 0 < at_least(delta, 0.0, "delta") < 1:
        raise InvalidParameter(f"expected delta between 0 and 1, got {delta}")
    if save is not None:
        check_directory(save, "--save")
    sizes = RunSizes(place.dim, agents, rounds, getattr(place, "noise", 0.0), delta, getattr(place, "n_actions", 0))
    radius = make_radius(beta, noise=sizes.noise, agents=agents, rounds=rounds, delta=delta)
    rules = make_rules(algorithm or ["fedlinucb"], sizes, {"beta": radius, "lam": lam}, options)
    if seeds < 1:
        raise InvalidParameter(f"expected seeds ≥ 1, got {seeds}")
    results = []
    with _progress(len(rules) * seeds * rounds, quiet=as_json) as advance:
        for name, rule in rules.items():
            for seed in range(seeds):
                started = time.perf_counter()
                trace = fb.simulate(
                    rule,
                    place,
                    n_agents=agents,
                    n_rounds=rounds,
                    seed=seed,
                    participation=pattern,
                    engine=engine,
                    progress=advance,
                )
                results.append(
                    _row(name, seed, trace, time.perf_counter() - started) | _raw(rule, place, trace, agents)
                )
                if save is not None:
                    save.mkdir(parents=True, exist_ok=True)
                    trace.save(save / f"{name}-{world}-seed{seed}-{trace.id}.npz")
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        spread = ", mean ± standard deviation between seeds" if seeds > 1 else ""
        _print_table(results, title=f"{world} world, d={place.dim}, M={agents}, T={rounds:,}, {seeds} seed(s){spread}")


offer_options(simulate, ALGORITHMS.own().values())


def make_world(
    name: str,
    *,
    dim: int | None = None,
    n_actions: int | None = None,
    noise: float | None = None,
    n_agents: int | None = None,
) -> World:
    """The world of this name with the given options; an option that the world does not have is an error."""
    constructor = EVERY.find(name)
    known = inspect.signature(constructor).parameters
    given = {"dim": dim, "n_actions": n_actions, "noise": noise}
    numbers = {key: value for key, value in given.items() if value is not None}
    unknown = numbers.keys() - known.keys()
    if unknown:
        raise InvalidParameter(f"the {name} world has no {', '.join(sorted(unknown))}")
    if "n_agents" in known and n_agents is not None:  # data that can be split over any number of agents
        numbers["n_agents"] = n_agents
    place: World = constructor(**numbers)
    return place


def make_radius(text: str, *, noise: float, agents: int, rounds: int, delta: float) -> float | AnyRadius:
    """β from the command line: a number, or the radius of this name with S = L = 1."""
    try:
        return float(text)
    except ValueError:
        pass
    makers: dict[str, Callable[[], AnyRadius]] = {
        "exogenous": lambda: fb.radius.exogenous(noise_scale=noise, delta=delta),
        "adaptive": lambda: fb.radius.adaptive(n_agents=agents, n_rounds=rounds, noise_scale=noise, delta=delta),
        "paper": lambda: fb.radius.paper(n_agents=agents, n_rounds=rounds, noise_scale=noise, delta=delta),
        "counted": lambda: fb.radius.counted(noise_scale=noise, delta=delta),
    }
    if text not in makers:
        raise InvalidParameter(f"expected beta as a number, or one of {', '.join(makers)}, got {text!r}")
    return makers[text]()


def _row(name: str, seed: int, trace: fb.Trace, seconds: float) -> dict[str, Any]:
    return {
        "algorithm": name,
        "seed": seed,
        "regret": float(trace.regret[-1]),
        "messages": trace.n_messages,
        "messages_up": int(trace.messages_up[-1]),
        "messages_down": int(trace.messages_down[-1]),
        "scalars": trace.n_scalars,
        "bytes": trace.n_bytes,
        "switches": trace.n_switches,
        "seconds": round(seconds, 4),
    }


def _raw(rule: Any, place: World, trace: fb.Trace, n_agents: int) -> dict[str, Any]:
    """Bytes of the raw rows, and the rounds from which FedLinUCB's sums are fewer; None where that is not known."""
    from fedbandit.experiments.sharing_cost import SharingCost

    size = {"n_agents": n_agents, "n_rounds": int(trace.rounds[-1]), "dim": place.dim}
    rows = SharingCost(**size, row_numbers=getattr(place, "row_numbers", None), blocks=getattr(rule, "blocks", 1))
    is_triggered = isinstance(rule, fb.FedLinUCB) and rule.alpha > 0.0 and trace.n_bytes > 0
    until = int(rows.rounds_until_cheaper(trace.n_bytes)) if is_triggered else None
    return {"raw_bytes": rows.raw_bytes, "cheaper_from_round": until}


class _progress:  # noqa: N801 - used like a function
    """A progress bar over rounds on standard error; nothing when quiet."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("simulating"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=quiet,
            transient=True,
        )
        self.task = self.bar.add_task("rounds", total=total)

    def __enter__(self) -> Any:
        self.bar.start()
        return lambda n: self.bar.advance(self.task, n)

    def __exit__(self, *_: object) -> None:
        self.bar.stop()


def _print_table(results: list[dict[str, Any]], *, title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("algorithm", no_wrap=True)
    for heading in ("regret", "messages", "bytes", "switches", "seconds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name in dict.fromkeys(row["algorithm"] for row in results):
        rows = [row for row in results if row["algorithm"] == name]
        table.add_row(
            name,
            _spread([row["regret"] for row in rows], 1),
            _spread([row["messages"] for row in rows], 0),
            _human(fmean(row["bytes"] for row in rows)),
            f"{fmean(row['switches'] for row in rows):,.0f}",
            f"{fmean(row['seconds'] for row in rows):.2f}",
        )
    Console().print(table)
    raw = _human(results[0]["raw_bytes"])
    Console().print(f"raw rows (features or context, and reward), each sent once: {raw}", highlight=False)
    for name in dict.fromkeys(row["algorithm"] for row in results):
        until = [row["cheaper_from_round"] for row in results if row["algorithm"] == name and row["cheaper_from_round"]]
        if until:
            Console().print(
                f"{name}: sums are fewer bytes than rows from about round {fmean(until):,.0f} on", highlight=False
            )


def _spread(values: list[float], digits: int) -> str:
    """Mean, and the standard deviation between seeds where there are several."""
    text = f"{fmean(values):,.{digits}f}"
    return f"{text} ± {stdev(values):,.{digits}f}" if len(values) > 1 else text


def _human(n_bytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"
