"""Routes of rewards from anywhere: report them, and collect them as the owner of their decisions."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from pydantic import Field

from fedbandit.errors import FedbanditError
from fedbandit.service.admin import rewards
from fedbandit.service.admin.auth import require
from fedbandit.service.admin.rewards import MAX_REPORTS
from fedbandit.service.http.routes import Served, Strict, principal_of
from fedbandit.service.stores.base import Principal

router = APIRouter(prefix="/v1")
Caller = Annotated[Principal, Depends(principal_of)]


class OneReward(Strict):
    """A reward; `decision` is the id of a decision, or its token."""

    decision: str = Field(max_length=60_000)
    reward: float


class Rewards(Strict):
    """One reward, or many."""

    decision: str | None = Field(default=None, max_length=60_000)
    reward: float | None = None
    rewards: list[OneReward] | None = Field(default=None, max_length=MAX_REPORTS)


class Collect(Strict):
    """The prefix of the owner's decisions, and what it did with the rewards of the last answer."""

    prefix: str = Field(max_length=64)
    answers: list[tuple[str, Literal["booked", "not_pending", "refused"]]] = Field(default=[], max_length=MAX_REPORTS)


@router.post("/models/{model}/rewards")
async def report_rewards(model: str, body: Rewards, container: Served, who: Caller) -> dict[str, Any]:
    """Report rewards of decisions, each once, by id or by token; with `rewards` a status or an error for each."""
    require(who, "admin", "reporter", "agent", model=model)
    if body.rewards is None and body.decision is not None and body.reward is not None:
        ((decision, outcome),) = await rewards.report(container, model, [(body.decision, body.reward)])
        if isinstance(outcome, FedbanditError):
            raise outcome
        return {"decision": decision, "status": outcome}
    given = [(item.decision, item.reward) for item in body.rewards or []]
    results = await rewards.report(container, model, given)
    return {"results": [_result(decision, outcome) for decision, outcome in results]}


def _result(decision: str, outcome: str | FedbanditError) -> dict[str, str]:
    if isinstance(outcome, FedbanditError):
        return {"decision": decision, "status": "refused", "error": outcome.code, "message": str(outcome)}
    return {"decision": decision, "status": outcome}


@router.post("/models/{model}/rewards/collect")
async def collect_rewards(model: str, body: Collect, container: Served, who: Caller) -> dict[str, Any]:
    """As an agent: what was done with the rewards of the last answer, and the next ones, at most 1000."""
    require(who, "agent", model=model)
    found, key = await rewards.collect(container, model, who.name, body.prefix, body.answers)
    encoded = base64.urlsafe_b64encode(key).decode()
    return {"rewards": found.rewards, "n_waiting": found.n_waiting, "token_key": encoded}
