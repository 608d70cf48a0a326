"""Registries: our entries, those of installed packages, and entries that cannot be loaded."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import fedbandit as fb
from fedbandit import errors
from fedbandit.algorithms.catalog import ALGORITHMS, algorithm_of
from fedbandit.registry import EVERY_TRAIT, TRAITS, Algorithm, Registry
from fedbandit.simulation.participation import PARTICIPATION
from fedbandit.simulation.worlds import WORLDS
from tests.installed import install

SOURCE = """
class Windy:
    name = "windy"

class Misnamed:
    name = "another"
"""
POINTS = {
    "windy": "windy_worlds:Windy",
    "uniform": "windy_worlds:Windy",
    "misnamed": "windy_worlds:Misnamed",
    "gone": "windy_worlds:Gone",
    "missing": "no_such_module:World",
}


@pytest.fixture
def windy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[type]:
    """A registry of one world of ours, beside an installed package with a good one and some that cannot be loaded."""
    monkeypatch.syspath_prepend(str(install(tmp_path, "windy_worlds", SOURCE, {"test.worlds": POINTS})))
    return Registry("world", {"uniform": "fedbandit.simulation.worlds:Uniform"}, group="test.worlds")


def test_our_entry_is_found_without_searching_packages(windy: Registry[type], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbandit.registry.entry_points", lambda **_: pytest.fail("searched"))
    assert windy["uniform"] is fb.worlds.uniform


def test_an_installed_package_adds_its_entry_and_cannot_replace_ours(windy: Registry[type]) -> None:
    assert windy.find("windy").__module__ == "windy_worlds"
    assert windy["uniform"] is fb.worlds.uniform
    assert list(windy) == ["uniform", "windy", "misnamed", "gone", "missing"]
    assert windy.own_names == ("uniform",)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("misnamed", "has the name 'another'; both must be the same"),
        ("gone", "cannot be loaded: AttributeError"),
        ("missing", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_broken_entry_is_a_named_error_with_its_package(windy: Registry[type], name: str, says: str) -> None:
    with pytest.raises(errors.UnusableEntryPoint, match=says) as raised:
        windy.find(name)
    assert f"the world {name!r} of windy_worlds" in str(raised.value)


def test_a_list_warns_about_broken_entries_and_goes_on(windy: Registry[type]) -> None:
    with pytest.warns(errors.BrokenEntryPoint) as warned:
        assert list(windy.usable()) == ["uniform", "windy"]
    assert len(warned) == 3


@pytest.mark.parametrize("name", ["nowhere", "", None, [], 3])
def test_an_unknown_name_is_a_named_error_with_the_names_there_are(windy: Registry[type], name: object) -> None:
    with pytest.raises(errors.InvalidParameter, match="expected world to be one of uniform, windy"):
        windy.find(name)


def test_a_registry_may_include_another(windy: Registry[type]) -> None:
    more = Registry("world", {"extra": int}, including=windy)
    assert more["extra"] is int and more["windy"] is windy["windy"]
    assert list(more)[:2] == ["uniform", "windy"] and "extra" in more and len(more) == 6
    assert more.own_names == ("uniform", "extra")


def test_entries_can_be_added_for_a_process_once(windy: Registry[type]) -> None:
    windy.add("mine", float)
    assert windy.find("mine") is float
    with pytest.raises(errors.InvalidParameter, match="there is a world 'mine' already"):
        windy.add("mine", float)
    windy.remove("mine")
    assert "mine" not in windy


def test_every_table_names_what_exists_and_by_its_own_name() -> None:
    for registry in (ALGORITHMS, WORLDS, PARTICIPATION):
        for name, entry in registry.own().items():
            assert entry.name == name  # type: ignore[attr-defined]


def test_every_algorithm_describes_its_options_and_has_example_numbers() -> None:
    for entry in ALGORITHMS.own().values():
        for numbers in entry.examples.values():
            rule = entry.make(dim=2, **entry.known({"beta": 0.5, "lam": 1.0}), **numbers)
            assert algorithm_of(type(rule).__name__).rule is type(rule)  # type: ignore[union-attr]
        for option in entry.options.values():
            assert option.help and not option.help.endswith("."), "commands add the full stop"
        assert sum(bool(option.letter) for option in entry.options.values()) <= 1


def test_loading_a_rule_imports_the_algorithms_up_to_it_only() -> None:
    program = (
        "import sys, fedbandit as fb; blob = fb.FedLinUCB(dim=2, beta=1).agent('a').to_bytes(); fb.load(blob); "
        "print('fedbandit.algorithms.oful' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_unknown_trait_is_a_named_error() -> None:
    with pytest.raises(errors.InvalidParameter, match="expected traits among any-time"):
        Algorithm(name="x", rule=dict, traits=frozenset({"clever"}))
    # Only synchronous systems have steps; rules with a policy bring that trait themselves.
    assert set(TRAITS) == EVERY_TRAIT | {"steps", "policies"}


def test_what_a_name_fixes_is_no_option_of_it() -> None:
    policies = ["policy", "explore", "gamma", "propensity_samples", "policy_seed", "control"]
    assert list(ALGORITHMS["oful-shared"].options) == policies
    assert list(ALGORITHMS["oful-independent"].options) == ["switching", *policies]


def test_a_rule_that_is_no_dataclass_has_no_options() -> None:
    assert Algorithm(name="x", rule=dict).options == {}


def test_a_rule_of_another_class_of_a_known_name_is_not_taken_for_ours() -> None:
    @dataclass(frozen=True)
    class Unknown:
        name: str = "unknown"

    assert algorithm_of(Unknown.__name__) is None
