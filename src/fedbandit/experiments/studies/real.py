"""Real data: the gain of sharing and its cost in messages: alone, together, personally, everything shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedbandit.algorithms.base import Rule
from fedbandit.core.arrays import Vector
from fedbandit.errors import InvalidParameter, MissingExtra
from fedbandit.experiments.baselines import (
    alone,
    asynchronous,
    clustered,
    fed,
    match_communication,
    shared,
    synchronous,
)
from fedbandit.experiments.claims import ABOVE, says_gain, says_part, side
from fedbandit.experiments.compare import Interval, difference, interval, ratio_of_means
from fedbandit.experiments.output.figures import LOOKS, band, legend, log_scale, note, panels, points, style_of
from fedbandit.experiments.output.tables import Table, number, span
from fedbandit.experiments.results import Cell, Group, Results
from fedbandit.experiments.sharing_cost import human_bytes
from fedbandit.experiments.spec import RunSpec, make_spec
from fedbandit.experiments.study import Size, Study, StudyAnswer
from fedbandit.simulation.datasets.base import DataWorld, ReferenceRewards
from fedbandit.simulation.datasets.catalog import real
from fedbandit.simulation.participation import by_rows

ALONE, EVERYTHING = "OFUL independent", "OFUL shared"
FED, HELPED, ASYNC, SYNC = "FedLinUCB", "FedLinUCB, join + arrival", "Async-LinUCB", "DisLinUCB"
PERSONAL, CLUSTERS = "FedLinUCB, personal", "CLUB"
FAMILIES = (FED, HELPED, PERSONAL, ASYNC, SYNC)
WANTED_GAIN = 0.9  # of what sharing everything gains
SHOWN_ALPHA = 1.0
EVERY_DECISION = 0.0  # the α at which every observation is sent
N_MARKS = 45
MOST_CLUSTERED = 5_000  # rows: CLUB has no kernel
PEOPLE = ("yogurt", "catsup", "crackers", "tuna", "trains", "electricity")


@dataclass(frozen=True, slots=True)
class DataSetting:
    """A data set with the numbers that all systems use there."""

    data: str
    options: Mapping[str, Any]
    beta: float
    lam: float


# β and λ are where *independent* agents do best on digits (tried: β to 0.5, λ 0.01 to 1) and on flights (β 0.3 to 1,
# λ 0.1 and 1); the two small data sets use those of digits.
SETTINGS: dict[str, DataSetting] = {
    "digits": DataSetting("digits", {"n_agents": 20}, 0.2, 0.1),
    "digits, by label": DataSetting("digits", {"n_agents": 20, "split": "labels"}, 0.2, 0.1),
    "breast cancer": DataSetting("breast_cancer", {"n_agents": 10}, 0.2, 0.1),
    "wine": DataSetting("wine", {"n_agents": 5}, 0.2, 0.1),
    "flights": DataSetting("flights", {}, 0.3, 0.1),
    **{name: DataSetting(name, {}, 0.1, 1.0) for name in PEOPLE},
}


def plan(size: Size) -> list[Cell]:
    """Every offline data set, every system over its knob; one pass over the rows, each at the agent that owns it."""
    names = size.pick(tiny=("wine", "breast cancer"), quick=tuple(SETTINGS), full=tuple(SETTINGS))
    seeds = size.seeds(quick=3, full=10)
    cells = []
    for name in names:
        setting = SETTINGS[name]
        world = real(setting.data, **setting.options)
        try:
            rules = _rules(world, setting, size)
        except MissingExtra:  # studies run without this extra; the answer says which data is missing
            continue
        marks = np.unique(np.linspace(0, world.n_rows, N_MARKS + 1).astype(int)[1:]).tolist()
        for system, knob, rule in rules:
            spec = make_spec(
                rule,
                world,
                n_agents=world.fleet_size,
                n_rounds=world.n_rows,
                participation=by_rows(world),
                record=marks,
            )
            cells.append(Cell({"data": name, "system": system, "knob": knob}, spec, seeds))
    return cells


def _rules(world: DataWorld, setting: DataSetting, size: Size) -> list[tuple[str, float, Rule]]:
    numbers: dict[str, Any] = {"dim": world.dim, "beta": setting.beta, "lam": setting.lam}
    blocks = getattr(world, "blocks", 1)  # classes have one block of columns per arm: the same choices, fewer bytes
    every = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    alphas = size.pick(tiny=(0.3, SHOWN_ALPHA), quick=(0.3, 1.0, 10.0), full=every)
    gammas = size.pick(tiny=(2.0,), quick=(10.0,), full=(1.5, 3.0, 10.0))
    shares = size.pick(tiny=(0.3,), quick=(0.1,), full=(0.03, 0.1, 0.3))
    middle = match_communication(dim=world.dim, n_rounds=world.n_rows)
    if setting.data in PEOPLE:  # one question there: one parameter for all, or one for each
        return [
            (ALONE, 0.0, alone(**numbers)),
            *((FED, a, fed(alpha=a, join=True, **numbers)) for a in alphas),
            *((PERSONAL, a, fed(alpha=a, join=True, personal="auto", **numbers)) for a in alphas),
            *_clusters(world, numbers),
            (EVERYTHING, 0.0, shared(**numbers)),
        ]
    return [
        (ALONE, 0.0, alone(**numbers)),
        *((FED, a, fed(alpha=a, blocks=blocks, **numbers)) for a in alphas),
        # α = 0 is the plain alternative: each decision uploads and downloads, two messages each.
        *((HELPED, a, fed(alpha=a, options=True, blocks=blocks, **numbers)) for a in (EVERY_DECISION, *alphas)),
        *((PERSONAL, a, fed(alpha=a, join=True, personal="auto", **numbers)) for a in alphas),
        *_clusters(world, numbers),
        *((ASYNC, g, asynchronous(gamma=g, **numbers)) for g in gammas),
        *((SYNC, s, synchronous(threshold=s * middle, **numbers)) for s in shares),
        (EVERYTHING, 0.0, shared(**numbers)),
    ]


def _clusters(world: DataWorld, numbers: dict[str, Any]) -> list[tuple[str, float, Rule]]:
    return [(CLUSTERS, 0.0, clustered(**numbers))] if world.n_rows <= MOST_CLUSTERED else []


def reward_of(group: Group) -> dict[int, float]:
    """Mean reward per round, by seed."""
    return {seed: value / group.spec.n_rounds for seed, value in group.at("reward").items()}


def mean_reward(group: Group) -> Interval:
    """Mean reward per round and its interval over seeds."""
    return interval(list(reward_of(group).values()))


def gain_share(results: Results, group: Group) -> Interval:
    """The part of the shared learner's gain over independent ones that a system reaches, paired by seed."""
    lonely, best = (reward_of(results.one(data=group["data"], system=s)) for s in (ALONE, EVERYTHING))
    ours = reward_of(group)
    seeds = sorted(ours.keys() & lonely.keys() & best.keys())
    a, b, c = (np.array([values[s] for s in seeds]) for values in (ours, lonely, best))
    if abs(float((c - b).mean())) < 1e-12:
        raise InvalidParameter(f"sharing everything gains nothing on {group['data']}: there is no part of it to reach")
    return ratio_of_means(a - b, c - b)


def gap_of(results: Results, data: str) -> Interval:
    """The gain per round of sharing everything over agents alone, paired by seed."""
    lonely, best = (reward_of(results.one(data=data, system=s)) for s in (ALONE, EVERYTHING))
    return difference(best, lonely)


def price_of(group: Group) -> str:
    """Messages and bytes of a system beside those of sharing everything in the simplest ways."""
    sent, cost, volume = group.mean("messages").mean, group.sharing_cost, group.mean("bytes").mean
    until = cost.rounds_until_cheaper(volume)
    return (
        f"{number(round(sent))} messages: {cost.of_two_per_decision(sent):.0%} of two per decision, "
        f"{cost.of_broadcast(sent):.1%} of a broadcast per round; {human_bytes(volume)} where the raw "
        f"rows are {human_bytes(cost.raw_bytes)}, and fewer than these from about {number(round(until))} rounds on"
    )


@lru_cache(maxsize=16)
def _reference_rewards(spec: RunSpec) -> ReferenceRewards:
    world = spec.make_world()
    if not isinstance(world, DataWorld):
        raise InvalidParameter(f"expected a world from data, got {world.name}")
    return world.reference_rewards


def reference_rewards_of(results: Results, data: str) -> ReferenceRewards:
    """What a random arm, the best fixed policy and the best arm would earn."""
    return _reference_rewards(results.one(data=data, system=ALONE).spec)


def analyse(results: Results) -> StudyAnswer:
    """Reward against messages for each data set."""
    places = results.each("data")
    if not places:
        raise InvalidParameter("no data set is there: install fedbandit[data]")
    n_columns = min(3, len(places))
    figure, axes = panels(-(-len(places) // n_columns), n_columns, width=12.5, height=3.1)
    for axis, data in zip(axes, places, strict=False):
        _panel(axis, results, data)
    for axis in axes[len(places) :]:
        axis.set_axis_off()
    legend(figure, {name: LOOKS[name] for name in (*FAMILIES, CLUSTERS, EVERYTHING, ALONE)}, n_columns=8)
    caption = (
        "Mean reward per round over one pass of the data against messages, with 95 % intervals over seeds, one point "
        "for each setting of a system's knob. Dashed grey: agents alone, who send nothing; black: everything shared, "
        "by a broadcast of M + 1 messages per round; vertical dots: two messages per decision. "
        "Dotted lines: a random arm and, above, the best fixed linear policy in hindsight, where they are in view."
    )
    others = {"digits": digits_picture(results)} if "digits" in places else {}
    tables = [_table(results), _better_of_two(results), _no_learning(results)]
    return StudyAnswer(_sentence(results), figure, caption, tables, _notes(), others)


def personal_lead(results: Results, data: str) -> tuple[Group, Interval]:
    """The personal fleet that earns most, and what it earns more than the better of alone and shared, by seed."""
    best = max(results.where(data=data, system=PERSONAL), key=lambda g: g.mean("reward").mean)
    rivals = [results.one(data=data, system=s) for s in (ALONE, EVERYTHING)]
    rival = max(rivals, key=lambda g: g.mean("reward").mean)
    return best, difference(reward_of(best), reward_of(rival))


def _better_of_two(results: Results) -> Table:
    """A parameter for each agent beside the better of learning alone and sharing everything."""
    rows = []
    for data in results.each("data"):
        if results.where(data=data, system=PERSONAL):
            best, lead = personal_lead(results, data)
            lonely, everything = (mean_reward(results.one(data=data, system=s)) for s in (ALONE, EVERYTHING))
            clusters = [mean_reward(g) for g in results.where(data=data, system=CLUSTERS)]
            plain = max(mean_reward(g).mean for g in results.where(data=data, system=FED))
            found = [lonely.mean, everything.mean, plain, mean_reward(best).mean, best["knob"]]
            rows.append([data, *found, clusters[0].mean if clusters else None, lead])
    columns = ["data", "alone", "all shared", "FedLinUCB, best α", "personal, best α", "that α", "CLUB"]
    columns.append("personal less the better of alone and shared")
    return Table("Agents that differ: reward per round", columns, rows)


def _panel(axis: Axes, results: Results, data: str) -> None:
    for family in (*FAMILIES, CLUSTERS):
        groups = sorted(results.where(data=data, system=family), key=lambda g: g.mean("messages").mean)
        spans = [mean_reward(g) for g in groups]
        sent = [g.mean("messages").mean for g in groups]
        kept = [i for i, x in enumerate(sent) if x > 0]
        points(axis, [sent[i] for i in kept], [spans[i] for i in kept], style_of(family))
    everything, lonely = results.one(data=data, system=EVERYTHING), results.one(data=data, system=ALONE)
    points(axis, [everything.mean("messages").mean], [mean_reward(everything)], style_of(EVERYTHING))
    look = style_of(ALONE)
    axis.axhline(mean_reward(lonely).mean, color=look.colour, linestyle=look.line)
    known = reference_rewards_of(results, data)
    low, high = axis.get_ylim()
    for value in (known.random, known.best_fixed):
        if low - 0.5 * (high - low) <= value <= high + 0.5 * (high - low):
            axis.axhline(value, color="#8a8f98", linestyle=":", linewidth=1.1)
    axis.axvline(lonely.sharing_cost.two_per_decision, color="#8a8f98", linestyle=":", linewidth=1.1)
    spec = lonely.spec
    axis.set_title(f"{data}: M={spec.n_agents}, d={spec.dim}, T={number(spec.n_rounds)}", fontsize=9)
    axis.set(xlabel="messages", ylabel="reward per round")
    log_scale(axis)


def digits_picture(results: Results) -> Figure:
    """Alone against together on handwritten digits: learning curves, and the price in messages."""
    figure, (left, right) = panels(1, 2, width=10.5, height=3.6, gridspec_kw={"width_ratios": [1.25, 1]})
    everything = results.one(data="digits", system=EVERYTHING)
    together = results.one(data="digits", system=FED, knob=SHOWN_ALPHA)
    lonely = results.one(data="digits", system=ALONE)
    cost = together.sharing_cost
    words = (
        (everything, f"all shared: {number(cost.two_per_decision)} messages, two per decision", 0.955),
        (together, f"together: {_sent(together)} messages", 0.76),
        (lonely, "each alone: no messages", 0.19),
    )
    for group, text, height in words:
        look = style_of(group["system"])
        band(left, group.rounds, [_recent(group.rounds, c) for c in group.curve("reward").values()], look)
        left.text(0.97, height, text, transform=left.transAxes, ha="right", va="center", color=look.colour)
    spec = together.spec
    left.set(title=f"Handwritten digits, read by {spec.n_agents} agents", xlabel="digits seen by the whole fleet")
    left.set(xlim=(0, spec.n_rounds), ylim=(0, 1), ylabel="read right, of the last 240")
    left.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    _price(right, results)
    return figure


def _sent(group: Group) -> str:
    return number(round(group.mean("messages").mean))


def _recent(rounds: Vector, total: Vector) -> Vector:
    """Mean reward over the last six marks, or since the start."""
    t, r = np.concatenate([[0.0], rounds]), np.concatenate([[0.0], total])
    before = np.maximum(np.arange(1, len(t)) - 6, 0)
    return np.asarray((r[1:] - r[before]) / (t[1:] - t[before]))


def _price(axis: Axes, results: Results) -> None:
    """The gain against messages per decision, with the two simple ways to share everything beside it."""
    groups = sorted(results.where(data="digits", system=FED), key=lambda g: g.mean("messages").mean)
    look, other = style_of(FED), style_of(EVERYTHING)
    cost = groups[0].sharing_cost
    x = [cost.per_decision(g.mean("messages").mean) for g in groups]
    spans = [gain_share(results, g) for g in groups]
    axis.axhline(WANTED_GAIN, color="#8a8f98", linestyle=":", linewidth=1.1)
    points(axis, x, spans, look)
    for i, (g, sent, part) in enumerate(zip(groups, x, spans, strict=True)):
        above = i % 2 == 1  # neighbours on different sides, so that labels do not overlap
        note(axis, f"α={g['knob']:g}", sent, part.high if above else part.low, look, shift=(-10, 4 if above else -11))
    every = results.one(data="digits", system=HELPED, knob=EVERY_DECISION)
    ends = (
        (cost.per_decision(every.mean("messages").mean), gain_share(results, every), "two per decision"),
        (cost.per_decision(cost.broadcast), interval([1.0, 1.0]), "broadcast"),
    )
    for at, part, text in ends:
        points(axis, [at], [part], other)
        note(axis, text, at, 1.0, other, shift=(-3 * len(text), 8))
    axis.set(title="Gain and cost", xlabel="messages per decision", ylim=(0.8, 1.05))
    axis.set_xlim(0.7 * min(x), 1.6 * ends[-1][0])
    axis.set_ylabel("gain over alone, of that of sharing all")
    log_scale(axis)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _table(results: Results) -> Table:
    rows = []
    for group in results:
        reward = mean_reward(group)
        part = None if group["system"] in (ALONE, EVERYTHING) else _part(results, group)
        knob = group["knob"] if group["system"] in FAMILIES else None
        sent, cost = group.mean("messages"), group.sharing_cost
        shares = f"{cost.of_two_per_decision(sent.mean):.1%}", f"{cost.of_broadcast(sent.mean):.2%}"
        volume = human_bytes(group.mean("bytes").mean), human_bytes(cost.raw_bytes)
        shown = None if part is None else span(part)
        rows.append([group["data"], group["system"], knob, reward, shown, sent, *shares, *volume])
    columns = ["data", "system", "α, γ or share of D", "reward per round", "part of the gain", "messages"]
    columns += ["of two per decision", "of a broadcast", "bytes", "raw rows, bytes"]
    return Table("One pass over each data set", columns, rows)


def _part(results: Results, group: Group) -> Interval | None:
    """The part of the gain of sharing everything; None where sharing everything gains nothing to be a part of."""
    return gain_share(results, group) if side(gap_of(results, group["data"]), 0.0) == ABOVE else None


def _no_learning(results: Results) -> Table:
    rows = []
    for data in results.each("data"):
        known = reference_rewards_of(results, data)
        rows.append([data, known.random, known.best_fixed, known.best])
    return Table(
        "Without learning: mean reward per round", ["data", "random arm", "best fixed policy", "best arm"], rows
    )


def _sentence(results: Results) -> str:
    return " ".join(_data_sentence(results, data) for data in results.each("data"))


def _data_sentence(results: Results, data: str) -> str:
    """What there is to gain, the cheapest FedLinUCB shown to reach nine tenths of it, and what sending all costs."""
    lonely, everything = (mean_reward(results.one(data=data, system=s)) for s in (ALONE, EVERYTHING))
    text = f"On {data}, agents alone earn {lonely.mean:.3f} per round and sharing everything {everything.mean:.3f}: "
    text += f"{says_gain(gap_of(results, data))}."
    best = shown_best(results, data)
    earned = mean_reward(best)
    text += f" FedLinUCB at α = {best['knob']:g} earns {earned.mean:.3f}"
    if side(gap_of(results, data), 0.0) == ABOVE:
        text += f" and {says_part(gain_share(results, best), WANTED_GAIN)}"
    return f"{text}, with {price_of(best)}.{_says_every_decision(results, data)}{_says_personal(results, data)}"


def _says_personal(results: Results, data: str) -> str:
    """What a parameter for each agent earns, beside the better of alone and shared."""
    if not results.where(data=data, system=PERSONAL):
        return ""
    best, lead = personal_lead(results, data)
    return (
        f" With a parameter for each agent (personal, α = {best['knob']:g}) it is {mean_reward(best).mean:.3f}: "
        f"{lead.mean:+.3f} ± {lead.half:.3f} beside the better of alone and shared."
    )


def shown_best(results: Results, data: str) -> Group:
    """The FedLinUCB with the fewest messages that is shown to reach the wanted gain, else the one that earns most."""
    groups = results.where(data=data, system=FED)
    pays = side(gap_of(results, data), 0.0) == ABOVE
    enough = [g for g in groups if pays and side(gain_share(results, g), WANTED_GAIN) == ABOVE]
    if enough:
        return min(enough, key=lambda g: g.mean("messages").mean)
    return max(groups, key=lambda g: g.mean("reward").mean)


def _says_every_decision(results: Results, data: str) -> str:
    """What the plain alternative earns: an upload and a download at each decision."""
    found = results.where(data=data, system=HELPED, knob=EVERY_DECISION)
    if not found:
        return ""
    earned = mean_reward(found[0])
    return f" Two messages per decision (α = 0, join and arrival) earn {earned.mean:.3f} with {_sent(found[0])}."


def _notes() -> list[str]:
    return [
        "Digits, breast cancer and wine are classification as a bandit: only whether the chosen class was right is "
        "seen. Their agents are artificial: rows are dealt at random, or by label. Flights have real agents: 104 "
        "destinations, a day's flights are the arms, on time or not is known for each.",
        "One β and one λ for all systems of a data set, chosen where independent agents do best: on digits (breast "
        "cancer and wine use the same) and on flights.",
        "A pass shows every row once at the agent that owns it. Wine has 178 rows for 5 agents: nearly every row is "
        "informative at d = 42, so few rounds pass without an exchange. Breast cancer is similar: 569 rows at d = 22.",
        "A broadcast (M + 1 messages per round) is how Table 1 counts sharing everything. Two messages per decision, "
        "α = 0 with join and arrival, give every agent the same knowledge; against them FedLinUCB saves much less.",
        "Raw rows are context, arm and reward as float64, sent once. A message has d(d+1)/2 + d + 3 numbers, so that "
        "in one pass over small data statistics cost more bytes than the rows: what they save is that no "
        "row leaves its agent; in bytes they pay only after many more rows.",
        "Yogurt, catsup, crackers, tuna, trains and electricity are people's own choices: an agent is a person or a "
        "household, and what was taken pays 1. There β = 0.1 and λ = 1 for all systems, and FedLinUCB joins as live "
        'agents do. Personal is `personal="auto"`; its α is the best of those tried, after the fact. CLUB finds '
        "clusters at a central learner with two messages per round; it is run on data of at most 5,000 rows.",
        "Split by label, an agent sees two classes and learns them alone; delayed models cost more than sharing gains.",
        "Flights come in the order of days, and punctuality changes with the season, so a delayed model is outdated.",
    ]


STUDY = Study("real", "On real data, what is sharing worth, and at what price in messages?", plan, analyse)
