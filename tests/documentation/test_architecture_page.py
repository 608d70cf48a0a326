"""docs/architecture.md names every package, and files and functions that exist; other pages name existing files."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

from tests.documentation.blocks import ROOT, documents

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "src" / "fedbandit"
PATH = re.compile(r"`((?:[a-z_0-9.-]+/)+[a-z_0-9-]*(?:\.[a-z]+)?|[a-z_]+\.py)`")
STEP = re.compile(r"^\| [^|]+ \| `([^`]+\.py)` \| `(\w+)` \|$", re.MULTILINE)
PLACES = ("src/", "tests/", "docs/", "bench/", "scripts/", "examples/", "deploy/", "clients/")
# Files that other changes add; a name leaves this set when its file is there.
AWAITED: set[str] = set()


def test_every_package_is_in_the_table() -> None:
    packages = {f"{folder.parent.relative_to(PACKAGE)}/" for folder in PACKAGE.rglob("__init__.py")} - {"./"}
    modules = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    table = PAGE.split("## Packages")[1].split("\n## ")[0]
    assert len(packages) > 15
    assert (packages | modules) - set(PATH.findall(table)) == set()


def test_every_path_of_the_page_exists() -> None:
    paths = set(PATH.findall(PAGE)) - {path for path in AWAITED if not (PACKAGE / path).exists()}
    assert len(paths) > 40
    assert [path for path in paths if not ((PACKAGE / path).exists() or (ROOT / path).exists())] == []


def test_every_step_of_a_journey_names_a_function_or_class_of_its_file() -> None:
    steps = STEP.findall(PAGE)
    assert len(steps) > 25
    assert [(path, name) for path, name in steps if name not in names_in(PACKAGE / path)] == []


@pytest.mark.parametrize("path", [*documents(), ROOT / "SECURITY.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_of_the_repository_that_a_document_names_exist(path: Path) -> None:
    named = re.findall(r"`((?:\w+/)+[\w.-]*)(?:::\w+)?`", path.read_text(encoding="utf-8"))
    ours = [name for name in named if name.startswith(PLACES) and "/." not in name]  # not a reader's deploy/.env
    assert [name for name in ours if not (ROOT / name).exists()] == []


@lru_cache
def names_in(path: Path) -> set[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return {node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)}
