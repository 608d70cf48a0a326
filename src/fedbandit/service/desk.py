"""What an upload goes through, whatever carries it: capacity, token, size, plausibility, the merge, the answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from fedbandit.core.plausibility import information, require_plausible
from fedbandit.errors import (
    BodyTooLarge,
    DimensionMismatch,
    FedbanditError,
    Forbidden,
    FormatError,
    Overloaded,
    Unauthenticated,
    UnknownModel,
)
from fedbandit.service import problems
from fedbandit.service.auth import bearer_hash, require
from fedbandit.service.coordinator import Answer
from fedbandit.service.ledger import Incoming
from fedbandit.service.model import ModelSettings
from fedbandit.service.parts import Parts
from fedbandit.service.stores.base import Merged
from fedbandit.wire import codec

MAX_COUNT = 1 << 53
MAX_KEPT = 100  # answers to uploads that are shed; they differ by the model's name
SHED = "shed"


class Outcome(NamedTuple):
    """What goes back, and the word for it in logs and metrics."""

    status: int
    body: bytes
    result: str
    headers: dict[str, str] = {}  # noqa: RUF012 - nobody writes to it


class Visit:
    """One upload on its way: who came, to which model, and what the log will say of it."""

    __slots__ = ("agent", "began", "log", "model", "request_id", "settings", "token_hash")

    agent: str
    token_hash: bytes
    settings: ModelSettings

    def __init__(self, model: str, request_id: str) -> None:
        self.began = time.perf_counter()
        self.model = model
        self.request_id = request_id
        self.log: dict[str, Any] = {"request": request_id, "model": model}

    @property
    def max_bytes(self) -> int:
        """The longest body that can be an upload to this model."""
        return codec.max_bytes(self.settings.dim)


class Desk:
    """The steps of an exchange, in the order of the methods; a refusal is raised, and `failed` makes an answer of it.

    Nothing here waits but `look_up`, for a token or a model that was not seen before, and `explain`.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._settings: dict[str, ModelSettings] = {}
        self._n_inflight = 0
        self._turn_began: float | None = None
        self._max_turn_s = parts.settings.max_turn_ms / 1e3
        self._max_inflight = parts.settings.max_inflight_mb << 20
        self._no_room: dict[str, Outcome] = {}
        self._n_shed = 0  # since the last line about it
        self._refused_for_load = parts.metrics.refusals.labels(Overloaded.code)
        self._batch: tuple[Merged | None, dict[str, str], str] = (None, {}, "")
        self.body_timeout_s = parts.settings.body_timeout_s

    def request_id(self) -> str:
        """A name for what comes next."""
        return self._parts.request_ids.next()

    def visit(self, model: str) -> Visit:
        """Somebody is at the door."""
        return Visit(model, self._parts.request_ids.next())

    def why_full(self, model: str) -> str | None:
        """Why no upload can be taken now: too many wait, or one turn of the event loop has read uploads for too long.

        Past saturation the backlog is in sockets that nobody has read yet, where the coordinator does not see it; but
        the more of them are ready, the longer a turn lasts. What is shed costs a fraction of what is read.
        """
        now = time.perf_counter()
        if self._turn_began is None:
            self._turn_began = now
            asyncio.get_running_loop().call_soon(self._end_turn)
        elif now - self._turn_began > self._max_turn_s:
            return "more uploads arrived at once than can be read in time"
        return self._parts.coordinator.why_full(model)

    def require_capacity(self, model: str) -> None:
        """`Overloaded` where `why_full` has an answer."""
        why = self.why_full(model)
        if why is not None:
            raise Overloaded(why)

    def _end_turn(self) -> None:
        self._turn_began = None

    def recognise(self, visit: Visit, authorization: str | None) -> bool:
        """Whose token it is, and to which model; False where the store has to be asked."""
        visit.token_hash = bearer_hash(authorization)
        principal = self._parts.gate.remembered(visit.token_hash)
        settings = self._settings.get(visit.model)
        if principal is None or settings is None:
            return False
        require(principal, "agent", model=visit.model)
        visit.agent = visit.log["agent"] = principal.name
        visit.settings = settings
        return True

    def recognise_again(self, visit: Visit, before: Visit) -> bool:
        """The same for whoever came on this connection before, with the same header to the same model."""
        settings = self._settings.get(visit.model)
        if settings is None:
            return False
        visit.agent = visit.log["agent"] = before.agent
        visit.token_hash = before.token_hash
        visit.settings = settings
        return True

    async def look_up(self, visit: Visit) -> None:
        """The same from the store, which is remembered."""
        principal = await self._parts.gate.agent(visit.token_hash, visit.model)
        visit.agent = visit.log["agent"] = principal.name
        settings = self._settings.get(visit.model)
        if settings is None:
            settings = self._settings[visit.model] = (await self._parts.store.load(visit.model)).settings
        visit.settings = settings

    def set_aside(self, length: int) -> None:
        """Memory for a body, before it is read; `give_back` when it is."""
        if self._n_inflight + length > self._max_inflight:
            raise Overloaded("too many bodies are being received")
        self._n_inflight += length

    def give_back(self, length: int) -> None:
        """The body is read, or will never be."""
        self._n_inflight -= length

    def decoded(self, visit: Visit, body: bytes | memoryview) -> codec.SyncRequest:
        """The request in a body, if it is for this model and from this agent."""
        request = codec.decode_request(body)
        visit.log["sequence"] = request.sequence
        if request.agent != visit.agent:
            raise Forbidden(f"this token belongs to agent {visit.agent!r}, the upload names {request.agent!r}")
        if not request.incarnation.isprintable():
            raise FormatError("the message is malformed; expected a printable incarnation")
        if request.dim != visit.settings.dim:
            self._settings.pop(visit.model, None)  # made anew by another replica?
            raise DimensionMismatch(f"expected an upload with {visit.settings.dim} features, got {request.dim}")
        return request

    def checked(self, visit: Visit, request: codec.SyncRequest, n_bytes: int) -> Incoming:
        """The upload, if data can have given it; long for many features, and then not for the event loop."""
        settings = visit.settings
        numbers = codec.numbers_of(request)
        require_plausible(numbers, settings.dim, settings.bounds)
        # A buffer cannot have grown by more than its data allow, whatever the agent says.
        growth = min(max(request.growth, 0.0), information(numbers, settings.dim, settings.lam))
        return Incoming(
            agent=request.agent,
            incarnation=request.incarnation,
            sequence=request.sequence,
            digest=request.digest,
            numbers=numbers,
            growth=growth,
            token_hash=visit.token_hash,
            model_version=min(request.model_version, MAX_COUNT),
            waiting=min(request.waiting, MAX_COUNT),
            n_bytes=n_bytes,
        )

    async def explain(self, visit: Visit, error: FedbanditError) -> FedbanditError:
        """The error that the store refused an upload with, said more precisely where a remembered token was no good."""
        if isinstance(error, (UnknownModel, DimensionMismatch)):
            self._settings.pop(visit.model, None)  # deleted, or made anew by another replica
        if isinstance(error, (Forbidden, Unauthenticated)):
            try:
                await self._parts.gate.explain(visit.token_hash)
            except FedbanditError as reason:
                return reason
        return error

    def accepted(self, visit: Visit, answer: Answer) -> Outcome:
        """The answer to an upload that is merged, now or before."""
        merged, acknowledged = answer
        model = merged.model
        if merged is not self._batch[0]:  # what all answers to one batch share
            self._batch = (merged, {"ETag": model.tag}, model.settings_id)
        _, headers, settings_id = self._batch
        reply = codec.SyncReply(
            agent=visit.agent,
            version=model.version,
            acknowledged=acknowledged.sequence,
            dim=model.settings.dim,
            stats=merged.packed,
            settings=settings_id,
        )
        visit.log["version"] = model.version
        return Outcome(200, codec.encode(reply), "merged" if acknowledged.is_new else "repeated", headers)

    def failed(self, visit: Visit, error: Exception) -> Outcome:
        """The answer to an upload that was refused, or that something unforeseen happened to."""
        if not isinstance(error, FedbanditError):
            self._parts.log.error("internal_error", **visit.log, exc_info=error)
            return Outcome(500, problems.body_of(*problems.INTERNAL), "failed")
        if isinstance(error, Overloaded):
            return self.shed(str(error))
        visit.log["error"] = error.code
        self._parts.metrics.refusals.labels(error.code).inc()
        status = problems.status_of(error)
        return Outcome(
            status, problems.body_of(error.code, str(error)), "refused", problems.extra_headers(status, error)
        )

    def shed(self, why: str) -> Outcome:
        """The answer to an upload that came at a bad time; thousands a second must cost next to nothing."""
        outcome = self._no_room.get(why)
        if outcome is None:
            error = Overloaded(why)
            status = problems.status_of(error)
            headers = problems.extra_headers(status, error)
            outcome = Outcome(status, problems.body_of(error.code, why), SHED, headers)
            if len(self._no_room) < MAX_KEPT:
                self._no_room[why] = outcome
        return outcome

    def note(self, visit: Visit, outcome: Outcome) -> None:
        """The exchange is over: metrics and a line in the log, but for those that were shed one line a second."""
        if outcome.result == SHED:
            self.note_shed(visit.model)
            return
        spent = time.perf_counter() - visit.began
        metrics = self._parts.metrics
        metrics.exchange_seconds.observe(spent)
        if visit.model in self._settings:  # a name that somebody made up must not become a label
            metrics.count_exchange(visit.model, outcome.result)
        self._parts.log.info(
            "exchange", **visit.log, result=outcome.result, status=outcome.status, ms=round(1e3 * spent, 2)
        )

    def note_shed(self, model: str) -> None:
        """An upload was shed."""
        self._n_shed += 1
        if self._n_shed == 1:
            asyncio.get_running_loop().call_later(1.0, self._report_shed)
        self._refused_for_load.inc()
        if model in self._settings:
            self._parts.metrics.count_exchange(model, "refused")

    def _report_shed(self) -> None:
        self._parts.log.warning("shedding", n=self._n_shed, error=Overloaded.code)
        self._n_shed = 0


def too_large(limit: int) -> BodyTooLarge:
    """Said of a body before or while it is read."""
    return BodyTooLarge(f"expected at most {limit} bytes for this model")
