"""Authentication and roles. A token has 256 random bits; the store keeps only its SHA-256."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fedbandit.errors import Forbidden, StoreUnavailable, Unauthenticated
from fedbandit.service.http.connections import mark_authenticated
from fedbandit.service.stores.base import Principal
from fedbandit.service.stores.enrolments import ended

if TYPE_CHECKING:
    from fedbandit.service.stores.base import Role, Store

TOKEN = re.compile(r"[\x21-\x7e]{16,200}")
N_CHARACTERS = 46  # of a generated token
MAX_CACHED = 100_000
MAX_SCRAPERS = 100
SCRAPE_TIMEOUT_S = 3.0  # less than Prometheus' own timeout
# Names of tokens that end by themselves: links that sign in once, and the sessions that they open. No person's token
# can have such a name.
TEMPORARY = re.compile(r"\((?:link|session) until ([0-9]{1,12}), [0-9a-f]{16}\)")


def new_token() -> str:
    """A new random token."""
    return "fb_" + secrets.token_urlsafe(32)


def hash_token(token: str) -> bytes:
    """The stored form of a token. A fast hash is enough: 256 random bits cannot be guessed."""
    return hashlib.sha256(token.encode()).digest()


def temporary_name(kind: str, until: float) -> str:
    """The name of a token that ends by itself, rounded up to a whole second.

    >>> ends_at(temporary_name("link", 1794810000.5))
    1794810001.0
    """
    return f"({kind} until {math.ceil(until)}, {secrets.token_hex(8)})"


def ends_at(name: str) -> float | None:
    """When the token of this name ends; None for one that does not end by itself."""
    match = TEMPORARY.fullmatch(name)
    return None if match is None else float(match[1])


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
    """Why a string cannot be a token."""
    if not 16 <= len(token) <= 200:
        return (
            f"expected a token of 16 to 200 characters ({N_CHARACTERS} if fedbandit made it), got {len(token)}: "
            "was it cut off, or joined with something else, when it was copied?"
        )
    return "expected a token of visible ASCII characters, got others (spaces, quotes of a text editor): copy it again"


class Authenticator:
    """Identifies who sent a request. Timing a lookup by hash reveals nothing about the token."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        # Agents whose tokens were presented before. It saves a query and decides nothing: the transaction that merges
        # an upload compares the hash with the agent's row, so that revoking is immediate on every replica.
        self.known: dict[bytes, Principal] = {}
        self._scrapers: dict[bytes, Principal] = {}

    async def principal(self, authorization: str | None) -> Principal:
        """The owner of the token, according to the store."""
        return await self._look_up(bearer_hash(authorization))

    async def scraper(self, authorization: str | None) -> tuple[Principal, bool]:
        """Who reads the metrics, and whether the store is available.

        Metrics are needed most during an outage of the store: those who read them before may continue to.
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
                raise StoreUnavailable("the store is unavailable, and this token is not cached") from None
            mark_authenticated()
            return known, False
        if principal.role != "agent" and len(self._scrapers) < MAX_SCRAPERS:
            self._scrapers[token_hash] = principal
        return principal, True

    async def agent(self, token_hash: bytes, model: str) -> Principal:
        """The agent of an exchange; the result is cached."""
        principal = self.known.get(token_hash)
        if principal is None:
            principal = await self._look_up(token_hash)
            if len(self.known) >= MAX_CACHED:
                self.known.clear()
            self.known[token_hash] = principal
        mark_authenticated()
        require(principal, "agent", model=model)
        return principal

    async def explain(self, token_hash: bytes) -> None:
        """Remove a cached token that the store refused, and raise the reason."""
        self.known.pop(token_hash, None)
        await self._look_up(token_hash)

    async def _look_up(self, token_hash: bytes) -> Principal:
        principal = await self._store.find_token(token_hash)
        if principal is None:
            raise Unauthenticated(
                f"this token is not known here; was it replaced, its model deleted, or the end cut off "
                f"(tokens that fedbandit makes have {N_CHARACTERS} characters)?"
            )
        if principal.until is not None and self._clock() >= principal.until:
            raise Unauthenticated(f"the token of agent {principal.name!r} was renewed, and this one has expired")
        end = None if principal.model else ends_at(principal.name)
        if end is not None and self._clock() >= end:
            raise Unauthenticated("this session of the dashboard, or the link that would open one, has ended")
        if principal.revoked:
            raise ended(principal.name, principal.retired)
        mark_authenticated()
        return principal


def require(principal: Principal, *roles: Role, model: str = "", agent: str = "") -> None:
    """Raise `Forbidden` unless the principal has one of the roles; an agent is limited to its model and itself."""
    if principal.role not in roles:
        raise Forbidden(f"this needs the role {' or '.join(roles)}, and the token has the role {principal.role}")
    if principal.role not in ("agent", "enrolment"):
        return
    if model and principal.model != model:
        raise Forbidden(f"this token belongs to an {principal.role} of another model than {model!r}")
    if agent and principal.name != agent:
        raise Forbidden(f"this token does not belong to agent {agent!r}")
