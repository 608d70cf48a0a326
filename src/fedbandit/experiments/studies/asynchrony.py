"""What skew, bursts, outages and episodes cost, and who needs everybody to be there."""

from __future__ import annotations

from matplotlib.axes import Axes

from fedbandit.algorithms.base import Rule
from fedbandit.experiments.baselines import alone, asynchronous, fed, shared, synchronous
from fedbandit.experiments.claims import ABOVE, side
from fedbandit.experiments.compare import Interval, interval, ratio
from fedbandit.experiments.output.figures import legend, log_scale, panels, short, style_of
from fedbandit.experiments.output.tables import Table, number, span
from fedbandit.experiments.results import Cell, Group, Results
from fedbandit.experiments.sharing_cost import baseline_note
from fedbandit.experiments.spec import SIMULATE, make_spec
from fedbandit.experiments.study import Size, Study, StudyAnswer
from fedbandit.simulation.participation import Bursts, Even, Outages, Participation, RandomEpisodes, Zipf
from fedbandit.simulation.worlds import Uniform

DIM, BETA = 15, 0.5
REACHED, WAITING = "everybody can be reached", "only the active can be reached"
FEDERATED = ("FedLinUCB", "FedLinUCB, join + arrival", "Async-LinUCB", "DisLinUCB")


def _patterns(n_rounds: int) -> dict[str, Participation]:
    return {
        "even": Even(),
        "Zipf skew": Zipf(exponent=1.0),
        "strong Zipf skew": Zipf(exponent=2.0),
        "sessions of 50": Bursts(length=50.0),
        "half offline at a time": Outages(fraction=0.5, length=max(1, n_rounds // 10)),
        "episodes, half join": RandomEpisodes(probability=0.5),
    }


def _rule(system: str) -> Rule:
    if system.startswith("FedLinUCB"):
        return fed(dim=DIM, beta=BETA, alpha=1.0, options="join" in system)
    if system == "Async-LinUCB":
        return asynchronous(dim=DIM, beta=BETA, gamma=6.0)
    if system == "DisLinUCB":
        return synchronous(dim=DIM, beta=BETA, threshold=20.0)
    return shared(dim=DIM, beta=BETA) if system == "OFUL shared" else alone(dim=DIM, beta=BETA)


def plan(size: Size) -> list[Cell]:
    """Every pattern, with a server that reaches everybody and with one that reaches only who is active."""
    n_agents, n_rounds = size.pick(tiny=(5, 500), quick=(30, 3_000), full=(30, 30_000))
    seeds = size.seeds(quick=3, full=6)
    kept = size.pick(tiny=2, quick=6, full=6)
    cells = []
    for pattern, participation in list(_patterns(n_rounds).items())[:kept]:
        for system in (*FEDERATED, "OFUL shared", "OFUL independent"):
            for reach in (REACHED, WAITING):
                if reach == WAITING and system not in FEDERATED:
                    continue
                driver = dict(SIMULATE) if reach == REACHED else {"name": "unreliable-network", "reach": "active"}
                spec = make_spec(
                    _rule(system),
                    Uniform(dim=DIM),
                    n_agents=n_agents,
                    n_rounds=n_rounds,
                    participation=participation,
                    driver=driver,
                )
                cells.append(Cell({"pattern": pattern, "system": system, "reach": reach}, spec, seeds))
    return cells


def analyse(results: Results) -> StudyAnswer:
    """Regret by pattern and system, reachable and not."""
    figure, (left, right) = panels(1, 2, width=12.5, height=5.2, sharey=True)
    patterns = results.each("pattern")
    systems = results.each("system")
    for row, pattern in enumerate(patterns):
        for k, system in enumerate(systems):
            height = row + (k - (len(systems) - 1) / 2) * 0.13
            _dumbbell(left, results, pattern, system, height)
            _contacts(right, results, pattern, system, height)
    left.set_yticks(range(len(patterns)), patterns)
    left.set_ylim(len(patterns) - 0.5, -0.5)
    left.set(
        title="Regret: filled if all can be reached, hollow if only the active",
        xlabel="regret at the end",
        xscale="log",
    )
    right.set(title="How often the server needs an agent that is not active", xlabel="letters to inactive agents")
    right.set_xscale("symlog", linthresh=10)
    right.xaxis.set_major_formatter(lambda value, _: short(value))
    log_scale(left, "x")
    legend(figure, {system: style_of(system) for system in systems}, n_columns=3)
    spec = results.groups[0].spec
    caption = (
        f"M = {spec.n_agents}, T = {spec.n_rounds:,}, uniform world, d = {DIM}; FedLinUCB α = 1, Async-LinUCB γ = 6, "
        "DisLinUCB D = 20. Bars are 95 % intervals. Hollow: what the server sends waits until its addressee is active "
        "again."
    )
    notes = [*_notes(), baseline_note([group.sharing_cost for group in results])]
    return StudyAnswer(_sentence(results), figure, caption, [_table(results)], notes)


def _dumbbell(axis: Axes, results: Results, pattern: str, system: str, height: float) -> None:
    look = style_of(system)
    for group in results.where(pattern=pattern, system=system):
        mean = group.mean("regret")
        hollow = group["reach"] == WAITING
        error = [[mean.mean - mean.low], [mean.high - mean.mean]] if len(group.runs) > 2 else None
        axis.errorbar(
            mean.mean,
            height,
            xerr=error,
            marker=look.marker,
            color=look.colour,
            mfc="none" if hollow else look.colour,
            ms=8 if hollow else 4.5,
            elinewidth=0.9,
            linestyle="none",
        )


def _contacts(axis: Axes, results: Results, pattern: str, system: str, height: float) -> None:
    for group in results.where(pattern=pattern, system=system, reach=WAITING):
        look = style_of(system)
        value = interval(list(group.fact("for_others").values())).mean
        axis.barh(height, value, height=0.11, color=look.colour)
        axis.annotate(
            number(value), (value, height), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7
        )


def _table(results: Results) -> Table:
    rows = []
    for group in results.where(reach=REACHED):
        even = results.one(pattern="even", system=group["system"], reach=REACHED)
        offline = results.where(pattern=group["pattern"], system=group["system"], reach=WAITING)
        rows.append([*_row(group, even), *_offline(offline[0] if offline else None, group)])
    columns = ["participation", "system", "regret", "times even", "messages", "if only the active can be reached"]
    columns += ["times reached", "letters to inactive agents"]
    return Table("The cost of asynchrony", columns, rows)


def _row(group: Group, even: Group) -> list[object]:
    times = ratio(group.at("regret"), even.at("regret"))
    return [group["pattern"], group["system"], group.mean("regret"), span(times), group.mean("messages")]


def _offline(group: Group | None, reached: Group) -> list[object]:
    if group is None:
        return [None, None, None]
    times = ratio(group.at("regret"), reached.at("regret"))
    return [group.mean("regret"), span(times), interval(list(group.fact("for_others").values()))]


def _sentence(results: Results) -> str:
    skew = {system: max(_times_even(results, system), key=lambda r: r.mean) for system in FEDERATED}
    worst = {system: max(_times_reached(results, system), key=lambda pair: pair[0].mean) for system in FEDERATED}
    letters = {system: _letters(results, system) for system in FEDERATED}
    return (
        f"With a server that reaches everybody {_says_skew(results)} the regret of even participation (largest "
        f"{span(skew['FedLinUCB'])} times for FedLinUCB, {span(skew['Async-LinUCB'])} for Async-LinUCB and "
        f"{span(skew['DisLinUCB'])} for DisLinUCB). If only active agents can be reached, FedLinUCB's regret is "
        f"{span(worst['FedLinUCB'][0])} times as large at worst and it sends {number(letters['FedLinUCB'])} letters to "
        f"inactive agents; DisLinUCB waits for the last agent before anybody learns, at worst "
        f"{span(worst['DisLinUCB'][0])} times the regret ({worst['DisLinUCB'][1]}), with "
        f"{number(letters['DisLinUCB'])} such letters per run; Async-LinUCB needs {number(letters['Async-LinUCB'])}."
    )


def _says_skew(results: Results) -> str:
    times = [each for system in FEDERATED for each in _times_even(results, system)]
    n_shown = sum(side(each, 1.0) == ABOVE for each in times)
    verb = "is" if n_shown < 2 else "are"
    return f"{n_shown or 'none'} of {len(times)} combinations of system and pattern {verb} shown to raise"


def _times_even(results: Results, system: str) -> list[Interval]:
    even = results.one(pattern="even", system=system, reach=REACHED)
    groups = [group for group in results.where(system=system, reach=REACHED) if group["pattern"] != "even"]
    return [ratio(group.at("regret"), even.at("regret")) for group in groups]


def _times_reached(results: Results, system: str) -> list[tuple[Interval, str]]:
    found = []
    for group in results.where(system=system, reach=WAITING):
        reached = results.one(pattern=group["pattern"], system=system, reach=REACHED)
        found.append((ratio(group.at("regret"), reached.at("regret")), str(group["pattern"])))
    return found


def _letters(results: Results, system: str) -> float:
    groups = results.where(system=system, reach=WAITING)
    return interval([value for group in groups for value in group.fact("for_others").values()]).mean


def _notes() -> list[str]:
    return [
        "A pushed model that waits in the mailbox is read before the agent's next action, so waiting costs "
        "Async-LinUCB little in regret: what it needs is a server that can write to agents which are not there.",
        "DisLinUCB's server must hear from every agent before anybody gets a new model.",
    ]


STUDY = Study("asynchrony", "What do skew, bursts, outages and episodes cost, and who needs everybody?", plan, analyse)
