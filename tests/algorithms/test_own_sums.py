"""Which own observations a model holds, by the sequences that the server acknowledges."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbandit.algorithms.messages import Upload
from fedbandit.algorithms.own_sums import OwnSums
from fedbandit.core.statistics import SufficientStats

UPLOADS = [Upload("a", "one", n, SufficientStats.of([[float(2**n)]], [1.0]), 0.1) for n in range(1, 9)]
NOTHING = SufficientStats.zeros(1)


def held_by(own):
    """The uploads in (U, u), read from the binary digits of Σ."""
    return {n for n in range(1, 9) if int(own.merged.Sigma[0, 0]) >> (2 * n) & 1}


def all_of(own, in_flight=None):
    return {n for n in range(1, 9) if int(own.total(in_flight, NOTHING).Sigma[0, 0]) >> (2 * n) & 1}


def answered(n):
    own = OwnSums(1)
    for upload in UPLOADS[:n]:
        own = own.answered(upload)
    return own


def test_an_answer_alone_puts_nothing_into_the_model():
    own = answered(3)
    assert held_by(own) == set()
    assert all_of(own) == {1, 2, 3}
    assert held_by(own.in_model(2)) == {1, 2}
    assert all_of(own.in_model(2)) == {1, 2, 3}


def test_an_upload_counts_once_while_it_is_in_flight_and_answered_at_once():
    own = answered(3)
    assert all_of(own, UPLOADS[2]) == {1, 2, 3}
    assert all_of(own, UPLOADS[3]) == {1, 2, 3, 4}
    assert own.answered(UPLOADS[2]) is own


def test_a_server_that_lost_everything_holds_nothing_and_gets_it_again():
    own = answered(5).in_model(5).in_model(0)
    assert (held_by(own), all_of(own)) == (set(), {1, 2, 3, 4, 5})
    assert held_by(own.in_model(5)) == {1, 2, 3, 4, 5}


def test_a_server_that_went_back_is_followed_with_the_kept_uploads():
    own = answered(6).in_model(6).in_model(4, kept=UPLOADS[3:6])
    assert (held_by(own), all_of(own)) == ({1, 2, 3, 4}, {1, 2, 3, 4, 5, 6})
    assert held_by(own.in_model(5)) == {1, 2, 3, 4, 5}


def test_what_cannot_be_divided_counts_as_the_fleets():
    own = answered(6).in_model(6).in_model(4, kept=UPLOADS[5:6])
    assert (held_by(own), all_of(own)) == (set(), {6})
    assert held_by(own.in_model(6)) == {6}


def test_a_model_that_excludes_the_agent_holds_none_of_its_data():
    own = answered(3).in_model(3, excluded=True)
    assert (held_by(own), all_of(own), len(own.apart)) == (set(), {1, 2, 3}, 1)
    assert held_by(own.in_model(3)) == {1, 2, 3}


@given(st.lists(st.tuples(st.integers(0, 8), st.booleans(), st.integers(0, 8)), max_size=8))
@settings(max_examples=200)
def test_nothing_is_in_the_model_that_the_server_has_not_and_nothing_counts_twice(steps):
    """Whatever the server says: (U, u) is within what it acknowledged, and a saved copy continues alike."""
    own, seen = OwnSums(1), 0
    for acknowledged, excluded, n_kept in steps:
        while seen < acknowledged:
            own = own.answered(UPLOADS[seen])
            seen += 1
        own = own.in_model(acknowledged, excluded=excluded, kept=UPLOADS[seen - min(n_kept, seen) : seen])
        assert held_by(own) <= set(range(1, acknowledged + 1))
        assert excluded <= (own.held is None)
        beyond = {n for piece in own.apart for n in range(piece.first, piece.last + 1)}
        assert excluded or not beyond & set(range(1, acknowledged + 1)), "what the model holds is in no own part"
        assert all_of(own) == held_by(own) | beyond
        again = OwnSums.from_state(1, own.state())
        assert again == own
        assert np.array_equal(again.merged.Sigma, own.merged.Sigma)
