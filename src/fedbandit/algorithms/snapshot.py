"""Agents and servers as bytes: exact, versioned, and free of code. `fb.load` reads what `to_bytes` wrote."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from fedbandit.algorithms import peer_snapshot
from fedbandit.algorithms.base import BaseAgent
from fedbandit.algorithms.catalog import rule_from_dict
from fedbandit.algorithms.dcb import DCBAgent, DCBMeetings
from fedbandit.algorithms.messages import DRIFT_FIELDS, Upload, drift_fields, packed_bytes, stats_from_bytes
from fedbandit.algorithms.server import BaseServer, LedgerEntry
from fedbandit.core.group_sums import GroupSums
from fedbandit.core.statistics import SufficientStats
from fedbandit.core.structure import running_stats
from fedbandit.errors import FedbanditError, FormatError, UnsupportedFormat

FORMAT = "fedbandit"
VERSION = 1


def dump_agent(agent: BaseAgent) -> bytes:
    """All of an agent's state."""
    with agent._lock:
        return _dump("agent", agent.rule.to_dict(), agent_state(agent))


def agent_state(agent: BaseAgent, *, pending: bool = True) -> dict[str, Any]:
    """An agent's state as plain values, without its rule; `pending` leaves the decisions to somebody else's books."""
    return {key: plain_values(value) for key, value in agent_values(agent, pending=pending).items()}


def agent_values(agent: BaseAgent, *, pending: bool = True) -> dict[str, Any]:
    """The same with statistics as they are: nothing in it changes later, and it takes little time to gather."""
    with agent._lock:
        upload = agent.in_flight
        return {
            "agent_id": agent.agent_id,
            "incarnation": agent.incarnation,
            "features": None if agent.features is None else list(agent.features),
            "model_version": agent.model_version,
            "sequence": agent.sequence,
            "in_flight": None
            if upload is None
            else {
                "sequence": upload.sequence,
                "stats": upload.stats,
                "growth": upload.growth,
                **drift_fields(upload),
                **(_groups(upload.groups) if agent._has_control else {}),
                **({"width": upload.width} if upload.width else {}),
            },
            "n_rounds": agent.n_rounds,
            "n_switches": agent.n_switches,
            "max_pending": agent.max_pending,
            "pending": list(agent._pending) if pending else [],
            "next_decision": next(agent._decisions) + 1,  # skips a number rather than racing with `choose`
            "local": None if agent._local is None else agent.local,
            "own": agent._state(),
            **(_groups(agent.local_groups) if agent._has_control else {}),
        }


def _groups(groups: GroupSums) -> dict[str, bytes]:
    return {"groups": groups.to_bytes()} if groups else {}


def dump_server(server: BaseServer) -> bytes:
    """All of a server's state."""
    return _dump(
        "server",
        server.rule.to_dict(),
        {
            "stats": _pack(server.stats),
            "version": server.version,
            "ledger": {k: [e.incarnation, e.sequence, e.digest] for k, e in server.ledger.items()},
            "retired": {k: sorted(v) for k, v in server.retired.items()},
            "own": plain_values(server._state()),
            **_groups(server.groups),
        },
    )


def load(blob: bytes) -> Any:
    """The agent or server that `to_bytes` wrote."""
    try:
        data = msgspec.msgpack.decode(blob)
    except (msgspec.DecodeError, TypeError) as error:
        raise FormatError(f"expected bytes written by to_bytes(): {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise FormatError("expected bytes written by to_bytes(), got something else")
    if data.get("version") != VERSION:
        raise UnsupportedFormat(f"expected format version {VERSION}, got {data.get('version')!r}; update fedbandit")
    try:
        rule = rule_from_dict(data["rule"])
        return LOADERS[data["kind"]](rule, data["state"])
    except FedbanditError:
        raise
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError) as error:
        raise FormatError(f"the saved state is damaged: {type(error).__name__} {error}") from None


def _dump(kind: str, rule: dict[str, Any], state: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode({"format": FORMAT, "version": VERSION, "kind": kind, "rule": rule, "state": state})


def _load_agent(rule: Any, state: dict[str, Any]) -> BaseAgent:
    agent: BaseAgent = rule.agent(state["agent_id"], incarnation=state["incarnation"])
    restore_agent(agent, state)
    return agent


def restore_agent(agent: BaseAgent, state: dict[str, Any]) -> None:
    """Bring a new agent of the same rule, identity and incarnation to a state made by `agent_state`."""
    agent.features = None if state["features"] is None else tuple(state["features"])
    agent.model_version = state["model_version"]
    agent.sequence = state["sequence"]
    if (flight := state["in_flight"]) is not None:
        agent.in_flight = Upload(
            agent.agent_id,
            agent.incarnation,
            flight["sequence"],
            _unpack(flight["stats"]),
            flight["growth"],
            **{name: flight[name] for name in DRIFT_FIELDS if name in flight},
            groups=GroupSums.from_bytes(flight.get("groups", b"")),
            width=flight.get("width", 0),
        )
    agent.n_rounds = state["n_rounds"]
    agent.n_switches = state["n_switches"]
    agent.max_pending = state["max_pending"]
    agent._pending = dict.fromkeys(state["pending"])
    agent._decisions = itertools.count(state["next_decision"])
    agent._newest = state["next_decision"] - 1
    if state["local"] is not None:
        agent._local = running_stats(agent.dim, agent.blocks)
        agent._local.add(_unpack(state["local"]))
        agent._local.groups = GroupSums.from_bytes(state.get("groups", b""))
    agent._restore(_unpack_all(state["own"]))


def _load_server(rule: Any, state: dict[str, Any]) -> BaseServer:
    server: BaseServer = rule.server()
    server.stats = _unpack(state["stats"])
    server.version = state["version"]
    server.groups = GroupSums.from_bytes(state.get("groups", b""))
    server.ledger = {k: LedgerEntry(*entry) for k, entry in state["ledger"].items()}
    server.retired = {k: set(v) for k, v in state["retired"].items()}
    server._restore(_unpack_all(state["own"]))
    return server


def dump_peer(peer: DCBAgent | DCBMeetings, rule: Any) -> bytes:
    """All of the state of a peer-to-peer agent, or of what brings peers together."""
    if isinstance(peer, DCBMeetings):
        return _dump("meetings", rule.to_dict(), peer_snapshot.meetings_state(peer))
    return _dump("peer", rule.to_dict(), peer_snapshot.agent_state(peer))


LOADERS: Mapping[str, Callable[[Any, dict[str, Any]], Any]] = {
    "agent": _load_agent,
    "server": _load_server,
    "peer": peer_snapshot.load_agent,
    "meetings": peer_snapshot.load_meetings,
}


def _pack(stats: SufficientStats) -> dict[str, Any]:
    packed = {"dim": stats.dim, "stats": packed_bytes(stats)}
    return packed if stats.blocks == 1 else {**packed, "blocks": stats.blocks}


def _unpack(data: dict[str, Any]) -> SufficientStats:
    dim, blocks = int(data["dim"]), int(data.get("blocks", 1))
    if blocks < 1 or dim % blocks:
        raise FormatError(f"expected statistics of blocks of equal size, got {dim} features in {blocks} blocks")
    return stats_from_bytes(data["stats"], dim, blocks)


def plain_values(value: Any) -> Any:
    """A state with each of its statistics as canonical bytes."""
    if isinstance(value, SufficientStats):
        return _pack(value)
    if isinstance(value, dict):
        return {key: plain_values(item) for key, item in value.items()}
    return value


def _unpack_all(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) in ({"dim", "stats"}, {"dim", "stats", "blocks"}):
            return _unpack(value)
        return {key: _unpack_all(item) for key, item in value.items()}
    return value
