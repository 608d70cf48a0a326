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

from fedbandit import errors
from fedbandit.algorithms.async_linucb import AsyncLinUCB
from fedbandit.algorithms.decision import Decision
from fedbandit.algorithms.dislinucb import DisLinUCB
from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.messages import Download, Poll, Pull, Receipt, Upload
from fedbandit.algorithms.oful import OFUL
from fedbandit.algorithms.snapshot import load
from fedbandit.core import radius, theory
from fedbandit.core.decision_sets import Ball
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.simulation import participation, worlds
from fedbandit.simulation.runner import simulate
from fedbandit.simulation.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "OFUL",
    "AsyncLinUCB",
    "Ball",
    "Decision",
    "DisLinUCB",
    "Download",
    "FedLinUCB",
    "Poll",
    "Pull",
    "Receipt",
    "RidgeModel",
    "SufficientStats",
    "Trace",
    "Upload",
    "errors",
    "load",
    "participation",
    "radius",
    "simulate",
    "theory",
    "worlds",
]
