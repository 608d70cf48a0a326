"""One exchange at a time between an agent and its server, and what is known about the server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedbandit.algorithms.messages import Download, Receipt, Upload
from fedbandit.errors import (
    Closed,
    DimensionMismatch,
    FormatError,
    InvalidInput,
    LiveError,
    NotReachable,
    Refused,
    StateMismatch,
)
from fedbandit.sdk.comeback import is_gap, send_again
from fedbandit.sdk.core import LiveCore
from fedbandit.sdk.retry import Backoff
from fedbandit.sdk.transport import Answer, Transport
from fedbandit.wire.codec import SyncRequest, download_of, encode, request_of, require_sound

logger = logging.getLogger("fedbandit.sdk")
REFUSED_PAUSE_S = 300.0  # somebody has to act; ask again rarely, in case somebody did


class Link:
    """Carries uploads and downloads in the thread of whoever calls; remembers failures and when to try again."""

    def __init__(
        self,
        core: LiveCore,
        transport: Transport,
        *,
        backoff: Backoff,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.core = core
        self.transport = transport
        self.reachable: bool | None = None
        self.last_error: LiveError | None = None
        self.last_contact: float | None = None
        self.next_attempt = 0.0
        self.halted = False  # the settings changed: nothing travels until the application connects again
        self.acknowledged: int | None = None  # the last upload that the server has, by its own words
        self.ending = threading.Event()
        self.clock = clock
        self._backoff = backoff
        self._timeout_s = timeout_s
        self._tag: str | None = None
        self._tried: int = 0  # sequence of the upload that was last sent
        self._one = threading.Lock()

    # -- the two conversations ---------------------------------------------------------------------------------

    def exchange(self, *, everything: bool = False, within_s: float | None = None) -> bool:
        """Send the upload that is due (or, with `everything`, whatever there is) and adopt the answer; False: none."""
        with self._turn(within_s) as timeout_s:
            with self._noting_failures():
                request = self._prepare(everything)
            if request is None:
                return False
            body = encode(request)
            with self._noting_failures():
                self._sync(body, timeout_s)
                self._require_merged(request.sequence)
            self._heard()
            return True

    def refresh(self, *, within_s: float | None = None) -> bool:
        """Adopt the newest model; False when there is nothing new."""
        with self._turn(within_s) as timeout_s:
            before = self.core.model_version
            with self._noting_failures():
                answer = self.transport.state(self.core.incarnation, self._tag, timeout_s=timeout_s)
                self.core.counters.refreshes += 1
                if answer is not None:
                    self._count(0, answer)
                    self._take(answer)
                send_again(self, timeout_s)  # also after a 304: the server may still lack what it lacked before
            self._heard()
            return self.core.model_version != before

    def note(self, error: NotReachable) -> None:
        """The server did not answer somebody else's question; try again in a while."""
        self._failed(error, self._backoff.delay_s(error.retry_after_s), reachable=False)

    def deliver(self, body: bytes, timeout_s: float) -> None:
        """One upload there, one answer back and adopted; the caller has the turn."""
        answer = self.transport.sync(body, timeout_s=timeout_s)
        self._count(len(body), answer)
        self.core.counters.exchanges += 1
        self._take(answer)

    def begin_anew(self) -> None:
        """What the server said to the last life says nothing about the new one."""
        self._tag = self.acknowledged = None

    def probe(self, body: bytes) -> None:
        """Ask what the server says to an upload; an answer is adopted."""
        with self._turn(None) as timeout_s, self._noting_failures():
            self.deliver(body, timeout_s)

    # -- inside ------------------------------------------------------------------------------------------------

    def _sync(self, body: bytes, timeout_s: float) -> None:
        """Deliver an upload; a server that misses earlier ones gets them first, if we still have them."""
        try:
            self.deliver(body, timeout_s)
        except Refused as error:
            answer = self.transport.state(self.core.incarnation, None, timeout_s=timeout_s) if is_gap(error) else None
            if answer is None:
                raise
            self._take(answer)
            if not send_again(self, timeout_s):
                raise
            self.deliver(body, timeout_s)

    @contextmanager
    def _turn(self, within_s: float | None) -> Iterator[float]:
        """Wait for our turn; gives the time that the network may take."""
        begun = self.clock()
        if not self._one.acquire(timeout=-1 if within_s is None else max(within_s, 0.0)):
            raise NotReachable(f"{self.transport.address} has not answered an earlier exchange yet")
        try:
            self.core.check()
            if self.halted and self.last_error is not None:
                raise self.last_error
            left = self._timeout_s if within_s is None else within_s - (self.clock() - begun)
            yield max(min(left, self._timeout_s), 0.001)
        finally:
            self._one.release()

    def _prepare(self, everything: bool) -> SyncRequest | None:
        """The next request; it is in the journal, and on disk, before it travels."""
        core = self.core
        with core._lock:
            core.check()
            upload: Upload | None = core.in_flight
            if upload is None and (everything or core.should_upload):
                upload = core.upload_now()
            if upload is None:
                return None
            if core.saved_sequence < upload.sequence:
                core.save()
            request = request_of(upload, model_version=core.model_version, waiting=core.n_waiting)
        if core.journal is not None and core.durable_sequence < upload.sequence:
            # Saved is not on disk: an upload that the last answer made due was saved with that answer, without a sync.
            core.journal.make_durable()
            core.durable_sequence = upload.sequence
        core.counters.retries += self._tried == upload.sequence
        self._tried = upload.sequence
        return request

    def _take(self, answer: Answer) -> None:
        core, reply = self.core, answer.reply
        if reply.settings and core.terms.settings and reply.settings != core.terms.settings:
            self._halt(reply.acknowledged)
        download = self._download(answer)
        if download.acknowledged > core.sequence:
            self.halted = True
            raise StateMismatch(
                f"the server has merged upload {download.acknowledged} of this life of agent {core.agent_id!r}, which "
                f"remembers only {core.sequence}: the state is an old copy. Nothing travels, so that nothing counts "
                f"twice; begin anew in another directory"
            )
        with core._lock:
            if core.ended is not None:
                return  # like a reply that was lost: the next process sends the upload again
            if download.version < core.model_version:
                # Questions go out one at a time, so this is no late answer: the server itself went back.
                logger.warning("agent %s: the server went back to version %d", core.agent_id, download.version)
                core.model_version = 0
            core.adopt(download)
            self._tag, self.acknowledged = answer.tag, download.acknowledged
            core._judge().estimate.theta_hat  # noqa: B018 - factorised here, so that `choose` need not
            core.save()
        if core.journal is not None:
            core.journal.tidy()

    def _download(self, answer: Answer) -> Download:
        download = self._usable(answer)
        if download.agent_id != self.core.agent_id or download.stats.dim != self.core.dim:
            raise Refused(
                f"{self.transport.address} answered agent {download.agent_id!r} with {download.stats.dim} features; "
                f"expected {self.core.agent_id!r} and {self.core.dim}",
                reason=DimensionMismatch.code if download.stats.dim != self.core.dim else InvalidInput.code,
            )
        return download

    def _usable(self, answer: Answer) -> Download:
        """The download, if one can decide on it: nothing of another one may be adopted, whoever sent it."""
        try:
            download = download_of(answer.reply)
            require_sound(answer.reply, self.core.rule.lam)
        except FormatError as error:
            raise NotReachable(f"{self.transport.address} answered with something else than a model: {error}") from None
        return download

    def _halt(self, acknowledged: int) -> None:
        """The upload counts if the server says so; its model is of another kind now, and is not adopted."""
        with self.core._lock:
            if self.core.ended is None:
                self.core.adopt(Receipt(self.core.agent_id, acknowledged))
                self.core.save()
        self.halted = True
        raise Refused(
            f"the settings of model {self.core.terms.model!r} changed on the server; decisions go on with the old ones "
            f"and observations are kept: connect again to use the new ones",
            reason="settings_changed",
            status=409,
        )

    def _count(self, n_sent: int, answer: Answer) -> None:
        self.core.counters.bytes_sent += n_sent
        self.core.counters.bytes_received += answer.n_bytes

    def _require_merged(self, sequence: int) -> None:
        upload = self.core.in_flight
        if upload is not None and upload.sequence == sequence:
            raise Refused(
                f"{self.transport.address} answered upload {sequence} without having merged it", reason="not_merged"
            )

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        """Remember what went wrong, and when to try again."""
        try:
            yield
        except NotReachable as error:
            self.note(error)
            raise
        except Closed:
            raise
        except Refused as error:
            self._failed(error, REFUSED_PAUSE_S, reachable=True)
            raise
        except LiveError as error:
            self._failed(error, self._backoff.delay_s(), reachable=self.reachable)
            raise

    def _heard(self) -> None:
        """The server answered."""
        if self.reachable is False:
            logger.info("agent %s: %s answers again", self.core.agent_id, self.transport.address)
        self.core.want_model(False)
        self.reachable = True
        self.last_error = None
        self.last_contact = self.clock()
        self.next_attempt = 0.0
        self._backoff.reset()

    def _failed(self, error: LiveError, delay_s: float, *, reachable: bool | None) -> None:
        is_news = type(self.last_error) is not type(error) or str(self.last_error) != str(error)
        level = logging.DEBUG if not is_news else logging.WARNING if isinstance(error, NotReachable) else logging.ERROR
        logger.log(level, "agent %s: %s (decisions go on)", self.core.agent_id, error)
        self.reachable = reachable
        self.last_error = error
        self.next_attempt = self.clock() + delay_s
