"""The contracts of agents and servers, for any rule: `check_algorithm` runs those that apply to it.

A contract is a function of a `Subject` that raises `AssertionError` if the rule breaks it. It names the traits that a
rule needs for the contract to apply (`fedbandit.registry.TRAITS`). Contracts that need "scores" or "ucb" are those of
UCB agents, the others are those of any agent. Nothing here needs a test framework.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from fedbandit.algorithms.base import Rule
from fedbandit.algorithms.catalog import ALGORITHMS
from fedbandit.errors import InvalidParameter
from fedbandit.registry import EVERY_TRAIT, Algorithm, traits_with
from fedbandit.testing import (  # noqa: F401 - they add their contracts
    deciding,
    exchange,
    policies,
    reading,
    saving,
    steps,
    ucb,
)
from fedbandit.testing.contracts import CONTRACTS, Contract, Subject

UCB_TRAITS = frozenset({"scores", "ucb"})


def check_algorithm(rule: Rule, *, traits: Iterable[str] | None = None) -> tuple[str, ...]:
    """Check a rule against every contract that applies to it; returns their names.

    `traits` are those of the rule's registered entry unless given, and all of them for a rule without an entry. An
    `AssertionError` names every contract that is broken, and how.

    >>> import fedbandit as fb
    >>> len(fb.testing.check_algorithm(fb.FedLinUCB(dim=3, beta=0.5, alpha=1.0))) > 30
    True
    """
    if not __debug__:
        raise InvalidParameter("contracts are assertions, which Python leaves out under -O; run it without")
    entry = entry_of(rule)
    if traits is None:
        traits = traits_with(entry.traits if entry is not None else EVERY_TRAIT, rule)
    subject = Subject(rule, frozenset(traits))
    applying = [each for each in CONTRACTS.values() if each.applies_to(subject.traits)]
    broken = {each.name: problem for each in applying if (problem := _problem_of(each, subject)) is not None}
    if broken:
        listed = "".join(f"\n- {name.replace('_', ' ')}: {problem}" for name, problem in broken.items())
        raise AssertionError(f"{type(rule).__name__} breaks {len(broken)} of {len(applying)} contracts:{listed}")
    return tuple(each.name for each in applying)


def entry_of(rule: Rule) -> Algorithm | None:
    """The registered entry that makes this rule."""
    return ALGORITHMS.first(
        lambda entry: (
            entry.rule is type(rule) and all(getattr(rule, name) == value for name, value in entry.fixed.items())
        )
    )


def _problem_of(each: Contract, subject: Subject) -> str | None:
    try:
        each.check(subject)
    except Exception as error:  # noqa: BLE001 - whatever a rule raises is reported under the contract's name
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error}" if str(error) else f"{where.line}"
    return None


__all__ = ["CONTRACTS", "UCB_TRAITS", "Contract", "Subject", "check_algorithm", "entry_of"]
