"""A process to be killed: its n-th observation is a function of n, so whoever watches knows what the server must hold.

    python -m tests.sdk.child_process URL MODEL TOKEN STATE_DIR N

Prints `resumed n` at the start and `n` after the n-th observation was booked; at N it flushes and prints `done`.
"""

import sys

import numpy as np

import fedbandit as fb


def observation(n: int, dim: int) -> tuple[np.ndarray, float]:
    """Whole numbers, so that sums are exact in any order."""
    rng = np.random.default_rng(n)
    return rng.integers(-3, 4, size=dim).astype(float), float(rng.integers(-2, 3))


def main(url: str, model: str, token: str, state_dir: str, last: int) -> None:
    with fb.connect(url, model=model, token=token, agent="a", state_dir=state_dir) as agent:
        n = agent.status().rounds
        print("resumed", n, agent.status().pending, flush=True)
        agent.pending.expire()
        while n < last:
            x, reward = observation(n, len(agent.model.stats.b))
            decision = agent.choose(x[None, :])
            agent.observe(decision, reward)
            n += 1
            print(n, flush=True)
        agent.flush(30.0)
        print("done", agent.status().exchanges, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]))  # type: ignore[arg-type]
