"""The wheel and the sdist, built once; and empty environments with the wheel and one extra in them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Built:
    """What `python -m build` makes."""

    wheel: Path
    sdist: Path


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist from this tree, and the wheel from that sdist; without a network."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return Built(wheel, sdist)


@dataclass(frozen=True)
class Environment:
    """A fresh virtual environment; nothing of ours but the wheel is in reach of it."""

    folder: Path

    def run(self, *command: str, status: int | None = 0, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs, away from the source tree."""
        hidden = ("PYTHONPATH", "FEDBANDIT_URL", "FEDBANDIT_TOKEN", "VIRTUAL_ENV")
        environment = {key: value for key, value in os.environ.items() if key not in hidden} | variables
        done = subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            cwd=self.folder,
            env={**environment, "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert status is None or done.returncode == status, done.stdout[-3000:] + done.stderr[-3000:]
        return done

    def python(self, program: str, *arguments: str, **variables: str) -> str:
        """What a program prints; warnings are errors."""
        return self.run("python", "-W", "error", "-c", program, *arguments, **variables).stdout


def make_environment(folder: Path, wheel: Path, extras: str = "", python: str = sys.executable) -> Environment:
    """An environment with the wheel and extras, by pip, as anybody would."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True, timeout=120)
    made = Environment(folder)
    wanted = f"fedbandit[{extras}] @ {wheel.as_uri()}" if extras else f"fedbandit @ {wheel.as_uri()}"
    made.run("python", "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), wanted)
    return made
