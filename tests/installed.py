"""A package of somebody else, as an installer would leave it: a module, its metadata and its entry points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, name: str, source: str, entry_points: Mapping[str, Mapping[str, str]]) -> Path:
    """Write the package into a folder that is, or will be, on the path of Python; `entry_points` by group."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    groups = [
        "\n".join([f"[{group}]", *(f"{key} = {value}" for key, value in points.items())])
        for group, points in entry_points.items()
    ]
    (about / "entry_points.txt").write_text("\n\n".join(groups) + "\n", encoding="utf-8")
    return folder
