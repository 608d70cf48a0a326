"""Pages of other origins: the browser's question beforehand, and the marks on every answer."""

import pytest

from fedbandit.errors import InvalidParameter
from fedbandit.service.settings import ServerSettings, read_settings
from tests.service.conftest import running

SHOP = "https://shop.example"
ASK = {"Origin": SHOP, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


@pytest.fixture
def open_service():
    yield from running(allow_origin=(SHOP, "http://localhost:3000"))


@pytest.fixture
def any_service():
    yield from running(allow_origin=("*",))


def marks(answer):
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control")}


AGENT_ROUTES = ["", "/state", "/sync", "/rewards", "/rewards/collect", "/enrol", "/start"]


@pytest.mark.parametrize("route", [*(f"news{rest}" for rest in AGENT_ROUTES), "unheard-of/sync"])
def test_a_browser_that_asks_beforehand_is_told_without_a_token(open_service, route):
    answer = open_service.request("OPTIONS", f"/v1/models/{route}", token="", headers=ASK)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == SHOP
    assert answer.headers["vary"] == "Origin"
    assert answer.headers["access-control-allow-methods"] == "GET, POST"
    allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
    assert {"authorization", "content-type", "if-none-match"} == set(allowed)
    assert int(answer.headers["access-control-max-age"]) > 0
    assert "access-control-allow-credentials" not in answer.headers


def test_answers_to_an_allowed_page_are_marked_and_errors_too(open_service):
    token = open_service.fleet("a")["a"]
    origin = {"Origin": SHOP}
    state = open_service.request("GET", "/v1/models/news/state", token=token, headers=origin)
    same = {**origin, "If-None-Match": state.headers["etag"]}
    answers = {
        200: state,
        304: open_service.request("GET", "/v1/models/news/state", token=token, headers=same),
        401: open_service.request("POST", "/v1/models/news/sync", token="", headers=origin),
        400: open_service.request("POST", "/v1/models/news/sync", token=token, headers=origin, content=b"?"),
        403: open_service.request("GET", "/v1/models/other/state", token=token, headers=origin),
        405: open_service.request("PUT", "/v1/models/news/sync", token=token, headers=origin),
        413: open_service.request("POST", "/v1/models/news/sync", token=token, headers=origin, content=b"x" * 99999),
    }
    for status, answer in answers.items():
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == SHOP
        exposed = set(answer.headers["access-control-expose-headers"].split(", "))
        assert exposed == {"ETag", "Retry-After", "X-Request-Id", "Fedbandit-Rewards"}
        assert answer.headers["vary"] == "Origin"
        assert "access-control-allow-credentials" not in answer.headers


def test_the_exchange_itself_is_marked(open_service):
    token = open_service.fleet("a")["a"]
    open_service.client.headers["Origin"] = "http://localhost:3000"
    answer = open_service.send(token)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"


@pytest.mark.parametrize("origin", ["https://elsewhere.example", "https://shop.example.evil", "null", SHOP.upper(), ""])
def test_any_other_page_gets_no_mark(open_service, origin):
    asked = open_service.request("OPTIONS", "/v1/models/news/sync", token="", headers={**ASK, "Origin": origin})
    assert asked.status_code == 405
    assert marks(asked) == {}
    answer = open_service.request("GET", "/v1/models/news/state", headers={"Origin": origin})
    assert marks(answer) == {}
    assert answer.headers["vary"] == "Origin", "a cache must not give this answer to the shop"


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/tokens", "/v1/models/news/agents", "/v1/models/news/enrolments", "/status", "/metrics"]
)
def test_routes_of_people_stay_closed_to_pages(open_service, path):
    assert marks(open_service.request("OPTIONS", path, token="", headers=ASK)) == {}
    assert marks(open_service.request("GET", path, headers={"Origin": SHOP})) == {}


def test_no_page_is_let_in_unless_the_settings_say_so(service):
    assert service.request("OPTIONS", "/v1/models/news/sync", token="", headers=ASK).status_code == 405
    assert marks(service.request("GET", "/v1/models/news/state", headers={"Origin": SHOP})) == {}


def test_a_star_lets_every_page_in(any_service):
    answer = any_service.request("OPTIONS", "/v1/models/news/sync", token="", headers=ASK)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (204, "*")
    assert "access-control-allow-credentials" not in answer.headers


def test_origins_come_from_options_the_environment_and_a_file(tmp_path):
    file = tmp_path / "fedbandit.toml"
    file.write_text(f'allow_origin = ["{SHOP}", "http://localhost:3000"]\n')
    assert read_settings({}, file=file, environ={}).allow_origin == (SHOP, "http://localhost:3000")
    environ = {"FEDBANDIT_ALLOW_ORIGIN": f"{SHOP}, https://b.example"}
    assert read_settings({}, environ=environ).allow_origin == (SHOP, "https://b.example")
    assert read_settings({"allow_origin": ("*",)}, environ=environ).allow_origin == ("*",)
    file.write_text("allow_origin = [1]\n")
    with pytest.raises(InvalidParameter):
        read_settings({}, file=file, environ={})


@pytest.mark.parametrize(
    "wrong",
    ["shop.example", f"{SHOP}/", f"{SHOP}/page", "null", "ftp://x", "https://Shop.example", "https://*.example"],
)
def test_an_origin_that_no_browser_sends_is_told(wrong):
    with pytest.raises(InvalidParameter, match="allow_origin"):
        ServerSettings(allow_origin=(wrong,))
    with pytest.raises(InvalidParameter, match="alone"):
        ServerSettings(allow_origin=("*", SHOP))
