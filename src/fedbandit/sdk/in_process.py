"""A server in the same process, reached through the bytes of the wire: for tests, and for fleets without a network."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any

from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.messages import Download, Pull, Upload
from fedbandit.core.personal import as_personal
from fedbandit.errors import FormatError, InvalidInput, NotReachable, ProtocolError, Refused
from fedbandit.sdk.transport import TransportReply
from fedbandit.wire.block_changes import ChangedBlocks, known_of
from fedbandit.wire.codec import SyncReply, blocks_of, decode_reply, decode_request, encode, reply_of, upload_of
from fedbandit.wire.policy_choice import PolicyChoice
from fedbandit.wire.settings import ModelDescription, ModelSettings


class LocalServer:
    """A FedLinUCB server for agents of this process; `transport` gives each of them its way to it.

    >>> from fedbandit.sdk import open_agent
    >>> hub = LocalServer(FedLinUCB(dim=2, alpha=0.0, beta=0.5))
    >>> with open_agent(hub.transport("shop-7"), model="local", sync="inline") as agent:
    ...     agent.observe([1.0, 0.0], 0.5)
    >>> hub.server.stats.n_obs
    1
    """

    def __init__(self, rule: FedLinUCB, *, name: str = "local", settings: str = "1") -> None:
        self.server = rule.server()
        self.name = name
        self.settings = settings
        self._lock = threading.Lock()

    def transport(self, agent_id: str) -> LocalTransport:
        """The way of this agent to the server."""
        return LocalTransport(self, agent_id)

    def receive(self, message: Upload | Pull) -> SyncReply:
        """One exchange, or a download."""
        with self._lock:
            download = self.server.receive(message)
        if not isinstance(download, Download):
            raise InvalidInput("a live server answers each upload with a download; expected refresh='upload'")
        return reply_of(download, settings=self.settings)


class LocalTransport:
    """Encodes and decodes what HTTP would carry, and carries it by a function call."""

    def __init__(self, hub: LocalServer, agent_id: str) -> None:
        self._hub = hub
        self._agent_id = agent_id
        self._closed = False

    @property
    def address(self) -> str:
        return "local"

    def describe(self, *, timeout_s: float) -> dict[str, Any]:
        self._check()
        rule = self._hub.server.rule
        model = (self._hub.name, rule.dim, rule.lam, rule.alpha, rule.radius, rule.features)
        settings = ModelSettings(*model, blocks=rule.blocks, arms=rule.arms)
        personal = None if rule.personal is None else as_personal(rule.personal)
        settings = replace(settings, personal=personal, policy=PolicyChoice.of(rule), control=rule.control)
        silence = None if math.isinf(rule.max_silence) else int(rule.max_silence)
        settings = replace(settings, drift=rule.drift, max_silence_rounds=silence)
        description = ModelDescription(settings, self._hub.settings, self._agent_id)
        return {**description.to_dict(), "version": self._hub.server.version}

    def sync(self, body: bytes, *, timeout_s: float) -> TransportReply:
        self._check()
        try:
            request = decode_request(body)
            if request.agent != self._agent_id:
                raise Refused(f"local refused: agent {request.agent!r} has no say here", reason="forbidden", status=403)
            reply = self._hub.receive(upload_of(request))
            changes = ChangedBlocks(reply.stats, reply.dim // blocks_of(reply), blocks_of(reply))
            return _answer(encode(changes.shortened(reply, known_of(request))))
        except ProtocolError as error:
            raise Refused(f"local refused: {error}", reason=error.code, status=409) from None
        except (InvalidInput, FormatError) as error:
            raise Refused(f"local refused: {error}", reason=error.code, status=422) from None

    def state(self, incarnation: str, tag: str | None, *, timeout_s: float) -> TransportReply | None:
        self._check()
        answer = _answer(encode(self._hub.receive(Pull(self._agent_id, incarnation))))
        return None if answer.tag == tag else answer

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        if self._closed:
            raise NotReachable("the local transport was closed")


def _answer(body: bytes) -> TransportReply:
    reply = decode_reply(body)
    return TransportReply(reply, f'"{reply.version}-{reply.acknowledged}-{reply.settings}"', len(body))
