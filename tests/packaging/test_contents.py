"""What is in the wheel and in the sdist, and what is not."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import fedbandit
from tests.packaging.conftest import ROOT, Built


def ours(under: str = ".") -> set[str]:
    """What is or could be committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", under]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("NOT COMPARED WITH THE REPOSITORY: this tree is not one")
    return {line for line in done.stdout.splitlines() if (ROOT / line).exists()}


def test_the_wheel_has_the_package_whole_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {name.removeprefix("src/") for name in ours("src")}
    assert "fedbandit/py.typed" in names
    assert {Path(name).suffix for name in names} <= {".py", ".typed", ".sql", ".js", ".css", ".svg", ".html"}


def test_the_wheel_says_what_it_is_and_needs_three_packages(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        (about,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
        metadata = Parser().parsestr(wheel.read(about).decode())
        (scripts,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/entry_points.txt"))
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert {re.match(r"[\w-]+", line)[0] for line in needed} == {"numpy", "msgspec", "urllib3"}
    assert (metadata["Name"], metadata["Version"]) == ("fedbandit", fedbandit.__version__)
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["Requires-Python"] == ">=3.11"
    assert scripts.split() == ["[console_scripts]", "fedbandit", "=", "fedbandit.__main__:main"]


def test_the_sdist_is_the_repository_and_nothing_foreign(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert names - ours() <= {"PKG-INFO", ""}
    needed = ("Makefile", "constraints.txt", "pyproject.toml", "tests/conftest.py", "examples/news.py", "LICENSE")
    assert [name for name in needed if name not in names] == []
    assert not any(name.startswith((".ci", ".venv", "dist/")) for name in names)
