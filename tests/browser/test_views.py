"""Every view, light and dark, wide and narrow: drawn, accessible, within its policy, nothing cut off."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Watched
from tests.browser.views import VIEWS
from tests.live import LiveServer

SIZES = {"wide": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def settle(page: Page) -> None:
    """Wait until what the view draws is drawn."""
    if page.locator("body[data-live]").count():
        expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=15_000)
    for chart in page.locator("[data-chart]").all():
        expect(chart.locator("svg")).to_be_visible(timeout=15_000)


def serious(page: Page) -> list[str]:
    """What axe finds serious or critical."""
    page.evaluate(AXE)
    found = page.evaluate("async () => (await axe.run()).violations")
    return [
        f"{item['id']}: {item['help']}: {[node['target'] for node in item['nodes']][:3]}"
        for item in found
        if item["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_every_view_is_sound(browser: Browser, server: LiveServer, tmp_path, theme, size):
    context = browser.new_context(viewport=SIZES[size], color_scheme=theme, reduced_motion="reduce")
    watch = Watched(context)
    page = context.new_page()
    for name, path in VIEWS.items():
        answer = page.goto(server.url + path)
        assert answer is not None and "default-src 'none'" in answer.headers["content-security-policy"]
        settle(page)
        assert serious(page) == [], name
        room = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert room[0] <= room[1], f"{name} is wider than the screen"
        picture = tmp_path / f"{name}-{theme}-{size}.png"
        page.screenshot(path=picture, full_page=True)
        assert picture.stat().st_size > 5_000
    context.close()
    watch.check()


def test_a_browser_that_gets_lost_finds_a_page_that_is_sound(browser: Browser, server: LiveServer):
    context = browser.new_context(viewport=SIZES["phone"], color_scheme="dark")
    page = context.new_page()
    answer = page.goto(f"{server.url}/models/news/nonsense")
    assert answer is not None and answer.status == 404
    assert serious(page) == []
    page.get_by_role("link", name="All models").click()
    expect(page.get_by_role("heading", name="Models", level=1)).to_be_visible()
    context.close()


def test_without_scripts_the_numbers_are_there(browser: Browser, server: LiveServer):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{server.url}/models/news")
    expect(page.locator("#tiles .value").nth(1)).to_have_text(re.compile(r"[1-9][0-9,]*"))
    expect(page.locator("#theta")).to_contain_text("sport")
    context.close()
