"""The assumption monitor of a server process: insight and checks of a model, computed once per version, in a thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedbandit.service.assumptions import AssumptionCheck, DataSums, data_checks, summary
from fedbandit.service.insight import ModelInsight
from fedbandit.service.stores.base import ModelState, Store

PATIENCE = 20.0  # a report is used for this many times its computation time, even if the model has changed since
NOTICEABLE_S = 0.1  # a report that takes less is computed for every version
MAX_REPORTS = 16
N_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class MonitorReport:
    """A model's insight, and all checks of its assumptions, of one version."""

    insight: ModelInsight
    checks: tuple[AssumptionCheck, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the API."""
        checks = [check.to_dict() for check in self.checks]
        return {**self.insight.to_dict(), "checks": checks, "summary": summary(self.checks)}


@dataclass(slots=True)
class _Kept:
    report: MonitorReport
    expires: float


class AssumptionMonitor:
    """Reports by model. One is computed at a time, and never in the event loop."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._kept: dict[str, _Kept] = {}
        self._computing = asyncio.Lock()

    async def report(self, name: str) -> MonitorReport:
        """The report of a model; at most `PATIENCE` computation times old where computing it takes long."""
        async with self._computing:
            model = await self._store.load(name)
            kept = self._kept.pop(name, None)
            if kept is not None and kept.report.insight.model.uid == model.uid:
                is_current = kept.report.insight.model == model
                if is_current or kept.expires > self._clock():
                    self._kept[name] = kept
                    return kept.report
            began = self._clock()
            report = await self._computed(name)
            spent = self._clock() - began
            while len(self._kept) >= MAX_REPORTS:
                del self._kept[next(iter(self._kept))]
            expires = self._clock() + PATIENCE * spent if spent > NOTICEABLE_S else 0.0
            self._kept[name] = _Kept(report, expires)
            return report

    async def _computed(self, name: str) -> MonitorReport:
        for _ in range(N_ATTEMPTS):
            before = await self._store.load(name)
            # The sums of agents are read before the state: what is merged in between is in the state only.
            sums = await DataSums.read(self._store, before)
            state = await self._store.state(name)
            if (state.model.uid, state.model.generation) == (before.uid, before.generation):
                break
        else:  # data are being taken out all the time: the sums do not belong to the state
            sums = DataSums([], [])
        return await asyncio.to_thread(_report, state, sums)


def _report(state: ModelState, sums: DataSums) -> MonitorReport:
    insight = ModelInsight(state)
    found = data_checks(state.model, state.packed, sums) if state.model.n_obs else []
    return MonitorReport(insight, (*found, *insight.guarantee.checks))
