"""What must hold for a fleet whose agents come and go: merged + discarded + unsent = observed, to the last observation.

Features and rewards are integers, so that all sums are exact. An upload holds the observations since the one before it:
what the server merged of an agent, however the agent ended, is the beginning of the agent's record.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fedbandit.core.group_sums import NO_GROUPS, GroupSums
from fedbandit.sdk.status import Status
from tests.chaos.agent_record import DIM, pack
from tests.chaos.fleet_record import FleetRecord

FOLDED = "(retired)"
REWARD_STATUSES = ("booked", "waiting", "not_pending", "reward_conflict", "owner_ended")


class Report(NamedTuple):
    """A reward that was reported, and what the server answers to the same report at the end."""

    decision: str
    reward: float
    is_token: bool
    status: str


@dataclass
class FleetState:
    """All that is known about one model and its agents, while nothing happens."""

    model: str
    rows: dict[str, dict[str, Any]]  # the server's, with those of retired agents
    records: dict[str, FleetRecord]
    numbers: np.ndarray  # the model's state
    lam: float = 1.0
    drifts: bool = False
    n_discarded: int = 0  # by the model
    groups: GroupSums | None = None  # as the store has them; None: no control group
    folded: dict[str, dict[str, Any]] = field(default_factory=dict)  # rows of agents before they were folded
    live: dict[str, dict[str, Any]] = field(default_factory=dict)  # what agents at work report
    sizes: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)  # of uploads: observed, dropped
    owners: dict[str, str] = field(default_factory=dict)  # agents by decision, of those that were offered
    reports: list[Report] = field(default_factory=list)
    rewards: dict[str, set[float]] = field(default_factory=dict)  # of all reports, by decision
    booked: set[tuple[str, float]] = field(default_factory=set)  # by tokens, as servers said at any time
    retired: set[str] = field(default_factory=set)  # at any time
    may_wait: bool = False  # rewards of agents at work may still wait: the clocks of servers differ

    def sent(self, agent: str, row: dict[str, Any]) -> tuple[int, int]:
        """Observations in the uploads that the server counts, and dropped ones that they report."""
        found = [self.sizes[agent, sequence] for sequence in range(1, row["n_uploads"] + 1)]
        return sum(n for n, _ in found), sum(n for _, n in found)

    @property
    def by_token(self) -> dict[str, float]:
        """Decisions that the server booked by their tokens, and their rewards."""
        return dict(sorted(self.booked | {each[:2] for each in self.reports if each.is_token and each[3] == "booked"}))

    @property
    def ends(self) -> dict[str, dict[str, Any]]:
        """The row of every agent, as it is or as it was when it was folded."""
        return {**self.folded, **{name: row for name, row in self.rows.items() if name != FOLDED}}


def check_fleet(state: FleetState) -> Iterator[str]:
    """Violations, as sentences."""
    for found in (check_counts, check_agents_at_work, check_rewards):
        yield from (f"{state.model}: {words}" for words in found(state))


def check_counts(state: FleetState) -> Iterator[str]:
    """The server counts the beginning of each agent's record and what tokens booked, once, and nothing else."""
    tokens = Counter(state.owners[decision] for decision in state.by_token)
    total, groups, n_folded, n_discarded = _prior(state.lam), NO_GROUPS, 0, 0
    for agent, row in sorted(state.ends.items()):
        if row["n_uploads"] and agent not in state.records:
            yield f"{agent} has {row['n_uploads']} uploads, and no record"
            continue
        n_sent, n_dropped = state.sent(agent, row)
        record = state.records.get(agent)
        n_done = 0 if record is None else record.update().n_done
        n_counted = row["n_obs"] + row["n_discarded"]
        n_expected = n_sent + n_dropped + (tokens[agent] if agent not in state.folded else 0)
        if n_counted != n_expected and agent not in state.folded:
            yield f"{agent}: the server counts {n_counted} observations, its uploads and tokens brought {n_expected}"
        if row["sequence"] != row["n_uploads"]:
            yield f"{agent}: upload {row['sequence']} after {row['n_uploads']} merges"
        if n_sent + n_dropped > n_done:
            yield f"{agent}: the server has {n_sent + n_dropped} observations of {n_done}"
        n_folded += n_sent + n_dropped + tokens[agent] if agent in state.folded else 0
        n_discarded += row["n_discarded"] if agent not in state.folded else 0
        if record is not None and not state.drifts:
            total, groups = total + record.seen(n_sent), groups + record.groups
    held = state.rows.get(FOLDED, {"n_obs": 0, "n_discarded": 0})
    if held["n_obs"] + held["n_discarded"] != n_folded:
        yield f"folded agents have {held['n_obs'] + held['n_discarded']} observations, expected {n_folded}"
    if n_discarded + held["n_discarded"] != state.n_discarded:
        yield f"the model counts {state.n_discarded} discarded, its agents {n_discarded + held['n_discarded']}"
    if state.drifts:
        return
    for decision, reward in state.by_token.items():
        row = state.records[state.owners[decision]].made[decision].row
        total = total + pack(np.array([row]), np.array([reward]))
    if not np.array_equal(state.numbers, total):
        yield f"the model holds {state.numbers.tolist()}, expected {total.tolist()}"
    if state.groups is not None and state.groups != groups:
        yield f"rewards by group are {state.groups}, the agents recorded {groups}"


def check_agents_at_work(state: FleetState) -> Iterator[str]:
    """An agent that flushed has nothing unsent; its journal and its record agree."""
    for agent, report in state.live.items():
        row, record = state.rows.get(agent), state.records[agent].update()
        if row is None:
            yield f"{agent} is at work, and the server does not know it"
            continue
        n_sent, n_dropped = state.sent(agent, row)
        if report["unsent"] or report["in_flight"] or report["rounds"] != record.n_done:
            kept = f"{report['unsent']}+{report['in_flight']}"
            yield f"{agent}: flushed, but {kept} kept; {report['rounds']} observed, {record.n_done} recorded"
        if n_sent + n_dropped + report["dropped"] != report["rounds"]:
            yield f"{agent}: {report['rounds']} observations, of which {n_sent}+{n_dropped} were sent"
        if row["sequence"] != report["sequence"]:
            yield f"{agent}: upload {report['sequence']}, the server has {row['sequence']}"
        yield from (f"{agent}: {words}" for words in record.compare_pending(report["pending_ids"]))
        if state.drifts:
            record.seen(report["rounds"])


def check_rewards(state: FleetState) -> Iterator[str]:
    """A decision counts at most once, a reward that was accepted exactly once."""
    accepted: dict[str, set[float]] = defaultdict(set)
    for decision, reward in [*state.booked, *(each[:2] for each in state.reports if each.status == "booked")]:
        accepted[decision].add(reward)
    for decision, booked in accepted.items():
        if len(booked) > 1:
            yield f"decision {decision} was booked with the rewards {sorted(booked)}"
    by_token = state.by_token
    for each in state.reports:
        owner = state.owners[each.decision]
        record = state.records[owner]
        observed = record.reward_of(each.decision)
        if each.decision in by_token and observed is not None:
            yield f"decision {each.decision} was observed by {owner}, and booked by its token"
        if each.status not in REWARD_STATUSES:
            yield f"the reward of {each.decision} was answered {each.status}"
        if each.status == "booked" and each.decision not in by_token and observed != each.reward:
            yield f"the reward {each.reward:g} of {each.decision} was accepted, and {owner} observed {observed}"
        is_gone = each.decision in record.dropped | record.not_kept | record.dropping
        if each.status == "not_pending" and observed is None and not is_gone:
            yield f"the reward of {each.decision} was not accepted, and {owner} has none"
        if each.status == "waiting" and owner in state.live and not state.may_wait:
            yield f"the reward of {each.decision} waits for {owner}, who has collected"
        if each.status == "reward_conflict" and len(state.rewards[each.decision]) < 2:
            yield f"one reward of {each.decision} was reported, and conflicts"
        if each.status == "owner_ended" and owner not in state.retired and not each.is_token:
            yield f"the reward of {each.decision} was refused, as if {owner} had been retired"


def check_left(agent: str, status: Status, record: FleetRecord, n_sent: int) -> Iterator[str]:
    """What a directory holds when its process has ended: the observations that the server does not count."""
    record.update()
    if not record.n_done <= status.rounds <= max(record.n_tried, record.n_done):
        yield f"{agent}: its directory has {status.rounds} observations, its record {record.n_done}"
    n_left = status.rounds - n_sent
    if n_left not in (status.unsent, status.unsent + status.in_flight):  # the upload in flight may be merged
        yield f"{agent}: its directory has {status.unsent}+{status.in_flight} unsent, expected {n_left}"


def _prior(lam: float) -> np.ndarray:
    """λI, packed."""
    return np.concatenate([(lam * np.eye(DIM))[np.triu_indices(DIM)], np.zeros(DIM + 3)])
