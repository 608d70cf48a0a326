"""SQLite to PostgreSQL in one command: agents go on with their tokens, and the books balance."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.errors import AlreadyExists, StoreUnavailable
from fedbandit.service.admin.store_copy import copy_to_postgres, tables
from tests.live import running_server

ROWS = np.eye(3)


def play(agent, n: int) -> None:
    for i in range(n):
        agent.observe(agent.choose(ROWS), float(i % 2))


def test_agents_continue_on_the_copy(tmp_path: Path, database: str) -> None:
    with running_server(tmp_path / "old") as old:
        old.add_model("news", dim=3, alpha=0.5)
        old.add_model("ads", dim=2)
        tokens = {name: old.add_agent("news", name) for name in ("a", "b", "gone")}
        agents = {
            name: fb.connect(old.url, model="news", token=token, state_dir=tmp_path / name)
            for name, token in tokens.items()
        }
        for agent in agents.values():
            play(agent, 40)
            agent.flush()
        old.call("POST", "/v1/models/news/agents/gone/revoke")
        play(agents["a"], 3)  # unsent when the server stops
        for agent in agents.values():
            agent.close()
        before = old.show("news")
        old.stop()
        command = [sys.executable, "-m", "fedbandit", "copy-store", "--data", str(old.data_dir), "--to", database]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"copied 2 models and 3 agents, {before['n_obs']} observations\n"
        admin_token = old.admin_token
    with running_server(tmp_path / "new", database, admin_token=admin_token) as new:
        after = new.show("news")
        assert {key: after[key] for key in before if key != "effective_alpha"} == {
            key: before[key] for key in before if key != "effective_alpha"
        }
        with fb.connect(new.url, model="news", token=tokens["a"], state_dir=tmp_path / "a") as agent:
            play(agent, 5)
            agent.flush()
        with pytest.raises(fb.errors.Refused):
            fb.connect(new.url, model="news", token=tokens["gone"], state_dir=tmp_path / "gone")
        assert new.show("news")["n_obs"] == before["n_obs"] + 8
        assert new.call("POST", "/v1/models/news/agents", {"name": "new"})[
            "token"
        ]  # ids continue after the copied ones
        again = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert again.returncode != 0 and "expected an empty database" in again.stderr


def test_every_table_of_the_sqlite_store_is_copied(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        server.stop()
        with closing(sqlite3.connect(server.data_dir / "fedbandit.sqlite3")) as store:
            found = {name for (name,) in store.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert found - {"schema_version", "sqlite_sequence"} == set(tables())


def test_a_running_server_and_a_missing_store_are_named(tmp_path: Path, database: str) -> None:
    with running_server(tmp_path) as server, pytest.raises(StoreUnavailable, match=r"another server|is used"):
        asyncio.run(copy_to_postgres(server.data_dir, database))
    with pytest.raises(StoreUnavailable, match="no store"):
        asyncio.run(copy_to_postgres(tmp_path / "nothing", database))
    assert AlreadyExists.code == "already_exists"
