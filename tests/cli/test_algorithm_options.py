"""Options of algorithms on a command: shared, of different types, and taken from what the command knows of the run."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest

from fedbandit.algorithms.catalog import ALGORITHMS
from fedbandit.algorithms.rules import LinearRule
from fedbandit.cli.algorithm_options import make_rules, offer_options
from fedbandit.errors import InvalidParameter
from fedbandit.registry import Algorithm, RunSizes, option

SIZES = RunSizes(dim=3, n_agents=4, n_rounds=100, noise=0.3, delta=0.1)
NUMBERS = {"beta": 0.5, "lam": 1.0}


@dataclass(frozen=True, kw_only=True)
class Counting(LinearRule):
    pace: int = field(default=1, metadata=option("rounds between messages"))
    horizon: int = field(metadata=option("T", default=lambda run: run.n_rounds, default_help="the rounds of the run"))
    rounds: int = field(default=7, metadata=option("a name that the command uses itself"))


@dataclass(frozen=True, kw_only=True)
class Hurrying(LinearRule):
    pace: float = field(default=0.5, metadata=option("messages per round"))
    loud: bool | None = field(default=None, metadata=option("whether it says so"))


@dataclass(frozen=True, kw_only=True)
class Switching(LinearRule):
    pace: bool = field(default=False, metadata=option("whether it paces itself"))


ENTRIES = (
    Algorithm(name="counting", rule=Counting),
    Algorithm(name="hurrying", rule=Hurrying),
    Algorithm(name="switching", rule=Switching),
)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for entry in ENTRIES:
        ALGORITHMS.add(entry.name, entry)
    yield
    for entry in ENTRIES:
        ALGORITHMS.remove(entry.name)


def offered(*entries: Algorithm) -> dict[str, Any]:
    def command(rounds: int = 10, **options: Any) -> None:
        """A command with an option of its own."""

    offer_options(command, entries[:1])
    offer_options(command, entries)  # the second time replaces what the first one offered
    return dict(inspect.signature(command).parameters)


def help_of(parameter: inspect.Parameter) -> str:
    return str(get_args(parameter.annotation)[1].help)


def test_an_option_is_offered_once_with_the_words_of_each_algorithm() -> None:
    found = offered(*ENTRIES[:2])
    assert list(found) == ["rounds", "pace", "horizon", "loud"]
    assert help_of(found["pace"]) == (
        "counting: rounds between messages. Default: 1. hurrying: messages per round. Default: 0.5."
    )
    assert help_of(found["horizon"]) == "counting: T. Default: the rounds of the run."
    assert found["rounds"].default == 10, "the command's own option stays"


def test_algorithms_that_disagree_on_a_type_each_read_the_text() -> None:
    assert get_args(get_args(offered(*ENTRIES[:2])["pace"].annotation)[0])[0] is str
    assert get_args(get_args(offered(ENTRIES[1])["pace"].annotation)[0])[0] is float
    rules: dict[str, Any] = make_rules([entry.name for entry in ENTRIES[:2]], SIZES, NUMBERS, {"pace": "2"})
    assert repr(rules["counting"].pace) == "2" and repr(rules["hurrying"].pace) == "2.0"
    assert make_rules(["switching"], SIZES, NUMBERS, {"pace": "True"})["switching"].pace is True  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("counting", "expected --pace of counting as a whole number, got 'fast'"),
        ("hurrying", "expected --pace of hurrying as a number, got 'fast'"),
        ("switching", "expected --pace of switching as true or false, got 'fast'"),
    ],
)
def test_text_that_is_no_value_of_the_type_is_a_named_error(name: str, says: str) -> None:
    with pytest.raises(InvalidParameter, match=says):
        make_rules([name], SIZES, NUMBERS, {"pace": "fast"})


def test_what_is_not_given_comes_from_the_run_or_the_rule() -> None:
    rule: Any = make_rules(["counting"], SIZES, NUMBERS, {"pace": None, "horizon": None})["counting"]
    assert (rule.dim, rule.pace, rule.horizon, rule.rounds) == (3, 1, 100, 7)
