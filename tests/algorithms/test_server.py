"""The ledger: which upload is next, which one is a retry, which one must not be merged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit import SufficientStats, Upload
from fedbandit.algorithms.server import LedgerEntry, is_next
from fedbandit.errors import ProtocolError, SequenceConflict, SequenceGap, StaleIncarnation

STATS = SufficientStats.of([[1.0]], [1.0])


def upload(sequence, incarnation="one"):
    return Upload("a", incarnation, sequence, STATS, 0.5)


@given(st.integers(0, 20), st.integers(-2, 25), st.booleans())
def test_only_the_next_sequence_is_merged_and_only_a_known_one_is_a_retry(last, sequence, same_content):
    known = LedgerEntry("one", last, b"content") if last else None
    digest = b"content" if same_content else b"other"
    try:
        merged = is_next(known, set(), upload(sequence), digest)
    except SequenceGap:
        assert sequence > last + 1 or sequence < 1
    except SequenceConflict:
        assert sequence == last and not same_content
    else:
        assert merged == (sequence == last + 1)
        assert merged or 1 <= sequence <= last


def test_a_new_life_begins_at_one_and_an_old_one_may_not_return():
    known = LedgerEntry("one", 5, b"content")
    assert is_next(known, set(), upload(1, "two"), b"anything")
    with pytest.raises(SequenceGap):
        is_next(known, set(), upload(2, "two"), b"anything")
    with pytest.raises(StaleIncarnation):
        is_next(LedgerEntry("two", 1, b"content"), {"one"}, upload(6, "one"), b"anything")


def test_every_refusal_is_a_protocol_error_with_a_code():
    assert {error.code for error in (SequenceGap, SequenceConflict, StaleIncarnation)} == {
        "sequence_gap",
        "sequence_conflict",
        "stale_incarnation",
    }
    assert all(issubclass(error, ProtocolError) for error in (SequenceGap, SequenceConflict, StaleIncarnation))
