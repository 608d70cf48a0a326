"""Mutated messages: fields are changed and the structure is kept, so that much of it decodes.

A fuzzer that only flips bytes never gets past the digest. This one also opens a message, changes what is in it, and
closes it again with the right digest, so that implausible numbers reach the ledger.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from fedbandit.algorithms.messages import digest_of

VECTORS = Path(__file__).resolve().parents[2] / "docs" / "vectors" / "messages.json"
NUMBERS = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-320, 1e-30, 1e8, 2.0**32, 2.0**32 + 1, 2.0**53, 1e70, 1e150, 1e151, 1e308),
    *(-1e308, float("inf"), float("-inf"), float("nan")),
)
VALUES: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 2, 3, 4, 4096, 4097, (1 << 53) - 1, 1 << 53, (1 << 63) - 1, 1 << 63, -(1 << 63)),
    *(0.0, 1e308, float("inf"), float("nan"), "", "a", "shop-1", "shop-2", "ü" * 64, "x" * 65, "x" * 201, "\x00", "\n"),
    *(b"", b"\x00" * 16, [], [[]], {}, {"a": 1}, "../../etc/passwd", "' OR 1=1 --", "\ud7ff"),
)
HEADS = (
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc9\xff",
)


def seeds() -> list[bytes]:
    """Every message, good and bad, that docs/vectors has."""
    found = json.loads(VECTORS.read_text(encoding="utf-8"))
    return [bytes.fromhex(entry["bytes"]) for kind in found.values() for entry in kind]


def mutated(body: bytes, rng: Random) -> bytes:
    """The body with something changed."""
    try:
        message = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _bytes_changed(body, rng)
    if not isinstance(message, dict) or rng.random() < 0.15:
        return _bytes_changed(body, rng)
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice((_number_changed, _number_changed, _number_changed, _value_changed, _key_changed))(message, rng)
    if isinstance(message.get("stats"), bytes) and rng.random() < 0.9:
        message["digest"] = digest_of(message["stats"])
    try:
        return msgspec.msgpack.encode(message)
    except (TypeError, ValueError, OverflowError):
        return _bytes_changed(body, rng)


def _number_changed(message: dict[Any, Any], rng: Random) -> None:
    stats = message.get("stats")
    if not isinstance(stats, bytes) or len(stats) < 8:
        return
    at = 8 * rng.randrange(len(stats) // 8)
    old = struct.unpack_from("<d", stats, at)[0]
    new = rng.choice((rng.choice(NUMBERS), old * rng.choice((-1.0, 1e-9, 1 + 1e-9, 2.0, 1e9)), rng.gauss(0.0, 5.0)))
    message["stats"] = stats[:at] + struct.pack("<d", new) + stats[at + 8 :]


def _value_changed(message: dict[Any, Any], rng: Random) -> None:
    if message:
        message[rng.choice(list(message))] = rng.choice((*VALUES, rng.getrandbits(rng.randrange(1, 64))))


def _key_changed(message: dict[Any, Any], rng: Random) -> None:
    if message and rng.random() < 0.5:
        del message[rng.choice(list(message))]
    else:
        message[rng.choice(("v", "unsent", "model_version", "settings", "extra", "ü" * rng.randrange(1, 40)))] = 1


def _bytes_changed(body: bytes, rng: Random) -> bytes:
    changed = bytearray(body or b"\x80")
    at = rng.randrange(len(changed))
    kind = rng.randrange(5)
    if kind == 0:
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        del changed[at : at + rng.randrange(1, 9)]
    elif kind == 2:
        changed[at:at] = rng.choice((rng.randbytes(rng.randrange(1, 9)), *HEADS))
    elif kind == 3:
        changed[at : at + 5] = rng.choice(HEADS)
    else:
        changed += bytes(changed[:at]) or b"\x00"
    return bytes(changed)
