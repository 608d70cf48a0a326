"""Shell completion: the script of each shell, and what it completes; the shells themselves where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def run(command: list[str], **variables: str) -> str:
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_it_can_read(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(run(["fedbandit"], _FEDBANDIT_COMPLETE=f"source_{shell}"))
    assert "fedbandit" in script.read_text()
    if shutil.which(shell):
        run([shell, "-n", str(script)])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_show_completion_knows_the_shell_that_asks(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell.upper()} IS NOT TESTED: it is not installed")
    shown = run([shell, "-c", "fedbandit --show-completion; true"])
    assert f"complete_{shell}" in shown


def test_commands_and_options_are_completed() -> None:
    bash = {"_FEDBANDIT_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    assert {"doctor", "models", "demo"} <= {*run(["fedbandit"], COMP_WORDS="fedbandit ", **bash).split()}
    options = run(["fedbandit"], **{**bash, "COMP_WORDS": "fedbandit serve --allow", "COMP_CWORD": "2"}).split()
    assert options == ["--allow-origin"]
    fish = {"_FEDBANDIT_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert run(["fedbandit"], _TYPER_COMPLETE_ARGS="fedbandit doc", **fish).startswith("doctor\t")
    zsh = run(["fedbandit"], _TYPER_COMPLETE_ARGS="fedbandit doc", _FEDBANDIT_COMPLETE="complete_zsh")
    assert '"doctor":' in zsh


def test_the_version_is_printed_alone() -> None:
    from fedbandit import __version__

    assert run(["fedbandit", "--version"]) == f"fedbandit {__version__}\n"
