"""The committed vectors are what the code makes now, and our own codec and agent read them back."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedbandit import FedLinUCB, SufficientStats
from fedbandit.algorithms.messages import digest_of, packed_bytes, stats_from_bytes
from fedbandit.core import radius as radii
from fedbandit.core.block_rows import full_row
from fedbandit.errors import FormatError, NotOneBlock, UnsupportedFormat
from fedbandit.wire import codec

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = 1e-9
ERRORS = {"FormatError": FormatError, "UnsupportedFormat": UnsupportedFormat}


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_vectors", ROOT / "scripts" / "make_vectors.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(name: str) -> Any:
    return json.loads((ROOT / "docs" / "vectors" / name).read_text(encoding="utf-8"))


STATISTICS = read("statistics.json")["cases"]
MESSAGES = read("messages.json")
BLOCKS = read("blocks.json")
STORIES = read("agents.json")["stories"]


def assert_same(made: Any, kept: Any, where: str) -> None:
    """Numbers within the tolerance; everything else, bytes in hexadecimal included, exactly."""
    if isinstance(made, float) or isinstance(kept, float):
        assert math.isclose(made, kept, rel_tol=TOLERANCE, abs_tol=TOLERANCE), f"{where}: {made} is not {kept}"
    elif isinstance(made, dict):
        assert made.keys() == kept.keys(), where
        for key, value in made.items():
            assert_same(value, kept[key], f"{where}.{key}")
    elif isinstance(made, list):
        assert len(made) == len(kept), where
        for number, value in enumerate(made):
            assert_same(value, kept[number], f"{where}[{number}]")
    else:
        assert made == kept, f"{where}: {made!r} is not {kept!r}"


def test_committed_vectors_are_what_the_code_makes() -> None:
    script = load_script()
    made = script.make()
    assert {path.name for path in (ROOT / "docs" / "vectors").glob("*.json")} == set(made)
    for name, content in made.items():
        assert_same(json.loads(script.to_text(content)), read(name), name)


@pytest.mark.parametrize("case", STATISTICS, ids=lambda case: case["name"])
def test_statistics(case: dict[str, Any]) -> None:
    stats = stats_from_bytes(bytes.fromhex(case["bytes"]), case["dim"])
    assert len(case["bytes"]) == 2 * 8 * (case["dim"] * (case["dim"] + 1) // 2 + case["dim"] + 3)
    assert stats == SufficientStats(
        np.array(case["Sigma"]), np.array(case["b"]), case["n_obs"], case["reward_sum"], case["reward_sq_sum"]
    )
    assert packed_bytes(stats).hex() == case["bytes"]
    assert digest_of(packed_bytes(stats)).hex() == case["digest"]


def fields_of(message: codec.SyncRequest | codec.SyncReply) -> dict[str, Any]:
    plain = codec.fields_of(message)
    return {key: value.hex() if isinstance(value, bytes) else value for key, value in plain.items()}


@pytest.mark.parametrize("case", MESSAGES["requests"], ids=lambda case: str(case["fields"]["sequence"]))
def test_requests(case: dict[str, Any]) -> None:
    request = codec.decode_request(bytes.fromhex(case["bytes"]))
    assert fields_of(request) == case["fields"]
    again = codec.request_of(codec.upload_of(request), model_version=request.model_version, unsent=request.unsent)
    assert codec.encode(again).hex() == case["bytes"]


@pytest.mark.parametrize(
    "case",
    [*MESSAGES["replies"], *BLOCKS["replies"], *MESSAGES["same_replies"]],
    ids=lambda case: case.get("name", "canonical"),
)
def test_replies(case: dict[str, Any]) -> None:
    reply = codec.decode_reply(bytes.fromhex(case["bytes"]))
    assert fields_of(reply) == case["fields"]
    if "name" not in case:
        again = codec.reply_of(codec.download_of(reply), settings=reply.settings)
        assert codec.encode(again).hex() == case["bytes"]


@pytest.mark.parametrize("case", BLOCKS["requests"], ids=lambda case: str(case["fields"]["sequence"]))
def test_requests_with_blocks(case: dict[str, Any]) -> None:
    request = codec.decode_request(bytes.fromhex(case["bytes"]))
    assert isinstance(request, codec.BlockSyncRequest)
    assert fields_of(request) == case["fields"]
    again = codec.request_of(codec.upload_of(request), model_version=request.model_version, unsent=request.unsent)
    assert codec.fields_of(again) == codec.fields_of(request)


@pytest.mark.parametrize("case", BLOCKS["rows"], ids=lambda case: str(case["block"]))
def test_rows_in_blocks(case: dict[str, Any]) -> None:
    agent = FedLinUCB(dim=case["dim"], blocks=case["blocks"], alpha=1e9, beta=0.5).agent("a")
    if case["block"] is None:
        with pytest.raises(NotOneBlock):
            agent.observe(case["x"], 1.0)
        assert agent.local.n_obs == 0
    else:
        agent.observe(case["x"], 1.0)
        assert agent.local.b.tolist() == case["x"]


@pytest.mark.parametrize("case", [*MESSAGES["bad_replies"], *BLOCKS["bad_replies"]], ids=lambda case: case["name"])
def test_bad_replies(case: dict[str, Any]) -> None:
    with pytest.raises(FormatError) as caught:
        codec.decode_reply(bytes.fromhex(case["bytes"]))
    assert type(caught.value) is ERRORS[case["error"]]


@pytest.mark.parametrize("case", [*MESSAGES["bad_requests"], *BLOCKS["bad_requests"]], ids=lambda case: case["name"])
def test_bad_requests(case: dict[str, Any]) -> None:
    with pytest.raises(FormatError) as caught:
        codec.decode_request(bytes.fromhex(case["bytes"]))
    assert type(caught.value) is ERRORS[case["error"]]


@pytest.mark.parametrize("story", [*STORIES, *BLOCKS["stories"]], ids=lambda story: story["name"])
def test_stories_can_be_told_from_the_file_alone(story: dict[str, Any]) -> None:
    """As a client in another language does it: settings, bytes and rows in, choices, growth and bytes out."""
    s = story["settings"]
    numbers = {"dim": s["dim"], "lam": s["lam"], "alpha": s["alpha"], "personal": s.get("personal")}
    rule = FedLinUCB(**numbers, beta=radii.from_dict(s["radius"]), blocks=s.get("blocks", 1), arms=s.get("arms"))
    agent = rule.agent(s["agent"], incarnation=story["incarnation"])
    for step in story["steps"]:
        if step["do"] == "choose":
            assert agent.choose(step["actions"]).index == step["index"]
            np.testing.assert_allclose(agent.scores(step["actions"]).upper, step["scores"], rtol=TOLERANCE)
            continue
        if step["do"] == "choose_context":
            decision = agent.choose_context(step["context"], arms=step["arms"], bias=step["bias"])
            assert (decision.index, decision.block, decision.arm) == (step["index"], step["block"], step["arm"])
            continue
        if step["do"] == "observe":
            row = step["x"] if "block" not in step else full_row(np.array([step["block"], *step["x"]]), rule.blocks)
            upload = agent.observe(row, step["reward"])
        elif step["do"] == "receive":
            reply = codec.decode_reply(bytes.fromhex(step["reply"]))
            upload = agent.adopt(codec.download_of(reply))
            assert (reply.version, reply.acknowledged) == (step["version"], step["acknowledged"])
            assert agent.model_version == step["model_version"]
        else:
            upload = agent.upload_now()
        assert math.isclose(agent.growth, step["growth"], rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        assert (upload is None) == (step["upload"] is None)
        if upload is not None:
            request = codec.decode_request(codec.encode(codec.request_of(upload)))
            assert request.stats.hex() == step["upload"]["stats"]
            assert request.digest.hex() == step["upload"]["digest"]
            assert request.sequence == step["upload"]["sequence"]
            assert fields_of(request).get("touched") == step["upload"].get("touched")


def test_the_vectors_cover_what_they_promise() -> None:
    kinds = {story["settings"]["radius"]["kind"] for story in STORIES}
    assert kinds == set(radii.KINDS)
    assert any(story["settings"]["dim"] == 1 for story in STORIES)
    flights = [step for story in STORIES for step in story["steps"] if step.get("in_flight") and step.get("n_unsent")]
    assert flights, "observations while an upload is in flight"
    at_once = [step for story in STORIES for step in story["steps"] if step["do"] == "receive" and step["upload"]]
    assert at_once, "an answer that triggers the next upload"
    exact = [
        step
        for story in STORIES
        for step in story["steps"]
        if step["do"] == "observe"
        and step["upload"] is None
        and math.isclose(step["growth"], math.log1p(story["settings"]["alpha"]), rel_tol=1e-14)
    ]
    assert len(exact) >= 5, "a determinant ratio of exactly 1 + alpha that does not trigger"
