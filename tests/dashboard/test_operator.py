"""The dashboard for an operator: problems first, who is missing, shares, arms, groups, words, errors for browsers."""

import re

import numpy as np
import pytest

from fedbandit.algorithms.messages import Upload
from fedbandit.core.group_sums import GroupSums, RewardSums
from fedbandit.core.statistics import SufficientStats
from fedbandit.dashboard.glossary import WORDS
from fedbandit.service.formatting import number
from fedbandit.wire import codec

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def upload(dashboard, token, agent, stats, **more):
    message = codec.request_of(Upload(agent, "life-1", 1, stats, 0.5, **more))
    answer = dashboard.request("POST", "/v1/models/news/sync", token=token, content=codec.encode(message))
    assert answer.status_code == 200, answer.text


def test_a_view_begins_with_what_is_wrong_then_who_is_missing_each_with_what_to_do(dashboard):
    tokens = dashboard.fleet("a", "late")
    dashboard.send(tokens["a"])
    assert dashboard.send(tokens["a"], sequence=9).status_code == 409
    dashboard.portal.call(dashboard.container.history._flush)
    dashboard.now += 3601.0
    assert dashboard.send(tokens["a"], sequence=9).status_code == 409
    dashboard.portal.call(dashboard.container.history._flush)
    text = dashboard.show("/models/news")
    wrong, missing, tiles = (
        text.index(words) for words in ("What is wrong now", "Who is missing: 1 agent", 'id="tiles"')
    )
    assert wrong < missing < tiles
    assert "sequence_gap" in text[wrong:missing] and "What to do" in text[wrong:missing]
    assert "never connected" in text[missing:tiles] and "What to do" in text[missing:tiles]
    overview = dashboard.show("/")
    assert "1 problem" in overview and "1 missing" in overview


def test_a_fleet_in_order_says_so(dashboard):
    tokens = dashboard.fleet("a")
    dashboard.send(tokens["a"])
    assert "Nothing is wrong now" in dashboard.show("/models/news")
    assert "nothing wrong" in dashboard.show("/")


def test_an_agent_says_when_its_next_upload_is_expected(dashboard):
    tokens = dashboard.fleet("a", "b")
    dashboard.send(tokens["b"], "b")
    for sequence in range(1, 8):
        dashboard.now += 60.0
        dashboard.send(tokens["a"], "a", sequence)
        dashboard.portal.call(dashboard.container.history._flush)
    text = dashboard.show("/models/news/agents/a")
    assert "Next upload: expected within" in text and "Uploads become rarer as the model grows" in text
    assert "Next upload: not known" in dashboard.show("/models/news/agents/b")
    assert re.search(r">within \d+ (s|min)<", dashboard.show("/models/news/agents"))


def test_agents_are_sorted_by_share(dashboard):
    names = [f"agent-{i:02}" for i in range(30)]
    tokens = dashboard.fleet(*names)
    rng = np.random.default_rng(0)
    for name in names:
        upload(dashboard, tokens[name], name, SufficientStats.of(rng.exponential() * np.eye(3), np.ones(3)))
    shares = {}
    for page in (1, 2):
        text = dashboard.show(f"/models/news/agents?sort=-share&page={page}")
        told = dict(re.findall(r'agents/(agent-\d\d)".*?class="share">.*?<span>(?:&lt;)?([\d.]+)', text))
        shares |= {name: float(share) for name, share in told.items()}
    assert len(shares) == 30 and list(shares.values()) == sorted(shares.values(), reverse=True)
    ascending = re.findall(r'href="/models/news/agents/(agent-\d\d)"', dashboard.show("/models/news/agents?sort=share"))
    assert ascending[0] == list(shares)[-1]
    assert "1 to 1 of 1 agent" in dashboard.show("/models/news/agents?sort=-share&search=AGENT-07")


def test_groups_and_kappa_of_each_agent_are_shown_where_the_model_has_them(dashboard):
    tokens = dashboard.fleet("a", "b", control=0.2, personal="auto")
    rng, means = np.random.default_rng(1), {}
    for agent, sign in (("a", 1.0), ("b", -1.0)):
        X = rng.standard_normal((60, 3))
        y = sign * X[:, 0]
        control, treatment = (RewardSums(len(part), part.sum(), part @ part) for part in (y[:12], y[12:]))
        means[agent] = number(control.mean)
        upload(dashboard, tokens[agent], agent, SufficientStats.of(X, y), groups=GroupSums(control, treatment))
    listed = dashboard.show("/models/news/agents")
    assert "Control" in listed and "Treatment" in listed and "κ" in listed
    for mean in means.values():
        assert f'12<span class="quiet"> · {mean}</span>' in listed
    one = dashboard.show("/models/news/agents/a")
    assert "rewards in control" in one and "κ that its merged data give" in one
    kappa = float(re.search(r"the agent decides\)</dt><dd>([\d.]+)", one).group(1))
    assert kappa > 1.0  # opposite parameters: this agent differs a lot


def test_a_stated_kappa_is_shown_as_it_is(dashboard):
    tokens = dashboard.fleet("a", personal=0.5)
    dashboard.send(tokens["a"])
    assert "κ of the model</dt><dd>0.50" in dashboard.show("/models/news/agents/a")


def test_a_thousand_arms_are_sorted_paged_and_searched(dashboard):
    K = 1000
    arms = [f"offer-{i:04}" for i in range(K)]
    tokens = dashboard.fleet("a", dim=2 * K, arms=arms)
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, K, size=300)
    places, values = chosen, np.column_stack([rng.normal(size=300), np.ones(300)])
    stats = SufficientStats.of_blocks(places, values, rng.random(300), K)
    upload(dashboard, tokens["a"], "a", stats)
    text = dashboard.show("/models/news/arms?sort=-n_obs")
    assert "1 to 50 of 1,000 arms" in text and len(text) < 40_000
    counts = [int(n) for n in re.findall(r'class="number">(\d+)</td><td class="number">[\d.−–]', text)]
    assert counts == sorted(counts, reverse=True) and counts[0] == np.bincount(chosen).max()
    assert "1 to 10 of 10 arms" in dashboard.show("/models/news/arms?search=offer-012")
    assert "951 to 1,000" in dashboard.show("/models/news/arms?page=20")
    assert 'href="/models/news/arms"' in dashboard.show("/models/news")
    told = dashboard.call("GET", "/v1/models/news/arms")["arms"]
    assert sum(arm["n_obs"] for arm in told) == 300
    assert dashboard.request("GET", "/models/news/arms?sort=shoes").status_code == 400


def test_a_model_without_blocks_has_no_view_of_arms(dashboard):
    dashboard.fleet("a")
    answer = dashboard.request("GET", "/models/news/arms")
    assert answer.status_code == 400 and "has no blocks" in answer.text


def test_events_have_plain_words_and_can_be_filtered(dashboard):
    tokens = dashboard.fleet("a")
    dashboard.send(tokens["a"])
    dashboard.request("GET", "/v1/models/news/state?incarnation=life-1", token=tokens["a"])
    dashboard.call("POST", "/v1/models/news/events", {"text": "killed by the demo", "agent": "a"})
    dashboard.portal.call(dashboard.container.history._flush)
    text = dashboard.show("/models/news/events")
    for words in (
        "process started again",
        "continues its journal after upload 1",
        "killed by the demo",
        "model created",
    ):
        assert words in text
    only = dashboard.show("/models/news/events?kind=noted")
    assert "killed by the demo" in only and "continues its journal" not in only
    marks = re.search(r'data-marks="([^"]*)"', dashboard.show("/models/news")).group(1)
    assert "a process started again" in marks and "a note" in marks


def test_bytes_stand_beside_messages_and_raw_rows_beside_bytes(dashboard):
    tokens = dashboard.fleet("a")
    dashboard.send(tokens["a"])
    model = dashboard.call("GET", "/v1/models/news")
    assert model["raw_bytes"] == 8 * 4 * model["n_obs"]  # three features and the reward
    for path in ("/", "/models/news", "/models/news/agents/a"):
        assert f"raw rows: {model['raw_bytes']} bytes" in dashboard.show(path)
    assert f"· {model['n_bytes']} bytes" in dashboard.show("/models/news/agents")


def test_every_word_that_a_view_links_is_explained(dashboard):
    tokens = dashboard.fleet("a", control=0.1, personal="auto")
    dashboard.send(tokens["a"])
    explained = set(re.findall(r'<div id="([^"]+)" class="entry"', dashboard.show("/words", token="")))
    assert explained == set(WORDS)
    linked = set()
    for path in ("/", "/models/news", "/models/news/agents", "/models/news/agents/a", "/models/news/events"):
        linked |= set(re.findall(r'href="/words#([^"]+)"', dashboard.show(path)))
    assert len(linked) > 8 and linked <= explained


@pytest.mark.parametrize("path", ["/nonsense", "/models", "/models/news/shoes", "/static/x", "/.env"])
def test_a_browser_gets_a_page_for_what_does_not_exist_and_a_program_json(dashboard, path):
    page = dashboard.request("GET", path, token="", headers=BROWSER)
    assert page.status_code == 404 and "<h1>Not found</h1>" in page.text and "All models" in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for accept in ("application/json", "*/*"):
        answer = dashboard.request("GET", path, headers={"Accept": accept})
        assert answer.status_code == 404 and answer.json()["error"] == "not_found"


@pytest.mark.parametrize("path", ["/v1/shoes", "/v1/models/nowhere", "/healthz", "/openapi.json", "/status"])
def test_the_api_answers_in_json_whoever_asks(dashboard, path):
    answer = dashboard.request("GET", path, headers=BROWSER)
    assert answer.headers["content-type"].startswith("application/json")


def test_browsers_that_ask_for_an_icon_get_ours(dashboard):
    answer = dashboard.request("GET", "/favicon.ico", token="")
    assert answer.status_code == 200 and answer.headers["content-type"] == "image/svg+xml"
    assert answer.text.startswith("<svg")
