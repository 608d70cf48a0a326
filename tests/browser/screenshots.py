"""The pictures in docs/screenshots: `python -m tests.browser.screenshots` makes them anew, in about two minutes."""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, expect

from tests.browser.chromium import find_chromium, launched
from tests.browser.fleet import Shops, make_news, make_offers
from tests.live import LiveServer, running_server

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screenshots"
SIZES = {"": {"width": 1200, "height": 900}, "-phone": {"width": 390, "height": 844}}
END = "Math.ceil(document.querySelector('main').lastElementChild.getBoundingClientRect().bottom) + 24"
VIEWS = {
    "overview": "/",
    "model": "/models/news",
    "agents": "/models/news/agents?sort=-share",
    "agent": "/models/news/agents/kiosk-2",
    "arms": "/models/catalogue/arms",
}
COLOURS = 256  # an interface has few; the files are a third of the size
MAX_BYTES = 150_000


def prepare(server: LiveServer, seconds: float) -> None:
    """Run two fleets for a while, with one agent that never connects and one that is revoked."""
    make_news(server, radius={"kind": "exogenous", "noise_scale": 0.2}, action_bound=1.0)
    make_news(server, "offers", alpha=4.0)
    news = Shops(server, "news", [f"kiosk-{i}" for i in range(1, 25)], seed=4, unsent=30)
    offers = Shops(server, "offers", ["berlin", "lagos", "lima", "osaka", "pune"], alpha=4.0, seed=3)
    make_offers(server, "catalogue", n_arms=30, n_rounds=1500)
    server.add_agent("news", "kiosk-25")
    silent = Shops(server, "news", ["kiosk-26"], seed=5)
    silent.play(20)
    set_back(server)
    server.add_agent("news", "stolen-tablet")
    server.call("POST", "/v1/models/news/agents/stolen-tablet/revoke")
    server.call("POST", "/v1/models/news/events", {"text": "evening campaign began"})
    end = time.monotonic() + seconds
    n_rounds = 4
    while time.monotonic() < end:
        news.play(n_rounds)
        offers.play(n_rounds // 2)
        n_rounds = min(n_rounds + 2, 150)
        time.sleep(0.4)


def set_back(server: LiveServer) -> None:
    """One agent was last seen two days ago, and one was enrolled that long ago without ever connecting."""
    server.stop()
    with closing(sqlite3.connect(server.data_dir / "fedbandit.sqlite3")) as database:
        database.execute("UPDATE agents SET last_seen = last_seen - 200000 WHERE name = 'kiosk-26'")
        database.execute("UPDATE agents SET created = created - 200000 WHERE name IN ('kiosk-25', 'kiosk-26')")
        database.commit()
    server.start()


def take(browser: Browser, server: LiveServer, folder: Path) -> None:
    """Every view in both themes, and the model on a phone."""
    for theme in ("light", "dark"):
        for suffix, size in SIZES.items():
            context = browser.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce")
            page = context.new_page()
            for name, path in VIEWS.items():
                if suffix and name != "model":
                    continue
                page.goto(server.url + path)
                for chart in page.locator("[data-chart]").all():
                    expect(chart.locator("svg")).to_be_visible(timeout=30_000)
                page.wait_for_timeout(300)
                height = 1700 if suffix or name == "model" else 4000
                clip = page.evaluate(f"[innerWidth, {END}]")
                area = {"x": 0, "y": 0, "width": clip[0], "height": min(clip[1], height)}
                save(page.screenshot(clip=area, full_page=True), folder / f"{name}-{theme}{suffix}.png")
            context.close()


def save(png: bytes, path: Path) -> None:
    """The picture with few colours, small enough to be kept."""
    picture = (
        Image.open(BytesIO(png)).convert("RGB").quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    )
    picture.save(path, optimize=True)
    assert path.stat().st_size < MAX_BYTES, f"{path.name} has {path.stat().st_size} bytes"


def main(seconds: float = 75.0) -> None:
    """Make them all."""
    path = find_chromium()
    if path is None:
        sys.exit("there is no chromium; scripts/ensure-chromium installs it where apt-get may")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder), open_dashboard=True) as server:
        prepare(server, seconds)
        with launched(path) as browser:
            take(browser, server, FOLDER)


if __name__ == "__main__":
    main()
