"""Routes for operators: what is wrong now, the arms of a model, notes in its history, links to the dashboard."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import Field

from fedbandit.service.admin import sign_in_links
from fedbandit.service.arms import arm_table
from fedbandit.service.http.routes import ADMIN, PEOPLE, Served, Strict

router = APIRouter(prefix="/v1")


class NewNote(Strict):
    """A note for the history of a model, about an agent or about all."""

    text: str = Field(min_length=1, max_length=500)
    agent: str = Field(default="", max_length=200)


class NewLink(Strict):
    """How many seconds the link is valid, and the view that it opens."""

    ttl_s: float = sign_in_links.TTL_S
    target: str = "/"


@router.get("/models/{model}/problems", dependencies=PEOPLE)
async def list_problems(model: str, container: Served) -> dict[str, Any]:
    """What is wrong now, which agents are missing compared with their own rhythm, and what to do about each."""
    async with container.one_matrix:
        return (await container.problems.report(model)).to_dict()


@router.get("/models/{model}/arms", dependencies=PEOPLE)
async def list_arms(model: str, container: Served) -> dict[str, Any]:
    """The arms of a model with one block per arm: observations, mean reward, share of information, ‖θ̂‖."""
    async with container.one_matrix:
        report = await container.monitor.report(model)
        return arm_table(report.insight).to_dict()


@router.post("/models/{model}/events", status_code=201, dependencies=ADMIN)
async def add_note(model: str, body: NewNote, container: Served) -> dict[str, Any]:
    """Add a note to the model's events: a deployment, a campaign, an agent that was stopped on purpose."""
    found = await container.store.load(model)
    if body.agent:
        await container.store.agent(model, body.agent)
    container.history.event(found, "noted", body.agent, body.text)
    return {"model": model, "agent": body.agent, "text": body.text}


@router.post("/sign-in-links", status_code=201, dependencies=ADMIN)
async def create_sign_in_link(body: NewLink, container: Served) -> dict[str, Any]:
    """Create a link that opens the dashboard signed in as a viewer, once and for a few minutes."""
    link = await sign_in_links.create(container, ttl_s=body.ttl_s, target=body.target)
    return {"path": link.path, "expires": link.expires}
