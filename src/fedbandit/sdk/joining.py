"""From an address to an agent: learn the model's terms, pick up what an earlier process left, join."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from fedbandit.algorithms.rules import check_agent_id, one_of
from fedbandit.core.arrays import finite_at_least, whole_at_least
from fedbandit.errors import (
    FormatError,
    InvalidParameter,
    NotReachable,
    Refused,
    SequenceGap,
    StaleIncarnation,
    StateMismatch,
)
from fedbandit.sdk import comeback
from fedbandit.sdk.agent import LiveAgent
from fedbandit.sdk.core import LiveCore
from fedbandit.sdk.journal import Journal, Saved
from fedbandit.sdk.link import Link
from fedbandit.sdk.pump import Pump
from fedbandit.sdk.retry import Backoff
from fedbandit.sdk.terms import Terms, terms_of
from fedbandit.sdk.transport import HttpTransport, Transport

logger = logging.getLogger("fedbandit.sdk")
PathLike = str | os.PathLike[str]


def connect(
    url: str,
    *,
    model: str,
    token: str,
    agent: str | None = None,
    state_dir: PathLike | None = None,
    durability: str = "fast",
    sync: str = "background",
    refresh_after_s: float | None = None,
    timeout_s: float = 10.0,
    min_upload: int = 1,
    max_pending: int = 100_000,
    keep_mb: float = 4.0,
    rejoin: bool = False,
    ca: PathLike | None = None,
    cert: PathLike | None = None,
    key: PathLike | None = None,
) -> LiveAgent:
    """The agent that `token` belongs to, with the fleet's model, ready to decide.

    With `state_dir` it resumes where the last process ended, also when the server cannot be reached; `durability` is
    "fast" (survives the process) or "strict" (survives power loss). `sync="inline"` exchanges inside `observe` instead
    of in the background. `refresh_after_s` fetches the newest model after a silence. `min_upload` holds uploads back
    until they sum up that many observations. `keep_mb` megabytes of answered uploads stay in the `state_dir`, and are
    sent again to a server that was restored from an older backup; where it is older than that, `rejoin` goes on as a
    new incarnation instead of raising. `ca`, `cert` and `key` are files for TLS and mutual TLS.
    """
    paths = {
        name: None if path is None else os.fspath(path) for name, path in (("ca", ca), ("cert", cert), ("key", key))
    }
    transport = HttpTransport(url, model=model, token=token, **paths)
    if transport.is_in_the_clear:
        logger.warning("the token for %s travels unencrypted; use https", transport.address)
    return open_agent(
        transport,
        model=model,
        agent=agent,
        state_dir=state_dir,
        durability=durability,
        sync=sync,
        refresh_after_s=refresh_after_s,
        timeout_s=timeout_s,
        min_upload=min_upload,
        max_pending=max_pending,
        keep_mb=keep_mb,
        rejoin=rejoin,
    )


async def aconnect(url: str, **options: Any) -> LiveAgent:
    """`connect` for an event loop; use the agent with `async with`."""
    return await asyncio.to_thread(connect, url, **options)


def open_agent(
    transport: Transport,
    *,
    model: str,
    agent: str | None = None,
    state_dir: PathLike | None = None,
    durability: str = "fast",
    sync: str = "background",
    refresh_after_s: float | None = None,
    timeout_s: float = 10.0,
    min_upload: int = 1,
    max_pending: int = 100_000,
    keep_mb: float = 4.0,
    rejoin: bool = False,
    backoff: Backoff | None = None,
) -> LiveAgent:
    """`connect` by any transport, for example that of a `LocalServer` in the same process."""
    one_of(sync, ("background", "inline"), "sync")
    one_of(durability, ("fast", "strict"), "durability")
    timeout_s = finite_at_least(timeout_s, 0.0, "timeout_s", strictly=True)
    if refresh_after_s is not None:
        refresh_after_s = finite_at_least(refresh_after_s, 0.0, "refresh_after_s", strictly=True)
    min_upload = whole_at_least(min_upload, 1, "min_upload")
    max_pending = whole_at_least(max_pending, 1, "max_pending")
    keep_bytes = int(finite_at_least(keep_mb, 0.0, "keep_mb") * (1 << 20))
    journal = None
    if state_dir is not None:
        journal = Journal(Path(state_dir), durability=durability, keep_bytes=keep_bytes)
    try:
        terms = _ask_terms(transport, timeout_s)
        saved = None if journal is None else journal.saved
        if isinstance(terms, Terms):
            core = _make_core(journal, model, agent, min_upload, terms)
        elif saved is None:
            raise _first_start(terms)
        else:
            core = _make_core(journal, model, agent, min_upload, replace(_read_terms(saved), agent_id=None))
        core.max_pending = max_pending
        link = Link(core, transport, backoff=backoff or Backoff(Random()), timeout_s=timeout_s)
        if isinstance(terms, NotReachable):
            core.want_model(True)
            link.note(terms)
        else:
            _join(link, rejoin, resumes=saved is not None)
        core.save()
    except BaseException:
        if journal is not None:
            journal.close()
        transport.close()
        raise
    pump = Pump(link, refresh_after_s=refresh_after_s) if sync == "background" else None
    return LiveAgent(core, link, pump)


def _make_core(journal: Journal | None, model: str, agent: str | None, min_upload: int, terms: Terms) -> LiveCore:
    """A new agent, or the one that the journal remembers."""
    saved = None if journal is None else journal.saved
    agent_id = _identity(terms, agent, saved)
    if saved is None:
        core = LiveCore(terms, agent_id, journal=journal, min_upload=min_upload)
        core.open_books()
        return core
    _require_same(saved, model, agent_id, terms)
    core = LiveCore(terms, agent_id, journal=journal, incarnation=saved.incarnation, min_upload=min_upload)
    core.resume(saved)
    if _read_terms(saved).settings != terms.settings:
        logger.info("agent %s: the settings of model %s changed; the new ones are used from now on", agent_id, model)
        core.begin_at_prior()
        core.drop_kept()
    return core


def _require_same(saved: Saved, model: str, agent_id: str, terms: Terms) -> None:
    if (saved.model, saved.agent_id) != (model, agent_id):
        raise StateMismatch(
            f"the state directory belongs to agent {saved.agent_id!r} of model {saved.model!r}, "
            f"not to agent {agent_id!r} of model {model!r}; give each agent its own"
        )
    before = _read_terms(saved)
    if before.rule.dim != terms.rule.dim:
        raise StateMismatch(
            f"the state directory was made for {before.rule.dim} features, and model {model!r} has {terms.rule.dim} "
            f"now; begin anew in another directory"
        )


def _ask_terms(transport: Transport, timeout_s: float) -> Terms | NotReachable:
    """What the server says about the model, or why it says nothing."""
    try:
        return terms_of(transport.describe(timeout_s=timeout_s))
    except NotReachable as error:
        return error


def _read_terms(saved: Saved) -> Terms:
    try:
        return terms_of(msgspec.json.decode(saved.terms, type=dict[str, Any]))
    except msgspec.DecodeError as error:
        raise FormatError(f"the state is damaged: the model's settings cannot be read: {error}") from None


def _identity(terms: Terms, agent: str | None, saved: Saved | None) -> str:
    """Whom the token names, else whom the application names, else who was here before."""
    known = terms.agent_id or (None if saved is None else saved.agent_id)
    if agent is not None and terms.agent_id is not None and agent != terms.agent_id:
        raise InvalidParameter(f"expected agent={terms.agent_id!r}, to whom the token belongs, got agent={agent!r}")
    if agent is None and known is None:
        raise InvalidParameter("expected an agent's token, or agent= with a token that may act for any agent")
    return check_agent_id(agent or known or "")


def _first_start(error: NotReachable) -> NotReachable:
    return NotReachable(f"{error}; a first start needs the server, later ones only the state_dir")


def _join(link: Link, rejoin: bool, *, resumes: bool) -> None:
    """Begin with the fleet's model; the server must know this life of the agent as well as the agent does."""
    try:
        if rejoin:
            comeback.rejoin(link)
        else:
            link.refresh()
    except NotReachable as error:
        if not resumes:
            raise _first_start(error) from None
        link.core.want_model(True)  # the link goes on trying; until then decisions rest on the saved model
    except Refused as error:
        if error.reason not in (SequenceGap.code, StaleIncarnation.code):
            raise
        raise StateMismatch(
            f"{error}; to begin anew without it, take another directory. Nothing here was changed"
        ) from None
