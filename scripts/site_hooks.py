"""What `mkdocs` does besides: a few files outside docs/ become pages, and links follow them.

On GitHub the same Markdown is read where it lies, so links are written for the repository. On the site a link to one of
`GUESTS` leads to its page, pictures of the examples come along, and a link to any other file of the repository becomes
plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
GUESTS = {
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "clients/js/README.md": "javascript.md",
}
PICTURES = "examples/figures"
HOSTS = {page: path for path, page in GUESTS.items()}
LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<target>[^)\s]+)\)")
FORMULAS = ("theory.md",)  # pages whose a_b and a^b are formulas throughout
BASE = r"(?<![A-Za-z_`])[A-Za-mo-z]'?|[Α-Ωα-ω]\u0302?'?|[ℱℝℓ0-9‖²)>]"
INDEX = re.compile(rf"(?P<base>{BASE})(?P<mark>[_^])(?P<what>\{{[^{{}}]*\}}|\w+)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Let the guests in."""
    for path, page in GUESTS.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    for picture in sorted((ROOT / PICTURES).glob("*.svg")):
        files.append(File.generated(config, f"{PICTURES}/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as the site needs them; code stays as it is."""
    here = page.file.src_uri
    pieces, end = [], 0
    for fence in FENCE.finditer(markdown):
        pieces += [_prose(markdown[end : fence.start()], here), fence[0]]
        end = fence.end()
    return "".join([*pieces, _prose(markdown[end:], here)])


def _prose(text: str, here: str) -> str:
    text = _relink(text, here)
    if here not in FORMULAS:
        return text
    parts = re.split(r"(`[^`\n]*`|\]\([^)]*\))", text)  # code and addresses stay as they are
    return "".join(part if i % 2 else _typeset(part) for i, part in enumerate(parts))


def _typeset(text: str) -> str:
    """a_b and a^{b} as sub- and superscripts, from the inside out."""
    before = None
    while before != text:
        before, text = text, INDEX.sub(_index, text)
    return text


def _index(found: re.Match[str]) -> str:
    tag = "sub" if found["mark"] == "_" else "sup"
    return f"{found['base']}<{tag}>{found['what'].strip('{}')}</{tag}>"


def _relink(text: str, here: str) -> str:
    return LINK.sub(lambda link: _link(link, here), text)


def _link(link: re.Match[str], here: str) -> str:
    target, mark, anchor = link["target"].partition("#")
    if not target or "://" in target or target.startswith("mailto:"):
        return link[0]
    home = HOSTS.get(here, f"docs/{here}")  # where the file lies in the repository
    path = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
    page = path.removeprefix("docs/") if path.startswith("docs/") else GUESTS.get(path)
    if path.startswith(PICTURES + "/"):
        page = path
    if page is None:
        return link["text"]
    return f"[{link['text']}]({posixpath.relpath(page, posixpath.dirname(here) or '.')}{mark}{anchor})"
