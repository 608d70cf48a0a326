"""What the pages say, without a browser: every view, its empty state, its errors, and that text stays text."""

import re

import anyio
import pytest

from tests.service.conftest import ADMIN_TOKEN

PAGES = ["/", "/models/news", "/models/news/agents", "/models/news/agents/a", "/simulation", "/docs"]


@pytest.fixture
def fed(window):
    """A model with two agents, one of which has uploaded twice."""
    tokens = window.fleet("a", "b")
    for sequence in (1, 2):
        assert window.send(tokens["a"], "a", sequence).status_code == 200
    window.portal.call(window.parts.history._flush)
    window.tokens = tokens
    return window


@pytest.mark.parametrize("path", [*PAGES, "/login", "/models/nowhere"])
def test_every_page_has_a_strict_policy_and_nothing_inline(fed, path):
    answer = fed.request("GET", path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<style" not in answer.text and " style=" not in answer.text and not re.search(r"\son\w+=", answer.text)
    assert not re.search(r"<script(?![^>]* src=)", answer.text)
    assert "http://" not in answer.text and "https://" not in answer.text


@pytest.mark.parametrize("path", PAGES)
def test_every_page_has_a_title_one_heading_and_landmarks(fed, path):
    text = fed.show(path)
    assert text.count("<h1") == 1
    assert re.search(r"<title>[^<]+ · fedbandit</title>", text)
    assert 'id="main"' in text and '<html lang="en">' in text


def test_the_overview_lists_models_with_their_numbers(fed):
    text = fed.show("/")
    assert 'href="/models/news"' in text
    assert "8" in re.search(r'Observations</dt><dd><span class="value">([^<]+)', text).group(1)


def test_a_server_without_models_says_what_to_do(window):
    text = window.show("/")
    assert "There is no model yet" in text and "fedbandit models create" in text


def test_a_model_without_uploads_says_what_to_do(window):
    window.fleet(model="quiet")
    assert "fedbandit agents add quiet shop-1" in window.show("/models/quiet")
    assert "fedbandit agents add quiet shop-1" in window.show("/models/quiet/agents")
    window.call("POST", "/v1/models/quiet/agents", {"name": "a"})
    window.portal.call(anyio.sleep, 1.0)  # what a page has read is fresh for a second
    assert "1 agent may upload, and none has done so yet" in window.show("/models/quiet")


def test_a_model_shows_what_it_has_learnt(fed):
    text = fed.show("/models/news")
    for words in ("Mean reward lately", "Effective alpha", "Share of information", "feature 1", "the prior λI"):
        assert words in text
    assert "A fixed β promises nothing" in text
    assert "joined" in text


def test_an_agent_shows_its_identity_and_its_pull(fed):
    text = fed.show("/models/news/agents/a")
    assert "life-1" in text and "Its pull on the estimate" in text and "100.0 %" not in text
    assert "It has contributed nothing yet" in fed.show("/models/news/agents/b")


def test_comparing_with_an_agent_that_does_not_exist_is_told(fed):
    assert "There is no agent named nobody" in fed.show("/models/news?with=nobody")
    assert "Leave a out" in fed.show("/models/news?with=a")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/models/nowhere", 404),
        ("/models/nowhere/agents", 404),
        ("/models/news/agents/nobody", 404),
        ("/models/news/agents?page=x", 400),
        ("/models/news/agents?page=0", 400),
        ("/models/news/agents?sort=shoe-size", 400),
    ],
)
def test_what_is_not_there_is_told_as_a_page(fed, path, status):
    answer = fed.request("GET", path)
    assert answer.status_code == status
    assert "<h1>" in answer.text and "All models" in answer.text


def test_agents_are_paged_sorted_and_searched(window):
    window.fleet()
    for i in range(60):
        window.call("POST", "/v1/models/news/agents", {"name": f"shop-{i:03}"})
    text = window.show("/models/news/agents?sort=name")
    assert "1 to 25 of 60 agents" in text and "shop-024" in text and "shop-025" not in text
    assert "51 to 60 of 60 agents" in window.show("/models/news/agents?sort=name&page=3")
    assert "shop-059" in window.show("/models/news/agents?sort=-name")
    found = window.show("/models/news/agents?search=SHOP-01")
    assert "1 to 10 of 10 agents" in found and 'value="SHOP-01"' in found
    assert "No agent has this in its name" in window.show("/models/news/agents?search=bakery")
    assert "This page is empty" in window.show("/models/news/agents?page=9")
    assert 'aria-sort="ascending"' in text


def test_names_and_reasons_are_text_never_markup(window):
    hostile = "<img src=x onerror=alert(1)>"
    window.call("POST", "/v1/models", {"name": "news", "dim": 1, "beta": 1, "features": [hostile]})
    token = window.call("POST", "/v1/models/news/agents", {"name": "a"})["token"]
    window.send(token, "a", dim=1)
    model = window.portal.call(window.parts.store.load, "news")
    window.parts.history.event(model, "refused", "a", hostile)
    window.portal.call(window.parts.history._flush)
    asked = (f"/models/news?with={hostile}", f"/simulation?problem={hostile}", f"/models/news/agents?search={hostile}")
    for path in ("/models/news", "/models/news/agents/a", *asked):
        text = window.show(path)
        assert "<img" not in text and "&lt;img" in text


def test_the_api_is_described_without_anything_from_elsewhere(fed):
    text = fed.show("/docs", token="")
    assert "/sync" in text.replace("<wbr>", "") and "application/vnd.fedbandit.v1+msgpack" in text
    assert 'id="schema-NewModel"' in text and "required" in text
    assert "It contradicts what is there" in text


def test_static_files_may_be_kept_for_ever_under_their_edition(window):
    text = window.show("/login", token="")
    address = re.search(r'href="(/static/[0-9a-f]{12}/page\.css)"', text).group(1)
    answer = window.request("GET", address, token="")
    assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].startswith("text/css")
    assert window.request("GET", "/static/0/page.css", token="").headers["cache-control"] == "no-store"
    assert window.request("GET", "/static/0/../routes.py", token="").status_code == 404


def test_the_page_is_light(fed):
    """Markup, style sheet and scripts of the richest view together, before compression."""
    text = fed.show("/models/news")
    names = ("page.css", "theme.js", "page.js", "chart.js", "scale.js")
    edition = re.search(r"/static/([0-9a-f]{12})/", text).group(1)
    files = sum(len(fed.request("GET", f"/static/{edition}/{name}", token="").content) for name in names)
    assert files + len(text) < 70_000


def test_a_failing_view_is_a_page_and_a_log_entry(fed, monkeypatch):
    monkeypatch.setattr(fed.parts.store, "models", None)
    answer = fed.request("GET", "/")
    assert answer.status_code == 500 and "Something went wrong" in answer.text
    assert b"page_failed" in fed.log.getvalue() and ADMIN_TOKEN.encode() not in fed.log.getvalue()
