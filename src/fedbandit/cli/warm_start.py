"""A model that starts from a log, merged as the contribution of an agent named "history"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbandit.algorithms.messages import Upload
from fedbandit.core.features import arm_columns
from fedbandit.errors import DimensionMismatch, FedbanditError
from fedbandit.http_client import AdminClient
from fedbandit.wire import codec

if TYPE_CHECKING:
    from fedbandit.experiments.advice.log import DecisionData


def read_history(
    path: Path, settings: dict[str, Any], *, arms: Sequence[str] | None = None
) -> tuple[Upload, list[str]]:
    """The log as one upload, and notes on what was read; fills in `dim` and `features` where they were left out.

    A log with arms makes a model with a block for each (`arms`, `blocks`), unless `blocks` is 1 or the given order of
    `features` mixes the columns of arms. Where `features` are given, columns are taken by these names, in this order.
    """
    from fedbandit.experiments.advice.log import history, read_log, reordered

    def read() -> DecisionData:
        given = settings["features"]
        if given is None:
            return read_log(path, arms=arms)
        blocks = arm_columns(given)
        if blocks is None:
            return read_log(path, features=given, arms=arms)
        inputs = [name for name in next(iter(blocks.values())) if name != "1"]
        return reordered(read_log(path, features=inputs, arms=arms or list(blocks)), given)

    log = read()
    if settings["dim"] is None:
        settings["dim"] = log.dim
    if settings["dim"] != log.dim:
        raise DimensionMismatch(
            f"expected a log with {settings['dim']} features, {path} has {log.dim}: {', '.join(log.feature_names)}"
        )
    if settings.get("blocks") == 1:
        log = replace(log, arms=None)
    if settings.get("blocks") not in (None, log.blocks):
        raise DimensionMismatch(f"expected a log of {settings['blocks']} arms, {path} has {log.blocks}")
    if log.blocks > 1 and log.arms is not None:
        settings["arms"], settings["blocks"] = list(log.arms), log.blocks
    settings["features"] = list(log.feature_names)
    # The model is new, so this upload is no evidence of buffers that grew too far.
    return replace(history(log, lam=settings["lam"]), growth=0.0), _notes(log)


def _notes(log: DecisionData) -> list[str]:
    order = [] if log.arms is None else [f"arms, in the order of their columns: {', '.join(log.arms)}"]
    return order + [f"the column {name} is no feature: {why}" for name, why in log.left_out]


def create_with_history(caller: AdminClient, settings: dict[str, Any], upload: Upload) -> dict[str, Any]:
    """The model with the history merged; if the server rejects the history, the model is deleted."""
    caller.call("POST", "models", body=settings)
    name = settings["name"]
    try:
        token = caller.call("POST", "models", name, "agents", body={"name": upload.agent_id})["token"]
        caller.send_upload(name, token, codec.encode(codec.request_of(upload)), codec.CONTENT_TYPE)
        caller.call("POST", "models", name, "agents", upload.agent_id, "revoke")  # it sends nothing more
    except FedbanditError:
        caller.call("DELETE", "models", name)
        raise
    answer: dict[str, Any] = caller.call("GET", "models", name)
    return answer
