"""A visitor's simulation: which world, how many agents, which alpha; checked, named and bounded."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from fedbandit.errors import InvalidParameter

MAX_AGENTS = 60
ROUNDS = (2_000, 5_000, 10_000, 20_000)
ALPHA_FACTOR = 10.0  # the step of alpha whose cost is shown
WORLDS: Mapping[str, str] = {
    "uniform": "uniform: 25 random actions, 15 features",
    "sphere": "sphere: 25 random directions, 15 features",
    "articles": "articles: 25 of 1,000 articles, 25 features",
    "adversarial": "adversarial: directions come up in phases, 10 features",
}
# The lines of the charts: key -> name on the page.
LINES: Mapping[str, str] = {
    "fedlinucb": "FedLinUCB",
    "fedlinucb-more": "FedLinUCB, larger α",
    "async-linucb": "Async-LinUCB",
    "dislinucb": "DisLinUCB",
    "oful-independent": "independent learners",
}


class Spec(msgspec.Struct, frozen=True):
    """What to simulate."""

    world: str = "uniform"
    n_agents: int = 15
    alpha: float = 1.0
    n_rounds: int = 5_000
    seed: int = 0

    @property
    def id(self) -> str:
        """Names the run: the same question has the same name, and so the same answer."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]


def spec_from(fields: Mapping[str, str]) -> Spec:
    """The spec of a form; `InvalidParameter` says what is wrong with it."""
    spec = Spec(
        world=fields.get("world", Spec().world),
        n_agents=_number(fields, "agents", int, Spec().n_agents),
        alpha=_number(fields, "alpha", float, Spec().alpha),
        n_rounds=_number(fields, "rounds", int, Spec().n_rounds),
        seed=_number(fields, "seed", int, 0),
    )
    if spec.world not in WORLDS:
        raise InvalidParameter(f"expected a world among {', '.join(WORLDS)}, got {spec.world[:40]!r}")
    if not 2 <= spec.n_agents <= MAX_AGENTS:
        raise InvalidParameter(f"expected 2 to {MAX_AGENTS} agents, got {spec.n_agents}")
    if not (math.isfinite(spec.alpha) and 0.001 <= spec.alpha <= 1000):
        raise InvalidParameter(f"expected alpha from 0.001 to 1000, got {spec.alpha:g}")
    if spec.n_rounds not in ROUNDS:
        raise InvalidParameter(f"expected rounds among {', '.join(map(str, ROUNDS))}, got {spec.n_rounds}")
    if not 0 <= spec.seed <= 999:
        raise InvalidParameter(f"expected a seed from 0 to 999, got {spec.seed}")
    return spec


def _number(fields: Mapping[str, str], name: str, kind: type[Any], default: Any) -> Any:
    text = fields.get(name, "").strip()
    if not text:
        return default
    try:
        return kind(text)
    except ValueError:
        raise InvalidParameter(f"expected {name} as a number, got {text[:20]!r}") from None
