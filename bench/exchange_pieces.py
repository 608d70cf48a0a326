"""How long the background thread of a live agent works between two pauses, while the application decides all the time.

    python bench/exchange_pieces.py [--json] [--dims 25,100,400] [--seconds 4]

A call that needs the interpreter's lock waits for at most one such piece, and then until the system has woken its
thread up (`bench/latency.py` measures both together, and needs an idle machine for that). Pieces are processor time of
the background thread, so other work on the machine hardly changes them. They include what holds no lock: BLAS and
system calls. Printed per exchange: pieces, microseconds in all, and pieces that are longer than some limits.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import fedbandit as fb
from fedbandit import pauses

N_ACTIONS = 20
RATE = 30.0  # exchanges per second at most
LIMITS_US = (30, 40, 60, 80, 120, 200)


class RecordedSleep:
    """The module `time` as `pauses` uses it; `sleep` notes how long its thread has worked since the last one."""

    def __init__(self) -> None:
        self.pieces_ns: list[int] = []
        self._thread = threading.local()

    def sleep(self, seconds: float) -> None:
        now = time.thread_time_ns()
        self.pieces_ns.append(now - getattr(self._thread, "since", now))
        time.sleep(seconds)
        self._thread.since = time.thread_time_ns()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def measure(dim: int, seconds: float, recorded: RecordedSleep) -> dict[str, Any]:
    """One dimension, with a server process beside it."""
    from fedbandit.demo.processes import ServerProcess
    from fedbandit.http_client import AdminClient

    sets = np.random.default_rng(0).standard_normal((64, N_ACTIONS, dim)) / dim**0.5
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        server = ServerProcess(Path(name) / "server", Path(name) / "server.log")
        try:
            caller = AdminClient(server.url, server.admin_token)
            caller.call("POST", "models", body={"name": "m", "dim": dim, "alpha": 0.0, "beta": 0.5})
            token = caller.call("POST", "models", "m", "agents", body={"name": "a"})["token"]
            with fb.connect(server.url, model="m", token=token, max_exchanges_per_s=RATE) as agent:
                play(agent, sets, 0.2)
                recorded.pieces_ns.clear()
                before = agent.status().exchanges
                n_rounds = play(agent, sets, seconds)
                n_exchanges = max(agent.status().exchanges - before, 1)
                pieces = np.array(recorded.pieces_ns) / 1e3
        finally:
            server.stop()
    longer = {limit: round(float(np.sum(pieces > limit)) / n_exchanges, 2) for limit in LIMITS_US}
    found = {"pieces": round(len(pieces) / n_exchanges, 1), "us": round(float(pieces.sum()) / n_exchanges)}
    return {"d": dim, "rounds": n_rounds, "exchanges": n_exchanges, **found, "longer": longer}


def play(agent: fb.LiveAgent, sets: np.ndarray, seconds: float) -> int:
    """Decide and observe without a break."""
    end, t = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        agent.observe(agent.choose(sets[t % len(sets)]), 0.5)
        t += 1
    return t


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--dims", default="25,100,400")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each dimension")
    options = parser.parse_args()
    recorded = RecordedSleep()
    pauses.time = recorded  # type: ignore[attr-defined]
    rows = [measure(int(word), options.seconds, recorded) for word in options.dims.split(",")]
    if options.json:
        print(json.dumps({"exchange_pieces": rows}, indent=1))
        return
    for row in rows:
        longer = ", ".join(f"{n:g} > {limit} µs" for limit, n in row["longer"].items())
        print(f"d={row['d']}: {row['exchanges']} exchanges in {row['rounds']} rounds; {row['pieces']} pieces and")
        print(f"    {row['us']} µs per exchange; {longer}")


if __name__ == "__main__":
    main()
