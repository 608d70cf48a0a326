"""`fedbandit models create --warm-start`: a model begins with history, which is an agent and can be forgotten."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

import fedbandit as fb
from fedbandit.cli.models import app as models
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


def in_process(server: LiveServer, *words: str) -> Result:
    return CliRunner().invoke(models, [*words, "--url", server.url, "--token", server.admin_token])


ARMS_LOG = [("tea", 0.5, 1.0), ("milk", 0.25, 0.0), ("tea", 1.0, 2.0), ("milk", 0.5, 0.5)] * 5


def write_arms(path: Path) -> Path:
    rows = [f"shop-{i % 2},{arm},{hour},{reward}" for i, (arm, hour, reward) in enumerate(ARMS_LOG)]
    path.write_text("\n".join(["agent,action,hour,reward", *rows]) + "\n")
    return path


def expected_by_arm(arm: str) -> np.ndarray:
    X = np.array([[hour, 1.0] for name, hour, _ in ARMS_LOG if name == arm])
    y = np.array([reward for name, _, reward in ARMS_LOG if name == arm])
    return np.linalg.solve(np.eye(2) + X.T @ X, X.T @ y)


@pytest.mark.parametrize(
    ("name", "options", "order"),
    [
        ("sorted", [], ["milk", "tea"]),
        ("given", ["--arms", "tea,milk"], ["tea", "milk"]),
        ("named", ["--features", "1@tea,hour@tea,1@milk,hour@milk"], ["tea", "milk"]),
    ],
)
def test_arms_have_an_order_that_is_said_and_rows_are_made_by_name(
    server: LiveServer, tmp_path: Path, name: str, options: list[str], order: list[str]
) -> None:
    log = write_arms(tmp_path / "log.csv")
    done = in_process(server, "create", name, "--warm-start", str(log), "--json", *options)
    assert done.exit_code == 0, done.output
    assert f"arms, in the order of their columns: {', '.join(order)}" in done.stderr
    model = json.loads(done.stdout)
    features = model["features"]
    assert (model["blocks"], model["arms"]) == (2, order)
    assert list(dict.fromkeys(text.partition("@")[2] for text in features)) == order
    with fb.connect(server.url, model=name, token=server.add_agent(name, "shop-9")) as agent:
        assert agent.features == tuple(features)
        for arms in (["tea", "milk"], ["milk", "tea"], ["tea"]):  # the caller's order, and only what is on offer
            rows = fb.arm_features({"hour": 0.5}, arms, features=agent.features)
            predicted = agent.predict(rows)
            expected = [np.array([0.5, 1.0]) @ expected_by_arm(arm) for arm in arms]
            np.testing.assert_allclose(predicted, expected, rtol=1e-9)
        other = fb.arm_features([0.5], ["tea"], features=("hour@tea", "1@tea", "hour@soup", "1@soup"))
        with pytest.raises(fb.errors.FeatureMismatch):
            agent.choose(other)
        with pytest.warns(fb.errors.UnnamedArms, match=f"in the order {', '.join(order)}"):
            agent.choose(fb.block_features([0.5], 2))
        agent.choose(fb.block_features([0.5], 2))  # once is enough


@pytest.mark.parametrize(
    ("name", "options"),
    [("asked", ["--blocks", "1"]), ("mixed", ["--features", "hour@tea,hour@milk,1@tea,1@milk"])],
)
def test_a_dense_model_of_arms_has_the_same_numbers(
    server: LiveServer, tmp_path: Path, name: str, options: list[str]
) -> None:
    log = write_arms(tmp_path / "log.csv")
    done = in_process(server, "create", name, "--warm-start", str(log), "--json", *options)
    assert done.exit_code == 0, done.output
    assert "blocks" not in json.loads(done.stdout)
    with fb.connect(server.url, model=name, token=server.add_agent(name, "shop-9")) as agent:
        rows = fb.arm_features({"hour": 0.5}, ["tea", "milk"], features=agent.features)
        expected = [np.array([0.5, 1.0]) @ expected_by_arm(arm) for arm in ("tea", "milk")]
        np.testing.assert_allclose(agent.predict(rows), expected, rtol=1e-9)


def test_columns_of_a_warm_start_are_taken_by_the_names_that_are_given(server: LiveServer, tmp_path: Path) -> None:
    X, y = write_log(tmp_path / "log.csv")
    words = [
        "models",
        "create",
        "turned",
        "--warm-start",
        str(tmp_path / "log.csv"),
        "--features",
        "age,price",
        "--json",
    ]
    done = fedbandit(server, *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["features"] == ["age", "price"]
    with fb.connect(server.url, model="turned", token=server.add_agent("turned", "shop-9")) as agent:
        expected = np.linalg.solve(np.eye(2) + X.T @ X, X.T @ y)[::-1]
        np.testing.assert_allclose(agent.predict(np.eye(2)), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--arms", "tea"], "the log has the arms milk"),
        (["--blocks", "3"], "a log of 3 arms"),
        (["--arms", "tea,tea,milk"], "every arm once"),
        (["--features", "hour@tea,1@tea,hour@soup,1@soup"], "the log has the arms milk"),
        (["--features", "minute@tea,1@tea,minute@milk,1@milk"], "expected the columns ['minute']"),
        (["--features", "hour@tea,hour@milk"], "the log lacks"),
    ],
)
def test_arms_that_do_not_fit_the_log_are_named_errors(
    server: LiveServer, tmp_path: Path, options: list[str], words: str
) -> None:
    log = write_arms(tmp_path / "log.csv")
    done = in_process(server, "create", "misfit", "--warm-start", str(log), *options)
    assert isinstance(done.exception, fb.errors.FedbanditError)
    assert words in str(done.exception)
