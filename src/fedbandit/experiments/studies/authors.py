"""The authors' own experiment, with their published numbers beside ours."""

from __future__ import annotations

from matplotlib.axes import Axes

from fedbandit.algorithms.base import Rule
from fedbandit.experiments.baselines import asynchronous, fed, shared
from fedbandit.experiments.claims import says_order
from fedbandit.experiments.compare import difference
from fedbandit.experiments.output.figures import SeriesStyle, band, label_ends, panels, short, style_of
from fedbandit.experiments.output.tables import Table, number
from fedbandit.experiments.results import Cell, Results
from fedbandit.experiments.sharing_cost import baseline_note
from fedbandit.experiments.spec import make_spec
from fedbandit.experiments.study import Size, Study, StudyAnswer
from fedbandit.simulation.worlds import Uniform

DIM, N_ROUNDS, BETA = 15, 30_000, 0.5
SYSTEMS = ("OFUL shared", "FedLinUCB α=1", "Async-LinUCB γ=6")
CHECKPOINTS = (1_000, 5_000, 10_000, 30_000)

# Mean over 20 seeds of the authors' public logs: regret at the checkpoints, its deviation at the end, messages.
PUBLISHED: dict[tuple[int, str], tuple[tuple[float, ...], float, dict[int, float]]] = {
    (15, "OFUL shared"): ((27.4, 42.6, 49.4, 60.0), 9.9, {30_000: 480_000}),
    (15, "FedLinUCB α=1"): ((48.7, 67.9, 77.0, 92.2), 10.1, {1_000: 184, 10_000: 329, 30_000: 400}),
    (15, "Async-LinUCB γ=6"): ((52.4, 79.8, 92.1, 112.8), 15.4, {1_000: 298, 10_000: 570, 30_000: 705}),
    (30, "OFUL shared"): ((31.2, 45.9, 52.9, 63.7), 9.9, {30_000: 930_000}),
    (30, "FedLinUCB α=1"): ((57.0, 84.4, 96.6, 117.8), 21.9, {1_000: 224, 10_000: 411, 30_000: 503}),
    (30, "Async-LinUCB γ=6"): ((63.3, 106.6, 129.9, 167.7), 21.6, {1_000: 486, 10_000: 1_018, 30_000: 1_290}),
}
PUBLISHED_SEEDS = 20


def _rule(system: str) -> Rule:
    if system.startswith("OFUL"):
        return shared(dim=DIM, beta=BETA)
    if system.startswith("Fed"):
        return fed(dim=DIM, beta=BETA, alpha=1.0)
    return asynchronous(dim=DIM, beta=BETA, gamma=6.0)


def plan(size: Size) -> list[Cell]:
    """Three systems, two fleets."""
    n_rounds = size.pick(tiny=1_000, quick=N_ROUNDS, full=N_ROUNDS)
    seeds = size.seeds(quick=10, full=100)
    marks = range(n_rounds // 60, n_rounds + 1, n_rounds // 60)
    record = sorted({*marks, *(t for t in CHECKPOINTS if t <= n_rounds), 10, 30, 100, 200, 300})
    return [
        Cell(
            {"M": n_agents, "system": system},
            make_spec(_rule(system), Uniform(dim=DIM), n_agents=n_agents, n_rounds=n_rounds, record=record),
            seeds,
        )
        for n_agents in (15, 30)
        for system in SYSTEMS
    ]


def analyse(results: Results) -> StudyAnswer:
    """Ours and theirs at the same rounds."""
    table = _table(results)
    figure, axes = panels(1, 2, width=10.5, height=3.7, sharey=True)
    ends = [_panel(axis, results, n_agents) for axis, n_agents in zip(axes, results.each("M"), strict=True)]
    axes[0].set(ylabel="cumulative regret", ylim=(0, None))
    for axis, labels in zip(axes, ends, strict=True):
        label_ends(axis, labels, shift=11)
    caption = (
        "Cumulative regret over rounds, mean and 95 % interval over our seeds; hollow diamonds are the published "
        "means, with twice their standard error."
    )
    notes = [*_notes(), baseline_note([group.sharing_cost for group in results])]
    return StudyAnswer(_sentence(results), figure, caption, [table], notes)


def _panel(axis: Axes, results: Results, n_agents: int) -> list[tuple[str, float, SeriesStyle]]:
    ends = []
    for group in results.where(M=n_agents):
        look = style_of(group["system"])
        means = band(axis, group.rounds, group.curve("regret").values(), look)
        ends.append((group["system"], float(means[-1]), look))
        published, deviation, _ = PUBLISHED[n_agents, group["system"]]
        shown = [(t, r) for t, r in zip(CHECKPOINTS, published, strict=True) if t <= group.rounds[-1]]
        error = [2 * deviation / PUBLISHED_SEEDS**0.5 if t == CHECKPOINTS[-1] else 0.0 for t, _ in shown]
        at, values = [t for t, _ in shown], [value for _, value in shown]
        axis.errorbar(at, values, yerr=error, fmt="D", mfc="none", color=look.colour, ms=6, capsize=3, clip_on=False)
    axis.set(title=f"M = {n_agents} agents", xlabel="round", xlim=(0, results.groups[0].rounds[-1]))
    axis.xaxis.set_major_formatter(lambda x, _: short(x))
    return ends


def _table(results: Results) -> Table:
    rows = []
    for group in results:
        published, deviation, messages = PUBLISHED[group["M"], group["system"]]
        for t, theirs in zip(CHECKPOINTS, published, strict=True):
            if t not in group.rounds:
                continue
            last = t == CHECKPOINTS[-1]
            theirs_text = f"{theirs:.1f}" + (f" ± {2 * deviation / PUBLISHED_SEEDS**0.5:.1f}" if last else "")
            ours = group.mean("regret", t)
            beside = f"{ours.mean / theirs:.2f}"
            sent = group.mean("messages", t)
            rows.append([group["M"], group["system"], t, ours, theirs_text, beside, sent, messages.get(t)])
    columns = [
        "M",
        "system",
        "round",
        "regret",
        "published ± 2 s.e.",
        "ours / theirs",
        "messages",
        "published messages",
    ]
    return Table("Regret and messages beside the published means", columns, rows)


def _sentence(results: Results) -> str:
    parts = []
    for n_agents in results.each("M"):
        ours = {g["system"]: g.mean("regret").mean for g in results.where(M=n_agents)}
        sent = {g["system"]: g.mean("messages").mean for g in results.where(M=n_agents)}
        oful, fedlin, asyn = SYSTEMS
        cost = results.one(M=n_agents, system=fedlin).sharing_cost
        parts.append(
            f"with {n_agents} agents FedLinUCB ends at regret {number(ours[fedlin])} with {number(sent[fedlin])} "
            f"messages, Async-LinUCB at {number(ours[asyn])} with {number(sent[asyn])}, and sharing everything at "
            f"{number(ours[oful])} with {number(sent[oful])} as a broadcast to all ({number(cost.two_per_decision)} "
            f"as two messages per decision)"
        )
    steps = [
        difference(a.at("regret"), b.at("regret"))
        for m in results.each("M")
        for a, b in zip(results.where(M=m), results.where(M=m)[1:], strict=False)
    ]
    return f"The published order {says_order(steps)}: {'; '.join(parts)}. {_distance(results)}"


def _distance(results: Results) -> str:
    """How far our FedLinUCB is from the published one at the last common checkpoint, in standard errors."""
    lines = []
    for group in results.where(system=SYSTEMS[1]):
        if CHECKPOINTS[-1] not in group.rounds:
            return "The runs are too short to stand beside the published end."
        published, deviation, _ = PUBLISHED[group["M"], group["system"]]
        ours = group.mean("regret", CHECKPOINTS[-1])
        error = ((ours.half / 2) ** 2 + deviation**2 / PUBLISHED_SEEDS) ** 0.5
        lines.append(f"{abs(ours.mean - published[-1]) / error:.1f} (M={group['M']})")
    return f"Our FedLinUCB ends within {' and '.join(lines)} standard errors of the published mean."


def _notes() -> list[str]:
    return [
        "d = 15, K = 25, λ = 1, β = 0.5, noise 0.3, θ* = 1/√d, one agent active a round, chosen evenly.",
        "Our Async-LinUCB uses a pushed model at once, as its article says; not all public code of it does.",
        "The published agents start from a zero matrix; ours start from λI, which saves the first few exchanges.",
    ]


STUDY = Study("authors", "Does the authors' own experiment come out the same?", plan, analyse)
