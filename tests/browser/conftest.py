"""The system's chromium, driven by playwright; without it these tests are left out, and say so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

from tests.browser.chromium import find_chromium, launched
from tests.browser.fleet import Shops, make_news, make_offers
from tests.live import LiveServer, running_server


# Per module, not per session: playwright's event loop must not be there when other tests run their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_chromium()
    if path is None:
        pytest.skip("NO BROWSER TESTS: there is no chromium; scripts/ensure-chromium installs it where apt-get may")
    with launched(path) as made:
        yield made


@pytest.fixture(scope="module")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """An open page on a model that some shops have learnt for a while."""
    with running_server(tmp_path_factory.mktemp("server"), open_dashboard=True) as made:
        make_news(made)
        made.shops = Shops(made, unsent=9)  # type: ignore[attr-defined]
        made.shops.play(300)  # type: ignore[attr-defined]
        make_offers(made)
        yield made


@pytest.fixture
def shops(server: LiveServer) -> Shops:
    found: Shops = server.shops  # type: ignore[attr-defined]
    return found


class Watched:
    """What must not happen on a page: errors in its console, requests to anywhere else."""

    def __init__(self, context: BrowserContext) -> None:
        self.errors: list[str] = []
        self.strangers: list[str] = []
        self.may_fail = False  # set by tests that take the server away
        context.on("request", lambda request: self._request(request.url))
        context.on("console", self._console)
        context.on("weberror", lambda error: self.errors.append(str(error.error)))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _request(self, url: str) -> None:
        if urlsplit(url).hostname != "127.0.0.1":
            self.strangers.append(url)

    def check(self) -> None:
        """Fail if anything did."""
        assert self.strangers == []
        assert self.may_fail or self.errors == []


@pytest.fixture
def watched(browser: Browser) -> Iterator[tuple[Page, Watched]]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    watch = Watched(context)
    yield context.new_page(), watch
    context.close()
    watch.check()


@pytest.fixture
def page(watched: tuple[Page, Watched]) -> Page:
    """A page that must stay without errors."""
    return watched[0]


@pytest.fixture
def fresh_server(browser: Browser, tmp_path: Path) -> Iterator[LiveServer]:
    """A server for one test alone, with a closed page. Name it before `page`, so that the page is closed first."""
    with running_server(tmp_path) as made:
        yield made
