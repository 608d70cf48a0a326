"""A decision as plain values."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit import Decision
from fedbandit.errors import AlreadyObserved, FormatError
from tests.builders import make_rule, rows

PLAIN = {"id": "abc-0", "index": 1, "x": [0.5, -1.0], "agent_id": "shop-7", "model_version": 3}


def test_a_decision_is_its_plain_values_and_back():
    decision = Decision.from_dict(PLAIN)
    assert decision.to_dict() == PLAIN
    assert (decision.id, decision.index, decision.agent_id, decision.model_version) == ("abc-0", 1, "shop-7", 3)
    np.testing.assert_array_equal(decision.x, [0.5, -1.0])
    assert Decision.from_dict({**PLAIN, "index": None}).index is None


def test_equal_decisions_are_equal_and_hash_alike():
    one, same = Decision.from_dict(PLAIN), Decision.from_dict(PLAIN)
    assert one == same and hash(one) == hash(same)
    for change in ({"id": "abc-1"}, {"index": 0}, {"x": [0.5, 1.0]}, {"agent_id": "b"}, {"model_version": 4}):
        assert one != Decision.from_dict({**PLAIN, **change})
    assert one != PLAIN


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {key: value for key, value in PLAIN.items() if key != "x"},
        {**PLAIN, "x": "words"},
        {**PLAIN, "index": "first"},
        {**PLAIN, "model_version": None},
    ],
)
def test_what_is_no_decision_is_a_named_error(broken):
    with pytest.raises(FormatError, match="expected a decision"):
        Decision.from_dict(broken)


def test_an_agent_that_was_loaded_gives_no_decision_the_name_of_an_earlier_one():
    agent = make_rule().agent("a")
    first = agent.choose(rows(3))
    agent.observe(first, 1.0)
    loaded = fb.load(agent.to_bytes())
    second = loaded.choose(rows(3))
    assert second.id != first.id
    with pytest.raises(AlreadyObserved):
        loaded.observe(first, 1.0)
    loaded.observe(second, 1.0)
