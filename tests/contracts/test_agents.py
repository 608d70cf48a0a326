"""The contracts of agents over every registered algorithm, with its example numbers and variants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.catalog import ALGORITHMS
from fedbandit.algorithms.fedlinucb import FedLinUCBAgent
from fedbandit.testing import CONTRACTS, UCB_TRAITS, Subject, check_algorithm, entry_of
from tests.builders import EXAMPLES, RULE_NAMES, make_rule

ANY_AGENT = [each for each in CONTRACTS.values() if not each.needs & UCB_TRAITS]
UCB_AGENT = [each for each in CONTRACTS.values() if each.needs & UCB_TRAITS]


def pairs(contracts: list[Any]) -> list[Any]:
    return [
        pytest.param(name, each, id=f"{each.name}-{name}")
        for each in contracts
        for name, (entry, _) in EXAMPLES.items()
        if each.applies_to(entry.traits_of(make_rule(name)))
    ]


@pytest.mark.parametrize(("name", "contract"), pairs(ANY_AGENT))
def test_any_agent(name, contract):
    contract.check(Subject(make_rule(name), EXAMPLES[name][0].traits_of(make_rule(name))))


@pytest.mark.parametrize(("name", "contract"), pairs(UCB_AGENT))
def test_ucb_agent(name, contract):
    contract.check(Subject(make_rule(name), EXAMPLES[name][0].traits_of(make_rule(name))))


def test_the_suite_runs_every_registered_algorithm():
    assert set(ALGORITHMS.own_names) <= set(RULE_NAMES)
    assert {type(make_rule(name)) for name in RULE_NAMES} == {entry.rule for entry in ALGORITHMS.values()}
    assert all(entry_of(make_rule(name)) is entry for name, (entry, _) in EXAMPLES.items())


def test_checking_an_algorithm_runs_the_contracts_of_its_traits():
    alone, shared = (check_algorithm(make_rule(name)) for name in ("oful-independent", "oful-shared"))
    assert set(alone) < set(shared) == {name for name, each in CONTRACTS.items() if "steps" not in each.needs}
    assert "an_upload_received_twice_counts_once" not in alone


def test_any_number_of_features_will_do():
    check_algorithm(fb.FedLinUCB(dim=7, alpha=0.5, beta=1.0, lam=2.0))


class Forgetful(FedLinUCBAgent):
    """Loses what it gathers while an upload is in flight, and reads the second row for the first."""

    def _absorb(self, x, reward):
        return None if self.in_flight is not None else super()._absorb(x, reward)

    def _best(self, X):
        index, version, score = super()._best(X)
        return (index + 1) % len(X), version, score


@dataclass(frozen=True, kw_only=True)
class ForgetfulRule(fb.FedLinUCB):
    def agent(self, agent_id, *, incarnation=None):
        return Forgetful(self, super().agent(agent_id).agent_id, incarnation)


def test_every_broken_contract_is_named_with_its_problem():
    with pytest.raises(AssertionError) as raised:
        check_algorithm(ForgetfulRule(dim=3, alpha=1.0, beta=0.5))
    said = str(raised.value)
    assert said.startswith("ForgetfulRule breaks ")
    for name in (
        "the choice has the largest upper bound: assert agent.choose(X).index == int(scores.upper.argmax())",
        "what was seen while an exchange was under way starts the next upload",
        "a rule survives the trip through plain values: InvalidParameter: expected an algorithm among",
    ):
        assert name in said
    assert "a bad observation is a named error" not in said


def test_a_rule_may_say_which_contracts_apply():
    rule = ForgetfulRule(dim=3, alpha=1.0, beta=0.5)
    with pytest.raises(AssertionError) as raised:
        check_algorithm(rule, traits={"any-rows"})
    assert "upper bound" not in str(raised.value) and "of 3 contracts" in str(raised.value)
    assert np.isfinite(rule.agent("a").choose(np.eye(3)).x).all()
