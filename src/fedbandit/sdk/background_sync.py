"""Background sync: one daemon thread that exchanges what is due, and sleeps otherwise."""

from __future__ import annotations

import logging
import threading

from fedbandit import pauses
from fedbandit.errors import FedbanditError
from fedbandit.sdk.next_model import renew_tracker
from fedbandit.sdk.sync_client import REFUSED_PAUSE_S, SyncClient

logger = logging.getLogger("fedbandit.sdk")
BURST = 20  # exchanges without a pause, before the limit on their rate holds
IDLE_S = 30.0  # checks now and then, in case an exception kept the caller from waking it


class BackgroundSync:
    """Runs a sync client in a thread. `wake` says that something may be due; it costs a microsecond."""

    def __init__(
        self, client: SyncClient, *, refresh_after_s: float | None, max_exchanges_per_s: float | None = None
    ) -> None:
        self._client = client
        self._rate = max_exchanges_per_s
        self._allowance = float(BURST)  # exchanges that may begin now, as of `_allowed_at`
        self._allowed_at = client.clock()
        self._refresh_after_s = refresh_after_s
        self._begun = client.clock()
        self._stop = threading.Event()
        self._signal = threading.Event()
        name = f"fedbandit-{client.durable.agent.agent_id}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self.wake()

    def wake(self) -> None:
        """Check now whether something is due."""
        self._signal.set()

    def stop(self, timeout_s: float) -> bool:
        """End the thread; False if it still waits for the network, in which case the reply will be ignored."""
        self._stop.set()
        self._signal.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        pauses.begin()
        while not self._stop.is_set():
            pause_s = self._pause_s()
            pauses.pause_point()
            self._signal.wait(IDLE_S if pause_s is None else pause_s)
            self._signal.clear()
            pauses.begin()
            try:
                self._work()
            except FedbanditError:
                pass  # recorded and logged by the client
            except Exception:  # a thread that dies in silence would be worse
                logger.exception("agent %s: unexpected failure in the background", self._client.durable.agent.agent_id)
                self._client.next_attempt = self._client.clock() + REFUSED_PAUSE_S

    def _work(self) -> None:
        durable, client = self._client.durable, self._client
        if durable.agent.is_renewal_due:
            renew_tracker(durable)
        if durable.ended is None and durable.journal is not None and durable.journal.is_long:
            durable.compact()
        if self._stop.is_set() or client.halted:
            return
        if client.clock() < client.next_attempt:
            if client.is_put_off and client.check_in_s() == 0.0:
                client.check()
            return
        while durable.agent.in_flight is not None and not self._stop.is_set() and self._allowed_in_s() == 0.0:
            self._allowance -= 1.0
            client.exchange()
            pauses.pause_point()
        if client.silence_in_s() == 0.0 and not self._stop.is_set() and self._allowed_in_s() == 0.0:
            self._allowance -= 1.0
            client.exchange(everything=True)
        if self._refresh_in_s() == 0.0 and not self._stop.is_set():
            client.refresh()
        elif client.check_in_s() == 0.0 and not self._stop.is_set():
            client.refresh(if_corrected=True)

    def _pause_s(self) -> float | None:
        """How long to sleep unless woken; None: nothing can become due by itself."""
        client = self._client
        if client.halted:
            return None
        until_attempt = max(client.next_attempt - client.clock(), 0.0)
        waits = []
        if client.durable.agent.in_flight is not None:
            waits.append(max(until_attempt, self._allowed_in_s()))
        elif (until_refresh := self._refresh_in_s()) is not None:
            waits.append(max(until_attempt, until_refresh))
        if (until_silence := client.silence_in_s()) is not None:
            waits.append(max(until_attempt, until_silence, self._allowed_in_s()))
        if (until_check := client.check_in_s()) is not None:
            waits.append(until_check if client.is_put_off else max(until_attempt, until_check))
        return min(waits, default=None)

    def _allowed_in_s(self) -> float:
        """Seconds until the limit on the rate of exchanges lets the next one begin (token bucket of size BURST)."""
        if self._rate is None:
            return 0.0
        now = self._client.clock()
        self._allowance = min(self._allowance + (now - self._allowed_at) * self._rate, float(BURST))
        self._allowed_at = now
        return 0.0 if self._allowance >= 1.0 else (1.0 - self._allowance) / self._rate

    def _refresh_in_s(self) -> float | None:
        if self._client.durable.agent.arrive() is not None:
            return 0.0  # started without the server: join as soon as it answers
        if self._refresh_after_s is None:
            return None
        heard = self._client.last_contact if self._client.last_contact is not None else self._begun
        return max(heard + self._refresh_after_s - self._client.clock(), 0.0)
