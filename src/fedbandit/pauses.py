"""Pauses of the background thread, so that the threads of the application get the interpreter's lock.

A thread that runs Python code keeps the interpreter's lock for up to `sys.getswitchinterval()`, 5 ms unless the
application changed it. Releasing the lock in passing, as NumPy and sockets do, is not enough: the thread has it back
before a waiting one has woken up. A thread that really sleeps lets others go on. So an exchange, half a millisecond of
Python code that nobody waits for, is done in pieces with a sleep after each. Only a thread that called `begin` pauses;
to any other one a pause point costs a tenth of a microsecond.

A call of the application that loses the lock waits for the piece under way and then until the system has woken it up,
about 30 µs even if the piece is empty. So pieces far below that gain nothing, and pieces above it are what is felt.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

WORTH_S = 12e-6  # of work, before a pause point pauses: the next piece may take two or three times as long
PAUSE_S = 50e-6  # the system makes about 0.1 ms of it


class _Thread(threading.local):
    since: float | None = None  # the end of the last pause; None: this thread never pauses


_thread = _Thread()


def begin() -> None:
    """From now on this thread pauses; also after it waited for something, which is no work."""
    _thread.since = time.perf_counter()


@contextmanager
def no_pauses() -> Iterator[None]:
    """Until the end of the block pause points do nothing, because its caller holds a lock that others wait for."""
    since, _thread.since = _thread.since, None
    try:
        yield
    finally:
        _thread.since = since


def pause_point(worth_s: float = WORTH_S, pause_s: float = PAUSE_S) -> None:
    """Sleep a little if this thread has worked for some time; its caller holds no lock that others wait for."""
    since = _thread.since
    if since is not None and not 0.0 <= time.perf_counter() - since <= worth_s:
        time.sleep(pause_s)
        _thread.since = time.perf_counter()
