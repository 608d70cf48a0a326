"""The demo runs: a server, processes, one of them killed; few images, so that it is quick."""

import subprocess
import sys

import pytest
import urllib3

from fedbandit.demo.processes import ServerProcess


def test_the_dashboard_of_the_demo_asks_for_no_token_on_this_machine(tmp_path):
    server = ServerProcess(tmp_path / "server", tmp_path / "server.log")
    try:
        answer = urllib3.request("GET", server.url, redirect=False, timeout=30.0)
        assert answer.status == 200 and b"There is no model yet" in answer.data
        assert urllib3.request("GET", f"{server.url}/v1/models", timeout=30.0).status == 401
    finally:
        server.stop()


@pytest.mark.slow
def test_a_small_demo_loses_nothing(tmp_path):
    program = "from fedbandit.cli.demo import demo; import typer; typer.run(demo)"
    options = ["--agents", "3", "--images", "240", "--seconds", "4", "--data", str(tmp_path / "demo")]
    finished = subprocess.run(
        [sys.executable, "-c", program, *options], capture_output=True, text=True, timeout=200, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    for words in ("killed", "resumed from its journal", "Was it worth it?", "✓ Nothing lost"):
        assert words in finished.stdout
    assert (tmp_path / "demo" / "journals" / "agent-1" / "journal.db").exists()
    again = subprocess.run(
        [sys.executable, "-c", program, *options], capture_output=True, text=True, timeout=200, check=False
    )
    assert again.returncode != 0 and "empty directory" in again.stderr
