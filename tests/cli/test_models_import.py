"""`fedbandit models copy` and `import`: the same sums and settings under another name or on another server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

import fedbandit as fb
from fedbandit.cli.imported_model import read_export
from fedbandit.errors import FormatError
from tests.live import LiveServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> LiveServer:
    with running_server(tmp_path_factory.mktemp("server")) as server:
        server.add_model("news", dim=3, alpha=0.5, features=["a", "b", "c"], max_share=0.9, reward_bound=2.0)
        token = server.add_agent("news", "web")
        other = server.add_agent("news", "app")
        for name in (token, other):
            with fb.connect(server.url, model="news", token=name) as agent:
                for i in range(60):
                    agent.observe(agent.choose(np.eye(3) + 0.1 * (i % 3)), float(i % 2))
                agent.flush()
        yield server


def command(server: LiveServer, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"FEDBANDIT_URL": server.url, "FEDBANDIT_TOKEN": server.admin_token, "PATH": ""}
    return subprocess.run(
        [sys.executable, "-m", "fedbandit", "models", *words],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
    )


SETTINGS = ("dim", "lam", "alpha", "radius", "features", "max_share", "reward_bound", "action_bound", "max_rate")
TOTALS = ("n_obs", "reward_sum", "reward_sq_sum")


def test_a_copy_has_the_settings_and_the_sums(server) -> None:
    done = command(server, "copy", "news", "trial", "--json")
    assert done.returncode == 0, done.stderr
    before, copied = server.show("news"), server.show("trial")
    assert {key: copied[key] for key in (*SETTINGS, "n_obs")} == {key: before[key] for key in (*SETTINGS, "n_obs")}
    theta = [load(server.request("GET", f"/v1/models/{name}/export").data)["theta_hat"] for name in ("news", "trial")]
    assert np.allclose(*theta, rtol=1e-9, atol=1e-12)
    assert server.call("GET", "/v1/models/trial/agents")["agents"][0]["name"] == "imported"
    again = command(server, "copy", "news", "trial")
    assert again.returncode == 2 and "already" in again.stderr


def test_an_export_is_imported_by_another_server(server, tmp_path: Path) -> None:
    file = tmp_path / "news.safetensors"
    assert command(server, "export", "news", "--output", str(file)).returncode == 0
    before = server.show("news")
    with running_server(tmp_path / "other") as other:
        done = command(other, "import", str(file), "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert {key: found[key] for key in SETTINGS} == {key: before[key] for key in SETTINGS}
        assert [found[key] for key in TOTALS] == pytest.approx([before[key] for key in TOTALS])
        other.add_model("empty", dim=2)
        command(other, "export", "empty", "--output", str(tmp_path / "empty"))
        assert command(other, "import", str(tmp_path / "empty"), "--name", "empty-2").returncode == 0
        assert other.show("empty-2")["n_obs"] == 0


@pytest.mark.parametrize("content", [b"", b"not a file", b"\x02" + bytes(7) + b"{}"])
def test_another_file_is_named(server, tmp_path: Path, content: bytes) -> None:
    with pytest.raises(FormatError, match="models export"):
        read_export(content)
    (tmp_path / "file").write_bytes(content)
    done = command(server, "import", str(tmp_path / "file"), "--name", "nothing")
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
    assert all(model["name"] != "nothing" for model in server.call("GET", "/v1/models")["models"])
