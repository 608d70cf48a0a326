"""mkdocs hooks: pages from files outside docs/, links that follow them, and formulas as MathML.

On a code host the same Markdown is read in place, so links are written for the repository. On the site a link to one of
`OUTSIDE` leads to its page, figures of the examples are copied, and a link to any other file of the repository becomes
plain text. Formulas are written `$…$` and `$$…$$`, which code hosts render; here math-core turns them into MathML,
which browsers render without scripts or fonts from elsewhere.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

try:
    from math_core import LatexToMathML
except ImportError:  # an environment older than the pin; tests/documentation/test_formulas.py fails there
    LatexToMathML = None

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "clients/js/README.md": "javascript.md",
}
FIGURES = "examples/figures"
SOURCES = {page: path for path, page in OUTSIDE.items()}
LINK = re.compile(r"\[(?P<text>[^\]\[]*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE_SPAN = re.compile(r"`[^`\n]+`")
FORMULA = re.compile(r"\$\$(?P<block>[^$]+)\$\$|(?<![\\$\w])\$(?P<inline>[^$\s](?:[^$\n]*[^$\s])?)\$(?!\w)")
CODE_ELEMENT = re.compile(r"<pre.*?</pre>|<code.*?</code>|<[^>]*>", re.DOTALL)  # and tags, for their attributes
THOUSANDS = re.compile(r"(?<=\d) (?=\d{3}\b)")
MARK = "formula{}x"  # stands for a formula while Markdown is read, which would take its _ and * for emphasis
MARKED = re.compile(r"(?:<p>)?formula(?P<number>\d+)x(?:</p>)?")


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside docs/ to the site."""
    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    for figure in sorted((ROOT / FIGURES).glob("*.svg")):
        files.append(File.generated(config, f"{FIGURES}/{figure.name}", abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links for the site and set formulas aside; code stays as it is."""
    page.formulas = []

    def prose(text: str) -> str:
        text = LINK.sub(lambda link: _relinked(link, page.file.src_uri), text)
        return _outside(CODE_SPAN, text, lambda part: _set_aside(part, page.formulas))

    return _outside(FENCE, markdown, prose)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Put the formulas in as MathML, and keep numbers such as 30 000 on one line."""
    html = _outside(CODE_ELEMENT, html, lambda part: THOUSANDS.sub("\N{NO-BREAK SPACE}", part))
    return MARKED.sub(lambda mark: _placed(mark, page.formulas[int(mark["number"])]), html)


def mathml(latex: str, *, block: bool) -> str:
    """A formula as a `<math>` element; unknown commands raise an error."""
    return str(LatexToMathML().convert_with_local_state(latex, displaystyle=block))


def _outside(code: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """The text with what lies between the code changed."""
    pieces, end = [], 0
    for found in code.finditer(text):
        pieces += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*pieces, change(text[end:])])


def _set_aside(text: str, formulas: list[str]) -> str:
    """The text with a mark for each formula, which is added to `formulas`."""
    if LatexToMathML is None:
        return text

    def mark(found: re.Match[str]) -> str:
        block = found["block"] is not None
        formulas.append(mathml((found["block"] or found["inline"]).strip(), block=block))
        return MARK.format(len(formulas) - 1)

    return FORMULA.sub(mark, text)


def _placed(mark: re.Match[str], formula: str) -> str:
    """Inline formulas stay in their paragraph; one that was a paragraph by itself needs none."""
    if mark[0].startswith("<p>") != mark[0].endswith("</p>"):
        return mark[0].replace(f"formula{mark['number']}x", formula)
    return formula


def _relinked(link: re.Match[str], here: str) -> str:
    target, hash_sign, anchor = link["target"].partition("#")
    if not target or "://" in target or target.startswith("mailto:"):
        return link[0]
    source = SOURCES.get(here, f"docs/{here}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    page = path.removeprefix("docs/") if path.startswith("docs/") else OUTSIDE.get(path)
    if path.startswith(FIGURES + "/"):
        page = path
    if page is None:
        return link["text"]
    return f"[{link['text']}]({posixpath.relpath(page, posixpath.dirname(here) or '.')}{hash_sign}{anchor})"
