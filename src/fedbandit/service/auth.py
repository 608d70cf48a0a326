"""Tokens and roles: 256 random bits, of which only the SHA-256 is kept; the store has the last word on each."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import TYPE_CHECKING

from fedbandit.errors import Forbidden, Unauthenticated
from fedbandit.service.stores.base import Principal

if TYPE_CHECKING:
    from fedbandit.service.stores.base import Role, Store

TOKEN = re.compile(r"[\x21-\x7e]{16,200}")
MAX_CACHED = 100_000


def new_token() -> str:
    """A fresh token; whoever holds it is who it was made for."""
    return "fb_" + secrets.token_urlsafe(32)


def hash_token(token: str) -> bytes:
    """What is stored of a token. A plain hash will do: 256 random bits cannot be guessed, however fast the hash."""
    return hashlib.sha256(token.encode()).digest()


def bearer_hash(authorization: str | None) -> bytes:
    """The hash of the token in an `Authorization: Bearer …` header."""
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not TOKEN.fullmatch(token):
        raise Unauthenticated("expected the header 'Authorization: Bearer <token>'")
    return hash_token(token)


class Gate:
    """Who is at the door. Looking up by a hash tells an attacker nothing about the token that would match it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, Principal] = {}

    async def principal(self, authorization: str | None) -> Principal:
        """Whose token it is, as the store has it now."""
        return await self._look_up(bearer_hash(authorization))

    def remembered(self, token_hash: bytes) -> Principal | None:
        """Who came with this token before.

        What is remembered here saves a look at the store and decides nothing: an exchange compares the hash with the
        agent's row once more, in the transaction that merges it, so that revoking is immediate on every replica.
        """
        return self._known.get(token_hash)

    async def agent(self, token_hash: bytes, model: str) -> Principal:
        """The agent of an exchange, who is remembered."""
        principal = self._known.get(token_hash)
        if principal is None:
            principal = await self._look_up(token_hash)
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            self._known[token_hash] = principal
        require(principal, "agent", model=model)
        return principal

    async def explain(self, token_hash: bytes) -> None:
        """After the store said no to a remembered token: forget it, and say why it is no good."""
        self._known.pop(token_hash, None)
        await self._look_up(token_hash)

    async def _look_up(self, token_hash: bytes) -> Principal:
        principal = await self._store.find_token(token_hash)
        if principal is None:
            raise Unauthenticated("this token is not known here; was it replaced, or its model deleted?")
        if principal.revoked:
            raise Unauthenticated(f"the token of agent {principal.name!r} was revoked")
        return principal


def require(principal: Principal, *roles: Role, model: str = "", agent: str = "") -> None:
    """`Forbidden` unless the principal has one of the roles; an agent must also stay in its model, and be itself."""
    if principal.role not in roles:
        raise Forbidden(f"this needs the role {' or '.join(roles)}, and the token has the role {principal.role}")
    if principal.role != "agent":
        return
    if model and principal.model != model:
        raise Forbidden(f"this token belongs to an agent of another model than {model!r}")
    if agent and principal.name != agent:
        raise Forbidden(f"this token does not belong to agent {agent!r}")
