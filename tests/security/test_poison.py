"""Uploads that must not be merged: each is rejected with its status and error code, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live import LiveServer, running_server
from tests.security.poison import BOUNDS, ROWS, Poison, fields, sent, table

DOCS = Path(__file__).resolve().parents[2] / "docs"


class World:
    """A real server in the state that the rows assume."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        server.add_model("news", **BOUNDS)
        server.add_model("other")
        self.tokens = {name: server.add_agent("news", name) for name in ("a", "b")}
        self.tokens["c"] = server.add_agent("other", "c")
        for sender, body in (("a", sent("a", 1)), ("a", sent("a", 1, incarnation="life-2")), ("b", sent("b", 1))):
            assert self.post(sender, body()).status == 200
        server.call("POST", "/v1/models/news/agents/b/forget")

    def post(self, sender: str, body: bytes, headers: dict[str, str] | None = None) -> Any:
        path, token = "/v1/models/news/sync", self.tokens[sender]
        return self.server.request("POST", path, token=token, body=body, headers=headers or {})

    def books(self) -> tuple[Any, ...]:
        """State that a rejection must not change."""
        state = self.server.request("GET", "/v1/models/news/state").data
        shown = [self.server.call("GET", path) for path in ("/v1/models", "/v1/models/news/agents")]
        return (state, *shown)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_server(tmp_path_factory.mktemp("poison")) as server:
        yield World(server)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_it_is_refused_by_name_and_leaves_no_trace(world: World, row: Poison) -> None:
    before = world.books()
    answer = world.post(row.sender, row.body(), dict(row.headers))
    told = json.loads(answer.data)
    assert (answer.status, told["error"]) == (row.status, row.code), told
    assert set(told) == {"error", "message"} and told["message"]
    assert world.books() == before


def test_the_honest_upload_that_the_rows_are_made_of_counts(tmp_path: Path) -> None:
    """Otherwise all rows could be rejected for a common reason."""
    with running_server(tmp_path) as server:
        world = World(server)
        answer = world.post("a", fields()(), {"Content-Type": "application/octet-stream"})
        assert answer.status == 200, answer.data  # the content type is ignored
        assert server.show("news")["n_obs"] == 12


def test_the_document_has_every_row() -> None:
    assert table() in (DOCS / "http-api.md").read_text(encoding="utf-8")
