"""The background: one daemon thread that carries what is due, and sleeps otherwise."""

from __future__ import annotations

import logging
import threading

from fedbandit.errors import FedbanditError
from fedbandit.sdk import pauses
from fedbandit.sdk.next_model import renew_tracker
from fedbandit.sdk.sync_client import REFUSED_PAUSE_S, SyncClient

logger = logging.getLogger("fedbandit.sdk")
BURST = 20  # exchanges without a pause, before the limit on their rate holds
IDLE_S = 30.0  # looks now and then, in case that an exception kept the caller from saying that something is due


class BackgroundSync:
    """Runs a link. `wake` says that there may be something to do; it costs a microsecond."""

    def __init__(
        self, link: SyncClient, *, refresh_after_s: float | None, max_exchanges_per_s: float | None = None
    ) -> None:
        self._client = link
        self._rate = max_exchanges_per_s
        self._allowance = float(BURST)  # exchanges that may begin now, as of `_allowed_at`
        self._allowed_at = link.clock()
        self._refresh_after_s = refresh_after_s
        self._begun = link.clock()
        self._stop = threading.Event()
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
        self._stop.set()
        self._signal.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        pauses.begin()
        while not self._stop.is_set():
            pause_s = self._pause_s()
            self._signal.wait(IDLE_S if pause_s is None else pause_s)
            self._signal.clear()
            try:
                self._work()
            except FedbanditError:
                pass  # the link has noted it and said so in the log
            except Exception:  # a thread that dies in silence would be worse
                logger.exception("agent %s: unexpected failure in the background", self._client.core.agent_id)
                self._client.next_attempt = self._client.clock() + REFUSED_PAUSE_S

    def _work(self) -> None:
        core, link = self._client.core, self._client
        if core.is_renewal_due:
            renew_tracker(core)
        if core.ended is None and core.journal is not None and core.journal.is_long:
            core.compact()
        if self._stop.is_set() or link.halted:
            return
        if link.clock() < link.next_attempt:
            if link.is_put_off and link.check_in_s() == 0.0:
                link.check()
            return
        while core.in_flight is not None and not self._stop.is_set() and self._allowed_in_s() == 0.0:
            self._allowance -= 1.0
            link.exchange()
        if self._refresh_in_s() == 0.0 and not self._stop.is_set():
            link.refresh()
        elif link.check_in_s() == 0.0 and not self._stop.is_set():
            link.refresh(if_corrected=True)

    def _pause_s(self) -> float | None:
        """How long to sleep when nobody calls; None: nothing can come by itself."""
        link = self._client
        if link.halted:
            return None
        until_attempt = max(link.next_attempt - link.clock(), 0.0)
        pauses = []
        if link.core.in_flight is not None:
            pauses.append(max(until_attempt, self._allowed_in_s()))
        elif (until_refresh := self._refresh_in_s()) is not None:
            pauses.append(max(until_attempt, until_refresh))
        if (until_check := link.check_in_s()) is not None:
            pauses.append(until_check if link.is_put_off else max(until_attempt, until_check))
        return min(pauses, default=None)

    def _allowed_in_s(self) -> float:
        """Seconds until the limit on the rate of exchanges lets the next one begin (token bucket of size BURST)."""
        if self._rate is None:
            return 0.0
        now = self._client.clock()
        self._allowance = min(self._allowance + (now - self._allowed_at) * self._rate, float(BURST))
        self._allowed_at = now
        return 0.0 if self._allowance >= 1.0 else (1.0 - self._allowance) / self._rate

    def _refresh_in_s(self) -> float | None:
        if self._client.core.arrive() is not None:
            return 0.0  # started without the server: join as soon as it answers
        if self._refresh_after_s is None:
            return None
        heard = self._client.last_contact if self._client.last_contact is not None else self._begun
        return max(heard + self._refresh_after_s - self._client.clock(), 0.0)
