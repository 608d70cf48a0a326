"""Enrolment as stores keep it: secrets by which machines get an agent of their own, starts, retired agents.

The rules are functions here, and every store calls them inside a transaction.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

from fedbandit.errors import CopiedState, EnrolmentEnded, InvalidParameter, Retired, Unauthenticated

FOLDED = "(retired)"  # the row that has the sums of retired agents; no agent can have this name
MAX_FOLDED = 500  # agents in one transaction
KEPT_S = 30 * 86400.0  # after its end an enrolment is kept for this long
MAX_ENROLMENTS = 1000  # of one model
SESSION = re.compile(r"([1-9][0-9]{0,14})-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Enrolment:
    """A secret that enrols agents, without the secret."""

    name: str
    created: float
    name_prefix: str = ""
    max_uses: int | None = None
    expires: float | None = None
    n_used: int = 0
    revoked: bool = False

    def state(self, now: float) -> str:
        """Whether it can be used: "active", or why not."""
        if self.revoked:
            return "revoked"
        if self.expires is not None and now >= self.expires:
            return "expired"
        if self.max_uses is not None and self.n_used >= self.max_uses:
            return "used up"
        return "active"

    def require_active(self, now: float) -> None:
        """Raise `EnrolmentEnded` unless one more agent may enrol."""
        state = self.state(now)
        if state != "active":
            uses = f" ({self.n_used} of {self.max_uses} uses)" if state == "used up" else ""
            raise EnrolmentEnded(
                f"enrolment {self.name!r} is {state}{uses}; agents that it enrolled stay valid. "
                f"`fedbandit enrol create` makes another"
            )

    def to_dict(self, now: float) -> dict[str, Any]:
        """The response of the enrolment routes."""
        return {**asdict(self), "state": self.state(now)}


class Redemption(NamedTuple):
    """The request of one machine: hashes only, and the name for a new agent."""

    secret_hash: bytes
    nonce_hash: bytes  # the same at every retry of this machine
    token_hash: bytes
    agent: str


class Redeemed(NamedTuple):
    """The agent of a machine, and whether it is new."""

    agent: str
    enrolment: str
    is_new: bool


class EnrolledAgent(NamedTuple):
    """What the row of an agent says to a machine that enrols again."""

    name: str
    token_hash: bytes
    revoked: bool
    retired: bool

    def answer(self, wanted: Redemption, enrolment: str) -> Redeemed:
        """The same answer as before, if the agent may still be used with the same token."""
        if self.revoked:
            raise ended(self.name, self.retired)
        if not hmac.compare_digest(self.token_hash, wanted.token_hash):
            raise Unauthenticated(
                f"agent {self.name!r} was enrolled with this nonce, and got another token since; pass that one"
            )
        return Redeemed(self.name, enrolment, is_new=False)


def ended(agent: str, retired: bool) -> Unauthenticated:
    """Why the token of an agent is not accepted."""
    if retired:
        return Retired(f"agent {agent!r} was retired; its contribution stays")
    return Unauthenticated(f"the token of agent {agent!r} was revoked")


def require_secret(known: bytes, given: bytes) -> None:
    """Raise `Unauthenticated` unless the hashes agree, in a time that does not depend on where they differ."""
    if not hmac.compare_digest(known, given):
        raise Unauthenticated("this enrolment is not known here")


def name_hash(name: str) -> bytes:
    """What is kept of the name of a folded agent."""
    return hashlib.sha256(name.encode()).digest()[:16]


def next_session(known: str, previous: str, session: str, agent: str) -> str:
    """The session after a start; `CopiedState` if another process has started from the same state since.

    Each start names the one before it, so two processes that start from copies of one state name the same, and the
    second is found out. A server that was restored from a backup may be behind the agent, never beside it.

    >>> first, second = "1-" + "a" * 32, "1-" + "b" * 32
    >>> next_session("", "", first, "web-1") == first
    True
    >>> next_session(first, "", second, "web-1")
    Traceback (most recent call last):
    fedbandit.errors.CopiedState: agent 'web-1' has started elsewhere from a copy of this state directory
    """
    number = _number(session)
    if (previous and _number(previous) != number - 1) or (not previous and number != 1):
        raise InvalidParameter(f"expected a session that follows {previous!r}, got {session!r}")
    n_known = _number(known) if known else 0
    if known in (session, previous) or n_known < number - 1:
        return session
    raise CopiedState(f"agent {agent!r} has started elsewhere from a copy of this state directory")


def _number(session: str) -> int:
    match = SESSION.fullmatch(session)
    if match is None:
        raise InvalidParameter(f"expected a session as number-id, got {session[:80]!r}")
    return int(match[1])


class EnrolmentStore(Protocol):
    """The part of a store that machines which come and go need."""

    async def create_enrolment(self, model: str, enrolment: Enrolment, secret_hash: bytes, *, now: float) -> None:
        """Store an enrolment; `AlreadyExists` if the name is taken. Those that ended long ago are removed."""
        ...

    async def enrolments(self, model: str) -> list[Enrolment]:
        """All enrolments of a model, by name."""
        ...

    async def revoke_enrolment(self, model: str, name: str) -> None:
        """End an enrolment; its agents stay. `UnknownEnrolment` if there is none."""
        ...

    async def redeem(self, model: str, wanted: Redemption, *, now: float) -> Redeemed:
        """Enrol an agent, once for each nonce; the same nonce gets the same answer, whatever became of the enrolment.

        `EnrolmentEnded` if no further agent may enrol, `AlreadyExists` if the name is taken or was.
        """
        ...

    async def start(self, model: str, agent: str, *, previous: str, session: str) -> None:
        """Record the start of an agent's process; see `next_session`."""
        ...

    async def retire(self, model: str, agent: str, *, on: bool, now: float) -> None:
        """End an agent: its token is invalid, its contribution stays. `on=False` takes it back."""
        ...

    async def silent(self, model: str, *, before: float, limit: int) -> list[str]:
        """Agents at work that have uploaded nothing since then, nor were created since; the longest silent first."""
        ...

    async def fold_retired(self, model: str, *, before: float, token_hash: bytes, now: float) -> int:
        """Add the sums of agents that were retired before then to one row, and remove theirs; how many, at most 500.

        The model's state does not change. Agents in quarantine stay. `token_hash` is one that nobody has the token of.
        """
        ...
