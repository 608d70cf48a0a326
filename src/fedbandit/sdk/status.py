"""The status of an agent: counters that survive a restart, and a snapshot of this moment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Counters:
    """What was sent and received in this incarnation, over all processes that carried it."""

    exchanges: int = 0
    refreshes: int = 0
    retries: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """An agent at one moment. `growth` against `threshold` says how near the next exchange is."""

    model: str
    agent_id: str
    server: str
    incarnation: str
    rounds: int  # observations
    pending: int  # decisions without their reward
    unsent: int  # observations that no upload holds yet
    in_flight: int  # observations in an upload that is not answered yet
    exchanges: int
    refreshes: int
    retries: int
    bytes_sent: int
    bytes_received: int
    sequence: int
    model_version: int
    growth: float  # log det(Σ_m + what the model does not hold) − log det Σ_m
    threshold: float  # log(1 + α)
    alpha: float
    beta: float
    reachable: bool | None  # None: not tried yet
    staleness_s: float | None  # since the last answer of the server; None: never in this process
    next_attempt_s: float | None  # until the next try after a failure
    last_error: str | None  # None after an answer
    last_error_code: str | None
    refused_model: str | None  # why the server's newest model is not in use; None: it is
    state_dir: str | None
    durability: str | None
    decision_log: str | None = None  # its directory
    log_lines: int = 0  # of the decision log, written by this process
    log_dropped: int = 0  # lines that could not be written
    log_error: str | None = None  # why lines are being dropped; None: they are not
    epoch: int = 0  # restarts of the model, as far as this agent has heard
    discarded: int = 0  # observations that count for nothing, since they were made before a restart

    @property
    def is_due(self) -> bool:
        """Whether an upload is in flight, or the trigger has fired."""
        return self.in_flight > 0 or self.growth > self.threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON (an infinite threshold aside)."""
        return asdict(self)
