"""`fedbandit models` and `fedbandit agents` against a real server."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import fedbandit as fb
from fedbandit.cli import agents, main, models
from fedbandit.errors import NotReachable, Refused
from fedbandit.http_client import AdminClient
from fedbandit.wire import codec
from tests.live import running_server
from tests.service.uploads import incoming, request


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as live:
        yield live


@pytest.fixture
def run(server, monkeypatch):
    monkeypatch.setenv("FEDBANDIT_URL", server.url)
    monkeypatch.setenv("FEDBANDIT_TOKEN", server.admin_token)

    def run_command(app, *arguments: str, fails: bool = False):
        result = CliRunner().invoke(app, list(arguments))
        if fails:
            assert result.exit_code != 0
            return result
        assert result.exception is None, (result.output, result.exception)
        return result.output

    return run_command


def test_a_model_is_created_shown_listed_exported_and_deleted(run, tmp_path):
    run(
        models.app, "create", "shop", "--dim", "2", "--lam", "2", "--alpha", "0.5", "--beta", "0.7", "--features", "x,y"
    )
    shown = json.loads(run(models.app, "show", "shop", "--json"))
    wanted = {"name": "shop", "dim": 2, "lam": 2.0, "alpha": 0.5, "version": 0, "n_obs": 0, "n_agents": 0}
    assert wanted.items() <= shown.items()
    assert shown["effective_alpha"] == 0.5
    assert (shown["features"], shown["radius"]) == (["x", "y"], {"kind": "fixed", "beta": 0.7})
    assert "shop" in run(models.app, "list")
    assert [model["name"] for model in json.loads(run(models.app, "list", "--json"))] == ["shop"]
    assert "effective_alpha" in run(models.app, "show", "shop")
    target = tmp_path / "shop.safetensors"
    run(models.app, "export", "shop", "-o", str(target))
    assert load_file(target)["Sigma"].tolist() == [[2.0, 0.0], [0.0, 2.0]]
    run(models.app, "delete", "shop", "--yes")
    assert isinstance(run(models.app, "show", "shop", fails=True).exception, Refused)


def test_a_radius_is_given_by_its_kind_and_numbers(run):
    options = ["--radius", "exogenous", "--noise-scale", "0.3", "--theta-bound", "2", "--delta", "0.1"]
    run(models.app, "create", "ads", "--dim", "3", *options, "--action-bound", "1", "--reward-bound", "5")
    shown = json.loads(run(models.app, "show", "ads", "--json"))
    assert shown["radius"] == {"kind": "exogenous", "noise_scale": 0.3, "theta_bound": 2.0, "delta": 0.1}
    assert (shown["action_bound"], shown["reward_bound"]) == (1.0, 5.0)
    run(models.app, "delete", "ads", "--yes")


def test_agents_are_added_listed_revoked_and_forgotten(run, server):
    run(models.app, "create", "news", "--dim", "3")
    token = run(agents.app, "add", "news", "a").strip()
    several = run(agents.app, "add", "news", "b", "c").split()
    assert several[::2] == ["b", "c"]

    def send(sequence: int):
        body = codec.encode(request(incoming("a", sequence)))
        return server.request("POST", "/v1/models/news/sync", token=token, body=body)

    assert send(1).status == 200
    listed = json.loads(run(agents.app, "list", "news", "--json", "--sort", "-n_obs"))
    assert [agent["name"] for agent in listed["agents"]] == ["a", "b", "c"]
    assert "1 of 1" in run(agents.app, "list", "news", "--search", "a")
    assert "0 observations" in run(agents.app, "quarantine", "news", "a")
    assert "4 observations" in run(agents.app, "release", "news", "a")
    assert "0 observations" in run(agents.app, "forget", "news", "a", "--yes")
    assert send(2).status == 409
    run(agents.app, "revoke", "news", "a")
    assert send(3).status == 401
    renewed = run(agents.app, "add", "news", "a", "--renew").strip()
    assert renewed != token
    run(models.app, "delete", "news", "--yes")


def test_refusals_are_told_in_the_servers_words(run):
    problem = run(models.app, "create", "bad name", "--dim", "3", fails=True).exception
    assert isinstance(problem, Refused)
    assert (problem.status, problem.reason) == (400, "invalid_parameter")
    assert isinstance(run(models.app, "list", "--token", "x" * 30, fails=True).exception, Refused)
    assert isinstance(run(models.app, "list", "--url", "http://127.0.0.1:1", fails=True).exception, NotReachable)


def test_nothing_is_sent_without_a_token(run, monkeypatch):
    monkeypatch.delenv("FEDBANDIT_TOKEN")
    assert "FEDBANDIT_TOKEN" in str(run(models.app, "list", fails=True).exception)


def test_features_are_added_to_a_model_and_its_copy_is_as_wide(run):
    run(models.app, "create", "wide", "--dim", "2", "--features", "x,y")
    wider = json.loads(run(models.app, "widen", "wide", "--add-features", "z, w", "--json"))
    assert (wider["dim"], wider["features"], wider["earlier_dims"]) == (4, ["x", "y", "z", "w"], [2])
    copied = json.loads(run(models.app, "copy", "wide", "wide-2", "--json"))
    assert (copied["dim"], copied["features"]) == (4, ["x", "y", "z", "w"])
    assert "earlier_dims" not in copied
    for options in ([], ["--arms", "a", "--add-features", "b"]):
        assert "one of the two" in run(models.app, "widen", "wide", *options, fails=True).output
    assert "named arms" in str(run(models.app, "widen", "wide", "--arms", "a", fails=True).exception)
    run(models.app, "create", "counted", "--dim", "2")
    assert json.loads(run(models.app, "widen", "counted", "--add-features", "3", "--json"))["dim"] == 5
    assert "a number" in str(run(models.app, "widen", "counted", "--add-features", "q", fails=True).exception)
    for name in ("wide", "wide-2", "counted"):
        run(models.app, "delete", name, "--yes")


@pytest.mark.parametrize("reward", ["-1", "-0.5", "-1e3", "-.25", "2"])
def test_a_reward_may_be_negative(run, server, reward):
    model = f"refunds{reward.strip('-.').replace('.', '-')}"
    server.add_model(model, dim=2)
    with fb.connect(server.url, model=model, token=server.add_agent(model, "a"), sync="inline") as agent:
        sealed = agent.token(agent.choose(np.eye(2)))
        assert run(main.app, "reward", model, sealed, reward, "--url", server.url).strip() == "booked"
    assert server.call("GET", f"/v1/models/{model}")["reward_sum"] == float(reward)
    assert "No such option" in run(main.app, "reward", model, sealed, "--vlaue", "-1", fails=True).output


def test_calls_of_one_command_share_a_connection(server):
    caller = AdminClient(server.url, server.admin_token)
    caller.call("GET", "models")
    first = caller._http._idle
    assert first is not None and first.is_usable()
    with pytest.raises(Refused):
        caller.call("GET", "models", "unknown")
    assert caller._http._idle is first
    del caller
    assert not first.is_usable()  # whoever drops the client closes it
