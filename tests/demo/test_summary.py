"""The demo's arithmetic: baselines, order, conservation."""

import numpy as np
import pytest
from rich.console import Console

from fedbandit.core.statistics import SufficientStats
from fedbandit.demo.display import print_comparison
from fedbandit.demo.images import Images, deal
from fedbandit.demo.summary import (
    Conservation,
    LearningResult,
    alone,
    every_decision,
    everything_shared,
    in_order,
    seen,
    sharing_cost,
)


@pytest.fixture(scope="module")
def parts():
    return deal(3, seed=0, n_images=100)


def test_images_are_dealt_out_once_each(parts):
    assert [len(part) for part in parts] == [34, 33, 33]
    together = np.concatenate([part.contexts for part in parts])
    assert len(np.unique(together, axis=0)) == 100
    everything = deal(8, seed=0)
    assert sum(len(part) for part in everything) == 1797 and everything[0].dim == 110


def test_a_decision_set_has_one_block_for_each_class(parts):
    actions = parts[0].actions(0)
    assert actions.shape == (10, 110)
    assert np.array_equal(actions[3, 33:43], parts[0].contexts[0]) and actions[3, 43] == 1.0
    assert [parts[0].reward(0, arm) for arm in range(10)].count(1.0) == 1


def test_images_survive_a_file(parts, tmp_path):
    parts[0].save(tmp_path / "images.npz")
    again = Images.load(tmp_path / "images.npz")
    assert np.array_equal(again.contexts, parts[0].contexts) and np.array_equal(again.labels, parts[0].labels)


def test_the_baselines_see_the_same_images_in_the_same_order(parts):
    first, last = alone(parts, beta=0.3, lam=0.3), everything_shared(parts, beta=0.3, lam=0.3)
    assert len(first.rewards) == len(last.rewards) == 100
    assert first.rewards[:1] == last.rewards[:1]
    assert first.n_messages == 0 and last.n_messages == 100 * (1 + 3)
    assert in_order(parts, [{n: float(m) for n in range(len(part))} for m, part in enumerate(parts)])[:4] == (
        0,
        1,
        2,
        0,
    )


def test_two_messages_per_decision_earn_what_a_broadcast_earns(parts):
    """The plain alternative is run, not assumed: the same decisions for 2 instead of M + 1 messages each."""
    each, broadcast = (learn(parts, beta=0.3, lam=0.3) for learn in (every_decision, everything_shared))
    assert each.rewards == broadcast.rewards
    cost = sharing_cost(parts)
    assert each.n_messages == cost.two_per_decision == 200
    assert broadcast.n_messages == cost.broadcast == 400
    assert cost.raw_bytes == 100 * 8 * 12


def test_the_last_table_names_every_baseline(parts):
    console = Console(record=True, width=120)
    outcomes = [learn(parts, beta=0.3, lam=0.3) for learn in (alone, every_decision, everything_shared)]
    together = LearningResult("together", outcomes[0].rewards, 50, 2_487_200)
    print_comparison(console, (outcomes[0], together, *outcomes[1:]), sharing_cost(parts))
    text = " ".join(console.export_text().split())
    assert "25% of two messages per decision, 12% of a broadcast per decision" in text
    assert "2.5 MB where the raw rows (context, arm, reward) sent once are 9.6 kB" in text
    assert "two messages per decision" in text and "a broadcast per decision" in text


def test_conservation_finds_one_that_is_missing_and_one_that_counts_twice(parts):
    arms = [dict.fromkeys(range(len(part)), 0) for part in parts]
    right = seen(parts, arms)
    assert Conservation(right, right).holds
    one = SufficientStats.of([parts[0].actions(0)[0]], [parts[0].reward(0, 0)], blocks=10)
    assert not Conservation(right, right - one).holds
    assert not Conservation(right, right + one).holds
    moved = SufficientStats(right.Sigma + 1e-6, right.b, right.n_obs, right.reward_sum)
    assert not Conservation(right, moved).holds
