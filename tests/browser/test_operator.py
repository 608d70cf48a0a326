"""What an operator does in a real browser: sign in by a link, choose a time range, zoom, read events, take files."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Watched
from tests.browser.fleet import Shops, make_news
from tests.live import LiveServer

SOON_MS = 15_000


def ready(page: Page) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=SOON_MS)
    expect(page.locator("#chart-exchanges svg")).to_be_visible(timeout=SOON_MS)


def window_of(page: Page) -> tuple[float, float]:
    """The times that the first chart shows, from its address."""
    query = parse_qs(urlsplit(page.url).query)
    return float(query["since"][0]), float(query["until"][0])


def test_a_link_signs_in_once_and_leaves_no_code_behind(fresh_server: LiveServer, browser: Browser):
    make_news(fresh_server)
    Shops(fresh_server).play(60)
    link = fresh_server.url + fresh_server.call("POST", "/v1/sign-in-links", {"target": "/models/news"})["path"]
    code = link.partition("#")[2]
    context = browser.new_context()
    watch = Watched(context)
    sent: list[str] = []
    context.on("request", lambda request: sent.append(json.dumps([request.url, dict(request.headers)])))
    page = context.new_page()
    page.goto(link)
    expect(page.get_by_role("heading", name="news", level=1)).to_be_visible(timeout=SOON_MS)
    assert page.url == f"{fresh_server.url}/models/news"
    assert all(code not in text for text in sent if "/sign-in" not in text)
    assert all(code not in json.loads(text)[1].get("referer", "") for text in sent)
    assert code not in fresh_server.log()
    page.get_by_role("link", name="All agents").click()
    expect(page.get_by_role("heading", name="Agents", level=1)).to_be_visible()
    watch.check()
    context.close()
    other = browser.new_context()
    page = other.new_page()
    page.goto(link)
    expect(page.get_by_role("alert")).to_contain_text("it works once", timeout=SOON_MS)
    assert "#" not in page.url
    other.close()


def test_a_drag_zooms_all_charts_and_the_address_keeps_it(page: Page, server: LiveServer, shops: Shops):
    page.goto(f"{server.url}/models/news")
    ready(page)
    shops.play(100)
    page.wait_for_timeout(1200)
    lines = page.locator("#chart-information .lines")
    before = lines.inner_html()
    chart = page.locator("#chart-exchanges svg")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.4 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.9 * box["width"], y, steps=5)
    expect(page.locator("#chart-exchanges .selection rect")).to_have_count(1)
    page.mouse.up()
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
    first, last = window_of(page)
    assert first < last
    assert lines.inner_html() != before
    page.reload()
    ready(page)
    assert window_of(page) == (first, last)
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
    page.get_by_role("button", name="Reset zoom").click()
    assert "since" not in page.url


def test_keys_zoom_and_the_ranges_are_buttons(page: Page, server: LiveServer):
    page.goto(f"{server.url}/models/news")
    ready(page)
    page.locator("#chart-exchanges svg").focus()
    page.keyboard.press("+")
    first, last = window_of(page)
    page.keyboard.press("+")
    closer = window_of(page)
    assert closer[1] - closer[0] < last - first
    page.keyboard.press("Escape")
    assert "since" not in page.url
    hour = page.get_by_role("button", name="1 h", exact=True)
    hour.click()
    expect(hour).to_have_attribute("aria-pressed", "true")
    assert "range=1h" in page.url
    expect(page.locator("#chart-exchanges path.line")).to_have_attribute("d", re.compile("^M"))
    page.get_by_role("button", name="all", exact=True).click()
    assert "range" not in page.url


def test_a_file_has_the_range_that_its_chart_shows(page: Page, server: LiveServer):
    page.goto(f"{server.url}/models/news")
    ready(page)
    link = page.get_by_role("link", name="exchanges as JSON")
    with page.expect_download() as whole:
        link.click()
    everything = json.loads(whole.value.path().read_text())
    since, until = everything[0]["at"] - 100.0, everything[0]["at"] - 50.0
    page.goto(f"{server.url}/models/news?since={since}&until={until}")
    expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=SOON_MS)
    with page.expect_download() as nothing:
        link.click()
    assert json.loads(nothing.value.path().read_text()) == [] and len(everything) >= 1


def test_events_are_marked_on_charts(page: Page, server: LiveServer, shops: Shops):
    page.goto(f"{server.url}/models/news")
    ready(page)
    server.call("POST", "/v1/models/news/events", {"text": "killed by hand", "agent": "shop-2"})
    expect(page.locator("#events")).to_contain_text("killed by hand", timeout=SOON_MS)
    shops.play(150)
    mark = page.locator("#chart-exchanges .marks line").last
    expect(mark).to_be_attached(timeout=SOON_MS)
    names = page.evaluate("""() => document.querySelector("#marks [data-marks]").dataset.marks""")
    assert "shop-2 note" in names


def test_arms_are_searched_without_loading_the_view_again(page: Page, server: LiveServer):
    page.goto(f"{server.url}/models/offers/arms")
    page.evaluate("window.kept = true")
    page.get_by_label("Search by name").type("offer-01")
    expect(page.get_by_text("1 to 2 of 2 arms")).to_be_visible()
    page.get_by_role("link", name="Mean reward").click()
    expect(page.get_by_role("columnheader", name="Mean reward")).to_have_attribute("aria-sort", "descending")
    assert page.evaluate("window.kept") is True


def test_a_word_leads_to_its_meaning(page: Page, server: LiveServer):
    page.goto(f"{server.url}/models/news")
    page.get_by_role("link", name="What it means: Share of information").first.click()
    expect(page.locator("#share dt")).to_be_in_viewport()
