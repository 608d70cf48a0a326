"""`choose` may run in one thread while `observe` and `adopt` run in others."""

import sys
import threading
import time

import numpy as np
import pytest

from fedbandit import errors
from tests.builders import make_rule, names_with, stats_of

SECONDS = 0.4
MOST_SECONDS = 30.0  # on a machine that is busy with other things


@pytest.fixture
def eager_switching():
    """Threads change places every few microseconds, so that races have a chance to show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Crew:
    """Threads that repeat their work until time is up and enough was done; the first failure is kept."""

    def __init__(self, is_enough=lambda: True):
        self.ends = time.monotonic() + SECONDS
        self.is_enough = is_enough
        self.failures = []
        self.threads = []

    def repeat(self, work):
        def loop():
            try:
                while (time.monotonic() < self.ends or not self.is_enough()) and not self.failures:
                    assert time.monotonic() < self.ends + MOST_SECONDS, "too little happened"
                    work()
            except BaseException as failure:
                self.failures.append(failure)
                raise

        self.threads.append(threading.Thread(target=loop))

    def run(self):
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join(timeout=2 * MOST_SECONDS)
        assert not self.failures, self.failures


@pytest.mark.filterwarnings("default::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore::fedbandit.errors.NothingAdopted")  # on a busy machine the answers come late
@pytest.mark.parametrize("name", names_with("any-time", "any-rows"))
def test_nothing_is_lost_or_counted_twice_when_threads_choose_observe_and_adopt(name, eager_switching):
    rule = make_rule(name)
    agent, server = rule.agent("a", incarnation="one"), rule.server()
    open_decisions, uploads, seen, lock = [], [], [], threading.Lock()
    n_chosen = [0, 0]

    def choose(which):
        rng = np.random.default_rng(which)

        def work():
            X = rng.integers(-8, 9, size=(4, 3)) / 8.0
            decision = agent.choose(X)
            n_chosen[which] += 1
            np.testing.assert_array_equal(decision.x, X[decision.index])
            assert np.isfinite(agent.scores(X).upper).all()
            open_decisions.append(decision)

        return work

    def observe():
        try:
            decision = open_decisions.pop()
        except IndexError:
            return
        reward = float(len(open_decisions) % 3)
        upload = agent.observe(decision, reward)
        with lock:
            seen.append((decision.x, reward))
            if upload is not None:
                uploads.append(upload)

    def exchange():
        pull = agent.arrive()
        if pull is not None:
            agent.adopt(server.receive(pull))
        with lock:
            mail = uploads[:]
            uploads.clear()
        for upload in mail:
            following = agent.adopt(server.receive(upload))
            if following is not None:
                with lock:
                    uploads.append(following)

    def save():
        assert len(agent.to_bytes()) > 0
        time.sleep(0.005)

    crew = Crew(lambda: len(seen) > 20 and sum(n_chosen) > 20)  # or it would mean nothing
    for work in (choose(0), choose(1), observe, observe, exchange, save):
        crew.repeat(work)
    crew.run()
    while uploads:
        exchange()
    assert agent.n_rounds == len(seen)
    assert agent.n_pending == sum(n_chosen) - len(seen)
    if name == "oful-independent":
        assert agent.estimate.stats.n_obs == len(seen)
    elif name == "oful-independent-rare-switching":
        assert agent.model.stats.n_obs + agent.local.n_obs == len(seen)
    elif name in names_with("uploads", "sums"):
        in_flight = agent.in_flight.stats if agent.in_flight is not None else stats_of([], 3)
        everything = server.stats + agent.local + in_flight
        # Multiples of 1/8 add without rounding, whatever the order.
        assert everything == rule.prior + stats_of(seen, 3)


@pytest.mark.filterwarnings("default::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore::fedbandit.errors.NothingAdopted")  # on a busy machine the answers come late
def test_many_threads_book_each_decision_once(eager_switching):
    agent = make_rule(alpha=np.inf).agent("a")
    decisions = [agent.choose(np.eye(3)) for _ in range(300)]
    booked, refused = [], []

    def book():
        for decision in decisions:
            try:
                agent.observe(decision, 1.0)
                booked.append(decision.id)
            except errors.AlreadyObserved:
                refused.append(decision.id)

    threads = [threading.Thread(target=book) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(booked) == sorted(decision.id for decision in decisions)
    assert len(refused) == 3 * len(decisions)
    assert agent.local.n_obs == len(decisions)


@pytest.mark.filterwarnings("default::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.filterwarnings("ignore::fedbandit.errors.NothingAdopted")  # on a busy machine the answers come late
def test_threads_that_overflow_the_waiting_decisions_drop_the_oldest(eager_switching):
    agent = make_rule().agent("a")
    agent.max_pending = 5
    crew = Crew()
    for _ in range(4):
        crew.repeat(lambda: agent.choose(np.eye(3)))
    crew.run()
    assert agent.n_pending == 5
