"""Tokens: compared in constant time, invalid after revocation, and never in logs or errors of an agent."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import FedbanditError, NotReachable, Refused
from tests.live import running_server

SOURCE = Path(fb.__file__).parent
SECRET = ("token", "hash", "password", "secret")


def names_in(node: ast.AST) -> set[str]:
    """The name of an expression; of a call, the function's name."""
    if isinstance(node, ast.Call):
        return names_in(node.func)
    if isinstance(node, ast.Attribute):
        return {node.attr, *names_in(node.value)}
    if isinstance(node, ast.Name):
        return {node.id}
    return {name for inner in ast.iter_child_nodes(node) for name in names_in(inner)}


def comparisons_of_secrets(source: str) -> list[int]:
    """Lines that compare something with the name of a secret by == or !=."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            names = {name.lower() for side in (node.left, *node.comparators) for name in names_in(side)}
            if any(word in name for word in SECRET for name in names):
                found.append(node.lineno)
    return found


def test_the_search_finds_what_it_looks_for() -> None:
    assert comparisons_of_secrets("if known == token_hash:\n    pass") == [1]
    assert comparisons_of_secrets("x = row.token != given") == [1]
    assert comparisons_of_secrets("x = hash_token(given) == row.kept") == [1]
    assert comparisons_of_secrets("x = compare_digest(row.token, given)\ny = a == b") == []


def test_the_service_compares_no_token_and_no_hash_by_equality() -> None:
    """Elsewhere a hash is looked up as a key of a table: the timing does not reveal the token."""
    files = [*(SOURCE / "service").rglob("*.py"), *(SOURCE / "dashboard").rglob("*.py")]
    assert len(files) > 30
    found = {file.name: lines for file in files if (lines := comparisons_of_secrets(file.read_text()))}
    assert found == {}
    assert "hmac.compare_digest" in (SOURCE / "service" / "exchange" / "ledger.py").read_text()


def test_a_token_from_the_environment_is_worthless_once_the_variable_is_gone(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        assert server.request("GET", "/v1/models").status == 200
        assert server.stop() == 0
        server.environment = {"FEDBANDIT_ADMIN_TOKEN": ""}
        server.start()
        assert server.request("GET", "/v1/models").status == 401
        printed = [line.split()[-1] for line in server.lines if line.startswith("admin token")]
        assert len(printed) == 1  # there was no other, so one is created
        assert server.request("GET", "/v1/models", token=printed[0]).status == 200
        listed = server.call("GET", "/v1/tokens", token=printed[0])["tokens"]
        assert [entry["name"] for entry in listed] == ["admin"]


def test_an_agent_says_its_token_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    raised: list[FedbanditError] = []
    with caplog.at_level(logging.DEBUG), running_server(tmp_path) as server:
        server.add_model("news", alpha=0.0)
        token, gone = server.add_agent("news", "a"), server.add_agent("news", "b")
        server.call("POST", "/v1/models/news/agents/b/revoke")
        with fb.connect(server.url, model="news", token=token, agent="a", state_dir=tmp_path / "a") as agent:
            agent.observe(np.ones(3), 1.0)
            agent.flush(10.0)
            shown = repr(agent) + repr(agent.status()) + repr(agent._client.transport)
            server.call("POST", "/v1/models/news/agents/a/revoke")
            agent.observe(np.ones(3), 1.0)
            with pytest.raises(Refused) as refused:
                agent.flush(10.0)
            raised.append(refused.value)
        for bad in ({"token": gone, "model": "news"}, {"token": token, "model": "other"}):
            with pytest.raises(Refused) as refused:
                fb.connect(server.url, agent="b", **bad)
            raised.append(refused.value)
        server.kill()
        with pytest.raises(NotReachable) as unreachable:
            fb.connect(server.url, model="news", token=token, agent="a")
        raised.append(unreachable.value)
    assert len(caplog.records) > 3
    told = [caplog.text, shown, *(repr(error) + str(error) for error in raised)]
    told += [repr(error.__cause__) + repr(error.__context__) for error in raised]
    kept = [path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file()]
    assert kept
    for secret in (token, gone):
        assert not any(secret in text for text in told)
        assert not any(secret.encode() in content for content in kept)
