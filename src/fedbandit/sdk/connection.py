"""Connecting: fetch the model's settings, resume what an earlier process left in the state directory, join."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

import msgspec

from fedbandit.algorithms.rules import one_of
from fedbandit.core.arrays import finite_at_least, path_of, whole_at_least
from fedbandit.errors import (
    FormatError,
    InvalidParameter,
    NotReachable,
    Refused,
    SequenceGap,
    StaleIncarnation,
    StateMismatch,
)
from fedbandit.sdk import restore_recovery
from fedbandit.sdk.agent import LiveAgent
from fedbandit.sdk.background_sync import BackgroundSync
from fedbandit.sdk.decision_log import DecisionLog
from fedbandit.sdk.durable_agent import DurableAgent
from fedbandit.sdk.enrolment import Enroller, complete_set_aside, may_begin_anew, read_identity, set_aside
from fedbandit.sdk.epoch_changes import begin_first_epoch
from fedbandit.sdk.journal.journal import Journal, SavedState
from fedbandit.sdk.offline import OFFLINE, describe_offline, differences, require_same_rows
from fedbandit.sdk.state_slots import Slots
from fedbandit.sdk.sync_client import Backoff, SyncClient
from fedbandit.sdk.token_source import TokenSource
from fedbandit.sdk.transport import HttpTransport, Transport
from fedbandit.sdk.widening import widened_agent
from fedbandit.wire.identifiers import check_agent_id
from fedbandit.wire.settings import ModelDescription, ModelSettings

logger = logging.getLogger("fedbandit.sdk")
PathLike = str | os.PathLike[str]
MAX_EXCHANGES_PER_S = 5.0  # a continuous stream of exchanges would slow down one call in a hundred: bench/latency.py
CHECK_AFTER_S = 300.0  # 10 000 agents without anything to send make 33 small requests per second


def connect(
    url: str | Transport,
    *,
    model: str,
    token: TokenSource | None = None,
    enrol: str | None = None,
    reenrol: bool = False,
    agent: str | None = None,
    state_dir: PathLike | Slots | None = None,
    durability: str = "fast",
    sync: str = "background",
    refresh_after_s: float | None = None,
    check_after_s: float | None = CHECK_AFTER_S,
    max_exchanges_per_s: float | None = MAX_EXCHANGES_PER_S,
    timeout_s: float = 10.0,
    min_upload: int = 1,
    max_pending: int = 100_000,
    keep_mb: float = 4.0,
    rejoin: bool = False,
    offline_ok: bool = False,
    settings: ModelSettings | Mapping[str, Any] | None = None,
    ca: PathLike | None = None,
    cert: PathLike | None = None,
    key: PathLike | None = None,
    backoff: Backoff | None = None,
    decision_log: PathLike | None = None,
    decision_log_rows: str = "chosen",
    decision_log_mb: float = 100.0,
) -> LiveAgent:
    """The agent that `token` belongs to, with the fleet's model, ready to decide.

    `url` is the address of a server, or a `Transport` such as that of a `LocalServer`, which needs no token. A token
    may also be a path (of a file that is read before each call) or a function, so that it can be replaced while the
    agent runs. Instead of a token, `enrol` takes an enrolment string, which the first start exchanges for an agent and
    a token of its own,
    kept in `state_dir`; later starts need neither. `reenrol` begins anew with another agent where the state directory
    turns out to be a copy, or its agent was retired; what it held is set aside. With
    `state_dir` it resumes where the last process ended, also when the server cannot be reached; `durability` is
    "fast" (survives the process) or "strict" (survives power loss). `sync="inline"` exchanges inside `observe` instead
    of in the background. `refresh_after_s` fetches the newest model after a silence. After `check_after_s` without
    contact it asks whether data were taken out of the model, and fetches it only then. In the background it exchanges
    at most `max_exchanges_per_s` times per second, after a burst of 20; None: no limit. `min_upload` holds uploads back
    until they sum up that many observations. `keep_mb` megabytes of answered uploads stay in the `state_dir`, and are
    sent again to a server that was restored from an older backup; where it is older than that, `rejoin` continues as a
    new incarnation instead of raising. With `offline_ok` a first start needs no server: it begins at the prior, with
    the model's `settings` as a new model takes them (dim, beta or radius, alpha, …) and its name as `agent`, and joins
    later; what was observed meanwhile counts if these are the server's settings. `state_dir` may be `fb.slots`, of
    which it takes the first free one. `ca`, `cert` and `key` are files for TLS and mutual TLS. `backoff` gives the
    delays between retries.
    `decision_log` is a directory for one JSON line per decision and per reward, at most `decision_log_mb` megabytes of
    them, with the row that was chosen or, by `decision_log_rows="all"`, all rows on offer; `fedbandit evaluate` and
    `advise` read it.
    """
    options = locals()
    if isinstance(state_dir, Slots):
        return state_dir.take(connect, options)
    one_of(sync, ("background", "inline"), "sync")
    one_of(durability, ("fast", "strict"), "durability")
    timeout_s = finite_at_least(timeout_s, 0.0, "timeout_s", strictly=True)
    refresh_after_s = _positive_or_none(refresh_after_s, "refresh_after_s")
    check_after_s = _positive_or_none(check_after_s, "check_after_s")
    max_exchanges_per_s = _positive_or_none(max_exchanges_per_s, "max_exchanges_per_s")
    min_upload = whole_at_least(min_upload, 1, "min_upload")
    max_pending = whole_at_least(max_pending, 1, "max_pending")
    keep_bytes = int(finite_at_least(keep_mb, 0.0, "keep_mb") * (1 << 20))
    files: dict[str, PathLike | None] = {"ca": ca, "cert": cert, "key": key}
    directory = None if state_dir is None else path_of(state_dir, "state_dir")
    enrols = enrol is not None or (token is None and directory is not None and read_identity(directory) is not None)
    transport = None if enrols else _transport(url, model, token, files)
    journal = None
    try:
        if directory is not None:
            complete_set_aside(directory)
            journal = Journal(directory, durability=durability, keep_bytes=keep_bytes)
        if transport is None:
            enroller = _enroller(url, model, directory, token, timeout_s, files)
            try:
                identity = enroller.identify(enrol, agent, None if journal is None else journal.saved)
            except Refused as error:
                if journal is None or not (reenrol and enrol is not None and may_begin_anew(error)):
                    raise
                journal.close()
                set_aside(journal.directory, error)
                journal = Journal(journal.directory, durability=durability, keep_bytes=keep_bytes)
                identity = enroller.identify(enrol, agent, journal.saved)
            transport = _transport(url, model, identity.token, files, fingerprint=identity.fingerprint or None)
        description = _describe(transport, timeout_s)
        saved = None if journal is None else journal.saved
        if isinstance(description, ModelDescription):
            durable = _make_agent(journal, model, agent, min_upload, description)
        elif saved is None and not offline_ok:
            raise _first_start(description)
        elif saved is None:
            offline = describe_offline(model, settings, description)
            durable = _make_agent(journal, model, agent, min_upload, offline)
        else:
            durable = _make_agent(journal, model, agent, min_upload, replace(_read_description(saved), agent_id=None))
        durable.agent.max_pending = max_pending
        if decision_log is not None:
            durable.log = _decision_log(durable, decision_log, decision_log_rows, decision_log_mb)
        rng = Random()
        # Spread, so that agents which were started together do not ask together.
        spread_s = None if check_after_s is None else check_after_s * rng.uniform(0.8, 1.0)
        client = SyncClient(
            durable, transport, backoff=backoff or Backoff(rng), timeout_s=timeout_s, check_after_s=spread_s
        )
        if isinstance(description, NotReachable):
            durable.want_model(True)
            client.note(description)
        else:
            _join(client, rejoin, resumes=offline_ok or saved is not None)
        durable.save()
    except BaseException:
        if journal is not None:
            journal.close()
        if transport is not None:
            transport.close()
        raise
    background = None
    if sync == "background":
        background = BackgroundSync(client, refresh_after_s=refresh_after_s, max_exchanges_per_s=max_exchanges_per_s)
    return LiveAgent(durable, client, background)


class Connecting:
    """What `aconnect` gives: `await` it for the agent, or use it with `async with`, which closes the agent."""

    def __init__(self, url: str | Transport, options: dict[str, Any]) -> None:
        self._url, self._options = url, options
        self._agent: LiveAgent | None = None

    def __await__(self) -> Generator[Any, None, LiveAgent]:
        return asyncio.to_thread(connect, self._url, **self._options).__await__()

    async def __aenter__(self) -> LiveAgent:
        self._agent = await self
        return self._agent

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._agent is not None:
            await self._agent.aclose()


def aconnect(url: str | Transport, **options: Any) -> Connecting:
    """`connect` for an event loop: `async with fb.aconnect(...) as agent`, or `agent = await fb.aconnect(...)`."""
    return Connecting(url, options)


def open_agent(transport: Transport, *, model: str, **options: Any) -> LiveAgent:
    """`connect` by any transport, for example that of a `LocalServer` in the same process."""
    return connect(transport, model=model, **options)


def _enroller(
    url: str | Transport,
    model: str,
    directory: Path | None,
    token: TokenSource | None,
    timeout_s: float,
    files: dict[str, PathLike | None],
) -> Enroller:
    if directory is None or token is not None:
        raise InvalidParameter("expected enrol with a state_dir, which keeps the agent's token, and without token")
    if isinstance(url, Transport):
        raise InvalidParameter("expected enrol with the address of a server, got it with a transport")
    return Enroller(url, model, directory, timeout_s=timeout_s, files=_texts(files))


def _texts(files: dict[str, PathLike | None]) -> dict[str, str | None]:
    return {name: None if path is None else str(path_of(path, name)) for name, path in files.items()}


def _transport(
    url: str | Transport,
    model: str,
    token: TokenSource | None,
    files: dict[str, PathLike | None],
    *,
    fingerprint: str | None = None,
) -> Transport:
    if isinstance(url, Transport):
        if token is not None or any(path is not None for path in files.values()):
            raise InvalidParameter("expected token, ca, cert and key with an address only, got them with a transport")
        return url
    if token is None:
        raise InvalidParameter(
            "expected the agent's token as printed by `fedbandit agents add`, or enrol= with an enrolment, got neither"
        )
    transport = HttpTransport(url, model=model, token=token, fingerprint=fingerprint, **_texts(files))
    if transport.exposes_token:
        logger.warning("the token for %s travels unencrypted; use https", transport.address)
    return transport


def _decision_log(durable: DurableAgent, directory: PathLike, rows: str, most_mb: float) -> DecisionLog:
    features = durable.settings.features
    named = None if features is None else list(features)
    head = {"model": durable.settings.name, "dim": durable.settings.dim, "features": named}
    if durable.settings.blocks > 1:
        arms = durable.settings.arms
        head |= {"blocks": durable.settings.blocks, "arms": None if arms is None else list(arms)}
    return DecisionLog(path_of(directory, "decision_log"), rows=rows, most_mb=most_mb, head=head)


def _positive_or_none(value: float | None, name: str) -> float | None:
    return None if value is None else finite_at_least(value, 0.0, name, strictly=True)


def _make_agent(
    journal: Journal | None, model: str, agent: str | None, min_upload: int, description: ModelDescription
) -> DurableAgent:
    """A new agent, or the one that the journal has."""
    saved = None if journal is None else journal.saved
    agent_id = _identity(description, agent, saved)
    if saved is None:
        durable = DurableAgent(description, agent_id, journal=journal, min_upload=min_upload)
        durable.open_books()
        return durable
    _require_same(saved, model, agent_id, description)
    before = _read_description(saved)
    has_new_features = description.settings.blocks == 1 and description.settings.dim > before.settings.dim
    resumed = before if has_new_features else description
    durable = DurableAgent(resumed, agent_id, journal=journal, incarnation=saved.incarnation, min_upload=min_upload)
    durable.resume(saved)
    if has_new_features:
        durable = widened_agent(durable, description)
        durable.save()
    if has_new_features and description.widens(before):
        logger.info("agent %s: model %s has %d features now", agent_id, model, description.settings.dim)
        return durable
    is_same = before.settings_id == OFFLINE and not differences(before.settings, description.settings)
    if before.settings_id != description.settings_id and not is_same and not description.continues(before):
        logger.info("agent %s: the settings of model %s changed; the new ones are used from now on", agent_id, model)
        durable.begin_at_prior()
        begin_first_epoch(durable.agent)
        durable.drop_kept()
    return durable


def _require_same(saved: SavedState, model: str, agent_id: str, description: ModelDescription) -> None:
    if (saved.model, saved.agent_id) != (model, agent_id):
        raise StateMismatch(
            f"the state directory belongs to agent {saved.agent_id!r} of model {saved.model!r}, "
            f"not to agent {agent_id!r} of model {model!r}; give each agent its own"
        )
    before = _read_description(saved)
    require_same_rows(before, description)
    now = description.settings
    is_same = (before.settings.dim, before.settings.blocks) == (now.dim, now.blocks)
    if not is_same and not now.is_widened_from(before.settings):
        raise StateMismatch(
            f"the state directory was made for {before.settings.dim} features, and model {model!r} has "
            f"{description.settings.dim} now; begin anew in another directory"
        )


def _describe(transport: Transport, timeout_s: float) -> ModelDescription | NotReachable:
    """The server's description of the model, or why there is none."""
    try:
        return ModelDescription.from_dict(transport.describe(timeout_s=timeout_s))
    except NotReachable as error:
        return error
    except FormatError as error:  # an agent with a past goes on with the settings that it has
        return NotReachable(f"{transport.address} answered with something else than a model's settings: {error}")


def _read_description(saved: SavedState) -> ModelDescription:
    try:
        return ModelDescription.from_dict(msgspec.json.decode(saved.description, type=dict[str, Any]))
    except msgspec.DecodeError as error:
        raise FormatError(f"the state is damaged: the model's settings cannot be read: {error}") from None


def _identity(description: ModelDescription, agent: str | None, saved: SavedState | None) -> str:
    """The agent that the token names, else the application, else the journal."""
    if agent is not None and not isinstance(agent, str):
        raise InvalidParameter(f"expected agent as text, got {type(agent).__name__}")
    known = description.agent_id or (None if saved is None else saved.agent_id)
    if agent is not None and description.agent_id is not None and agent != description.agent_id:
        raise InvalidParameter(
            f"expected agent={description.agent_id!r}, to whom the token belongs, got agent={agent!r}"
        )
    if agent is None and known is None:
        raise InvalidParameter(
            "expected an agent's token, or agent= with a token that may act for any agent, or without the server"
        )
    return check_agent_id(agent or known or "")


def _first_start(error: NotReachable) -> NotReachable:
    return NotReachable(f"{error}; a first start needs the server, later ones only the state_dir")


def _join(client: SyncClient, rejoin: bool, *, resumes: bool) -> None:
    """Begin with the fleet's model; the server must have all uploads of this incarnation that the agent sent."""
    try:
        if rejoin:
            restore_recovery.rejoin(client)
        else:
            client.refresh()
    except NotReachable as error:
        if not resumes:
            raise _first_start(error) from None
        client.durable.want_model(True)  # the client retries; until then decisions rest on the saved model
    except Refused as error:
        if error.reason not in (SequenceGap.code, StaleIncarnation.code):
            raise
        raise StateMismatch(
            f"{error}; to begin anew without it, take another directory. Nothing here was changed"
        ) from None
