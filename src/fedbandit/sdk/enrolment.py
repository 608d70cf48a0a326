"""The identity of an enrolled agent: a file in its state directory, durable before each request that depends on it.

    nonce, secret            written first; a machine that is killed at any step sends the same again
    agent, token             the server's answer; the secret is removed
    session, next            the last start that the server knows, and the one being announced

Each start names the one before it. So the server finds out when two machines start from copies of one directory, an
image for example, before either of them has decided anything.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from fedbandit.durable_files import publish, sync_if_possible, unlock
from fedbandit.errors import (
    AlreadyExists,
    CopiedState,
    FormatError,
    InvalidParameter,
    JournalFailed,
    NotReachable,
    Refused,
    Retired,
    StateMismatch,
    Unauthenticated,
)
from fedbandit.http_client import HttpClient, api_path
from fedbandit.sdk.journal.journal import SavedState
from fedbandit.sdk.journal.layout import FILES, IDENTITY, lock_directory
from fedbandit.wire.enrolment import EnrolmentString, read_enrolment

logger = logging.getLogger("fedbandit.sdk")
VERSION = 1
ENDED = frozenset({401, 403})
ADVICE = {
    CopiedState.code: (
        "each machine needs a state directory of its own: leave it out of images and copies. To begin anew with an "
        "agent of its own, connect with reenrol=True and an enrolment"
    ),
    Retired.code: (
        "`fedbandit agents unretire` brings it back; to begin anew with another agent, connect with reenrol=True and "
        "an enrolment"
    ),
}
FOLDED_ADVICE = "to begin anew with another agent, connect with reenrol=True and an enrolment"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the agent in a state directory is."""

    nonce: str
    secret: str = ""  # until it is exchanged
    agent: str = ""
    token: str = ""
    fingerprint: str = ""  # of the server's certificate, hexadecimal
    session: str = ""
    next: str = ""  # session that the server may know already
    set_aside: str = ""  # the rest of the directory is being moved there
    format: int = VERSION


def read_identity(directory: Path) -> Identity | None:
    """The identity in a state directory, if an agent enrolled there."""
    try:
        content = (directory / IDENTITY).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalFailed(f"the identity in {directory} cannot be read: {error}") from None
    try:
        found = Identity(**msgspec.json.decode(content, type=dict[str, Any]))
        if not all(isinstance(value, str) for name, value in asdict(found).items() if name != "format"):
            raise TypeError("expected text")
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError) as error:
        raise FormatError(f"the state is damaged: the identity in {directory} cannot be read: {error}") from None
    if found.format != VERSION:
        raise FormatError(f"the identity in {directory} has format {found.format}; this fedbandit reads {VERSION}")
    return found


def write_identity(directory: Path, identity: Identity) -> Identity:
    """Replace the identity; it is on disk afterwards, and only its owner can read it."""
    draft = directory / f"{IDENTITY}.new"
    try:
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(json.dumps(asdict(identity)).encode())
        publish(draft, directory / IDENTITY)
    except OSError as error:
        raise JournalFailed(f"the identity in {directory} cannot be written: {error}") from None
    return identity


class Enroller:
    """Exchanges an enrolment for an agent, once, and announces each start of its process."""

    def __init__(
        self, url: str, model: str, directory: Path, *, timeout_s: float, files: dict[str, str | None]
    ) -> None:
        self._url = url
        self._model = model
        self._directory = directory
        self._timeout_s = timeout_s
        self._files = files

    def identify(self, enrol: str | None, agent: str | None, saved: SavedState | None) -> Identity:
        """The identity of the directory, enrolled now if need be; `saved` is what its journal has."""
        given = None if enrol is None else read_enrolment(enrol)
        found = read_identity(self._directory)
        if found is None:
            if given is None or saved is not None:
                raise StateMismatch(
                    f"the state directory belongs to agent {'' if saved is None else saved.agent_id!r}, who did not "
                    f"enrol there; connect with its token, or enrol in another directory"
                )
            found = self._begin(given)
        if given is not None and given.fingerprint is not None and found.fingerprint != given.fingerprint.hex():
            found = write_identity(self._directory, replace(found, fingerprint=given.fingerprint.hex()))
        if not found.token:  # one that had an agent asks for no other: its journal belongs to that one
            found = self._exchange(found, given, agent or found.agent or None)
        if agent is not None and agent != found.agent:
            raise InvalidParameter(f"expected agent={found.agent!r}, who enrolled in this state_dir, got {agent!r}")
        try:
            return self._start(found)
        except Refused as error:
            if given is None or error.reason != Unauthenticated.code:
                raise
            # A server that was restored from a backup may not know this agent; one that was revoked stays refused.
            unknown = replace(found, secret=given.secret, token="")
            return self._start(self._exchange(write_identity(self._directory, unknown), given, found.agent))

    def _begin(self, given: EnrolmentString) -> Identity:
        fingerprint = "" if given.fingerprint is None else given.fingerprint.hex()
        new = Identity(secrets.token_urlsafe(32), secret=given.secret, fingerprint=fingerprint)
        return write_identity(self._directory, new)

    def _exchange(self, found: Identity, given: EnrolmentString | None, agent: str | None) -> Identity:
        try:
            answer = self._ask(found, agent)
        except Refused as error:
            if found.agent and error.reason == AlreadyExists.code:
                raise Refused(f"{error}; {FOLDED_ADVICE}", reason=Retired.code, status=error.status) from None
            # The nonce of an agent that exists is answered in any case: this one made none, so another may be tried.
            if given is None or given.secret == found.secret or error.status not in ENDED or is_retired(error):
                raise
            found = self._begin(given)
            answer = self._ask(found, agent)
        name, token = answer.get("agent"), answer.get("token")
        if not (isinstance(name, str) and name and isinstance(token, str) and token):
            raise NotReachable(f"{self._url} answered with something else than an agent and its token")
        return write_identity(self._directory, replace(found, secret="", agent=name, token=token))

    def _ask(self, found: Identity, agent: str | None) -> dict[str, Any]:
        body = {"nonce": found.nonce, **({} if agent is None else {"agent": agent})}
        return self._post("enrol", found, found.secret, body)

    def _start(self, found: Identity) -> Identity:
        """Announce this start; where the server cannot be reached, the next start does it."""
        try:
            if found.next:  # of a process that ended before it had the answer; a copy may have it, too
                found = self._announce(found)
            number = int(found.session.partition("-")[0] or 0) + 1
            found = write_identity(self._directory, replace(found, next=f"{number}-{uuid.uuid4().hex}"))
            return self._announce(found)
        except NotReachable:
            return found

    def _announce(self, found: Identity) -> Identity:
        try:
            self._post("start", found, found.token, {"session": found.next, "previous": found.session})
        except Refused as error:
            if error.reason not in ADVICE:
                raise
            raise Refused(f"{error}; {ADVICE[error.reason]}", reason=error.reason, status=error.status) from None
        return write_identity(self._directory, replace(found, session=found.next, next=""))

    def _post(self, route: str, found: Identity, token: str, body: dict[str, str]) -> dict[str, Any]:
        ca, cert, key = (self._files[name] for name in ("ca", "cert", "key"))
        client = HttpClient(self._url, token=token, ca=ca, cert=cert, key=key, fingerprint=found.fingerprint or None)
        try:
            reply = client.call(
                "POST",
                api_path("models", self._model, route),
                timeout_s=self._timeout_s,
                body=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
            )
        finally:
            client.close()
        answer = reply.json_object()
        if answer is None:
            raise NotReachable(f"{client.address} answered with something else than JSON")
        return answer


def is_retired(error: Refused) -> bool:
    """Whether the agent of the identity was retired."""
    return error.reason == Retired.code


def may_begin_anew(error: Refused) -> bool:
    """Whether another identity would help: the state is a copy, or its agent was retired."""
    return error.reason in ADVICE


# -- beginning anew


def set_aside(directory: Path, why: Refused) -> None:
    """Move all that an agent left in the directory into one beside it, so that another may begin; nothing is removed.

    What is unsent belongs to the agent that the copy was made of, or to one that was retired: nobody sends it.
    """
    handle = lock_directory(directory)
    try:
        number = 1
        while (directory / f"set-aside-{number}").exists():
            number += 1
        aside = directory / f"set-aside-{number}"
        try:
            aside.mkdir(mode=0o700)
            found = read_identity(directory)
            if found is not None:
                write_identity(aside, found)
        except OSError as error:
            raise JournalFailed(f"the state in {directory} cannot be set aside: {error}") from None
        write_identity(directory, Identity("", set_aside=aside.name))  # decided: whoever comes next completes it
        _move(directory, aside)
        logger.warning("%s; what was here is kept in %s, and another agent begins", why, aside)
    finally:
        unlock(handle)


def complete_set_aside(directory: Path) -> None:
    """Complete a move that a kill interrupted; to be called before the journal is opened."""
    found = read_identity(directory) if directory.exists() else None
    if found is None or not found.set_aside:
        return
    handle = lock_directory(directory)
    try:
        _move(directory, directory / Path(found.set_aside).name)
    finally:
        unlock(handle)


def _move(directory: Path, aside: Path) -> None:
    try:
        for name in sorted(FILES - {"lock", IDENTITY, f"{IDENTITY}.new"}):
            if (directory / name).exists():
                (directory / name).rename(aside / name)
        sync_if_possible(aside)
        (directory / IDENTITY).unlink(missing_ok=True)
        sync_if_possible(directory)
    except OSError as error:
        raise JournalFailed(f"the state in {directory} cannot be set aside: {error}") from None
