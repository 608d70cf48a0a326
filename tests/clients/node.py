"""Node processes that use the JavaScript client, for tests."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fedbandit.wire import codec
from tests.live import LiveServer

CLIENT = Path(__file__).resolve().parents[2] / "clients" / "js"


def _missing() -> str:
    """Why Node cannot run the client, or nothing."""
    node = shutil.which("node")
    if node is None:
        return "THE JAVASCRIPT CLIENT IS NOT TESTED: there is no `node` on the PATH; install Node.js 18 or newer"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.lstrip("v").split(".")[0]) < 18:
        return f"THE JAVASCRIPT CLIENT IS NOT TESTED: node is {version}; install Node.js 18 or newer"
    return ""


MISSING = _missing()
needs_node = pytest.mark.skipif(bool(MISSING), reason=MISSING or "node is there")


def state_of(server: LiveServer) -> codec.SyncReply:
    """The statistics of the model `news`."""
    return codec.decode_reply(server.request("GET", "/v1/models/news/state").data)


class NodeProcess:
    """A script of clients/js/test with one JSON object as its argument; it prints one JSON object per line."""

    def __init__(self, script: str, **task: Any) -> None:
        self.process = subprocess.Popen(
            ["node", str(CLIENT / "test" / script), json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> dict[str, Any]:
        """The next line that it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, err = self.process.communicate(timeout=30)
            raise AssertionError(f"node ended with {self.process.returncode}: {err[-3000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def kill(self) -> int:
        """SIGKILL; the return code."""
        self.process.kill()
        self.process.communicate()
        return self.process.returncode

    def __enter__(self) -> NodeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class NodeCalls(NodeProcess):
    """An agent in a Node process whose methods are called by name."""

    def __init__(self, server: LiveServer, **options: Any) -> None:
        super().__init__("calls.mjs", url=server.url, **{"model": "news", "background": False, **options})
        self.connected = self.line()

    def call(self, name: str, *args: Any) -> Any:
        """The value of a call that must succeed; arrays of numbers come as objects with the keys 0, 1, …"""
        answer = self.ask(name, *args)
        assert "value" in answer, answer
        return answer["value"]

    def ask(self, name: str, *args: Any) -> dict[str, Any]:
        """What a call answered: a value, or an error."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"call": name, "args": args}) + "\n")
        self.process.stdin.flush()
        return self.line()
