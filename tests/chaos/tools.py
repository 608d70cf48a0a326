"""Tools that are killed while they write: backup, restore and a server's first start.

A separate server is started on what they leave and must serve the old store or the new one, complete.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import urllib3

from fedbandit.wire.codec import decode_reply, numbers_of
from tests.chaos.agent_record import MODEL
from tests.chaos.processes import NAMED_ERROR, Postgres, free_port, server_command
from tests.chaos.syscall_kills import SyscallKills

FILE = "fedbandit.sqlite3"
READY_S = 60.0
TOOL_S = 60.0
LONGEST_START_S = 2.5
LONGEST_WORK_S = 4.0
MOST_CALLS = {"backup": 3000, "restore": 20, "start": 50, "first_start": 300}  # that change the disk, about


class Copy(NamedTuple):
    """Content of a store: by SQL from a backup, or by HTTP from a server."""

    version: int
    n_obs: int
    state: bytes
    n_agents: int


class ToolTests:
    """Runs a tool, kills it at some moment, and checks what is left."""

    def __init__(
        self,
        folder: Path,
        live: Path | None,
        admin_token: str,
        postgres: Postgres | None,
        version: Callable[[], int],
        syscall_kills: SyscallKills,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.running: subprocess.Popen[bytes] | None = None  # a server whose resources are sampled
        self._folder = folder
        self._live, self._postgres = live, postgres
        self._version, self._syscall_kills = version, syscall_kills
        self._environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "FEDBANDIT_ADMIN_TOKEN": admin_token}
        self._headers = {"Authorization": f"Bearer {admin_token}"}
        self._http = urllib3.PoolManager(retries=False)
        self._copies: list[Path] = []  # whole backups, the newest last
        self._n = 0
        folder.mkdir(parents=True, exist_ok=True)

    def test(self, value: int) -> None:
        """Test one tool; `value` determines which, and when it is killed."""
        rng = Random(value)
        try:
            if self._live is None or rng.random() < 0.3:
                self._first_start(rng)
            else:
                self._backup(rng)
                self._restore(rng)
        except (urllib3.exceptions.HTTPError, OSError, AssertionError) as error:
            self.violations.append(f"a tool's work could not be checked: {type(error).__name__}: {error}")

    # -- three tools

    def _backup(self, rng: Random) -> None:
        """Back up the live store. A file that exists is complete and has all that was answered before it began."""
        assert self._live is not None
        out, before = self._place("backup"), self._version()
        words = ["backup", "--data", str(self._live), "--out", str(out)]
        if len(self._copies) < 2 or rng.random() < 0.5:  # a restore needs two that differ
            process = self._run_tool(words, {})
            process.wait(TOOL_S)
            self._note_end(process, "backup")
        else:
            self._run_and_kill(rng, "backup", lambda more: self._run_tool(words, more))
        if not out.exists():
            return
        found = copy_of(out)
        if found is None or found.version < before:
            self.violations.append(f"{out} holds {found and found.version}, and {before} was answered before")
            return
        self.counts["backups_whole"] += 1
        self._copies.append(out)
        for old in self._copies[:-2]:
            old.unlink()
        del self._copies[:-2]

    def _restore(self, rng: Random) -> None:
        """Restore over another store: a server then serves the one or the other."""
        if len(self._copies) < 2:
            return
        old, new = (copy_of(path) for path in self._copies)
        data = self._place("restored")
        data.mkdir(mode=0o700)
        shutil.copyfile(self._copies[0], data / FILE)
        for _ in range(rng.choice([1, 1, 2])):
            words = ["restore", "--data", str(data), "--from", str(self._copies[1])]
            self._run_and_kill(rng, "restore", lambda more, words=words: self._run_tool(words, more))
        if rng.random() < 0.3:
            self._run_and_kill(rng, "start", lambda more: self._serve(more, data=data)[0])
        found = self._look(data=data)
        if found is not None and found not in (old, new):
            self.violations.append(f"{data} serves neither the old store nor the new one: version {found.version}")
            return
        self.counts["restores_new" if found == new else "restores_old"] += 1
        shutil.rmtree(data)

    def _first_start(self, rng: Random) -> None:
        """Kill a first start: the next start works, and a model can be created."""
        place: dict[str, Any] = {"data": self._place("first")}
        if self._postgres is not None:
            self._n += 1
            address = self._new_database(f"first_{self._n}")
            if address is None:
                return
            place = {"database": address}
        for _ in range(rng.choice([1, 2])):
            self._run_and_kill(rng, "first_start", lambda more: self._serve(more, **place)[0])
        if self._look(make_model=True, **place) is not None:
            self.counts["first_starts_whole"] += 1
        if "data" in place:
            shutil.rmtree(place["data"])
        else:
            self._drop_database(f"first_{self._n}")

    # -- processes

    def _run_tool(self, words: list[str], more: dict[str, str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedbandit", *words]
        environment = {**self._environment, **more}
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, start_new_session=True
        )

    def _run_and_kill(self, rng: Random, what: str, run: Callable[[dict[str, str]], subprocess.Popen[bytes]]) -> None:
        """Kill after the k-th call that changes the disk, or at a random time; some exit before."""
        more, wait_s = {}, rng.uniform(0.0, LONGEST_START_S)
        if rng.random() < 0.8:  # small k as often as large ones
            k = math.ceil(math.exp(rng.uniform(0.0, math.log(MOST_CALLS[what]))))
            more, wait_s = self._syscall_kills.environment("tool", after=k), LONGEST_WORK_S
        process = run(more)
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
        if process.poll() is None:
            process.kill()
            process.wait(10.0)
        self._note_end(process, what)

    def _note_end(self, process: subprocess.Popen[bytes], what: str) -> None:
        if process.stderr is None:  # a server: its last line, if it ended by itself
            words = b"".join((self._folder / "servers.log").read_bytes().splitlines(keepends=True)[-1:])
        else:
            words = process.stderr.read()
            process.stderr.close()
        if process.returncode == -signal.SIGKILL:
            self.counts[f"{what}_killed"] += 1
        elif process.returncode == 0:
            self.counts[f"{what}_ended"] += 1
        elif words.decode(errors="replace").startswith(NAMED_ERROR) and words.count(b"\n") == 1:
            self.counts[f"{what}_refused"] += 1  # a full disk, or no store there yet
        else:
            self.violations.append(f"{what} ended with {process.returncode}: {words[-300:]!r}")

    def _serve(self, more: dict[str, str], **place: Any) -> tuple[subprocess.Popen[bytes], int]:
        port = free_port()
        command = server_command(port, data=place.get("data"), database=place.get("database"))
        with (self._folder / "servers.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**self._environment, **more},
                start_new_session=True,
            )
        return process, port

    def _look(self, *, make_model: bool = False, **place: Any) -> Copy | None:
        """What a server serves from there; None, and a violation, if it does not start."""
        end = time.monotonic() + READY_S
        while time.monotonic() < end:
            process, port = self._serve({}, **place)
            self.running = process
            try:
                if self._is_ready(process, port, end):
                    return self._ask(port, make_model)
            finally:
                self.running = None
                self._stop(process)
            if self._postgres is None:  # PostgreSQL may be unavailable for a moment
                break
        self.violations.append(f"no server started on {place}; servers.log says why")
        return None

    def _ask(self, port: int, make_model: bool) -> Copy | None:
        url = f"http://127.0.0.1:{port}/v1/models"
        if make_model:
            body = {"name": MODEL, "dim": 2, "lam": 1.0, "alpha": 1.0, "beta": 0.5}
            made = self._http.request("POST", url, headers=self._headers, json=body, timeout=20.0)
            if made.status != 201 and not (self._postgres is not None and made.status == 503):
                self.violations.append(f"a server after its first start answered {made.status} {made.data[:200]!r}")
            return Copy(0, 0, b"", 0)
        answers = [
            self._http.request("GET", f"{url}/{MODEL}{path}", headers=self._headers, timeout=20.0)
            for path in ("", "/state", "/agents?per_page=100")
        ]
        if any(answer.status != 200 for answer in answers):
            found = [(answer.status, answer.data[:200]) for answer in answers]
            self.violations.append(f"a server after a restore answered {found}")
            return None
        model, agents = json.loads(answers[0].data), json.loads(answers[2].data)["agents"]
        state = numbers_of(decode_reply(answers[1].data)).tobytes()
        return Copy(model["version"], model["n_obs"], state, len(agents))

    def _is_ready(self, process: subprocess.Popen[bytes], port: int, end: float) -> bool:
        while time.monotonic() < end and process.poll() is None:
            with suppress(urllib3.exceptions.HTTPError):
                if self._http.request("GET", f"http://127.0.0.1:{port}/readyz", timeout=5.0).status == 200:
                    return True
            time.sleep(0.05)
        return False

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(TOOL_S)
        except subprocess.TimeoutExpired:
            self.violations.append("a server that was checked after a tool did not end")
            process.kill()

    # -- places

    def _place(self, prefix: str) -> Path:
        self._n += 1
        return self._folder / f"{prefix}-{self._n}"

    def _new_database(self, name: str) -> str | None:
        """Another database of the same PostgreSQL; None while that is unavailable."""
        import asyncpg

        assert self._postgres is not None
        try:
            asyncio.run(_execute(self._postgres.address, f'CREATE DATABASE "{name}"'))
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):  # it is crashed on purpose
            self.counts["no_database"] += 1
            return None
        head, _, query = self._postgres.address.partition("?")
        return f"{head.rpartition('/')[0]}/{name}?{query}"

    def _drop_database(self, name: str) -> None:
        """Recovery after a crash syncs every file: a hundred databases took PostgreSQL more than a minute."""
        import asyncpg

        assert self._postgres is not None
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):  # it is crashed on purpose
            asyncio.run(_execute(self._postgres.address, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


def copy_of(path: Path) -> Copy | None:
    """Content of a backup; None if it is not complete."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as found:
        (verdict,) = found.execute("PRAGMA integrity_check").fetchone()
        query = "SELECT id, version, n_obs, state FROM models WHERE name = ?"
        row = found.execute(query, (MODEL,)).fetchone()
        if verdict != "ok" or row is None:
            return None
        (n_agents,) = found.execute("SELECT count(*) FROM agents WHERE model_id = ?", row[:1]).fetchone()
    return Copy(row[1], row[2], bytes(row[3]), n_agents)


async def _execute(address: str, statement: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(address, timeout=10.0)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
