"""Enrolment, independent of HTTP: machines get an agent of their own for a secret that many of them may share.

The token of an agent is HMAC-SHA256 of the machine's nonce under the secret: the same request gives the same token, and
the server stores neither of the three, only their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets

from fedbandit.errors import AlreadyExists, Forbidden, InvalidParameter
from fedbandit.service.admin.auth import hash_token
from fedbandit.service.container import Container
from fedbandit.service.stores.enrolments import Enrolment, Redeemed, Redemption
from fedbandit.wire.identifiers import check_agent_id, check_token_name

NONCE = re.compile(r"[A-Za-z0-9_-]{43}")  # 256 bits
LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # without those that are easily confused
N_LETTERS = 10  # of a name that the server gives
N_TRIES = 8
MAX_USES = 1 << 40
LONGEST_TTL_S = 10 * 366 * 86400.0


def new_secret() -> str:
    """A new random enrolment secret."""
    return "fbe_" + secrets.token_urlsafe(32)


def agent_token(secret: str, nonce: str) -> str:
    """The token of the machine with this nonce."""
    digest = hmac.digest(secret.encode(), b"fedbandit agent token\n" + nonce.encode(), hashlib.sha256)
    return "fb_" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


async def create(
    container: Container, model: str, *, name: str, name_prefix: str, max_uses: int | None, ttl_s: float | None
) -> tuple[Enrolment, str]:
    """A new enrolment and its secret, which is not stored."""
    if max_uses is not None and not 1 <= max_uses <= MAX_USES:
        raise InvalidParameter(f"expected max_uses from 1 on, got {max_uses}")
    if ttl_s is not None and not 0.0 < ttl_s <= LONGEST_TTL_S:
        raise InvalidParameter(f"expected a time to live above 0 and of at most ten years, got {ttl_s:g} s")
    if name_prefix:
        check_agent_id(name_prefix + "x" * N_LETTERS)
    now, secret = container.clock(), new_secret()
    name = check_token_name(name) if name else "e-" + _letters(6)
    expires = None if ttl_s is None else now + ttl_s
    enrolment = Enrolment(name, now, name_prefix, max_uses, expires)
    await container.store.create_enrolment(model, enrolment, hash_token(secret), now=now)
    container.history.event(await container.store.load(model), "enrolment_created", detail=name)
    container.log.info("enrolment_created", model=model, enrolment=name, max_uses=max_uses, expires=expires)
    return enrolment, secret


async def revoke(container: Container, model: str, name: str) -> None:
    """End an enrolment; agents that it enrolled stay valid."""
    await container.store.revoke_enrolment(model, name)
    container.history.event(await container.store.load(model), "enrolment_revoked", detail=name)
    container.log.info("enrolment_revoked", model=model, enrolment=name)


async def redeem(
    container: Container, model: str, enrolment: str, secret: str, nonce: str, agent: str
) -> tuple[str, str]:
    """Name and token of the agent of this nonce; a new one unless it is known. `agent` is the name wanted, if any."""
    if not NONCE.fullmatch(nonce):
        raise InvalidParameter("expected a nonce of 43 letters: 32 random bytes in base64url")
    prefix = next((e.name_prefix for e in await container.store.enrolments(model) if e.name == enrolment), "")
    if agent and not check_agent_id(agent).startswith(prefix):
        raise Forbidden(f"enrolment {enrolment!r} gives names that begin with {prefix!r}, got {agent!r}")
    token = agent_token(secret, nonce)
    nonce_hash = hashlib.sha256(nonce.encode()).digest()
    for n_left in range(N_TRIES - 1, -1, -1):
        name = agent or prefix + _letters(N_LETTERS)
        wanted = Redemption(hash_token(secret), nonce_hash, hash_token(token), name)
        try:
            redeemed = await container.store.redeem(model, wanted, now=container.clock())
            break
        except AlreadyExists:
            if agent or not n_left:
                raise
    await _report(container, model, redeemed)
    return redeemed.agent, token


async def _report(container: Container, model: str, redeemed: Redeemed) -> None:
    if redeemed.is_new:
        container.history.event(await container.store.load(model), "enrolled", redeemed.agent, redeemed.enrolment)
    container.log.info(
        "agent_enrolled", model=model, agent=redeemed.agent, enrolment=redeemed.enrolment, is_new=redeemed.is_new
    )


async def retire(container: Container, model: str, agent: str, *, on: bool) -> None:
    """End an agent and keep its contribution, or take that back."""
    await container.store.retire(model, agent, on=on, now=container.clock())
    container.history.event(await container.store.load(model), "retired" if on else "unretired", agent)
    container.log.info("agent_retired" if on else "agent_unretired", model=model, agent=agent)


async def prune(container: Container, model: str, *, after_s: float, limit: int, retire_them: bool) -> list[str]:
    """Agents that have uploaded nothing for `after_s` seconds, the longest silent first; retired if wanted."""
    silent = await container.store.silent(model, before=container.clock() - after_s, limit=limit)
    if retire_them and silent:
        for agent in silent:
            await container.store.retire(model, agent, on=True, now=container.clock())
        # One event for all of them: thousands would push everything else out of the list.
        detail = f"{len(silent)} agents, silent for {after_s / 86400:g} days"
        container.history.event(await container.store.load(model), "pruned", detail=detail)
        container.log.info("agents_pruned", model=model, n=len(silent))
    return silent


async def fold(container: Container, model: str, *, after_s: float) -> int:
    """Fold agents that were retired at least `after_s` seconds ago into one row; how many."""
    n_folded, now = 0, container.clock()
    while True:
        n = await container.store.fold_retired(model, before=now - after_s, token_hash=secrets.token_bytes(32), now=now)
        n_folded += n
        if not n:
            break
    if n_folded:
        container.history.event(await container.store.load(model), "folded", detail=f"{n_folded} retired agents")
        container.log.info("agents_folded", model=model, n=n_folded)
    return n_folded


def _letters(n: int) -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(n))
