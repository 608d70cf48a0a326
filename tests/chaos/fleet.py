"""The fleets of a run: their models, processes, records and checks."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

import fedbandit as fb
from fedbandit.core.group_sums import GroupSums
from fedbandit.errors import InvalidParameter, NotReachable
from fedbandit.wire.codec import decode_reply
from tests.chaos.agent_record import AgentRecord, dense_numbers
from tests.chaos.fleet_checks import FleetState, Report, check_fleet, check_left
from tests.chaos.fleet_operator import LAM, MODELS, FleetOperator
from tests.chaos.fleet_record import FleetRecord, Listing, record_name
from tests.chaos.processes import ChildProcess, Postgres
from tests.chaos.schedule import REPORTER, fleet_agents
from tests.chaos.tools import FILE
from tests.chaos.traffic_monitor import TrafficMonitor

# Refusals that agents which were retired, and reports of the same decision, are expected to get.
EXPECTED = frozenset(
    {
        "retired",
        "unauthenticated",
        "already_exists",
        "enrolment_ended",
        "copied_state",  # a start that was delayed and arrives after the next one; its reply is not delivered
        "reward_conflict",
        "owner_ended",
    }
)
NOBODY = "http://127.0.0.1:9"  # an address where nobody answers
N_OLD = 300  # reports of earlier phases that are repeated at a checkpoint
Start = Callable[[str, str, list[str]], ChildProcess]


class Fleet:
    """All fleets; `live` has what the agents reported at the last checkpoint, by model and agent."""

    def __init__(self, folder: Path, ports: list[int], admin_token: str, seed: int) -> None:
        self.folder, self.records_folder = folder, folder / "fleet"
        self.records_folder.mkdir(parents=True)
        self.operator = FleetOperator(ports, admin_token, self.records_folder)
        self.monitors = {model: TrafficMonitor(model, EXPECTED) for model in MODELS}
        self.processes: dict[str, ChildProcess] = {}
        self.process_records: dict[str, AgentRecord] = {}
        self.records: dict[str, dict[str, FleetRecord]] = {model: {} for model in MODELS}
        self.live: dict[str, dict[str, dict[str, Any]]] = {}
        self.counts: Counter[str] = Counter()
        self._rng = random.Random(f"reports {seed}")
        self._listings: dict[Path, Listing] = {}
        self._owners: dict[str, dict[str, str]] = {model: {} for model in MODELS}
        self._tokens: dict[str, dict[str, str]] = {model: {} for model in MODELS}
        # Every distinct report: model -> (decision, reward, by its token); the last dictionary is of this phase.
        self._reports: dict[str, set[tuple[str, float, bool]]] = {model: set() for model in MODELS}
        self._new: dict[str, set[tuple[str, float, bool]]] = {model: set() for model in MODELS}
        self._booked: dict[str, set[tuple[str, float, bool]]] = {model: set() for model in MODELS}

    def start(self, url: str, state: Path, pace_s: float, make: Start) -> None:
        """Create the models, then start the processes."""
        self.operator.create()
        words = {
            name: [url, "", name, str(self.folder), str(state / name), str(pace_s), "8"] for name in fleet_agents()
        }
        for name in fleet_agents():
            self.processes[name] = make(name, "fleet_agent", words[name])
            self.process_records[name] = AgentRecord(self.folder / f"{name}.record")
        self.processes[REPORTER] = make(REPORTER, "fleet_reporter", [url, str(self.folder), str(pace_s)])
        for child in self.processes.values():
            child.start()

    # -- rewards from elsewhere

    def repeat_reports(self) -> None:
        """Report again all that was reported in this phase, and some of what was reported before."""
        for model in MODELS:
            self._read(model)
            self._report(model)

    def _read(self, model: str) -> None:
        for path in sorted(self.records_folder.glob(f"{model}*.offers")) + sorted(
            self.records_folder.glob(f"{model}+*.reports")
        ):
            for line in self._listings.setdefault(path, Listing(path)).new_lines():
                self._take(model, line)

    def _take(self, model: str, line: dict[str, Any]) -> None:
        if "agent" in line:
            self._owners[model][line["decision"]] = line["agent"]
            if "token" in line:
                self._tokens[model][line["decision"]] = line["token"]
        elif "decision" in line:
            found = (line["decision"], line["reward"], line["token"] is not None)
            self.counts[f"reports_by_{line['by']}"] += 1
            self.counts["reports_with_a_token"] += line["token"] is not None
            self.counts["reports_repeated"] += found in self._reports[model]
            self._reports[model].add(found)
            self._new[model].add(found)
        elif "answer" in line:
            self.counts[f"answered_{line['answer']}"] += 1

    def _chosen(self, model: str) -> list[tuple[str, float, bool]]:
        """Those of this phase, all that a token booked, and some others."""
        old = sorted(self._reports[model] - self._new[model])
        some = self._rng.sample(old, min(N_OLD, len(old)))
        tokens = {each for each in self._reports[model] if each[2]}
        return sorted({*self._new[model], *some, *tokens})

    def _report(self, model: str) -> list[Report]:
        """Report the chosen ones again; what the server answers."""
        chosen = self._chosen(model)
        statuses = self.operator.report(model, self._bodies(model, chosen))
        found = [Report(*each, status) for each, status in zip(chosen, statuses, strict=True)]
        booked = {(each.decision, each.reward) for each in found if each.is_token and each.status == "booked"}
        self.monitors[model].booked |= booked
        return found

    def _bodies(self, model: str, reports: list[tuple[str, float, bool]]) -> list[dict[str, Any]]:
        tokens = self._tokens[model]
        return [{"decision": tokens[d] if by_token else d, "reward": reward} for d, reward, by_token in reports]

    # -- checks

    def check(self, reports: dict[str, dict[str, Any]], environment: Any, *, may_wait: bool) -> Iterator[str]:
        """All that must hold; `reports` of the agent processes by name."""
        self.live = defaultdict(dict)
        for name, report in reports.items():
            if report["agent_id"] in self.live[report["model"]]:
                yield f"{name}: two processes run the agent {report['agent_id']}"
            self.live[report["model"]][report["agent_id"]] = report
        for model in MODELS:
            state = self.state_of(model, environment, may_wait=may_wait)
            yield from check_fleet(state)
            yield from self._check_records(model, state)
            yield from self._check_enrolments(model, state)
            self._count(model, state)
            self._new[model].clear()
            yield from self.monitors[model].violations
            self.monitors[model].violations.clear()
        for name, record in self.process_records.items():
            yield from (f"{name}: {words}" for words in record.update().violations)
            record.violations.clear()

    def state_of(self, model: str, environment: Any, *, may_wait: bool) -> FleetState:
        """Everything about a model, read while nothing happens."""
        self._read(model)
        for path in self.records_folder.glob(f"{model}+*.record"):
            self.records[model].setdefault(path.stem.partition("+")[2], FleetRecord(path))
        for record in self.records[model].values():
            record.update()
        found = self._report(model)
        rewards: dict[str, set[float]] = defaultdict(set)
        for decision, reward, _ in self._reports[model]:
            rewards[decision].add(reward)
        rows = {**(self.operator.rows(model, retired=False) or {}), **(self.operator.rows(model, retired=True) or {})}
        description = environment.call("GET", f"/v1/models/{model}")
        reply = decode_reply(environment.request("GET", f"/v1/models/{model}/state").data)
        return FleetState(
            model,
            rows,
            self.records[model],
            np.asarray(dense_numbers(reply)),
            lam=LAM,
            drifts="drift" in MODELS[model],
            n_discarded=description["n_discarded"],
            groups=stored_groups(model, environment) if "control" in MODELS[model] else None,
            folded={agent: row for (of, agent), row in self.operator.folded.items() if of == model},
            live=self.live[model],
            sizes=self.monitors[model].sizes,
            owners=self._owners[model],
            reports=found,
            rewards=rewards,
            booked=self.monitors[model].booked,
            retired={agent for of, agent in self.operator.retired if of == model},
            may_wait=may_wait,
        )

    def _check_records(self, model: str, state: FleetState) -> Iterator[str]:
        for agent, record in state.records.items():
            yield from (f"{model}: {agent}: {words}" for words in record.violations)
            record.violations.clear()

    def _check_enrolments(self, model: str, state: FleetState) -> Iterator[str]:
        """One agent and one use for each machine, however often it was killed."""
        uses = Counter(row["enrolment"] for row in state.ends.values() if row["enrolment"])
        for name, n_used in self.operator.enrolments(model).items():
            if n_used != uses[name]:
                yield f"{model}: enrolment {name} was used {n_used} times by {uses[name]} agents"
        agents = {agent for agent, row in state.ends.items() if row["enrolment"]}
        found = list(identities(self.folder / "fleet-state", model))
        nonces: dict[str, set[str]] = defaultdict(set)
        for _, identity in found:
            nonces[identity["agent"]].add(identity["nonce"])
        n_open = sum(not identity["agent"] for _, identity in found)
        if len(agents - nonces.keys()) > n_open:
            unclaimed = sorted(agents - nonces.keys())
            yield f"{model}: {len(unclaimed)} agents were enrolled for {n_open} machines: {unclaimed[:3]}"
        for agent, several in nonces.items():
            if agent and len(several) > 1:
                yield f"{model}: agent {agent} belongs to {len(several)} machines"
        for path, identity in found:
            if path.parent.name.startswith("set-aside-") and identity["agent"] not in state.retired:
                yield f"{model}: {identity['agent']} was set aside, and never retired"
        self.counts[f"enrolled_{model}"] = len(agents)

    def _count(self, model: str, state: FleetState) -> None:
        n_done = sum(record.n_done for record in state.records.values())
        n_merged = sum(row["n_obs"] for row in state.rows.values())
        self.counts[f"observed_{model}"] = n_done + len(state.by_token)
        self.counts[f"merged_{model}"] = n_merged
        self.counts[f"discarded_{model}"] = state.n_discarded
        self.counts[f"agents_at_work_{model}"] = len(state.live)
        self._booked[model].update(
            (each.decision, each.reward, each.is_token) for each in state.reports if each.status == "booked"
        )
        self.counts["rewards_booked_by_owners"] = sum(not by for each in self._booked.values() for _, _, by in each)
        self.counts["rewards_booked_by_tokens"] = sum(by for each in self._booked.values() for _, _, by in each)
        if state.groups is not None:
            self.counts["control_observations"] = state.groups.control.n_obs
            self.counts["treatment_observations"] = state.groups.treatment.n_obs

    def check_left(self) -> Iterator[str]:
        """At the end, when all processes of the fleets have ended: each directory has what the server does not count.

        Agents are opened without a server. Those of a model that restarts drop observations: they are left out.
        """
        for path in sorted((self.folder / "fleet-state").glob("**/journal.db")):
            name = path.relative_to(self.folder / "fleet-state").parts[0]
            model = "shop" if name.startswith("shop") else "pods"
            if name.startswith("mover"):
                continue
            token = {"token": "fb_nobody-answers"} if name.startswith("worker") else {}
            try:
                agent = fb.connect(NOBODY, model=model, state_dir=path.parent, sync="inline", timeout_s=1.0, **token)
            except (NotReachable, InvalidParameter):  # killed before the agent had begun
                self.counts["directories_without_an_agent"] += 1
                continue
            status = agent.status()
            agent.close()
            record = self.records[model].get(status.agent_id)
            if record is None:
                record = FleetRecord(self.records_folder / record_name(model, status.agent_id))
            row = self.operator.folded.get((model, status.agent_id)) or self.operator.row(model, status.agent_id)
            n_sent = sum(self.monitors[model].sizes[status.agent_id, n + 1][0] for n in range(row["n_uploads"]))
            yield from (f"{model}: {words}" for words in check_left(status.agent_id, status, record, n_sent))
            self.counts["directories_left"] += 1
            self.counts["unsent_in_directories"] += status.rounds - n_sent

    def all_learn(self) -> bool:
        """Whether every agent that was at work has observed something since."""
        return all(
            self.records[model][agent].update().n_done > report["rounds"]
            for model, reports in self.live.items()
            for agent, report in reports.items()
        )


def identities(state: Path, model: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The identity files of a model's machines, with those that were set aside."""
    kinds = {"pods": ("pod",), "shop": ("shop-slots",), "moving": ("mover",)}[model]
    for path in sorted(state.glob("**/identity")):
        if path.relative_to(state).parts[0].startswith(kinds):
            found = json.loads(path.read_text())
            if found["nonce"]:
                yield path, found


def stored_groups(model: str, environment: Any) -> GroupSums:
    """Rewards by group as the store has them."""
    query = "SELECT reward_groups FROM models WHERE name = "
    if environment.postgres is None:
        path = environment.folder / "data" / "server" / FILE
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as store:
            (found,) = store.execute(query + "?", (model,)).fetchone()
    else:
        found = asyncio.run(_fetch(environment.postgres, query + "$1", model))
    return GroupSums.from_bytes(bytes(found))


async def _fetch(postgres: Postgres, query: str, value: str) -> bytes:
    import asyncpg

    connection = await asyncpg.connect(postgres.address, timeout=10.0)
    try:
        return bytes(await connection.fetchval(query, value))
    finally:
        await connection.close()
