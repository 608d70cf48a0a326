"""The assumption monitor: fleets that differ or change are called so, others are not, and it stays cheap."""

import asyncio
import threading

import numpy as np
import pytest

from fedbandit.algorithms.messages import digest_of, packed_bytes
from fedbandit.core.drift import Discount
from fedbandit.core.personal import Auto
from fedbandit.core.statistics import SufficientStats
from fedbandit.service import monitor as monitor_module
from fedbandit.service.assumptions import MAX_TESTED, DataSums, n_tested, summary
from fedbandit.service.exchange.ledger import IncomingUpload
from fedbandit.service.monitor import AssumptionMonitor
from fedbandit.service.stores.base import HistoryEntry
from fedbandit.service.stores.checkpoints import Checkpoint
from fedbandit.service.stores.memory import MemoryStore
from tests.service.monitored_fleets import MonitoredFleet
from tests.service.uploads import settings

SIZES = [(2, 2), (2, 30), (5, 15), (10, 6), (15, 15), (25, 8)]  # features, agents
ONE_FLEET = [
    {},
    {"beta": 0.05},  # nearly greedy: actions depend on the noise as much as they can
    {"alpha": 0.1, "beta": 0.1},
    {"clicks": True},
    {"noise": 0.05},
]


def alarms(fleet: MonitoredFleet, n_each: int, *, looks: int) -> list[str]:
    """The names of all checks that were contradicted at any look."""
    found = (check for checks in fleet.play(n_each, looks=looks) for check in checks.values())
    return [check.name for check in found if check.state == "contradicted"]


@pytest.mark.parametrize(("dim", "n_agents"), SIZES)
def test_opposite_halves_are_found_within_200_observations_per_agent(dim, n_agents):
    for seed in range(2):
        fleet = MonitoredFleet(dim, n_agents, seed, signs=(1, -1))
        *_, last = fleet.play(200, looks=4)
        assert last["one_theta"].state == "contradicted"
        assert "personal" in last["one_theta"].advice
        assert last["one_theta"].p_value < last["one_theta"].level
        assert last["no_change"].state in ("held", "assumed")


@pytest.mark.parametrize(("dim", "n_agents"), SIZES[:4])
def test_one_fleet_is_held_and_not_contradicted_at_any_look(dim, n_agents):
    fleet = MonitoredFleet(dim, n_agents, 7, beta=0.05)
    *_, last = looks = list(fleet.play(100, looks=10))
    assert [checks["one_theta"].state for checks in looks].count("contradicted") == 0
    assert (last["one_theta"].state, last["no_change"].state, last["linear"].state) == ("held", "held", "assumed")
    assert "explains" in last["linear"].evidence


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(ONE_FLEET)))
def test_a_hundred_fleets_with_one_parameter_raise_no_alarm(case):
    """Twenty of each kind, looked at ten times while they learn; the level of a look is 1e-4 for each of two checks."""
    sizes = [(2, 2), (2, 60), (5, 15), (10, 6), (25, 8)]
    for seed in range(20):
        dim, n_agents = sizes[seed % len(sizes)]
        fleet = MonitoredFleet(dim, n_agents, 1000 * case + seed, **ONE_FLEET[case])
        assert alarms(fleet, 100 if n_agents < 60 else 40, looks=10) == []


def test_a_change_of_the_world_is_found():
    fleet = MonitoredFleet(5, 6, 3)
    before = list(fleet.play(200, looks=10))
    assert before[-1]["no_change"].state == "held"
    fleet.flip = -1
    after = list(fleet.play(300, looks=10))
    assert after[-1]["no_change"].state == "contradicted"
    assert "restart" in after[-1]["no_change"].advice and "observations, until" in after[-1]["no_change"].evidence
    assert after[-1]["one_theta"].state in ("held", "assumed")  # all agents changed together


@pytest.mark.parametrize(
    ("setting", "words"), [({"personal": Auto()}, "most different"), ({"drift": Discount(100.0)}, "discount")]
)
def test_what_a_model_does_not_assume_is_not_called_contradicted(setting, words):
    fleet = MonitoredFleet(3, 4, 1, signs=(1, -1), options=setting)
    *_, last = fleet.play(100, looks=2)
    assert last["one_theta"].state == last["no_change"].state == "assumed" or "personal" in setting
    assert last["one_theta"].state == "assumed" and words in last["one_theta"].evidence


# -- the monitor of a server


def upload_of(agent: str, stats: SufficientStats, sequence: int = 1) -> IncomingUpload:
    packed = packed_bytes(stats)
    token = agent.encode().ljust(32, b".")
    return IncomingUpload(agent, "life-1", sequence, digest_of(packed), np.frombuffer(packed, "<f8"), 0.1, token)


async def filled(n_agents: int, *, dim: int = 5, n: int = 40) -> MemoryStore:
    store, rng = MemoryStore(), np.random.default_rng(0)
    await store.create(settings(dim=dim, max_rate=1e9), uid="uid", now=0.0)
    theta, batch = rng.standard_normal(dim), []
    for number in range(n_agents):
        name = f"agent-{number}"
        await store.enroll("news", name, name.encode().ljust(32, b"."), now=0.0)
        X = rng.standard_normal((n, dim))
        stats = SufficientStats.of(X, X @ theta + 0.1 * rng.standard_normal(n))
        batch.append(upload_of(name, stats))
    await store.merge("news", batch, now=1000.0)
    return store


async def states(monitor: AssumptionMonitor) -> dict[str, str]:
    return {check.name: check.state for check in (await monitor.report("news")).checks}


def test_a_report_is_computed_once_per_version():
    async def scenario():
        store = await filled(3)
        monitor = AssumptionMonitor(store)
        first = await monitor.report("news")
        assert await monitor.report("news") is first
        assert summary(first.checks) == {"held": 2, "contradicted": 0, "assumed": 2}
        await store.forget("news", "agent-1", now=2000.0)
        second = await monitor.report("news")
        assert second.insight.model.n_obs == 80 and second is not first
        await store.delete("news")
        await store.create(settings(dim=5), uid="another", now=0.0)
        assert (await monitor.report("news")).checks[0].name == "buffers"  # no data, nothing to test

    asyncio.run(scenario())


def test_a_slow_report_is_used_for_a_while():
    async def scenario():
        store, now = await filled(3), [0.0]

        def clock():
            now[0] += 1.0
            return now[0]

        monitor = AssumptionMonitor(store, clock=clock)
        first = await monitor.report("news")
        await store.forget("news", "agent-1", now=2000.0)
        assert await monitor.report("news") is first
        now[0] += 100.0
        assert await monitor.report("news") is not first

    asyncio.run(scenario())


def test_checkpoints_from_before_data_were_taken_out_are_not_compared():
    async def scenario():
        store = await filled(4)
        first = [np.frombuffer(await store.contribution("news", f"agent-{m}"), "<f8") for m in (0, 1)]
        prior = np.frombuffer(settings(dim=5).prior(), "<f8")
        await store.record([HistoryEntry("uid", Checkpoint(1.0, 2, 0, 80, (prior + sum(first)).tobytes()))])
        monitor = AssumptionMonitor(store)
        assert (await states(monitor))["no_change"] == "held"
        await store.quarantine("news", "agent-0", on=True, now=1.0)
        assert (await states(monitor))["no_change"] == "assumed"

    asyncio.run(scenario())


def test_the_work_is_bounded_by_agents_and_features():
    assert n_tested(2) == n_tested(25) == MAX_TESTED
    assert [n_tested(100), n_tested(300), n_tested(4096)] == [200, 8, 0]
    assert max(n_tested(dim) * dim**3 for dim in range(1, 600)) < 1.1e9


def test_ten_thousand_agents_are_read_and_tested_in_bounded_time_beside_the_event_loop(monkeypatch):
    computed, threads = monitor_module._report, []

    def observed(*args):
        threads.append(threading.get_ident())
        return computed(*args)

    monkeypatch.setattr(monitor_module, "_report", observed)

    async def scenario():
        store = await filled(10_000, dim=3, n=20)
        sums = await DataSums.read(store, await store.load("news"))
        assert len(sums.agents) == MAX_TESTED
        report = await AssumptionMonitor(store).report("news")
        assert report.checks[0].state == "held"
        assert "1,000 of 10,000 agents" in report.checks[0].evidence
        assert len(threads) == 1 and threads[0] != threading.get_ident()  # the loop goes on while a thread computes

    asyncio.run(scenario())
