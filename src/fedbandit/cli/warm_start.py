"""A model that begins with the history people already have, as the contribution of an agent named "history"."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbandit.algorithms.messages import Upload
from fedbandit.cli.calls import Caller
from fedbandit.errors import DimensionMismatch, FedbanditError
from fedbandit.wire import codec


def read_history(path: Path, settings: dict[str, Any]) -> Upload:
    """The log as one upload; fills in `dim` and `features` where they were left out, and checks them where not."""
    from fedbandit.experiments.logged import history, read_log

    log = read_log(path)
    if settings["dim"] is None:
        settings["dim"] = log.dim
    if settings["dim"] != log.dim:
        raise DimensionMismatch(f"expected a log with {settings['dim']} features, {path} has {log.dim}")
    if settings["features"] is None:
        settings["features"] = list(log.feature_names)
    # Nobody acts on an older model meanwhile, so this upload says nothing about buffers that grew too far.
    return replace(history(log, lam=settings["lam"]), growth=0.0)


def create_with_history(caller: Caller, settings: dict[str, Any], upload: Upload) -> dict[str, Any]:
    """The model with the history merged; if the server refuses the history there is no model either."""
    caller.call("POST", "models", body=settings)
    name = settings["name"]
    try:
        token = caller.call("POST", "models", name, "agents", body={"name": upload.agent_id})["token"]
        caller.send_upload(name, token, codec.encode(codec.request_of(upload)))
        caller.call("POST", "models", name, "agents", upload.agent_id, "revoke")  # it has said all that it has to say
    except FedbanditError:
        caller.call("DELETE", "models", name)
        raise
    answer: dict[str, Any] = caller.call("GET", "models", name)
    return answer
