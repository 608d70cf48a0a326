"""Durations on the command line: 90s, 15m, 24h, 30d."""

from __future__ import annotations

import re

from fedbandit.errors import InvalidParameter

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhdw])")


def seconds_of(text: str, option: str) -> float:
    """Seconds of a duration.

    >>> seconds_of("24h", "--ttl")
    86400.0
    """
    match = DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidParameter(f"expected {option} as a number with s, m, h, d or w, such as 24h, got {text!r}")
    return float(match[1]) * SECONDS[match[2]]
