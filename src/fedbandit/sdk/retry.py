"""When to try again: exponential back-off with full jitter, and never before the server asked for it."""

from __future__ import annotations

from random import Random

FIRST_S = 0.25
MOST_S = 60.0
LONGEST_WISH_S = 3600.0  # a server cannot silence an agent for longer than this


class Backoff:
    """Delays between attempts: uniform on [0, first·2ⁿ), at most `most_s`, so that a fleet does not come back at once.

    >>> backoff = Backoff(Random(1), first_s=1.0)
    >>> all(backoff.delay_s() <= 2.0**n for n in range(5))
    True
    """

    def __init__(self, rng: Random, *, first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self._rng = rng
        self._first_s = first_s
        self._most_s = most_s
        self.n_failures = 0

    def delay_s(self, retry_after_s: float | None = None) -> float:
        """How long to wait after one more failure; at least what the server asked for, spread a little beyond."""
        ceiling = min(self._most_s, self._first_s * 2.0 ** min(self.n_failures, 30))
        self.n_failures += 1
        jitter = self._rng.uniform(0.0, ceiling)
        if retry_after_s is None:
            return jitter
        wish = min(max(retry_after_s, 0.0), LONGEST_WISH_S)
        return wish + min(jitter, 0.1 * wish + self._first_s)

    def reset(self) -> None:
        """The server answered: begin anew."""
        self.n_failures = 0
