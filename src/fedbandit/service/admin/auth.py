"""Tokens and roles: 256 random bits, of which only the SHA-256 is kept; the store has the last word on each."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from typing import TYPE_CHECKING

from fedbandit.errors import Forbidden, StoreUnavailable, Unauthenticated
from fedbandit.service.http.connections import mark_authenticated
from fedbandit.service.stores.base import Principal

if TYPE_CHECKING:
    from fedbandit.service.stores.base import Role, Store

TOKEN = re.compile(r"[\x21-\x7e]{16,200}")
N_CHARACTERS = 46  # of a token made here
MAX_CACHED = 100_000
MAX_SCRAPERS = 100
SCRAPE_TIMEOUT_S = 3.0  # less than Prometheus waits for an answer


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
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated(f"expected the header 'Authorization: Bearer <token>', got {_without(scheme, token)}")
    if not TOKEN.fullmatch(token):
        raise Unauthenticated(_flaw(token))
    return hash_token(token)


def _without(scheme: str, token: str) -> str:
    if scheme.lower() == "bearer":
        return "no token in it"
    return "another scheme than Bearer" if token else "no such header" if not scheme else "no scheme in it"


def _flaw(token: str) -> str:
    """What is wrong with a token that nobody can have."""
    if not 16 <= len(token) <= 200:
        return (
            f"expected a token of 16 to 200 characters ({N_CHARACTERS} if fedbandit made it), got {len(token)}: "
            "was it cut off, or joined with something else, when it was copied?"
        )
    return "expected a token of visible ASCII characters, got others (spaces, quotes of a text editor): copy it again"


class Authenticator:
    """Who is at the door. Looking up by a hash tells an attacker nothing about the token that would match it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cached: dict[bytes, Principal] = {}
        self._scrapers: dict[bytes, Principal] = {}

    async def principal(self, authorization: str | None) -> Principal:
        """Whose token it is, as the store has it now."""
        return await self._look_up(bearer_hash(authorization))

    async def scraper(self, authorization: str | None) -> tuple[Principal, bool]:
        """Who reads the metrics, and whether the store answered.

        Metrics are needed most while the store is away: then whoever read them before may go on.
        """
        token_hash = bearer_hash(authorization)
        try:
            async with asyncio.timeout(SCRAPE_TIMEOUT_S):
                principal = await self._look_up(token_hash)
        except Unauthenticated:
            self._scrapers.pop(token_hash, None)
            raise
        except (StoreUnavailable, TimeoutError):
            known = self._scrapers.get(token_hash)
            if known is None:
                raise StoreUnavailable("the store does not answer, and this token is not known without it") from None
            mark_authenticated()
            return known, False
        if principal.role != "agent" and len(self._scrapers) < MAX_SCRAPERS:
            self._scrapers[token_hash] = principal
        return principal, True

    def cached(self, token_hash: bytes) -> Principal | None:
        """Who came with this token before.

        What is remembered here saves a look at the store and decides nothing: an exchange compares the hash with the
        agent's row once more, in the transaction that merges it, so that revoking is immediate on every replica.
        """
        return self._cached.get(token_hash)

    async def agent(self, token_hash: bytes, model: str) -> Principal:
        """The agent of an exchange, who is remembered."""
        principal = self._cached.get(token_hash)
        if principal is None:
            principal = await self._look_up(token_hash)
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            self._cached[token_hash] = principal
        mark_authenticated()
        require(principal, "agent", model=model)
        return principal

    async def explain(self, token_hash: bytes) -> None:
        """After the store said no to a remembered token: forget it, and say why it is no good."""
        self._cached.pop(token_hash, None)
        await self._look_up(token_hash)

    async def _look_up(self, token_hash: bytes) -> Principal:
        principal = await self._store.find_token(token_hash)
        if principal is None:
            raise Unauthenticated(
                f"this token is not known here; was it replaced, its model deleted, or the end cut off "
                f"(tokens that fedbandit makes have {N_CHARACTERS} characters)?"
            )
        if principal.revoked:
            raise Unauthenticated(f"the token of agent {principal.name!r} was revoked")
        mark_authenticated()
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
