"""Code blocks of our Markdown files, as things that can be run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"(?:<!--\s*(?P<note>[^>]*?)\s*-->\n)?^```(?P<language>\w+)(?P<rest>[^\n]*)\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the comment right before the fence."""

    path: Path
    line: int
    language: str
    code: str
    note: str
    title: str = ""  # of ```python title="shop.py"

    @property
    def name(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def not_run(self) -> bool:
        """Marked `<!-- not run: reason -->`; the reason must be there."""
        return self.note.startswith("not run:") and len(self.note) > len("not run: ")

    @property
    def needs_server(self) -> bool:
        """Marked `<!-- with a server -->`: run with FEDBANDIT_URL and FEDBANDIT_TOKEN of a real one."""
        return self.note.startswith("with a server")


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(path: Path) -> list[Block]:
    text = path.read_text()
    return [
        Block(
            path,
            text.count("\n", 0, match.start("code")),
            match["language"],
            match["code"],
            (match["note"] or "").strip(),
            "".join(re.findall(r'title="([^"]+)"', match["rest"])),
        )
        for match in FENCE.finditer(text)
    ]
