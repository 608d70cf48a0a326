"""A process to be killed: its n-th observation is a function of n, so whoever watches knows what the server must hold.

    python -m tests.sdk.child_process URL MODEL TOKEN STATE_DIR N [SETTINGS]

Prints `resumed n` at the start and `n` after the n-th observation was booked; at N it flushes and prints `done`. With
the settings of a model, as JSON, it may start without the server. Of a model with a control group the reward is 1 in
control and 2 in treatment: sums by group tell what was mixed up.
"""

import json
import sys
from typing import Any

import numpy as np

import fedbandit as fb


def observation(n: int, dim: int) -> tuple[np.ndarray, float]:
    """Whole numbers, so that sums are exact in any order."""
    rng = np.random.default_rng(n)
    return rng.integers(-3, 4, size=dim).astype(float), float(rng.integers(-2, 3))


def main(url: str, model: str, token: str, state_dir: str, last: int, **options: Any) -> None:
    with fb.connect(url, model=model, token=token, agent="a", state_dir=state_dir, **options) as agent:
        n = agent.status().rounds
        print("resumed", n, agent.status().pending, flush=True)
        agent.pending.expire()
        has_control = agent._durable.settings.control > 0
        while n < last:
            x, reward = observation(n, len(agent.model.stats.b))
            decision = agent.choose(x[None, :])
            if has_control:
                reward = 1.0 if decision.group == "control" else 2.0
            agent.observe(decision, reward)
            n += 1
            print(n, flush=True)
        agent.flush(30.0)
        print("done", agent.status().exchanges, flush=True)


if __name__ == "__main__":
    offline = {"offline_ok": True, "settings": json.loads(sys.argv[6])} if sys.argv[6:] else {}
    main(*sys.argv[1:5], int(sys.argv[5]), **offline)  # type: ignore[arg-type]
