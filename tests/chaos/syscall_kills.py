"""Kills at a step: a library preloaded before libc counts calls that change the disk, and ends the process."""

from __future__ import annotations

import shutil
import signal
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("syscall_kills.c")
CONTROL = struct.Struct("<qq")  # calls that are left, the signal
VARIABLE = "CHAOS_KILL"  # in the environment of a process: its control file
MANY = 1 << 40


class SyscallKills:
    """A control file for each process name; `missing` says why there are none."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._library = folder / "syscall_kills.so"
        self.missing = self._build()

    def _build(self) -> str | None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            return "no C compiler, so kills come at random times only"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(self._library), str(SOURCE), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else f"the library was not compiled: {done.stderr[-200:]}"

    def environment(self, name: str, *, after: int = 0) -> dict[str, str]:
        """Environment variables of a process that is killed after so many calls (0: not before it is armed)."""
        if self.missing is not None:
            return {}
        path = self._folder / name
        arm(path, after, signal.SIGKILL)
        return {"LD_PRELOAD": str(self._library), VARIABLE: str(path)}


def arm(path: Path, n_calls: int, number: signal.Signals) -> None:
    """The process of this control file gets the signal after so many calls."""
    content = CONTROL.pack(n_calls, number)
    if path.exists():  # written in place: the process has it mapped
        with path.open("r+b") as file:
            file.write(content)
    else:
        path.write_bytes(content)


def n_left(path: Path) -> int:
    """Calls that are left."""
    left: int = CONTROL.unpack(path.read_bytes())[0]
    return left


def joined(*environments: dict[str, str]) -> dict[str, str]:
    """Merge several environments, each with its own preloaded library."""
    made: dict[str, str] = {}
    for each in environments:
        libraries = [found["LD_PRELOAD"] for found in (made, each) if "LD_PRELOAD" in found]
        made = {**made, **each, **({"LD_PRELOAD": ":".join(libraries)} if libraries else {})}
    return made
