"""Every algorithm by name: read by the command line, the experiments, saved states and the contract suite."""

from __future__ import annotations

from typing import Any

from fedbandit.algorithms.base import Rule
from fedbandit.algorithms.rules import deliberate_radius
from fedbandit.core import drift as drifts
from fedbandit.core import radius as radii
from fedbandit.errors import InvalidParameter
from fedbandit.registry import Algorithm, Registry

ALGORITHMS: Registry[Algorithm] = Registry(
    "algorithm",
    {
        "fedlinucb": "fedbandit.algorithms.fedlinucb:FEDLINUCB",
        "fedsuplinucb": "fedbandit.algorithms.fedsuplinucb:FEDSUPLINUCB",
        "async-linucb": "fedbandit.algorithms.async_linucb:ASYNC_LINUCB",
        "dislinucb": "fedbandit.algorithms.dislinucb:DISLINUCB",
        "oful-shared": "fedbandit.algorithms.oful:OFUL_SHARED",
        "oful-independent": "fedbandit.algorithms.oful:OFUL_INDEPENDENT",
        "delb": "fedbandit.algorithms.delb:ENTRY",
        "fedpe": "fedbandit.algorithms.fedpe:ENTRY",
        "club": "fedbandit.algorithms.club:ENTRY",
        "dcb": "fedbandit.algorithms.dcb:DCB_ENTRY",
        "dccb": "fedbandit.algorithms.dccb:DCCB_ENTRY",
        "fedglbucb": "fedbandit.algorithms.fedglbucb:FEDGLBUCB",
        "feducb": "fedbandit.algorithms.feducb:FEDUCB",
    },
    group="fedbandit.algorithms",
)


def algorithm_of(class_name: object) -> Algorithm | None:
    """The first entry whose rule is of the class of this name."""
    return ALGORITHMS.first(lambda entry: entry.class_name == class_name)


def rule_from_dict(data: dict[str, Any]) -> Rule:
    """The rule of a dictionary made by `to_dict`."""
    numbers = dict(data)
    name = numbers.pop("algorithm", None)
    entry = algorithm_of(name)
    if entry is None:
        known = dict.fromkeys(entry.class_name for entry in ALGORITHMS.usable().values())
        raise InvalidParameter(
            f"expected an algorithm among {', '.join(known)}, got {name!r}; is the package that registers it installed?"
        )
    if "beta" in numbers:
        numbers["beta"] = radii.from_dict(numbers["beta"])
    if "drift" in numbers:
        numbers["drift"] = drifts.from_dict(numbers["drift"])
    if numbers.get("features") is not None:
        numbers["features"] = tuple(numbers["features"])
    try:
        with deliberate_radius():  # whoever made the rule was told
            rule: Rule = entry.rule(**numbers)
            return rule
    except TypeError as error:
        raise InvalidParameter(f"{name} cannot be made from {numbers}: {error}") from None
