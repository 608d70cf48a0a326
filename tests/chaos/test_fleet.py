"""The fleets of the harness: their schedule is reproducible, and each of their checks detects a violation."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.core.group_sums import GroupSums
from fedbandit.core.radius import Fixed
from fedbandit.sdk.durable_agent import DurableAgent
from fedbandit.sdk.in_process import LocalServer
from fedbandit.wire.settings import ModelDescription, ModelSettings
from tests.chaos.agent_record import DIM, RecordWriter, pack
from tests.chaos.fleet_checks import FleetState, Report, _prior, check_fleet, check_left
from tests.chaos.fleet_record import Books, FleetRecord, Listing, record_name
from tests.chaos.fleet_reporter import Offers
from tests.chaos.schedule import FLEET, fleet_agents, fleet_phases
from tests.chaos.traffic_monitor import Monitors, TrafficMonitor, model_of

ROW = [1.0, 0.0, 2.0, -1.0]


def test_a_seed_replays_and_every_kind_occurs() -> None:
    plan = [fleet_phases(seed, store="sqlite", n_phases=3, phase_s=45.0, gap_s=1.5) for seed in (1, 1, 2)]
    assert plan[0] == plan[1] != plan[2]
    actions = [action for phase in plan[0] for action in phase]
    assert {action.kind for action in actions} == FLEET.keys()
    assert {action.target for action in actions} <= {*fleet_agents(), "reporter"}


# -- a fleet of two agents, one of which was retired with an observation unsent


def observation(writer: RecordWriter, n: int, reward: float, decision: str, group: str = "treatment") -> None:
    writer.write(made=decision, row=ROW, group=group)
    writer.write(**{"try": n, "rows": [ROW], "rewards": [reward], "decision": decision})
    writer.write(done=n + 1)


def sums(*rewards: float) -> np.ndarray:
    return pack(np.array([ROW for _ in rewards]), np.array(rewards))


@pytest.fixture
def state(tmp_path: Path) -> FleetState:
    """`a` observed d-0 and d-1 itself and d-2 for another process; `b` observed e-0, gave e-1 up, and was retired."""
    writers = {name: RecordWriter(tmp_path / f"pods+{name}.record") for name in ("a", "b")}
    for n, reward in enumerate((1.0, 2.0, 3.0)):
        observation(writers["a"], n, reward, f"d-{n}", "control" if n == 0 else "treatment")
    writers["a"].write(made="d-3", row=ROW, group="treatment")
    observation(writers["b"], 0, -1.0, "e-0")
    writers["b"].write(made="e-1", row=ROW, group="treatment")
    writers["b"].write(dropping=["e-1"])
    writers["b"].write(dropped=["e-1"])
    observation(writers["b"], 1, -2.0, "e-2")
    counts = {"n_discarded": 0, "enrolment": ""}
    return FleetState(
        "pods",
        rows={
            "a": {**counts, "n_uploads": 2, "sequence": 2, "n_obs": 3},
            "b": {**counts, "n_uploads": 1, "sequence": 1, "n_obs": 2},
        },
        records={name: FleetRecord(tmp_path / f"pods+{name}.record") for name in ("a", "b")},
        numbers=_prior(1.0) + sums(1.0, 2.0, 3.0, -1.0) + sums(2.0),
        live={
            "a": {"rounds": 3, "unsent": 0, "in_flight": 0, "sequence": 2, "dropped": 0, "pending_ids": ["d-3"]},
        },
        sizes={("a", 1): (2, 0), ("a", 2): (1, 0), ("b", 1): (1, 0), ("b", 2): (1, 0)},
        owners={"d-1": "a", "d-2": "a", "d-3": "a", "e-1": "b", "e-2": "b"},
        reports=[
            Report("d-1", 3.0, False, "not_pending"),
            Report("d-2", 3.0, False, "booked"),
            Report("d-2", 1.0, False, "reward_conflict"),
            Report("e-1", 2.0, True, "booked"),
            Report("e-2", 2.0, False, "owner_ended"),
        ],
        rewards={"d-1": {3.0}, "d-2": {1.0, 3.0}, "d-3": {1.0}, "e-1": {2.0, 3.0}, "e-2": {2.0}},
        retired={"b"},
    )


def found(state: FleetState) -> list[str]:
    return [words.partition(": ")[2] for words in check_fleet(state)]


def test_a_fleet_without_a_fault_has_no_violation(state: FleetState) -> None:
    assert found(state) == []


def test_a_decision_that_is_counted_twice_is_found(state: FleetState) -> None:
    state.numbers = state.numbers + sums(3.0)  # d-2, observed by its owner, and booked once more by the server
    assert [words.split(" holds ")[0] for words in found(state)] == ["the model"]
    state.rows["a"]["n_obs"] += 1
    assert "a: the server counts 4 observations, its uploads and tokens brought 3" in found(state)


def test_a_token_that_is_booked_twice_is_found(state: FleetState) -> None:
    state.numbers = state.numbers + sums(2.0)
    state.rows["b"]["n_obs"] += 1
    assert "b: the server counts 3 observations, its uploads and tokens brought 2" in found(state)


def test_a_token_of_a_decision_that_its_owner_observed_is_found(state: FleetState) -> None:
    state.reports.append(Report("d-1", 2.0, True, "booked"))
    state.rows["a"]["n_obs"] += 1
    state.numbers = state.numbers + sums(2.0)
    assert found(state)[0] == "decision d-1 was observed by a, and booked by its token"


def test_what_a_token_booked_counts_when_the_server_has_forgotten_it(state: FleetState) -> None:
    state.reports[3] = Report("e-1", 2.0, True, "owner_ended")
    assert len(found(state)) == 2
    state.booked = {("e-1", 2.0)}
    assert found(state) == []
    state.reports[3] = Report("e-1", 3.0, True, "booked")
    assert "decision e-1 was booked with the rewards [2.0, 3.0]" in found(state)


def test_a_reward_that_was_accepted_and_lost_is_found(state: FleetState) -> None:
    state.reports.append(Report("d-3", 1.0, False, "booked"))
    assert found(state) == ["the reward 1 of d-3 was accepted, and a observed None"]


def test_a_reward_that_nobody_wanted_and_nobody_has_is_found(state: FleetState) -> None:
    state.reports.append(Report("d-3", 1.0, False, "not_pending"))
    assert found(state) == ["the reward of d-3 was not accepted, and a has none"]


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (Report("d-3", 1.0, False, "waiting"), "the reward of d-3 waits for a, who has collected"),
        (Report("d-3", 1.0, False, "owner_ended"), "the reward of d-3 was refused, as if a had been retired"),
        (Report("d-3", 1.0, False, "reward_conflict"), "one reward of d-3 was reported, and conflicts"),
        (Report("d-3", 1.0, False, "rewards_full"), "the reward of d-3 was answered rewards_full"),
        (Report("e-1", 3.0, True, "booked"), "decision e-1 was booked with the rewards [2.0, 3.0]"),
    ],
)
def test_answers_that_cannot_be_are_found(state: FleetState, report: Report, words: str) -> None:
    state.reports.append(report)
    assert words in found(state)


def test_unsent_observations_of_an_agent_at_work_are_found(state: FleetState) -> None:
    state.live["b"] = {**state.live["a"], "rounds": 2, "sequence": 1, "pending_ids": []}
    assert found(state) == ["b: 2 observations, of which 1+0 were sent"]


def test_a_decision_that_was_lost_or_came_back_is_found(state: FleetState) -> None:
    state.live["a"]["pending_ids"] = []
    assert found(state) == ["a: 1 of 1 pending decisions are lost, for example d-3"]
    state.live["a"]["pending_ids"] = ["d-2", "d-3"]
    assert found(state) == ["a: 1 decisions are pending that have their reward or were dropped: d-2"]


def test_folded_agents_keep_their_observations(state: FleetState) -> None:
    state.folded["b"] = state.rows.pop("b")
    state.rows["(retired)"] = {"n_obs": 2, "n_discarded": 0, "n_uploads": 1, "sequence": 0, "enrolment": ""}
    assert found(state) == []
    state.rows["(retired)"]["n_obs"] = 1
    assert found(state) == ["folded agents have 1 observations, expected 2"]


def test_rewards_in_the_wrong_group_are_found(state: FleetState) -> None:
    right = GroupSums().observe("control", 1.0)
    for reward in (2.0, 3.0, -1.0):
        right = right.observe("treatment", reward)
    assert found(replace(state, groups=right)) == []
    wrong = right.observe("treatment", 0.0)  # a reward of zero changes a number of observations only
    assert [words.split(" are ")[0] for words in found(replace(state, groups=wrong))] == ["rewards by group"]


def test_discarded_observations_are_part_of_the_balance(state: FleetState) -> None:
    state.reports, state.drifts, state.n_discarded = [], True, 1
    state.rows["a"] |= {"n_obs": 2, "n_discarded": 1}
    state.rows["b"]["n_obs"] = 1
    assert found(state) == []
    state.rows["a"]["n_discarded"] = 0
    assert found(state) == [
        "a: the server counts 2 observations, its uploads and tokens brought 3",
        "the model counts 1 discarded, its agents 0",
    ]


def test_a_directory_has_what_the_server_does_not_count(state: FleetState, tmp_path: Path) -> None:
    server = LocalServer(fb.FedLinUCB(dim=DIM, alpha=1e6, beta=0.5))
    with fb.connect(server.transport("b"), model="local", state_dir=tmp_path / "b", sync="inline") as agent:
        agent.partial_fit([ROW, ROW], [1.0, 1.0])
        status = agent.status()
    assert (status.rounds, status.unsent) == (2, 2)
    assert list(check_left("b", status, state.records["b"], 0)) == []
    assert list(check_left("b", status, state.records["b"], 1)) == ["b: its directory has 2+0 unsent, expected 1"]
    assert list(check_left("a", status, state.records["a"], 0)) == ["a: its directory has 2 observations, its record 3"]


# -- the record of an agent


def agent_in(tmp_path: Path) -> DurableAgent:
    settings = ModelSettings(name="pods", dim=DIM, lam=1.0, alpha=1e-4, radius=Fixed(0.5))
    return DurableAgent(ModelDescription(settings, "uid", "a"), "a")


def test_an_observation_of_any_thread_is_recorded_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("observe", "partial_fit"):  # put back after the test
        monkeypatch.setattr(DurableAgent, name, getattr(DurableAgent, name))
    told: list[str] = []
    books = Books(tmp_path, "pods", told.append)
    durable = agent_in(tmp_path)
    book = books.of(durable)
    decision: Any = durable.choose([ROW], None)
    book.made(decision, kept=True)
    durable.observe(decision, 2.0)
    durable.partial_fit([ROW, ROW, ROW], [1.0, 0.0, 1.0])
    record = FleetRecord(tmp_path / record_name("pods", "a")).update()
    assert (record.n_done, record.violations, told) == (4, [], [])
    assert np.array_equal(record.seen(4), sums(2.0, 1.0, 0.0, 1.0))
    assert record.counted == {decision.id: 2.0} and record.groups.n_obs == 1
    # A journal that has lost an observation, and one that has its decision again.
    again = agent_in(tmp_path)
    again.agent.n_rounds = 3
    books.of(again)
    assert told == ["a: resumed at 3, but 4 were confirmed and 4 tried"]


def test_only_what_a_killed_call_was_doing_is_in_doubt(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "pods+a.record")
    for name in ("d-0", "d-1", "d-2"):
        writer.write(made=name, row=ROW, group="treatment")
    writer.write(dropping=["d-0"])
    record = FleetRecord(tmp_path / "pods+a.record").update()
    assert list(record.compare_pending(["d-1", "d-2"])) == list(record.compare_pending(["d-0", "d-1", "d-2"])) == []
    assert len(list(record.compare_pending(["d-0", "d-1"]))) == 1
    assert list(record.compare_pending(["d-0", "d-1", "d-2", "d-3"])) == []  # its `choose` was killed
    assert len(list(record.compare_pending(["d-0", "d-1", "d-2", "d-3", "d-4"]))) == 1
    writer.write(not_kept="d-1")  # the disk was full
    assert list(record.update().compare_pending(["d-2"])) == []


def test_a_half_batch_is_found(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "pods+a.record")
    writer.write(**{"try": 0, "rows": [ROW, ROW], "rewards": [1.0, 1.0], "decision": None})
    writer.write(done=2)
    record = FleetRecord(tmp_path / "pods+a.record").update()
    record.seen(1)
    assert record.violations == ["1 observations of pods+a end within a batch"]


# -- rewards from elsewhere, and the traffic of several models


def test_reports_of_a_decision_mostly_agree(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "pods.offers")
    offers = Offers(Listing(tmp_path / "pods.offers"), random.Random(1))
    assert offers.pick() is None
    for number in range(100):
        writer.write(decision=f"d-{number}", agent="a")
    picked = [offers.pick() for _ in range(3000)]
    assert len({offer["decision"] for offer in picked if offer is not None}) == 100
    rewards = [offers.reward_of({"decision": "d-1"}) for _ in range(200)]
    assert len(set(rewards)) > 1 and max(rewards.count(each) for each in rewards) > 170


def test_what_servers_say_of_tokens_is_noted() -> None:
    monitor, path = TrafficMonitor("pods"), "/v1/models/pods/rewards"
    monitor.reply(path, b'{"decision": "fbd_x", "reward": 1}', 200, b'{"decision": "d-1", "status": "booked"}')
    monitor.reply(path, b'{"decision": "d-2", "reward": 1}', 200, b'{"decision": "d-2", "status": "booked"}')
    several = b'{"rewards": [{"decision": "fbd_y", "reward": 2}, {"decision": "fbd_z", "reward": 3}]}'
    answers = b'{"results": [{"decision": "d-3", "status": "refused"}, {"decision": "d-4", "status": "booked"}]}'
    monitor.reply(path, several, 200, answers)
    assert monitor.booked == {("d-1", 1.0), ("d-4", 3.0)} and monitor.violations == []


def test_each_model_has_its_monitor() -> None:
    first, pods = TrafficMonitor(), TrafficMonitor("pods", frozenset({"retired"}))
    monitors = Monitors(first, [pods])
    body = b'{"error": "retired", "message": ""}'
    for path in ("/v1/models/pods/sync", "/v1/models/chaos/sync", "/v1/models/remade/sync"):
        monitors.reply(path, b"", 401, body)
    assert pods.violations == [] and first.violations == ["/v1/models/chaos/sync was answered 401 retired"]
    monitors.reply("/v1/models/pods/sync", b"", 409, b'{"error": "sequence_gap", "message": ""}')
    assert pods.violations == ["/v1/models/pods/sync was answered 409 sequence_gap"]
    assert [model_of(path) for path in ("/v1/models/pods?x=1", "/readyz")] == ["pods", None]
