"""The pictures in docs/screenshots: `python -m tests.browser.screenshots` makes them anew, in about two minutes."""

from __future__ import annotations

import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, expect

from tests.browser.chromium import find_chromium, launched
from tests.browser.fleet import Shops, make_news
from tests.live import LiveServer, running_server

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "screenshots"
SIZES = {"": {"width": 1200, "height": 900}, "-phone": {"width": 390, "height": 844}}
END = "Math.ceil(document.querySelector('main').lastElementChild.getBoundingClientRect().bottom) + 24"
VIEWS = {
    "overview": "/",
    "model": "/models/news",
    "agents": "/models/news/agents?sort=-n_obs",
    "agent": "/models/news/agents/kiosk-2",
}
COLOURS = 256  # an interface has few; the files are a third of the size
MAX_BYTES = 150_000


def prepare(server: LiveServer, seconds: float) -> None:
    """Run two fleets for a while, with one agent that never connects and one that is revoked."""
    make_news(server, radius={"kind": "exogenous", "noise_scale": 0.2}, action_bound=1.0)
    make_news(server, "offers", alpha=4.0)
    news = Shops(server, "news", [f"kiosk-{i}" for i in range(1, 25)], seed=4, unsent=30)
    offers = Shops(server, "offers", ["berlin", "lagos", "lima", "osaka", "pune"], alpha=4.0, seed=3)
    server.add_agent("news", "kiosk-25")
    server.add_agent("news", "stolen-tablet")
    server.call("POST", "/v1/models/news/agents/stolen-tablet/revoke")
    end = time.monotonic() + seconds
    n_rounds = 4
    while time.monotonic() < end:
        news.play(n_rounds)
        offers.play(n_rounds // 2)
        n_rounds = min(n_rounds + 2, 150)
        time.sleep(0.4)


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
