"""Live agents: decisions made locally in an application, learning shared with a server in the background."""

from fedbandit.sdk.agent import LiveAgent
from fedbandit.sdk.connection import aconnect, connect, open_agent
from fedbandit.sdk.in_process import LocalServer, LocalTransport
from fedbandit.sdk.pending import Pending
from fedbandit.sdk.state_slots import Slots, slots
from fedbandit.sdk.status import Status
from fedbandit.sdk.transport import HttpTransport, Transport

__all__ = [
    "HttpTransport",
    "LiveAgent",
    "LocalServer",
    "LocalTransport",
    "Pending",
    "Slots",
    "Status",
    "Transport",
    "aconnect",
    "connect",
    "open_agent",
    "slots",
]
