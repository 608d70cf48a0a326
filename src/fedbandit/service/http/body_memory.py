"""The memory that the bodies of all requests share."""

from __future__ import annotations

from fedbandit.errors import Overloaded


class BodyMemory:
    """How many bytes of bodies may be in memory at one time, over all connections."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.n_bytes = 0

    def reserve(self, n_bytes: int) -> None:
        """Memory for a body, before it is read; `Overloaded` where there is none. `release` when it is done with."""
        if self.n_bytes + n_bytes > self._limit:
            raise Overloaded("too many bodies are in memory")
        self.n_bytes += n_bytes

    def release(self, n_bytes: int) -> None:
        """The body is done with, or will never come."""
        self.n_bytes -= n_bytes
