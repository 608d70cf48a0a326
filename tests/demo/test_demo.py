"""The demo runs: a server, processes, one of them killed; few images, so that it is quick."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from urllib.parse import urlencode

import pytest
import urllib3

from fedbandit.demo.processes import ServerProcess


def test_the_dashboard_of_the_demo_opens_by_a_link_and_to_nobody_else(tmp_path):
    server = ServerProcess(tmp_path / "server", tmp_path / "server.log")
    try:
        answer = urllib3.request("GET", server.url, redirect=False, timeout=30.0)
        assert answer.status == 303 and answer.headers["location"].startswith("/login")
        code = server.link("/models/digits").partition("#")[2]
        form = urlencode({"code": code, "next": "/models/digits"})
        options = {"body": form, "redirect": False, "timeout": 30.0}
        answer = urllib3.request("POST", f"{server.url}/sign-in", **options)
        assert (answer.status, answer.headers["location"]) == (303, "/models/digits")
        cookie = answer.headers["set-cookie"].partition(";")[0]
        view = urllib3.request("GET", server.url, headers={"Cookie": cookie}, timeout=30.0)
        assert view.status == 200 and b"There is no model yet" in view.data
        assert urllib3.request("POST", f"{server.url}/sign-in", **options).status == 401
        assert urllib3.request("GET", f"{server.url}/v1/models", timeout=30.0).status == 401
        assert code not in (tmp_path / "server.log").read_text(encoding="utf-8")
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
    told = ("What you see", "view per arm", "/sign-in?next=/models/digits#fbl_", "works once")
    for words in (*told, "killed", "resumed from its journal", "Was it worth it?", "✓ Nothing lost"):
        assert words in finished.stdout
    assert (tmp_path / "demo" / "journals" / "agent-1" / "journal.db").exists()
    with closing(sqlite3.connect(tmp_path / "demo" / "server" / "fedbandit.sqlite3")) as database:
        events = database.execute("SELECT kind, agent, detail FROM events ORDER BY id").fetchall()
    kill = next(i for i, event in enumerate(events) if event[0] == "noted" and "SIGKILL" in event[2])
    started = next(i for i, event in enumerate(events) if event[0] == "started_again")
    assert kill < started and events[kill][1] == events[started][1] == "agent-2"
    again = subprocess.run(
        [sys.executable, "-c", program, *options], capture_output=True, text=True, timeout=200, check=False
    )
    assert again.returncode != 0 and "empty directory" in again.stderr
