"""What is wrong with a model now, which agents are missing, and what to do: for the API and the dashboard alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fedbandit.errors import StoreUnavailable
from fedbandit.service.assumptions import AssumptionCheck
from fedbandit.service.fleet_metrics import ACTIVE_S, SILENT_S
from fedbandit.service.formatting import count, duration, plural
from fedbandit.service.gain import measured, words_of
from fedbandit.service.history import ModelHistory
from fedbandit.service.model import Model
from fedbandit.service.monitor import AssumptionMonitor
from fedbandit.service.rhythm import Rhythm, rhythm_of
from fedbandit.service.stores.base import MAX_PER_PAGE, AgentRecord, Event, FleetSummary, PageQuery, Sample, Store
from fedbandit.service.telemetry import Metrics

Severity = Literal["bad", "warn", "note"]
RECENT_S = 3_600.0  # refusals, restarts and trouble of the store are problems of now for so long
RESTORED_S = 86_400.0
NEVER_S = 3_600.0  # an agent that was enrolled so long ago should have connected
N_NAMED = 5

# What to do about an upload that was refused, by its code.
REFUSALS = {
    "sequence_gap": "was the server restored from a backup? Agents send again what it lacks, or say what they need",
    "sequence_conflict": "two processes use one identity: give each its own state directory (`fb.slots`)",
    "stale_incarnation": "an older copy of the agent runs, or it was forgotten: stop the copy, or empty its directory",
    "later_epoch": "the server was restored to a state before a restart: `fedbandit models restart`",
    "rate_exceeded": "raise `max_rate` (`fedbandit models set`) if it really observes that much, or quarantine it",
    "share_exceeded": "raise `max_share` if that influence is wanted; otherwise leave it: the agent tries again",
    "implausible_upload": "no data can give these sums: quarantine the agent, and look for a defect in that client",
    "not_finite": "the agent sends NaN or infinity: look at its features and rewards",
    "dimension_mismatch": "the agent was made for another model: check its model and its number of features",
    "model_changed": "nothing: the agent sends it again",
    "reward_conflict": "two rewards were reported for one decision, and the first holds: look for two reporters",
    "copied_state": "a disk or an image was cloned: give the copy a state directory of its own",
}
ASK_THE_LOG = "the server's log has the request"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong now, or worth knowing; `word` is its entry in the glossary."""

    kind: (
        str  # stable: assumption, worse_than_control, refused, store, quarantined, restarted, restored, rewards_expired
    )
    severity: Severity
    what: str
    advice: str
    word: str
    agents: tuple[str, ...] = ()
    at: float | None = None


@dataclass(frozen=True, slots=True)
class MissingAgent:
    """An agent that should have been seen by now."""

    agent: str
    state: str  # overdue, silent, never
    what: str
    advice: str
    last_seen: float | None
    rhythm: Rhythm


@dataclass(frozen=True, slots=True)
class ProblemReport:
    """Problems, the worst first, and the agents that are missing, among the `n_compared` that were silent longest."""

    problems: tuple[Problem, ...]
    missing: tuple[MissingAgent, ...]
    n_compared: int
    n_silent: int  # agents without contact in the last ten minutes

    @property
    def is_clear(self) -> bool:
        """Whether nothing is wrong and nobody missing."""
        return not self.missing and all(problem.severity == "note" for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the API."""
        missing = [{**asdict(item), "rhythm": item.rhythm.to_dict()} for item in self.missing]
        problems = [asdict(problem) for problem in self.problems]
        return {
            "problems": problems,
            "missing": missing,
            "n_compared": self.n_compared,
            "n_silent": self.n_silent,
            "is_clear": self.is_clear,
        }


class ProblemFinder:
    """Finds the problems of models; remembers when the store failed last."""

    def __init__(
        self,
        store: Store,
        monitor: AssumptionMonitor,
        history: ModelHistory,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self._store, self._monitor, self._history, self._clock = store, monitor, history, clock
        self._registry = metrics.registry
        self._n_failures = 0.0
        self._failed_at: float | None = None

    async def report(self, name: str) -> ProblemReport:
        """The problems of one model now."""
        store, now = self._store, self._clock()
        monitored = await self._monitor.report(name)
        events, samples = await store.events(name, limit=1000), await store.samples(name)
        fleet = await store.fleet(name, since=now - ACTIVE_S)
        page = await store.agents(name, PageQuery(per_page=MAX_PER_PAGE, sort="last_seen"))
        model = monitored.insight.model
        problems = [
            *assumption_problems(monitored.checks),
            *self._store_problems(now),
            *_gain_problems(model),
            *refusal_problems(events, now),
            *_fleet_problems(fleet),
            *_event_problems(events, now),
        ]
        order: list[Severity] = ["bad", "warn", "note"]
        problems.sort(key=lambda problem: order.index(problem.severity))
        n_silent = max(fleet.n_agents - fleet.n_active - fleet.n_revoked, 0)
        missing = self._missing(model, page.agents, samples, now)
        return ProblemReport(tuple(problems), tuple(missing), len(page.agents), n_silent)

    def _store_problems(self, now: float) -> list[Problem]:
        labels = {"reason": StoreUnavailable.code}
        n_failures = self._registry.get_sample_value("fedbandit_refusals_total", labels) or 0.0
        if n_failures > self._n_failures:
            self._n_failures, self._failed_at = n_failures, now
        written = self._history.last_failure
        at = max((moment for moment in (self._failed_at, written) if moment is not None), default=None)
        if at is None or now - at > RECENT_S:
            return []
        what = (
            f"the store was unavailable in the last hour: {plural(int(n_failures), 'request')} failed since the start"
        )
        advice = "look at the disk or the database, and at `/readyz`; agents keep their data and send again"
        return [Problem("store", "bad", what, advice, "store", at=at)]

    def _missing(
        self, model: Model, agents: Sequence[AgentRecord], samples: Sequence[Sample], now: float
    ) -> list[MissingAgent]:
        found = []
        for agent in agents:
            if agent.revoked or (agent.last_seen is not None and now - agent.last_seen <= ACTIVE_S):
                continue
            steps = self._history.trails.of(model.uid, agent.name)
            missing = missing_agent(agent, rhythm_of(steps, samples, max_silence_s=model.settings.max_silence_s), now)
            if missing is not None:
                found.append(missing)
        return found


def missing_agent(agent: AgentRecord, rhythm: Rhythm, now: float) -> MissingAgent | None:
    """The agent, if it has no contact and should have: compared with its own rhythm, or for a day."""
    if agent.last_seen is None:
        if now - agent.created < NEVER_S:
            return None
        what = f"enrolled {duration(now - agent.created)} ago, never connected"
        advice = "start it with its token, or retire it (`fedbandit agents retire`)"
        return MissingAgent(agent.name, "never", what, advice, None, rhythm)
    silent_s = now - agent.last_seen
    unsent = f", {count(agent.unsent)} observations unsent" if agent.unsent else ""
    if rhythm.is_overdue(now):
        what = f"no contact for {duration(silent_s)}{unsent}; its upload is {rhythm.words(now)}"
        advice = "is its process running, and does it reach the server? It loses nothing meanwhile"
        return MissingAgent(agent.name, "overdue", what, advice, agent.last_seen, rhythm)
    if silent_s < SILENT_S:
        return None
    what = f"no contact for {duration(silent_s)}{unsent}; next upload {rhythm.words(now)}"
    advice = "if it was switched off for good, retire it (`fedbandit agents retire`); its data stay"
    return MissingAgent(agent.name, "silent", what, advice, agent.last_seen, rhythm)


def assumption_problems(checks: Sequence[AssumptionCheck]) -> list[Problem]:
    """Assumptions that the data contradict."""
    return [
        Problem("assumption", "bad", f"{check.assumption}: {check.evidence}", check.advice, "assumptions")
        for check in checks
        if check.state == "contradicted"
    ]


def refusal_problems(events: Sequence[Event], now: float) -> list[Problem]:
    """Uploads, and reports of rewards, that were refused in the last hour, by reason."""
    recent = [event for event in events if event.kind == "refused" and now - event.at <= RECENT_S]
    found = []
    for code, n in Counter(_code(event) for event in recent).most_common():
        of_code = [event for event in recent if _code(event) == code]
        agents = tuple(dict.fromkeys(event.agent for event in of_code if event.agent))
        source = f", from {plural(len(agents), 'agent')}" if agents else ""
        thing = "report" if code.startswith("reward") else "upload"
        what = f"{plural(n, thing)} refused in the last hour ({code}){source}"
        advice = REFUSALS.get(code, ASK_THE_LOG)
        found.append(Problem("refused", "bad", what, advice, "refused", agents[:N_NAMED], of_code[0].at))
    return found


def _code(event: Event) -> str:
    return event.detail.partition(":")[0]


def _gain_problems(model: Model) -> list[Problem]:
    if not model.settings.control:
        return []
    gain = measured(model)
    if gain.state != "worse":
        return []
    advice = "the application's default earns more: look at the features, and at the assumptions below"
    return [Problem("worse_than_control", "bad", words_of(gain), advice, "control")]


def _fleet_problems(fleet: FleetSummary) -> list[Problem]:
    if not fleet.n_quarantined:
        return []
    what = f"{plural(fleet.n_quarantined, 'agent')} in quarantine: their data are not in the model"
    advice = (
        "release them (`fedbandit agents release`) or forget them; `fedbandit agents show` says what they would change"
    )
    return [Problem("quarantined", "warn", what, advice, "quarantine")]


def _event_problems(events: Sequence[Event], now: float) -> list[Problem]:
    found = []
    restarted = _last(events, "restarted", now - RECENT_S)
    if restarted is not None:
        what = f"the model was restarted at its prior: {restarted.detail}"
        advice = "nothing, if the world changed; agents learn anew and decide on less data meanwhile"
        found.append(Problem("restarted", "warn", what, advice, "restart", at=restarted.at))
    expired = _last(events, "rewards_expired", now - RESTORED_S)
    if expired is not None:
        what = f"rewards that no agent collected were dropped: {expired.detail}"
        advice = "are the agents that made these decisions still running? Retired ones cannot collect"
        found.append(Problem("rewards_expired", "warn", what, advice, "reward", at=expired.at))
    restored = _last(events, "restored", now - RESTORED_S)
    if restored is not None:
        what = f"the server was restored from a backup: {restored.detail}"
        advice = "agents send again what it lacks; whoever was retired since the backup must be retired again"
        found.append(Problem("restored", "note", what, advice, "restore", at=restored.at))
    return found


def _last(events: Sequence[Event], kind: str, since: float) -> Event | None:
    return next((event for event in events if event.kind == kind and event.at >= since), None)
