"""The ledger: which upload is next, which one is a retry, which one must not be merged."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedbandit as fb
from fedbandit import SufficientStats, Upload
from fedbandit.algorithms.server import LedgerEntry, is_next
from fedbandit.errors import ProtocolError, SequenceConflict, SequenceGap, StaleIncarnation
from tests.builders import make_rule

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


def test_a_new_life_is_told_nothing_about_the_uploads_of_an_old_one():
    """An agent that believed its first upload merged, because an earlier life sent as many, would lose its data."""
    rule = make_rule(dim=2, alpha=0.0)
    server = rule.server()
    old, new = rule.agent("a", incarnation="one"), rule.agent("a", incarnation="two")
    server.receive(old.observe([1.0, 0.0], 1.0))
    assert server.receive(fb.Pull("a", "one")).acknowledged == 1
    upload = new.observe([0.0, 1.0], 1.0)
    download = server.receive(fb.Pull("a", "two"))
    assert download.acknowledged == 0
    new.adopt(download)
    assert new.in_flight == upload


def test_a_server_that_was_loaded_still_refuses_an_old_life():
    rule = make_rule(dim=2, alpha=0.0)
    server = rule.server()
    old, new = rule.agent("a", incarnation="one"), rule.agent("a", incarnation="two")
    server.receive(old.observe([1.0, 0.0], 1.0))
    server.receive(new.observe([0.0, 1.0], 1.0))
    loaded = fb.load(server.to_bytes())
    with pytest.raises(StaleIncarnation):
        loaded.receive(old.in_flight)
    assert loaded.stats == server.stats


def test_an_exception_at_any_call_of_a_merge_leaves_all_of_it_or_nothing():
    """A signal handler raises as a function begins or as a call to C returns; the retry is then counted once."""

    class Interrupted(BaseException):
        pass

    stats = SufficientStats.of([[1.0, 2.0]], [3.0])
    for n in range(1000):
        server, left = make_rule(dim=2).server(), [n]

        def profile(frame, event, _, left=left):
            if event in ("call", "c_return") and "fedbandit" in frame.f_code.co_filename:
                left[0] -= 1
                if left[0] < 0:
                    sys.setprofile(None)
                    raise Interrupted

        upload = Upload("a", "first", 1, stats, growth=1.0)
        sys.setprofile(profile)
        try:
            server.receive(upload)
        except Interrupted:
            pass
        finally:
            sys.setprofile(None)
        server.receive(upload)
        assert (server.stats.n_obs, server.stats.reward_sum) == (1, 3.0), f"after an exception at call {n}"
        if left[0] >= 0:
            break
    assert 10 < n < 999
