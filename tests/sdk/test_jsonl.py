"""The agent behind a pipe: a line in, a line out, whatever the line is."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbandit.sdk.jsonl import HANDLERS, answer, serve_lines
from tests.sdk.helpers import make_hub, make_live
from tests.sdk.stub import running_stub

X = np.eye(3).tolist()


def talk(agent, *requests):
    answers = []
    serve_lines(agent, [json.dumps(request) + "\n" for request in requests], answers.append)
    return [json.loads(line) for line in answers]


def test_a_round_through_the_pipe():
    hub = make_hub()
    with make_live(hub) as agent:
        (made,) = talk(agent, {"actions": X})
        assert made["index"] == 0
        assert talk(
            agent,
            {"decision": made["decision"], "reward": 1},
            {"flush": True},
            {"decision": made["decision"], "reward": 1},
        ) == [
            {"observed": 1},
            {"flushed": 1},
            {
                "error": "unknown_decision",
                "message": f"no decision {made['decision']!r} is pending; "
                "it has its reward, expired, or was never made",
            },
        ]
    assert hub.server.stats.n_obs == 1


def test_everything_else_that_can_be_said():
    with make_live(make_hub(alpha=float("inf"))) as agent:
        top, x, fit, scores, pending, expired = talk(
            agent,
            {"actions": X, "k": 2, "id": 7},
            {"x": [1, 0, 0], "reward": 0.5},
            {"X": X, "y": [1, 2, 3]},
            {"scores": X},
            {"pending": True},
            {"expire": 3600},
        )
        assert top["id"] == 7 and [d["index"] for d in top["decisions"]] == [0, 1]
        assert (x, fit, expired) == ({"observed": 1}, {"observed": 3}, {"expired": 0})
        assert scores["upper"] == [0.5, 0.5, 0.5]
        assert pending["pending"][1] == {**top["decisions"][1], "x": [0.0, 1.0, 0.0]}
        assert talk(agent, {"default": 0.0}, {"refresh": True}) == [{"observed": 2}, {"refreshed": False}]
        (status,) = talk(agent, {"status": True})
        assert status["status"]["rounds"] == 6


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("hello", "format_error"),
        ("[1]", "format_error"),
        ("{}", "format_error"),
        ('{"nonsense": 1}', "format_error"),
        ('{"actions": []}', "empty_decision_set"),
        ('{"actions": [[1, 2]]}', "dimension_mismatch"),
        ('{"actions": [["a", 2, 3]]}', "invalid_input"),
        ('{"actions": [[1, 2, 3]], "k": "x"}', "format_error"),
        ('{"actions": [[1, 2, 3]], "k": 9}', "invalid_input"),
        ('{"decision": "x"}', "unknown_decision"),
        ('{"x": [1, 2, 3]}', "format_error"),
        ('{"x": [1, 2, 3], "reward": "much"}', "format_error"),
        ('{"X": [[1, 2, 3]], "y": 1}', "format_error"),
        ('{"expire": "now"}', "format_error"),
    ],
)
def test_what_goes_wrong_is_told_and_the_next_line_is_read(line, code):
    with make_live(make_hub()) as agent:
        assert answer(agent, line)["error"] == code
        assert answer(agent, json.dumps({"actions": X}))["index"] == 0


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_no_value_in_a_line_ends_the_pipe(value):
    agent = test_no_value_in_a_line_ends_the_pipe.agent
    for key in (*HANDLERS, "k", "reward"):
        for extra in ({}, {"reward": value}, {"y": value}, {"k": value}):
            reply = answer(agent, json.dumps({key: value, **extra}))
            assert isinstance(reply, dict)


@pytest.fixture(autouse=True, scope="module")
def shared_agent():
    with make_live(make_hub(alpha=float("inf"))) as agent:
        test_no_value_in_a_line_ends_the_pipe.agent = agent
        yield


@pytest.mark.filterwarnings("ignore")
def test_another_program_talks_to_the_command(tmp_path):
    hub = make_hub()
    with running_stub(hub) as stub:
        program = "from fedbandit.cli.agent import agent; import typer; typer.run(agent)"
        process = subprocess.Popen(
            [sys.executable, "-c", program, "--model", "local", "--state-dir", str(tmp_path / "state")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "FEDBANDIT_URL": stub.url, "FEDBANDIT_TOKEN": stub.token},
        )
        try:

            def ask(request):
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                return json.loads(process.stdout.readline())

            for n in range(20):
                made = ask({"actions": X})
                assert ask({"decision": made["decision"], "reward": float(n)}) == {"observed": 1}
            ask({"flush": True})
            kept = ask({"actions": X})
            process.kill()  # and the decision waits in the journal
            process.wait(10)
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        assert hub.server.stats.n_obs == 20
        finished = subprocess.run(
            [sys.executable, "-c", program, "--model", "local", "--state-dir", str(tmp_path / "state")],
            input=json.dumps({"decision": kept["decision"], "reward": 1.0}) + '\n{"flush": true}\n',
            capture_output=True,
            text=True,
            env={**os.environ, "FEDBANDIT_URL": stub.url, "FEDBANDIT_TOKEN": stub.token},
            check=False,
        )
        assert finished.stdout.splitlines()[0] == '{"observed":1}', finished.stderr
        assert hub.server.stats.n_obs == 21


def test_the_command_plays_in_a_world():
    hub = make_hub(alpha=1.0)
    with running_stub(hub) as stub:
        program = "from fedbandit.cli.agent import agent; import typer; typer.run(agent)"
        options = [
            "--url",
            stub.url,
            "--token",
            stub.token,
            "--model",
            "local",
            "--world",
            "uniform",
            "--rounds",
            "200",
        ]
        finished = subprocess.run(
            [sys.executable, "-c", program, *options], capture_output=True, text=True, check=False
        )
        result = json.loads(finished.stdout)
        assert result["rounds"] == 200 == hub.server.stats.n_obs and result["exchanges"] == hub.server.version
