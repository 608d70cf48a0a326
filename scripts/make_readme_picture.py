"""Make docs/assets/fleet.gif, the moving picture of the README: the dashboard while `fedbandit demo` runs.

    python scripts/make_readme_picture.py     (about a minute; scripts/ensure-chromium installs the browser)

The run is real: a server, eight agent processes, one of them killed by SIGKILL and started again from its journal. The
line under the dashboard is what the demo printed at that moment.
"""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for the browser helpers of the tests, wherever this is started

from tests.browser.chromium import find_chromium, launched  # noqa: E402

from fedbandit.demo.worker import AgentTask  # noqa: E402

PICTURE = ROOT / "docs" / "assets" / "fleet.gif"
RUN_S = 24.0  # how long the agents take for their images
EVERY_S = 0.6
SHOWN_S, LAST_FRAME_S = 15.0, 2.5  # the whole picture, and its last frame
VIEW = {"width": 1120, "height": 760}
WIDTH, STRIP, COLOURS = 840, 52, 128
MAX_BYTES = 1_000_000
START_TIMEOUT_S = 60.0
EVENT = re.compile(r"killed \(SIGKILL\)|started again|Nothing lost")


def main() -> int:
    """Run the demo, take a frame every `EVERY_S`, and write the picture."""
    path = find_chromium()
    if path is None:
        sys.exit("there is no chromium; scripts/ensure-chromium installs it where apt-get may")
    with tempfile.TemporaryDirectory() as folder, launched(path) as browser:
        demo = start_demo(Path(folder) / "demo")
        try:
            context = browser.new_context(viewport=VIEW, color_scheme="light", reduced_motion="reduce")
            frames = film(context.new_page(), demo, lines_of(demo), Path(folder) / "demo")
            if demo.wait() != 0:
                sys.exit(f"the demo ended with status {demo.returncode}")
        finally:
            demo.kill()
    write(frames)
    print(f"{PICTURE.relative_to(ROOT)}: {len(frames)} frames, {PICTURE.stat().st_size:,} bytes")
    return 0


def start_demo(folder: Path) -> subprocess.Popen[str]:
    """The demo as a process that keeps its files in `folder`."""
    command = [sys.executable, "-m", "fedbandit", "demo", "--seconds", str(RUN_S), "--data", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def lines_of(process: subprocess.Popen[str]) -> queue.SimpleQueue[str]:
    """What the process prints, line by line, read by a thread."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    stdout = process.stdout
    assert stdout is not None

    def read() -> None:
        for line in stdout:
            lines.put(line.strip())

    threading.Thread(target=read, daemon=True).start()
    return lines


def film(
    page: Page, demo: subprocess.Popen[str], lines: queue.SimpleQueue[str], folder: Path
) -> list[tuple[Image.Image, str]]:
    """Frames with their captions, until the demo has ended."""
    page.goto(f"{dashboard_of(folder)}/models/digits")
    frames: list[tuple[Image.Image, str]] = []
    caption, begun = "eight agent processes learn one model", time.monotonic()
    while "Nothing lost" not in (caption := newest(lines, caption)) and demo.poll() is None:
        frames.append((Image.open(BytesIO(page.screenshot())).convert("RGB"), caption))
        time.sleep(max(begun + EVERY_S * len(frames) - time.monotonic(), 0.0))
    demo.wait()
    return [*frames, (frames[-1][0], newest(lines, caption))]


def dashboard_of(folder: Path) -> str:
    """The server's address, once the demo has written the tasks of its agents."""
    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end:
        if (folder / "agent-8.json").exists():
            return AgentTask.load(folder / "agent-1.json").url
        time.sleep(0.1)
    raise TimeoutError(f"the demo did not start within {START_TIMEOUT_S:.0f} s")


def newest(lines: queue.SimpleQueue[str], caption: str) -> str:
    """The last event among new lines, or the caption as it was."""
    while True:
        try:
            line = lines.get_nowait()
        except queue.Empty:
            return caption
        if EVENT.search(line):
            caption = re.sub(r"^[\d.]+ s\s+|^✓ ", "", line)
        elif "Nothing lost" in caption and "\n" not in caption:
            caption += "\n" + line.partition(". Σ")[0]  # that sentence has two lines; the font has no Σ


def write(frames: list[tuple[Image.Image, str]]) -> None:
    """The frames as a GIF with one palette, so that only what changes is stored."""
    pictures = [with_caption(frame, caption) for frame, caption in frames]
    palette = pictures[-1].quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    each_ms = round(1000 * (SHOWN_S - LAST_FRAME_S) / max(len(small) - 1, 1))
    times = [each_ms] * (len(small) - 1) + [round(1000 * LAST_FRAME_S)]
    small[0].save(PICTURE, save_all=True, append_images=small[1:], duration=times, loop=0, optimize=True)
    assert PICTURE.stat().st_size < MAX_BYTES, f"{PICTURE.name} has {PICTURE.stat().st_size} bytes"


def with_caption(frame: Image.Image, caption: str) -> Image.Image:
    """The frame at its final width above a dark strip with the caption."""
    scaled = frame.resize((WIDTH, round(frame.height * WIDTH / frame.width)), Image.Resampling.LANCZOS)
    picture = Image.new("RGB", (WIDTH, scaled.height + STRIP), "#1a2733")
    picture.paste(scaled)
    colour = "#ff8a80" if "killed" in caption else "#ffffff"
    font = ImageFont.load_default(15)
    ImageDraw.Draw(picture).text((14, scaled.height + 8), caption, fill=colour, font=font)
    return picture


if __name__ == "__main__":
    sys.exit(main())
