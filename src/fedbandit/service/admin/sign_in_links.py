"""Links that sign a browser in to the dashboard once, as a viewer, without a token that anybody has to copy.

The secret stands behind the `#` of the address, which browsers send to no server: it is in no access log and in no
`Referer`. The page behind the link posts it. The store keeps its hash, in a token that may do nothing else; deleting
that token is what uses the link up, so that of two who post it at the same time, on any replica, one succeeds.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from urllib.parse import quote

from fedbandit.errors import InvalidParameter, Unauthenticated
from fedbandit.service.admin.auth import ends_at, hash_token, new_token, temporary_name
from fedbandit.service.container import Container

SECRET = re.compile(r"fbl_[A-Za-z0-9_-]{43}")
TTL_S = 300.0
MAX_TTL_S = 900.0
SESSION_S = 12 * 3600.0
PATH = "/sign-in"


@dataclass(frozen=True, slots=True)
class SignInLink:
    """The address of a link on its server, and when it ends."""

    path: str
    expires: float


async def create(container: Container, *, ttl_s: float = TTL_S, target: str = "/") -> SignInLink:
    """A new link to a view of the dashboard; its secret is not stored."""
    if not 0.0 < ttl_s <= MAX_TTL_S:
        raise InvalidParameter(f"expected a time to live above 0 and of at most {MAX_TTL_S:g} s, got {ttl_s:g} s")
    if not target.startswith("/") or target.startswith("//") or not target.isprintable() or len(target) > 1_000:
        raise InvalidParameter("expected the target as a path of the dashboard, such as /models/news")
    await drop_ended(container)
    secret = "fbl_" + secrets.token_urlsafe(32)
    name = temporary_name("link", container.clock() + ttl_s)
    await container.store.put_token(name, "link", hash_token(secret), now=container.clock())
    container.log.info("sign_in_link_created", name=name)
    query = "" if target == "/" else f"?next={quote(target, safe='/')}"
    return SignInLink(f"{PATH}{query}#{secret}", ends_at(name) or 0.0)


async def redeem(container: Container, secret: str) -> str:
    """The token of a viewer's session for the secret of a link; `Unauthenticated` if it was used, or has ended."""
    found = await container.store.find_token(hash_token(secret)) if SECRET.fullmatch(secret) else None
    is_link = found is not None and found.role == "link"
    if found is None or not is_link or not await container.store.drop_token(found.name):
        raise Unauthenticated("this link is not known here: it works once, and somebody may have used it")
    if container.clock() >= (ends_at(found.name) or 0.0):
        raise Unauthenticated("this link has expired")
    token, name = new_token(), temporary_name("session", container.clock() + SESSION_S)
    await container.store.put_token(name, "viewer", hash_token(token), now=container.clock())
    container.log.info("signed_in_by_link", name=name, link=found.name)
    return token


async def drop_ended(container: Container) -> None:
    """Delete links and sessions that have ended."""
    for owner in await container.store.tokens():
        end = ends_at(owner.name)
        if end is not None and container.clock() >= end:
            await container.store.drop_token(owner.name)
