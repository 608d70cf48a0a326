"""Access control of the dashboard: a token by header or login cookie, or an open dashboard."""

import pytest

from fedbandit.errors import InvalidParameter
from fedbandit.service.settings import ServerSettings
from tests.service.conftest import ADMIN_TOKEN


def test_without_a_token_every_view_leads_to_the_login_and_remembers_where_one_wanted_to_go(dashboard):
    answer = dashboard.request("GET", "/models/news?with=a", token="")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2Fmodels%2Fnews%3Fwith%3Da"
    assert "Token of a viewer" in dashboard.request("GET", answer.headers["location"], token="").text


def test_the_form_sets_a_cookie_that_scripts_and_other_sites_cannot_use(dashboard):
    answer = dashboard.sign_in(ADMIN_TOKEN, "/models/news")
    assert (answer.status_code, answer.headers["location"]) == (303, "/models/news")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Secure" not in cookie
    assert ADMIN_TOKEN not in cookie
    assert dashboard.request("GET", "/", token="").status_code == 200
    assert "Sign out" in dashboard.show("/", token="")
    dashboard.request("POST", "/logout", token="")
    assert dashboard.request("GET", "/", token="").status_code == 303


def test_behind_tls_the_cookie_is_secure(dashboard):
    object.__setattr__(dashboard.container.settings, "tls_cert", "cert.pem")
    assert "Secure" in dashboard.sign_in(ADMIN_TOKEN).headers["set-cookie"]


@pytest.mark.parametrize("token", ["", "short", "fb_" + "x" * 43, "with spaces in it and long enough", "é" * 30])
def test_a_wrong_token_is_told_and_lets_nobody_in(dashboard, token):
    answer = dashboard.sign_in(token)
    assert answer.status_code == 401
    assert "This token is unknown" in answer.text
    assert "set-cookie" not in answer.headers
    assert dashboard.request("GET", "/", token="").status_code == 303


def test_an_agents_token_is_told_apart(dashboard):
    tokens = dashboard.fleet("a")
    answer = dashboard.sign_in(tokens["a"])
    assert answer.status_code == 403
    assert "agent" in answer.text
    assert dashboard.request("GET", "/", token=tokens["a"]).status_code == 403


def test_a_viewer_may_look_by_header_and_by_form(dashboard):
    viewer = dashboard.call("POST", "/v1/tokens", {"name": "ada", "role": "viewer"})["token"]
    assert dashboard.request("GET", "/", token=viewer).status_code == 200
    assert dashboard.sign_in(viewer).status_code == 303


def test_a_replaced_token_ends_the_session(dashboard):
    viewer = dashboard.call("POST", "/v1/tokens", {"name": "ada", "role": "viewer"})["token"]
    dashboard.sign_in(viewer)
    assert dashboard.request("GET", "/", token="").status_code == 200
    dashboard.call("POST", "/v1/tokens", {"name": "ada", "role": "viewer", "replace": True})
    assert dashboard.request("GET", "/", token="").status_code == 303


@pytest.mark.parametrize("target", ["//elsewhere", "https://elsewhere", "/\\elsewhere", "javascript:alert(1)"])
def test_the_login_leads_nowhere_else(dashboard, target):
    assert dashboard.sign_in(ADMIN_TOKEN, target).headers["location"] == "/"


@pytest.mark.parametrize("path", ["/login", "/logout"])
def test_what_another_site_posts_is_refused(dashboard, path):
    answer = dashboard.request("POST", path, headers={"Sec-Fetch-Site": "cross-site"}, data={"token": ADMIN_TOKEN})
    assert answer.status_code == 403


def test_a_long_form_is_refused(dashboard):
    assert dashboard.request("POST", "/login", token="", content=b"token=" + b"x" * 9000).status_code == 413


def test_live_streams_need_a_token_too(dashboard):
    answer = dashboard.request("GET", "/live/", token="")
    assert (answer.status_code, answer.json()["error"]) == (401, "unauthenticated")


def test_an_open_dashboard_needs_no_token_and_the_api_still_does(open_dashboard):
    assert open_dashboard.request("GET", "/", token="").status_code == 200
    assert "Sign out" not in open_dashboard.show("/", token="")
    assert open_dashboard.request("GET", "/v1/models", token="").status_code == 401


@pytest.mark.parametrize(
    ("address", "client", "headers"),
    [
        ("http://attacker.example:8700", "127.0.0.1", {}),  # a foreign name that points at this machine
        ("http://127.0.0.1:8700", "192.0.2.7", {}),
        ("http://127.0.0.1:8700", "127.0.0.1", {"X-Forwarded-For": "192.0.2.7"}),
        ("http://127.0.0.1:8700", "127.0.0.1", {"Forwarded": "for=192.0.2.7"}),
    ],
)
def test_an_open_dashboard_is_open_to_this_machine_only(open_dashboard, address, client, headers):
    open_dashboard.client = open_dashboard.client_at(address, client=(client, 50000))
    assert open_dashboard.request("GET", "/", token="", headers=headers).status_code == 303


def test_an_open_dashboard_on_all_addresses_is_refused():
    with pytest.raises(InvalidParameter, match="this machine only"):
        ServerSettings(host="0.0.0.0", insecure=True, open_dashboard=True)
