"""Everything that burns: servers on their store, the network, agents, disks and clocks, set up and torn down."""

from __future__ import annotations

import json
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import urllib3

from tests.fire.agent import MODEL
from tests.fire.clock import Clocks
from tests.fire.disk import SmallDisk
from tests.fire.processes import Postgres, Victim, free_port, server_command
from tests.fire.proxy import Proxy
from tests.fire.schedule import names
from tests.fire.truth import DIM, Truth
from tests.fire.witness import Witness

SERVER_MB, AGENTS_MB = 96, 96
ALPHA = 1e-4  # in the beginning every observation travels, later a handful at a time
LAM = 1.0


class Battlefield:
    """The parts, by name."""

    def __init__(self, folder: Path, store: str, *, seed: int, n_agents: int, n_servers: int, pace_s: float) -> None:
        self.folder, self.store = folder, store
        (folder / "reports").mkdir(parents=True)
        self.admin_token = "fb_" + secrets.token_urlsafe(32)
        self.http = urllib3.PoolManager(retries=False, maxsize=2)
        self.postgres = Postgres() if store == "postgres" else None  # first: what may fail comes before mounts
        self.clocks = Clocks(folder / "clocks")
        self.server_disk = SmallDisk(folder / "data", megabytes=SERVER_MB) if store == "sqlite" else None
        self.agent_disk = SmallDisk(folder / "state", megabytes=AGENTS_MB)
        self.ports = [free_port() for _ in range(n_servers)]
        self.witness = Witness()
        self.proxy = Proxy(self.ports, self.witness, seed)
        named = zip(names("server", n_servers), self.ports, strict=True)
        self.servers = {name: self._server(name, port) for name, port in named}
        self.agents: dict[str, Victim] = {}
        self.truths: dict[str, Truth] = {}
        self._pace_s = pace_s
        self._agent_names = names("agent", n_agents)

    @property
    def victims(self) -> dict[str, Victim]:
        return {**self.servers, **self.agents}

    def start(self) -> None:
        """Servers one after the other (the first migrates), the model, the network, the agents."""
        for server, port in zip(self.servers.values(), self.ports, strict=True):
            server.start()
            self.wait_ready(port)
        self.call("POST", "/v1/models", {"name": MODEL, "dim": DIM, "lam": LAM, "alpha": ALPHA, "beta": 0.5})
        self.proxy.start()
        for name in self._agent_names:
            self.agents[name] = self._agent(name)
            self.truths[name] = Truth(self.folder / f"{name}.truth")
            self.agents[name].start()

    def close(self) -> None:
        for victim in self.victims.values():
            victim.kill()
        if self.proxy.port:
            self.proxy.close()
        if self.postgres is not None:
            self.postgres.close()
        for disk in (self.server_disk, self.agent_disk):
            if disk is not None:
                disk.close()
        self.http.clear()

    def _server(self, name: str, port: int) -> Victim:
        database = None if self.postgres is None else self.postgres.address
        command = server_command(port, data=self.folder / "data" / "server", database=database)
        environment = {"FEDBANDIT_ADMIN_TOKEN": self.admin_token, **self.clocks.environment(name)}
        return Victim(name, command, environment, self.folder / f"{name}.log")

    def _agent(self, name: str) -> Victim:
        token = self.call("POST", f"/v1/models/{MODEL}/agents", {"name": name})["token"]
        url, state_dir = f"http://127.0.0.1:{self.proxy.port}", self.folder / "state" / name
        words = [url, token, name, str(self.folder), str(state_dir), str(self._pace_s)]
        command = [sys.executable, "-m", "tests.fire.agent", *words]
        return Victim(name, command, self.clocks.environment(name), self.folder / f"{name}.log")

    # -- asking a server directly, past the weather

    def wait_ready(self, port: int, timeout_s: float = 60.0) -> None:
        end = time.monotonic() + timeout_s
        while not self.is_ready(port):
            assert time.monotonic() < end, f"the server on port {port} was not ready after {timeout_s:g} s"
            time.sleep(0.1)

    def is_ready(self, port: int) -> bool:
        try:
            return self.http.request("GET", f"http://127.0.0.1:{port}/readyz", timeout=5.0).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def request(self, method: str, path: str, **options: Any) -> urllib3.BaseHTTPResponse:
        headers = {"Authorization": f"Bearer {self.admin_token}"}
        url = f"http://127.0.0.1:{self.ports[0]}{path}"
        answer = self.http.request(method, url, headers=headers, timeout=30.0, **options)
        assert answer.status < 300, f"{method} {path}: {answer.status} {answer.data[:500]!r}"
        return answer

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return json.loads(self.request(method, path, **({} if body is None else {"json": body})).data)

    def command(self, **words: Any) -> None:
        """Tell all agents what to do; the file appears whole."""
        draft = self.folder / "command.new"
        draft.write_text(json.dumps(words))
        draft.rename(self.folder / "command.json")
