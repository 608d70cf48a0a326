"""What a chart or a table shows, as a file: CSV for a spreadsheet, JSON for a program."""

from __future__ import annotations

import asyncio
import csv
import io
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from fedbandit.dashboard.chart_series import mean_reward, series_of
from fedbandit.dashboard.data_sources import DataSources
from fedbandit.errors import InvalidParameter, UnknownTable
from fedbandit.service.model import alpha_of
from fedbandit.service.stores.base import MAX_PER_PAGE, AgentRecord, PageQuery

MAX_AGENTS = 100_000
MAX_SHARES = 1_000
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
Cell = str | float | int | bool | None


@dataclass(frozen=True, slots=True)
class TableFile:
    """Columns and rows; times are seconds since 1970."""

    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]

    def to_csv(self) -> bytes:
        """CSV as in RFC 4180; a time has a second column for people, and no text can be taken for a formula."""
        times = [
            place for place, name in enumerate(self.columns) if name in ("at", "created", "last_seen", "last_upload")
        ]
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow([*self.columns, *(f"{self.columns[place]}_utc" for place in times)])
        for row in self.rows:
            writer.writerow([safe_cell(cell) for cell in (*row, *(_moment(row[place]) for place in times))])
        return text.getvalue().encode()

    def to_json(self) -> bytes:
        """A list of objects; null where there is no finite number."""
        rows = [dict(zip(self.columns, map(_finite, row), strict=True)) for row in self.rows]
        return msgspec.json.encode(rows)


def safe_cell(cell: Cell) -> str:
    """A cell that no spreadsheet takes for a formula: text that begins like one gets an apostrophe.

    >>> safe_cell("=1+1"), safe_cell(-0.5), safe_cell("kiosk-1"), safe_cell(None)
    ("'=1+1", '-0.5', 'kiosk-1', '')
    """
    if cell is None:
        return ""
    if isinstance(cell, str):
        return f"'{cell}" if cell.startswith(FORMULA) else cell
    return repr(cell)


def _finite(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _moment(at: Cell) -> str:
    return "" if not isinstance(at, int | float) else datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A range of time in seconds since 1970."""

    since: float = -math.inf
    until: float = math.inf

    @classmethod
    def of(cls, query: Mapping[str, str]) -> TimeRange:
        """The range that an address names."""
        return cls(_number(query, "since", -math.inf), _number(query, "until", math.inf))

    def __contains__(self, at: float) -> bool:
        return self.since <= at <= self.until


def _number(query: Mapping[str, str], name: str, default: float) -> float:
    try:
        value = float(query.get(name, default))
    except ValueError:
        raise InvalidParameter(f"expected {name} as seconds since 1970, got {query[name][:30]!r}") from None
    if math.isnan(value):
        raise InvalidParameter(f"expected {name} as seconds since 1970, got nan")
    return value


async def _series(sources: DataSources, name: str, lines: Mapping[str, str], during: TimeRange) -> TableFile:
    insight, samples = await asyncio.gather(sources.insight(name), sources.samples(name))
    found = series_of(samples, insight.model)
    by_time = {column: dict(zip(found[line].x, found[line].y, strict=True)) for column, line in lines.items()}
    times = sorted({at for values in by_time.values() for at in values if at in during})
    rows: list[tuple[Cell, ...]] = [(at, *(by_time[column].get(at) for column in lines)) for at in times]
    return TableFile(("at", *lines), rows)


async def reward(sources: DataSources, name: str, during: TimeRange) -> TableFile:
    """Mean reward over time."""
    return await _series(sources, name, {"recent": "recent", "overall": "overall"}, during)


async def exchanges(sources: DataSources, name: str, during: TimeRange) -> TableFile:
    """Exchanges over time, with observations and the bytes of uploads."""
    samples = [sample for sample in await sources.samples(name) if sample.at in during]
    rows: list[tuple[Cell, ...]] = [(s.at, s.n_uploads, s.n_obs, s.n_bytes) for s in samples]
    return TableFile(("at", "n_uploads", "n_obs", "n_bytes"), rows)


async def information(sources: DataSources, name: str, during: TimeRange) -> TableFile:
    """Information gained over time."""
    return await _series(sources, name, {"information": "information"}, during)


async def alpha(sources: DataSources, name: str, during: TimeRange) -> TableFile:
    """Effective alpha over time."""
    return await _series(sources, name, {"largest_growth": "alpha"}, during)


async def shares(sources: DataSources, name: str, during: TimeRange) -> TableFile:
    """The largest shares of information, largest first, and the prior's."""
    insight = await sources.insight(name)
    found = await sources.largest_shares(insight, MAX_SHARES)
    rows: list[tuple[Cell, ...]] = [(agent, share) for agent, share in found.largest if share > 0]
    return TableFile(("agent", "share"), [*rows, ("(prior)", insight.prior_share)])


async def estimates(sources: DataSources, name: str, during: TimeRange) -> TableFile:
    """θ̂ of every feature with its interval."""
    insight = await sources.insight(name)
    theta = insight.ridge.theta_hat
    found = insight.intervals(theta, limit=len(theta))
    return TableFile(("feature", "value", "half_width"), [(i.feature, i.value, i.half_width) for i in found])


async def assumptions(sources: DataSources, name: str, during: TimeRange) -> TableFile:
    """The assumptions with their states."""
    checks = (await sources.report(name)).checks
    columns = ("name", "assumption", "state", "evidence", "advice", "p_value", "level")
    return TableFile(columns, [tuple(getattr(check, column) for column in columns) for check in checks])


async def problems(sources: DataSources, name: str, during: TimeRange) -> TableFile:
    """What is wrong now, and who is missing."""
    found = await sources.problems(name)
    rows: list[tuple[Cell, ...]] = [(p.kind, p.severity, " ".join(p.agents), p.what, p.advice) for p in found.problems]
    rows += [(item.state, "missing", item.agent, item.what, item.advice) for item in found.missing]
    return TableFile(("kind", "severity", "agents", "what", "advice"), rows)


async def events(sources: DataSources, name: str, during: TimeRange) -> TableFile:
    """The events that are kept, newest first."""
    found = [event for event in await sources.events(name) if event.at in during]
    return TableFile(("at", "kind", "agent", "detail"), [(e.at, e.kind, e.agent, e.detail) for e in found])


async def arms(sources: DataSources, name: str, during: TimeRange) -> TableFile:
    """The arms of a model with blocks, by share."""
    found = (await sources.arms(name)).sorted("-share")
    rows: list[tuple[Cell, ...]] = [(a.name, a.n_obs, a.mean_reward, a.share, a.norm) for a in found]
    return TableFile(("arm", "n_obs", "mean_reward", "share", "norm"), rows)


async def agents(sources: DataSources, name: str, during: TimeRange) -> TableFile:
    """All agents at work, by name."""
    rows: list[tuple[Cell, ...]] = []
    for page in range(1, MAX_AGENTS // MAX_PER_PAGE + 1):
        found = await sources.container.store.agents(name, PageQuery(page=page, per_page=MAX_PER_PAGE))
        rows += [_agent(agent) for agent in found.agents]
        if len(found.agents) < MAX_PER_PAGE:
            break
    return TableFile(AGENT_COLUMNS, rows)


AGENT_COLUMNS = (
    *("agent", "created", "last_seen", "n_obs", "mean_reward", "n_uploads", "n_bytes", "unsent", "alpha"),
    *("n_control", "mean_control", "n_treatment", "mean_treatment", "revoked", "quarantined", "incarnation"),
)


def _agent(agent: AgentRecord) -> tuple[Cell, ...]:
    control, treatment = agent.groups.control, agent.groups.treatment
    totals = (agent.n_obs, mean_reward(agent), agent.n_uploads, agent.n_bytes, agent.unsent, alpha_of(agent.growth))
    groups = (control.n_obs, control.mean, treatment.n_obs, treatment.mean)
    state = (agent.revoked, agent.quarantined, agent.incarnation)
    return (agent.name, agent.created, agent.last_seen, *totals, *groups, *state)


TABLES: Mapping[str, Callable[[DataSources, str, TimeRange], Awaitable[TableFile]]] = {
    made.__name__: made
    for made in (
        *(reward, exchanges, information, alpha, shares, estimates, assumptions, problems),
        *(events, agents, arms),
    )
}
TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}


async def table_file(sources: DataSources, model: str, file: str, query: Mapping[str, str]) -> tuple[bytes, str]:
    """The content of a file such as `events.csv`, and its content type."""
    table, _, kind = file.partition(".")
    if table not in TABLES or kind not in TYPES:
        raise UnknownTable(
            f"there is no table {file[:50]!r}; there are {', '.join(sorted(TABLES))}, each as csv and json"
        )
    found = await TABLES[table](sources, model, TimeRange.of(query))
    return await asyncio.to_thread(found.to_csv if kind == "csv" else found.to_json), TYPES[kind]
