"""Pauses of the background thread, so that the threads of the application get the interpreter's lock.

A thread that runs Python code keeps the interpreter's lock for up to `sys.getswitchinterval()`, 5 ms unless the
application changed it. Releasing the lock in passing, as NumPy and sockets do, is not enough: the thread has it back
before a waiting one has woken up. A thread that really sleeps lets others go on. So an exchange, about a millisecond of
Python code that nobody waits for, is done in pieces with a sleep after each. Only a thread that called `begin` pauses.
"""

from __future__ import annotations

import threading
import time

LONGEST_S = 40e-6  # of work between two pauses, if there is a pause point in time
PAUSE_S = 50e-6  # the system makes about 0.1 ms of it


class _Thread(threading.local):
    since: float | None = None  # the end of the last pause; None: this thread never pauses


_thread = _Thread()


def begin() -> None:
    """From now on this thread pauses."""
    _thread.since = time.perf_counter()


def pause_point() -> None:
    """Sleep a little if this thread has worked for some time; its caller holds no lock that others wait for."""
    since = _thread.since
    if since is not None and not 0.0 <= time.perf_counter() - since <= LONGEST_S:
        time.sleep(PAUSE_S)
        _thread.since = time.perf_counter()
