"""Routes of enrolment: secrets that enrol machines, the exchange for a token, starts, agents that retire."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import Field

from fedbandit.service.admin import enrolment
from fedbandit.service.admin.auth import require
from fedbandit.service.http.routes import ADMIN, Reader, Served, Strict, principal_of
from fedbandit.service.stores.base import Principal

router = APIRouter(prefix="/v1")
Caller = Annotated[Principal, Depends(principal_of)]
MAX_PRUNED = 10_000


class NewEnrolment(Strict):
    """How often and how long a secret may enrol agents, and how their names begin."""

    name: str = ""
    name_prefix: str = ""
    max_uses: int | None = None
    ttl_s: float | None = None


class Redeem(Strict):
    """The nonce of a machine, the same at every retry; `agent` is the name wanted, if any."""

    nonce: str
    agent: str = ""


class Start(Strict):
    """A start of an enrolled agent's process, and the one before."""

    session: str
    previous: str = ""


class Prune(Strict):
    """Which agents are silent, and whether they are retired, and folded into one row."""

    after_s: float = Field(ge=0.0)
    retire: bool = False
    fold: bool = False
    limit: int = Field(default=MAX_PRUNED, ge=1, le=MAX_PRUNED)


@router.post("/models/{model}/enrolments", status_code=201, dependencies=ADMIN)
async def create_enrolment(model: str, body: NewEnrolment, container: Served) -> dict[str, Any]:
    """Create an enrolment; its secret is in this response and nowhere else."""
    made, secret = await enrolment.create(container, model, **body.model_dump())
    return {**made.to_dict(container.clock()), "model": model, "secret": secret}


@router.get("/models/{model}/enrolments", dependencies=ADMIN)
async def list_enrolments(model: str, container: Served) -> dict[str, Any]:
    """Enrolments with their uses and states; never the secrets."""
    found = await container.store.enrolments(model)
    return {"enrolments": [item.to_dict(container.clock()) for item in found]}


@router.post("/models/{model}/enrolments/{name}/revoke", status_code=200, dependencies=ADMIN)
async def revoke_enrolment(model: str, name: str, container: Served) -> dict[str, Any]:
    """End an enrolment, immediately and on every replica; agents that it enrolled stay valid."""
    await enrolment.revoke(container, model, name)
    return {"model": model, "name": name, "state": "revoked"}


@router.post("/models/{model}/enrol")
async def enrol(model: str, body: Redeem, container: Served, request: Request, who: Caller) -> dict[str, Any]:
    """Exchange an enrolment secret, sent as the bearer token, for an agent and its token; once for each nonce."""
    require(who, "enrolment", model=model)
    secret = (request.headers.get("authorization") or "").partition(" ")[2].strip()
    agent, token = await enrolment.redeem(container, model, who.name, secret, body.nonce, body.agent)
    return {"model": model, "agent": agent, "token": token}


@router.post("/models/{model}/start")
async def start(model: str, body: Start, container: Served, who: Caller) -> dict[str, Any]:
    """Record the start of an agent's process; 409 `copied_state` if another one started from a copy of its state."""
    require(who, "agent", model=model)
    await container.store.start(model, who.name, previous=body.previous, session=body.session)
    return {"model": model, "agent": who.name}


@router.post("/models/{model}/agents/{agent}/retire")
async def retire_agent(model: str, agent: str, container: Served, who: Reader) -> dict[str, Any]:
    """End an agent, immediately and on every replica; its contribution stays. An agent may retire itself."""
    require(who, "admin", "agent", model=model, agent=agent)
    await enrolment.retire(container, model, agent, on=True)
    return (await container.store.agent(model, agent)).to_dict()


@router.post("/models/{model}/agents/{agent}/unretire", dependencies=ADMIN)
async def unretire_agent(model: str, agent: str, container: Served) -> dict[str, Any]:
    """Take a retirement back: the agent's token is valid again."""
    await enrolment.retire(container, model, agent, on=False)
    return (await container.store.agent(model, agent)).to_dict()


@router.post("/models/{model}/prune", dependencies=ADMIN)
async def prune_agents(model: str, body: Prune, container: Served) -> dict[str, Any]:
    """Agents that have uploaded nothing for `after_s` seconds; with `retire` they end, with `fold` they share a row."""
    silent = await enrolment.prune(container, model, after_s=body.after_s, limit=body.limit, retire_them=body.retire)
    n_folded = await enrolment.fold(container, model, after_s=0.0) if body.fold else 0
    return {"agents": silent, "retired": body.retire, "n_folded": n_folded}
