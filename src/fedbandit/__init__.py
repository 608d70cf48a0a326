"""Asynchronous federated contextual bandits: decisions made locally, learning shared across a fleet.

>>> import fedbandit as fb
>>> rule = fb.FedLinUCB(dim=2, alpha=1.0, beta=0.5, lam=1.0)
>>> server, agent = rule.server(), rule.agent("shop-7")
>>> decision = agent.choose([[1.0, 0.0], [0.0, 2.0]])
>>> decision.index
1
>>> upload = agent.observe(decision, 0.7)
>>> if upload:
...     agent.adopt(server.receive(upload))
>>> agent.model_version
1
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedbandit import errors
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.messages import Download, Poll, Pull, Receipt, Upload
from fedbandit.core import drift, personal, radius, theory
from fedbandit.core.decision_sets import Ball
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats

if TYPE_CHECKING:
    from fedbandit import testing
    from fedbandit.algorithms.async_linucb import AsyncLinUCB
    from fedbandit.algorithms.club import CLUB
    from fedbandit.algorithms.dcb import DCB
    from fedbandit.algorithms.dccb import DCCB
    from fedbandit.algorithms.delb import DELB
    from fedbandit.algorithms.dislinucb import DisLinUCB
    from fedbandit.algorithms.fedglbucb import FedGLBUCB
    from fedbandit.algorithms.fedpe import FedPE
    from fedbandit.algorithms.fedsuplinucb import FedSupLinUCB
    from fedbandit.algorithms.feducb import FedUCB
    from fedbandit.algorithms.oful import OFUL
    from fedbandit.algorithms.snapshot import load
    from fedbandit.core.features import HashingFeatures, arm_features, block_features
    from fedbandit.sdk import LiveAgent, aconnect, connect, slots
    from fedbandit.simulation import participation, worlds
    from fedbandit.simulation.runner import simulate
    from fedbandit.simulation.trace import Trace

__version__ = "0.1.0"

# An agent on a device needs none of these: they are imported when they are first asked for.
_LAZY = {
    "AsyncLinUCB": "fedbandit.algorithms.async_linucb",
    "CLUB": "fedbandit.algorithms.club",
    "DCB": "fedbandit.algorithms.dcb",
    "DCCB": "fedbandit.algorithms.dccb",
    "DELB": "fedbandit.algorithms.delb",
    "DisLinUCB": "fedbandit.algorithms.dislinucb",
    "FedPE": "fedbandit.algorithms.fedpe",
    "FedGLBUCB": "fedbandit.algorithms.fedglbucb",
    "FedSupLinUCB": "fedbandit.algorithms.fedsuplinucb",
    "FedUCB": "fedbandit.algorithms.feducb",
    "HashingFeatures": "fedbandit.core.features",
    "LiveAgent": "fedbandit.sdk",
    "OFUL": "fedbandit.algorithms.oful",
    "Trace": "fedbandit.simulation.trace",
    "aconnect": "fedbandit.sdk",
    "arm_features": "fedbandit.core.features",
    "block_features": "fedbandit.core.features",
    "connect": "fedbandit.sdk",
    "load": "fedbandit.algorithms.snapshot",
    "participation": "fedbandit.simulation.participation",
    "simulate": "fedbandit.simulation.runner",
    "slots": "fedbandit.sdk",
    "testing": "fedbandit.testing",
    "worlds": "fedbandit.simulation.worlds",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        return _rule_class(name)
    module = import_module(_LAZY[name])
    value = module if _LAZY[name].endswith(f".{name}") else getattr(module, name)
    globals()[name] = value
    return value


def _rule_class(name: str) -> Any:
    """The class of this name among our registered algorithms: a new one needs no line here."""
    from fedbandit.algorithms.catalog import ALGORITHMS

    if name[:1].isupper():
        for entry in ALGORITHMS.own().values():
            if entry.class_name == name:
                return entry.rule
    raise AttributeError(f"module 'fedbandit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "CLUB",
    "DCB",
    "DCCB",
    "DELB",
    "OFUL",
    "AsyncLinUCB",
    "Ball",
    "Decision",
    "DisLinUCB",
    "Download",
    "FedGLBUCB",
    "FedLinUCB",
    "FedPE",
    "FedSupLinUCB",
    "FedUCB",
    "HashingFeatures",
    "LiveAgent",
    "Poll",
    "Pull",
    "Receipt",
    "RidgeModel",
    "SufficientStats",
    "Trace",
    "Upload",
    "aconnect",
    "arm_features",
    "block_features",
    "connect",
    "drift",
    "errors",
    "load",
    "participation",
    "personal",
    "radius",
    "simulate",
    "slots",
    "testing",
    "theory",
    "worlds",
]
