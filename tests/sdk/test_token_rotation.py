"""A running agent changes its token: from a file or a function, with an overlap, without losing an observation."""

from __future__ import annotations

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import InvalidParameter, NotReachable, Refused
from tests.live import running_server

ROWS = np.eye(3)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as server:
        server.add_model("news", dim=3, alpha=0.0)
        yield server


def renew(server, name: str, overlap_s: float) -> str:
    body = {"name": name, "renew": True, "overlap_s": overlap_s}
    return server.call("POST", "/v1/models/news/agents", body)["token"]


@pytest.mark.parametrize("kind", ["file", "function"])
def test_a_token_is_rotated_under_a_running_agent(server, tmp_path, kind) -> None:
    file = tmp_path / "token"
    file.write_text(server.add_agent("news", kind) + "\n")
    source = file if kind == "file" else lambda: file.read_text().strip()
    with fb.connect(server.url, model="news", token=source, state_dir=tmp_path / "state", sync="inline") as agent:
        agent.observe(agent.choose(ROWS), 1.0)
        new = renew(server, kind, overlap_s=3600.0)
        agent.observe(agent.choose(ROWS), 1.0)  # by the old token, during the overlap
        assert agent.status().in_flight == 0
        file.write_text(new)
        renew_at_once = renew(server, kind, overlap_s=0.0)  # the two before are not valid any more
        agent.observe(agent.choose(ROWS), 1.0)
        assert agent.status().last_error_code == "unauthenticated" and agent.status().in_flight == 1
        file.write_text(renew_at_once)
        agent.flush()
        file.unlink()
        agent.observe(agent.choose(ROWS), 1.0)
        with pytest.raises((NotReachable, Refused)):
            agent.flush(0.5)
        file.write_text(renew_at_once)
        agent.flush()
    assert server.call("GET", f"/v1/models/news/agents/{kind}")["n_obs"] == 4


def test_what_cannot_be_a_token_is_named(server, tmp_path) -> None:
    with pytest.raises(NotReachable, match="cannot be read"):
        fb.connect(server.url, model="news", token=tmp_path / "nothing", state_dir=tmp_path / "a")
    with pytest.raises(InvalidParameter, match="text, a path or a function"):
        fb.connect(server.url, model="news", token=5, state_dir=tmp_path / "b")
    with pytest.raises(NotReachable, match="ZeroDivisionError"):
        fb.connect(server.url, model="news", token=lambda: str(1 // 0), state_dir=tmp_path / "c")
