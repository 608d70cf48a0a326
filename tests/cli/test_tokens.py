"""`fedbandit tokens`, against a real server."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.live import LiveServer, running_server


def fedbandit(server: LiveServer, token: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedbandit", *words, "--url", server.url, "--token", token]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_points_in_time_are_shown_in_utc_and_nowhere_as_a_number(tmp_path: Path) -> None:
    """`models show` printed `created 1.79481e+09`."""
    with running_server(tmp_path) as server:
        server.add_model("news", dim=3)
        server.add_agent("news", "shop-1")
        fedbandit(server, server.admin_token, "tokens", "add", "grafana")
        shown = {
            words: fedbandit(server, server.admin_token, *words.split()).stdout
            for words in (
                "models show news",
                "models list",
                "agents list news",
                "agents show news shop-1",
                "tokens list",
            )
        }
    (line,) = [line for line in shown["models show news"].splitlines() if line.startswith("created")]
    told = datetime.strptime(line.split(maxsplit=1)[1], "%Y-%m-%d %H:%M:%SZ").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - told).total_seconds()) < 120
    for words, text in shown.items():
        assert text and not re.search(r"\d\.\d+e\+09", text), words


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
