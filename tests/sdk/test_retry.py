"""Back-off and Retry-After."""

from datetime import UTC, datetime
from random import Random

import pytest

from fedbandit.http_client import parse_retry_after
from fedbandit.sdk.sync_client import Backoff

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def test_delays_grow_are_spread_and_end_at_a_ceiling():
    delays = [[Backoff(Random(seed), first_s=1.0, most_s=8.0)] for seed in range(200)]
    rounds = [[backoff.delay_s() for (backoff,) in delays] for _ in range(6)]
    for n, spread in enumerate(rounds):
        ceiling = min(8.0, 2.0**n)
        assert 0.0 <= min(spread) < 0.1 * ceiling and 0.9 * ceiling < max(spread) <= ceiling


def test_a_success_begins_anew():
    backoff = Backoff(Random(0), first_s=1.0)
    for _ in range(10):
        backoff.delay_s()
    backoff.reset()
    assert backoff.delay_s() <= 1.0


def test_the_wish_of_the_server_is_a_minimum_within_reason():
    backoff = Backoff(Random(0), first_s=1.0)
    assert 5.0 <= backoff.delay_s(5.0) <= 7.0
    assert backoff.delay_s(1e9) <= 4000.0
    assert backoff.delay_s(-5.0) >= 0.0


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("Thu, 01 Jan 2026 12:00:10 GMT", 10.0),
        ("Thu, 01 Jan 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(header, expected):
    assert parse_retry_after(header, NOW) == expected
