"""The JavaScript client: its own tests, and its agents in one fleet with Python's."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import fedbandit as fb
from fedbandit.algorithms.messages import packed_bytes
from fedbandit.core.counter_random import CounterRandom
from fedbandit.core.statistics import SufficientStats
from fedbandit.wire import codec
from tests.clients.node import CLIENT, needs_node, state_of
from tests.live import LiveServer, running_server

DIM = 3
ROUNDS = 300


@needs_node
def test_the_clients_own_tests() -> None:
    files = sorted(str(path) for path in (CLIENT / "test").glob("*.test.mjs"))
    run = subprocess.run(
        ["node", "--test", "--test-reporter=tap", *files], cwd=CLIENT, capture_output=True, text=True, timeout=240
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    passed = re.search(r"^# pass (\d+)$", run.stdout, re.MULTILINE)
    assert passed is not None and int(passed[1]) > 100, run.stdout[-500:]


def _imported(source: str) -> list[str]:
    return re.findall(r"""\b(?:import|from)\b[ (]*["']([^"'\n]+)["']""", source)


def test_the_client_is_small_and_needs_nothing() -> None:
    modules = {path.name: path.read_text(encoding="utf-8") for path in CLIENT.glob("*.js")}
    assert len(modules["fedbandit.js"].splitlines()) <= 330
    assert all(len(source.splitlines()) <= 120 for name, source in modules.items() if name != "fedbandit.js")
    for_node = modules.pop("node.js")  # an entry of its own: pages do not load it
    assert {name for name in _imported(for_node) if not name.startswith("./")} == {"node:fs", "node:path"}
    imported = _imported("\n".join(modules.values()))
    assert {name for name in imported if not name.startswith("./")} == {"node:crypto"}
    assert {name.removeprefix("./") for name in imported if name.startswith("./")} == set(modules) - {"fedbandit.js"}
    package = json.loads((CLIENT / "package.json").read_text(encoding="utf-8"))
    assert set(package["files"]) == {*modules, "node.js", "fedbandit.d.ts", "node.d.ts", "README.md"}
    assert package["exports"] == {
        ".": {"types": "./fedbandit.d.ts", "default": "./fedbandit.js"},
        "./node": {"types": "./node.d.ts", "default": "./node.js"},
    }
    assert not package.get("dependencies") and not package.get("devDependencies")
    assert package["type"] == "module" and package["license"] == "Apache-2.0" and package["private"] is False


@needs_node
def test_every_exported_name_has_a_type_and_no_other() -> None:
    """Names only; `tsc` on clients/js/test/types.ts checks how they are used, where it is installed."""
    script = "import('./fedbandit.js').then((all) => console.log(JSON.stringify(Object.keys(all))))"
    run = subprocess.run(["node", "-e", script], cwd=CLIENT, capture_output=True, text=True, check=True, timeout=60)
    types = (CLIENT / "fedbandit.d.ts").read_text(encoding="utf-8")
    assert sorted(json.loads(run.stdout)) == sorted(
        re.findall(r"^export (?:class|function) (\w+)", types, re.MULTILINE)
    )


class NodeAgent:
    """A Node process that plays as one agent."""

    def __init__(self, server: LiveServer, name: str, token: str, *, seed: int, rounds: int, **more: Any) -> None:
        task = {"url": server.url, "model": "news", "token": token, "agent": name, "seed": seed, "rounds": rounds}
        self.name = name
        self.process = subprocess.Popen(
            ["node", str(CLIENT / "test" / "fleet.mjs"), json.dumps({**task, "dim": DIM, "flush": True, **more})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def begin(self) -> None:
        """Let it play."""
        assert self.process.stdin is not None
        self.process.stdin.write("play\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Wait for the end; what it observed."""
        found = self._line()
        self.process.communicate(timeout=30)
        return found

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, err = self.process.communicate(timeout=30)
            raise AssertionError(f"{self.name} ended with {self.process.returncode}: {err[-3000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def __enter__(self) -> NodeAgent:
        assert self._line() == {"connected": True}
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


class PythonAgent(threading.Thread):
    """A thread that plays as one agent."""

    def __init__(
        self, server: LiveServer, name: str, token: str, *, seed: int, rounds: int, dim: int = DIM, blocks: int = 1
    ) -> None:
        super().__init__(daemon=True)
        self.server, self.agent, self.token = server, name, token
        self.rng = np.random.default_rng(seed)
        self.rounds = rounds
        self.dim, self.blocks = dim, blocks
        self.total = SufficientStats.zeros(dim, blocks)
        self.connected, self.may_begin = threading.Event(), threading.Event()
        self.error: BaseException | None = None

    def begin(self) -> None:
        """Let it play."""
        self.may_begin.set()

    def run(self) -> None:
        try:
            self._play()
        except BaseException as error:  # noqa: BLE001 - told by whoever joins the thread
            self.error = error

    def _play(self) -> None:
        with fb.connect(self.server.url, model="news", token=self.token, agent=self.agent) as agent:
            self.connected.set()
            self.may_begin.wait(60)
            for _ in range(self.rounds):
                decision = self._decide(agent)
                reward = float(decision.x[0] - decision.x[1] + self.rng.integers(-1, 2))
                agent.observe(decision, reward)
                self.total = self.total + self._sums_of(decision, reward)
                time.sleep(float(self.rng.uniform(0.0, 0.006)))
            agent.flush(timeout_s=60.0)

    def _decide(self, agent: fb.LiveAgent) -> fb.Decision:
        if self.blocks == 1:
            return agent.choose(self.rng.integers(-3, 4, (4, self.dim)).astype(float))
        return agent.choose_context(self.rng.integers(-3, 4, self.dim // self.blocks).astype(float), bias=False)

    def _sums_of(self, decision: fb.Decision, reward: float) -> SufficientStats:
        if decision.block is None:
            return SufficientStats.of([decision.x], [reward])
        return SufficientStats.of_blocks(np.array([decision.block]), decision.x[None], np.array([reward]), self.blocks)


@needs_node
def test_agents_of_both_languages_draw_the_same(tmp_path: Path) -> None:
    """A Node agent under a policy that draws at random tells what a Python agent with its names tells."""
    with running_server(tmp_path) as server:
        server.add_model("news", dim=DIM, alpha=0.5, beta=0.5, policy="inverse-gap", explore=0.25, policy_seed=5)
        token = server.add_agent("news", "js-1")
        with NodeAgent(server, "js-1", token, seed=3, rounds=40) as agent:
            agent.begin()
            result = agent.result()
        assert server.show("news")["n_obs"] == 40
    told = result["told"]
    assert len(told) == 40 and {each["policy"] for each in told} == {"inverse-gap"}
    assert all(0 < each["propensity"] < 1 for each in told)
    coin = CounterRandom(seed=5, agent_id="js-1", incarnation=result["incarnation"], purpose="explore")
    explored = [each for each in told if coin.uniform(each["number"], 0) < 0.25]
    assert explored and all(each["index"] == coin.index(each["number"], 4, 1) for each in explored)


@needs_node
def test_a_mixed_fleet_counts_every_observation_once(tmp_path: Path) -> None:
    """Whole numbers add exactly, in any order: the server's state is λI and everybody's data, to the last bit.

    One Node agent is the second life of a process that ended without uploading, and the server dies in the middle.
    """
    with running_server(tmp_path) as server:
        server.add_model("news", dim=DIM, alpha=0.5, beta=0.5)
        tokens = {name: server.add_agent("news", name) for name in ("py-1", "py-2", "js-1", "js-2", "js-3")}
        state = {"state": str(tmp_path / "js-3.json")}
        with NodeAgent(server, "js-3", tokens["js-3"], seed=3, rounds=60, flush=False, **state) as agent:
            agent.begin()
            first = agent.result()

        python = [PythonAgent(server, f"py-{n}", tokens[f"py-{n}"], seed=n, rounds=ROUNDS) for n in (1, 2)]
        for thread in python:
            thread.start()
            assert thread.connected.wait(60), repr(thread.error)
        with (
            NodeAgent(server, "js-1", tokens["js-1"], seed=11, rounds=ROUNDS) as one,
            NodeAgent(server, "js-2", tokens["js-2"], seed=12, rounds=ROUNDS) as two,
            NodeAgent(server, "js-3", tokens["js-3"], seed=13, rounds=ROUNDS, **state) as three,
        ):
            for agent in (*python, one, two, three):
                agent.begin()
            time.sleep(0.3)
            server.kill()
            server.start()
            results = [first, *(agent.result() for agent in (one, two, three))]
        for thread in python:
            thread.join(120)
            assert not thread.is_alive()
            assert thread.error is None, repr(thread.error)

        reply = state_of(server)
        shown = server.show("news")
    total = SufficientStats.prior(dim=DIM, lam=1.0)
    for thread in python:
        total = total + thread.total
    expected = np.frombuffer(packed_bytes(total)) + sum(np.array(result["total"]) for result in results)
    assert np.array_equal(codec.numbers_of(reply), expected)
    assert shown["n_obs"] == 60 + 5 * ROUNDS
    assert all(result["unsent"] == 0 and result["inFlight"] is None for result in results[1:])
    assert all(result["uploads"] > 0 for result in results), "the trigger was at work"


@needs_node
def test_a_mixed_fleet_on_a_model_with_blocks_counts_every_observation_once(tmp_path: Path) -> None:
    """Agents of both languages, by rows and by context, arms left out; one Node agent is resumed, the server dies.

    Whole numbers add exactly, so the server's sums by block are λI and everybody's data, to the last bit.
    """
    size = {"dim": 12, "blocks": 4}
    with running_server(tmp_path) as server:
        server.add_model("news", **size, arms=["tea", "milk", "bread", "jam"], alpha=0.5, beta=0.5)
        tokens = {name: server.add_agent("news", name) for name in ("py-1", "js-1", "js-2")}
        state = {"state": str(tmp_path / "js-2.json"), "dim": 12}
        with NodeAgent(server, "js-2", tokens["js-2"], seed=3, rounds=60, flush=False, **state) as agent:
            agent.begin()
            first = agent.result()

        python = PythonAgent(server, "py-1", tokens["py-1"], seed=1, rounds=ROUNDS, **size)
        python.start()
        assert python.connected.wait(60), repr(python.error)
        with (
            NodeAgent(server, "js-1", tokens["js-1"], seed=11, rounds=ROUNDS, dim=12) as one,
            NodeAgent(server, "js-2", tokens["js-2"], seed=13, rounds=ROUNDS, **state) as two,
        ):
            for player in (python, one, two):
                player.begin()
            time.sleep(0.3)
            server.kill()
            server.start()
            results = [first, one.result(), two.result()]
        python.join(120)
        assert not python.is_alive()
        assert python.error is None, repr(python.error)
        reply, shown = state_of(server), server.show("news")
    assert isinstance(reply, codec.BlockSyncReply) and reply.blocks == 4
    total = SufficientStats.prior(dim=12, lam=1.0, blocks=4) + python.total
    expected = np.frombuffer(packed_bytes(total)) + sum(np.array(result["total"]) for result in results)
    assert np.array_equal(codec.numbers_of(reply), expected)
    assert shown["n_obs"] == 60 + 3 * ROUNDS
    assert all(result["unsent"] == 0 and result["inFlight"] is None for result in results[1:])
    assert all(result["uploads"] > 0 for result in results), "the trigger was at work"
