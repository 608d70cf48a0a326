"""The JSON surface: models, agents, tokens, and one shape for every error."""

import json

import pytest
from safetensors.numpy import load

from fedbandit.wire.codec import CONTENT_TYPE
from tests.service.uploads import folded, incoming


def problem(answer):
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error", "message"}
    return answer.status_code, answer.json()["error"]


def test_models_come_and_go(service):
    made = service.call("POST", "/v1/models", {"name": "news", "dim": 2, "beta": 0.5, "features": ["x", "y"]})
    assert (made["name"], made["dim"], made["lam"], made["alpha"]) == ("news", 2, 1.0, 1.0)
    assert made["radius"] == {"kind": "fixed", "beta": 0.5}
    assert service.call("GET", "/v1/models")["models"] == [made]
    assert service.call("GET", "/v1/models/news") == made
    assert service.request("DELETE", "/v1/models/news").status_code == 204
    assert problem(service.request("GET", "/v1/models/news")) == (404, "unknown_model")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": "news"},
        {"name": "news", "dim": 0, "beta": 1},
        {"name": "news", "dim": 2},
        {"name": "news", "dim": 2, "beta": 1, "radius": {"kind": "fixed", "beta": 1}},
        {"name": "news", "dim": 2, "radius": {"kind": "unheard-of"}},
        {"name": "news", "dim": 2, "radius": {"kind": "paper"}},
        {"name": "news", "dim": 2, "beta": -1},
        {"name": "news", "dim": 2, "beta": 1, "lam": 0},
        {"name": "news", "dim": 2, "beta": 1, "alpha": -0.5},
        {"name": "news", "dim": 2, "beta": 1, "features": ["x"]},
        {"name": "news", "dim": 2, "beta": 1, "action_bound": 0},
        {"name": "news", "dim": 2, "beta": 1, "reward_bound": 1e200},
        {"name": "news", "dim": 2, "beta": 1, "colour": "red"},
        {"name": "a/b", "dim": 2, "beta": 1},
        {"name": "", "dim": 2, "beta": 1},
        {"name": ".hidden", "dim": 2, "beta": 1},
        {"name": "news", "dim": "many", "beta": 1},
    ],
)
def test_a_model_that_cannot_be_made_is_told_why(service, body):
    status, code = problem(service.request("POST", "/v1/models", json=body))
    assert status == 400
    assert code in ("invalid_input", "invalid_parameter")
    assert service.call("GET", "/v1/models")["models"] == []


def test_radius_kinds_are_kept(service):
    radius = {
        "kind": "adaptive",
        "n_agents": 5,
        "noise_scale": 0.1,
        "theta_bound": 1.0,
        "delta": 0.01,
        "n_rounds": None,
    }
    service.call("POST", "/v1/models", {"name": "news", "dim": 2, "radius": radius})
    assert service.call("GET", "/v1/models/news")["radius"] == radius


def test_agents_are_added_listed_and_shown(service):
    tokens = service.fleet("a", "b")
    assert tokens["a"] != tokens["b"]
    assert problem(service.request("POST", "/v1/models/news/agents", json={"name": "a"})) == (409, "already_exists")
    page = service.call("GET", "/v1/models/news/agents?per_page=1&sort=-name")
    assert (page["total"], [agent["name"] for agent in page["agents"]]) == (2, ["b"])
    assert service.call("GET", "/v1/models/news/agents/a")["sequence"] == 0
    assert problem(service.request("GET", "/v1/models/news/agents/zoe")) == (404, "unknown_agent")
    for query in ("page=0", "per_page=0", "per_page=501", "sort=colour", "page=x", "search=" + "x" * 201):
        assert problem(service.request("GET", f"/v1/models/news/agents?{query}"))[0] == 400


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "-a", "x" * 201, "a\nb", "a?b", "a%b"])
def test_an_agent_name_must_fit_into_an_address(service, name):
    service.fleet()
    assert problem(service.request("POST", "/v1/models/news/agents", json={"name": name})) == (400, "invalid_parameter")


def test_an_export_holds_the_model_and_its_settings(service):
    tokens = service.fleet("a", features=["x", "y", "z"])
    service.send(tokens["a"])
    answer = service.request("GET", "/v1/models/news/export")
    tensors = load(answer.content)
    header = json.loads(answer.content[8 : 8 + int.from_bytes(answer.content[:8], "little")])
    settings = json.loads(header["__metadata__"]["model"])
    assert settings["features"] == ["x", "y", "z"]
    assert tensors["Sigma"].shape == (3, 3)
    assert tensors["n_obs"].tolist() == [4]
    assert tensors["theta_hat"].shape == tensors["b"].shape == (3,)


def test_an_exchange_answers_in_its_content_type(service):
    tokens = service.fleet("a")
    answer = service.send(tokens["a"])
    assert (answer.status_code, answer.headers["content-type"]) == (200, CONTENT_TYPE)
    assert answer.headers["x-request-id"]


def test_forgetting_leaves_the_others(service):
    tokens = service.fleet("a", "b")
    service.send(tokens["a"])
    service.send(tokens["b"], "b")
    assert service.call("POST", "/v1/models/news/agents/a/forget")["n_obs"] == 4
    state = service.portal.call(service.parts.store.state, "news")
    assert state.packed == folded(incoming("b"))


def test_viewers_look_and_change_nothing(service):
    service.fleet("a")
    viewer = service.call("POST", "/v1/tokens", {"name": "page"})["token"]
    for path in ("/v1/models", "/v1/models/news", "/v1/models/news/agents", "/v1/models/news/agents/a", "/status"):
        assert service.request("GET", path, token=viewer).status_code == 200
    for path in ("/v1/models/news/state", "/v1/models/news/export", "/v1/models/news/events", "/metrics"):
        assert service.request("GET", path, token=viewer).status_code == 200
    changes = [
        ("POST", "/v1/models", {"name": "x", "dim": 1, "beta": 1}),
        ("DELETE", "/v1/models/news", None),
        ("POST", "/v1/models/news/agents", {"name": "b"}),
        ("POST", "/v1/models/news/agents/a/revoke", None),
        ("POST", "/v1/models/news/agents/a/forget", None),
        ("POST", "/v1/tokens", {"name": "y"}),
        ("POST", "/v1/models/news/sync", None),
    ]
    for method, path, body in changes:
        options = {} if body is None else {"json": body}
        assert problem(service.request(method, path, token=viewer, **options)) == (403, "forbidden")


def test_tokens_of_people_have_names_that_are_taken_once(service):
    first = service.call("POST", "/v1/tokens", {"name": "page"})["token"]
    assert problem(service.request("POST", "/v1/tokens", json={"name": "page"})) == (409, "already_exists")
    second = service.call("POST", "/v1/tokens", {"name": "page", "replace": True})["token"]
    assert problem(service.request("GET", "/status", token=first)) == (401, "unauthenticated")
    assert service.request("GET", "/status", token=second).status_code == 200
    listed = service.call("GET", "/v1/tokens")["tokens"]
    assert {"name": "page", "role": "viewer"} in listed
    assert all(set(entry) == {"name", "role"} for entry in listed)
    assert service.request("DELETE", "/v1/tokens/page").status_code == 204
    assert problem(service.request("GET", "/status", token=second)) == (401, "unauthenticated")
    assert problem(service.request("POST", "/v1/tokens", json={"name": "environment"})) == (400, "invalid_parameter")
    assert problem(service.request("POST", "/v1/tokens", json={"name": "x", "role": "agent"})) == (400, "invalid_input")


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Basic abc", "Bearer short", "bearer " + "x" * 300])
def test_a_header_without_a_token_is_401_and_says_what_was_expected(service, header):
    answer = service.request("GET", "/v1/models", token="", headers={"Authorization": header} if header else {})
    assert problem(answer) == (401, "unauthenticated")
    assert answer.headers["www-authenticate"] == "Bearer"


def test_unknown_addresses_and_methods_have_the_same_shape(service):
    assert problem(service.request("GET", "/v1/nothing")) == (404, "not_found")
    assert problem(service.request("GET", "/v1/models/a%0Ab")) == (404, "unknown_model")
    assert problem(service.request("GET", "/a%0Ab")) == (404, "not_found")
    assert problem(service.request("PATCH", "/v1/models")) == (405, "method_not_allowed")
    assert problem(
        service.request("POST", "/v1/models", content=b"{", headers={"Content-Type": "application/json"})
    ) == (
        400,
        "invalid_input",
    )


def test_a_long_body_of_an_admin_call_is_413(service):
    answer = service.request("POST", "/v1/models", json={"name": "x" * 2_000_000, "dim": 1, "beta": 1})
    assert problem(answer) == (413, "body_too_large")


def test_a_failure_that_nobody_foresaw_has_the_shape_too(service):
    async def broken():
        raise RuntimeError("a secret detail")

    service.parts.store.models = broken
    answer = service.request("GET", "/v1/models")
    assert problem(answer) == (500, "internal_error")
    assert "secret" not in answer.text
    assert b"a secret detail" in service.log.getvalue()


def test_health_needs_no_token(service):
    assert service.request("GET", "/healthz", token="").json() == {"status": "ok"}
    assert service.request("GET", "/readyz", token="").json() == {"status": "ready"}


def test_status_sums_up(service):
    tokens = service.fleet("a", "b")
    service.send(tokens["a"])
    status = service.call("GET", "/status")
    assert (status["n_models"], status["n_agents"], status["now"]) == (1, 2, 1000.0)
    assert status["models"][0]["n_obs"] == 4
