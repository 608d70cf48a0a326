"""One exchange at a time between an agent and its server, and what is known about the server."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import msgspec

from fedbandit.algorithms.messages import Download, Receipt, Upload
from fedbandit.errors import (
    Closed,
    DimensionMismatch,
    FormatError,
    InvalidInput,
    InvalidParameter,
    LiveError,
    NotReachable,
    Refused,
    StateMismatch,
    UnusableModel,
)
from fedbandit.pauses import no_pauses, pause_point
from fedbandit.sdk.durable_agent import DurableAgent
from fedbandit.sdk.next_model import NextModel, count_growth, prepare
from fedbandit.sdk.offline import confirm
from fedbandit.sdk.restore_recovery import is_gap, require_nothing_twice, send_again
from fedbandit.sdk.reward_collection import Collector, RewardTransport
from fedbandit.sdk.transport import Transport, TransportReply
from fedbandit.wire.block_changes import KnownBlocks
from fedbandit.wire.codec import SyncRequest, download_of, encode, request_of, require_sound
from fedbandit.wire.settings import ModelDescription

logger = logging.getLogger("fedbandit.sdk")
REFUSED_PAUSE_S = 300.0  # an operator has to act; retry rarely, in case that was done

FIRST_DELAY_S, LONGEST_DELAY_S = 0.25, 60.0
COUNTING_S = 1e-3  # after a new model, in which an observation of the application counts what it does not hold
LONGEST_RETRY_AFTER_S = 3600.0  # a server cannot silence an agent for longer than this


class Backoff:
    """Exponential back-off with full jitter: delays uniform on [0, first·2ⁿ), at most `most_s`.

    The jitter keeps a fleet from retrying all at once.

    >>> backoff = Backoff(Random(1), first_s=1.0)
    >>> all(backoff.delay_s() <= 2.0**n for n in range(5))
    True
    """

    def __init__(self, rng: Random, *, first_s: float = FIRST_DELAY_S, most_s: float = LONGEST_DELAY_S) -> None:
        self._rng = rng
        self._first_s = first_s
        self._most_s = most_s
        self.n_failures = 0

    def delay_s(self, retry_after_s: float | None = None) -> float:
        """How long to wait after one more failure; at least what the server asked for, spread a little beyond."""
        ceiling = min(self._most_s, self._first_s * 2.0 ** min(self.n_failures, 30))
        self.n_failures += 1
        jitter = self._rng.uniform(0.0, ceiling)
        if retry_after_s is None:
            return jitter
        asked_s = min(max(retry_after_s, 0.0), LONGEST_RETRY_AFTER_S)
        return asked_s + min(jitter, 0.1 * asked_s + self._first_s)

    def reset(self) -> None:
        """Start again from the first delay, after an answer."""
        self.n_failures = 0


class SyncClient:
    """Carries uploads and downloads in the calling thread; records failures and when to retry."""

    def __init__(
        self,
        durable: DurableAgent,
        transport: Transport,
        *,
        backoff: Backoff,
        timeout_s: float,
        check_after_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.durable = durable
        self.transport = transport
        self.reachable: bool | None = None
        self.last_error: LiveError | None = None
        self.last_contact: float | None = None
        self.last_exchange = clock()  # the last upload that was answered, or the start
        self.next_attempt = 0.0
        self.halted = False  # the settings changed: nothing travels until the application connects again
        self.outdated: Refused | None = None  # the model got arms or features that this agent does not know
        self.refused_model: str | None = None  # why the server's newest model is not in use
        self.acknowledged: int | None = None  # the last upload that the server says it has
        self.ending = threading.Event()
        self.collector = Collector()
        self.clock = clock
        self._backoff = backoff
        self._timeout_s = timeout_s
        self._check_after_s = check_after_s
        self._asked = clock()  # whether data were taken out of the model
        self._known = KnownBlocks()
        self._tag: str | None = None
        self._tried: int = 0  # sequence of the upload that was last sent
        self._one = threading.Lock()
        self._until = math.inf  # when the turn that is under way must be over

    # -- exchange and refresh ------------------------------------------------------------------------------------

    def exchange(self, *, everything: bool = False, within_s: float | None = None) -> bool:
        """Send the upload that is due (or, with `everything`, whatever there is) and adopt the answer; False: none."""
        with self._turn(within_s) as timeout_s:
            with self._noting_failures():
                confirm(self, self._left_s(timeout_s))
                request = self._prepare(everything)
            if request is None:
                return False
            pause_point()
            body = encode(request)
            with self._noting_failures():
                self._sync(body, request.sequence, timeout_s)
                self._require_merged(request.sequence)
            self._succeeded()
            self.last_exchange = self.clock()
            self.collector.collect_quietly(self, timeout_s)
            return True

    def refresh(self, *, within_s: float | None = None, if_corrected: bool = False) -> bool:
        """Adopt the newest model; False when there is nothing new.

        With `if_corrected` only where data were taken out of the model since, which a few hundred bytes tell.
        """
        with self._turn(within_s) as timeout_s:
            before = self.durable.agent.model_version
            with self._noting_failures():
                confirm(self, self._left_s(timeout_s))
                self._asked = self.clock()
                tag = f"W/{self._tag}" if if_corrected and self._tag else self._tag
                answer = self.transport.state(self.durable.agent.incarnation, tag, timeout_s=self._left_s(timeout_s))
                self.durable.counters.refreshes += answer is not None or not if_corrected
                if answer is not None:
                    self.durable.counters.bytes_received += answer.n_bytes
                    self._take(answer, answers=None)
                send_again(self, timeout_s)  # also after a 304: the server may still lack what it lacked before
            self._succeeded()
            self.collector.collect_quietly(self, timeout_s)
            return self.durable.agent.model_version != before

    def silence_in_s(self) -> float | None:
        """How long until what is unsent must travel, because the model limits silence; None: no limit, or nothing."""
        limit_s, durable = self.durable.settings.max_silence_s, self.durable
        if limit_s is None or durable.n_unsent < durable.agent.rule.min_upload:
            return None
        return max(self.last_exchange + limit_s - self.clock(), 0.0)

    def token_key(self, within_s: float | None = None) -> bytes:
        """The key of this agent's decision tokens, from the server if it is not known yet."""
        if self.collector.token_key is None:
            with self._turn(within_s) as timeout_s, self._noting_failures():
                self.collector.collect(self, timeout_s)
        if self.collector.token_key is None:
            raise NotReachable(f"{self.transport.address} does not take rewards")
        return self.collector.token_key

    def report(self, decision: str, reward: float, *, within_s: float | None = None) -> str:
        """Report a reward of any agent's decision, by its id or token; what the server did with it."""
        transport = self.transport
        if not isinstance(transport, RewardTransport):
            raise InvalidInput(f"{transport.address} does not take rewards of other agents' decisions")
        with self._turn(within_s) as timeout_s:
            answer = transport.report(decision, reward, timeout_s=self._left_s(timeout_s))
        return str(answer.get("status", ""))

    def check_in_s(self) -> float | None:
        """How long until the server is to be asked whether data were taken out of the model; None: never."""
        if self._check_after_s is None:
            return None
        since = self._asked if self.last_contact is None else max(self._asked, self.last_contact)
        return max(since + self._check_after_s - self.clock(), 0.0)

    @property
    def is_put_off(self) -> bool:
        """Whether the server answers, and will not take the upload that is in flight, or not now."""
        error = self.last_error
        if error is self.outdated:
            return False
        return isinstance(error, Refused) or (isinstance(error, NotReachable) and error.retry_after_s is not None)

    def check(self) -> None:
        """Ask it while an upload is put off; the error of the upload and the time of its retry stay."""
        error, attempt = self.last_error, self.next_attempt
        try:
            self.refresh(if_corrected=True)
        finally:
            self.last_error, self.next_attempt = error, attempt

    def note(self, error: NotReachable) -> None:
        """Record that the server did not answer, and schedule a retry."""
        left = self.next_attempt - self.clock()
        if left > 0.0:  # a try ahead of time moves the next regular one only if the server asks for it
            asked_s = min(error.retry_after_s or 0.0, LONGEST_RETRY_AFTER_S)
            self._failed(error, max(left, asked_s), reachable=False)
        else:
            self._failed(error, self._backoff.delay_s(error.retry_after_s), reachable=False)

    def deliver(self, body: bytes, sequence: int, timeout_s: float) -> None:
        """Send the upload of this sequence and adopt the reply; the caller holds the turn."""
        if sequence == 1 and self.durable.earlier:
            require_nothing_twice(self, timeout_s)
        pause_point()
        answer = self.transport.sync(body, timeout_s=self._left_s(timeout_s))
        try:
            answer = replace(answer, reply=self._known.completed(answer.reply))
        except FormatError as error:
            raise self._not_a_model(error) from None
        pause_point()
        counters = self.durable.counters
        counters.bytes_sent += len(body)
        counters.bytes_received += answer.n_bytes
        counters.exchanges += 1
        self._take(answer, answers=sequence)

    def begin_incarnation(self) -> None:
        """Forget what the server said about the last incarnation."""
        self._tag = self.acknowledged = None

    def probe(self, body: bytes, sequence: int) -> None:
        """Send an upload to see whether the server accepts it; a reply is adopted."""
        with self._turn(None) as timeout_s, self._noting_failures():
            confirm(self, self._left_s(timeout_s))
            self.deliver(body, sequence, timeout_s)

    # -- inside ------------------------------------------------------------------------------------------------

    def _sync(self, body: bytes, sequence: int, timeout_s: float) -> None:
        """Deliver an upload; a server that misses earlier ones gets them first, if we still have them."""
        try:
            self.deliver(body, sequence, timeout_s)
        except Refused as error:
            if not is_gap(error):
                raise
            answer = self.transport.state(self.durable.agent.incarnation, None, timeout_s=self._left_s(timeout_s))
            if answer is None:
                raise
            self._take(answer, answers=None)
            if not send_again(self, timeout_s):
                raise
            self.deliver(body, sequence, timeout_s)

    @contextmanager
    def _turn(self, within_s: float | None) -> Iterator[float]:
        """Wait until no other exchange is under way; gives the time that the network may take."""
        if within_s is None:
            with self._one:  # unlike `acquire`, safe from an exception that a signal handler raises
                self._require_going()
                yield self._timeout_s
            return
        begun = self.clock()
        if not self._one.acquire(timeout=max(within_s, 0.0)):
            raise NotReachable(f"{self.transport.address} has not answered an earlier exchange yet")
        try:
            self._require_going()
            self._until = begun + within_s
            yield self._left_s(self._timeout_s)
        finally:
            self._until = math.inf
            self._one.release()

    def _left_s(self, timeout_s: float) -> float:
        """Seconds for one call; several calls of one turn share what `within_s` allows."""
        left = min(timeout_s, self._until - self.clock())
        if left <= 0.0:
            raise NotReachable(f"{self.transport.address} did not answer in the time that was given")
        return left

    def _require_going(self) -> None:
        self.durable.check()
        if self.halted and self.last_error is not None:
            raise self.last_error

    def _prepare(self, everything: bool) -> SyncRequest | None:
        """The next request; it is in the journal, and on disk, before it travels."""
        durable = self.durable
        with durable.agent._lock, no_pauses():
            durable.check()
            durable.finish()
            upload: Upload | None = durable.agent.in_flight
            if upload is None and (everything or durable.agent.should_upload):
                upload = durable.agent.upload_now()
            if upload is None:
                return None
            is_saved = durable.saved_sequence >= upload.sequence
            version, unsent, model = durable.agent.model_version, durable.n_unsent, durable.agent.model
        if not is_saved:
            durable.save()
            durable.check()  # closed meanwhile: then nothing may be saved
        pause_point()
        request = self._known.named_in(request_of(upload, model_version=version, unsent=unsent), model.stats)
        pause_point()
        if durable.journal is not None and durable.durable_sequence < upload.sequence:
            # Saved is not on disk: an upload that the last answer made due was saved with that answer, without a sync.
            durable.journal.make_durable()
            with durable.agent._lock:
                if durable.agent.incarnation != upload.incarnation:
                    return None  # `rejoin` has taken it over meanwhile
                durable.durable_sequence = upload.sequence
        durable.counters.retries += self._tried == upload.sequence
        self._tried = upload.sequence
        return request

    def _take(self, answer: TransportReply, *, answers: int | None) -> None:
        """Adopt an answer, which is one to the upload `answers`, or to none.

        The upload in flight is merged if the answer to it says so. Otherwise a number is no evidence: a copy of this
        state may have sent another upload under it. So it travels (again), and the server compares the content.
        """
        durable, reply = self.durable, answer.reply
        flight, merged = durable.agent.in_flight, reply.acknowledged
        if flight is not None and answers != flight.sequence and reply.acknowledged == flight.sequence:
            reply = msgspec.structs.replace(reply, acknowledged=flight.sequence - 1)
            answer = replace(answer, reply=reply)
        if reply.settings and durable.settings_id and reply.settings != durable.settings_id:
            self._renew_settings(reply.acknowledged)
            if self.outdated is not None:
                return
        download = self._download(answer)
        pause_point()
        if download.acknowledged > durable.agent.sequence:
            self.halted = True
            raise StateMismatch(
                f"the server has merged upload {download.acknowledged} of this incarnation of agent "
                f"{durable.agent.agent_id!r}, which remembers only {durable.agent.sequence}: the state is an old copy. "
                f"Nothing is sent, so that nothing counts twice; begin anew in another directory"
            )
        with durable.building:
            following = self._prepared(download, merged)
            with durable.agent._lock, no_pauses():
                if durable.ended is not None:
                    return  # like a reply that was lost: the next process sends the upload again
                # An exception in between leaves nothing that a later answer "not modified" would be read with.
                self._tag = self.acknowledged = None
                self._adopt(download, following)
                self._tag, self.acknowledged = answer.tag, download.acknowledged
            pause_point(0.0, COUNTING_S)
            count_growth(durable)
        pause_point()
        durable.save()
        pause_point()
        if durable.journal is not None:
            durable.journal.tidy()

    def _prepared(self, download: Download, merged: int) -> NextModel | None:
        """The model of a download; None if no decision can rest on it, which `status` then says."""
        try:
            following = prepare(self.durable, download, merged)
        except FormatError as error:
            raise self._not_a_model(error) from None
        except UnusableModel as error:
            if self.refused_model != str(error):
                logger.error("agent %s: %s (decisions go on with the model before)", self.durable.agent.agent_id, error)
            self.refused_model = str(error)
            return None
        self.refused_model = None
        return following

    def _adopt(self, download: Download, following: NextModel | None) -> None:
        """The upload counts in any case; a model that cannot be used leaves the one before in its place."""
        durable = self.durable
        if following is None:
            durable.adopt(Receipt(durable.agent.agent_id, download.acknowledged))
            return
        if download.epoch < durable.agent.world.epoch:
            # The server was restored to a state before a restart; the next upload, of this epoch, tells it.
            durable.adopt(Receipt(durable.agent.agent_id, download.acknowledged))
            return
        if download.version < durable.agent.model_version:
            # Questions go out one at a time, so this is no late answer: the server itself went back.
            logger.warning("agent %s: the server went back to version %d", durable.agent.agent_id, download.version)
            durable.agent.model_version = 0
        durable.adopt_prepared(following)

    def _download(self, answer: TransportReply) -> Download:
        """The download in a reply; nothing of one that cannot come from this model's server may be adopted."""
        try:
            download = download_of(answer.reply)
            pause_point()
            require_sound(answer.reply, self.durable.agent.rule.lam)
        except FormatError as error:
            raise self._not_a_model(error) from None
        agent = self.durable.agent
        is_other = (download.stats.dim, download.stats.blocks) != (agent.dim, agent.blocks)
        if download.agent_id != agent.agent_id or is_other:
            raise Refused(
                f"{self.transport.address} answered agent {download.agent_id!r} with {download.stats.dim} features; "
                f"expected {self.durable.agent.agent_id!r} and {self.durable.agent.dim}",
                reason=DimensionMismatch.code if is_other else InvalidInput.code,
            )
        return download

    def _not_a_model(self, error: FormatError) -> NotReachable:
        return NotReachable(f"{self.transport.address} answered with something else than a model: {error}")

    def _renew_settings(self, acknowledged: int) -> None:
        """Use the settings that the server has now, if they leave the sums valid; otherwise stop exchanging."""
        try:
            found = ModelDescription.from_dict(self.transport.describe(timeout_s=self._left_s(self._timeout_s)))
        except FormatError as error:
            raise NotReachable(
                f"{self.transport.address} answered with something else than settings: {error}"
            ) from None
        durable = self.durable
        if found.widens(durable.description):
            self._go_on_narrower(acknowledged)
            return
        if not found.continues(durable.description):
            self._halt(acknowledged)
        try:
            durable.use_settings(found)
        except InvalidParameter as error:  # `min_upload` does not go with the new radius
            logger.error("agent %s: the new settings cannot be used: %s", durable.agent.agent_id, error)
            self._halt(acknowledged)
        logger.info("agent %s: model %s has new settings", durable.agent.agent_id, durable.settings.name)

    def _go_on_narrower(self, acknowledged: int) -> None:
        """The model got arms or features: it takes uploads of its earlier width, and this agent cannot use it."""
        self._take_receipt(acknowledged)
        self._tag, self.acknowledged = None, acknowledged
        if self.outdated is None:
            self.outdated = self._settings_changed("are still merged")
            logger.error("agent %s: %s", self.durable.agent.agent_id, self.outdated)

    def _halt(self, acknowledged: int) -> None:
        """The upload counts if the server says so; its model is of another kind now, and is not adopted."""
        self._take_receipt(acknowledged)
        self.halted = True
        raise self._settings_changed("are kept")

    def _take_receipt(self, acknowledged: int) -> None:
        with self.durable.agent._lock:
            if self.durable.ended is None:
                self.durable.adopt(Receipt(self.durable.agent.agent_id, acknowledged))
        self.durable.save()

    def _settings_changed(self, fate: str) -> Refused:
        return Refused(
            f"the settings of model {self.durable.settings.name!r} changed on the server; decisions go on with the old "
            f"ones and observations {fate}: connect again to use the new ones",
            reason="settings_changed",
            status=409,
        )

    def _require_merged(self, sequence: int) -> None:
        upload = self.durable.agent.in_flight
        if upload is not None and upload.sequence == sequence:
            raise Refused(
                f"{self.transport.address} answered upload {sequence} without having merged it", reason="not_merged"
            )

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        """Record failures, and when to retry."""
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

    def _succeeded(self) -> None:
        """Record an answer of the server."""
        if self.reachable is False:
            logger.info("agent %s: %s answers again", self.durable.agent.agent_id, self.transport.address)
        self.durable.want_model(False)
        self.reachable = True
        self.last_error = self.outdated
        self.last_contact = self.clock()
        self.next_attempt = 0.0
        self._backoff.reset()

    def _failed(self, error: LiveError, delay_s: float, *, reachable: bool | None) -> None:
        is_news = type(self.last_error) is not type(error) or str(self.last_error) != str(error)
        level = logging.DEBUG if not is_news else logging.WARNING if isinstance(error, NotReachable) else logging.ERROR
        logger.log(level, "agent %s: %s (decisions go on)", self.durable.agent.agent_id, error)
        self.reachable = reachable
        self.last_error = error
        self.next_attempt = self.clock() + delay_s
