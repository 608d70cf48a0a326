"""Name -> constructor: read by the command line, the experiments and the contract tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedbandit.algorithms.async_linucb import AsyncLinUCB
from fedbandit.algorithms.dislinucb import DisLinUCB
from fedbandit.algorithms.fedlinucb import FedLinUCB
from fedbandit.algorithms.oful import OFUL
from fedbandit.algorithms.rules import deliberate_radius
from fedbandit.core import radius as radii
from fedbandit.errors import InvalidParameter

AnyRule = FedLinUCB | OFUL | DisLinUCB | AsyncLinUCB
RULES: dict[str, type[AnyRule]] = {rule.__name__: rule for rule in (FedLinUCB, OFUL, DisLinUCB, AsyncLinUCB)}


def _independent(**numbers: Any) -> OFUL:
    return OFUL(mode="independent", **numbers)


def _shared(**numbers: Any) -> OFUL:
    return OFUL(mode="shared", **numbers)


CATALOG: dict[str, Callable[..., AnyRule]] = {
    "fedlinucb": FedLinUCB,
    "async-linucb": AsyncLinUCB,
    "dislinucb": DisLinUCB,
    "oful-shared": _shared,
    "oful-independent": _independent,
}


def rule_from_dict(data: dict[str, Any]) -> AnyRule:
    """The rule of a dictionary made by `to_dict`."""
    numbers = dict(data)
    name = numbers.pop("algorithm", None)
    if name not in RULES:
        raise InvalidParameter(f"expected an algorithm among {', '.join(RULES)}, got {name!r}")
    numbers["beta"] = radii.from_dict(numbers["beta"])
    if numbers.get("features") is not None:
        numbers["features"] = tuple(numbers["features"])
    try:
        with deliberate_radius():  # whoever made the rule was told
            return RULES[name](**numbers)
    except TypeError as error:
        raise InvalidParameter(f"{name} cannot be made from {numbers}: {error}") from None
