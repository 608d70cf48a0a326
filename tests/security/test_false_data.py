"""An agent with false but plausible data: its influence is visible, and its data can be removed.

The sums are computed here from the rows themselves, by other formulas than the server's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedbandit import SufficientStats, Upload
from fedbandit.service.formatting import number, percent
from fedbandit.wire import codec
from tests.dashboard.conftest import DashboardService
from tests.live import running_server
from tests.service.conftest import running

LAM = 2.0
HONEST = ("shop-1", "shop-2", "shop-3")
THETA = np.array([1.0, -1.0, 2.0])


@pytest.fixture
def dashboard() -> Iterator[DashboardService]:
    yield from running(DashboardService)


def rows(agent: str) -> tuple[np.ndarray, np.ndarray]:
    """Integer data, so that sums are exact in any order. The agent "false" negates its rewards and sends many."""
    rng = np.random.default_rng(sum(agent.encode()))
    n = 120 if agent == "false" else 40
    X = rng.integers(-3, 4, size=(n, 3)).astype(float)
    return X, (X @ THETA) * (-1.0 if agent == "false" else 1.0) + rng.integers(-1, 2, size=n)


def body(agent: str) -> bytes:
    return codec.encode(codec.request_of(Upload(agent, "life-1-0123456789", 1, SufficientStats.of(*rows(agent)), 1.0)))


def estimate(agents: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Σ and θ̂ by least squares over all rows and √λ rows of the prior."""
    X = np.concatenate([np.sqrt(LAM) * np.eye(3), *(rows(agent)[0] for agent in agents)])
    y = np.concatenate([np.zeros(3), *(rows(agent)[1] for agent in agents)])
    return X.T @ X, np.linalg.lstsq(X, y, rcond=None)[0]


def populate(call, tokens: dict[str, str]) -> None:
    for agent, token in tokens.items():
        assert call("POST", "/v1/models/news/sync", token, body(agent)) == 200


def test_its_influence_is_shown_is_right_and_is_gone_when_it_is_forgotten(dashboard: DashboardService) -> None:
    everybody = (*HONEST, "false")
    tokens = dashboard.fleet(*everybody, lam=LAM)
    populate(lambda m, p, t, b: dashboard.request(m, p, token=t, content=b).status_code, tokens)
    Sigma, theta = estimate(everybody)
    prior = LAM * np.trace(np.linalg.inv(Sigma)) / 3
    shares = {}
    for agent in everybody:
        influence = dashboard.call("GET", f"/v1/models/news/agents/{agent}/influence")
        others = tuple(name for name in everybody if name != agent)
        change = theta - estimate(others)[1]
        shift = float(np.sqrt(change @ Sigma @ change))
        X = rows(agent)[0]
        shares[agent] = influence["share"]
        assert influence["share"] == pytest.approx(np.trace(np.linalg.solve(Sigma, X.T @ X)) / 3, rel=1e-9)
        assert influence["shift"] == pytest.approx(shift, rel=1e-6)
        assert influence["change"] == pytest.approx(change, rel=1e-6, abs=1e-9)
        html = dashboard.show(f"/models/news/agents/{agent}")
        assert f"move by {number(shift)} " in html
        assert percent(influence["share"]) in html
    assert sum(shares.values()) + prior == pytest.approx(1.0, rel=1e-9)
    shifts = {name: dashboard.call("GET", f"/v1/models/news/agents/{name}/influence")["shift"] for name in everybody}
    assert max(shifts, key=shifts.__getitem__) == "false" and shifts["false"] > 5 * 0.5  # far beyond β

    dashboard.call("POST", "/v1/models/news/agents/false/forget")
    after = dashboard.portal.call(dashboard.container.store.state, "news").packed
    dashboard.call("POST", "/v1/models", {"name": "without", "dim": 3, "beta": 0.5, "lam": LAM})
    for agent in HONEST:
        token = dashboard.call("POST", "/v1/models/without/agents", {"name": agent})["token"]
        answer = dashboard.request("POST", "/v1/models/without/sync", token=token, content=body(agent))
        assert answer.status_code == 200
    assert after == dashboard.portal.call(dashboard.container.store.state, "without").packed  # to the last bit
    gone = dashboard.call("GET", "/v1/models/news/agents/false/influence")
    assert (gone["share"], gone["shift"], gone["change"]) == (0.0, 0.0, [0.0, 0.0, 0.0])
    answer = dashboard.request("POST", "/v1/models/news/sync", token=tokens["false"], content=body("false"))
    assert answer.status_code == 409 and answer.json()["error"] == "stale_incarnation"


def test_an_agent_that_sent_nothing_has_no_influence(dashboard: DashboardService) -> None:
    dashboard.fleet("quiet")
    influence = dashboard.call("GET", "/v1/models/news/agents/quiet/influence")
    assert influence == {"share": 0.0, "shift": 0.0, "beta": 0.5, "change": [0.0, 0.0, 0.0], "quarantined": False}
    assert dashboard.request("GET", "/v1/models/news/agents/nobody/influence").status_code == 404


def test_the_command_line_shows_the_influence_too(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        server.add_model("news", lam=LAM)
        tokens = {agent: server.add_agent("news", agent) for agent in ("shop-1", "false")}
        populate(lambda m, p, t, b: server.request(m, p, token=t, body=b).status, tokens)
        command = [sys.executable, "-m", "fedbandit", "agents", "show", "news", "false", "--url", server.url]
        environment = {"FEDBANDIT_TOKEN": server.admin_token, "PATH": "/usr/bin:/bin"}
        shown = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=True).stdout
        told = server.call("GET", "/v1/models/news/agents/false/influence")
        assert f"{told['share']:.1%}" in shown and f"{told['shift']:.6g}" in shown
        as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, env=environment, check=True)
        assert json.loads(as_json.stdout)["influence"] == told
        command[3:] = ["models", "show", "news", "--url", server.url]
        shown = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
        assert f"false {told['share']:.1%}" in shown and "A fixed β has no guarantee" in shown
        as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, env=environment, check=True)
        assert json.loads(as_json.stdout)["insight"] == server.call("GET", "/v1/models/news/insight")
        environment["FEDBANDIT_TOKEN"] = tokens["false"]  # an agent reads its own model, without the others' shares
        shown = subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
        assert "effective_alpha" in shown and "shop-1" not in shown
