"""The systems that the studies compare, with the settings their papers give them.

Studies may give every system the same radius, so that they differ in nothing else; for eager systems that radius has no
guarantee, and `deliberate_radius` suppresses the warning about it.
"""

from __future__ import annotations

import math

from fedbandit.algorithms.async_linucb import AsyncLinUCB
from fedbandit.algorithms.club import CLUB
from fedbandit.algorithms.dislinucb import DisLinUCB
from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.oful import OFUL
from fedbandit.algorithms.rules import deliberate_radius
from fedbandit.core.radius import AnyRadius

Beta = float | AnyRadius


def fed(
    *,
    dim: int,
    beta: Beta,
    alpha: float,
    lam: float = 1.0,
    join: bool = False,
    options: bool = False,
    spectral: bool = False,
    personal: str | float | None = None,
    blocks: int = 1,
) -> FedLinUCB:
    """FedLinUCB; `join` downloads before the first decision, as live agents do; `options` also fetches on arrival."""
    return FedLinUCB(
        dim=dim,
        beta=beta,
        lam=lam,
        alpha=alpha,
        join=join or options,
        refresh="arrival" if options else "upload",
        trigger="spectral" if spectral else "determinant",
        personal=personal,
        blocks=blocks,
    )


def clustered(*, dim: int, beta: float, lam: float = 1.0, edge_width: float = 1.0) -> CLUB:
    """CLUB: a central learner that finds clusters of agents, with two messages per round."""
    return CLUB(dim=dim, beta=beta, lam=lam, edge_width=edge_width)


def asynchronous(*, dim: int, beta: Beta, gamma: float, lam: float = 1.0, enrolment: str = "start") -> AsyncLinUCB:
    """Async-LinUCB with one ratio for uploads and pushes."""
    with deliberate_radius():
        return AsyncLinUCB(dim=dim, beta=beta, lam=lam, gamma_up=gamma, gamma_down=gamma, enrolment=enrolment)


def synchronous(*, dim: int, beta: Beta, threshold: float, lam: float = 1.0, enrolment: str = "start") -> DisLinUCB:
    """DisLinUCB with threshold D."""
    with deliberate_radius():
        return DisLinUCB(dim=dim, beta=beta, lam=lam, threshold=threshold, enrolment=enrolment)


def shared(*, dim: int, beta: Beta, lam: float = 1.0, blocks: int = 1) -> OFUL:
    """One model for all agents, with every observation broadcast."""
    return OFUL(dim=dim, beta=beta, lam=lam, mode="shared", blocks=blocks)


def alone(*, dim: int, beta: Beta, lam: float = 1.0, blocks: int = 1) -> OFUL:
    """M independent learners."""
    return OFUL(dim=dim, beta=beta, lam=lam, mode="independent", blocks=blocks)


def wang_threshold(*, dim: int, n_agents: int, n_rounds: int) -> float:
    """D = T_m log(M T_m)/(dM) with T_m = T/M rounds per agent: the setting of DisLinUCB's own theorem."""
    own = n_rounds / n_agents
    return own * math.log(max(n_rounds, 2)) / (dim * n_agents)


def match_regret(*, dim: int, n_agents: int, n_rounds: int) -> float:
    """D = T/(M d log T), which others use to match regret."""
    return n_rounds / (n_agents * dim * math.log(n_rounds))


def match_communication(*, dim: int, n_rounds: int) -> float:
    """D = T/(d log T), which others use to match communication."""
    return n_rounds / (dim * math.log(n_rounds))
