"""Virtual time and randomness of a history: controlled clocks, and one seed."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import secrets
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, ClassVar
from unittest.mock import patch

from fedbandit.algorithms.messages import Upload
from fedbandit.errors import JournalFailed
from fedbandit.sdk import connection
from fedbandit.sdk.background_sync import BackgroundSync
from fedbandit.sdk.durable_agent import DurableAgent
from fedbandit.sdk.journal import journal, pending_ring
from fedbandit.sdk.sync_client import SyncClient
from fedbandit.service.stores.sqlite import store as sqlite_store
from tests.crash_model import seams
from tests.crash_model.accounting import Key, key_of
from tests.crash_model.direct_worker import DirectWorker

START = 1_700_000_000.0
# Small, so that short histories reach what long ones do: a ring that is full, logs that are shortened.
SLOTS = (4, 8)
MAX_RECORDS = 6
MAX_LOG_BYTES = 150
MAX_WAL_BYTES = 30_000


class Clock:
    """Seconds since 1970, which an administrator may set, and monotonic seconds, which only grow."""

    def __init__(self) -> None:
        self.wall = START
        self.monotonic = 1000.0

    def advance(self, seconds: float) -> None:
        """Time passes."""
        self.wall += seconds
        self.monotonic += seconds


class Session:
    """What the wrapped functions use in the history that runs now."""

    clock = Clock()
    rng = Random(0)
    # incarnation -> uploads that were carried over into it, and whether they are of its epoch
    carried: ClassVar[dict[str, list[tuple[Key, bool]]]] = {}
    not_kept: ClassVar[set[int]] = set()  # decisions of the current call that the journal could not store

    @classmethod
    def begin(cls, seed: int) -> None:
        """Start another history."""
        cls.clock, cls.rng = Clock(), Random(seed)
        cls.carried.clear()
        cls.not_kept.clear()


class VirtualEvent(threading.Event):
    """An event whose wait advances the clock."""

    def wait(self, timeout: float | None = None) -> bool:
        Session.clock.advance(max(timeout or 0.0, 0.001))  # the shortest sleep takes some time
        return self.is_set()


class VirtualClient(SyncClient):
    """The sync client, by the clock of the history."""

    def __init__(self, durable: DurableAgent, transport: Any, **options: Any) -> None:
        super().__init__(durable, transport, clock=lambda: Session.clock.monotonic, **options)
        self.ending = VirtualEvent()


class TracedAgent(DurableAgent):
    """The durable agent, with the clock of the history; it records uploads carried over into a new incarnation."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, now=lambda: Session.clock.wall, **options)
        process = seams.current()
        if process is not None:
            process.agent = self

    def begin_incarnation(self, kept: Iterable[Upload]) -> None:
        uploads = list(kept)
        sent = [] if self.agent.in_flight is None else [self.agent.in_flight]
        taken = list({upload.sequence: upload for upload in (*uploads, *sent)}.values())
        keys = [(key_of(upload), upload.epoch == self.agent.world.epoch) for upload in taken]
        with patch.object(uuid, "uuid4", _Next(keys)):
            super().begin_incarnation(uploads)


class SteppedSync(BackgroundSync):
    """The background sync without a thread: the history determines when it runs."""

    def start(self) -> None:
        self.wake()

    def work(self) -> None:
        """One iteration of the thread."""
        self._work()


class _Next:
    """The name of the next incarnation, recorded with the data that are carried over before anything is written."""

    def __init__(self, keys: list[tuple[Key, bool]]) -> None:
        self._keys = keys

    def __call__(self) -> uuid.UUID:
        name = _uuid4()
        Session.carried[name.hex] = self._keys
        return name


_note = journal.Journal.note


def _noting(self: journal.Journal, waiting: pending_ring.PendingDecision) -> None:
    """`Journal.note`; it records the decisions that could not be stored."""
    try:
        _note(self, waiting)
    except JournalFailed:
        Session.not_kept.add(waiting.number)
        raise


def _uuid4() -> uuid.UUID:
    return uuid.UUID(int=Session.rng.getrandbits(128), version=4)


def _token(n_bytes: int | None = None) -> str:
    return base64.urlsafe_b64encode(Session.rng.randbytes(n_bytes or 32)).rstrip(b"=").decode()


def _boot_id() -> bytes:
    process = seams.current()
    return hashlib.sha256(b"" if process is None else process.boot).digest()[:8]


@contextmanager
def virtual() -> Iterator[None]:
    """Replace operating-system functions, clock and randomness; everything inside depends on seeds only."""
    with ExitStack() as stack:
        stack.enter_context(seams.wrapped())
        for target, name, value in (
            (uuid, "uuid4", _uuid4),
            (os, "urandom", lambda n: Session.rng.randbytes(n)),
            (os, "register_at_fork", lambda **_: None),  # nothing forks here, and registrations cannot be undone
            (secrets, "token_urlsafe", _token),
            (pending_ring, "boot_id", _boot_id),
            (journal, "boot_id", _boot_id),
            (pending_ring, "SLOTS", SLOTS),
            (journal, "MAX_RECORDS", MAX_RECORDS),
            (journal, "MAX_LOG_BYTES", MAX_LOG_BYTES),
            (journal, "MAX_WAL_BYTES", MAX_WAL_BYTES),
            (journal.Journal, "note", _noting),
            (connection, "SyncClient", VirtualClient),
            (connection, "DurableAgent", TracedAgent),
            (connection, "BackgroundSync", SteppedSync),
            (sqlite_store, "Worker", DirectWorker),
        ):
            stack.enter_context(patch.object(target, name, value))
        logger = logging.getLogger("fedbandit.sdk")
        before, logger.disabled = logger.disabled, True
        try:
            yield
        finally:
            logger.disabled = before
