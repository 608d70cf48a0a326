"""The site builds strictly, loads nothing from elsewhere, and its generated pages are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from scripts.make_reference import stale

import fedbandit
from tests.documentation.blocks import ROOT

LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}  # what a browser fetches


class Resources(HTMLParser):
    """The addresses that a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name == LOADING.get(tag) and value]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_a_page_of_the_site_fetches_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        resources = Resources()
        resources.feed(page.read_text(encoding="utf-8"))
        assert resources.found, f"{page.name} has no style sheet: it was not read"
        assert [url for url in resources.found if re.match(r"(https?:)?//", url)] == [], page.name


def test_style_sheets_of_the_site_fetch_nothing_from_elsewhere(site: Path) -> None:
    sheets = list(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_the_generated_pages_say_what_the_code_says_now() -> None:
    assert [path.name for path in stale()] == [], "run `make docs`, or python scripts/make_reference.py"


def test_every_public_name_is_on_one_page_of_the_api() -> None:
    pages = (ROOT / "docs" / "reference" / "api").glob("*.md")
    headings = [name for page in pages for name in re.findall(r"^## fb\.(\w+)$", page.read_text(), re.MULTILINE)]
    assert sorted(headings) == sorted(fedbandit.__all__)
