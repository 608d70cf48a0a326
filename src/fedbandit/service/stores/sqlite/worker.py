"""A thread with its own database connection, whose results can be awaited in the event loop."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from fedbandit.errors import FedbanditError, StoreUnavailable

T = TypeVar("T")
Job = Callable[[sqlite3.Connection], T]
_Item = tuple[Job[Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Worker:
    """Runs jobs one after the other on one connection."""

    def __init__(self, name: str, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._jobs: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._stopped = False
        self._thread.start()

    async def run(self, job: Job[T]) -> T:
        """The job's result; database errors come as `StoreUnavailable`."""
        if self._stopped:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((job, loop, future))
        return await future

    async def stop(self) -> None:
        """Finish queued jobs, close the connection, end the thread."""
        self._stopped = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        connection: sqlite3.Connection | None = None
        while (item := self._jobs.get()) is not None:
            job, loop, future = item
            result: Any = None
            problem: BaseException | None = None
            try:
                if connection is None:
                    connection = self._connect()
                result = job(connection)
            except sqlite3.Error as error:
                problem = StoreUnavailable(f"the database failed: {error}")
            except FedbanditError as error:
                problem = error
            except Exception as error:  # noqa: BLE001 - raised where the job is awaited
                problem = error
            loop.call_soon_threadsafe(_settle, future, result, problem)
        if connection is not None:
            connection.close()


def _settle(future: asyncio.Future[Any], result: Any, problem: BaseException | None) -> None:
    if future.cancelled():
        return
    if problem is not None:
        future.set_exception(problem)
    else:
        future.set_result(result)
