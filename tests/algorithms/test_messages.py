"""Messages are values with names, and their sizes are counted as the literature counts them."""

import dataclasses

import numpy as np
import pytest

from fedbandit import SufficientStats, Upload
from fedbandit.algorithms.messages import n_bytes, n_scalars, packed_bytes, stats_from_bytes
from fedbandit.errors import FormatError
from tests.builders import rows


def upload(stats, **changes):
    return Upload(**{"agent_id": "a", "incarnation": "one", "sequence": 1, "stats": stats, "growth": 0.5, **changes})


def test_a_message_has_half_a_matrix_and_a_vector_of_scalars():
    assert n_scalars(1) == 2
    assert n_scalars(15) == 15 * 16 // 2 + 15 == 135
    assert n_bytes(15) == 8 * (135 + 3)
    assert len(packed_bytes(SufficientStats.zeros(15))) == n_bytes(15)


def test_the_digest_depends_on_the_statistics_and_on_nothing_else():
    stats = SufficientStats.of(rows(3), [1.0, 2.0, 3.0])
    same = SufficientStats.of(rows(3), [1.0, 2.0, 3.0])
    assert upload(stats).digest() == upload(same, sequence=7, growth=0.1).digest()
    assert len(upload(stats).digest()) == 16
    for field, value in (
        ("Sigma", np.nextafter(stats.Sigma, np.inf)),
        ("b", np.nextafter(stats.b, np.inf)),
        ("n_obs", 4),
        ("reward_sum", stats.reward_sum + 1e-12),
        ("reward_sq_sum", stats.reward_sq_sum + 1e-12),
    ):
        assert upload(dataclasses.replace(stats, **{field: value})).digest() != upload(stats).digest()


def test_a_message_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        upload(SufficientStats.zeros(2)).sequence = 2


@pytest.mark.parametrize("n_obs", [2.5, np.nan, np.inf])
def test_bytes_that_count_no_whole_number_of_observations_are_refused(n_obs):
    numbers = np.frombuffer(packed_bytes(SufficientStats.of(rows(3), np.ones(3)))).copy()
    assert stats_from_bytes(numbers.tobytes(), 3).n_obs == 3
    numbers[-3] = n_obs
    with pytest.raises(FormatError, match="whole number of observations"):
        stats_from_bytes(numbers.tobytes(), 3)
