"""Counter-based random numbers: what they are a function of, and that they are random."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit.core.counter_random import CounterRandom, key_of, mix64, splitmix64

numbers = st.integers(0, 2**53)


def made(purpose: str = "policy", agent_id: str = "shop-1", seed: int = 0, incarnation: str = "i") -> CounterRandom:
    return CounterRandom(seed=seed, agent_id=agent_id, incarnation=incarnation, purpose=purpose)


def test_splitmix64_gives_the_published_numbers() -> None:
    # From the authors' Java class and the reference in C, seed 1234567.
    assert [splitmix64(1234567, n) for n in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_mixing_is_a_bijection_on_a_sample() -> None:
    assert len({mix64(z) for z in range(10_000)}) == 10_000


@given(numbers, st.integers(0, 300))
def test_a_draw_depends_on_nothing_drawn_before(number: int, i: int) -> None:
    before = made()
    before.uniforms(number, 50)
    assert before.bits(number, i) == made().bits(number, i)
    assert before.uniforms(number, i + 1)[i] == made().uniform(number, i)


@given(numbers, st.integers(1, 10**6))
def test_uniforms_and_indices_stay_in_range(number: int, n: int) -> None:
    assert 0.0 <= made().uniform(number) < 1.0
    assert 0 <= made().index(number, n) < n


def test_seed_agent_incarnation_and_purpose_each_change_the_key() -> None:
    keys = {
        key_of(seed, agent, incarnation, purpose)
        for seed, agent, incarnation, purpose in itertools.product(
            (0, 1, 10), ("a", "b", "Händler@7"), ("i", "1"), ("policy", "control", "propensity")
        )
    }
    assert len(keys) == 3 * 3 * 2 * 3


@pytest.mark.parametrize("purpose", ["policy", "control"])
def test_uniforms_over_decisions_are_uniform_and_uncorrelated(purpose: str) -> None:
    n = 20_000
    draws = np.array([made(purpose).uniform(number) for number in range(n)])
    counts = np.bincount((draws * 50).astype(int), minlength=50)
    # χ² with 49 degrees of freedom is above 94 with probability 1e-4; seeds are fixed.
    assert ((counts - n / 50) ** 2 / (n / 50)).sum() < 94
    # The correlation of independent draws has standard deviation 1/√n; five of them.
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 5 / np.sqrt(n)


def test_purposes_and_agents_are_uncorrelated() -> None:
    n = 20_000
    columns = [made("policy"), made("control"), made("policy", agent_id="shop-2"), made("policy", incarnation="j")]
    draws = np.array([[random.uniform(number) for random in columns] for number in range(n)])
    correlations = np.corrcoef(draws.T) - np.eye(len(columns))
    assert np.abs(correlations).max() < 5 / np.sqrt(n)


def test_normals_have_the_moments_of_a_normal() -> None:
    draws = np.array([made().normals(number, 5) for number in range(8_000)])
    n = draws.size
    # Standard deviations of the first four sample moments of n normals: 1, √2, √15, √96 over √n; five of each.
    for power, (moment, deviation) in enumerate([(0, 1), (1, 2), (0, 15), (3, 96)], 1):
        assert abs((draws**power).mean() - moment) < 5 * np.sqrt(deviation / n)
    assert np.abs(np.corrcoef(draws.T) - np.eye(5)).max() < 5 / np.sqrt(len(draws))


@given(numbers, st.integers(1, 20))
def test_fewer_normals_are_a_prefix_of_more(number: int, n: int) -> None:
    np.testing.assert_array_equal(made().normals(number, n), made().normals(number, n + 1)[:n])
