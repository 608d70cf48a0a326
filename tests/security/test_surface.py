"""The JSON API under requests generated from its OpenAPI document by schemathesis, for every role, on a real server.

Every answer has a status that the description names for its call, never 500, and one shape for errors. Tokens that may
not change anything change nothing.
"""

from __future__ import annotations

import gc
import hashlib
import json
import secrets
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from fedbandit.wire.codec import CONTENT_TYPE
from tests.live import LiveServer, running_server
from tests.security.mutate import mutated, seeds

READING = ("viewer", "own", "revoked", "missing")
ROLES = ("admin", *READING)

BODIES = st.builds(lambda body, seed: mutated(body, Random(seed)), st.sampled_from(seeds()), st.integers(0, 1 << 32))
schemathesis.openapi.media_type(CONTENT_TYPE, BODIES)


@schemathesis.serializer(CONTENT_TYPE)
def _as_it_is(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


class Surface:
    """A server, its OpenAPI document, and a token of every role."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        server.add_model("news")
        self.tokens = {
            "admin": server.admin_token,
            "viewer": server.call("POST", "/v1/tokens", {"name": "viewer"})["token"],
            "own": server.add_agent("news", "a"),
            "revoked": server.add_agent("news", "gone"),
            "missing": "",
        }
        server.call("POST", "/v1/models/news/agents/gone/revoke")
        document = server.call("GET", "/openapi.json", token="")
        self.schema = schemathesis.openapi.from_dict(document)
        self.document = document
        self.seen: Counter[tuple[str, int]] = Counter()

    def digest(self) -> str:
        """A digest of the stored state."""
        told = [self.server.request("GET", "/v1/models/news/state").data]
        paths = ("/v1/models", "/v1/models/news/agents?per_page=500", "/v1/tokens")
        told += [self.server.request("GET", path).data for path in paths]
        return hashlib.sha256(b"\n".join(told)).hexdigest()

    def call(self, case: Any, who: str) -> None:
        """Send a request and check the response."""
        headers = {"Authorization": f"Bearer {self.tokens[who]}"} if self.tokens[who] else {}
        self._aim(case)
        answer = case.call(base_url=self.server.url, headers=headers, timeout=20)
        label = f"{case.method} {case.path}"
        self.seen[label, answer.status_code] += 1
        named = self.document["paths"][case.path][case.method.lower()]["responses"]
        assert str(answer.status_code) in named, f"{label} answered {answer.status_code}: {answer.text[:300]}"
        assert answer.status_code != 500
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == ["application/json"], answer.headers
            assert set(json.loads(answer.content)) == {"error", "message"}

    def _aim(self, case: Any) -> None:
        """Half the calls go to what exists; an administrator's may not delete what the others are tested on."""
        parameters = case.path_parameters or {}
        spare = case.method == "DELETE" or case.path.endswith(("/revoke", "/forget", "/quarantine"))
        if "model" in parameters and not spare and secrets.randbelow(2):
            parameters["model"] = "news"
            if "agent" in parameters and secrets.randbelow(2):
                parameters["agent"] = "a"
        for name in parameters:
            if spare and parameters[name] in ("news", "a", "viewer", "environment"):
                parameters[name] += "-other"


@pytest.fixture(scope="module")
def surface(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surface]:
    with running_server(tmp_path_factory.mktemp("surface"), log_level="error") as server:
        yield Surface(server)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # schemathesis leaves a directory open
        gc.collect()


def explore(surface: Surface, who: str, n_examples: int) -> int:
    """Call every operation with examples drawn from its description, valid and invalid."""
    operations = [found.ok() for found in surface.schema.get_all_operations()]
    for operation in operations:
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

            @settings(
                max_examples=n_examples,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def run(case: Any) -> None:
                surface.call(case, who)

            with suppress(Unsatisfiable):  # a call without parameters has no invalid examples
                run()
    return len(operations)


def check(surface: Surface, who: str, n_examples: int) -> None:
    before = surface.digest()
    assert explore(surface, who, n_examples) > 20
    if who != "admin":
        assert surface.digest() == before, f"the token of {who} changed something"
    assert "internal_error" not in surface.server.log()


@pytest.mark.parametrize("who", ROLES)
def test_every_call_is_answered_as_described(surface: Surface, who: str) -> None:
    check(surface, who, 2)


@pytest.mark.slow
@pytest.mark.parametrize("who", ROLES)
def test_every_call_is_answered_as_described_at_length(surface: Surface, who: str) -> None:
    check(surface, who, 30)
