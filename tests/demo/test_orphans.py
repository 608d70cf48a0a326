"""A demo that is killed leaves no server behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import urllib3

PROGRAM = """
import sys, time
from pathlib import Path
from fedbandit.demo.processes import ServerProcess
folder = Path(sys.argv[1])
print(ServerProcess(folder / "data", folder / "log").url, flush=True)
time.sleep(60)
"""


def test_the_server_ends_when_the_demo_is_killed(tmp_path: Path) -> None:
    demo = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    url = demo.stdout.readline().strip()
    assert urllib3.request("GET", f"{url}/healthz", retries=False, timeout=10).status == 200
    demo.kill()
    demo.communicate()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            urllib3.request("GET", f"{url}/healthz", retries=False, timeout=2)
        except urllib3.exceptions.HTTPError:
            return
        time.sleep(0.1)
    pytest.fail("the server lives on without its demo")
