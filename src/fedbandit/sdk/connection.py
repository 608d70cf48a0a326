"""Connecting: fetch the model's settings, resume what an earlier process left in the state directory, join."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from random import Random
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
from fedbandit.sdk.durable_agent import DurableAgent
from fedbandit.sdk.journal.journal import Journal, SavedState
from fedbandit.sdk.sync_client import Backoff, SyncClient
from fedbandit.sdk.transport import HttpTransport, Transport
from fedbandit.wire.identifiers import check_agent_id
from fedbandit.wire.settings import ModelDescription

logger = logging.getLogger("fedbandit.sdk")
PathLike = str | os.PathLike[str]
MAX_EXCHANGES_PER_S = 5.0  # a continuous stream of exchanges would slow down one call in a hundred: bench/latency.py
CHECK_AFTER_S = 300.0  # 10 000 agents without anything to send make 33 small requests per second


def connect(
    url: str | Transport,
    *,
    model: str,
    token: str | None = None,
    agent: str | None = None,
    state_dir: PathLike | None = None,
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
    ca: PathLike | None = None,
    cert: PathLike | None = None,
    key: PathLike | None = None,
    backoff: Backoff | None = None,
) -> LiveAgent:
    """The agent that `token` belongs to, with the fleet's model, ready to decide.

    `url` is the address of a server, or a `Transport` such as that of a `LocalServer`, which needs no token. With
    `state_dir` it resumes where the last process ended, also when the server cannot be reached; `durability` is
    "fast" (survives the process) or "strict" (survives power loss). `sync="inline"` exchanges inside `observe` instead
    of in the background. `refresh_after_s` fetches the newest model after a silence. After `check_after_s` without
    contact it asks whether data were taken out of the model, and fetches it only then. In the background it exchanges
    at most `max_exchanges_per_s` times per second, after a burst of 20; None: no limit. `min_upload` holds uploads back
    until they sum up that many observations. `keep_mb` megabytes of answered uploads stay in the `state_dir`, and are
    sent again to a server that was restored from an older backup; where it is older than that, `rejoin` continues as a
    new incarnation instead of raising. `ca`, `cert` and `key` are files for TLS and mutual TLS. `backoff` gives the
    delays between retries.
    """
    one_of(sync, ("background", "inline"), "sync")
    one_of(durability, ("fast", "strict"), "durability")
    timeout_s = finite_at_least(timeout_s, 0.0, "timeout_s", strictly=True)
    refresh_after_s = _positive_or_none(refresh_after_s, "refresh_after_s")
    check_after_s = _positive_or_none(check_after_s, "check_after_s")
    max_exchanges_per_s = _positive_or_none(max_exchanges_per_s, "max_exchanges_per_s")
    min_upload = whole_at_least(min_upload, 1, "min_upload")
    max_pending = whole_at_least(max_pending, 1, "max_pending")
    keep_bytes = int(finite_at_least(keep_mb, 0.0, "keep_mb") * (1 << 20))
    transport = _transport(url, model, token, ca=ca, cert=cert, key=key)
    journal = None
    if state_dir is not None:
        journal = Journal(path_of(state_dir, "state_dir"), durability=durability, keep_bytes=keep_bytes)
    try:
        description = _describe(transport, timeout_s)
        saved = None if journal is None else journal.saved
        if isinstance(description, ModelDescription):
            durable = _make_agent(journal, model, agent, min_upload, description)
        elif saved is None:
            raise _first_start(description)
        else:
            durable = _make_agent(journal, model, agent, min_upload, replace(_read_description(saved), agent_id=None))
        durable.agent.max_pending = max_pending
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
            _join(client, rejoin, resumes=saved is not None)
        durable.save()
    except BaseException:
        if journal is not None:
            journal.close()
        transport.close()
        raise
    background = None
    if sync == "background":
        background = BackgroundSync(client, refresh_after_s=refresh_after_s, max_exchanges_per_s=max_exchanges_per_s)
    return LiveAgent(durable, client, background)


async def aconnect(url: str | Transport, **options: Any) -> LiveAgent:
    """`connect` for an event loop; use the agent with `async with`."""
    return await asyncio.to_thread(connect, url, **options)


def open_agent(transport: Transport, *, model: str, **options: Any) -> LiveAgent:
    """`connect` by any transport, for example that of a `LocalServer` in the same process."""
    return connect(transport, model=model, **options)


def _transport(url: str | Transport, model: str, token: str | None, **files: PathLike | None) -> Transport:
    if isinstance(url, Transport):
        if token is not None or any(path is not None for path in files.values()):
            raise InvalidParameter("expected token, ca, cert and key with an address only, got them with a transport")
        return url
    if token is None:
        raise InvalidParameter("expected the agent's token as printed by `fedbandit agents add`, got none")
    paths = {name: None if path is None else str(path_of(path, name)) for name, path in files.items()}
    transport = HttpTransport(url, model=model, token=token, **paths)
    if transport.exposes_token:
        logger.warning("the token for %s travels unencrypted; use https", transport.address)
    return transport


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
    durable = DurableAgent(description, agent_id, journal=journal, incarnation=saved.incarnation, min_upload=min_upload)
    durable.resume(saved)
    if _read_description(saved).settings_id != description.settings_id:
        logger.info("agent %s: the settings of model %s changed; the new ones are used from now on", agent_id, model)
        durable.begin_at_prior()
        durable.drop_kept()
    return durable


def _require_same(saved: SavedState, model: str, agent_id: str, description: ModelDescription) -> None:
    if (saved.model, saved.agent_id) != (model, agent_id):
        raise StateMismatch(
            f"the state directory belongs to agent {saved.agent_id!r} of model {saved.model!r}, "
            f"not to agent {agent_id!r} of model {model!r}; give each agent its own"
        )
    before = _read_description(saved)
    if before.settings.dim != description.settings.dim:
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
    known = description.agent_id or (None if saved is None else saved.agent_id)
    if agent is not None and description.agent_id is not None and agent != description.agent_id:
        raise InvalidParameter(
            f"expected agent={description.agent_id!r}, to whom the token belongs, got agent={agent!r}"
        )
    if agent is None and known is None:
        raise InvalidParameter("expected an agent's token, or agent= with a token that may act for any agent")
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
