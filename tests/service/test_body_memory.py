"""The memory budget that the request bodies of all connections share."""

import pytest

from fedbandit.errors import Overloaded
from fedbandit.service.http.connections import BodyMemory


def test_a_body_beyond_the_budget_is_refused_until_memory_is_released():
    memory = BodyMemory(100)
    memory.reserve(60)
    with pytest.raises(Overloaded):
        memory.reserve(41)
    assert memory.n_bytes == 60
    memory.reserve(40)
    memory.release(60)
    memory.reserve(60)
    assert memory.n_bytes == 100
