"""The inserted defects: one TOML file per layer; an entry changes one source file and names the tests that must fail.

A defect replaces a text that occurs exactly once in its file. `tests` are the quick tests expected to notice, as pytest
arguments; the runner uses nothing else, so an entry says which test carries the behaviour.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "fedbandit"
FOLDER = Path(__file__).resolve().parent / "defects"


@dataclass(frozen=True, slots=True)
class Defect:
    """One inserted defect."""

    name: str
    layer: str
    file: str  # below src/fedbandit
    old: str
    new: str
    tests: tuple[str, ...]

    def planted(self, source: Path = SOURCE) -> str:
        """The text of the file with the defect in it."""
        text = (source / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: expected its old text once in {self.file}, found it {text.count(self.old)} times"
            )
        return text.replace(self.old, self.new)


def defects(folder: Path = FOLDER) -> list[Defect]:
    """All inserted defects, by layer and in the order of their files."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["defect"]:
            found.append(
                Defect(entry["name"], path.stem, entry["file"], entry["old"], entry["new"], tuple(entry["tests"]))
            )
    return found
