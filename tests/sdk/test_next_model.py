"""A new model is built beside the one in use, and what was observed meanwhile is counted exactly."""

import math
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import fedbandit as fb
from fedbandit import pauses
from fedbandit.core.growth import GrowthTracker
from fedbandit.core.ridge import RidgeModel
from fedbandit.sdk import LocalServer, next_model
from tests.sdk.helpers import Way, make_hub, make_live, wait_until, whole_rows


def hub_of(dim, alpha=0.0):
    return LocalServer(fb.FedLinUCB(dim=dim, alpha=alpha, beta=0.5))


@pytest.fixture
def slow_factorisation(monkeypatch):
    """Building waits in the middle, after the factorisation, until it is let go."""
    inside, go_on = threading.Event(), threading.Event()
    real = next_model.require_usable

    def slow(*arguments):
        real(*arguments)
        inside.set()
        assert go_on.wait(20.0)

    monkeypatch.setattr(next_model, "require_usable", slow)
    return inside, go_on


@pytest.mark.parametrize("journal", [False, True])
def test_decisions_and_observations_do_not_wait_for_a_model_that_is_being_built(slow_factorisation, tmp_path, journal):
    inside, go_on = slow_factorisation
    go_on.set()
    hub = make_hub()
    with make_live(hub, state_dir=tmp_path if journal else None) as agent:
        go_on.clear()
        inside.clear()
        agent.observe(np.eye(3)[0], 1.0)
        assert inside.wait(10.0)
        version = agent.model_version
        for _ in range(50):  # all of it while the other thread holds the half-made model
            decision = agent.choose(np.eye(3))
            assert decision.model_version == version
            agent.observe(decision, 1.0)
        agent.scores(np.eye(3))
        assert agent.status().rounds == 51
        go_on.set()
        agent.flush(10.0)
        assert hub.server.stats.n_obs == 51
        assert agent.model_version == hub.server.version


def growth_of(agent):
    """log det(Σ_m + what the model does not hold) − log det Σ_m, from scratch."""
    durable = agent._durable
    with durable.agent._lock:
        Sigma = durable.agent.model.stats.Sigma
        rest = np.zeros_like(Sigma) + durable.agent.local.Sigma
        if durable.agent.in_flight is not None:
            rest = rest + durable.agent.in_flight.stats.Sigma
        return np.linalg.slogdet(Sigma + rest)[1] - np.linalg.slogdet(Sigma)[1]


@pytest.mark.parametrize("what", ["rows", "batch", "rows and a batch", "caller's array"])
def test_what_is_observed_while_a_model_is_built_is_in_its_growth(slow_factorisation, what):
    inside, go_on = slow_factorisation
    go_on.set()
    hub = hub_of(4, alpha=1e9)  # nothing travels by itself
    with make_live(hub) as agent:
        agent.partial_fit(whole_rows(30, 4, seed=1), np.ones(30))
        go_on.clear()
        inside.clear()
        flushing = threading.Thread(target=agent.flush)
        flushing.start()
        assert inside.wait(10.0)
        if "rows" in what:
            for x in whole_rows(7, 4, seed=2):
                agent.observe(x, 1.0)
        if "batch" in what:
            agent.partial_fit(whole_rows(9, 4, seed=3), np.ones(9))
        if "caller" in what:
            row = np.array([1.0, 2.0, 3.0, 4.0])
            agent.observe(row, 1.0)
            row[:] = 0.0
        go_on.set()
        flushing.join(10.0)
        assert agent.model.stats.n_obs == 30
        assert agent.status().growth == pytest.approx(growth_of(agent), rel=1e-10)
        assert agent.status().growth > 0.0
        agent.observe(np.ones(4), 1.0)  # and it goes on from there
        assert agent.status().growth == pytest.approx(growth_of(agent), rel=1e-10)


@pytest.mark.parametrize("dim", [4, 70])
def test_what_is_observed_while_a_model_is_built_travels_without_a_further_observation(slow_factorisation, dim):
    inside, go_on = slow_factorisation
    go_on.set()
    hub = hub_of(dim)  # alpha = 0: whatever was observed is due
    with make_live(hub) as agent:
        go_on.clear()
        inside.clear()
        rows = whole_rows(6, dim, seed=1)
        agent.observe(rows[0], 1.0)
        assert inside.wait(10.0)
        for x in rows[1:]:
            agent.observe(x, 1.0)
        go_on.set()
        wait_until(lambda: hub.server.stats.n_obs == len(rows))


@pytest.mark.parametrize("n_rows", [5, 30, 300])
def test_rows_that_come_while_growth_is_counted_are_counted_exactly_however_many(monkeypatch, n_rows):
    dim = 70  # counted by the thread that exchanges
    inside, go_on = threading.Event(), threading.Event()
    go_on.set()
    real, n_restarts = GrowthTracker.restart, []

    def slow(tracker, Sigma):
        real(tracker, Sigma)
        if threading.current_thread() is not threading.main_thread():
            n_restarts.append(len(Sigma))
            inside.set()
            assert go_on.wait(20.0)

    monkeypatch.setattr(GrowthTracker, "restart", slow)
    rng = np.random.default_rng(0)
    with make_live(hub_of(dim, alpha=1e300)) as agent:  # nothing travels by itself
        agent.partial_fit(rng.standard_normal((30, dim)), np.ones(30))
        flight = agent._durable.agent.upload_now()
        assert flight is not None
        agent.observe(rng.standard_normal(dim), 1.0)  # something that the next model does not hold
        go_on.clear()
        inside.clear()
        flushing = threading.Thread(target=agent._client.exchange)
        flushing.start()
        assert inside.wait(10.0)
        for x in rng.standard_normal((n_rows, dim)):
            agent.observe(x, 1.0)
        go_on.set()
        flushing.join(10.0)
        assert agent.model.stats.n_obs == 30
        assert agent.status().growth == pytest.approx(growth_of(agent), rel=1e-10)
    assert len(n_restarts) == (2 if n_rows > dim else 1)  # many are counted anew instead of one by one


def test_the_growth_is_exact_after_many_swaps_with_threads_observing():
    """The tracker of every swapped model must agree with a factorisation of everything the model lacks."""
    hub = hub_of(6, alpha=0.05)
    with make_live(hub) as agent:

        def work(seed):
            rng = np.random.default_rng(seed)
            for n in range(50_000):
                if n >= 1500 and agent.status().exchanges > 5:  # a busy machine gives the background little time
                    return
                agent.observe(agent.choose(rng.standard_normal((5, 6))), float(rng.standard_normal()))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with agent._durable.building, agent._durable.agent._lock:
            tracked = 0.0 if agent._durable.agent._tracker is None else agent._durable.agent._tracker.value
            assert tracked == pytest.approx(growth_of(agent), rel=1e-8, abs=1e-9)
        agent.flush(10.0)
        assert hub.server.stats.n_obs == agent.status().rounds >= 4500 and agent.status().exchanges > 5


@pytest.mark.parametrize("dim", [3, 70])
def test_an_inline_agent_decides_as_the_librarys_agent_does_to_the_last_choice(dim):
    rng = np.random.default_rng(0)
    rule = fb.FedLinUCB(dim=dim, alpha=0.1, beta=0.5)
    hub, server, twin = LocalServer(rule), rule.server(), rule.agent("a", incarnation="first")
    with make_live(hub, sync="inline") as agent:
        for _ in range(300):
            X = rng.standard_normal((8, dim))
            ours, theirs = agent.choose(X), twin.choose(X)
            assert ours.index == theirs.index
            reward = float(rng.standard_normal())
            agent.observe(ours, reward)
            upload = twin.observe(theirs, reward)
            while upload is not None:
                upload = twin.adopt(server.receive(upload))
            assert agent.status().growth == twin.growth
        np.testing.assert_array_equal(agent.model.stats.Sigma, twin.model.stats.Sigma)
        assert agent.status().sequence == twin.sequence


def test_rounding_is_cleared_in_the_background_and_the_growth_stays_right():
    dim = 80
    hub = hub_of(dim, alpha=1e300)
    rng = np.random.default_rng(0)
    with make_live(hub) as agent:
        durable = agent._durable
        restarts = []
        for n in range(2600):
            agent.observe(rng.standard_normal(dim), 1.0)
            if durable.agent.is_renewal_due:  # the thread may be late: what matters is that it comes
                steps = durable.agent._tracker._steps
                wait_until(lambda: not durable.agent.is_renewal_due)
                if durable.agent._tracker._steps < steps:
                    restarts.append(n)
        assert restarts, "the tracker was never made anew"
        with durable.building:
            assert agent.status().growth == pytest.approx(growth_of(agent), rel=1e-9)


def test_rounding_is_cleared_at_once_where_no_thread_comes_in_time():
    dim = 80
    way = Way(hub_of(dim, alpha=1e300))
    rng = np.random.default_rng(0)
    with make_live(way) as agent:
        durable = agent._durable
        with durable.building:  # the thread cannot work
            for _ in range(5000):
                agent.observe(rng.standard_normal(dim), 1.0)
            assert durable.agent._tracker._steps < 16 * 256
            assert agent.status().growth == pytest.approx(growth_of(agent), rel=1e-10)


@pytest.mark.parametrize("dim", [20, 80])
def test_a_row_that_costs_many_digits_is_counted_exactly_at_once(dim):
    rng = np.random.default_rng(0)
    with make_live(hub_of(dim, alpha=1e300)) as agent:
        durable = agent._durable
        for _ in range(20):
            agent.observe(rng.standard_normal(dim), 1.0)
        tracker = durable.agent._tracker
        agent.observe(1e4 * rng.standard_normal(dim), 1.0)
        assert durable.agent._tracker is tracker and tracker._steps == 0
        assert agent.status().growth == pytest.approx(growth_of(agent), rel=1e-7)


def test_growth_by_many_small_steps_leaves_the_callers_thread_in_peace(monkeypatch):
    restarts = []
    real = GrowthTracker.restart

    def restart(tracker, Sigma):
        restarts.append(threading.get_ident())
        real(tracker, Sigma)

    monkeypatch.setattr(GrowthTracker, "restart", restart)
    rng = np.random.default_rng(0)
    for dim in (20, 80):
        with make_live(hub_of(dim, alpha=1e300)) as agent:
            for _ in range(2500):  # far more than 8 nats
                agent.observe(rng.standard_normal(dim), 1.0)
            assert agent.status().growth > 60.0
            with agent._durable.building:
                assert agent.status().growth == pytest.approx(growth_of(agent), rel=1e-11)
    assert threading.get_ident() not in restarts


@pytest.mark.parametrize("dim", [5, 70])
def test_a_tracker_that_is_renewed_all_the_time_gives_the_same_uploads(dim):
    rng = np.random.default_rng(0)
    rule = fb.FedLinUCB(dim=dim, alpha=0.5, beta=0.5)
    hub, server, twin = LocalServer(rule), rule.server(), rule.agent("a", incarnation="first")
    with make_live(hub, sync="inline") as agent:
        for n in range(300):
            x, reward = rng.standard_normal(dim) / dim**0.5, float(rng.standard_normal())
            agent.observe(x, reward)
            upload = twin.observe(x, reward)
            while upload is not None:
                upload = twin.adopt(server.receive(upload))
            if n % 3:
                next_model.renew_tracker(agent._durable)
            assert agent.status().sequence == twin.sequence
            assert agent.status().growth == pytest.approx(twin.growth, rel=1e-11)
            np.testing.assert_array_equal(agent._durable.agent.local.Sigma, twin.local.Sigma)
        assert twin.sequence > 3
        np.testing.assert_array_equal(hub.server.stats.Sigma, server.stats.Sigma)


@pytest.mark.parametrize("dim", [6, 90])
def test_the_thread_never_sleeps_with_the_agents_lock(monkeypatch, dim):
    n_points, with_lock = [], []
    monkeypatch.setattr(pauses, "WORTH_S", 0.0)
    rng = np.random.default_rng(0)
    durables = []
    real = pauses.time.sleep

    def sleep(seconds):
        if threading.current_thread().name == "fedbandit-a":
            n_points.append(seconds)
            if any(durable.agent._lock._is_owned() for durable in durables):
                with_lock.append(seconds)
        real(seconds)

    monkeypatch.setattr(pauses.time, "sleep", sleep)
    with make_live(hub_of(dim)) as agent:
        durables.append(agent._durable)
        for n_exchanges in range(1, 6):
            agent.observe(rng.standard_normal(dim), 1.0)
            wait_until(lambda n=n_exchanges: agent.status().exchanges >= n and not agent.status().in_flight)
    assert len(n_points) > 20 and with_lock == []


def test_a_tracker_at_its_base_saves_as_none():
    model = RidgeModel(fb.FedLinUCB(dim=3, beta=0.5).prior)
    tracker = GrowthTracker(model.inverse, model.log_det)
    assert tracker.is_at_base
    tracker.observe(np.ones(3))
    assert not tracker.is_at_base and math.isclose(tracker.value, math.log(4.0))


WORKERS = """
    import os, threading, time
    import numpy as np
    import fedbandit as fb
    from fedbandit.sdk import LocalServer, open_agent

    def others():
        mine = {thread.native_id for thread in threading.enumerate()}
        found = (task for task in os.listdir("/proc/self/task") if int(task) not in mine)
        return sum(int(open(f"/proc/self/task/{task}/schedstat").read().split()[0]) for task in found) / 1e9

    A = np.random.default_rng(0).random((600, 600))
    A @ A  # starts the threads of BLAS
    n_threads = len(os.listdir("/proc/self/task"))
    time.sleep(0.5)  # they spin for a while
    begun = others()
    for dim in (100, 200, 400):
        hub = LocalServer(fb.FedLinUCB(dim=dim, alpha=0.0, beta=0.5))
        rng = np.random.default_rng(0)
        with open_agent(hub.transport("a"), model="local") as agent:
            for _ in range(80):
                X = rng.standard_normal((20, dim))
                agent.observe(agent.choose(X), 0.5)
                agent.scores(X)
            agent.flush()
            assert agent.status().exchanges > 0
    time.sleep(0.3)  # the thread of the last agent is really gone
    print(n_threads, others() - begun)
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs the times of single threads")
def test_a_live_agent_gives_the_threads_of_blas_nothing_to_do():
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    environment["OPENBLAS_NUM_THREADS"] = "2"
    command = [sys.executable, "-c", textwrap.dedent(WORKERS)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    n_threads, seconds = output.split()
    if int(n_threads) < 2:
        pytest.skip("this BLAS has no threads of its own")
    assert float(seconds) < 0.02
