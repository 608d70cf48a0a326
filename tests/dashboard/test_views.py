"""Every view without a browser: its content, its empty state, its errors, and that text stays text."""

import re

import anyio
import numpy as np
import pytest

from fedbandit.algorithms.messages import digest_of, packed_bytes
from fedbandit.core.statistics import SufficientStats
from fedbandit.wire import codec
from tests.service.conftest import ADMIN_TOKEN

VIEWS = ["/", "/models/news", "/models/news/agents", "/models/news/agents/a", "/models/news/events", "/words", "/docs"]


@pytest.fixture
def fed(dashboard):
    """A model with two agents, one of which has uploaded twice."""
    tokens = dashboard.fleet("a", "b")
    for sequence in (1, 2):
        assert dashboard.send(tokens["a"], "a", sequence).status_code == 200
    dashboard.portal.call(dashboard.container.history._flush)
    dashboard.tokens = tokens
    return dashboard


@pytest.mark.parametrize("path", [*VIEWS, "/login", "/sign-in", "/models/nowhere"])
def test_every_view_has_a_strict_policy_and_nothing_inline(fed, path):
    answer = fed.request("GET", path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "<style" not in answer.text and " style=" not in answer.text and not re.search(r"\son\w+=", answer.text)
    assert not re.search(r"<script(?![^>]* src=)", answer.text)
    assert "http://" not in answer.text and "https://" not in answer.text


@pytest.mark.parametrize("path", VIEWS)
def test_every_view_has_a_title_one_heading_and_landmarks(fed, path):
    text = fed.show(path)
    assert text.count("<h1") == 1
    assert re.search(r"<title>[^<]+ · fedbandit</title>", text)
    assert 'id="main"' in text and '<html lang="en">' in text


def test_the_overview_lists_models_with_their_numbers(fed):
    text = fed.show("/")
    assert 'href="/models/news"' in text
    assert "8" in re.search(r'Observations</dt><dd><span class="value">([^<]+)', text).group(1)


def test_a_server_without_models_says_what_to_do(dashboard):
    text = dashboard.show("/")
    assert "There is no model yet" in text and "fedbandit models create" in text


def test_a_model_without_uploads_says_what_to_do(dashboard):
    dashboard.fleet(model="quiet")
    assert "fedbandit agents add quiet shop-1" in dashboard.show("/models/quiet")
    assert "fedbandit agents add quiet shop-1" in dashboard.show("/models/quiet/agents")
    dashboard.call("POST", "/v1/models/quiet/agents", {"name": "a"})
    dashboard.portal.call(anyio.sleep, 1.0)  # what a view has read is cached for a second
    assert "1 agent enrolled, no upload yet" in dashboard.show("/models/quiet")


def test_a_model_shows_what_it_has_learnt(fed):
    text = fed.show("/models/news")
    for words in ("Recent mean reward", "Effective alpha", "Share of information", "feature 1", "the prior λI"):
        assert words in text
    assert "A fixed β has no guarantee" in text
    assert "enrolled" in text


def opposite_halves(dashboard, **settings):
    """A model with two agents whose parameters are each other's opposite; its checks by name."""
    tokens = dashboard.fleet("a", "b", **settings)
    for agent, sign in (("a", 1.0), ("b", -1.0)):
        X = np.random.default_rng(1).standard_normal((100, 3))
        body = packed_bytes(SufficientStats.of(X, sign * X[:, 0] + 0.1 * X[:, 1] * X[:, 2]))
        message = codec.SyncRequest(
            agent=agent, incarnation="life-1", sequence=1, digest=digest_of(body), dim=3, stats=body, growth=0.5
        )
        path = "/v1/models/news/sync"
        assert dashboard.request("POST", path, token=tokens[agent], content=codec.encode(message)).status_code == 200
    told = dashboard.call("GET", "/v1/models/news/insight")
    return {check["name"]: check for check in told["checks"]}


def test_agents_that_differ_contradict_nothing_where_each_has_a_parameter_of_its_own(dashboard):
    checks = opposite_halves(dashboard, personal="auto")
    assert checks["one_theta"]["state"] == "assumed" and checks["one_theta"]["p_value"] < 1e-4
    assert "a parameter for each agent" in dashboard.show("/models/news")


def test_a_fleet_of_opposite_halves_has_a_red_light_and_advice(dashboard):
    checks = opposite_halves(dashboard)
    assert checks["one_theta"]["state"] == "contradicted" and checks["one_theta"]["p_value"] < 1e-4
    text = dashboard.show("/models/news")
    assert 'class="badge bad"' in text and 'class="tile bad"' in text
    assert "one parameter for all agents" in text and "use <code>personal</code>" in text


def test_the_largest_share_is_listed_though_its_agent_has_the_fewest_observations(dashboard):
    names = [f"small-{i}" for i in range(12)]
    tokens = dashboard.fleet(*names, "large")
    for name in names:
        assert dashboard.send(tokens[name], name).status_code == 200
    stats = SufficientStats.of(100.0 * np.eye(3), np.ones(3))
    body = packed_bytes(stats)
    message = codec.SyncRequest(
        agent="large", incarnation="life-1", sequence=1, digest=digest_of(body), dim=3, stats=body, growth=1.0
    )
    path = "/v1/models/news/sync"
    assert dashboard.request("POST", path, token=tokens["large"], content=codec.encode(message)).status_code == 200
    text = dashboard.show("/models/news")
    table = text[text.index('class="shares"') :]
    listed = re.findall(r'href="/models/news/agents/([^"]+)"', table[: table.index("</table>")])
    assert listed[0] == "large" and len(listed) == 10


def test_bars_of_shares_are_as_long_as_their_numbers_say(fed):
    text = fed.show("/models/news")
    table = text[text.index('class="shares"') :]
    rows = re.findall(r'class="fill" width="([\d.]+)".*?class="number">([\d.]+)', table[: table.index("</table>")])
    widths, numbers = zip(*((float(width), float(number)) for width, number in rows), strict=True)
    assert len(rows) >= 2
    assert widths == pytest.approx([100 * number / max(numbers) for number in numbers], abs=0.5)


def test_a_renewed_token_is_not_called_an_enrolment(fed):
    fed.call("POST", "/v1/models/news/agents", {"name": "b", "renew": True})
    fed.portal.call(fed.container.history._flush)
    kinds = [event["kind"] for event in fed.call("GET", "/v1/models/news/events")["events"]]
    assert kinds.count("renewed") == 1 and kinds.count("enrolled") == 2


def test_agents_that_sent_nothing_lately_are_said_to_be_invisible(fed):
    assert "1 of 2 agents sent no upload in the last 10 min" in fed.show("/models/news")


def test_an_agent_shows_its_identity_and_its_influence(fed):
    text = fed.show("/models/news/agents/a")
    assert "life-1" in text and "Influence on the estimate" in text and "100.0 %" not in text
    assert "No contribution yet" in fed.show("/models/news/agents/b")


def test_comparing_with_an_agent_that_does_not_exist_is_told(fed):
    assert "There is no agent named nobody" in fed.show("/models/news?with=nobody")
    assert "Hide a" in fed.show("/models/news?with=a")


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
def test_what_is_not_there_is_an_html_error(fed, path, status):
    answer = fed.request("GET", path)
    assert answer.status_code == status
    assert "<h1>" in answer.text and "All models" in answer.text


def test_agents_are_paged_sorted_and_searched(dashboard):
    dashboard.fleet()
    for i in range(60):
        dashboard.call("POST", "/v1/models/news/agents", {"name": f"shop-{i:03}"})
    text = dashboard.show("/models/news/agents?sort=name")
    assert "1 to 25 of 60 agents" in text and "shop-024" in text and "shop-025" not in text
    assert "51 to 60 of 60 agents" in dashboard.show("/models/news/agents?sort=name&page=3")
    assert "shop-059" in dashboard.show("/models/news/agents?sort=-name")
    found = dashboard.show("/models/news/agents?search=SHOP-01")
    assert "1 to 10 of 10 agents" in found and 'value="SHOP-01"' in found
    assert "No agent has a name that contains this" in dashboard.show("/models/news/agents?search=bakery")
    assert "This page is empty" in dashboard.show("/models/news/agents?page=9")
    assert 'aria-sort="ascending"' in text


def test_names_and_reasons_are_text_never_markup(dashboard):
    hostile = "<img src=x onerror=alert(1)>"
    dashboard.call("POST", "/v1/models", {"name": "news", "dim": 1, "beta": 1, "features": [hostile]})
    token = dashboard.call("POST", "/v1/models/news/agents", {"name": "a"})["token"]
    dashboard.send(token, "a", dim=1)
    model = dashboard.portal.call(dashboard.container.store.load, "news")
    dashboard.container.history.event(model, "refused", "a", hostile)
    dashboard.portal.call(dashboard.container.history._flush)
    asked = (f"/models/news?with={hostile}", f"/models/news/agents?search={hostile}")
    for path in ("/models/news", "/models/news/agents/a", *asked):
        text = dashboard.show(path)
        assert "<img" not in text and "&lt;img" in text


def test_the_api_is_described_without_anything_from_elsewhere(fed):
    text = fed.show("/docs", token="")
    assert "/sync" in text.replace("<wbr>", "") and "application/vnd.fedbandit.v1+msgpack" in text
    assert 'id="schema-NewModel"' in text and "required" in text
    assert "A conflict: a gap in sequences" in text


def test_static_files_may_be_kept_for_ever_under_their_edition(dashboard):
    text = dashboard.show("/login", token="")
    address = re.search(r'href="(/static/[0-9a-f]{12}/dashboard\.css)"', text).group(1)
    answer = dashboard.request("GET", address, token="")
    assert answer.status_code == 200 and "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].startswith("text/css")
    assert dashboard.request("GET", "/static/0/dashboard.css", token="").headers["cache-control"] == "no-store"
    assert dashboard.request("GET", "/static/0/../routes.py", token="").status_code == 404


def test_the_largest_view_is_small(fed):
    """Markup, style sheet and scripts of the richest view together, before compression."""
    text = fed.show("/models/news")
    names = ("dashboard.css", "theme.js", "dashboard.js", "chart.js", "scale.js", "time_range.js")
    edition = re.search(r"/static/([0-9a-f]{12})/", text).group(1)
    files = sum(len(fed.request("GET", f"/static/{edition}/{name}", token="").content) for name in names)
    assert files + len(text) < 70_000


def test_a_failing_view_is_an_html_error_and_a_log_entry(fed, monkeypatch):
    monkeypatch.setattr(fed.container.store, "models", None)
    answer = fed.request("GET", "/")
    assert answer.status_code == 500 and "Something went wrong" in answer.text
    assert b"view_failed" in fed.log.getvalue() and ADMIN_TOKEN.encode() not in fed.log.getvalue()


def test_agents_in_quarantine_are_marked_and_have_no_influence(fed):
    assert fed.send(fed.tokens["b"], "b").status_code == 200
    fed.call("POST", "/v1/models/news/agents/a/quarantine")
    fed.portal.call(fed.container.history._flush)
    assert "1 in quarantine" in fed.show("/models/news")
    assert fed.show("/models/news/agents").count("in quarantine") == 1
    agent = fed.show("/models/news/agents/a")
    assert "its contribution is not in the model" in agent
    assert "Its contribution is not in the model" in agent  # in place of its influence


def test_a_model_says_that_its_agents_have_parameters_of_their_own(dashboard):
    for name, personal, words in (("one", "auto", "personal, κ chosen"), ("two", 0.5, "personal, κ = 0.5")):
        body = {"name": name, "dim": 3, "beta": 0.5, "personal": personal}
        assert dashboard.request("POST", "/v1/models", json=body, token=ADMIN_TOKEN).status_code == 201
        assert words in dashboard.show(f"/models/{name}")
