"""A small disk that can be filled: a tmpfs where the harness may mount one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

BALLAST = "ballast"
CHUNK = 1 << 16


class SmallDisk:
    """A folder with few megabytes; `missing` says why it is an ordinary folder instead."""

    def __init__(self, folder: Path, *, megabytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.missing: str | None = None
        if os.geteuid() != 0:
            self.missing = "only root can mount a small disk"
            return
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "fedbandit-chaos", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.missing = f"no small disk could be mounted: {done.stderr.strip()}"

    def fill(self, *, spare_bytes: int) -> None:
        """Use all space except about `spare_bytes`; other writers may use the rest meanwhile."""
        found = os.statvfs(self.folder)
        n_bytes = max(found.f_bavail * found.f_frsize - spare_bytes, 0)
        with (self.folder / BALLAST).open("wb", buffering=0) as file, contextlib.suppress(OSError):
            for _ in range(n_bytes // CHUNK):
                file.write(bytes(CHUNK))
            file.write(bytes(n_bytes % CHUNK))

    def free(self) -> None:
        """Free the space."""
        (self.folder / BALLAST).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount; what was on it is gone."""
        if self.missing is None:
            subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True, check=False)
