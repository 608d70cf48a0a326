"""The JavaScript client in a real browser, on another origin than the server: its page, and its stores over reloads."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

import fedbandit as fb
from fedbandit.algorithms.messages import packed_bytes
from fedbandit.core.statistics import SufficientStats
from fedbandit.wire import codec
from tests.browser.conftest import Watched
from tests.live import LiveServer, running_server

CLIENT = Path(__file__).resolve().parents[2] / "clients" / "js"
HEADLINES = 4
DIM = 2 * HEADLINES
SOON_MS = 15_000


class Files(SimpleHTTPRequestHandler):
    """The client's folder; nothing on standard error."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """Where the page comes from."""
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(CLIENT))) as files:
        thread = threading.Thread(target=files.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{files.server_port}"
        files.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def open_server(browser: Browser, origin: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with running_server(tmp_path_factory.mktemp("server"), allow_origin=origin) as made:
        made.add_model("news", dim=DIM, alpha=0.5, reward_bound=1.0, action_bound=2.0)
        yield made


def address(origin: str, server: LiveServer, token: str) -> str:
    return f"{origin}/example.html?" + urlencode({"url": server.url, "model": "news", "token": token})


def row(topic: int, *, evening: bool) -> np.ndarray:
    """Features as the page makes them: the headline, and the headline in the evening."""
    return np.eye(DIM)[topic] + (np.eye(DIM)[topic + HEADLINES] if evening else 0.0)


def answer(page: Page, *, evening: bool) -> tuple[np.ndarray, float]:
    """Read or skip what the page shows; the simulated visitor likes the second headline only."""
    page.locator("#evening").set_checked(evening)
    names = page.locator("#estimates tr td:first-child").all_inner_texts()
    topic = names.index(page.locator("#headline").inner_text())
    reward = float(topic == 1)
    page.locator("#read" if reward else "#skip").click()
    return row(topic, evening=evening), reward


def python_agent(server: LiveServer, n_rounds: int) -> SufficientStats:
    """A Python agent of the same fleet; what it saw."""
    rows, rewards = [], []
    with fb.connect(server.url, model="news", token=server.add_agent("news", "py-1")) as agent:
        for n in range(n_rounds):
            decision = agent.choose(np.array([row(topic, evening=n % 2 == 0) for topic in range(HEADLINES)]))
            rewards.append(float(decision.index == 1))
            rows.append(decision.x)
            agent.observe(decision, rewards[-1])
        agent.flush()
    return SufficientStats.of(np.array(rows), np.array(rewards))


def test_a_page_of_another_origin_takes_part_and_everything_is_counted_once(
    open_server: LiveServer, page: Page, origin: str
) -> None:
    """Whole numbers add exactly: the server holds λI, what the page saw and what Python saw, to the last bit."""
    page.goto(address(origin, open_server, open_server.add_agent("news", "page-1")))
    expect(page.locator("#status")).to_contain_text("page-1: model version 0", timeout=SOON_MS)
    seen = [answer(page, evening=n % 3 == 0) for n in range(30)]
    page.locator("#sync").click()
    expect(page.locator("#status")).to_contain_text(" 0 observations unsent", timeout=SOON_MS)
    theirs = python_agent(open_server, 40)
    page.reload()  # the same agent, from localStorage, with the newest model of the fleet
    expect(page.locator("#status")).to_contain_text(
        f"model version {open_server.show('news')['version']}", timeout=SOON_MS
    )
    expect(page.locator("#headline")).to_have_text("Home side wins in the last minute")
    seen += [answer(page, evening=False) for _ in range(5)]
    page.locator("#sync").click()
    expect(page.locator("#status")).to_contain_text(" 0 observations unsent", timeout=SOON_MS)

    mine = SufficientStats.of(np.array([x for x, _ in seen]), np.array([reward for _, reward in seen]))
    expected = SufficientStats.prior(dim=DIM, lam=1.0) + mine + theirs
    reply = codec.decode_reply(open_server.request("GET", "/v1/models/news/state").data)
    assert np.array_equal(codec.numbers_of(reply), np.frombuffer(packed_bytes(expected)))
    agent = open_server.call("GET", "/v1/models/news/agents/page-1")
    assert agent["n_obs"] == 35
    assert agent["n_uploads"] > 2, "the trigger was at work, besides the two clicks"
    assert page.locator("#error").inner_text() == ""


def test_a_refusal_reaches_the_page_in_the_servers_words(
    open_server: LiveServer, watched: tuple[Page, Watched], origin: str
) -> None:
    page, watch = watched
    watch.may_fail = True  # the browser logs every 401
    page.goto(address(origin, open_server, "fb_wrong_token_of_a_stranger"))
    expect(page.locator("#error")).to_contain_text("Unauthenticated: this token is not known here", timeout=SOON_MS)


def test_a_page_of_an_origin_that_is_not_named_stays_outside(
    fresh_server: LiveServer, watched: tuple[Page, Watched], origin: str
) -> None:
    page, watch = watched
    watch.may_fail = True
    fresh_server.add_model("news", dim=DIM)
    page.goto(address(origin, fresh_server, fresh_server.add_agent("news", "page-1")))
    expect(page.locator("#error")).to_contain_text("NotReachable", timeout=SOON_MS)
    assert fresh_server.call("GET", "/v1/models/news/agents/page-1")["last_seen"] is None


# -- stores: the same agent over reloads

STORE_DIM = 3
KINDS = ["localStorage", "IndexedDB"]
ROUND = """n => {
  const { id, x } = agent.choose([[1 + n % 3, 0, 1], [0, 1 + n % 2, 1]]);
  return { id, x: [...x], reward: n % 4 };
}"""


def start(page: Page, origin: str, kind: str, options: dict[str, Any]) -> None:
    page.goto(f"{origin}/test/page.html")
    page.wait_for_function("window.start !== undefined")
    page.evaluate("([kind, options]) => start(kind, options)", [kind, options])


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_keeps_its_decisions_over_reloads_and_counts_everything_once(
    open_server: LiveServer,
    page: Page,
    origin: str,
    kind: str,
) -> None:
    """Whole numbers add exactly. Rewards come by id after a reload, one from elsewhere, and one is settled by age."""
    model = f"model-{kind}"
    open_server.add_model(model, dim=STORE_DIM, alpha=0.5)
    options = {"url": open_server.url, "model": model, "token": open_server.add_agent(model, "page-1")}
    start(page, origin, kind, options)
    seen = [page.evaluate(ROUND, n) for n in range(12)]
    for each in seen[:5]:
        page.evaluate("({ id, reward }) => { agent.observe(id, reward); }", each)
    page.evaluate("() => agent.sync()")
    for each in seen[5:8]:
        page.evaluate("({ id, reward }) => { agent.observe(id, reward); }", each)
    page.evaluate("() => agent.saved()")
    kept = page.evaluate("() => [agent.incarnation, agent.sequence, agent.buffer.at(-3), agent.pending.size]")
    assert kept[1] > 0, "something was uploaded before the reload"
    elsewhere = {"decision": seen[11]["id"], "reward": seen[11]["reward"]}

    start(page, origin, kind, options)
    assert page.evaluate("() => [agent.incarnation, agent.sequence, agent.buffer.at(-3), agent.pending.size]") == kept
    answer = page.evaluate(
        "id => { try { agent.observe(id, 1); } catch (error) { return error.name; } }", seen[0]["id"]
    )
    assert answer == "AlreadyObserved"
    for each in seen[8:10]:
        page.evaluate("({ id, reward }) => { agent.observe(id, reward); }", each)
    page.evaluate("() => agent.collect()")  # the server learns whose decisions these are
    assert open_server.call("POST", f"/v1/models/{model}/rewards", elsewhere)["status"] == "waiting"
    page.evaluate("() => agent.refresh()")
    assert page.evaluate("() => agent.pending.size") == 1, "the reward from elsewhere was collected"
    assert page.evaluate("reward => agent.pending.settle(reward)", seen[10]["reward"]) == 1
    page.evaluate("() => agent.flush()")

    rows, rewards = np.array([each["x"] for each in seen]), np.array([each["reward"] for each in seen])
    expected = SufficientStats.prior(dim=STORE_DIM, lam=1.0) + SufficientStats.of(rows, rewards)
    reply = codec.decode_reply(open_server.request("GET", f"/v1/models/{model}/state").data)
    assert np.array_equal(codec.numbers_of(reply), np.frombuffer(packed_bytes(expected)))
    assert open_server.call("GET", f"/v1/models/{model}/agents/page-1")["n_obs"] == len(seen)


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_tab_does_not_open_the_same_state(
    open_server: LiveServer,
    browser: Browser,
    origin: str,
    kind: str,
) -> None:
    model = f"tabs-{kind}"
    open_server.add_model(model, dim=STORE_DIM)
    options = {"url": open_server.url, "model": model, "token": open_server.add_agent(model, "page-1")}
    context = browser.new_context()
    try:
        first, second = context.new_page(), context.new_page()
        start(first, origin, kind, options)
        second.goto(f"{origin}/test/page.html")
        second.wait_for_function("window.start !== undefined")
        told = "([kind, options]) => start(kind, options).then(() => 'open', (error) => error.name)"
        assert second.evaluate(told, [kind, options]) == "StateInUse"
        first.evaluate("() => agent.close()")
        assert second.evaluate(told, [kind, options]) == "open"
    finally:
        context.close()
