"""What an administrator can do, without HTTP: models and agents come and go, and people get tokens."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import numpy as np
from safetensors.numpy import save

from fedbandit.algorithms.messages import stats_from_bytes
from fedbandit.core import radius as radii
from fedbandit.core.ridge import RidgeModel
from fedbandit.errors import AlreadyExists, InvalidParameter
from fedbandit.service.auth import hash_token, new_token
from fedbandit.service.model import Model, ModelSettings, check_agent_name
from fedbandit.service.parts import Parts
from fedbandit.service.stores.base import Role, State

ADMIN = "admin"
ENVIRONMENT = "environment"
TOKEN_NAME = re.compile(r"[\w@.:-]{1,100}")


async def create_model(parts: Parts, settings: ModelSettings) -> Model:
    """A new model at its prior."""
    model = await parts.store.create(settings, uid=uuid.uuid4().hex, now=parts.clock())
    parts.history.event(model, "created")
    parts.log.info("model_created", model=settings.name, dim=settings.dim)
    return model


async def delete_model(parts: Parts, name: str) -> None:
    """The model, its agents and their tokens are gone."""
    await parts.store.delete(name)
    parts.metrics.forget_model(name)
    parts.log.info("model_deleted", model=name)


async def add_agent(parts: Parts, model: str, agent: str, *, renew: bool = False) -> str:
    """The token of a new agent, or with `renew` a new token for one that exists; it is shown only here."""
    token = new_token()
    await parts.store.enroll(model, check_agent_name(agent), hash_token(token), now=parts.clock(), renew=renew)
    parts.history.event(await parts.store.load(model), "joined", agent)
    parts.log.info("agent_added", model=model, agent=agent)
    return token


async def revoke_agent(parts: Parts, model: str, agent: str) -> None:
    """The agent's token is worth nothing any more."""
    await parts.store.revoke(model, agent, now=parts.clock())
    parts.history.event(await parts.store.load(model), "revoked", agent)
    parts.log.info("agent_revoked", model=model, agent=agent)


async def forget_agent(parts: Parts, model: str, agent: str) -> Model:
    """The model as if the agent had never uploaded anything."""
    after = await parts.store.forget(model, agent, now=parts.clock())
    parts.history.event(after, "forgotten", agent)
    parts.history.trails.drop(after.uid, agent)
    parts.history.changed(after, (await parts.store.state(model)).packed)
    parts.log.info("agent_forgotten", model=model, agent=agent, version=after.version)
    return after


async def add_token(parts: Parts, name: str, role: Role, *, replace: bool = False) -> str:
    """A token for a person or a program that looks (viewer) or manages (admin); it is shown only here."""
    if not TOKEN_NAME.fullmatch(name) or name == ENVIRONMENT:
        raise InvalidParameter(
            f"expected a token name of 1 to 100 letters, digits or any of '_@.:-', got {name[:120]!r}"
        )
    token = new_token()
    if not await parts.store.put_token(name, role, hash_token(token), now=parts.clock(), replace=replace):
        raise AlreadyExists(f"there is a token named {name!r} already")
    parts.log.info("token_added", name=name, role=role)
    return token


async def drop_token(parts: Parts, name: str) -> None:
    """The token of this name, if there is one, is worth nothing any more."""
    if await parts.store.drop_token(name):
        parts.log.info("token_dropped", name=name)


async def first_admin_token(parts: Parts, *, renew: bool = False) -> str | None:
    """The admin token to print: at the very first start, or when a new one is asked for; None at any other."""
    given = parts.settings.admin_token
    if given:
        if len(given) < 16:
            raise InvalidParameter("expected an admin token of at least 16 characters")
        await parts.store.put_token(ENVIRONMENT, "admin", hash_token(given), now=parts.clock(), replace=True)
    else:  # whoever takes the variable away means the token, too
        await drop_token(parts, ENVIRONMENT)
    token = new_token()
    if given and not renew:
        return None
    is_new = await parts.store.put_token(ADMIN, "admin", hash_token(token), now=parts.clock(), replace=renew)
    return token if is_new else None


def export(state: State) -> bytes:
    """The model as safetensors: Sigma, b, theta_hat, n_obs and reward sums, with the settings in the metadata."""
    model = state.model
    stats = stats_from_bytes(state.packed, model.settings.dim)
    tensors = {
        "Sigma": np.ascontiguousarray(stats.Sigma),
        "b": np.ascontiguousarray(stats.b),
        "theta_hat": np.ascontiguousarray(RidgeModel(stats).theta_hat),
        "n_obs": np.array([stats.n_obs], dtype=np.int64),
        "reward_sums": np.array([stats.reward_sum, stats.reward_sq_sum]),
    }
    about = {
        "format": "fedbandit-model",
        "format_version": "1",
        "model": json.dumps(model.to_dict(), sort_keys=True),
    }
    return save(tensors, metadata=about)


def settings_from(values: dict[str, Any]) -> ModelSettings:
    """Model settings from a request: `beta` is a number, or `radius` a dictionary with its kind."""
    beta, radius = values.pop("beta", None), values.pop("radius", None)
    if (beta is None) == (radius is None):
        raise InvalidParameter("expected beta, a number, or radius, an object with its kind: one of the two")
    chosen = radii.as_radius(beta) if radius is None else radii.from_dict(radius)
    features = values.pop("features", None)
    return ModelSettings(radius=chosen, features=None if features is None else tuple(features), **values)
