"""Formulas are written so that code hosts render them, and the site shows each as MathML."""

from __future__ import annotations

import re

import pytest
from scripts import site_hooks

from tests.documentation.blocks import ROOT, documents


class Page:
    """As much of a page of mkdocs as the hooks use."""

    class file:  # noqa: N801 - mkdocs' name
        src_uri = "theory.md"


def formulas_of(text: str) -> list[str]:
    prose = site_hooks.CODE_SPAN.sub("", site_hooks.FENCE.sub("", text))
    return [found["block"] or found["inline"] for found in site_hooks.FORMULA.finditer(prose)]


WITH_FORMULAS = [path for path in documents() if formulas_of(path.read_text(encoding="utf-8"))]


def test_theory_and_notation_have_formulas() -> None:
    assert {"theory.md", "notation.md"} <= {path.name for path in WITH_FORMULAS}


@pytest.mark.parametrize("path", WITH_FORMULAS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_formula_of_a_document_can_be_typeset_here_and_on_a_code_host(path) -> None:
    for latex in formulas_of(path.read_text(encoding="utf-8")):
        assert site_hooks.mathml(latex.strip(), block=False).startswith("<math")
        # Code hosts take a backslash before punctuation for Markdown, and | for the edge of a cell.
        assert not re.search(r"\\[^A-Za-z]|\|", latex), latex


def test_an_unknown_command_is_an_error() -> None:
    with pytest.raises(Exception, match="nonsense"):
        site_hooks.mathml(r"\nonsense x", block=False)


def test_large_numbers_stay_on_one_line_except_in_code() -> None:
    page = Page()
    page.formulas = []  # type: ignore[attr-defined]
    html = site_hooks.on_page_content('<p title="1 000">30 000 of 5 10</p><code>30 000</code>', page)
    assert html == '<p title="1 000">30\N{NO-BREAK SPACE}000 of 5 10</p><code>30 000</code>'


def test_formulas_reach_the_site_as_mathml_and_code_stays_as_it_is() -> None:
    page = Page()
    text = site_hooks.on_page_markdown(
        "Let $a_b * c_d$ and `$HOME`.\n\n$$x^2$$\n\n```sh\necho $PATH $HOME a[0](x)\n```\n", page
    )
    html = site_hooks.on_page_content(text.replace("formula1x", "<p>formula1x</p>"), page)
    assert html.count("<math") == 2 and "<p><math" not in html
    assert "`$HOME`" in html and "echo $PATH $HOME a[0](x)" in html
    assert "<msub><mi>a</mi><mi>b</mi></msub>" in html
