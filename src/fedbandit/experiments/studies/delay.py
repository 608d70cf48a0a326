"""Messages that arrive late or are lost: beyond the paper's assumption that there is no latency."""

from __future__ import annotations

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.core.theory import adaptive_radius, max_epochs
from fedbandit.experiments.baselines import fed
from fedbandit.experiments.claims import says_delay
from fedbandit.experiments.compare import ratio
from fedbandit.experiments.output.figures import SERIES, label_ends, log_scale, panels, points
from fedbandit.experiments.output.tables import Table, number, span
from fedbandit.experiments.results import Cell, Group, Results
from fedbandit.experiments.spec import make_spec
from fedbandit.experiments.study import Size, Study, StudyAnswer
from fedbandit.simulation.worlds import Uniform

DIM, BETA, NOISE = 15, 0.5, 0.3
PATIENCE = 100
LATE_ALPHA = "effective_alpha_late"


def _rule(setting: str) -> FedLinUCB:
    return fed(dim=DIM, beta=BETA, alpha=float(setting.split("=")[1].split(",")[0]), options="join" in setting)


def plan(size: Size) -> list[Cell]:
    """Delays without loss, losses without delay."""
    n_agents, n_rounds = size.pick(tiny=(5, 600), quick=(15, 5_000), full=(15, 20_000))
    settings = size.pick(tiny=("α=1",), quick=("α=1", "α=0.1"), full=("α=1", "α=0.1", "α=1, join + arrival"))
    delays = size.pick(tiny=(0, 50), quick=(0, 10, 100, 1_000), full=(0, 3, 10, 30, 100, 300, 1_000, 3_000))
    losses = size.pick(tiny=(0.5,), quick=(0.2, 0.5, 0.8), full=(0.1, 0.2, 0.5, 0.8, 0.9))
    networks = [{"delay": delay, "loss": 0.0} for delay in delays] + [{"delay": 0, "loss": loss} for loss in losses]
    return [
        Cell(
            {"setting": setting, **network},
            make_spec(
                _rule(setting),
                Uniform(dim=DIM, noise=NOISE),
                n_agents=n_agents,
                n_rounds=n_rounds,
                driver={"name": "unreliable-network", "patience": PATIENCE, **network},
            ),
            size.seeds(quick=3, full=8),
        )
        for setting in settings
        for network in networks
    ]


def analyse(results: Results) -> StudyAnswer:
    """Regret and effective alpha against delay and loss."""
    figure, axes = panels(1, 3, width=14, height=3.5)
    for setting, look in zip(results.each("setting"), SERIES, strict=False):
        late = [g for g in results.where(setting=setting, loss=0.0) if g["delay"] > 0]
        lossy = results.where(setting=setting, delay=0)
        points(axes[0], [g["delay"] for g in late], [g.mean("regret") for g in late], look)
        effective = [g.fact_mean(LATE_ALPHA) for g in late]
        points(axes[1], [g["delay"] for g in late], effective, look)
        points(axes[2], [100 * g["loss"] for g in lossy], [g.mean("regret") for g in lossy], look)
        base = lossy[0].mean("regret").mean
        axes[0].axhline(base, color=look.colour, linewidth=0.8, linestyle=":")
    axes[0].set(title="Regret when messages are late", xlabel="delay each way, rounds of the fleet", ylabel="regret")
    axes[1].set(title="Effective α when they are late", xlabel="delay each way, rounds of the fleet")
    axes[2].set(title="Regret when messages are lost", xlabel="messages lost, %")
    for axis in axes[:2]:
        log_scale(axis, "x")
        log_scale(axis, "y")
    settings = dict(zip(results.each("setting"), SERIES, strict=False))
    last_late = {setting: results.where(setting=setting, loss=0.0)[-1] for setting in settings}
    last_lossy = {setting: results.where(setting=setting, delay=0)[-1] for setting in settings}
    label_ends(axes[0], [(s, last_late[s].mean("regret").mean, look) for s, look in settings.items()])
    label_ends(axes[1], [(s, last_late[s].fact_mean(LATE_ALPHA).mean, look) for s, look in settings.items()])
    label_ends(axes[2], [(s, last_lossy[s].mean("regret").mean, look) for s, look in settings.items()])
    caption = (
        "Mean and 95 % interval; dotted: no delay. Effective α is the determinant's relative growth when the new model "
        f"arrives, over the later half of the exchanges. A lost message is sent again after {PATIENCE} rounds."
    )
    return StudyAnswer(_sentence(results), figure, caption, [_table(results)], _notes(results))


def _needed_radius(group: Group) -> float:
    """The adaptive radius that the effective α of these runs would need."""
    alpha = group.fact_mean(LATE_ALPHA).mean
    n_agents, n_rounds = group.spec.n_agents, group.spec.n_rounds
    rho = (max_epochs(dim=DIM, n_rounds=n_rounds, lam=1.0, action_bound=1.0) - 1) * 0.6931
    return adaptive_radius(
        rho=rho,
        dim=DIM,
        n_agents=n_agents,
        n_rounds=n_rounds,
        lam=1.0,
        alpha=alpha,
        noise_scale=NOISE,
        theta_bound=1.0,
        delta=0.01,
    )


def _table(results: Results) -> Table:
    rows = []
    for g in results:
        base = results.one(setting=g["setting"], delay=0, loss=0.0)
        times = ratio(g.at("regret"), base.at("regret"))
        effective = g.fact_mean(LATE_ALPHA)
        lost, needed = f"{100 * g['loss']:.0f} %", f"{_needed_radius(g):.0f}"
        cost = g.mean("regret"), span(times), g.mean("messages")
        rows.append([g["setting"], g["delay"], lost, *cost, effective, needed])
    columns = ["setting", "delay", "lost", "regret", "times that without", "messages", "effective α", "adaptive radius"]
    return Table("Late and lost messages", columns, rows)


def _sentence(results: Results) -> str:
    first = results.each("setting")[0]
    base = results.one(setting=first, delay=0, loss=0.0)
    late = [g for g in results.where(setting=first, loss=0.0) if g["delay"] > 0]
    times = {g["delay"]: ratio(g.at("regret"), base.at("regret")) for g in late}
    worst = max(times)
    own = worst / base.spec.n_agents
    lossy = [g for g in results.where(setting=first, delay=0) if g["loss"] > 0]
    most = lossy[-1]
    alpha = late[-1].fact_mean(LATE_ALPHA).mean
    return (
        f"At {first} {says_delay(times)}; {worst:,} rounds ({number(own)} of an agent's own) multiply the regret by "
        f"{span(times[worst], 1)} and make the effective α {number(alpha)}. Losing {100 * most['loss']:.0f} % of "
        f"all messages multiplies it by {span(ratio(most.at('regret'), base.at('regret')), 1)}, and "
        f"{_says_count(results)}."
    )


def _says_count(results: Results) -> str:
    wrong = sum(value for g in results for value in g.fact("miscounted").values())
    n_runs = sum(len(g.runs) for g in results)
    return f"in {n_runs} runs {number(wrong) if wrong else 'no'} observations were lost or counted twice"


def _notes(results: Results) -> list[str]:
    spec = results.groups[0].spec
    return [
        f"Uniform world, d = {DIM}, M = {spec.n_agents}, T = {spec.n_rounds:,}, β = {BETA}: an agent acts once in "
        f"{spec.n_agents} rounds.",
        "An agent keeps what it sent until the reply arrives, keeps deciding, and has one exchange open at a time.",
        "The last column is the radius that covers anything the paper allows, at the measured effective α.",
    ]


STUDY = Study("delay", "What do late and lost messages cost?", plan, analyse)
