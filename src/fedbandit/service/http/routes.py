"""The JSON API: models, agents and tokens. Each route connects the request to one operation."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from msgspec import UNSET
from pydantic import BaseModel, ConfigDict, Field

from fedbandit.core.gain import LEVEL
from fedbandit.errors import InvalidParameter
from fedbandit.service.admin import operations
from fedbandit.service.admin.auth import require
from fedbandit.service.container import Container
from fedbandit.service.exchange.endpoint import LARGE_DIM
from fedbandit.service.gain import gain_of
from fedbandit.service.insight import ModelInsight, largest_shares, with_contribution
from fedbandit.service.model import Model, epoch_fields
from fedbandit.service.stores.base import PageQuery, Principal
from fedbandit.wire import codec
from fedbandit.wire.settings import ModelSettings

router = APIRouter(prefix="/v1")


def container_of(request: Request) -> Container:
    """The components of the server that handles the request."""
    container: Container = request.app.state.container
    return container


async def principal_of(request: Request) -> Principal:
    """The owner of the request's token."""
    return await container_of(request).authenticator.principal(request.headers.get("authorization"))


async def admin_only(principal: Annotated[Principal, Depends(principal_of)]) -> Principal:
    """Require an administrator."""
    require(principal, "admin")
    return principal


async def people_only(principal: Annotated[Principal, Depends(principal_of)]) -> Principal:
    """Require an administrator or a viewer."""
    require(principal, "admin", "viewer")
    return principal


async def reader(model: str, principal: Annotated[Principal, Depends(principal_of)]) -> Principal:
    """Require an administrator, a viewer or an agent of the model."""
    require(principal, "admin", "viewer", "agent", model=model)
    return principal


Served = Annotated[Container, Depends(container_of)]
Reader = Annotated[Principal, Depends(reader)]
ADMIN = [Depends(admin_only)]
PEOPLE = [Depends(people_only)]


class Strict(BaseModel):
    """A body in which unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class NewModel(Strict):
    """The settings of a model; `beta` is a number, or `radius` an object with its kind and numbers.

    `personal` is "auto", a number κ, or an object with its kind.
    """

    name: str
    dim: int = Field(ge=1, le=codec.MAX_BLOCK_DIM)
    lam: float = 1.0
    alpha: float = 1.0
    beta: float | None = None
    radius: dict[str, Any] | None = None
    features: list[str] | None = None
    action_bound: float | None = None
    reward_bound: float | None = None
    max_rate: float | None = None
    max_share: float | None = None
    personal: dict[str, Any] | float | str | None = None
    control: float = 0.0
    policy: str = "ucb"
    explore: float = 0.0
    gamma: float | str = "auto"
    propensity_samples: int = 100
    policy_seed: int = 0
    blocks: int | None = Field(default=None, ge=1, le=codec.MAX_BLOCK_DIM)
    arms: list[str] | None = None
    drift: dict[str, Any] | None = None
    max_silence_rounds: int | None = None
    max_silence_s: float | None = None
    notes: str = ""


class NewArms(Strict):
    """Names of arms to add to a model."""

    arms: list[str] = Field(min_length=1, max_length=codec.MAX_BLOCK_DIM)


class NewFeatures(Strict):
    """Features to add to a model: their names, or how many for a model whose features have none."""

    features: Annotated[list[str], Field(min_length=1, max_length=codec.MAX_DIM)] | int


class ChangedModel(Strict):
    """Settings to change; null removes a bound. Settings that are not named stay."""

    alpha: float | None = None
    beta: float | None = None
    radius: dict[str, Any] | None = None
    action_bound: float | None = None
    reward_bound: float | None = None
    max_rate: float | None = None
    max_share: float | None = None
    policy: str | None = None
    explore: float | None = None
    gamma: float | str | None = None
    propensity_samples: int | None = None
    drift: dict[str, Any] | None = None
    max_silence_rounds: int | None = None
    max_silence_s: float | None = None
    notes: str | None = None

    def values(self) -> dict[str, Any]:
        """What was named; null only where it has a meaning."""
        found = self.model_dump(exclude_unset=True)
        may_be_null = {"action_bound", "reward_bound", "max_rate", "max_share"}
        may_be_null |= {"drift", "max_silence_rounds", "max_silence_s"}
        missing = [name for name, value in found.items() if value is None and name not in may_be_null]
        if missing:
            raise InvalidParameter(f"expected a value for {', '.join(missing)}, got null")
        return found


class NewAgent(Strict):
    """An agent to enrol; `renew` replaces the token of an existing one, which stays valid for `overlap_s`."""

    name: str
    renew: bool = False
    overlap_s: float = Field(default=0.0, ge=0.0, le=366 * 86_400.0)


class NewToken(Strict):
    """A token for a person or a program."""

    name: str
    role: Literal["viewer", "admin", "reporter"] = "viewer"
    replace: bool = False


# -- models


@router.post("/models", status_code=201, dependencies=ADMIN)
async def create_model(body: NewModel, container: Served) -> dict[str, Any]:
    """Create a model at its prior."""
    return (await operations.create_model(container, ModelSettings.of_request(body.model_dump()))).to_dict()


@router.post("/models/{model}/arms", dependencies=ADMIN)
async def widen_model(model: str, body: NewArms, container: Served) -> dict[str, Any]:
    """Add arms behind those that the model has; their blocks begin at the prior, and everything else stays."""
    return (await operations.widen_model(container, model, body.arms)).to_dict()


@router.post("/models/{model}/features", dependencies=ADMIN)
async def add_features(model: str, body: NewFeatures, container: Served) -> dict[str, Any]:
    """Add features behind those that the model has; they begin at the prior, and everything else stays."""
    return (await operations.add_features(container, model, body.features)).to_dict()


@router.get("/models", dependencies=PEOPLE)
async def list_models(container: Served) -> dict[str, Any]:
    """All models, by name."""
    return {"models": [model.to_dict() for model in await container.store.models()]}


@router.get("/models/{model}")
async def show_model(model: str, container: Served, who: Reader) -> dict[str, Any]:
    """Settings, version and totals of a model; an agent also gets its own name."""
    answer = (await container.store.load(model)).to_dict()
    return {**answer, "agent": who.name} if who.role == "agent" else answer


@router.patch("/models/{model}", dependencies=ADMIN)
async def configure_model(model: str, body: ChangedModel, container: Served) -> dict[str, Any]:
    """Change settings that leave the sums valid; agents take them up without a restart."""
    return (await operations.configure_model(container, model, body.values())).to_dict()


@router.post("/models/{model}/restart", dependencies=ADMIN)
async def restart_model(model: str, container: Served) -> dict[str, Any]:
    """Begin a new epoch at the prior, as after a change; uploads that were made before it are discarded and counted."""
    return (await operations.restart_model(container, model)).to_dict()


@router.delete("/models/{model}", status_code=204, dependencies=ADMIN)
async def delete_model(model: str, container: Served) -> Response:
    """Delete a model with its agents and their tokens."""
    await operations.delete_model(container, model)
    return Response(status_code=204)


@router.get("/models/{model}/export", dependencies=PEOPLE, response_class=Response)
async def export_model(model: str, container: Served) -> Response:
    """The model as a safetensors file, with its settings in the metadata."""
    async with container.one_matrix:
        content = await asyncio.to_thread(
            operations.export, await container.store.state(model)
        )  # a factorisation, and copies
    name = f'attachment; filename="{model}.safetensors"'
    return Response(content, media_type="application/octet-stream", headers={"Content-Disposition": name})


@router.get("/models/{model}/state", response_class=Response)
async def download(
    model: str,
    container: Served,
    who: Reader,
    incarnation: str = "",
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """The model's state as msgpack, without an upload; 304 when `If-None-Match` names the current one.

    With a weak tag (`W/` before that of an earlier response) 304 also if uploads were only added since.
    """
    current = await container.store.load(model)
    if who.role == "agent":
        container.history.contacted(current.uid, who.name)
    tag = current.tag
    if if_none_match == tag or (if_none_match is not None and current.has_all_of(if_none_match)):
        container.metrics.downloads.labels("unchanged").inc()
        return Response(status_code=304, headers={"ETag": tag, **_rewards_hint(current)})
    # The ledger is read before the state, so that the state contains what is acknowledged.
    acknowledged, excluded, n_discarded = 0, False, 0
    if who.role == "agent":
        agent = await container.store.agent(model, who.name)
        if if_none_match is None:
            container.history.started(current, agent, incarnation)
        acknowledged, excluded = agent.sequence if agent.incarnation == incarnation else 0, agent.quarantined
        n_discarded = agent.n_discarded
    state = await container.store.state(model)
    container.metrics.downloads.labels("sent").inc()
    reply = codec.make_reply(
        state.model.settings.blocks,
        agent=who.name if who.role == "agent" else "",
        version=state.model.version,
        acknowledged=acknowledged,
        dim=state.model.settings.dim,
        stats=state.packed,
        settings=state.model.settings_id,
        excluded=True if excluded else UNSET,
        **epoch_fields(state.model, n_discarded),
    )
    body = codec.encode(reply) if reply.dim < LARGE_DIM else await asyncio.to_thread(codec.encode, reply)
    headers = {"ETag": state.model.tag, **_rewards_hint(state.model)}
    return Response(body, media_type=codec.CONTENT_TYPE, headers=headers)


def _rewards_hint(model: Model) -> dict[str, str]:
    """Tells agents of the model that rewards wait, perhaps theirs."""
    return {codec.REWARDS_HEADER: str(model.n_rewards)} if model.n_rewards else {}


@router.get("/models/{model}/insight", dependencies=PEOPLE)
async def model_insight(
    model: str, container: Served, limit: Annotated[int, Query(ge=1, le=1000)] = 10
) -> dict[str, Any]:
    """The model's assumptions as checks, the radius it needs, its estimates, and the largest shares of information."""
    async with container.one_matrix:
        report = await container.monitor.report(model)
        shares = await largest_shares(container.store, report.insight, limit)
        return report.to_dict() | shares.to_dict()


@router.get("/models/{model}/gain", dependencies=PEOPLE)
async def model_gain(
    model: str, container: Served, level: Annotated[float, Query(gt=0, lt=1)] = LEVEL
) -> dict[str, Any]:
    """The gain over control with a confidence sequence, and how many more observations a decision needs."""
    return gain_of(await container.store.load(model), level=level)


@router.get("/models/{model}/events", dependencies=PEOPLE)
async def list_events(
    model: str, container: Served, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> dict[str, Any]:
    """Events, newest first: created, enrolled, renewed, revoked, refused and why, forgotten, restarted and why."""
    return {"events": await container.store.events(model, limit=limit)}


@router.get("/models/{model}/samples", dependencies=PEOPLE)
async def list_samples(model: str, container: Served) -> dict[str, Any]:
    """The model over time, oldest first; sums since its creation."""
    return {"samples": await container.store.samples(model)}


# -- agents


@router.post("/models/{model}/agents", status_code=201, dependencies=ADMIN)
async def add_agent(model: str, body: NewAgent, container: Served) -> dict[str, Any]:
    """Enrol an agent; its token is in this response and nowhere else."""
    token = await operations.add_agent(container, model, body.name, renew=body.renew, overlap_s=body.overlap_s)
    return {"model": model, "name": body.name, "token": token}


@router.get("/models/{model}/agents", dependencies=PEOPLE)
async def list_agents(
    model: str,
    container: Served,
    page: int = 1,
    per_page: int = 50,
    sort: str = "name",
    search: str = "",
    retired: bool = False,
) -> dict[str, Any]:
    """A page of agents, at work or `retired`; `-` before the sort key means descending."""
    query = PageQuery(page=page, per_page=per_page, sort=sort, search=search, retired=retired)
    found = await container.store.agents(model, query)
    agents = [agent.to_dict() for agent in found.agents]
    return {"agents": agents, "total": found.total, "page": page, "per_page": per_page}


@router.get("/models/{model}/agents/{agent}")
async def show_agent(model: str, agent: str, container: Served, who: Reader) -> dict[str, Any]:
    """One agent: last seen, incarnation, sequence, what it contributed."""
    require(who, "admin", "viewer", "agent", model=model, agent=agent)
    return (await container.store.agent(model, agent)).to_dict()


@router.get("/models/{model}/agents/{agent}/influence", dependencies=PEOPLE)
async def agent_influence(model: str, agent: str, container: Served) -> dict[str, Any]:
    """The agent's share of the information in the model, and how far its data move the estimate.

    For an agent in quarantine: what they would do if it were released.
    """
    async with container.one_matrix:
        found = await container.store.agent(model, agent)
        contribution = await container.store.contribution(model, agent)
        state = await container.store.state(model)
        if found.quarantined and contribution is not None:
            state = with_contribution(state, contribution)
        influence = await asyncio.to_thread(lambda: ModelInsight(state).influence(contribution))
    return {**influence.to_dict(), "quarantined": found.quarantined}


@router.post("/models/{model}/agents/{agent}/revoke", dependencies=ADMIN)
async def revoke_agent(model: str, agent: str, container: Served) -> dict[str, Any]:
    """Revoke the agent's token, immediately and on every replica; its contribution stays."""
    await operations.revoke_agent(container, model, agent)
    return (await container.store.agent(model, agent)).to_dict()


@router.post("/models/{model}/agents/{agent}/forget", dependencies=ADMIN)
async def forget_agent(model: str, agent: str, container: Served) -> dict[str, Any]:
    """Remove the agent's contribution exactly; the model contains the data of all others."""
    return (await operations.forget_agent(container, model, agent)).to_dict()


@router.post("/models/{model}/agents/{agent}/quarantine", dependencies=ADMIN)
async def quarantine_agent(model: str, agent: str, container: Served) -> dict[str, Any]:
    """Exclude the agent's contribution from the model; further uploads are merged once, and kept apart."""
    return (await operations.quarantine_agent(container, model, agent, on=True)).to_dict()


@router.post("/models/{model}/agents/{agent}/release", dependencies=ADMIN)
async def release_agent(model: str, agent: str, container: Served) -> dict[str, Any]:
    """Release an agent from quarantine: merge its contribution and everything it uploaded meanwhile."""
    return (await operations.quarantine_agent(container, model, agent, on=False)).to_dict()


# -- tokens of people


@router.get("/tokens", dependencies=ADMIN)
async def list_tokens(container: Served) -> dict[str, Any]:
    """Names and roles of all tokens except those of agents; never the tokens."""
    return {"tokens": [{"name": who.name, "role": who.role} for who in await container.store.tokens()]}


@router.delete("/tokens/{name}", status_code=204, dependencies=ADMIN)
async def delete_token(name: str, container: Served) -> Response:
    """Delete a token, immediately and on every replica."""
    await operations.drop_token(container, name)
    return Response(status_code=204)


@router.post("/tokens", status_code=201, dependencies=ADMIN)
async def add_token(body: NewToken, container: Served) -> dict[str, Any]:
    """Create a token: read-only (viewer), administrative (admin), or only for rewards (reporter); it is not stored."""
    token = await operations.add_token(container, body.name, body.role, replace=body.replace)
    return {"name": body.name, "role": body.role, "token": token}
