"""Who may do what: every route that the application has × every kind of caller, against a real server.

The server logs at debug level meanwhile, and no token may be in what it logs or answers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from fedbandit.dashboard.layout import static_url
from fedbandit.wire import codec
from tests.live import LiveServer, running_server
from tests.security.roles import ALLOWED, EVERYBODY, routes, status_for
from tests.service.uploads import incoming, request

STREAMS = "GET /live"
WITH_TOKEN = (
    "POST /v1/tokens",
    "POST /v1/models/{model}/agents",
    "POST /v1/models/{model}/enrolments",
    "POST /v1/models/{model}/enrol",
)
ELSEWHERE = {
    "arms": "arms",
    "restart": "other",
    "gain": "tested",
    "features": "wider",
}  # models that have what the route is for
BODIES = {
    "POST /v1/models/{model}/arms": {"arms": ["c"]},
    "POST /v1/models/{model}/features": {"features": 1},
    "POST /v1/models/{model}/events": {"text": "deployed"},
    "POST /v1/sign-in-links": {},
    "PATCH /v1/models/{model}": {"beta": 0.6},
    "POST /v1/models": {"name": "made", "dim": 2, "beta": 1.0},
    "POST /v1/models/{model}/prune": {"after_s": 1e9},
    "POST /v1/models/{model}/enrol": {"nonce": "n" * 43},
    "POST /v1/models/{model}/start": {"session": "1-" + "a" * 32},
    "POST /v1/models/{model}/rewards": {"decision": "aaaaaaaaaaaa-1", "reward": 1.0},
    "POST /v1/models/{model}/rewards/collect": {"prefix": "aaaaaaaaaaaa"},
}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class Place:
    """A server with two models and a token of every kind."""

    def __init__(self, server: LiveServer) -> None:
        self.server = server
        server.add_model("news", control=0.1)
        server.add_model("other")
        server.add_model("arms", dim=4, blocks=2, arms=["a", "b"])
        server.add_model("tested", control=0.1)
        server.add_model("wider")
        self.tokens = {
            "admin": server.admin_token,
            "viewer": server.call("POST", "/v1/tokens", {"name": "viewer"})["token"],
            "reporter": server.call("POST", "/v1/tokens", {"name": "hook", "role": "reporter"})["token"],
            "own": server.add_agent("news", "a"),
            "peer": server.add_agent("news", "b"),
            "foreign": server.add_agent("other", "c"),
            "revoked": server.add_agent("news", "gone"),
            "replaced": server.call("POST", "/v1/tokens", {"name": "old", "role": "admin"})["token"],
            "enrolling": server.call("POST", "/v1/models/news/enrolments", {"name": "e"})["secret"],
            "missing": "",
            "malformed": "short",
            "unknown": "fb_" + "u" * 43,
        }
        server.call("POST", "/v1/models/news/agents/gone/revoke")
        server.add_agent("news", "spent")
        server.call("POST", "/v1/models/news/rewards/collect", {"prefix": "aaaaaaaaaaaa"}, token=self.tokens["own"])
        server.call("POST", "/v1/tokens", {"name": "old", "role": "viewer", "replace": True})
        self.sequence = 0
        self.answers: list[str] = []  # all responses of the server except those with a token

    def ask(self, route: str, who: str, *, head: bool = False) -> int:
        """The status of a call; permitted calls use objects that may be changed."""
        method, path = route.split()
        allowed = who in ALLOWED[route]
        options = self._body(route, allowed)
        path = self._path(route, path, allowed, who)
        options.setdefault("headers", {})
        answer = self.server.request(
            "HEAD" if head else method,
            path,
            token=self.tokens[who],
            redirect=False,
            preload_content=not route.startswith(STREAMS),
            **options,
        )
        if route.startswith(STREAMS):
            if answer.status != 200:
                self.answers.append(answer.read().decode("utf-8", "replace"))
            answer.close()  # a stream does not end
        elif not (route in WITH_TOKEN and answer.status in (200, 201)):
            self.answers.append(answer.data.decode("utf-8", "replace"))
        self.answers.append(str(dict(answer.headers)))
        return answer.status

    def _path(self, route: str, path: str, allowed: bool, who: str) -> str:
        if "static" in path:
            return static_url("dashboard.css")
        spoils = route.startswith(("DELETE", "POST")) and allowed and not route.endswith("/sync")
        agent, model = ("b", "news") if spoils else ("a", "news")
        if route == "DELETE /v1/models/{model}" and allowed:
            self.server.call("POST", "/v1/models", {"name": "spare", "dim": 2, "beta": 1.0})
            model = "spare"
        if route.endswith("/revoke") and allowed:
            agent = "gone"
        if route.endswith("retire") and allowed:
            agent = "a" if who == "own" else "spent"
            self.server.call("POST", f"/v1/models/news/agents/{agent}/unretire")
        if allowed and route.split("/")[-1] in ELSEWHERE:
            model = ELSEWHERE[route.split("/")[-1]]
        return (
            path.replace("{model}", model)
            .replace("{agent}", agent)
            .replace("{file}", "events.csv")
            .replace("{name}", "e" if "enrolments" in path else "nobody")
        )

    def _body(self, route: str, allowed: bool) -> dict[str, Any]:
        if route.endswith("/sync"):
            self.sequence += allowed
            upload = incoming("a", max(self.sequence, 1))
            return {"body": codec.encode(request(upload))}
        if route.startswith("POST /v1/models/{model}/agents/"):
            return {}
        if route.startswith(("POST /v1", "PATCH /v1")):
            return {"json": BODIES.get(route, {"name": "made"})}
        return {"body": b"", "headers": FORM} if route.startswith("POST") else {}

    def books(self) -> list[Any]:
        """State that rejected calls must not change."""
        told = [self.server.request("GET", f"/v1/models/{name}/state").data for name in ("news", "other")]
        told += [self.server.call("GET", path) for path in ("/v1/models", "/v1/models/news/agents", "/v1/tokens")]
        return told


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with running_server(tmp_path_factory.mktemp("access"), log_level="debug") as server:
        yield Place(server)


def test_every_route_has_an_entry_and_every_entry_a_route() -> None:
    assert routes() == set(ALLOWED)


@pytest.mark.parametrize("route", sorted(ALLOWED))
def test_the_right_callers_come_in_and_nobody_else(place: Place, route: str) -> None:
    before = place.books()
    for who in EVERYBODY:
        if who not in ALLOWED[route]:
            assert place.ask(route, who) == status_for(route, who), who
    assert place.books() == before
    for who in ALLOWED[route]:
        assert place.ask(route, who) in (200, 201, 204, 303), who
        if route.endswith("/retire"):
            place.server.call("POST", "/v1/models/news/agents/a/unretire")


@pytest.mark.parametrize("route", sorted(route for route in ALLOWED if not route.startswith(STREAMS)))
def test_asking_for_the_head_only_gets_nobody_in(place: Place, route: str) -> None:
    if route.startswith("GET ") and "missing" not in ALLOWED[route]:
        assert place.ask(route, "missing", head=True) in (303, 401, 404, 405)


def test_a_token_in_the_address_opens_nothing(place: Place) -> None:
    for name in ("token", "access_token", "authorization", "api_key"):
        answer = place.server.request("GET", f"/v1/models?{name}={place.tokens['admin']}", token="")
        assert answer.status == 401
        place.answers.append(answer.data.decode())


def test_no_token_is_in_what_the_server_logged_or_answered(place: Place) -> None:
    """Runs last in this module, after all the calls above; alone it makes some of its own."""
    for who in EVERYBODY:
        place.ask("GET /v1/models", who)
        place.ask("POST /v1/models/{model}/sync", who)
        place.ask("GET /", who)
    place.server.request("POST", "/login", token="", body=f"token={place.tokens['viewer']}x", headers=FORM)
    logged = place.server.log() + "\n".join(place.server.lines)
    assert logged.count("\n") > 20
    assert any(json.loads(line)["level"] == "debug" for line in place.server.log().splitlines())
    for who, token in place.tokens.items():
        if who in ("missing", "malformed"):
            continue
        digest = hashlib.sha256(token.encode())
        for secret in (token, base64.urlsafe_b64encode(token.encode()).decode(), digest.hexdigest()):
            assert secret not in logged, f"the token of {who} is in the log"
            assert not any(secret in answer for answer in place.answers), f"the token of {who} was answered"
