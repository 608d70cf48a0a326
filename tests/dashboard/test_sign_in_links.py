"""One-time links: they sign in once, for a short time, as a viewer, and leave no trace of their secret."""

import anyio
import pytest

from fedbandit.service.admin.auth import hash_token
from tests.service.conftest import ADMIN_TOKEN


def new_link(dashboard, **options):
    """Path and secret of a new link."""
    made = dashboard.call("POST", "/v1/sign-in-links", options)
    path, _, secret = made["path"].partition("#")
    return path, secret


def redeem(dashboard, secret, target="/", **options):
    return dashboard.request("POST", "/sign-in", token="", data={"code": secret, "next": target}, **options)


def test_a_link_signs_in_and_leads_to_a_clean_address(dashboard):
    dashboard.fleet("a")
    path, secret = new_link(dashboard, target="/models/news")
    assert path == "/sign-in?next=/models/news"
    page = dashboard.request("GET", path, token="")
    assert page.status_code == 200 and "sign-in.js" in page.text and 'value="/models/news"' in page.text
    answer = redeem(dashboard, secret, "/models/news")
    assert (answer.status_code, answer.headers["location"]) == (303, "/models/news")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and secret not in cookie
    assert "Sign out" in dashboard.show("/models/news", token="")


def test_a_second_use_is_refused_and_opens_nothing(dashboard):
    _, secret = new_link(dashboard)
    assert redeem(dashboard, secret).status_code == 303
    dashboard.client.cookies.clear()
    again = redeem(dashboard, secret)
    assert again.status_code == 401 and "it works once" in again.text and "set-cookie" not in again.headers


def test_of_many_uses_at_the_same_time_one_succeeds(dashboard):
    _, secret = new_link(dashboard)
    found = []

    async def use():
        answer = await dashboard.client.post("/sign-in", data={"code": secret, "next": "/"})
        found.append(answer.status_code)

    async def all_at_once():
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(use)

    dashboard.portal.call(all_at_once)
    assert sorted(found) == [303, *[401] * 7]


def test_a_link_expires_and_so_does_its_session(dashboard):
    _, secret = new_link(dashboard, ttl_s=60)
    dashboard.now += 61
    late = redeem(dashboard, secret)
    assert late.status_code == 401 and "expired" in late.text
    _, secret = new_link(dashboard, ttl_s=60)
    assert redeem(dashboard, secret).status_code == 303
    assert dashboard.request("GET", "/", token="").status_code == 200
    dashboard.now += 12 * 3600 + 1
    assert dashboard.request("GET", "/", token="").status_code == 303
    new_link(dashboard)  # what has ended is removed
    names = [entry["name"] for entry in dashboard.call("GET", "/v1/tokens")["tokens"]]
    assert sum(name.startswith("(session") for name in names) == 0 and sum("(link" in name for name in names) == 1


@pytest.mark.parametrize("secret", ["", "fbl_" + "x" * 43, ADMIN_TOKEN, "fbl_short", "é"])
def test_a_wrong_link_is_told_and_lets_nobody_in(dashboard, secret):
    answer = redeem(dashboard, secret)
    assert answer.status_code == 401 and "set-cookie" not in answer.headers
    assert dashboard.request("GET", "/", token="").status_code == 303


def test_a_link_gives_the_role_of_a_viewer_and_no_other(dashboard):
    _, secret = new_link(dashboard)
    assert dashboard.request("GET", "/v1/models", token=secret).status_code == 403  # it is no token
    assert dashboard.request("GET", "/", token=secret).status_code == 403
    redeem(dashboard, secret)
    (session,) = [e for e in dashboard.call("GET", "/v1/tokens")["tokens"] if e["name"].startswith("(session")]
    assert session["role"] == "viewer"


def test_only_an_administrator_makes_links(dashboard):
    viewer = dashboard.call("POST", "/v1/tokens", {"name": "ada", "role": "viewer"})["token"]
    agent = dashboard.fleet("a")["a"]
    for token in (viewer, agent):
        assert dashboard.request("POST", "/v1/sign-in-links", json={}, token=token).status_code == 403
    assert dashboard.request("POST", "/v1/sign-in-links", json={}, token="").status_code == 401


@pytest.mark.parametrize(
    "body",
    [{"ttl_s": 0}, {"ttl_s": 901}, {"target": "//elsewhere"}, {"target": "https://elsewhere"}, {"role": "admin"}],
)
def test_a_link_is_short_and_leads_to_this_server(dashboard, body):
    assert dashboard.request("POST", "/v1/sign-in-links", json=body).status_code == 400


def test_only_a_hash_is_stored_and_nothing_is_logged(dashboard):
    _, secret = new_link(dashboard)
    found = dashboard.portal.call(dashboard.container.store.find_token, hash_token(secret))
    assert found is not None and secret not in found.name
    answer = redeem(dashboard, secret)
    cookie = dashboard.client.cookies["fedbandit"]
    log = dashboard.log.getvalue().decode()
    assert "sign_in_link_created" in log and "signed_in_by_link" in log
    assert secret not in log and cookie not in log and secret not in answer.headers["location"]
    dashboard.request("GET", f"/v1/models/{secret}")  # a secret where a name belongs
    assert secret not in dashboard.log.getvalue().decode()


def test_signing_out_ends_the_session_everywhere(dashboard):
    _, secret = new_link(dashboard)
    redeem(dashboard, secret)
    kept = dict(dashboard.client.cookies)
    dashboard.request("POST", "/logout", token="")
    dashboard.client.cookies.update(kept)
    assert dashboard.request("GET", "/", token="").status_code == 303


def test_what_another_site_posts_is_refused(dashboard):
    _, secret = new_link(dashboard)
    assert redeem(dashboard, secret, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert redeem(dashboard, secret).status_code == 303  # and the link was not used up


def test_nobody_can_take_the_name_of_a_session(dashboard):
    body = {"name": "(session until 99999999999, 0123456789abcdef)", "role": "viewer"}
    assert dashboard.request("POST", "/v1/tokens", json=body).status_code == 400
