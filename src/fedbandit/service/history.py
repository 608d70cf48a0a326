"""Events and samples of each model, collected in memory and written at most once a second; recent uploads of agents."""

from __future__ import annotations

import asyncio
import contextlib
import math
from array import array
from collections.abc import Callable
from typing import Any

from fedbandit.algorithms.messages import stats_from_bytes
from fedbandit.core.structure import ridge_model
from fedbandit.errors import FedbanditError
from fedbandit.service.exchange.ledger import IncomingUpload
from fedbandit.service.formatting import duration
from fedbandit.service.model import Model
from fedbandit.service.stores.base import AgentRecord, Contact, Event, HistoryEntry, Sample, Store
from fedbandit.service.stores.checkpoints import Checkpoint, keeps_checkpoints, next_count

MAX_BUFFERED = 1_000  # an agent that retries without end must not fill the memory
INTERVAL_S = 1.0
CONTACT_INTERVAL_S = 10.0  # between writes of when agents were last seen
MAX_CONTACTS = 100_000
MAX_STEPS = 64  # per agent; beyond them every second one of the older half is dropped
MAX_AGENTS = 20_000  # of all models; beyond them the longest inactive is dropped; 64 steps are 1.5 KB
WIDTH = 3
Step = tuple[float, float, float]  # time, observations and reward sum since the first step
STARTED_AGAIN_S = 600.0  # a process that fails and starts all the time is told of once in this time


class ModelHistory:
    """Collects entries without waiting; a background task writes them to the store."""

    def __init__(
        self, store: Store, log: Any, clock: Callable[[], float], count: Callable[[str], None] = lambda kind: None
    ) -> None:
        self._store = store
        self._count = count
        self._log = log
        self._clock = clock
        self.trails = AgentHistory()
        self._events: list[HistoryEntry] = []
        self._latest: dict[str, tuple[Model, bytes]] = {}
        self._refused: set[tuple[str, str, str]] = set()
        self._contacts: dict[tuple[str, str], float] = {}
        self._started: dict[tuple[str, str], float] = {}
        self._first_uploads: dict[tuple[str, str], Model] = {}  # of an incarnation, by uid and agent
        self.last_failure: float | None = None  # when the store did not take what was to be written
        self._contacts_written = clock()
        self._next_checkpoint: dict[str, tuple[int, int]] = {}  # uid -> generation, and n_obs from which one is due
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the background task."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Write the remaining entries and stop."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._flush()

    def event(self, model: Model, kind: str, agent: str = "", detail: str = "") -> None:
        """Add an event."""
        self._count(kind)
        if len(self._events) < MAX_BUFFERED:
            self._events.append(HistoryEntry(model.uid, Event(self._clock(), kind, agent, detail[:500])))

    def contacted(self, uid: str, agent: str) -> None:
        """Remember that an agent asked for the model, which shows that it is running."""
        if len(self._contacts) < MAX_CONTACTS:
            self._contacts[uid, agent] = self._clock()

    def started(self, model: Model, agent: AgentRecord, incarnation: str) -> None:
        """Add the start of an agent's process that continues its journal.

        A running agent names the state that it has; one that asks without has no model yet. The server cannot tell a
        kill from a stop: it sees that the same incarnation starts again.
        """
        key, now = (model.uid, agent.name), self._clock()
        is_known = now - self._started.get(key, -math.inf) < STARTED_AGAIN_S
        if not agent.n_uploads or agent.incarnation != incarnation or is_known:
            return
        if len(self._started) >= MAX_CONTACTS:
            self._started.clear()
        self._started[key] = now
        silent_s = 0.0 if agent.last_seen is None else max(now - agent.last_seen, 0.0)
        detail = f"continues its journal after upload {agent.sequence}; last seen {duration(silent_s)} before"
        self.event(model, "started_again", agent.name, detail)

    def refused(self, model: Model, agent: str, error: FedbanditError) -> None:
        """Add the refusal of an upload; at most one per second for the same agent and reason."""
        key = (model.uid, agent, error.code)
        if key not in self._refused and len(self._refused) < MAX_BUFFERED:
            self._refused.add(key)
            self.event(model, "refused", agent, f"{error.code}: {error}")

    def merged(self, model: Model, upload: IncomingUpload) -> None:
        """Add an upload to the history of its agent."""
        n_obs, reward_sum, _ = upload.numbers[-3:].tolist()
        if upload.sequence == 1 and len(self._first_uploads) < MAX_BUFFERED:
            self._first_uploads[model.uid, upload.agent] = model
        self.trails.step(model.uid, upload.agent, self._clock(), n_obs, reward_sum)

    def changed(self, model: Model, packed: bytes) -> None:
        """Remember the latest state of a model for the next sample."""
        self._latest[model.uid] = (model, packed)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self._flush()

    async def _flush(self) -> None:
        await self._add_new_incarnations()
        events, self._events = self._events, []
        latest, self._latest = self._latest, {}
        self._refused.clear()
        now = self._clock()
        contacts = self._due_contacts(now)
        if not events and not latest and not contacts:
            return
        try:
            samples = [HistoryEntry(uid, await _sample(model, packed, now)) for uid, (model, packed) in latest.items()]
            # By uid: replicas lock models in the same order.
            ordered = [latest[uid] for uid in sorted(latest)]
            checkpoints = [entry for model, packed in ordered for entry in self._checkpoint(model, packed, now)]
            await self._store.record([*events, *samples, *contacts, *checkpoints])
        except FedbanditError as error:
            self.last_failure = now
            self._log.warning("history_not_written", error=error.code, message=str(error))

    async def _add_new_incarnations(self) -> None:
        """Add an event for agents whose first upload of an incarnation was not their first upload."""
        begun, self._first_uploads = self._first_uploads, {}
        for (_, name), model in begun.items():
            with contextlib.suppress(FedbanditError):  # removed meanwhile, or the store is unavailable
                agent = await self._store.agent(model.settings.name, name)
                if agent.n_uploads > agent.sequence:
                    detail = f"incarnation {agent.incarnation[:12]}, with an empty or recovered state directory"
                    self.event(model, "new_incarnation", name, detail)

    def _due_contacts(self, now: float) -> list[HistoryEntry]:
        """Contacts, if it is time to write them; sorted, so that replicas lock rows in the same order."""
        is_due = abs(now - self._contacts_written) >= CONTACT_INTERVAL_S or self._task is None
        if not self._contacts or not is_due:
            return []
        contacts, self._contacts = self._contacts, {}
        self._contacts_written = now
        return [HistoryEntry(uid, Contact(agent, at)) for (uid, agent), at in sorted(contacts.items())]

    def _checkpoint(self, model: Model, packed: bytes, now: float) -> list[HistoryEntry]:
        """The state as a checkpoint, if one is due; the store decides whether it is kept, and which others are."""
        generation, least = self._next_checkpoint.get(model.uid, (model.generation, 1))
        is_due = model.n_obs >= least or generation != model.generation
        if not (is_due and keeps_checkpoints(model.settings.dim)):
            return []
        if len(self._next_checkpoint) > MAX_BUFFERED:  # of models that may be deleted by now
            self._next_checkpoint.clear()
        self._next_checkpoint[model.uid] = (model.generation, next_count(model.n_obs))
        return [HistoryEntry(model.uid, Checkpoint(now, model.version, model.generation, model.n_obs, packed))]


async def _sample(model: Model, packed: bytes, now: float) -> Sample:
    log_det = await asyncio.to_thread(_log_det, packed, model.settings.dim, model.settings.blocks)
    return Sample(
        at=now,
        version=model.version,
        n_obs=model.n_obs,
        reward_sum=model.reward_sum,
        n_uploads=model.n_uploads,
        n_bytes=model.n_bytes,
        log_det=log_det,
        growth=model.growth.recent,
    )


def _log_det(packed: bytes, dim: int, blocks: int) -> float:
    return ridge_model(stats_from_bytes(packed, dim, blocks)).log_det


class AgentHistory:
    """Cumulative observations and rewards after each upload; an update is a dictionary lookup and three numbers."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str], array[float]] = {}

    def step(self, uid: str, agent: str, at: float, n_obs: float, reward_sum: float) -> None:
        """An upload of this many observations was merged."""
        steps = self._steps.pop((uid, agent), None)
        if steps is None:
            steps = array("d")
            if len(self._steps) >= MAX_AGENTS:
                del self._steps[next(iter(self._steps))]
        else:
            n_obs += steps[-2]
            reward_sum += steps[-1]
        self._steps[uid, agent] = steps  # at the end: the longest inactive agents come first
        steps.extend((at, n_obs, reward_sum))
        if len(steps) > MAX_STEPS * WIDTH:
            _thin(steps)

    def of(self, uid: str, agent: str) -> list[Step]:
        """The steps of an agent, oldest first; empty without uploads since the start of this process."""
        steps = self._steps.get((uid, agent), array("d"))
        return [(steps[i], steps[i + 1], steps[i + 2]) for i in range(0, len(steps), WIDTH)]

    def drop(self, uid: str, agent: str) -> None:
        """Remove the steps of an agent that was forgotten."""
        self._steps.pop((uid, agent), None)


def _thin(steps: array[float]) -> None:
    half = MAX_STEPS // 2
    kept = array("d")
    for i in range(1, half, 2):
        kept.extend(steps[i * WIDTH : (i + 1) * WIDTH])
    steps[: half * WIDTH] = kept
