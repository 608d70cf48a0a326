"""A thread in the background sleeps between pieces of work; every other thread never does."""

import threading
import time

import pytest

from fedbandit import pauses


@pytest.fixture
def sleeps(monkeypatch):
    """The sleeps of pause points, which take no time."""
    found = []
    monkeypatch.setattr(pauses.time, "sleep", lambda seconds: found.append(threading.get_ident()))
    return found


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20.0)
    return thread.ident


def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_a_thread_that_did_not_begin_never_sleeps(sleeps):
    def work():
        spin(1e-3)
        pauses.pause_point()

    in_thread(work)
    assert sleeps == []


def test_a_thread_sleeps_once_for_each_piece_of_work(sleeps):
    def work():
        pauses.begin()
        pauses.pause_point()  # nothing was done yet
        for _ in range(3):
            spin(1e-3)
            pauses.pause_point()

    begun = in_thread(work)
    assert 3 <= len(sleeps) <= 4 and set(sleeps) == {begun}  # 4: the machine took the processor away at the start


def test_beginning_is_of_one_thread(sleeps):
    in_thread(pauses.begin)
    spin(1e-3)
    pauses.pause_point()
    assert sleeps == []


def test_nothing_pauses_while_a_lock_is_held_that_others_wait_for(sleeps):
    def work():
        pauses.begin()
        with pauses.no_pauses():
            spin(1e-3)
            pauses.pause_point()
            with pauses.no_pauses():
                pauses.pause_point()
            pauses.pause_point()
        held = len(sleeps)
        pauses.pause_point()
        sleeps.append(held)

    in_thread(work)
    assert sleeps[-1] == 0 and len(sleeps) == 2


def test_a_long_computation_pauses_in_between(sleeps):
    import numpy as np

    from fedbandit.core.ridge import factorise

    Sigma = np.eye(300) * 2.0

    def work():
        pauses.begin()
        factorise(Sigma)

    begun = in_thread(work)
    assert len(sleeps) > 5 and set(sleeps) == {begun}
    sleeps.clear()
    factorise(Sigma)  # in this thread
    assert sleeps == []
