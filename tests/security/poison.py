"""Uploads that must not be merged: one row each, with the expected status and error code.

The model has three features, ‖x‖ ≤ 10 and |r| ≤ 5. Agent a is in its second life and has sent one upload in it; what
agent b sent was forgotten; agent c belongs to another model. docs/http-api.md shows this table, and a test compares.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from fedbandit.algorithms.messages import digest_of
from fedbandit.wire import codec
from tests.service.uploads import incoming, packed, request

BOUNDS = {"action_bound": 10.0, "reward_bound": 5.0}
N_OBS, REWARDS, SQUARES = 9, 10, 11  # places in the packed numbers of three features
Build = Callable[[], bytes]


@dataclass(frozen=True)
class Poison:
    """A body, who sends it, and the answer."""

    what: str
    body: Build
    status: int
    code: str
    sender: str = "a"
    headers: tuple[tuple[str, str], ...] = ()


def numbers(*changes: tuple[int, float], seed: int = 1) -> Build:
    """The next upload of agent a with some numbers changed, and the right digest."""

    def build() -> bytes:
        changed = np.frombuffer(packed(seed), dtype="<f8").copy()
        for place, value in changes:
            changed[place] = value
        stats = changed.tobytes()
        return fields(stats=stats, digest=digest_of(stats))()

    return build


def fields(**changes: Any) -> Build:
    """The next upload of agent a with some fields changed; None leaves one out."""

    def build() -> bytes:
        known = codec.fields_of(request(incoming("a", 2, incarnation="life-2")))
        merged = {**known, **changes}
        return msgspec.msgpack.encode({key: value for key, value in merged.items() if value is not None})

    return build


def sent(agent: str, sequence: int, **changes: Any) -> Build:
    """An upload as that agent would send it."""
    return lambda: codec.encode(request(incoming(agent, sequence, **changes), dim=changes.get("dim", 3)))


def after(tail: bytes) -> Build:
    """A good upload with something behind it."""
    return lambda: fields()() + tail


def doubled(key: str, value: Any) -> Build:
    """A good upload with a key a second time."""

    def build() -> bytes:
        body = bytearray(fields()())
        body[0] += 1  # one more entry in the map
        return bytes(body) + msgspec.msgpack.encode(key) + msgspec.msgpack.encode(value)

    return build


def bomb() -> bytes:
    """Fifty megabytes that compress to fifty thousand bytes."""
    return gzip.compress(bytes(50_000_000), 9)


ROWS = (
    # -- numbers that no data can produce
    Poison("a NaN in Σ", numbers((0, np.nan)), 422, "not_finite"),
    Poison("an infinity in b", numbers((6, np.inf)), 422, "not_finite"),
    Poison("−∞ as Σr²", numbers((SQUARES, -np.inf)), 422, "not_finite"),
    Poison("n_obs = 0", numbers((N_OBS, 0.0)), 422, "implausible_upload"),
    Poison("a negative n_obs", numbers((N_OBS, -4.0)), 422, "implausible_upload"),
    Poison("a fractional n_obs", numbers((N_OBS, 1.5)), 422, "implausible_upload"),
    Poison("n_obs above 2³²", numbers((N_OBS, 2.0**32 + 1)), 422, "implausible_upload"),
    Poison("a negative diagonal of Σ", numbers((0, -1.0)), 422, "implausible_upload"),
    Poison("an indefinite Σ", numbers((1, 60.0)), 422, "implausible_upload"),
    Poison("a b that these actions cannot produce", numbers((6, 50.0), (7, -50.0)), 422, "implausible_upload"),
    Poison("a Σr² smaller than b needs", numbers((SQUARES, 1e-3), (REWARDS, 0.0)), 422, "implausible_upload"),
    Poison("a negative Σr²", numbers((SQUARES, -1.0)), 422, "implausible_upload"),
    Poison("a Σr larger than √(n_obs·Σr²)", numbers((REWARDS, 90.0)), 422, "implausible_upload"),
    Poison("a Σ of more directions than observations", numbers((N_OBS, 1.0)), 422, "implausible_upload"),
    Poison("actions beyond the model's bound", numbers((0, 1e4)), 422, "implausible_upload"),
    Poison("rewards beyond the model's bound", numbers((SQUARES, 1e4)), 422, "implausible_upload"),
    Poison("numbers of 1e151", numbers((0, 1e151)), 422, "implausible_upload"),
    Poison("another dimension", sent("a", 2, dim=2), 422, "dimension_mismatch"),
    # -- plausible numbers of the wrong agent, or out of order
    Poison("a gap in the sequence", sent("a", 4, incarnation="life-2"), 409, "sequence_gap"),
    Poison(
        "the last sequence with other numbers", sent("a", 1, incarnation="life-2", seed=9), 409, "sequence_conflict"
    ),
    Poison("a superseded incarnation of the agent", sent("a", 3, incarnation="life-1"), 409, "stale_incarnation"),
    Poison("data that were forgotten", sent("b", 1), 409, "stale_incarnation", "b"),
    Poison("the body of another agent", sent("b", 2, incarnation="new"), 403, "forbidden", "a"),
    Poison("an agent of another model", sent("c", 1), 403, "forbidden", "c"),
    Poison("the name of another agent, in a duplicate key", doubled("agent", "b"), 403, "forbidden"),
    # -- malformed bodies
    Poison("sequence 0", fields(sequence=0), 400, "format_error"),
    Poison("sequence 2⁵³", fields(sequence=1 << 53), 400, "format_error"),
    Poison("an incarnation of 65 characters", fields(incarnation="x" * 65), 400, "format_error"),
    Poison("an incarnation with a line break", fields(incarnation="life\n2"), 400, "format_error"),
    Poison("a growth of NaN", fields(growth=float("nan")), 400, "format_error"),
    Poison("a wrong digest", fields(digest=bytes(16)), 400, "format_error"),
    Poison("a wrong dimension", fields(dim=4096), 400, "format_error"),
    Poison("a missing key", fields(stats=None), 400, "format_error"),
    Poison("a number as text", fields(sequence="2"), 400, "format_error"),
    Poison("another version of the format", fields(v=2), 400, "unsupported_format"),
    Poison("an empty body", lambda: b"", 400, "format_error"),
    Poison("a truncated body", lambda: fields()()[:60], 400, "format_error"),
    Poison("a trailing byte", after(b"\x00"), 400, "format_error"),
    Poison("two concatenated bodies", after(fields()()), 400, "format_error"),
    Poison("deeply nested lists", lambda: b"\x81\xa5extra" + b"\x91" * 1000, 400, "format_error"),
    Poison(
        "a string with a declared length of four gigabytes",
        lambda: b"\x81\xa5agent\xdb\xff\xff\xff\xff",
        400,
        "format_error",
    ),
    Poison(
        "JSON",
        lambda: json.dumps({"v": 1, "agent": "a"}).encode(),
        400,
        "format_error",
        headers=(("Content-Type", "application/json"),),
    ),
    Poison(
        "a compressed body: nothing is decompressed",
        lambda: gzip.compress(fields()()),
        400,
        "format_error",
        headers=(("Content-Encoding", "gzip"),),
    ),
    Poison("a decompression bomb", bomb, 413, "body_too_large", headers=(("Content-Encoding", "gzip"),)),
    Poison("a body longer than the model's", lambda: fields()() + bytes(2000), 413, "body_too_large"),
)


def table() -> str:
    """The rows as docs/http-api.md has them."""
    lines = ["| an upload with | status | `error` |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {row.what} | {row.status} | `{row.code}` |" for row in ROWS)])
