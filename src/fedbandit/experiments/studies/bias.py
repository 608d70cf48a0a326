"""Appendix A.1: does the data at the server tell the truth about an arm, under an eager and under a lazy policy?"""

from __future__ import annotations

from fedbandit.algorithms.async_linucb import AsyncLinUCB
from fedbandit.algorithms.base import Rule
from fedbandit.experiments.baselines import fed
from fedbandit.experiments.claims import says_truth
from fedbandit.experiments.compare import interval
from fedbandit.experiments.output.figures import INK, band, label_ends, log_scale, panels, style_of
from fedbandit.experiments.output.tables import Table, around
from fedbandit.experiments.results import Cell, Results
from fedbandit.experiments.spec import make_spec
from fedbandit.experiments.study import Size, Study, StudyAnswer
from fedbandit.simulation.worlds import Uniform

BETA = 0.5
RATIO = 18.5  # two plays of arm A raise the determinant 19-fold, one play of each arm 11-fold
POLICIES = ("FedLinUCB (lazy)", "Async-LinUCB (eager)")


def _rule(policy: str) -> Rule:
    if policy == POLICIES[0]:
        return fed(dim=2, beta=BETA, alpha=RATIO - 1)
    return AsyncLinUCB(dim=2, beta=BETA, gamma_up=RATIO, gamma_down=float("inf"))


def plan(size: Size) -> list[Cell]:
    """The same coins for both policies; one fleet, looked at as it grows."""
    n_agents = size.pick(tiny=60, quick=1_500, full=10_000)
    world = Uniform(dim=2, n_actions=2)  # only for the record: the driver brings the two arms itself
    return [
        Cell(
            {"policy": policy},
            make_spec(_rule(policy), world, n_agents=n_agents, n_rounds=2 * n_agents, driver={"name": "appendix-a1"}),
            size.seeds(quick=12, full=20, tiny=4),
        )
        for policy in POLICIES
    ]


def analyse(results: Results) -> StudyAnswer:
    """The server's mean reward of arm A, and its error in radii, as fleets grow."""
    figure, axes = panels(1, 2, width=10.5, height=3.5)
    for axis, measure in zip(axes, ("mean_reward", "error_in_radii"), strict=True):
        ends = []
        for group in results:
            agents = next(iter(group.runs.values())).columns["agents"]
            means = band(axis, agents, group.curve(measure).values(), style_of(group["policy"]), marker=True)
            ends.append((group["policy"], float(means[-1]), style_of(group["policy"])))
        log_scale(axis)
        axis.set_xlabel("agents so far, two rounds each")
        label_ends(axis, ends)
    axes[0].set_title("Mean reward of arm A at the server (truth: 0)")
    axes[0].axhline(0.0, color=INK, linewidth=0.8)
    axes[1].set_title("Error of θ̂ at the server, in confidence radii")
    axes[1].axhline(1.0, color=INK, linewidth=0.8)
    words = "OFUL's radius promises less than 1"
    axes[1].text(0.99, 0.95, words, transform=axes[1].get_yaxis_transform(), ha="right", va="top", fontsize=8.5)
    caption = "Two arms, θ* = 0, rewards ±1 by a fair coin; means over seeds with 95 % intervals."
    return StudyAnswer(_sentence(results), figure, caption, [_table(results)])


def _table(results: Results) -> Table:
    rows = []
    for group in results:
        agents = next(iter(group.runs.values())).columns["agents"]
        for i in range(len(agents)):
            rewards = interval([c[i] for c in group.curve("mean_reward").values()])
            errors = interval([c[i] for c in group.curve("error_in_radii").values()])
            rows.append([group["policy"], int(agents[i]), rewards, errors])
    return Table("The server's view of arm A", ["policy", "agents", "mean reward", "error in radii"], rows)


def _sentence(results: Results) -> str:
    lazy, eager = (results.one(policy=policy) for policy in POLICIES)
    a, b = lazy.mean("mean_reward"), eager.mean("mean_reward")
    error = eager.mean("error_in_radii")
    n_agents = lazy.spec.n_agents
    found = "inside" if b.contains(0.5) else "outside of"
    return (
        f"After {n_agents:,} agents the server's mean reward of arm A (truth 0) is {around(a)} under FedLinUCB's lazy "
        f"policy, which {says_truth(a, 0.0)}, and {around(b)} under the eager policy of Async-LinUCB, which "
        f"{says_truth(b, 0.0)}, with the paper's 0.5 {found} the interval; the eager estimate is then "
        f"{around(error)} confidence radii from θ*."
    )


STUDY = Study("bias", "Is the estimate at the server biased, eager against lazy?", plan, analyse)
