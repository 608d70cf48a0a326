"""An agent on a pipe, for other languages: a line of JSON in, a line of JSON out, in the same order.

    {"actions": [[…], …]}                 -> {"decision": id, "index": i}
    {"actions": [[…], …], "k": 3}         -> {"decisions": [{"decision": id, "index": i}, …]}
    {"decision": id, "reward": r}         -> {"observed": 1}
    {"x": [...], "reward": r}             -> {"observed": 1}
    {"X": [[…], …], "y": [...]}           -> {"observed": n}
    {"scores": [[…], …]}                  -> {"means": […], "widths": […], "upper": […]}
    {"pending": true}                     -> {"pending": [{"decision": id, "index": i, "x": […]}, …]}
    {"expire": seconds}                   -> {"expired": n}      pending decisions of this age
    {"default": r, "older_than_s": s}     -> {"observed": n}     the same, with a reward instead
    {"flush": true}                       -> {"flushed": model version}
    {"refresh": true}                     -> {"refreshed": true or false}
    {"status": true}                      -> {"status": {…}}

Whatever goes wrong is {"error": code, "message": words}, and the next line is read. A key "id" comes back as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from fedbandit.algorithms.decision import Decision
from fedbandit.errors import FedbanditError, FormatError
from fedbandit.sdk.agent import LiveAgent

Request = dict[str, Any]


def serve_lines(agent: LiveAgent, lines: Iterable[str], write: Callable[[str], object]) -> None:
    """Answer line by line until there are no more."""
    for line in lines:
        if line.strip():
            write(msgspec.json.encode(answer(agent, line)).decode() + "\n")


def answer(agent: LiveAgent, line: str) -> dict[str, Any]:
    """The answer to one line; never an exception that the line could cause."""
    request: Request = {}
    try:
        request = _read(line)
        reply = _answer(agent, request)
    except FedbanditError as error:
        reply = {"error": error.code, "message": str(error)}
    return {"id": request["id"], **reply} if "id" in request else reply


def _read(line: str) -> Request:
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise FormatError(f"expected a line of JSON: {error}") from None
    if not isinstance(found, dict):
        raise FormatError(f"expected an object, got {type(found).__name__}")
    return found


def _answer(agent: LiveAgent, request: Request) -> dict[str, Any]:
    for key, handle in HANDLERS.items():
        if key in request:
            return handle(agent, request)
    raise FormatError(f"expected one of {', '.join(HANDLERS)} in the object, got {', '.join(request) or 'nothing'}")


def _choose(agent: LiveAgent, request: Request) -> dict[str, Any]:
    k = request.get("k")
    if k is None:
        return _brief(agent.choose(request["actions"]))
    if not isinstance(k, int):
        raise FormatError(f"expected k as a whole number, got {k!r}")
    return {"decisions": [_brief(decision) for decision in agent.choose(request["actions"], k=k)]}


def _book(agent: LiveAgent, request: Request) -> dict[str, Any]:
    agent.observe(agent.pending[str(request["decision"])], _reward(request))
    return {"observed": 1}


def _observe(agent: LiveAgent, request: Request) -> dict[str, Any]:
    agent.observe(request["x"], _reward(request))
    return {"observed": 1}


def _fit(agent: LiveAgent, request: Request) -> dict[str, Any]:
    rewards = request.get("y")
    if not isinstance(rewards, list):
        raise FormatError("expected y, a list with one reward for each row of X")
    agent.partial_fit(request["X"], rewards)
    return {"observed": len(rewards)}


def _scores(agent: LiveAgent, request: Request) -> dict[str, Any]:
    found = agent.scores(request["scores"])
    return {"means": found.means.tolist(), "widths": found.widths.tolist(), "upper": found.upper.tolist()}


def _list(agent: LiveAgent, request: Request) -> dict[str, Any]:
    return {"pending": [{**_brief(decision), "x": decision.x.tolist()} for decision in agent.pending]}


def _expire(agent: LiveAgent, request: Request) -> dict[str, Any]:
    return {"expired": agent.pending.expire(older_than_s=_number(request["expire"], "expire"))}


def _default(agent: LiveAgent, request: Request) -> dict[str, Any]:
    age = _number(request.get("older_than_s", 0.0), "older_than_s")
    return {"observed": agent.pending.settle(_number(request["default"], "default"), older_than_s=age)}


def _flush(agent: LiveAgent, request: Request) -> dict[str, Any]:
    timeout_s = request.get("timeout_s")
    agent.flush(30.0 if timeout_s is None else _number(timeout_s, "timeout_s"))
    return {"flushed": agent.model_version}


def _refresh(agent: LiveAgent, request: Request) -> dict[str, Any]:
    return {"refreshed": agent.refresh()}


def _status(agent: LiveAgent, request: Request) -> dict[str, Any]:
    return {"status": agent.status().to_dict()}


HANDLERS: dict[str, Callable[[LiveAgent, Request], dict[str, Any]]] = {
    "actions": _choose,
    "decision": _book,
    "x": _observe,
    "X": _fit,
    "scores": _scores,
    "pending": _list,
    "expire": _expire,
    "default": _default,
    "flush": _flush,
    "refresh": _refresh,
    "status": _status,
}


def _brief(decision: Decision) -> dict[str, Any]:
    return {"decision": decision.id, "index": decision.index}


def _reward(request: Request) -> float:
    if "reward" not in request:
        raise FormatError("expected a reward beside the decision or the row")
    return _number(request["reward"], "reward")


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise FormatError(f"expected {name} as a number, got {value!r}")
    return float(value)
