"""The JavaScript client's page in a real browser, on another origin than the server, in one fleet with Python."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
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
