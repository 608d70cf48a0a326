"""The most important numbers of a model, each with a link to what it means."""

from __future__ import annotations

from fedbandit.dashboard.chart_series import ChartSeries, mean_reward
from fedbandit.dashboard.components import tile, tiles, url
from fedbandit.dashboard.markup import Html
from fedbandit.service.assumptions import summary
from fedbandit.service.formatting import count, number, plural, setting, size
from fedbandit.service.monitor import MonitorReport
from fedbandit.service.stores.base import FleetSummary


def model_tiles(report: MonitorReport, fleet: FleetSummary, recent: ChartSeries) -> Html:
    """The numbers of a model in a row."""
    here, guarantee = report.insight.model, report.insight.guarantee
    name = here.settings.name
    last = next((y for y in reversed(recent.y) if y is not None), None)
    unsent = f"{count(fleet.unsent)} more unsent at {plural(fleet.n_with_unsent, 'agent')}"
    earlier = [f"{count(here.clock - here.n_obs)} in earlier epochs"] if here.epoch and here.clock > here.n_obs else []
    earlier += [f"{count(here.n_discarded)} discarded"] if here.n_discarded else []
    rate = f"1 per {number(here.n_seen / here.n_uploads, 2)} observations" if here.n_uploads else "none yet"
    cost = f"{size(here.n_bytes)} received; raw rows: {size(here.raw_bytes)}"
    active = f"{count(fleet.n_active)} active in the last 10 min"
    odd = [f"{count(fleet.n_silent)} never active"] if fleet.n_silent else []
    odd += [f"{count(fleet.n_revoked)} revoked"] if fleet.n_revoked else []
    odd += [f"{count(fleet.n_quarantined)} in quarantine"] if fleet.n_quarantined else []
    odd += [f"{count(here.n_retired)} retired"] if here.n_retired else []
    waiting = [f"{plural(here.n_rewards, 'reward')} kept for their agents"] if here.n_rewards else []
    alpha = f"the model's α is {setting(here.settings.alpha)}; up to {number(guarantee.normal_alpha, 2)} is normal"
    return tiles(
        tile("Recent mean reward", number(last), f"{number(mean_reward(here))} overall", word="reward"),
        tile(
            "Observations",
            count(here.n_obs),
            unsent if fleet.unsent else "none reported unsent",
            *(*earlier, *waiting),
            word="observation",
        ),
        tile("Exchanges", count(here.n_uploads), rate, cost, word="exchange"),
        tile(
            "Agents",
            count(fleet.n_agents),
            active,
            *odd,
            href=url("models", name, "agents", sort="last_seen"),
            word="seen",
        ),
        tile("Effective alpha", _alpha_number(here.effective_alpha), alpha, word="alpha"),
        _assumptions_tile(report),
    )


def _assumptions_tile(report: MonitorReport) -> Html:
    """Red as soon as one assumption is contradicted; green is said of those that were tested and held, never of all."""
    found = summary(report.checks)
    rest = f"{count(found['held'])} tested and held, {count(found['assumed'])} assumed"
    if found["contradicted"]:
        broken = next(check.assumption for check in report.checks if check.state == "contradicted")
        text = f"{count(found['contradicted'])} contradicted"
        return tile("Assumptions", text, broken, rest, href="#assumptions", state="bad")
    return tile("Assumptions", "none contradicted", rest, href="#assumptions")


def _alpha_number(alpha: float) -> str:
    return "beyond 1,000,000" if alpha > 1e6 else number(alpha)
