"""The live agent: the library's verbs, and what happens around them."""

import asyncio
import logging
import threading
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fedbandit as fb
from fedbandit.errors import (
    AlreadyObserved,
    Closed,
    DimensionMismatch,
    InvalidInput,
    InvalidParameter,
    NotReachable,
    Refused,
    UnknownDecision,
)
from fedbandit.sdk import open_agent
from fedbandit.wire.settings import ModelDescription, ModelSettings
from tests.sdk.helpers import Way, make_hub, make_live, refused, wait_until, whole_rows

X = np.eye(3)


def test_an_agent_joins_with_the_model_of_the_fleet():
    hub = make_hub()
    with make_live(hub, sync="inline") as first:
        first.observe([1.0, 0.0, 0.0], 1.0)
    with open_agent(hub.transport("b"), model="local") as second:
        assert second.model_version == 1
        assert second.choose(X).model_version == 1
        assert second.predict(X)[0] == pytest.approx(0.5)


def test_it_has_the_verbs_of_the_library_and_decides_as_the_library_does():
    hub = make_hub(alpha=float("inf"))
    twin = fb.FedLinUCB(dim=3, alpha=1e6, beta=0.5).agent("a")
    with make_live(hub) as agent:
        for live, plain in [
            (agent.choose(X, k=2), twin.choose(X, k=2)),
            (agent.choose_many([X, 2 * X]), twin.choose_many([X, 2 * X])),
            ([agent.choose(fb.Ball(3))], [twin.choose(fb.Ball(3))]),
            ([agent.choose(pd.DataFrame(X, columns=list("abc")))], [twin.choose(pd.DataFrame(X, columns=list("abc")))]),
        ]:
            assert [d.index for d in live] == [d.index for d in plain]
            assert all(np.array_equal(d.x, p.x) for d, p in zip(live, plain, strict=True))
        agent.partial_fit(X, [1.0, 2.0, 3.0])
        assert agent.status().rounds == 3
        assert agent.scores(X).upper == pytest.approx(twin.scores(X).upper)
        assert agent.agent_id == "a" and "LiveAgent 'a'" in repr(agent)


def test_rewards_are_booked_at_most_once_and_only_for_own_decisions():
    with make_live(make_hub()) as agent:
        decision = agent.choose(X)
        agent.observe(decision, 1.0)
        with pytest.raises(AlreadyObserved):
            agent.observe(decision, 1.0)
        stranger = fb.FedLinUCB(dim=3, beta=0.5).agent("a").choose(X)
        with pytest.raises(UnknownDecision):
            agent.observe(stranger, 1.0)
        agent.observe(stranger.x, 1.0)
        with pytest.raises(DimensionMismatch):
            agent.observe([1.0], 1.0)
        assert agent.status().rounds == 2


def test_deciding_and_observing_never_wait_for_the_network():
    hub = make_hub()
    way = Way(hub)
    with make_live(way) as agent:
        way.gate.clear()  # the server takes for ever
        for _ in range(50):
            agent.observe(agent.choose(X), 1.0)
        assert way.threads - {threading.current_thread().name} in ({"fedbandit-a"}, set())
        assert agent.status().rounds == 50 and hub.server.stats.n_obs == 0
        way.gate.set()
        agent.flush()
        assert hub.server.stats.n_obs == 50
        assert hub.server.version <= 3  # what was observed meanwhile went as one upload


def test_what_is_observed_during_an_exchange_is_due_at_once_when_the_trigger_says_so():
    hub = make_hub()
    way = Way(hub)
    with make_live(way) as agent:
        way.gate.clear()
        agent.observe(X[0], 1.0)
        wait_until(lambda: len(way.bodies) == 1)
        agent.observe(X[1], 1.0)
        way.gate.set()
        wait_until(lambda: hub.server.stats.n_obs == 2)  # nobody called flush


def test_flush_sends_what_the_trigger_would_keep():
    hub = make_hub(alpha=float("inf"))
    with make_live(hub) as agent:
        agent.observe(X[0], 1.0)
        assert hub.server.stats.n_obs == 0
        agent.flush(5.0)
        assert hub.server.stats.n_obs == 1
        assert (agent.status().unsent, agent.status().in_flight, agent.status().exchanges) == (0, 0, 1)
        agent.flush(5.0)
        assert agent.status().exchanges == 1  # nothing to say, nothing said


def test_flush_gives_up_in_time_and_loses_nothing():
    hub = make_hub()
    way = Way(hub)
    with make_live(way) as agent:
        way.down = True
        agent.observe(X[0], 1.0)
        with pytest.raises(NotReachable, match="1 observations are kept"):
            agent.flush(0.05)
        status = agent.status()
        assert status.reachable is False and "nobody answers" in str(status.last_error)
        assert status.last_error_code == "not_reachable" and status.next_attempt_s is not None
        way.down = False
        wait_until(lambda: hub.server.stats.n_obs == 1)
        wait_until(lambda: agent.status().reachable is True)
        assert agent.status().last_error is None and agent.status().retries >= 1


def test_a_lost_request_and_a_lost_reply_count_once():
    hub = make_hub()
    way = Way(hub)
    with make_live(way) as agent:
        way.faults.extend(["lost request", "lost reply", "lost reply"])
        agent.observe([1.0, 2.0, 3.0], 2.0)
        agent.flush()
        assert len(way.bodies) == 4 and len(set(way.bodies)) == 1  # the same bytes each time
        assert hub.server.stats.n_obs == 1 and hub.server.version == 1
        assert agent.status().retries == 3


def test_a_server_that_asks_for_time_gets_it():
    hub = make_hub()
    way = Way(hub)
    with make_live(way) as agent:
        way.faults.append(NotReachable("shed", retry_after_s=0.3))
        agent.observe(X[0], 1.0)
        wait_until(lambda: hub.server.stats.n_obs == 1)
        assert way.times[1] - way.times[0] >= 0.3


@pytest.mark.parametrize(("reason", "status"), [("sequence_conflict", 409), ("unknown_model", 404), ("forbidden", 403)])
def test_a_refusal_is_told_and_decisions_go_on(reason, status, caplog):
    hub = make_hub()
    way = Way(hub)
    with caplog.at_level(logging.DEBUG, logger="fedbandit.sdk"), make_live(way) as agent:
        way.faults.append(refused(reason, status))
        agent.observe(X[0], 1.0)
        wait_until(lambda: agent.status().last_error is not None)
        assert agent.status().last_error_code == reason and reason in str(agent.status().last_error)
        assert agent.choose(X).index == 0
        agent.observe(X[1], 1.0)
        assert len(way.bodies) == 1  # not said again at once
        assert any(record.levelno == logging.ERROR and reason in record.message for record in caplog.records)
        way.faults.append(refused(reason, status))
        with pytest.raises(Refused) as caught:
            agent.flush(5.0)
        assert (caught.value.reason, caught.value.status) == (reason, status)
        agent.flush(5.0)  # somebody has put it right
        assert hub.server.stats.n_obs == 2


def test_changed_settings_stop_the_exchange_and_nothing_else(caplog):
    hub = make_hub()
    with caplog.at_level(logging.ERROR, logger="fedbandit.sdk"), make_live(hub) as agent:
        hub.settings = "2"
        before = agent.model
        agent.observe(X[0], 1.0)
        wait_until(lambda: agent.status().last_error is not None)
        assert "settings" in str(agent.status().last_error) and "connect again" in caplog.text
        assert agent.model is before  # a model of another kind is not adopted
        assert agent.status().in_flight == 0 and hub.server.stats.n_obs == 1  # but what was merged is merged
        agent.observe(agent.choose(X), 1.0)
        with pytest.raises(Refused, match="settings"):
            agent.flush(1.0)
        assert hub.server.stats.n_obs == 1


def test_a_server_that_answers_without_merging_is_refused_rather_than_asked_for_ever():
    hub = make_hub()
    way = Way(hub)
    with make_live(way) as agent:
        way.sync = lambda body, *, timeout_s: way.inner.state("another", None, timeout_s=1.0)
        agent.observe(X[0], 1.0)
        wait_until(lambda: agent.status().last_error is not None)
        assert "without having merged" in str(agent.status().last_error)


def test_refresh_fetches_a_newer_model_and_is_cheap_when_there_is_none():
    hub = make_hub()
    with make_live(hub) as agent, open_agent(hub.transport("b"), model="local", sync="inline") as other:
        received = agent.status().bytes_received
        assert agent.refresh() is False
        assert agent.status().bytes_received == received
        other.observe(X[0], 1.0)
        assert agent.refresh() is True and agent.model_version == 1


def test_a_silent_agent_is_refreshed_in_the_background():
    hub = make_hub()
    with make_live(hub, refresh_after_s=0.02) as agent:
        with open_agent(hub.transport("b"), model="local", sync="inline") as other:
            other.observe(X[0], 1.0)
        wait_until(lambda: agent.model_version == 1)


def test_a_first_start_needs_the_server():
    way = Way(make_hub())
    way.down = True
    with pytest.raises(NotReachable, match="first start"):
        make_live(way)


def test_a_closed_agent_says_so():
    agent = make_live(make_hub())
    decision = agent.choose(X)
    agent.close()
    agent.close()
    for use in (
        lambda: agent.choose(X),
        lambda: agent.observe(decision, 1.0),
        lambda: agent.flush(1.0),
        agent.refresh,
        lambda: agent.partial_fit(X, [1.0, 1.0, 1.0]),
        lambda: agent.predict(X),
        lambda: agent.choose_many([X]),
    ):
        with pytest.raises(Closed):
            use()
    assert agent.status().pending == 1


def test_closing_without_a_journal_sends_the_rest_or_says_what_is_lost(caplog):
    hub = make_hub(alpha=float("inf"))
    with make_live(hub) as agent:
        agent.observe(X[0], 1.0)
    assert hub.server.stats.n_obs == 1
    way = Way(hub)
    with caplog.at_level(logging.WARNING, logger="fedbandit.sdk"), make_live(way) as agent:
        agent.observe(X[0], 1.0)
        way.down = True
    assert hub.server.stats.n_obs == 1
    assert "closed with 1 observations unsent" in caplog.text


def test_closing_does_not_wait_for_a_server_that_hangs():
    way = Way(make_hub())
    agent = make_live(way)
    way.gate.clear()
    agent.observe(X[0], 1.0)
    wait_until(lambda: len(way.bodies) == 1)
    agent.close(timeout_s=0.05)
    with pytest.raises(Closed):
        agent.choose(X)
    way.gate.set()


def test_a_dropped_agent_ends_its_thread():
    import gc

    agent = make_live(make_hub())
    thread = agent._background._thread
    assert thread.is_alive()
    del agent
    gc.collect()
    wait_until(lambda: not thread.is_alive())


def test_many_threads_choose_and_observe_and_every_observation_counts_once():
    hub = make_hub(alpha=0.5)
    rows = whole_rows(8 * 200)
    errors = []
    with make_live(hub) as agent:

        def work(part):
            try:
                for x in part:
                    decision = agent.choose(x[None, :])
                    agent.observe(decision, float(x.sum()))
            except Exception as error:  # noqa: BLE001 - shown below
                errors.append(error)

        threads = [threading.Thread(target=work, args=(part,)) for part in np.split(rows, 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        agent.flush()
    assert errors == []
    assert hub.server.stats.n_obs == len(rows)
    assert np.array_equal(hub.server.stats.Sigma, rows.T @ rows + np.eye(3))
    assert np.array_equal(hub.server.stats.b, rows.T @ rows.sum(axis=1))


def test_it_works_inside_an_event_loop():
    hub = make_hub()

    async def application():
        async with make_live(hub) as agent:
            beats = 0

            async def heart():
                nonlocal beats
                while True:
                    beats += 1
                    await asyncio.sleep(0.001)

            beating = asyncio.create_task(heart())
            for _ in range(20):
                agent.observe(agent.choose(X), 1.0)
                await asyncio.sleep(0)
            await agent.aflush(5.0)
            assert await agent.arefresh() is False
            beating.cancel()
            assert beats >= 1
            return agent

    agent = asyncio.run(application())
    assert hub.server.stats.n_obs == 20
    with pytest.raises(Closed):
        agent.choose(X)


def test_uploads_wait_for_a_smallest_batch():
    hub = make_hub()
    with make_live(hub, sync="inline", min_upload=3) as agent:
        agent.observe(X[0], 1.0)
        agent.observe(X[1], 1.0)
        agent.flush(1.0)
        assert hub.server.stats.n_obs == 0 and agent.status().unsent == 2
        agent.observe(X[2], 1.0)
        assert hub.server.stats.n_obs == 3


def test_what_the_server_would_refuse_is_refused_here():
    settings = ModelSettings("m", 2, 1.0, 1.0, fb.radius.fixed(0.5), action_bound=1.0, reward_bound=2.0)
    settings.check(np.array([0.6, 0.8]), -2.0)
    with pytest.raises(InvalidInput, match="‖x‖ ≤ 1"):
        settings.check(np.array([1.0, 0.1]), 0.0)
    with pytest.raises(InvalidInput, match=r"\|r\| ≤ 2"):
        settings.check(np.zeros(2), 2.1)
    with pytest.raises(InvalidInput):
        settings.check_all(np.array([[0.1, 0.0], [2.0, 0.0], [0.1, 0.0]]), np.zeros(3))
    with pytest.raises(InvalidInput):
        settings.check_all(np.array([[0.1, 0.0], [0.2, 0.0]]), np.array([-3.0, 0.0]))


def test_a_refused_row_leaves_its_decision_waiting():
    hub = make_hub()
    with make_live(hub) as agent:
        settings = replace(agent._durable.description.settings, reward_bound=1.0)
        agent._durable.description = ModelDescription(settings, "1")
        decision = agent.choose(X)
        with pytest.raises(InvalidInput):
            agent.observe(decision, 5.0)
        agent.observe(decision, 1.0)


@pytest.mark.parametrize(
    "options",
    [
        {"sync": "never"},
        {"durability": "perhaps"},
        {"timeout_s": 0.0},
        {"refresh_after_s": -1.0},
        {"max_exchanges_per_s": 0.0},
        {"min_upload": 0},
        {"max_pending": 0},
        {"agent": "somebody-else"},
    ],
)
def test_bad_options_are_named(options):
    with pytest.raises(InvalidParameter):
        make_live(make_hub(), **options)


def test_only_so_many_decisions_wait():
    with make_live(make_hub(), max_pending=2) as agent:
        first, second, third = (agent.choose(X) for _ in range(3))
        assert [d.id for d in agent.pending] == [second.id, third.id]
        with pytest.raises(AlreadyObserved, match="dropped"):
            agent.observe(first, 1.0)


class ForeignWay(Way):
    """A way to a hub on which the answer to somebody else comes back."""

    def __init__(self, hub, whose):
        super().__init__(hub)
        self.whose = whose

    def state(self, incarnation, tag, *, timeout_s):
        return self.whose.state(incarnation, tag, timeout_s=timeout_s)


@pytest.mark.parametrize("what", ["agent", "dimension"])
def test_an_answer_for_somebody_else_is_refused_and_changes_nothing(what):
    hub, other = make_hub(alpha=float("inf")), make_hub(dim=3 if what == "agent" else 4)
    way = ForeignWay(hub, hub.transport("a"))
    with make_live(way, sync="inline") as agent:
        name = "b" if what == "agent" else "a"
        with open_agent(other.transport(name), model="local", sync="inline") as foreign:
            foreign.observe(np.eye(3 if what == "agent" else 4)[0], 1.0)
        before = agent.model_version, agent.predict(np.eye(3)).tolist()
        way.whose = other.transport(name)
        with pytest.raises(Refused, match="expected 'a' and 3") as caught:
            agent.refresh()
        assert caught.value.reason == ("invalid_input" if what == "agent" else "dimension_mismatch")
        assert (agent.model_version, agent.predict(np.eye(3)).tolist()) == before


def test_the_rate_of_exchanges_is_limited_after_a_burst():
    hub = make_hub(alpha=0.0)
    with make_live(hub, max_exchanges_per_s=0.001) as agent:
        for _ in range(200):
            agent.observe(np.eye(3)[0], 1.0)
            time.sleep(0.002)
        wait_until(lambda: agent.status().exchanges >= 15)
        time.sleep(0.1)
        assert agent.status().exchanges <= 21  # the burst, and none of the two minutes' worth after it
        agent.flush(5.0)  # what the application asks for is not limited
        assert hub.server.stats.n_obs == 200
