"""The commands of the base install, which has neither typer nor rich."""

import json
import subprocess
import sys

import fedbandit
from tests.sdk.helpers import make_hub
from tests.sdk.stub import running_stub

WITHOUT_EXTRAS = """
import sys
sys.modules["typer"] = sys.modules["rich"] = None
from fedbandit.__main__ import main
main()
"""


def run(*arguments: str, lines: str = "", status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_EXTRAS, *arguments]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_the_version_is_printed():
    assert run("--version").stdout == f"fedbandit {fedbandit.__version__}\n"


def test_doctor_checks_and_prints_plain_text_or_json(tmp_path):
    found = json.loads(run("doctor", "--json", "--state-dir", str(tmp_path)).stdout)
    assert found["healthy"] and {"topic": "packages", "name": "base"}.items() <= found["findings"][0].items()
    assert "All checks passed." in run("doctor").stdout
    assert "✗" in run("doctor", "--url", "http://127.0.0.1:1", status=1).stdout


def test_an_agent_answers_lines():
    with running_stub(make_hub()) as stub:
        options = (
            "--model",
            "local",
            "--url",
            stub.url,
            "--token",
            "secret-token",
            "--agent",
            "a",
            "--min-upload",
            "1",
        )
        lines = '{"x": [1, 0, 0], "reward": 1}\n{"flush": true}\n'
        answers = [json.loads(line) for line in run("agent", *options, lines=lines).stdout.splitlines()]
    assert answers == [{"observed": 1}, {"flushed": 1}]


def test_options_come_from_the_environment_too(monkeypatch):
    monkeypatch.setenv("FEDBANDIT_URL", "http://127.0.0.1:1")
    assert "did not answer" in run("doctor", status=1).stdout
    assert "--token" in run("agent", "--model", "m", status=2).stderr


def test_another_command_names_the_extra():
    assert "fedbandit[cli]" in run("serve", status=2).stderr
