"""What views read: the store's rows and what is computed from them, through a memory so that many may look at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fedbandit.dashboard.figures import Picture, picture_of
from fedbandit.dashboard.fresh import Fresh
from fedbandit.service.model import Model
from fedbandit.service.parts import Parts
from fedbandit.service.stores.base import Agent, AgentPage, Event, Fleet, PageQuery, Sample
from fedbandit.service.trails import Step

ACTIVE_S = 600.0  # an agent that was heard of within ten minutes counts as active
MAX_PICTURES = 16


class Sources:
    """One for each server process."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._fresh = Fresh()
        self._pictures: dict[str, Picture] = {}

    async def models(self) -> list[Model]:
        """All models, by name."""
        return await self._fresh.get("models", self.parts.store.models)

    async def model(self, name: str) -> Model:
        """One model."""
        return await self._fresh.get(("model", name), lambda: self.parts.store.load(name))

    async def samples(self, name: str) -> list[Sample]:
        """The model's time series."""
        return await self._fresh.get(("samples", name), lambda: self.parts.store.samples(name))

    async def events(self, name: str) -> list[Event]:
        """What happened lately, newest first."""
        return await self._fresh.get(("events", name), lambda: self.parts.store.events(name, limit=1000))

    async def fleet(self, name: str) -> Fleet:
        """All agents in a few numbers."""
        since = self.parts.clock() - ACTIVE_S
        return await self._fresh.get(("fleet", name), lambda: self.parts.store.fleet(name, since=since))

    async def agents(self, name: str, query: PageQuery) -> AgentPage:
        """A page of agents."""
        return await self._fresh.get(("agents", name, query), lambda: self.parts.store.agents(name, query))

    async def agent(self, name: str, agent: str) -> Agent:
        """One agent."""
        return await self._fresh.get(("agent", name, agent), lambda: self.parts.store.agent(name, agent))

    async def contribution(self, name: str, agent: str) -> bytes | None:
        """The packed sum of one agent."""
        key = ("contribution", name, agent)
        return await self._fresh.get(key, lambda: self.parts.store.contribution(name, agent))

    async def picture(self, name: str) -> Picture:
        """The model's sums, factorised; in a thread, and only when they have changed."""
        return await self._fresh.get(("picture", name), lambda: self._picture(name))

    async def shares(self, picture: Picture, agents: Sequence[Agent]) -> dict[str, float]:
        """Each agent's share of information."""
        name = picture.model.settings.name
        sums = await asyncio.gather(*(self._sum(name, agent) for agent in agents))
        return {agent.name: picture.share(total) for agent, total in zip(agents, sums, strict=True)}

    async def _sum(self, name: str, agent: Agent) -> bytes | None:
        return await self.contribution(name, agent.name) if agent.n_uploads else None

    def trail(self, model: Model, agent: str) -> list[Step]:
        """The agent's uploads since this process began."""
        return self.parts.history.trails.of(model.uid, agent)

    async def _picture(self, name: str) -> Picture:
        known = self._pictures.pop(name, None)
        state = await self.parts.store.state(name)
        if known is None or known.model != state.model:
            known = await asyncio.to_thread(picture_of, state)
        while len(self._pictures) >= MAX_PICTURES:
            del self._pictures[next(iter(self._pictures))]
        self._pictures[name] = known
        return known
