"""Administrative operations, independent of HTTP: models, agents and tokens."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from fedbandit.algorithms.messages import stats_from_bytes
from fedbandit.core.structure import ridge_model
from fedbandit.errors import AlreadyExists, InvalidParameter, StoreUnavailable, UnknownAgent
from fedbandit.service.admin.auth import hash_token, new_token
from fedbandit.service.admin.backup import was_restored
from fedbandit.service.container import Container
from fedbandit.service.exchange.epochs import BY_HAND
from fedbandit.service.model import Model
from fedbandit.service.stores.base import ModelState, Role
from fedbandit.wire.identifiers import check_agent_id, check_token_name
from fedbandit.wire.settings import ModelSettings

ADMIN = "admin"
ENVIRONMENT = "environment"
MAX_TRIES = 5  # of a change of settings that others change at the same time


async def create_model(container: Container, settings: ModelSettings) -> Model:
    """Create a model at its prior."""
    model = await container.store.create(settings, uid=uuid.uuid4().hex, now=container.clock())
    container.history.event(model, "created")
    container.log.info("model_created", model=settings.name, dim=settings.dim)
    return model


async def widen_model(container: Container, name: str, arms: Sequence[str]) -> Model:
    """Add arms to a model with named arms; everything that it has learnt stays."""
    model = await container.store.widen(name, lambda settings: settings.widened(arms), now=container.clock())
    container.history.event(model, "widened", detail=f"{len(arms)} arms more, {model.settings.blocks} in all")
    container.log.info("model_widened", model=name, n_arms=model.settings.blocks)
    return model


async def add_features(container: Container, name: str, added: Sequence[str] | int) -> Model:
    """Add features to a model, by their names or only how many; everything that it has learnt stays."""
    model = await container.store.widen(name, lambda settings: settings.with_features(added), now=container.clock())
    n_added = added if isinstance(added, int) else len(added)
    container.history.event(model, "widened", detail=f"{n_added} features more, {model.settings.dim} in all")
    container.log.info("model_widened", model=name, dim=model.settings.dim)
    return model


async def record_restore(container: Container) -> None:
    """Add the event of a restore that happened while the server was stopped, to every model."""
    settings = container.settings
    if settings.database or not was_restored(Path(settings.data)):
        return
    for model in await container.store.models():
        container.history.event(model, "restored", detail=f"{model.n_obs} observations, version {model.version}")
    container.log.warning("store_restored")


async def configure_model(container: Container, name: str, values: dict[str, Any]) -> Model:
    """Change settings of a model; its agents take them up with their next exchange or check."""
    for _ in range(MAX_TRIES):
        model = await container.store.load(name)
        after = model.settings.changed(values)
        if after == model.settings:
            return model
        if await container.store.configure(name, model.settings, after):
            before, now = model.settings.to_dict(), after.to_dict()
            words = ", ".join(f"{key}: {before.get(key)} → {now[key]}" for key in now if now[key] != before.get(key))
            container.history.event(model, "configured", detail=words)
            container.log.info("model_configured", model=name, changed=sorted(values))
            return await container.store.load(name)
    raise StoreUnavailable("the settings of the model are changed by others at the same time; try again")


async def restart_model(container: Container, name: str) -> Model:
    """Begin a new epoch of a model at its prior."""
    after = await container.store.restart(name, now=container.clock())
    container.history.event(after, "restarted", detail=f"{BY_HAND}; epoch {after.epoch}")
    container.history.changed(after, after.settings.prior())
    container.log.info("model_restarted", model=name, epoch=after.epoch)
    return after


async def delete_model(container: Container, name: str) -> None:
    """Delete a model, its agents and their tokens."""
    await container.store.delete(name)
    container.metrics.forget_model(name)
    container.log.info("model_deleted", model=name)


async def add_agent(
    container: Container, model: str, agent: str, *, renew: bool = False, overlap_s: float = 0.0
) -> str:
    """Enrol an agent, or with `renew` replace the token of an existing one; returns the token, which is not stored.

    The token before stays valid for `overlap_s` seconds.
    """
    token = new_token()
    old_until = container.clock() + overlap_s if overlap_s > 0.0 else None
    is_known = renew and await _is_enrolled(container, model, check_agent_id(agent))
    await container.store.enroll(
        model, check_agent_id(agent), hash_token(token), now=container.clock(), renew=renew, old_until=old_until
    )
    container.history.event(await container.store.load(model), "renewed" if is_known else "enrolled", agent)
    container.log.info("agent_renewed" if is_known else "agent_added", model=model, agent=agent)
    return token


async def _is_enrolled(container: Container, model: str, agent: str) -> bool:
    try:
        await container.store.agent(model, agent)
    except UnknownAgent:
        return False
    return True


async def revoke_agent(container: Container, model: str, agent: str) -> None:
    """Revoke an agent's token."""
    await container.store.revoke(model, agent, now=container.clock())
    container.history.event(await container.store.load(model), "revoked", agent)
    container.log.info("agent_revoked", model=model, agent=agent)


async def forget_agent(container: Container, model: str, agent: str) -> Model:
    """Remove an agent's contribution from a model, exactly."""
    after = await container.store.forget(model, agent, now=container.clock())
    container.history.event(after, "forgotten", agent)
    container.history.trails.drop(after.uid, agent)
    container.history.changed(after, (await container.store.state(model)).packed)
    container.log.info("agent_forgotten", model=model, agent=agent, version=after.version)
    return after


async def quarantine_agent(container: Container, model: str, agent: str, *, on: bool) -> Model:
    """Exclude an agent's contribution, past and future, from a model; or include all of it again."""
    before = await container.store.agent(model, agent)
    after = await container.store.quarantine(model, agent, on=on, now=container.clock())
    if before.quarantined != on:
        container.history.event(after, "quarantined" if on else "released", agent)
        container.history.changed(after, (await container.store.state(model)).packed)
        container.log.info(
            "agent_quarantined" if on else "agent_released", model=model, agent=agent, version=after.version
        )
    return after


async def add_token(container: Container, name: str, role: Role, *, replace: bool = False) -> str:
    """Create a token for a person or a program: read-only (viewer) or administrative (admin)."""
    check_token_name(name)
    if name == ENVIRONMENT:
        raise InvalidParameter(f"the token name {name!r} is reserved; choose another")
    token = new_token()
    if not await container.store.put_token(name, role, hash_token(token), now=container.clock(), replace=replace):
        raise AlreadyExists(f"there is a token named {name!r} already")
    container.log.info("token_added", name=name, role=role)
    return token


async def drop_token(container: Container, name: str) -> None:
    """Delete the token of this name, if there is one."""
    if await container.store.drop_token(name):
        container.log.info("token_dropped", name=name)


async def first_admin_token(container: Container, *, renew: bool = False) -> str | None:
    """The admin token to print: at the first start, or with `renew`; otherwise None."""
    given = container.settings.admin_token
    if given:
        if len(given) < 16:
            raise InvalidParameter("expected an admin token of at least 16 characters")
        await container.store.put_token(ENVIRONMENT, "admin", hash_token(given), now=container.clock(), replace=True)
    else:  # without the variable its token is deleted
        await drop_token(container, ENVIRONMENT)
    token = new_token()
    if given and not renew:
        return None
    is_new = await container.store.put_token(ADMIN, "admin", hash_token(token), now=container.clock(), replace=renew)
    return token if is_new else None


def export(state: ModelState) -> bytes:
    """The model as safetensors: Sigma, b, theta_hat, n_obs and reward sums, with the settings in the metadata."""
    model = state.model
    stats = stats_from_bytes(state.packed, model.settings.dim, model.settings.blocks)
    tensors = {
        "Sigma": np.ascontiguousarray(stats.Sigma),
        "b": np.ascontiguousarray(stats.b),
        "theta_hat": np.ascontiguousarray(ridge_model(stats).theta_hat),
        "n_obs": np.array([stats.n_obs], dtype=np.int64),
        "reward_sums": np.array([stats.reward_sum, stats.reward_sq_sum]),
    }
    about = {
        "format": "fedbandit-model",
        "format_version": "1",
        "model": json.dumps(model.to_dict(), sort_keys=True),
    }
    return save(tensors, metadata=about)
