"""Gauges of each model's fleet, read from the store when Prometheus asks; the same on every replica."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from fedbandit.errors import FedbanditError
from fedbandit.service.model import Model
from fedbandit.service.stores.base import Store

ACTIVE_S = 600.0  # agents send a request at least every 5 minutes
SILENT_S = 86_400.0
KEEP_S = 10.0  # between reads; several scrapers share them
STATES = ("enrolled", "active", "silent", "revoked", "quarantined")


class FleetMetrics:
    """Agents by state, unsent observations and rewards of every model, never a label per agent."""

    def __init__(self, registry: CollectorRegistry, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._read_at: float | None = None
        self._models: set[str] = set()
        self._agents = Gauge(
            "fedbandit_agents",
            "Agents: enrolled, active in the last 10 minutes, silent for a day (not revoked), revoked, quarantined",
            ["model", "state"],
            registry=registry,
        )
        labels = ["model"]
        self._unsent = Gauge(
            "fedbandit_unsent_observations", "Observations unsent as of each last upload", labels, registry=registry
        )
        self._rewards_waiting = Gauge(
            "fedbandit_rewards_waiting", "Rewards that no agent has collected", labels, registry=registry
        )
        self._reward_sum = Gauge("fedbandit_reward_sum", "Sum of the merged rewards", labels, registry=registry)
        self._n_obs = Gauge(
            "fedbandit_reward_observations", "Observations behind fedbandit_reward_sum", labels, registry=registry
        )
        self._alpha = Gauge("fedbandit_alpha", "The model's alpha", labels, registry=registry)

    async def update(self, store: Store, now: float) -> None:
        """Read the store, at most every few seconds; during an outage the last values stay."""
        if self._read_at is not None and self._clock() - self._read_at < KEEP_S:
            return
        try:
            models = await store.models()
            for model in models:
                await self._update_model(store, model, now)
        except FedbanditError:  # a model was deleted just now, or the store is unavailable: fedbandit_store_up tells
            return
        self._read_at = self._clock()
        for name in self._models - {model.settings.name for model in models}:
            self._forget(name)
        self._models = {model.settings.name for model in models}

    async def _update_model(self, store: Store, model: Model, now: float) -> None:
        name = model.settings.name
        fleet = await store.fleet(name, since=now - ACTIVE_S)
        lately = await store.fleet(name, since=now - SILENT_S)
        silent = max(fleet.n_agents - fleet.n_revoked - lately.n_active, 0)
        counts = (fleet.n_agents, fleet.n_active, silent, fleet.n_revoked, fleet.n_quarantined)
        for state, n in zip(STATES, counts, strict=True):
            self._agents.labels(name, state).set(n)
        self._unsent.labels(name).set(fleet.unsent)
        self._reward_sum.labels(name).set(model.reward_sum)
        self._rewards_waiting.labels(name).set(model.n_rewards)
        self._n_obs.labels(name).set(model.n_obs)
        self._alpha.labels(name).set(model.settings.alpha)

    def _forget(self, name: str) -> None:
        for state in STATES:
            self._agents.remove(name, state)
        for gauge in (self._unsent, self._rewards_waiting, self._reward_sum, self._n_obs, self._alpha):
            gauge.remove(name)
