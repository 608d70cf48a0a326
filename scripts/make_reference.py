"""Write docs/reference: the Python API from docstrings, the commands from typer, the settings from their dataclass.

`python scripts/make_reference.py` writes the pages; with `--check` it only says which are out of date. A test asks.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that the other scripts can be imported wherever this one is started

from scripts import reference_api, reference_cli, reference_settings  # noqa: E402

FOLDER = ROOT / "docs" / "reference"


def pages() -> dict[Path, str]:
    """Every generated page with its content."""
    made = {**reference_api.pages(), "cli": reference_cli.page(), "settings": reference_settings.page()}
    return {FOLDER / f"{name}.md": text for name, text in made.items()}


def stale() -> list[Path]:
    """Pages that differ from the current code."""
    return [path for path, text in pages().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main() -> int:
    """Write stale pages, or with --check only name them and exit with status 1."""
    old = stale()
    for path in old:
        print(f"{'stale' if '--check' in sys.argv else 'wrote'}: {path.relative_to(ROOT)}")
    if "--check" in sys.argv:
        return 1 if old else 0
    for path in old:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(pages()[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
