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
    ImplausibleUpload,
    ModelChanged,
    NotFinite,
    Overloaded,
    Unauthenticated,
    UnknownModel,
)
from fedbandit.service.admin.auth import bearer_hash, require
from fedbandit.service.container import Container
from fedbandit.service.exchange.coordinator import MergeResult
from fedbandit.service.exchange.ledger import IncomingUpload
from fedbandit.service.exchange.replies import ExchangeReply
from fedbandit.service.http import error_responses
from fedbandit.service.http.connections import mark_authenticated
from fedbandit.service.stores.base import MergedBatch
from fedbandit.wire import codec
from fedbandit.wire.settings import ModelSettings

MAX_COUNT = 1 << 53
MAX_KEPT = 100  # answers to uploads that are shed; they differ by the model's name
SHED = "shed"
CHECKED_BY_SETTINGS = (BodyTooLarge, DimensionMismatch, ImplausibleUpload, NotFinite)


class ExchangeContext:
    """One upload on its way: who came, to which model, and what the log will say of it."""

    __slots__ = ("agent", "began", "log", "model", "request_id", "settings", "token_hash", "uid")

    agent: str
    token_hash: bytes
    settings: ModelSettings
    uid: str  # of the model that has these settings

    def __init__(self, model: str, request_id: str) -> None:
        self.began = time.perf_counter()
        self.model = model
        self.request_id = request_id
        self.log: dict[str, Any] = {"request": request_id, "model": model}

    @property
    def max_bytes(self) -> int:
        """The longest body that can be an upload to this model."""
        return codec.max_bytes(self.settings.dim)


class _KnownModel(NamedTuple):
    """Settings as they were read, and the model that had them: one of the same name may have taken its place."""

    settings: ModelSettings
    uid: str


class ExchangeHandler:
    """The steps of an exchange, in the order of the methods; a refusal is raised, and `failed` makes an answer of it.

    Nothing here waits but `look_up`, for a token or a model that was not seen before, and `explain`.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._settings: dict[str, _KnownModel] = {}
        self._turn_began: float | None = None
        self._max_turn_s = container.settings.max_turn_ms / 1e3
        self._no_room: dict[str, ExchangeReply] = {}
        self._n_shed = 0  # since the last line about it
        self._refused_for_load = container.metrics.refusals.labels(Overloaded.code)
        self._batch: tuple[MergedBatch | None, dict[str, str], str] = (None, {}, "")
        self.memory = container.memory
        self.body_timeout_s = container.settings.body_timeout_s

    def request_id(self) -> str:
        """A name for what comes next."""
        return self._container.request_ids.next()

    def visit(self, model: str) -> ExchangeContext:
        """Somebody is at the door."""
        return ExchangeContext(model, self._container.request_ids.next())

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
        return self._container.coordinator.why_full(model)

    def require_capacity(self, model: str) -> None:
        """`Overloaded` where `why_full` has an answer."""
        why = self.why_full(model)
        if why is not None:
            raise Overloaded(why)

    def _end_turn(self) -> None:
        self._turn_began = None

    def recognise(self, visit: ExchangeContext, authorization: str | None) -> bool:
        """Whose token it is, and to which model; False where the store has to be asked."""
        visit.token_hash = bearer_hash(authorization)
        principal = self._container.gate.remembered(visit.token_hash)
        known = self._settings.get(visit.model)
        if principal is None or known is None:
            return False
        require(principal, "agent", model=visit.model)
        mark_authenticated()
        visit.agent = visit.log["agent"] = principal.name
        visit.settings, visit.uid = known
        return True

    def recognise_again(self, visit: ExchangeContext, before: ExchangeContext) -> bool:
        """The same for whoever came on this connection before, with the same header to the same model."""
        known = self._settings.get(visit.model)
        if known is None:
            return False
        visit.agent = visit.log["agent"] = before.agent
        visit.token_hash = before.token_hash
        visit.settings, visit.uid = known
        return True

    async def look_up(self, visit: ExchangeContext) -> None:
        """The same from the store, which is remembered."""
        principal = await self._container.gate.agent(visit.token_hash, visit.model)
        visit.agent = visit.log["agent"] = principal.name
        # Read anew for every token that is new here: it may be of a model that was deleted and created again.
        await self._load_settings(visit)

    async def _load_settings(self, visit: ExchangeContext) -> None:
        model = await self._container.store.load(visit.model)
        known = self._settings[visit.model] = _KnownModel(model.settings, model.uid)
        visit.settings, visit.uid = known

    def decoded(self, visit: ExchangeContext, body: bytes | memoryview) -> codec.SyncRequest:
        """The request in a body, if it is for this model and from this agent."""
        request = codec.decode_request(body)
        visit.log["sequence"] = request.sequence
        if request.agent != visit.agent:
            raise Forbidden(f"this token belongs to agent {visit.agent!r}, the upload names {request.agent!r}")
        if not request.incarnation.isprintable():
            raise FormatError("the message is malformed; expected a printable incarnation")
        if request.dim != visit.settings.dim:
            raise DimensionMismatch(f"expected an upload with {visit.settings.dim} features, got {request.dim}")
        return request

    def checked(self, visit: ExchangeContext, request: codec.SyncRequest, n_bytes: int) -> IncomingUpload:
        """The upload, if data can have given it; long for many features, and then not for the event loop."""
        settings = visit.settings
        numbers = codec.numbers_of(request)
        require_plausible(numbers, settings.dim, settings.bounds)
        # A buffer cannot have grown by more than its data allow, whatever the agent says.
        growth = min(max(request.growth, 0.0), information(numbers, settings.dim, settings.lam))
        return IncomingUpload(
            agent=request.agent,
            incarnation=request.incarnation,
            sequence=request.sequence,
            digest=request.digest,
            numbers=numbers,
            growth=growth,
            token_hash=visit.token_hash,
            model_version=min(request.model_version, MAX_COUNT),
            unsent=min(request.unsent, MAX_COUNT),
            n_bytes=n_bytes,
            uid=visit.uid,
        )

    async def explain(self, visit: ExchangeContext, error: FedbanditError) -> FedbanditError:
        """The error to answer with: the token or the settings that the upload was checked with may be out of date."""
        if isinstance(error, (UnknownModel, ModelChanged)):
            self._settings.pop(visit.model, None)
        try:
            if isinstance(error, CHECKED_BY_SETTINGS) and not await self._is_current(visit):
                self._settings.pop(visit.model, None)
                return ModelChanged("the model was deleted and created again; send the upload again")
            if isinstance(error, (Forbidden, Unauthenticated)):
                await self._container.gate.explain(visit.token_hash)
        except FedbanditError as reason:  # also that the store is away, and cannot say
            return reason
        return error

    async def _is_current(self, visit: ExchangeContext) -> bool:
        try:
            return (await self._container.store.load(visit.model)).uid == visit.uid
        except UnknownModel:
            return False

    def accepted(self, visit: ExchangeContext, answer: MergeResult) -> ExchangeReply:
        """The answer to an upload that is merged, now or before."""
        merged, acknowledged = answer
        model = merged.model
        batch = self._batch  # what all answers to one batch share; other threads may be here, too
        if merged is not batch[0]:
            batch = self._batch = (merged, {"ETag": model.tag}, model.settings_id)
        _, headers, settings_id = batch
        reply = codec.SyncReply(
            agent=visit.agent,
            version=model.version,
            acknowledged=acknowledged.sequence,
            dim=model.settings.dim,
            stats=merged.packed,
            settings=settings_id,
        )
        visit.log["version"] = model.version
        return ExchangeReply(200, codec.encode(reply), "merged" if acknowledged.is_new else "repeated", headers)

    def failed(self, visit: ExchangeContext, error: Exception) -> ExchangeReply:
        """The answer to an upload that was refused, or that something unforeseen happened to."""
        if not isinstance(error, FedbanditError):
            self._container.log.error("internal_error", **visit.log, exc_info=error)
            return ExchangeReply(500, error_responses.body_of(*error_responses.INTERNAL), "failed")
        if isinstance(error, Overloaded):
            return self.shed(str(error))
        visit.log["error"] = error.code
        self._container.metrics.refusals.labels(error.code).inc()
        status = error_responses.status_of(error)
        result = "failed" if status >= 500 else "refused"
        return ExchangeReply(
            status,
            error_responses.body_of(error.code, str(error)),
            result,
            error_responses.extra_headers(status, error),
        )

    def shed(self, why: str) -> ExchangeReply:
        """The answer to an upload that came at a bad time; thousands a second must cost next to nothing."""
        outcome = self._no_room.get(why)
        if outcome is None:
            error = Overloaded(why)
            status = error_responses.status_of(error)
            headers = error_responses.extra_headers(status, error)
            outcome = ExchangeReply(status, error_responses.body_of(error.code, why), SHED, headers)
            if len(self._no_room) < MAX_KEPT:
                self._no_room[why] = outcome
        return outcome

    def note(self, visit: ExchangeContext, outcome: ExchangeReply) -> None:
        """The exchange is over: metrics and a line in the log, but for those that were shed one line a second."""
        if outcome.result == SHED:
            self.note_shed(visit.model)
            return
        spent = time.perf_counter() - visit.began
        metrics = self._container.metrics
        metrics.exchange_seconds.observe(spent)
        if visit.model in self._settings:  # a name that somebody made up must not become a label
            metrics.count_exchange(visit.model, outcome.result)
        self._container.log.info(
            "exchange", **visit.log, result=outcome.result, status=outcome.status, ms=round(1e3 * spent, 2)
        )

    def note_shed(self, model: str) -> None:
        """An upload was shed."""
        self._n_shed += 1
        if self._n_shed == 1:
            asyncio.get_running_loop().call_later(1.0, self._report_shed)
        self._refused_for_load.inc()
        if model in self._settings:
            self._container.metrics.count_exchange(model, "refused")

    def _report_shed(self) -> None:
        self._container.log.warning("shedding", n=self._n_shed, error=Overloaded.code)
        self._n_shed = 0
