"""The schema as numbered SQL files, one folder per dialect; a store applies missing ones in one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from fedbandit.errors import SchemaTooNew

VERSION_TABLE = "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)"


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its number and its statements."""

    number: int
    statements: list[str]


def migrations(dialect: str) -> list[Migration]:
    """All migrations of a dialect, in order; the files are named 0001_schema.sql, 0002_….sql, …"""
    folder = resources.files("fedbandit.service.stores") / "sql" / dialect
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".sql")), key=lambda item: item.name)
    return [Migration(int(item.name[:4]), statements(item.read_text(encoding="utf-8"))) for item in files]


def statements(script: str) -> list[str]:
    """The statements of a script without semicolons or dashes inside of strings.

    >>> statements("-- a; b\\nCREATE TABLE a (x INTEGER);\\nDROP TABLE a;")
    ['CREATE TABLE a (x INTEGER)', 'DROP TABLE a']
    """
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("--")]
    return [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]


def missing(dialect: str, version: int) -> list[Migration]:
    """The migrations that a database of this version lacks; `SchemaTooNew` if it has a later version."""
    known = migrations(dialect)
    if version > known[-1].number:
        raise SchemaTooNew(
            f"the data has schema version {version}, and this fedbandit knows versions up to {known[-1].number}: "
            f"it was written by a newer fedbandit; update this one, or restore a copy made before the update"
        )
    return [migration for migration in known if migration.number > version]
