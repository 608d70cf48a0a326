"""The background: one daemon thread that carries what is due, and sleeps otherwise."""

from __future__ import annotations

import logging
import threading

from fedbandit.errors import FedbanditError
from fedbandit.sdk.link import REFUSED_PAUSE_S, Link

logger = logging.getLogger("fedbandit.sdk")


class Pump:
    """Runs a link. `wake` says that there may be something to do; it costs a microsecond."""

    def __init__(self, link: Link, *, refresh_after_s: float | None) -> None:
        self._link = link
        self._refresh_after_s = refresh_after_s
        self._begun = link.clock()
        self._stopped = False
        self._signal = threading.Event()
        name = f"fedbandit-{link.core.agent_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Look now whether something is due."""
        self._signal.set()

    def stop(self, timeout_s: float) -> bool:
        """End the thread; False if it still waits for the network, in which case the answer will be ignored."""
        self._stopped = True
        self._signal.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped:
            self._signal.wait(self._pause_s())
            self._signal.clear()
            try:
                self._work()
            except FedbanditError:
                pass  # the link has noted it and said so in the log
            except Exception:  # a thread that dies in silence would be worse
                logger.exception("agent %s: unexpected failure in the background", self._link.core.agent_id)
                self._link.next_attempt = self._link.clock() + REFUSED_PAUSE_S

    def _work(self) -> None:
        core, link = self._link.core, self._link
        if core.ended is None and core.journal is not None and core.journal.is_long:
            core.compact()
        if self._stopped or link.halted or link.clock() < link.next_attempt:
            return
        while core.in_flight is not None and not self._stopped:
            link.exchange()
        if self._refresh_in_s() == 0.0 and not self._stopped:
            link.refresh()

    def _pause_s(self) -> float | None:
        """How long to sleep when nobody calls; None: until somebody does."""
        link = self._link
        if link.halted:
            return None
        until_attempt = max(link.next_attempt - link.clock(), 0.0)
        if link.core.in_flight is not None:
            return until_attempt
        until_refresh = self._refresh_in_s()
        return None if until_refresh is None else max(until_attempt, until_refresh)

    def _refresh_in_s(self) -> float | None:
        if self._link.core.arrive() is not None:
            return 0.0  # started without the server: join as soon as it answers
        if self._refresh_after_s is None:
            return None
        heard = self._link.last_contact if self._link.last_contact is not None else self._begun
        return max(heard + self._refresh_after_s - self._link.clock(), 0.0)
