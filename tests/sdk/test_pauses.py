"""A thread in the background sleeps between pieces of work; every other thread never does."""

import threading
import time

import pytest

from fedbandit.sdk import pauses


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
