"""Decision tokens: a decision that its agent gave up, as text that anybody can carry and only the server can book.

    fbd_<base64url of payload and HMAC-SHA256 of it>        payload: msgpack [version, agent, decision, time, row]

The row is **not** encrypted: whoever has the token can read it. Nobody without the key can change it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import NamedTuple

import msgspec
import numpy as np

from fedbandit.core.arrays import Vector
from fedbandit.errors import FormatError

VERSION = 1
MARK = "fbd_"
MAC_BYTES = 32
MAX_CHARACTERS = 60_000  # a row of 4096 features


class _Payload(msgspec.Struct, frozen=True, array_like=True):
    v: int
    agent: str
    decision: str
    made_at: float
    x: bytes


class DecisionToken(NamedTuple):
    """What a token says."""

    agent: str
    decision: str
    made_at: float
    x: Vector


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Payload).decode


def token_key(secret: bytes, agent: str) -> bytes:
    """The key of one agent's tokens, derived from the secret of its model."""
    return hmac.digest(secret, b"fedbandit decision tokens\n" + agent.encode(), hashlib.sha256)


def write_token(key: bytes, token: DecisionToken) -> str:
    """A token as text."""
    row = token.x.astype("<f8").tobytes()
    payload = _encode(_Payload(VERSION, token.agent, token.decision, token.made_at, row))
    mac = hmac.digest(key, payload, hashlib.sha256)
    return MARK + base64.urlsafe_b64encode(payload + mac).rstrip(b"=").decode()


def is_token(text: str) -> bool:
    """Whether a text is meant to be a token rather than the id of a decision."""
    return text.startswith(MARK)


def agent_of(text: str) -> str:
    """Whose token it claims to be; not verified."""
    return _split(text)[0].agent


def read_token(secret: bytes, text: str) -> DecisionToken:
    """A token, verified; `FormatError` if it was changed, or is of another model.

    >>> made = DecisionToken("web-1", "0a1b2c3d4e5f-17", 1000.0, np.ones(2))
    >>> read_token(b"secret", write_token(token_key(b"secret", "web-1"), made)).decision
    '0a1b2c3d4e5f-17'
    """
    payload, raw, mac = _split(text)
    if not hmac.compare_digest(mac, hmac.digest(token_key(secret, payload.agent), raw, hashlib.sha256)):
        raise FormatError("the decision token was changed on its way, or belongs to another model")
    if payload.v != VERSION or len(payload.x) % 8:
        raise FormatError(f"expected a decision token of version {VERSION}, got version {payload.v}")
    x = np.frombuffer(payload.x, dtype="<f8").astype(np.float64)
    return DecisionToken(payload.agent, payload.decision, payload.made_at, x)


def _split(text: str) -> tuple[_Payload, bytes, bytes]:
    if not text.startswith(MARK) or len(text) > MAX_CHARACTERS or not text.isascii():
        raise FormatError(f"expected a decision token, which begins with {MARK}")
    try:
        content = base64.b64decode(text[len(MARK) :] + "=" * (-(len(text) - len(MARK)) % 4), b"-_", validate=True)
        return _decode(content[:-MAC_BYTES]), content[:-MAC_BYTES], content[-MAC_BYTES:]
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError) as error:
        raise FormatError(f"the decision token cannot be read, was it cut off? {error}") from None
