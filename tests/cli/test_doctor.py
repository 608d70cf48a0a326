"""`fedbandit doctor`: packages, a real server, tokens of every kind, state directories in every state."""

from __future__ import annotations

import json
import socket
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedbandit as fb
from fedbandit.cli import doctor_checks
from fedbandit.cli.main import app
from tests.live import LiveServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    with running_server(tmp_path_factory.mktemp("server")) as live:
        live.add_model("news", dim=3)
        live.add_model("ads", dim=2)
        yield live


def ask(*arguments: str, status: int = 0) -> dict[str, doctor_checks.Finding]:
    """Findings by 'topic name'; the exit status must be as said."""
    done = CliRunner().invoke(app, ["doctor", "--json", *arguments], env={"FEDBANDIT_URL": "", "FEDBANDIT_TOKEN": ""})
    assert done.exit_code == status, done.output
    answer = json.loads(done.output)
    assert answer["healthy"] is (status == 0)
    assert answer["fedbandit"] == fb.__version__
    return {f"{found['topic']} {found['name']}": doctor_checks.Finding(**found) for found in answer["findings"]}


def test_without_a_server_it_tells_what_is_installed() -> None:
    found = ask()
    assert found["packages base"].state == "ok"
    assert {f"packages {extra}" for extra in doctor_checks.EXTRAS} <= set(found)
    assert found["server reachable"].state == "skipped"


def test_what_is_missing_or_too_old_is_named_with_the_command_that_mends_it() -> None:
    wanted = [
        "numpy>=2.0",
        "fedbandit[cli]; extra == 'server'",
        "no-such-package-here>=1; extra == 'cli'",
        "numpy>=999; sys_platform != 'win32' and extra == 'server'",
    ]
    assert doctor_checks._of_extra(wanted, "") == {"numpy": "2.0"}
    found = doctor_checks._installed("server", "a server", doctor_checks._of_extra(wanted, "server"))
    assert found.state == "missing"
    assert "no-such-package-here is not installed" in found.words and "is older than 999" in found.words
    assert found.advice == "install fedbandit[server] (in a checkout: pip install '.[server]')"
    assert doctor_checks._installed("base", "agents", {"no-such-package-here": "1"}).state == "failed"


def test_every_extra_of_users_is_looked_at() -> None:
    from importlib.metadata import metadata

    declared = set(metadata("fedbandit").get_all("Provides-Extra") or [])
    assert set(doctor_checks.EXTRAS) <= declared
    assert declared - set(doctor_checks.EXTRAS) <= {"test", "dev", "bench", "docs", "fuzz"}, (
        "name the new extra in checks.EXTRAS"
    )


@pytest.mark.parametrize("role", ["admin", "viewer"])
def test_tokens_of_people_are_told_by_their_role(server: LiveServer, role: str) -> None:
    body = {"name": f"doctor-{role}", "role": role}
    token = server.call("POST", "/v1/tokens", body)["token"]
    found = ask("--url", server.url, "--token", token, "--model", "news")
    assert found["server reachable"].state == found["server ready"].state == found["server clock"].state == "ok"
    assert found["token known"].words == f"role {role}"
    assert "3 features" in found["token model news"].words


def test_an_agents_token_is_told_with_its_name_and_another_model_is_refused(server: LiveServer) -> None:
    token = server.add_agent("news", "shop-1")
    assert "role agent" in ask("--url", server.url, "--token", token)["token known"].words
    found = ask("--url", server.url, "--token", token, "--model", "news")["token model news"]
    assert found.words.startswith("agent shop-1, 3 features")
    assert "403" in ask("--url", server.url, "--token", token, "--model", "ads", status=1)["token model ads"].words
    server.call("POST", "/v1/models/news/agents/shop-1/revoke")
    assert "revoked" in ask("--url", server.url, "--token", token, status=1)["token known"].words


def test_a_wrong_token_is_a_failure_and_is_not_printed(server: LiveServer) -> None:
    wrong = "fb_this_is_not_a_token_of_anybody"
    found = ask("--url", server.url, "--token", wrong, status=1)
    assert found["token known"].state == "failed" and "401" in found["token known"].words
    done = CliRunner().invoke(app, ["doctor", "--url", server.url, "--token", wrong])
    assert done.exit_code == 1
    assert "✗" in done.output and "✓" in done.output and wrong not in done.output


def test_a_server_that_is_not_there_or_is_something_else_is_a_failure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        found = ask("--url", f"http://127.0.0.1:{taken.getsockname()[1]}", "--token", "x" * 20, status=1)
    assert "refused" in found["server reachable"].words and "token known" not in found


def test_clocks_that_differ_are_told() -> None:
    date = "Mon, 16 Nov 2026 00:00:00 GMT"
    now = 1794787200.0
    assert doctor_checks._clock(date, now + 0.5).state == "ok"
    assert doctor_checks._clock(date, now + 600).state == "warning"
    assert "-600 s" in doctor_checks._clock(date, now + 600.5).words
    assert doctor_checks._clock(None, now).state == "skipped"


def test_an_unencrypted_address_is_reported() -> None:
    def state_of(url: str) -> str:
        return doctor_checks._encrypted(url, exposes_token=doctor_checks.ServerProbe(url, "", None).exposes_token).state

    assert state_of("http://bandit.example") == "warning"
    assert {state_of(url) for url in ("https://bandit.example", "http://127.0.0.1:1")} == {"ok"}


def test_a_state_directory_is_read_and_left_as_it_is(server: LiveServer, tmp_path: Path) -> None:
    token, place = server.add_agent("news", "shop-2"), tmp_path / "state"
    assert "does not exist yet" in ask("--state-dir", str(place))[f"state_dir {place}"].words
    assert not place.exists()
    with fb.connect(server.url, model="news", token=token, state_dir=place) as agent:
        agent.observe([1.0, 0.0, 0.0], 1.0)
        found = ask("--state-dir", str(place))[f"state_dir {place}"]  # while the agent lives
        assert found.state == "ok" and "agent shop-2 of model news; journal sound" in found.words
    before = (place / "journal.db").read_bytes()
    assert ask("--state-dir", str(place))[f"state_dir {place}"].state == "ok"
    assert (place / "journal.db").read_bytes() == before
    with fb.connect(server.url, model="news", token=token, state_dir=place) as agent:
        assert agent.status().rounds == 1
    (place / "observations").write_bytes(b"words")
    found = ask("--state-dir", str(place), status=1)[f"state_dir {place}"]
    assert found.state == "failed" and "does not hold observations" in found.words


def test_a_damaged_or_newer_journal_is_a_failure(tmp_path: Path) -> None:
    for name, words in (("torn", "damaged"), ("other", "some other database"), ("newer", "has format 999")):
        place = tmp_path / name
        place.mkdir()
        if name == "torn":
            (place / "journal.db").write_bytes(b"SQLite format 3\x00" + bytes(4096))
        else:
            with sqlite3.connect(place / "journal.db") as db:
                db.execute(f"PRAGMA application_id = {doctor_checks.APPLICATION_ID if name == 'newer' else 7}")
                db.execute("PRAGMA user_version = 999")
                db.execute("CREATE TABLE state (agent, model)")
            db.close()
        found = ask("--state-dir", str(place), status=1)[f"state_dir {place}"]
        assert found.state == "failed" and words in found.words
        assert found.advice
