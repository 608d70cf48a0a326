"""Every system on the world that it was made for, and on common worlds where its assumptions allow it.

To add a system, add a line to `SYSTEMS`; to add a world, one to `_worlds` and its name to the systems that can play it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from fedbandit.algorithms.club import CLUB
from fedbandit.algorithms.dcb import DCB
from fedbandit.algorithms.dccb import DCCB
from fedbandit.algorithms.delb import DELB
from fedbandit.algorithms.fedglbucb import FedGLBUCB
from fedbandit.algorithms.fedpe import FedPE
from fedbandit.algorithms.fedsuplinucb import FedSupLinUCB
from fedbandit.algorithms.feducb import FedUCB
from fedbandit.experiments.baselines import alone, asynchronous, fed, match_regret, shared, synchronous
from fedbandit.experiments.claims import BELOW, side
from fedbandit.experiments.compare import Interval, ratio
from fedbandit.experiments.output.figures import log_scale, panels, short, style_of
from fedbandit.experiments.output.tables import Table, number, span
from fedbandit.experiments.results import Cell, Group, Results
from fedbandit.experiments.sharing_cost import human_bytes
from fedbandit.experiments.spec import make_spec
from fedbandit.experiments.study import Size, Study, StudyAnswer
from fedbandit.simulation.participation import Even, Participation, Steps, Zipf
from fedbandit.simulation.worlds import Articles, Clusters, FixedFeatures, FixedSet, Uniform, World
from fedbandit.simulation.worlds.logistic import Logistic

CONTEXTS, ARTICLES, FIXED, FEATURES = "fresh contexts", "pool of articles", "one fixed set", "fixed features per agent"
CLICKS, CLUSTERS = "clicks", "clustered users"
COMMON = (CONTEXTS, FIXED, CLICKS)
ALONE, TOGETHER = "OFUL independent", "OFUL shared"
EVEN, UNEVEN = "even", "Zipf skew 1.5"
MEASURES = ("regret", "messages", "scalars", "bytes", "switches")
ASYNCHRONOUS = ("FedLinUCB", "Async-LinUCB", "DisLinUCB")
COMPARE, WHO_ACTS = "systems", "participation"


@dataclass(frozen=True)
class Setting:
    """A world with its sizes."""

    name: str
    world: Any
    n_agents: int
    n_rounds: int
    noise: float

    @property
    def dim(self) -> int:
        """Number of features d."""
        return int(self.world.dim)

    @property
    def n_steps(self) -> int:
        """Steps of each agent."""
        return self.n_rounds // self.n_agents

    @property
    def beta(self) -> float:
        """The radius of all linear UCB systems: 0.5 at noise 0.3, in proportion."""
        return 0.5 * self.noise / 0.3

    @property
    def ucb(self) -> dict[str, Any]:
        """dim and beta."""
        return {"dim": self.dim, "beta": self.beta}


@dataclass(frozen=True)
class System:
    """A system: its rule for a setting, the world that it was made for, the other worlds it can play, what it needs."""

    name: str
    make: Callable[[Setting], Any]
    home: str
    also: tuple[str, ...]
    needs: str
    synchronous: bool = False
    baseline: bool = False  # sends nothing, or everything

    def plays(self, world: str) -> bool:
        """Whether its rule can be run there."""
        return world == self.home or world in self.also


def _dislinucb(s: Setting) -> Any:
    return synchronous(**s.ucb, threshold=match_regret(dim=s.dim, n_agents=s.n_agents, n_rounds=s.n_rounds))


def _glb(mode: str) -> Callable[[Setting], FedGLBUCB]:
    def make(s: Setting) -> FedGLBUCB:
        threshold = s.n_steps / (s.n_agents * s.dim * math.log(s.n_rounds))
        return FedGLBUCB(dim=s.dim, n_agents=s.n_agents, threshold=threshold, scale=0.1, mode=mode)

    return make


def _feducb(schedule: str) -> Callable[[Setting], FedUCB]:
    def make(s: Setting) -> FedUCB:
        return FedUCB(dim=s.dim, n_agents=s.n_agents, n_steps=s.n_steps, schedule=schedule, noise_scale=s.noise)

    return make


LINEAR_WORLDS = (CONTEXTS, ARTICLES, FIXED, CLICKS, CLUSTERS)
SYSTEMS = (
    System(
        ALONE,
        lambda s: alone(**s.ucb),
        CONTEXTS,
        LINEAR_WORLDS,
        "nothing: every agent learns from its own data only",
        baseline=True,
    ),
    System(
        TOGETHER,
        lambda s: shared(**s.ucb),
        CONTEXTS,
        LINEAR_WORLDS,
        "one θ*; every observation reaches everybody",
        baseline=True,
    ),
    System(
        "FedLinUCB",
        lambda s: fed(**s.ucb, alpha=1.0),
        CONTEXTS,
        LINEAR_WORLDS,
        "one θ*; any agent may act at any time, and only active agents exchange",
    ),
    System(
        "FedSupLinUCB",
        lambda s: FedSupLinUCB(**s.ucb, n_rounds=s.n_rounds, alpha=1.0),
        CONTEXTS,
        (FIXED,),
        "one θ*; finite decision sets that do not react to rewards",
    ),
    System(
        "Async-LinUCB",
        lambda s: asynchronous(**s.ucb, gamma=6.0),
        ARTICLES,
        LINEAR_WORLDS,
        "one θ*; the server can push to agents that are not active",
    ),
    System("DisLinUCB", _dislinucb, CONTEXTS, LINEAR_WORLDS, "one θ*; the server can poll every agent at any time"),
    System(
        "DCB",
        lambda s: DCB(**s.ucb, mass="fleet"),
        CONTEXTS,
        (FIXED, CLUSTERS),
        "one θ*; steps, and a random peer for everybody in each",
        synchronous=True,
    ),
    System(
        "DCCB",
        lambda s: DCCB(**s.ucb, mass="fleet", noise_scale=s.noise, threshold=1.0),
        CLUSTERS,
        (),
        "clusters of agents with a θ* each; steps, and a random peer for everybody in each",
        synchronous=True,
    ),
    System(
        "CLUB",
        lambda s: CLUB(dim=s.dim, beta=s.beta / 2, edge_width=1.0),
        CLUSTERS,
        (CONTEXTS,),
        "clusters of users with a θ* each; a central learner that sees every observation",
    ),
    System(
        "DELB",
        lambda s: DELB(dim=s.dim, n_steps=s.n_steps, C=0.001),
        FIXED,
        (),
        "one θ*; one fixed finite action set that everybody knows; steps",
        synchronous=True,
    ),
    System(
        "Fed-PE",
        lambda s: FedPE(dim=s.dim, n_arms=s.world.n_actions, n_steps=s.n_steps),
        FEATURES,
        (),
        "a θ per arm; one fixed feature vector per agent and arm; steps",
        synchronous=True,
    ),
    System(
        "FedUCB corrected, ε = 1",
        _feducb("corrected"),
        CONTEXTS,
        (FIXED,),
        "one θ*; steps; noise in all that is sent (no privacy claimed)",
        synchronous=True,
    ),
    System(
        "FedUCB as published, ε = 1",
        _feducb("as_published"),
        CONTEXTS,
        (),
        "as FedUCB corrected, with a trigger that depends on the data",
        synchronous=True,
    ),
    System(
        "FedGLB-UCB",
        _glb("federated"),
        CLICKS,
        (),
        "one θ* behind a link; steps; agents keep their raw rows and answer gradient queries",
        synchronous=True,
    ),
    System(
        "FedGLB-UCB, all shared",
        _glb("shared"),
        CLICKS,
        (),
        "one θ* behind a link; steps; every observation reaches the server",
        synchronous=True,
        baseline=True,
    ),
    System(
        "FedGLB-UCB, alone",
        _glb("alone"),
        CLICKS,
        (),
        "a link; every agent learns from its own data only",
        synchronous=True,
        baseline=True,
    ),
)


def _worlds(size: Size) -> dict[str, Setting]:
    n_agents, n_rounds = size.pick(tiny=(4, 400), quick=(10, 10_000), full=(20, 40_000))
    n_clicks = size.pick(tiny=400, quick=2_000, full=8_000)  # FedGLB-UCB fits all raw rows in each iteration
    made = [
        Setting(CONTEXTS, Uniform(), n_agents, n_rounds, 0.3),
        Setting(ARTICLES, Articles(), n_agents, n_rounds, 0.1),
        Setting(FIXED, FixedSet(dim=10, n_actions=50, noise=0.3), n_agents, n_rounds, 0.3),
        Setting(FEATURES, FixedFeatures(noise=0.3), n_agents, n_rounds, 0.3),
        Setting(CLICKS, Logistic(), n_agents, n_clicks, 0.5),
        Setting(CLUSTERS, Clusters(dim=10, n_actions=20, n_clusters=2), n_agents, n_rounds, 0.3),
    ]
    return {setting.name: setting for setting in made}


def plan(size: Size) -> list[Cell]:
    """All systems on all worlds that they can play, in steps; then three of them with even and uneven participation."""
    worlds, seeds = _worlds(size), size.seeds(quick=3, full=6)
    cells = [
        _cell(COMPARE, system, setting, Steps(), seeds)
        for setting in worlds.values()
        for system in SYSTEMS
        if system.plays(setting.name)
    ]
    named = {system.name: system for system in SYSTEMS}
    for who, pattern in ((EVEN, Even()), (UNEVEN, Zipf(1.5))):
        compared = [named[name] for name in ASYNCHRONOUS]
        cells += [_cell(WHO_ACTS, system, worlds[ARTICLES], pattern, seeds, who=who) for system in compared]
    return cells


def _cell(
    part: str, system: System, setting: Setting, pattern: Participation, seeds: tuple[int, ...], who: str = "steps"
) -> Cell:
    world: World = setting.world
    spec = make_spec(
        system.make(setting),
        world,
        n_agents=setting.n_agents,
        n_rounds=setting.n_rounds,
        participation=pattern,
        record=[setting.n_rounds],
    )
    keys = {"part": part, "world": setting.name, "system": system.name, "participation": who}
    return Cell(keys, spec, seeds)


def analyse(results: Results) -> StudyAnswer:
    """Regret and bytes of every system on every world; what each needs; even and uneven participation."""
    figure, (left, right) = panels(1, 2, width=12, height=0.19 * len(results.where(part=COMPARE)) + 2.2, sharey=True)
    _draw(left, right, results)
    spec = results.groups[0].spec
    caption = (
        f"M = {spec.n_agents}, T = {number(spec.n_rounds)} rounds over all agents in steps (fewer for clicks, see the "
        "table), mean and 95 % interval. Filled: the world that the system was made for. Regret is compared within a "
        "world, not between worlds."
    )
    tables = [_comparison(results), _assumptions(), _participation(results)]
    return StudyAnswer(_sentence(results), figure, caption, tables, _notes())


def _draw(left: Axes, right: Axes, results: Results) -> None:
    names, height = [], 0.0
    for world in _played_worlds(results):
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "xytext": (4, 0), "textcoords": "offset points"}
        left.annotate(world, (0.0, height), fontweight="bold", va="center", **place)
        for group in sorted(results.where(part=COMPARE, world=world), key=lambda g: g.mean("regret").mean):
            height += 1.0
            names.append((height, group["system"]))
            _point(left, group.mean("regret"), height, group)
            _point(right, group.mean("bytes"), height, group)
        height += 1.5
    left.set_yticks([y for y, _ in names], [name for _, name in names])
    left.set_ylim(height - 1.0, -1.0)
    left.set(title="Regret at the end", xlabel="regret")
    right.set(title="Bytes sent by everybody", xlabel="bytes")
    most = max(group.mean("bytes").mean for group in results.where(part=COMPARE))
    right.set_xscale("symlog", linthresh=1_000)
    right.set_xlim(-200, 4 * most)
    ticks = [0.0, *(10.0**power for power in range(3, 1 + math.ceil(math.log10(most))))]
    right.set_xticks(ticks, [short(tick) for tick in ticks])
    right.minorticks_off()
    log_scale(left, "x")


def _point(axis: Axes, value: Interval, height: float, group: Group) -> None:
    look = style_of(group["system"])
    error = [[value.mean - value.low], [value.high - value.mean]] if math.isfinite(value.half) else None
    axis.errorbar(
        value.mean,
        height,
        xerr=error,
        marker=look.marker,
        color=look.colour,
        mfc=look.colour if _is_home(group) else "none",
        ms=6,
        elinewidth=0.9,
        linestyle="none",
    )


def _is_home(group: Group) -> bool:
    return any(system.name == group["system"] and system.home == group["world"] for system in SYSTEMS)


def _played_worlds(results: Results) -> list[str]:
    return list(dict.fromkeys(group["world"] for group in results.where(part=COMPARE)))


def _comparison(results: Results) -> Table:
    rows = []
    for group in results.where(part=COMPARE):
        times = _times_alone(results, group)
        made_for = "yes" if _is_home(group) else "no"
        sizes = [group.spec.n_agents, group.spec.n_rounds]
        values = [group.mean(measure) for measure in MEASURES]
        rows.append([group["world"], group["system"], made_for, *sizes, *values, "–" if times is None else span(times)])
    columns = ["world", "system", "made for it", "M", "T", *MEASURES, "times the regret alone"]
    return Table("Every system on every world that it can play", columns, rows)


def _times_alone(results: Results, group: Group) -> Interval | None:
    base = results.where(part=COMPARE, world=group["world"], system=ALONE)
    return ratio(group.at("regret"), base[0].at("regret")) if base else None


def _assumptions() -> Table:
    rows = [[s.name, "steps" if s.synchronous else "any time", s.home, s.needs] for s in SYSTEMS]
    return Table("What each system needs", ["system", "agents act", "made for", "needs"], rows)


def _participation(results: Results) -> Table:
    rows = []
    for group in results.where(part=WHO_ACTS):
        even = results.one(part=WHO_ACTS, participation=EVEN, system=group["system"])
        times = ratio(group.at("regret"), even.at("regret"))
        messages = ratio(group.at("messages"), even.at("messages"))
        values = [group.mean("regret"), span(times), group.mean("messages"), span(messages)]
        rows.append([group["system"], group["participation"], *values])
    columns = ["system", "participation", "regret", "times even", "messages", "messages, times even"]
    return Table("Even and uneven participation", columns, rows)


def _sentence(results: Results) -> str:
    parts = [_best(results, world) for world in COMMON]
    skewed = []
    for name in ASYNCHRONOUS:
        even, uneven = (results.one(part=WHO_ACTS, system=name, participation=who) for who in (EVEN, UNEVEN))
        regret, messages = (ratio(uneven.at(m), even.at(m)) for m in ("regret", "messages"))
        skewed.append(f"{name} {span(regret)} times the regret and {span(messages)} times the messages")
    return f"Least regret: {'; '.join(parts)}. Uneven participation gives {', '.join(skewed)}."


def _best(results: Results, world: str) -> str:
    """The two systems with the least regret of those that send something but not everything, and how sure that is."""
    baselines = {system.name for system in SYSTEMS if system.baseline}
    groups = [g for g in results.where(part=COMPARE, world=world) if g["system"] not in baselines]
    first, second = sorted(groups, key=lambda group: group.mean("regret").mean)[:2]
    is_shown = side(ratio(first.at("regret"), second.at("regret")), 1.0) == BELOW
    order = "before" if is_shown else "and, in an order that these seeds leave open,"
    return f"on {world} {_told(results, first)} {order} {_told(results, second)}"


def _told(results: Results, group: Group) -> str:
    times = _times_alone(results, group)
    base = "" if times is None else f", {span(times)} times that of agents alone"
    sent = human_bytes(group.mean("bytes").mean)
    return f"{group['system']} (regret {number(group.mean('regret').mean)}{base}, {sent})"


def _notes() -> Sequence[str]:
    return [
        "All linear UCB systems use the same radius (0.5 at noise 0.3, in proportion to the noise) and λ = 1. "
        "FedLinUCB and FedSupLinUCB have α = 1, Async-LinUCB γ = 6, DisLinUCB D = T/(M d log T), DCB and DCCB the "
        "mass of the fleet, CLUB half of that radius and a₂ = 1, DELB C = 0.001 (with the paper's 600 no phase "
        "ends), FedGLB-UCB the radius of its published experiments, a tenth of the proved one.",
        "Clicks are not linear in the features: there the linear systems fit the best linear model.",
        "DELB and Fed-PE need decision sets that never change, and Fed-PE a parameter per arm; they are compared where "
        "that holds only. FedUCB draws noise for ε = 1; no privacy is claimed for it.",
        "A synchronous system cannot be run where agents act one at a time, so that all of this table is in steps; "
        "the others need none.",
        "Bytes are eight per number in every message; a message of FedLinUCB has d(d+1)/2 + d + 3 numbers, a message "
        "of DCB its whole buffer.",
    ]


STUDY = Study("systems", "Which system fits which problem, and what does it send?", plan, analyse)
