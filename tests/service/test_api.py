"""The JSON surface: models, agents, tokens, and one shape for every error."""

import json

import numpy as np
import pytest
from safetensors.numpy import load

from fedbandit.algorithms.messages import Upload, digest_of
from fedbandit.core.group_sums import GroupSums, RewardSums
from fedbandit.core.plausibility import information
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import InvalidInput
from fedbandit.wire import codec
from fedbandit.wire.codec import CONTENT_TYPE
from fedbandit.wire.settings import ModelDescription
from tests.service.uploads import folded, incoming, request


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
    state = service.portal.call(service.container.store.state, "news")
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

    service.container.store.models = broken
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


def test_feature_names_that_no_answer_can_carry_are_refused(service):
    body = b'{"name": "odd", "dim": 1, "beta": 1, "features": ["\\ud800"]}'
    refused = service.request("POST", "/v1/models", content=body, headers={"Content-Type": "application/json"})
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_parameter")
    assert service.call("GET", "/v1/models") == {"models": []}


@pytest.mark.parametrize("field", ["n_agents", "n_rounds", "noise_scale", "theta_bound"])
def test_a_number_of_400_digits_is_refused(service, field):
    radius = {"kind": "adaptive", "n_agents": 3, "noise_scale": 1.0, field: 10**400}
    refused = service.request("POST", "/v1/models", json={"name": "odd", "dim": 1, "radius": radius})
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_parameter")
    assert len(refused.text) < 500


def test_a_search_with_a_nul_is_refused(service):
    service.fleet("a")
    refused = service.request("GET", "/v1/models/news/agents?search=%00")
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_parameter")


def test_received_bytes_are_counted_by_model(service):
    token = service.fleet("a")["a"]
    n_bytes = len(service.send(token).request.content)
    service.send(token)  # a retry is received, and not counted again
    lines = service.request("GET", "/metrics").text.splitlines()
    assert f'fedbandit_received_bytes_total{{model="news"}} {float(n_bytes)}' in lines


def test_an_administrator_puts_an_agent_into_quarantine_and_releases_it(service):
    tokens = service.fleet("a", "b")
    assert {service.send(tokens[agent], agent).status_code for agent in "ab"} == {200}
    after = service.call("POST", "/v1/models/news/agents/b/quarantine")
    assert (after["n_obs"], after["generation"]) == (4, 1)
    assert service.send(tokens["b"], "b", 2).status_code == 200
    assert service.call("GET", "/v1/models/news")["n_obs"] == 4
    assert service.call("GET", "/v1/models/news/agents/b")["quarantined"] is True
    kept = service.call("GET", "/v1/models/news/agents/b/influence")
    after = service.call("POST", "/v1/models/news/agents/b/release")
    assert (after["n_obs"], after["generation"]) == (12, 2)
    influence = service.call("GET", "/v1/models/news/agents/b/influence")
    assert (kept.pop("quarantined"), influence.pop("quarantined")) == (True, False)
    assert kept["share"] == pytest.approx(influence["share"])  # what it would be if it were released
    service.portal.call(service.container.history._flush)
    kinds = [event["kind"] for event in service.call("GET", "/v1/models/news/events")["events"]]
    assert kinds[:2] == ["released", "quarantined"]


def test_insight_is_the_checks_with_the_largest_shares(service):
    tokens = service.fleet("a", "b", "c", radius={"kind": "adaptive", "n_agents": 1, "noise_scale": 3}, beta=None)
    assert {service.send(tokens[agent], agent).status_code for agent in "ab"} == {200}
    told = service.call("GET", "/v1/models/news/insight?limit=2")
    assert (told["model"], told["version"], told["summary"]["contradicted"]) == ("news", 2, 1)
    assert told["beta_needed"] > told["beta"] > 0
    assert "3 agents are enrolled" in told["explanation"]
    states = {check["name"]: check["state"] for check in told["checks"]}
    assert states == {
        "one_theta": "assumed",
        "no_change": "assumed",
        "linear": "assumed",
        "noise_scale": "assumed",
        "theta_bound": "held",
        "buffers": "contradicted",
    }
    assert [check["advice"] for check in told["checks"] if check["state"] == "contradicted"] == [
        "create the model with a larger n_agents"
    ]
    shares = {item["agent"]: item["share"] for item in told["largest_shares"]}
    assert sum(shares.values()) + told["prior_share"] == pytest.approx(1.0)
    assert shares == {
        agent: pytest.approx(service.call("GET", f"/v1/models/news/agents/{agent}/influence")["share"])
        for agent in "ab"
    }
    assert [item["feature"] for item in told["estimates"]] == ["feature 1", "feature 2", "feature 3"]
    assert service.request("GET", "/v1/models/nowhere/insight").status_code == 404
    assert service.request("GET", "/v1/models/news/insight", token=tokens["a"]).status_code == 403


def test_a_weak_tag_asks_whether_data_were_taken_out(service):
    tokens = service.fleet("a", "b")
    tag = service.send(tokens["a"]).headers["ETag"]
    service.send(tokens["b"], "b")
    path = "/v1/models/news/state"

    def status(tag):
        return service.request("GET", path, token=tokens["a"], headers={"If-None-Match": tag}).status_code

    assert (status(tag), status(f"W/{tag}")) == (200, 304)
    service.call("POST", "/v1/models/news/agents/b/forget")
    assert (status(tag), status(f"W/{tag}")) == (200, 200)


def test_one_upload_cannot_stop_every_agent_from_deciding(service):
    """x = e₀, r = 1e75 made every score infinite; by default a model takes |r| ≤ 1e9, and tells agents so."""
    token = service.fleet("a")["a"]
    for reward in (1e75, 1.1e9):
        x = np.eye(3)[0]
        stats = SufficientStats(np.outer(x, x), reward * x, 1, reward, reward**2)
        body = codec.encode(codec.request_of(Upload("a", "life-1", 1, stats, 0.5)))
        refused = service.request("POST", "/v1/models/news/sync", token=token, content=body)
        assert (refused.status_code, refused.json()["error"]) == (422, "implausible_upload")
        assert "reward bound" in refused.json()["message"]
    settings = ModelDescription.from_dict(service.call("GET", "/v1/models/news", token=token)).settings
    assert (settings.action_bound, settings.reward_bound) == (1e9, 1e9)
    with pytest.raises(InvalidInput, match="rewards"):
        settings.check(np.eye(3)[0], 1.1e9)  # so that an agent never sends what is refused


def test_reported_growth_is_bounded_by_what_the_data_allow(service):
    """An agent that reports a huge or a negative growth changes neither α as observed nor its own worst α beyond it."""
    tokens = service.fleet("a", "b")
    assert service.send(tokens["a"], growth=1e6).status_code == 200
    most = information(incoming("a").numbers, 3, 1.0)
    assert service.call("GET", "/v1/models/news/agents/a")["worst_alpha"] == pytest.approx(np.expm1(most))
    assert service.call("GET", "/v1/models/news")["effective_alpha"] == pytest.approx(np.expm1(most))
    assert service.send(tokens["b"], "b", growth=-1.0).status_code == 200
    assert service.call("GET", "/v1/models/news/agents/b")["worst_alpha"] == 0.0


def test_too_many_observations_are_told_when_to_come_back(service):
    token = service.fleet("a", max_rate=0.001)["a"]
    refused = service.send(token)
    assert (refused.status_code, refused.json()["error"]) == (429, "rate_exceeded")
    assert 1 <= int(refused.headers["Retry-After"]) <= 3600
    service.now += 1000.0
    assert service.send(token).status_code == 200


@pytest.mark.parametrize(
    "wrong", [{"max_rate": 0}, {"max_share": 0}, {"max_share": 1.5}, {"max_share": 0.5, "dim": 201}]
)
def test_limits_that_cannot_be_are_refused(service, wrong):
    refused = service.request("POST", "/v1/models", json={"name": "odd", "dim": 3, "beta": 1, **wrong})
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_parameter")


# -- the gain over control


def send_grouped(service, token, groups, sequence=1, *, digest=None):
    upload = incoming("a", sequence)
    body = request(upload)
    packed = body.stats + groups
    message = codec.SyncRequest(
        agent="a",
        incarnation=body.incarnation,
        sequence=sequence,
        digest=digest_of(packed) if digest is None else digest,
        dim=3,
        stats=body.stats,
        growth=0.5,
        groups=groups,
    )
    return service.request("POST", "/v1/models/news/sync", token=token, content=codec.encode(message))


def test_the_gain_over_control_is_measured_from_the_groups_of_uploads(service):
    token = service.fleet("a", control=0.25)["a"]
    assert service.call("GET", "/v1/models/news")["control"] == 0.25
    told = service.call("GET", "/v1/models/news/gain")
    assert (told["state"], told["n_control"], told["gain"]) == ("undecided", 0, None)
    groups = GroupSums(RewardSums(1, 0.5, 0.25), RewardSums(2, 1.0, 0.5))
    answer = send_grouped(service, token, groups.to_bytes())
    assert answer.status_code == 200
    assert send_grouped(service, token, groups.to_bytes()).status_code == 200  # a retry
    told = service.call("GET", "/v1/models/news/gain?level=0.1")
    assert (told["n_control"], told["n_treatment"], told["mean_control"], told["level"]) == (1, 2, 0.5, 0.1)
    assert told["low"] is None and "Too few rewards" in told["words"]
    assert service.request("GET", "/v1/models/news/gain?level=2").status_code == 400
    assert service.request("GET", "/v1/models/news/gain", token=token).status_code == 403
    other = service.fleet(model="plain")
    assert other == {} and service.request("GET", "/v1/models/plain/gain").status_code == 400


def test_groups_that_cannot_come_from_the_upload_are_refused(service):
    token = service.fleet("a", control=0.25)["a"]
    good = GroupSums(RewardSums(1, 0.5, 0.25), RewardSums(2, 1.0, 0.5))
    cases = {
        "more rewards than observations": GroupSums(RewardSums(5, 0.0, 0.0)).to_bytes(),
        "more squares": GroupSums(RewardSums(1, 1e6, 1e12)).to_bytes(),
        "Σr beyond √(nΣr²)": GroupSums(RewardSums(1, 0.5, 0.01)).to_bytes(),
        "NaN": np.array([1.0, np.nan, 1.0, 0.0, 0.0, 0.0]).tobytes(),
        "half a reward": np.array([0.5, 0.1, 0.1, 0.0, 0.0, 0.0]).tobytes(),
        "another length": good.to_bytes()[:-8],
    }
    for name, groups in cases.items():
        assert send_grouped(service, token, groups).status_code in (400, 422), name
    assert send_grouped(service, token, good.to_bytes(), digest=digest_of(b"")).status_code in (400, 422)
    assert service.call("GET", "/v1/models/news")["n_obs"] == 0
    assert send_grouped(service, token, good.to_bytes()).status_code == 200
    plain = service.fleet("a", model="plain")["a"]
    upload = request(incoming("a", 1))
    message = codec.SyncRequest(
        agent="a",
        incarnation="life-1",
        sequence=1,
        digest=digest_of(upload.stats + good.to_bytes()),
        dim=3,
        stats=upload.stats,
        growth=0.5,
        groups=good.to_bytes(),
    )
    answer = service.request("POST", "/v1/models/plain/sync", token=plain, content=codec.encode(message))
    assert answer.status_code == 422 and "no control group" in answer.json()["message"]


@pytest.mark.parametrize("control", [-0.1, 1.0, 7])
def test_a_control_share_outside_its_range_is_refused(service, control):
    answer = service.request("POST", "/v1/models", json={"name": "news", "dim": 3, "beta": 0.5, "control": control})
    assert answer.status_code == 400 and "control" in answer.json()["message"]
