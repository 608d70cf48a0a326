"""The processes under test: servers on their store, the proxy, agents, disks and clocks; set-up and tear-down."""

from __future__ import annotations

import json
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import urllib3

from tests.chaos.agent import FEW_PENDING, MANY_PENDING
from tests.chaos.agent_record import DIM, MODEL, AgentRecord
from tests.chaos.clock import Clocks
from tests.chaos.disk import SmallDisk
from tests.chaos.fleet import Fleet
from tests.chaos.model_recreation import ModelRecreation
from tests.chaos.processes import ChildProcess, Postgres, free_port, server_command
from tests.chaos.proxy import Proxy
from tests.chaos.resources import Bound
from tests.chaos.schedule import TENANT, agents_with_many_pending, names
from tests.chaos.syscall_kills import SyscallKills, joined
from tests.chaos.tools import ToolTests
from tests.chaos.traffic_monitor import Monitors, TrafficMonitor

SERVER_MB, AGENTS_MB, FLEET_MB = 96, 96, 192
ALPHA = 1e-4  # at first every observation is uploaded, later a few at a time
LAM = 1.0
LARGE, LARGE_DIM = "large", 1500  # its state has 9 MB, for large replies
# Small limits, so that a few hundred connections are far beyond them.
LIMITS = {
    "FEDBANDIT_MAX_CONNECTIONS": "600",
    "FEDBANDIT_MAX_INFLIGHT_MB": "32",
    "FEDBANDIT_MAX_OUTGOING_MB": "32",
    "FEDBANDIT_HEAD_TIMEOUT_S": "3",
    "FEDBANDIT_BODY_TIMEOUT_S": "5",
    "FEDBANDIT_DRAIN_TIMEOUT_S": "5",
}
# Hostile clients made a server hold up to 490 MB; without the limit on unread replies, 779 MB.
BOUNDS = {"server": Bound(700.0, 700), "agent": Bound(120.0, 40)}


class Environment:
    """All parts of a run, by name."""

    def __init__(self, folder: Path, store: str, *, seed: int, n_agents: int, n_servers: int, pace_s: float) -> None:
        self.folder, self.store = folder, store
        # Half of the runs have agents with parameters of their own: odd seeds on SQLite, even ones on PostgreSQL.
        self.personal = "auto" if (seed % 2 == 1) == (store == "sqlite") else None
        # Of the others, one in three has blocks, and one in three a model that restarts.
        kind = "" if self.personal else ("", "blocks", "drift")[seed // 2 % 3]
        self.n_restarts = 0  # by hand, and answered
        self.blocks = 2 if kind == "blocks" else 1
        self.drift = {"kind": "restart", "noise_scale": 2.0} if kind == "drift" else None
        (folder / "reports").mkdir(parents=True)
        self.admin_token = "fb_" + secrets.token_urlsafe(32)
        self.http = urllib3.PoolManager(retries=False, maxsize=2)
        self.postgres = Postgres() if store == "postgres" else None  # before mounts, since it may fail
        self.clocks = Clocks(folder / "clocks")
        self.syscall_kills = SyscallKills(folder / "syscall_kills")
        self.server_disk = SmallDisk(folder / "data", megabytes=SERVER_MB) if store == "sqlite" else None
        self.agent_disk = SmallDisk(folder / "state", megabytes=AGENTS_MB)
        self.ports = [free_port() for _ in range(n_servers)]
        self.traffic = TrafficMonitor()
        self.fleet_disk = SmallDisk(folder / "fleet-state", megabytes=FLEET_MB)
        self.fleet = Fleet(folder, self.ports, self.admin_token, seed)
        monitors = Monitors(self.traffic, list(self.fleet.monitors.values()))
        self.proxy = Proxy(self.ports, monitors, seed)
        named = zip(names("server", n_servers), self.ports, strict=True)
        self.servers = {name: self._server(name, port) for name, port in named}
        self.agents: dict[str, ChildProcess] = {}
        self.tenants: dict[str, ChildProcess] = {}
        self.records: dict[str, AgentRecord] = {}
        self._pace_s = pace_s
        self.recreation = ModelRecreation(self.ports, self.admin_token, folder)
        live = folder / "data" / "server" if store == "sqlite" else None
        newest = lambda: max(self.traffic.versions, default=0)  # noqa: E731
        self.tools = ToolTests(folder / "tools", live, self.admin_token, self.postgres, newest, self.syscall_kills)
        self.crowd_token = ""
        self._agent_names = names("agent", n_agents)

    @property
    def children(self) -> dict[str, ChildProcess]:
        return {**self.servers, **self.agents, **self.tenants, **self.fleet.processes}

    def processes(self) -> list[tuple[str, str, int]]:
        """Kind, name and id of every process whose memory and descriptors are bounded."""
        found = [("server" if name in self.servers else "agent", name, v.process) for name, v in self.children.items()]
        found.append(("server", "a server after a tool", self.tools.running))
        return [(kind, name, process.pid) for kind, name, process in found if process is not None]

    def start(self) -> None:
        """Servers one after the other (the first migrates), the model, the network, the agents."""
        for server, port in zip(self.servers.values(), self.ports, strict=True):
            server.start()
            self.wait_ready(port)
        numbers = {"dim": DIM, "lam": LAM, "alpha": ALPHA, "beta": 0.5, "personal": self.personal, "drift": self.drift}
        numbers |= {"blocks": self.blocks} if self.blocks > 1 else {}
        self.call("POST", "/v1/models", {"name": MODEL, **numbers})
        self.call("POST", "/v1/models", {"name": LARGE, "dim": LARGE_DIM, "lam": LAM, "alpha": 1.0, "beta": 0.5})
        self.crowd_token = self.call("POST", f"/v1/models/{MODEL}/agents", {"name": "crowd"})["token"]
        self.recreation.begin(0)
        self.recreation.work()
        self.proxy.start()
        for name in self._agent_names:
            self.agents[name] = self._agent(name)
            self.records[name] = AgentRecord(self.folder / f"{name}.record")
            self.agents[name].start()
        self.tenants[TENANT] = self._process("recreated_model_agent", TENANT, "", FEW_PENDING)
        self.tenants[TENANT].start()
        url = f"http://127.0.0.1:{self.proxy.port}"
        self.fleet.start(url, self.folder / "fleet-state", self._pace_s, self._child)

    def close(self) -> None:
        for child in self.children.values():
            child.kill()
        if self.proxy.port:
            self.proxy.close()
        if self.postgres is not None:
            self.postgres.close()
        for disk in (self.server_disk, self.agent_disk, self.fleet_disk):
            if disk is not None:
                disk.close()
        self.http.clear()

    def _server(self, name: str, port: int) -> ChildProcess:
        database = None if self.postgres is None else self.postgres.address
        command = server_command(port, data=self.folder / "data" / "server", database=database)
        environment = {"FEDBANDIT_ADMIN_TOKEN": self.admin_token, **LIMITS, **self.clocks.environment(name)}
        return ChildProcess(name, command, environment, self.folder / f"{name}.log")

    def _agent(self, name: str) -> ChildProcess:
        token = self.call("POST", f"/v1/models/{MODEL}/agents", {"name": name})["token"]
        max_pending = MANY_PENDING if name in agents_with_many_pending(len(self._agent_names)) else FEW_PENDING
        return self._process("agent", name, token, max_pending)

    def _process(self, module: str, name: str, token: str, max_pending: int) -> ChildProcess:
        url, state_dir = f"http://127.0.0.1:{self.proxy.port}", self.folder / "state" / name
        words = [url, token, name, str(self.folder), str(state_dir), str(self._pace_s), str(max_pending)]
        return self._child(name, module, words)

    def _child(self, name: str, module: str, words: list[str]) -> ChildProcess:
        command = [sys.executable, "-m", f"tests.chaos.{module}", *words]
        environment = joined(self.clocks.environment(name), self.syscall_kills.environment(name))
        return ChildProcess(name, command, environment, self.folder / f"{name}.log")

    # -- direct requests to a server, without the proxy

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

    def restart_model(self) -> None:
        """`models restart`; it fails where the server is down, or is killed meanwhile."""
        try:
            self.call("POST", f"/v1/models/{MODEL}/restart")
            self.n_restarts += 1
        except (AssertionError, urllib3.exceptions.HTTPError):
            return

    def command(self, **words: Any) -> None:
        """Publish a command to all agents, atomically."""
        draft = self.folder / "command.new"
        draft.write_text(json.dumps(words))
        draft.rename(self.folder / "command.json")
