"""Speed of one agent, one decision at a time, against what people use today: ratios in one run.

A round is: decision set in, choice out, reward in. Ours includes validation, the Decision, the trigger and every
exchange with an in-memory server. Vowpal Wabbit gets its text format, which is how its users feed it; coba gets lists.

    python bench/agent.py [--json] [--seconds 1.5]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import fedbandit as fb

SIZES = ((25, 10, 3.0, 12.0), (100, 100, 10.0, 50.0))  # d, K, target against Vowpal Wabbit, against coba
MOST_CHOOSE_MANY = 1.1  # of a loop of `choose`: never slower, within the noise
Round = Callable[[np.ndarray, np.ndarray], None]  # decision set, reward of every action


def ours(dim: int) -> Round:
    rule = fb.FedLinUCB(dim=dim, alpha=1.0, beta=0.5, lam=1.0)
    server, agent = rule.server(), rule.agent("bench")

    def play(X: np.ndarray, rewards: np.ndarray) -> None:
        decision = agent.choose(X)
        upload = agent.observe(decision, rewards[decision.index])
        if upload is not None:
            agent.adopt(server.receive(upload))

    return play


def vowpal_wabbit(dim: int) -> Round:
    import vowpalwabbit as vw

    workspace = vw.Workspace("--cb_explore_adf --squarecb --quiet")
    rng = np.random.default_rng(0)
    names = [f"f{i}:" for i in range(dim)]

    def play(X: np.ndarray, rewards: np.ndarray) -> None:
        lines = ["|a " + " ".join([n + str(v) for n, v in zip(names, row, strict=True)]) for row in X.tolist()]
        pmf = np.array(workspace.predict("\n".join(lines)))
        chosen = int(rng.choice(len(pmf), p=pmf / pmf.sum()))
        lines[chosen] = f"0:{-rewards[chosen]}:{pmf[chosen]} {lines[chosen]}"
        workspace.learn("\n".join(lines))

    return play


def coba(dim: int) -> Round:
    from coba.learners import LinUCBLearner

    learner = LinUCBLearner(alpha=0.5, features=["a"])

    def play(X: np.ndarray, rewards: np.ndarray) -> None:
        actions = [tuple(row) for row in X.tolist()]
        action, probability = learner.predict(None, actions)[:2]
        learner.learn(None, action, float(rewards[actions.index(action)]), probability)

    return play


def plain(dim: int) -> Round:
    """The loop a researcher would write: inv for the widths, det for the trigger."""
    state = {"S": np.eye(dim), "b": np.zeros(dim), "S_loc": np.zeros((dim, dim)), "b_loc": np.zeros(dim)}

    def play(X: np.ndarray, rewards: np.ndarray) -> None:
        inverse = np.linalg.inv(state["S"])
        theta = inverse @ state["b"]
        scores = [x @ theta + 0.5 * np.sqrt(x @ inverse @ x) for x in X]
        chosen = int(np.argmax(scores))
        x = X[chosen]
        state["S_loc"] += np.outer(x, x)
        state["b_loc"] += rewards[chosen] * x
        if np.linalg.det(state["S"] + state["S_loc"]) > 2 * np.linalg.det(state["S"]):
            state["S"] = state["S"] + state["S_loc"]
            state["b"] = state["b"] + state["b_loc"]
            state["S_loc"], state["b_loc"] = np.zeros((dim, dim)), np.zeros(dim)

    return play


def rates(dim: int, n_actions: int, seconds: float, repeats: int = 3) -> dict[str, float]:
    """Rounds a second of each, the best of some turns that alternate between them."""
    rng = np.random.default_rng(1)
    rounds = 256
    theta = rng.standard_normal(dim) / dim**0.5
    X = rng.standard_normal((rounds, n_actions, dim)) / dim**0.5
    rewards = X @ theta + 0.1 * rng.standard_normal((rounds, n_actions))
    players = {"fedbandit": ours(dim), "vowpalwabbit": vowpal_wabbit(dim), "coba": coba(dim), "plain": plain(dim)}
    best = dict.fromkeys(players, 0.0)
    for _ in range(repeats):
        for name, play in players.items():
            for i in range(4):
                play(X[i], rewards[i])
            n, started = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - started) < seconds:
                play(X[n % rounds], rewards[n % rounds])
                n += 1
            best[name] = max(best[name], n / elapsed)
    return best


def choose_many_ratio(dim: int, n_actions: int, n_sets: int = 40, repeats: int = 15) -> float:
    """Time of `choose_many` in those of a loop of `choose` over the same sets: the best of turns that alternate.

    Processor time: what other programs take on a busy machine is in neither.
    """
    rng = np.random.default_rng(2)
    rule = fb.FedLinUCB(dim=dim, alpha=1.0, beta=0.5)
    server, agent = rule.server(), rule.agent("bench")
    theta = rng.standard_normal(dim) / dim**0.5
    for _ in range(300):
        decision = agent.choose(rng.standard_normal((10, dim)) / dim**0.5)
        upload = agent.observe(decision, float(decision.x @ theta))
        if upload is not None:
            agent.adopt(server.receive(upload))
    sets = [rng.standard_normal((n_actions, dim)) / dim**0.5 for _ in range(n_sets)]
    loop, many = [], []
    for _ in range(repeats):
        begun = time.thread_time()
        for X in sets:
            agent.choose(X)
        between = time.thread_time()
        agent.choose_many(sets)
        many.append(time.thread_time() - between)
        loop.append(between - begun)
    return min(many) / min(loop)


def import_seconds() -> float:
    """Seconds for `import fedbandit` beyond starting Python: the median of five processes each."""

    def median(code: str) -> float:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            times.append(time.perf_counter() - started)
        return float(np.median(times))

    return median("import fedbandit") - median("pass")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    rows, failed = [], []
    for dim, n_actions, vw_target, coba_target in SIZES:
        speed = rates(dim, n_actions, options.seconds)
        row = {"d": dim, "K": n_actions, "rounds_per_second": {k: round(v) for k, v in speed.items()}}
        for name, target in (("vowpalwabbit", vw_target), ("coba", coba_target), ("plain", 1.0)):
            ratio = speed["fedbandit"] / speed[name]
            row[f"times_{name}"] = round(ratio, 1)
            if ratio < target:
                failed.append(f"d={dim} K={n_actions}: {ratio:.1f} times {name}, {target:g} wanted")
        rows.append(row)
    many = {}
    for dim, n_actions in ((25, 10), (25, 500), (100, 20), (100, 500)):
        ratio = many[f"d={dim} K={n_actions}"] = round(choose_many_ratio(dim, n_actions), 2)
        if ratio > MOST_CHOOSE_MANY:
            failed.append(f"d={dim} K={n_actions}: choose_many takes {ratio} of a loop, {MOST_CHOOSE_MANY} wanted")
    seconds = import_seconds()
    if seconds > 0.3:
        failed.append(f"import takes {seconds:.2f} s, at most 0.3 wanted")
    if options.json:
        found = {"agent": rows, "choose_many_in_loops": many, "import_seconds": round(seconds, 3), "missed": failed}
        print(json.dumps(found, indent=1))
    else:
        for row, (_, _, vw_target, coba_target) in zip(rows, SIZES, strict=True):
            print(f"d={row['d']:<4} K={row['K']:<4} rounds/s:", end=" ")
            print(", ".join(f"{name} {rate:,}" for name, rate in row["rounds_per_second"].items()))
            print(f"    {row['times_vowpalwabbit']} times Vowpal Wabbit (target {vw_target:g})")
            print(f"    {row['times_coba']} times coba (target {coba_target:g})")
            print(f"    {row['times_plain']} times the plain loop")
        print("choose_many in loops of choose:", ", ".join(f"{size}: {ratio}" for size, ratio in many.items()))
        print(f"import fedbandit: {seconds:.3f} s (target 0.3)")
        print("missed: " + "; ".join(failed) if failed else "all targets met")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
