"""Wall clocks that can be changed: a library preloaded before libc, where there is a C compiler."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")
OFFSET = struct.Struct("<q")


class Clocks:
    """One adjustable wall clock for each process name; `missing` says why there are none."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._library = folder / "clock.so"
        self.offsets: dict[str, float] = {}
        self.missing = self._build()

    def _build(self) -> str | None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            return "no C compiler, so clocks are not changed"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else f"the clock was not compiled: {done.stderr[-200:]}"

    def environment(self, name: str) -> dict[str, str]:
        """Environment variables of a process with its own clock."""
        if self.missing is not None:
            return {}
        self.move(name, 0.0)
        return {"LD_PRELOAD": str(self._library), "CHAOS_CLOCK": str(self._folder / name)}

    def move(self, name: str, offset_s: float) -> None:
        """Shift the wall clock of this process by `offset_s`."""
        self.offsets[name] = offset_s
        path = self._folder / name
        content = OFFSET.pack(int(offset_s * 1e9))
        if path.exists():  # written in place: the process has it mapped
            with path.open("r+b") as file:
                file.write(content)
        else:
            path.write_bytes(content)
