"""`fedbandit tokens`, against a real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.live import LiveServer, running_server


def fedbandit(server: LiveServer, token: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedbandit", *words, "--url", server.url, "--token", token]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_viewer_can_look_until_its_token_is_revoked(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        added = fedbandit(server, server.admin_token, "tokens", "add", "grafana")
        assert added.returncode == 0, added.stderr
        viewer = added.stdout.strip()
        assert fedbandit(server, viewer, "models", "list").returncode == 0
        refused = fedbandit(server, viewer, "models", "create", "news", "--dim", "3")
        assert refused.returncode == 2
        assert "forbidden" in refused.stderr
        listed = fedbandit(server, server.admin_token, "tokens", "list").stdout
        assert "grafana" in listed
        assert viewer not in listed
        assert fedbandit(server, server.admin_token, "tokens", "revoke", "grafana").returncode == 0
        assert "unauthenticated" in fedbandit(server, viewer, "models", "list").stderr
