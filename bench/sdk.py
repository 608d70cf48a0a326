"""What the SDK costs an application: microseconds a call, megabytes a process, milliseconds an exchange.

    python bench/sdk.py [--json] [--rounds 20000] [--no-server]

Exits with 1 when a target is missed. Times are medians; everything runs against a server on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import fedbandit as fb
from fedbandit.sdk import LiveAgent, LocalServer, open_agent

DIM, N_ACTIONS = 25, 25
TARGETS = {
    "observe_fast_us": 60.0,
    # With a journal against without: 1.13 to 1.17, and 1.23 to 1.30 right after an `observe`. A decision goes into the
    # mapped ring for two to three microseconds; what `observe` wrote has cooled the processor's caches besides.
    "choose_ratio": 1.2,
    "choose_ratio_after_observe": 1.35,
    # Dropping the oldest decisions in groups; one transaction for each of them made it 74 times slower.
    "choose_ratio_at_max_pending": 1.5,
    "rss_mb": 80.0,
    "import_s": 0.3,
    # The exchange itself has its target, 2 ms, in bench/service.py; here an `observe` that exchanges is timed whole:
    # trigger, encoding, urllib3, and the new model adopted. Client and server take about 1 ms of processor time each.
    "exchange_ms": 3.0,
}


def quantiles(times_ns: list[int]) -> tuple[float, float]:
    ordered = np.sort(np.array(times_ns)) / 1e3
    return float(ordered[len(ordered) // 2]), float(ordered[int(len(ordered) * 0.99)])


def rounds_of(agent: LiveAgent, sets: np.ndarray, n_rounds: int) -> tuple[list[int], list[int]]:
    """Nanoseconds of each `choose` and each `observe`, as an application calls them."""
    clock = time.perf_counter_ns
    choose, observe = [], []
    for t in range(n_rounds):
        actions = sets[t % len(sets)]
        begun = clock()
        decision = agent.choose(actions)
        chosen = clock()
        agent.observe(decision, 0.5)
        observed = clock()
        choose.append(chosen - begun)
        observe.append(observed - chosen)
    return choose, observe


def chooses_of(agent: LiveAgent, sets: np.ndarray, n_rounds: int) -> list[int]:
    """Nanoseconds of each `choose` where rewards come late: fifty decisions, then their fifty rewards.

    What an `observe` between two decisions does to the caches is in `rounds_of`; this is what `choose` itself pays.
    """
    clock = time.perf_counter_ns
    times = []
    for start in range(0, n_rounds, 50):
        decisions = []
        for t in range(start, start + 50):
            actions = sets[t % len(sets)]
            begun = clock()
            decisions.append(agent.choose(actions))
            times.append(clock() - begun)
        for decision in decisions:
            agent.observe(decision, 0.5)
    return times


def bench_calls(n_rounds: int, n_turns: int = 100) -> dict[str, float]:
    """Three agents in short turns, so that a busy moment of the machine hits all of them."""
    sets = np.random.default_rng(0).random((512, N_ACTIONS, DIM)) - 0.5
    times: dict[str, tuple[list[int], list[int]]] = {name: ([], []) for name in ("memory", "fast", "strict")}
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        hub = LocalServer(fb.FedLinUCB(dim=DIM, alpha=1.0, beta=0.5))
        agents = {
            "memory": open_agent(hub.transport("memory"), model="local"),
            "fast": open_agent(hub.transport("fast"), model="local", state_dir=f"{folder}/fast"),
            "strict": open_agent(
                hub.transport("strict"), model="local", state_dir=f"{folder}/strict", durability="strict"
            ),
        }
        for _ in range(n_turns):
            for name, agent in agents.items():
                choose, observe = rounds_of(agent, sets, max(n_rounds // n_turns // (10 if name == "strict" else 1), 1))
                times[name][0].extend(choose)
                times[name][1].extend(observe)
        alone: dict[str, list[int]] = {"memory": [], "fast": []}
        for _ in range(n_turns):
            for name, times_alone in alone.items():
                times_alone.extend(chooses_of(agents[name], sets, max(n_rounds // n_turns, 1)))
        for agent in agents.values():
            agent.close()
    found = {}
    for name, (choose, observe) in times.items():
        found[f"choose_{name}_us"], found[f"choose_{name}_p99_us"] = quantiles(choose)
        found[f"observe_{name}_us"], found[f"observe_{name}_p99_us"] = quantiles(observe)
    for name, times_alone in alone.items():
        found[f"choose_late_rewards_{name}_us"] = quantiles(times_alone)[0]
    found["choose_ratio"] = found["choose_late_rewards_fast_us"] / found["choose_late_rewards_memory_us"]
    found["choose_ratio_after_observe"] = found["choose_fast_us"] / found["choose_memory_us"]
    return found


def bench_max_pending(n_rounds: int, max_pending: int = 10_000, n_turns: int = 20) -> dict[str, float]:
    """`choose` of an agent at `max_pending`, which drops its oldest decisions, against one with room for all.

    Drops come in groups, so that the median of single calls would not see them; it is taken of turns of many calls.
    """
    sets = np.random.default_rng(0).random((512, N_ACTIONS, DIM)) - 0.5
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        hub = LocalServer(fb.FedLinUCB(dim=DIM, alpha=1.0, beta=0.5))
        room = max_pending + 2 * n_rounds
        agents = {
            name: open_agent(hub.transport(name), model="local", state_dir=f"{folder}/{name}", max_pending=most)
            for name, most in (("full", max_pending), ("roomy", room))
        }
        times: dict[str, list[int]] = {name: [] for name in agents}
        for agent in agents.values():
            for t in range(max_pending):
                agent.choose(sets[t % len(sets)])
        n_each = max(n_rounds // n_turns, 1)
        for _ in range(n_turns):
            for name, agent in agents.items():
                begun = time.perf_counter_ns()
                for t in range(n_each):
                    agent.choose(sets[t % len(sets)])
                times[name].append(time.perf_counter_ns() - begun)
        n_pending = {name: agent.status().pending for name, agent in agents.items()}
        assert n_pending["full"] <= max_pending < n_pending["roomy"], n_pending
        for agent in agents.values():
            agent.close()
    found = {f"choose_{name}_us": float(np.median(of_turns)) / n_each / 1e3 for name, of_turns in times.items()}
    ratios = np.array(times["full"]) / np.array(times["roomy"])
    return {**found, "choose_ratio_at_max_pending": float(np.median(ratios))}


CHILD = """
import sys, time
begun = time.perf_counter()
import fedbandit as fb
took = time.perf_counter() - begun
import numpy as np
if len(sys.argv) > 1:
    url, token, state_dir = sys.argv[1:]
    with fb.connect(url, model="bench", token=token, agent="child", state_dir=state_dir) as agent:
        rng = np.random.default_rng(0)
        for _ in range(3000):
            agent.observe(agent.choose(rng.random((25, 25)) - 0.5), 0.5)
        agent.flush()
        for line in open("/proc/self/status"):
            if line.startswith("VmRSS"):
                rss = int(line.split()[1]) / 1024
        assert "fastapi" not in sys.modules and "pandas" not in sys.modules
        print(took, rss)
else:
    print(took)
"""


def run_child(*arguments: str) -> list[float]:
    environment = {key: value for key, value in os.environ.items() if key != "OPENBLAS_NUM_THREADS"}
    command = [sys.executable, "-c", CHILD, *arguments]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    return [float(word) for word in output.split()]


def bench_server() -> dict[str, float]:
    """Against a real server process: memory of an agent process, and one exchange with and without a journal."""
    from fedbandit.demo.processes import ServerProcess
    from fedbandit.http_client import AdminClient

    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as name:
        folder = Path(name)
        server = ServerProcess(folder / "server", folder / "server.log")
        try:
            caller = AdminClient(server.url, server.admin_token)
            caller.call("POST", "models", body={"name": "bench", "dim": DIM, "alpha": 0.0, "beta": 0.5})
            tokens = {
                agent: caller.call("POST", "models", "bench", "agents", body={"name": agent})["token"]
                for agent in ("child", "memory", "fast")
            }
            found = {"rss_mb": run_child(server.url, tokens["child"], str(folder / "child"))[1]}
            for agent in ("memory", "fast"):
                state_dir = None if agent == "memory" else folder / agent
                times = exchange_times(server.url, tokens[agent], agent, state_dir)
                key = "exchange" if agent == "memory" else "exchange_journal"
                found[f"{key}_ms"], found[f"{key}_p99_ms"] = (number / 1e3 for number in quantiles(times))
            return found
        finally:
            server.stop()


def exchange_times(url: str, token: str, agent: str, state_dir: Path | None, n: int = 500) -> list[int]:
    """Nanoseconds of an `observe` that exchanges, one after another."""
    rows = np.random.default_rng(1).random((n, DIM)) - 0.5
    times = []
    with fb.connect(url, model="bench", token=token, agent=agent, state_dir=state_dir, sync="inline") as live:
        for x in rows:
            begun = time.perf_counter_ns()
            live.observe(x, 0.5)
            times.append(time.perf_counter_ns() - begun)
        if live.status().exchanges < n:
            raise SystemExit(f"only {live.status().exchanges} of {n} exchanges: {live.status().last_error}")
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--no-server", action="store_true", help="leave out what needs a server process")
    options = parser.parse_args()
    found = bench_calls(options.rounds)
    found.update(bench_max_pending(options.rounds))
    found["import_s"] = min(run_child()[0] for _ in range(5))
    if not options.no_server:
        found.update(bench_server())
    missed = [name for name, most in TARGETS.items() if name in found and found[name] > most]
    if options.json:
        print(json.dumps({"numbers": found, "targets": TARGETS, "missed": missed}, indent=1))
    else:
        for name, value in found.items():
            target = f"  ≤ {TARGETS[name]:g}" if name in TARGETS else ""
            print(f"{name:26} {value:10.3f}{target}{'  MISSED' if name in missed else ''}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
