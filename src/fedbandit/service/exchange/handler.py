"""The steps of an exchange, independent of HTTP: capacity, authentication, plausibility, the merge, the reply."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from msgspec import UNSET

from fedbandit.core.arrays import Vector
from fedbandit.core.block_packing import with_columns
from fedbandit.core.group_sums import NO_GROUPS
from fedbandit.core.plausibility import (
    Bounds,
    information,
    require_plausible,
    require_plausible_blocks,
    require_plausible_groups,
)
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
from fedbandit.service.http import error_responses
from fedbandit.service.http.connections import mark_authenticated
from fedbandit.service.model import Model, epoch_fields
from fedbandit.service.stores.base import MergedBatch
from fedbandit.wire import codec
from fedbandit.wire.block_changes import ChangedBlocks, known_of
from fedbandit.wire.settings import ModelSettings

MAX_COUNT = 1 << 53
MAX_SHED_REPLIES = 100  # prepared replies to uploads that are shed; they differ by the model's name
SHED = "shed"
CHECKED_BY_SETTINGS = (BodyTooLarge, DimensionMismatch, ImplausibleUpload, NotFinite)
CONTENT_TYPE = (b"content-type", codec.CONTENT_TYPE.encode())

HeaderPairs = tuple[tuple[bytes, bytes], ...]


class ExchangeReply(NamedTuple):
    """The response to an exchange, and its result in logs and metrics."""

    status: int
    body: bytes
    result: str
    headers: HeaderPairs


class CachedSettings(NamedTuple):
    """The settings of a model, and what follows from them for its uploads.

    They may have changed since, or another model may have the name: the transaction of the merge compares the id.
    """

    settings: ModelSettings
    settings_id: str
    bounds: Bounds
    max_bytes: int  # the largest body that can be an upload

    @classmethod
    def of(cls, model: Model) -> CachedSettings:
        """The settings of a model that was read from the store."""
        settings = model.settings
        return cls(settings, model.settings_id, settings.bounds, codec.max_bytes(settings.dim, settings.blocks))


@dataclass(slots=True)
class ExchangeContext:
    """One exchange: the agent, the model and its settings, and the fields of the log entry."""

    model: str
    request_id: str
    log: dict[str, Any]
    started: float
    agent: str = field(init=False)
    token_hash: bytes = field(init=False)
    cached: CachedSettings = field(init=False)
    known: bytes = b""  # checksums of the blocks that the agent has


class _BatchHeaders(NamedTuple):
    """What all replies to one batch share."""

    merged: MergedBatch | None
    headers: HeaderPairs
    settings_id: str
    changes: ChangedBlocks


class ExchangeHandler:
    """The steps of an exchange, in the order of the methods. A refusal is raised; `failed` turns it into a reply.

    Only `look_up` (an unknown token or model) and `explain` wait for the store.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._settings: dict[str, CachedSettings] = {}
        self._iteration_started: float | None = None
        self._max_iteration_s = container.settings.max_turn_ms / 1e3
        self._shed_replies: dict[str, ExchangeReply] = {}
        self._n_shed = 0  # since the last log entry
        self._overloaded = container.metrics.refusals.labels(Overloaded.code)
        self._batch = _BatchHeaders(None, (), "", ChangedBlocks(b"", 1, 1))
        self.memory = container.memory
        self.body_timeout_s = container.settings.body_timeout_s

    def begin(self, model: str) -> ExchangeContext:
        """Start the context of one exchange."""
        request_id = self._container.request_ids.next()
        return ExchangeContext(model, request_id, {"request": request_id, "model": model}, time.perf_counter())

    def require_capacity(self, model: str) -> None:
        """Raise `Overloaded` if no upload can be accepted now.

        Either the queue is full, or one iteration of the event loop has handled uploads for too long. Past saturation
        the backlog is in sockets that were not read yet, where the coordinator cannot see it; but the more of them are
        ready, the longer an iteration lasts. Shedding an upload costs a fraction of merging it.
        """
        now = time.perf_counter()
        if self._iteration_started is None:
            self._iteration_started = now
            asyncio.get_running_loop().call_soon(self._end_iteration)
        elif now - self._iteration_started > self._max_iteration_s:
            raise Overloaded("more uploads arrived at once than can be read in time")
        reason = self._container.coordinator.overload_reason(model)
        if reason is not None:
            raise Overloaded(reason)

    def _end_iteration(self) -> None:
        self._iteration_started = None

    def authenticate(self, context: ExchangeContext, authorization: str | None) -> bool:
        """Identify the agent and the settings of the model from the caches; False if the store must be asked."""
        context.token_hash = bearer_hash(authorization)
        principal = self._container.authenticator.known.get(context.token_hash)
        cached = self._settings.get(context.model)
        if principal is None or cached is None:
            return False
        require(principal, "agent", model=context.model)
        mark_authenticated()
        context.agent = context.log["agent"] = principal.name
        context.cached = cached
        return True

    async def look_up(self, context: ExchangeContext) -> None:
        """Identify the agent and the settings of the model from the store, and cache both."""
        principal = await self._container.authenticator.agent(context.token_hash, context.model)
        context.agent = context.log["agent"] = principal.name
        # Read again for every new token: it may belong to a model that was deleted and created again.
        context.cached = CachedSettings.of(await self._container.store.load(context.model))
        self._settings[context.model] = context.cached

    def checked(self, context: ExchangeContext, body: bytes) -> IncomingUpload:
        """The upload in a body, if it is from this agent, fits the model and is plausible; O(d³)."""
        request = codec.decode_request(body)
        settings = context.cached.settings
        context.log["sequence"] = request.sequence
        if request.agent != context.agent:
            raise Forbidden(f"this token belongs to agent {context.agent!r}, the upload names {request.agent!r}")
        if not request.incarnation.isprintable():
            raise FormatError("the message is malformed; expected a printable incarnation")
        numbers, most = plausible_numbers(request, settings, context.cached.bounds)
        context.known = known_of(request)
        groups = NO_GROUPS
        if request.groups and (groups := codec.groups_of(request)):
            if not settings.control:
                raise ImplausibleUpload("the model has no control group, and the upload has rewards by group")
            require_plausible_groups(groups, numbers)
        # The determinant cannot have grown by more than the data allow, whatever the agent reports.
        growth = min(max(request.growth, 0.0), most)
        return IncomingUpload(
            agent=request.agent,
            incarnation=request.incarnation,
            sequence=request.sequence,
            digest=request.digest,
            numbers=numbers,
            growth=growth,
            token_hash=context.token_hash,
            model_version=min(request.model_version, MAX_COUNT),
            unsent=min(request.unsent, MAX_COUNT),
            n_bytes=len(body),
            settings_id=context.cached.settings_id,
            groups=groups,
            epoch=request.epoch or 0,
            alarm=request.alarm or False,
            dropped=request.dropped or 0,
            clock=request.clock or 0,
        )

    async def explain(self, context: ExchangeContext, error: FedbanditError) -> FedbanditError:
        """The error to reply with: the cached token or settings that the upload was checked against may be stale."""
        if isinstance(error, (UnknownModel, ModelChanged)):
            self._settings.pop(context.model, None)
        try:
            if isinstance(error, CHECKED_BY_SETTINGS) and not await self._is_current(context):
                self._settings.pop(context.model, None)
                return ModelChanged("the model's settings changed, or it was created again; send the upload again")
            if isinstance(error, (Forbidden, Unauthenticated)):
                await self._container.authenticator.explain(context.token_hash)
        except FedbanditError as reason:  # the reason, or that the store is unavailable
            return reason
        return error

    async def _is_current(self, context: ExchangeContext) -> bool:
        try:
            return (await self._container.store.load(context.model)).settings_id == context.cached.settings_id
        except UnknownModel:
            return False

    def accepted(self, context: ExchangeContext, result: MergeResult) -> ExchangeReply:
        """The reply to an upload that is merged, now or before."""
        merged, acknowledged = result
        model = merged.model
        batch = self._batch
        if merged is not batch.merged:
            headers: HeaderPairs = (CONTENT_TYPE, (b"etag", model.tag.encode()))
            if model.n_rewards:
                headers = (*headers, (codec.REWARDS_HEADER.encode(), b"%d" % model.n_rewards))
            changes = ChangedBlocks(merged.packed, model.settings.dim // model.settings.blocks, model.settings.blocks)
            batch = self._batch = _BatchHeaders(merged, headers, model.settings_id, changes)
        is_of_time = model.epoch or model.settings.drift is not None or acknowledged.discarded
        epoch = epoch_fields(model, acknowledged.discarded, acknowledged.outcome) if is_of_time else {}
        reply = codec.make_reply(
            model.settings.blocks,
            agent=context.agent,
            version=model.version,
            acknowledged=acknowledged.sequence,
            dim=model.settings.dim,
            stats=merged.packed,
            settings=batch.settings_id,
            excluded=True if acknowledged.excluded else UNSET,
            **epoch,
        )
        context.log["version"] = model.version
        word = "merged" if acknowledged.is_new else "repeated"
        if acknowledged.outcome:
            word, context.log["outcome"] = "discarded", acknowledged.outcome
        if context.known:
            reply = batch.changes.shortened(reply, context.known)
        return ExchangeReply(200, codec.encode(reply), word, batch.headers)

    def failed(self, context: ExchangeContext, error: Exception) -> ExchangeReply:
        """The reply to an upload that was refused, or that met an unexpected error."""
        if not isinstance(error, FedbanditError):
            self._container.log.error("internal_error", **context.log, exc_info=error)
            status, body, headers = error_responses.internal()
            return ExchangeReply(status, body, "failed", headers)
        if isinstance(error, Overloaded):
            return self._shed_reply(error)
        context.log["error"] = error.code
        self._container.metrics.refusals.labels(error.code).inc()
        status, body, headers = error_responses.response_to(error)
        return ExchangeReply(status, body, "failed" if status >= 500 else "refused", headers)

    def _shed_reply(self, error: Overloaded) -> ExchangeReply:
        """Prepared once per reason: under overload thousands per second are sent."""
        reason = str(error)
        reply = self._shed_replies.get(reason)
        if reply is None:
            status, body, headers = error_responses.response_to(error)
            reply = ExchangeReply(status, body, SHED, headers)
            if len(self._shed_replies) < MAX_SHED_REPLIES:
                self._shed_replies[reason] = reply
        return reply

    def record(self, context: ExchangeContext, reply: ExchangeReply) -> None:
        """Update metrics and log the exchange; shed uploads share one log entry per second."""
        is_known = context.model in self._settings  # an arbitrary name must not become a label
        if reply.result == SHED:
            self._record_shed()
            if is_known:
                self._container.metrics.count_exchange(context.model, "refused")
            return
        elapsed_s = time.perf_counter() - context.started
        self._container.metrics.exchange_seconds.observe(elapsed_s)
        if is_known:
            self._container.metrics.count_exchange(context.model, reply.result)
        if self._container.open_telemetry is not None:
            attributes = {**context.log, "result": reply.result}
            self._container.open_telemetry.request("exchange", elapsed_s, status=reply.status, attributes=attributes)
        self._container.log.info(
            "exchange", **context.log, result=reply.result, status=reply.status, ms=round(1e3 * elapsed_s, 2)
        )

    def _record_shed(self) -> None:
        self._overloaded.inc()
        self._n_shed += 1
        if self._n_shed == 1:
            asyncio.get_running_loop().call_later(1.0, self._log_shed)

    def _log_shed(self) -> None:
        self._container.log.warning("load_shedding", n=self._n_shed, error=Overloaded.code)
        self._n_shed = 0


def plausible_numbers(request: codec.SyncRequest, settings: ModelSettings, bounds: Bounds) -> tuple[Vector, float]:
    """The packed numbers of an upload, and the most that log det can have grown by them.

    `DimensionMismatch` if it is for another model, `NotFinite` or `ImplausibleUpload` if no data could give them. To a
    model with blocks an upload brings those that it touched. It may know fewer blocks than the model has: blocks are
    added at the end (`models widen`), so what an agent gathered before still says the same. So are features.
    """
    if not isinstance(request, codec.BlockSyncRequest):
        if request.dim not in (settings.dim, *settings.earlier_dims) or settings.blocks > 1:
            raise _mismatch(settings, f"{request.dim}")
        numbers = codec.numbers_of(request)
        require_plausible(numbers, request.dim, bounds)
        most = information(numbers, request.dim, settings.lam)
        return numbers if request.dim == settings.dim else with_columns(numbers, settings.dim), most
    p = settings.dim // settings.blocks
    if settings.blocks == 1 or request.dim != p * request.blocks or request.blocks > settings.blocks:
        raise _mismatch(settings, f"{request.dim} in {request.blocks} blocks")
    numbers, n_touched = codec.numbers_of(request), len(request.touched) // 4
    require_plausible_blocks(numbers, p, n_touched, bounds)
    most = information(numbers, p * n_touched, settings.lam, max(n_touched, 1))
    return codec.expanded_numbers(request, settings.blocks), most


def _mismatch(settings: ModelSettings, found: str) -> DimensionMismatch:
    blocks = f" in {settings.blocks} blocks" if settings.blocks > 1 else ""
    return DimensionMismatch(f"expected an upload with {settings.dim} features{blocks}, got {found}")
