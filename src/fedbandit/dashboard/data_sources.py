"""The data of the views: the store's rows and what is computed from them, in one cache for all visitors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedbandit.service.arms import ArmTable, arm_table
from fedbandit.service.container import Container
from fedbandit.service.history import Step
from fedbandit.service.insight import LargestShares, ModelInsight, largest_shares
from fedbandit.service.model import Model
from fedbandit.service.monitor import MonitorReport
from fedbandit.service.problems import ProblemReport
from fedbandit.service.rhythm import Rhythm, rhythm_of
from fedbandit.service.stores.base import AgentPage, AgentRecord, Event, FleetSummary, PageQuery, Sample

T = TypeVar("T")
TTL_S = 0.9
PATIENCE = 20.0  # a value is cached for this many times its computation time
MAX_ENTRIES = 512
ACTIVE_S = 600.0  # an agent that was seen within ten minutes counts as active
MAX_INSIGHTS = 16


@dataclass(slots=True)
class _CachedValue:
    task: asyncio.Task[Any]
    expires: float = float("inf")


class TtlCache:
    """Values by key for a short time; concurrent readers of a missing one wait for the same computation."""

    def __init__(self, ttl_s: float = TTL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries: dict[Hashable, _CachedValue] = {}

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """The value of this key, cached for a short time; an error is raised for all readers and not cached."""
        entry = self._entries.get(key)
        if entry is None or entry.expires <= self._clock():
            entry = self._start(key, make)
        # Shielded: a visitor that disconnects must not cancel it for the others.
        result: T = await asyncio.shield(entry.task)
        return result

    def _start(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> _CachedValue:
        began = self._clock()

        async def work() -> T:
            return await make()

        entry = _CachedValue(asyncio.get_running_loop().create_task(work()))

        def finished(task: asyncio.Task[T]) -> None:
            failed = task.cancelled() or task.exception() is not None
            now = self._clock()
            entry.expires = now if failed else now + max(self._ttl_s, PATIENCE * (now - began))

        entry.task.add_done_callback(finished)
        self._entries.pop(key, None)
        while len(self._entries) >= MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = entry
        return entry


class DataSources:
    """The cached data of one server process."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self._cache = TtlCache()
        self._insights: dict[str, ModelInsight] = {}

    async def models(self) -> list[Model]:
        """All models, by name."""
        return await self._cache.get("models", self.container.store.models)

    async def samples(self, name: str) -> list[Sample]:
        """The model's time series."""
        return await self._cache.get(("samples", name), lambda: self.container.store.samples(name))

    async def events(self, name: str) -> list[Event]:
        """Recent events, newest first."""
        return await self._cache.get(("events", name), lambda: self.container.store.events(name, limit=1000))

    async def fleet(self, name: str) -> FleetSummary:
        """Summary of all agents."""
        since = self.container.clock() - ACTIVE_S
        return await self._cache.get(("fleet", name), lambda: self.container.store.fleet(name, since=since))

    async def agents(self, name: str, query: PageQuery) -> AgentPage:
        """A page of agents."""
        return await self._cache.get(("agents", name, query), lambda: self.container.store.agents(name, query))

    async def agent(self, name: str, agent: str) -> AgentRecord:
        """One agent."""
        return await self._cache.get(("agent", name, agent), lambda: self.container.store.agent(name, agent))

    async def contribution(self, name: str, agent: AgentRecord) -> bytes | None:
        """The packed sum of one agent, if it counts in the model."""
        if not agent.counts:
            return None
        key = ("contribution", name, agent.name)
        return await self._cache.get(key, lambda: self.container.store.contribution(name, agent.name))

    async def insight(self, name: str) -> ModelInsight:
        """The model's sums, factorised; in a thread, and only when they have changed."""
        return await self._cache.get(("insight", name), lambda: self._insight(name))

    async def report(self, name: str) -> MonitorReport:
        """The model's insight with the checks of all its assumptions."""
        return await self._cache.get(("report", name), lambda: self.container.monitor.report(name))

    async def problems(self, name: str) -> ProblemReport:
        """What is wrong now, and who is missing."""
        return await self._cache.get(("problems", name), lambda: self.container.problems.report(name))

    async def arms(self, name: str) -> ArmTable:
        """The arms of a model with blocks."""
        insight = await self.insight(name)
        return await self._cache.get(("arms", name), lambda: asyncio.to_thread(arm_table, insight))

    async def kappas(self, insight: ModelInsight, agents: Sequence[AgentRecord]) -> dict[str, float | None]:
        """κ of each agent, from its merged sums; empty for a model without."""
        if insight.model.settings.personal is None:
            return {}
        name = insight.model.settings.name

        async def kappa(agent: AgentRecord) -> float | None:
            total = await self.contribution(name, agent)
            key = ("kappa", name, agent.name)
            return await self._cache.get(key, lambda: asyncio.to_thread(insight.kappa, total))

        # One after the other: each is a few factorisations, in a thread.
        return {agent.name: await kappa(agent) for agent in agents}

    async def rhythm(self, model: Model, agent: str) -> Rhythm:
        """When the next upload of an agent is expected."""
        samples = await self.samples(model.settings.name)
        return rhythm_of(self.agent_history(model, agent), samples, max_silence_s=model.settings.max_silence_s)

    async def shares(self, insight: ModelInsight, agents: Sequence[AgentRecord]) -> dict[str, float]:
        """Each agent's share of information."""
        name = insight.model.settings.name
        sums = await asyncio.gather(*(self.contribution(name, agent) for agent in agents))
        return {agent.name: insight.share(total) for agent, total in zip(agents, sums, strict=True)}

    async def largest_shares(self, insight: ModelInsight, limit: int) -> LargestShares:
        """The largest shares of all agents; of those with most observations where there are too many to compare."""
        key = ("largest", insight.model.settings.name, limit)
        return await self._cache.get(key, lambda: largest_shares(self.container.store, insight, limit))

    def agent_history(self, model: Model, agent: str) -> list[Step]:
        """The agent's uploads since this process began."""
        return self.container.history.trails.of(model.uid, agent)

    async def _insight(self, name: str) -> ModelInsight:
        known = self._insights.pop(name, None)
        state = await self.container.store.state(name)
        if known is None or known.model != state.model:
            known = await asyncio.to_thread(ModelInsight, state)
        while len(self._insights) >= MAX_INSIGHTS:
            del self._insights[next(iter(self._insights))]
        self._insights[name] = known
        return known


@dataclass(frozen=True, slots=True)
class ViewContext:
    """The input of a view: the data, the parts of its path and its query."""

    sources: DataSources
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
