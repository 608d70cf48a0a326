"""The JavaScript client on Node with a state directory: kills, a restored server, rewards from elsewhere, enrolment."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.messages import packed_bytes
from fedbandit.core.statistics import SufficientStats
from fedbandit.wire import codec
from tests.clients.node import NodeCalls, NodeProcess, needs_node, state_of
from tests.live import LiveServer, running_server

ROWS = [[1, 0, 0], [0, 1, 0]]
SIGKILLED = -9


def expected_sums(record: Path) -> np.ndarray:
    """λI and every decision that the application wrote down, once."""
    seen = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    assert len({each["id"] for each in seen}) == len(seen), "an id was given twice"
    rows, rewards = np.array([each["x"] for each in seen]), np.array([each["reward"] for each in seen])
    return np.frombuffer(packed_bytes(SufficientStats.prior(dim=3, lam=1.0) + SufficientStats.of(rows, rewards)))


@needs_node
def test_a_node_agent_that_is_killed_again_and_again_counts_everything_once(tmp_path: Path) -> None:
    """Whole numbers add exactly. The server is killed, too, and then restored from a backup of before."""
    rng = random.Random(17)
    record = tmp_path / "record.jsonl"
    with running_server(tmp_path / "server") as server:
        server.add_model("news", dim=3, alpha=0.2, beta=0.5)
        task = {"token": server.add_agent("news", "js-1"), "state": str(tmp_path / "state"), "record": str(record)}

        def kill_one(*, seed: int, n_merged: int = 0) -> int:
            with NodeProcess("killed.mjs", url=server.url, seed=seed, **task) as agent:
                again: int = agent.line()["again"]
                while server.show("news")["n_obs"] <= n_merged:
                    time.sleep(0.01)
                time.sleep(rng.uniform(0.0, 0.3))  # it plays; the moment does not matter
                assert agent.kill() == SIGKILLED, "it plays until it is killed"
            return again

        n_again = sum(kill_one(seed=seed) for seed in range(4))
        server.stop()
        shutil.copytree(server.data_dir, tmp_path / "backup")
        server.start()
        n_backup = server.show("news")["n_obs"]
        n_again += kill_one(seed=4, n_merged=n_backup)
        server.kill()
        shutil.rmtree(server.data_dir)
        shutil.copytree(tmp_path / "backup", server.data_dir)
        server.start()
        assert server.show("news")["n_obs"] == n_backup
        with NodeProcess("killed.mjs", url=server.url, seed=9, last=True, **task) as agent:
            n_again += agent.line()["again"]
            result = agent.line()
        reply, shown = state_of(server), server.show("news")
    assert np.array_equal(codec.numbers_of(reply), expected_sums(record))
    assert shown["n_obs"] == len(record.read_text(encoding="utf-8").splitlines())
    assert n_again > 0, "some decisions got their rewards in a later process"
    assert result["lost"] <= 5, "at most one decision per kill was made and not written down"
    assert result["sequence"] > 5 and result["kept"] > 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with running_server(tmp_path_factory.mktemp("server")) as made:
        yield made


@needs_node
def test_rewards_reach_decisions_of_another_language_once(server: LiveServer, tmp_path: Path) -> None:
    """Reported by a Python agent for a Node agent's decision and the other way round; then what comes too late."""
    server.add_model("shop", dim=3, alpha=1e9)
    tokens = {name: server.add_agent("shop", name) for name in ("js-1", "py-1")}
    with fb.connect(server.url, model="shop", token=tokens["py-1"]) as python:
        options = {"model": "shop", "token": tokens["js-1"], "state": str(tmp_path / "state")}
        with NodeCalls(server, **options) as node:
            theirs, ours = [node.call("choose", ROWS)["id"] for _ in range(3)], python.choose(np.array(ROWS))
            assert [python.report(decision, 1.0) for decision in theirs[:2]] == ["waiting", "waiting"]
            assert node.call("observe", theirs[1], 0.5) is False  # the owner was first
            assert node.call("report", ours.id, 1) == "waiting"
            assert node.call("report", theirs[2], 0.25) == "booked"  # its own
            assert node.kill() == SIGKILLED
        with NodeCalls(server, **options) as again:
            assert again.call("pending.size") == 0  # joining collected what waited
            assert [python.report(decision, 1.0) for decision in theirs[:2]] == ["booked", "not_pending"]
            assert again.ask("observe", theirs[0], 1)["error"] == "AlreadyObserved"
            assert again.ask("report", "no decision", 1)["code"] == "invalid_parameter"
            again.call("flush")
        python.refresh()
        assert len(python.pending) == 0
        python.flush()
    shown = server.show("shop")
    assert (shown["n_obs"], shown["n_rewards"]) == (4, 0)
    reply = codec.decode_reply(server.request("GET", "/v1/models/shop/state").data)
    assert codec.numbers_of(reply)[-2] == 1.0 + 0.5 + 0.25 + 1.0


def enrolment_of(server: LiveServer, model: str, **options: Any) -> str:
    made: dict[str, Any] = server.call("POST", f"/v1/models/{model}/enrolments", {"name_prefix": "web-", **options})
    return str(made["secret"])


@needs_node
def test_a_node_agent_enrols_itself_once(server: LiveServer, tmp_path: Path) -> None:
    server.add_model("pods", dim=3)
    secret, state = enrolment_of(server, "pods", max_uses=1), tmp_path / "state"

    def connected(folder: str, **options: Any) -> NodeCalls:
        return NodeCalls(server, model="pods", state=str(tmp_path / folder), **options)

    with connected("state", enrol=secret) as first:
        name = first.connected["value"]
        assert name.startswith("web-")
        first.call("observe", [1, 0, 0], 1)
        assert first.kill() == SIGKILLED
    shutil.copytree(state, tmp_path / "copy")
    with connected("state") as again:  # neither a token nor the string
        assert again.connected["value"] == name
        again.call("flush")
    with connected("copy") as copy:
        assert copy.connected["code"] == "copied_state"
    with connected("other", enrol=secret) as other:
        assert other.connected["code"] == "enrolment_ended"
    with connected("other", enrol=enrolment_of(server, "pods")) as other:  # another string after one that ended
        assert other.connected["value"].startswith("web-") and other.connected["value"] != name
    with connected("pin", enrol=f"{secret}.sha256-{'x' * 43}") as pinned:
        assert pinned.connected["error"] == "InvalidInput"
    assert server.show("pods")["n_obs"] == 1


@needs_node
def test_an_enrolment_that_was_not_answered_is_completed_with_the_same_nonce(
    server: LiveServer, tmp_path: Path
) -> None:
    """As if the process was killed after the server made the agent: the same nonce gets the same agent, for one use."""
    server.add_model("edge", dim=3)
    secret, nonce = enrolment_of(server, "edge", max_uses=1), "n" * 43
    made = server.call("POST", "/v1/models/edge/enrol", {"nonce": nonce}, token=secret)
    state = tmp_path / "state"
    state.mkdir()
    asked = {"format": 1, "identity": {"nonce": nonce, "secret": secret, "session": ""}}
    (state / "agent.jsonl").write_text(json.dumps(asked) + "\n", encoding="utf-8")
    with NodeCalls(server, model="edge", state=str(state), enrol=secret) as agent:
        assert agent.connected["value"] == made["agent"]
    stored = json.loads((state / "agent.jsonl").read_text(encoding="utf-8").splitlines()[0])["identity"]
    assert "secret" not in stored and stored["token"] == made["token"] and stored["session"].startswith("1-")
