"""The memory budget that the request bodies of all connections share."""

from __future__ import annotations

from fedbandit.errors import Overloaded


class BodyMemory:
    """Counts the bytes of request bodies in memory, and refuses to exceed `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.n_bytes = 0

    def reserve(self, n_bytes: int) -> None:
        """Reserve memory before a body is read; `Overloaded` if the budget is used up. Pair with `release`."""
        if self.n_bytes + n_bytes > self._limit:
            raise Overloaded("too many bodies are in memory")
        self.n_bytes += n_bytes

    def release(self, n_bytes: int) -> None:
        """Return memory that was reserved."""
        self.n_bytes -= n_bytes
