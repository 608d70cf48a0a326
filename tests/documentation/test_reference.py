"""The reference of the Python API: every parameter has a meaning, and the errors are those of the source."""

from __future__ import annotations

import numpy as np
import pytest
from scripts.reference_api import described, meaning
from scripts.reference_errors import errors_of
from scripts.reference_parameters import MEANINGS

import fedbandit as fb
from fedbandit.algorithms.fedlinucb import FedLinUCBAgent


def test_every_parameter_and_field_has_a_meaning() -> None:
    named = list(described())
    assert len({(called, name) for called, name, _ in named}) > 200
    unknown = {(called, name) for called, name, thing in named if not meaning(called, name, thing)}
    assert unknown == set(), "add it to scripts/reference_parameters.py, or to the field's option"


def test_every_meaning_is_of_a_parameter_that_exists() -> None:
    names = {name for _, name, _ in described()}
    assert [key for key in MEANINGS if key.rpartition(".")[2] not in names] == []


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (lambda agent: agent.choose(np.ones((2, 5))), fb.errors.DimensionMismatch),
        (lambda agent: agent.choose(np.ones((0, 3))), fb.errors.EmptyDecisionSet),
        (lambda agent: agent.choose(np.full((2, 3), np.nan)), fb.errors.NotFinite),
        (lambda agent: agent.choose(np.ones((2, 3)), k=0), fb.errors.InvalidParameter),
    ],
)
def test_errors_that_a_call_raises_are_found_in_its_source(bad, error) -> None:
    with pytest.raises(error):
        bad(fb.FedLinUCB(dim=3, alpha=1.0, beta=0.5).agent("shop-7"))
    assert error.__name__ in errors_of(FedLinUCBAgent.choose, FedLinUCBAgent)


def test_an_error_that_is_caught_on_the_way_is_left_out() -> None:
    assert "AlreadyObserved" in errors_of(FedLinUCBAgent.observe, FedLinUCBAgent)
    assert "AlreadyObserved" not in errors_of(FedLinUCBAgent.choose, FedLinUCBAgent)
    assert errors_of(_catches) == []
    assert errors_of(fb.FedLinUCB) == ["InvalidParameter"]


def _catches() -> None:
    try:
        raise fb.errors.NotFinite("caught here")
    except fb.errors.InvalidInput:
        pass


_catches.__module__ = "fedbandit.example"  # the reader follows fedbandit's own functions only
