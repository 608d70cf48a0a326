"""A real browser on a real server: numbers change, outages are shown, and a view left open does not grow."""

from __future__ import annotations

import re
import sqlite3
import time

from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.fleet import Shops, make_news
from tests.live import LiveServer

SOON_MS = 15_000  # two cores may be busy with other tests


def tile(page: Page, label: str) -> Locator:
    named = page.locator("dt", has_text=re.compile(f"^{label}$"))
    return page.locator(".tile").filter(has=named).locator(".value")


def figure(page: Page, label: str) -> str:
    return tile(page, label).inner_text()


def wait_until_live(page: Page) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", "live", timeout=SOON_MS)


def test_a_live_fleet_changes_the_numbers_and_the_charts(page: Page, server: LiveServer, shops: Shops):
    page.goto(f"{server.url}/models/news")
    wait_until_live(page)
    page.evaluate("window.kept = true")
    before = figure(page, "Observations")
    line = page.locator("#chart-exchanges path.line").first
    drawn = line.get_attribute("d")
    shops.play(200)
    expect(tile(page, "Observations")).not_to_have_text(before, timeout=SOON_MS)
    shown = server.show("news")
    expect(tile(page, "Observations")).to_have_text(f"{shown['n_obs']:,}", timeout=SOON_MS)
    expect(line).not_to_have_attribute("d", drawn or "", timeout=SOON_MS)
    assert page.evaluate("window.kept") is True, "the document was loaded again"


def test_an_agent_and_the_overview_follow_too(page: Page, server: LiveServer, shops: Shops):
    other = page.context.new_page()
    page.goto(f"{server.url}/")
    other.goto(f"{server.url}/models/news/agents/shop-1")
    wait_until_live(page)
    wait_until_live(other)
    before = figure(page, "Observations"), figure(other, "Observations")
    while shops.play(50) == 0 or server.call("GET", "/v1/models/news/agents/shop-1")["n_obs"] == int(
        before[1].replace(",", "")
    ):
        pass
    for view, text in zip((page, other), before, strict=True):
        expect(tile(view, "Observations")).not_to_have_text(text, timeout=SOON_MS)


def test_an_agent_can_be_compared_with_the_fleet(page: Page, server: LiveServer):
    page.goto(f"{server.url}/models/news")
    wait_until_live(page)
    expect(page.locator("#chart-reward path.line")).to_have_count(2)
    page.get_by_label("Compare with an agent").fill("shop-2")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#chart-reward path.line")).to_have_count(3, timeout=SOON_MS)
    expect(page.locator("#chart-reward .names")).to_contain_text("shop-2")


def test_the_first_upload_makes_the_charts_appear(page: Page, server: LiveServer):
    make_news(server, "fresh")
    page.goto(f"{server.url}/models/fresh")
    wait_until_live(page)
    expect(page.get_by_text("Nothing learnt yet")).to_be_visible()
    Shops(server, "fresh", ["first"]).play(60)
    expect(page.locator("#chart-reward svg")).to_be_visible(timeout=SOON_MS)
    server.call("DELETE", "/v1/models/fresh")
    expect(page.locator("#failure")).to_contain_text("No longer available", timeout=SOON_MS)


def test_a_killed_server_shows_as_disconnected_and_the_view_recovers(fresh_server: LiveServer, watched):
    page, watch = watched
    watch.may_fail = True
    make_news(fresh_server)
    shops = Shops(fresh_server)
    shops.play(100)
    page.set_extra_http_headers({"Authorization": f"Bearer {fresh_server.admin_token}"})
    page.goto(f"{fresh_server.url}/models/news")
    wait_until_live(page)
    before = figure(page, "Observations")
    fresh_server.kill()
    expect(page.locator("#connection")).to_have_attribute("data-state", "lost", timeout=SOON_MS)
    expect(page.get_by_role("alert")).to_contain_text("No connection to the server")
    assert figure(page, "Observations") == before
    fresh_server.start()
    wait_until_live(page)
    expect(page.locator("#failure")).to_have_count(0)
    shops.play(200)
    expect(tile(page, "Observations")).not_to_have_text(before, timeout=SOON_MS)


def test_a_server_that_stops_does_not_wait_for_open_views(fresh_server: LiveServer, watched):
    page, watch = watched
    watch.may_fail = True
    page.set_extra_http_headers({"Authorization": f"Bearer {fresh_server.admin_token}"})
    page.goto(f"{fresh_server.url}/")
    wait_until_live(page)
    began = time.monotonic()
    assert fresh_server.stop() == 0
    assert time.monotonic() - began < 10


def test_a_wrong_token_is_told_the_right_one_lets_in_and_one_can_leave(fresh_server: LiveServer, watched):
    page, watch = watched
    make_news(fresh_server)
    page.goto(f"{fresh_server.url}/models/news")
    page.get_by_label("Token of a viewer or an administrator").fill("fb_" + "x" * 43)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("This token is unknown")
    assert [error for error in watch.errors if "401" not in error] == []
    watch.errors.clear()  # the browser notes the refusal itself
    viewer = fresh_server.call("POST", "/v1/tokens", {"name": "ada", "role": "viewer"})["token"]
    page.get_by_label("Token of a viewer or an administrator").fill(viewer)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="news", level=1)).to_be_visible()
    assert page.url == f"{fresh_server.url}/models/news"
    assert viewer not in page.content() and page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto(f"{fresh_server.url}/")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_ten_thousand_agents_are_paged_sorted_and_searched(fresh_server: LiveServer, page: Page):
    make_news(fresh_server)
    Shops(fresh_server).play(50)
    fresh_server.stop()
    with sqlite3.connect(fresh_server.data_dir / "fedbandit.sqlite3") as database:
        rows = [(f"till-{i:05}", i.to_bytes(32), float(i), float(i)) for i in range(10_000)]
        database.executemany(
            "INSERT INTO agents (model_id, name, token_hash, created, last_seen) VALUES (1, ?, ?, ?, ?)", rows
        )
        database.execute("UPDATE models SET n_agents = n_agents + 10000")
    database.close()
    fresh_server.start()
    page.set_extra_http_headers({"Authorization": f"Bearer {fresh_server.admin_token}"})
    began = time.monotonic()
    page.goto(f"{fresh_server.url}/models/news/agents?sort=name")
    expect(page.get_by_text("1 to 25 of 10,003 agents")).to_be_visible()
    assert time.monotonic() - began < 5
    page.evaluate("window.kept = true")
    page.get_by_label("Search by name").type("till-0777")
    expect(page.get_by_text("1 to 10 of 10 agents")).to_be_visible()
    expect(page.get_by_label("Search by name")).to_be_focused()
    page.get_by_label("Search by name").fill("")
    expect(page.get_by_text("of 10,003 agents")).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_text("26 to 50 of 10,003 agents")).to_be_visible()
    expect(page.get_by_role("link", name="Next")).to_be_focused()
    page.get_by_role("link", name="401").click()
    expect(page.get_by_text("10,001 to 10,003 of 10,003 agents")).to_be_visible()
    page.get_by_role("link", name="Last seen").click()
    expect(page.get_by_role("columnheader", name="Last seen")).to_have_attribute("aria-sort", "descending")
    expect(page.locator("tbody tr").first).to_contain_text("shop-")
    page.go_back()
    expect(page.get_by_text("10,001 to 10,003 of 10,003 agents")).to_be_visible()
    assert page.locator("tbody tr").count() <= 25
    assert page.evaluate("window.kept") is True
    wait_until_live(page)


def test_a_view_left_open_does_not_grow(page: Page, server: LiveServer, shops: Shops):
    page.goto(f"{server.url}/models/news")
    wait_until_live(page)
    sizes = page.evaluate(
        """async () => {
            const script = document.querySelector("script[type=module]").src.replace("dashboard.js", "chart.js");
            const { addPoints } = await import(script);
            const series = new Map();
            const lengths = [];
            for (let i = 0; i < 3600; i++) {
                addPoints(series, "line", { how: "more", x: [i], y: [i] });
                lengths.push(series.get("line").x.length);
            }
            return [Math.max(...lengths), series.get("line").x.at(-1), series.get("line").y.length];
        }"""
    )
    assert sizes[0] <= 1501 and sizes[1] == 3599 and sizes[2] <= 1501
    count = "document.querySelectorAll('*').length"
    shops.play(100)
    page.wait_for_timeout(1500)
    before = page.evaluate(count)
    for _ in range(3):
        shops.play(100)
        page.wait_for_timeout(1000)
    assert abs(page.evaluate(count) - before) <= 25  # an axis may gain a tick, the list of events is bounded


def test_keys_read_a_chart_and_the_theme_is_remembered(page: Page, server: LiveServer):
    page.goto(f"{server.url}/models/news")
    wait_until_live(page)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    chart = page.locator("#chart-exchanges svg")
    chart.focus()
    page.keyboard.press("End")
    expect(page.locator("#chart-exchanges .readout")).to_contain_text("exchanges")
    page.locator("#chart-exchanges summary").click()
    expect(page.locator("#chart-exchanges table")).to_be_visible()
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_role("button", name="Switch to the dark theme").click()
    dark = page.evaluate(background)
    page.reload()
    assert light != dark == page.evaluate(background)


def test_the_tooltip_of_a_chart_stands_where_its_cursor_is(page: Page, server: LiveServer, shops: Shops):
    page.goto(f"{server.url}/models/news")
    wait_until_live(page)
    before = figure(page, "Exchanges")
    shops.play(200)
    expect(tile(page, "Exchanges")).not_to_have_text(before, timeout=SOON_MS)
    chart = page.locator("#chart-exchanges svg")
    chart.focus()
    for key in ("Home", "End"):
        page.keyboard.press(key)
        box = chart.bounding_box()
        place = page.locator("#chart-exchanges .readout").bounding_box()
        cursor = page.locator("#chart-exchanges .cursor line").bounding_box()
        assert box["y"] <= place["y"] <= box["y"] + box["height"]
        assert abs(place["x"] - cursor["x"]) <= place["width"] + 20


def test_a_phone_shows_the_share_of_an_agent_as_a_number(browser: Browser, server: LiveServer):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto(f"{server.url}/models/news/agents")
    expect(page.locator("td.share span").first).to_be_visible()
    page.goto(f"{server.url}/models/news")
    page.locator("table.shares td.number").first.scroll_into_view_if_needed()
    number = page.locator("table.shares td.number").first.bounding_box()
    assert number["x"] + number["width"] <= 390
    context.close()
