"""docs/theory.md: its numbers are computed, and each numbered statement names a function and a test that exist."""

from __future__ import annotations

import ast
import math
import re
from functools import lru_cache

import fedbandit as fb
from fedbandit import theory
from tests.documentation.blocks import ROOT

PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
TEXT, TABLE = PAGE.split("## Where each statement is tested")
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split("|")] for line in re.findall(r"^\| S\d.*$", TABLE, re.MULTILINE)
]


def numbers_after(pattern: str) -> list[float]:
    """The numbers of the one place where the page says this, whatever its line breaks."""
    (found,) = re.findall(pattern, " ".join(TEXT.split()))
    return [float(number) for number in ([found] if isinstance(found, str) else found)]


def test_the_radii_of_the_authors_setting_are_those_of_the_page() -> None:
    d, M, R, delta = numbers_after(
        r"setting \(\$d = (\d+)\$, \$M = (\d+)\$, \$T = 30000\$, \$R = ([\d.]+)\$, \$\\lambda = S = L = 1\$, "
        r"\$\\delta = ([\d.]+)\$,"
    )
    T, common = 30_000, {"lam": 1.0, "noise_scale": R, "theta_bound": 1.0, "delta": delta}
    rho = d * math.log1p(T / (3 * d))
    sized = {"dim": int(d), "n_agents": int(M), "n_rounds": T, **common}
    paper = [theory.paper_radius(alpha=alpha, action_bound=1.0, **sized) for alpha in (1.0, M**-2)]
    adaptive = [theory.adaptive_radius(rho=rho, alpha=alpha, **sized) for alpha in (1.0, M**-2)]
    assert [round(beta) for beta in paper] == numbers_after(
        r"`paper` is (\d+) at \$\\alpha = 1\$ and (\d+) at \$\\alpha = 1/M\^2\$"
    )
    assert [round(beta) for beta in adaptive] == numbers_after(r"`adaptive` is (\d+) and (\d+);")
    assert [round(theory.exogenous_radius(rho=rho, **common))] == numbers_after(
        r"`exogenous` is (\d+) at any \$\\alpha\$"
    )


def test_the_message_bounds_of_the_erratum_are_those_of_the_page() -> None:
    numbers = {"dim": 2, "n_agents": 1, "n_rounds": 200_000, "lam": 1.0, "alpha": 0.1, "action_bound": 1.0}
    _, printed, corrected = numbers_after(r"gives (\d+) messages; printed (\d+), corrected (\d+)\.")
    assert math.floor(theory.printed_message_bound(**numbers)) == printed
    assert math.floor(theory.message_bound(**numbers)) == corrected  # a count is at most the whole part


def test_every_statement_of_the_page_is_in_the_table_and_the_other_way_round() -> None:
    labels = [row[0] for row in ROWS]
    assert labels == [f"S{i}" for i in range(1, len(ROWS) + 1)]
    assert set(re.findall(r"\(S(\d+)\)", TEXT)) == {label[1:] for label in labels}


def test_every_function_of_the_table_exists() -> None:
    named = [name for row in ROWS for name in re.findall(r"`fb\.(\w+)\.(\w+)`", row[2])]
    assert len(named) >= 12
    for module, name in named:
        assert callable(getattr(getattr(fb, module), name)), name


def test_every_test_of_the_table_exists() -> None:
    for row in ROWS:
        path, name = re.fullmatch(r"`(tests/\S+\.py)::(test_\w+)`", row[3]).groups()  # type: ignore[union-attr]
        assert name in functions_in(path), f"{row[0]}: {path} has no {name}"


@lru_cache
def functions_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
