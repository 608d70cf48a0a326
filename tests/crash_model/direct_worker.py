"""The store's worker without its thread: a job runs immediately, on the worker's own connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from fedbandit.errors import StoreUnavailable
from tests.crash_model.seams import Killed


class DirectWorker:
    """Runs jobs in the calling thread; database errors are `StoreUnavailable`, as from the real worker."""

    on_kill: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self.connection: sqlite3.Connection | None = None

    async def run(self, job: Callable[[sqlite3.Connection], Any]) -> Any:
        try:
            if self.connection is None:
                self.connection = self._connect()
            return job(self.connection)
        except Killed:
            DirectWorker.on_kill()
            raise
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the database failed: {error}") from None

    async def stop(self) -> None:
        if self.connection is not None:
            self.connection.close()
            self.connection = None
