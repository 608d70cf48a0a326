"""`fedbandit models create --warm-start`: a model begins with history, which is an agent and can be forgotten."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fedbandit as fb
from tests.live import LiveServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


def fedbandit(server: LiveServer, *words: str) -> subprocess.CompletedProcess[str]:
    access = ["--url", server.url, "--token", server.admin_token]
    command = [sys.executable, "-m", "fedbandit", *words, *access]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def write_log(path: Path, n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Integer features and rewards, so that sums are exact."""
    rng = np.random.default_rng(0)
    X = rng.integers(-3, 4, size=(n, 2))
    y = X @ [2, -1]
    rows = [f"shop-{i % 3},{X[i, 0]},{X[i, 1]},{y[i]}" for i in range(n)]
    path.write_text("\n".join(["agent,price,age,reward", *rows]) + "\n")
    return X.astype(float), y.astype(float)


def test_a_model_begins_with_its_history_and_can_forget_it(server: LiveServer, tmp_path: Path) -> None:
    X, y = write_log(tmp_path / "log.csv")
    done = fedbandit(server, "models", "create", "warm", "--warm-start", str(tmp_path / "log.csv"), "--json")
    assert done.returncode == 0, done.stderr
    model = json.loads(done.stdout)
    assert (model["dim"], model["features"], model["n_obs"]) == (2, ["price", "age"], 60)
    assert model["effective_alpha"] == model["alpha"]
    with fb.connect(server.url, model="warm", token=server.add_agent("warm", "shop-9")) as agent:
        expected = np.linalg.solve(np.eye(2) + X.T @ X, X.T @ y)
        np.testing.assert_allclose(agent.predict(np.eye(2)), expected, rtol=1e-12)
    listed = json.loads(fedbandit(server, "agents", "list", "warm", "--json").stdout)
    assert "history" in str(listed)
    assert fedbandit(server, "agents", "forget", "warm", "history", "--yes").returncode == 0
    assert json.loads(fedbandit(server, "models", "show", "warm", "--json").stdout)["n_obs"] == 0


def test_a_history_that_does_not_fit_leaves_no_model_behind(server: LiveServer, tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv")
    words = ["models", "create", "misfit", "--warm-start", str(tmp_path / "log.csv")]
    wrong_width = fedbandit(server, *words, "--dim", "5")
    assert wrong_width.returncode == 2
    assert "expected a log with 5 features" in wrong_width.stderr
    refused = fedbandit(server, *words, "--reward-bound", "0.5")
    assert refused.returncode == 2
    assert "implausible_upload" in refused.stderr
    assert "unknown_model" in fedbandit(server, "models", "show", "misfit").stderr
