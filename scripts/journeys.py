"""Counts the files and functions of the package that the three journeys of docs/architecture.md call.

    python scripts/journeys.py [live] [simulate] [watch] [--list] [--json]

- live: one `observe` of a live agent, its exchange with a server over HTTP, and the adoption of the reply;
- simulate: `fb.simulate` with the reference engine;
- watch: the dashboard's view of one model, and the insight of that model from the API.

Live and watch use a real server with an SQLite store in this process, so both sides are counted. Each journey runs once
before it is counted, and only what five repetitions have in common counts: imports, connections, first-time
preparations, periodic jobs of the server and coroutines that were running before are left out. Lambdas and
comprehensions are not counted as functions.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dis import get_instructions
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import urllib3

import fedbandit as fb

PACKAGE = str(Path(fb.__file__).parent)
JOURNEYS = ("live", "simulate", "watch")
N_REPETITIONS = 5
SETTLE_S = 0.2  # after a reply was adopted: the background thread and the server write their snapshots and logs
TIMEOUT_S = 60.0
DIM = 5


class CallRecorder:
    """Records which functions of the package run, in every thread that starts after `install`."""

    def __init__(self) -> None:
        self.calls: set[tuple[str, str]] = set()
        self._is_on = False

    def install(self) -> None:
        """Trace this thread and all that it starts from now on."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def common_calls(self, journey: Callable[[], None]) -> set[tuple[str, str]]:
        """The calls, as (file, function), that each repetition of a journey makes after a first one."""
        journey()
        common: set[tuple[str, str]] = set()
        for n in range(N_REPETITIONS):
            self.calls = set()
            self._is_on = True
            journey()
            self._is_on = False
            common = self.calls if n == 0 else common & self.calls
        return common

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if self._is_on and event == "call":
            code = frame.f_code
            if not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
                return
            if frame.f_lasti <= _first_instruction(code):
                self.calls.add((code.co_filename[len(PACKAGE) + 1 :], code.co_qualname))


@cache
def _first_instruction(code: CodeType) -> int:
    """Where a call starts; a coroutine that continues after an `await` is further on, and is not called again."""
    return next(instruction.offset for instruction in get_instructions(code) if instruction.opname == "RESUME")


class JourneyClient:
    """What an administrator, an agent and a visitor do with the server at this address."""

    def __init__(self, url: str, token: str, folder: Path, recorder: CallRecorder) -> None:
        self._url, self._folder, self._recorder = url, folder, recorder
        self._admin = {"Authorization": f"Bearer {token}"}
        self._http = urllib3.PoolManager(retries=False)
        self._post("/v1/models", {"name": "news", "dim": DIM, "alpha": 0.0, "beta": 0.5, "lam": 1.0})
        self._token = self._post("/v1/models/news/agents", {"name": "shop-1"})["token"]

    def live(self) -> set[tuple[str, str]]:
        """One observation of a live agent with a journal, until the reply to its upload is adopted."""
        with fb.connect(self._url, model="news", token=self._token, state_dir=self._folder / "agent") as agent:
            return self._recorder.common_calls(lambda: self._observe_and_wait(agent))

    def watch(self) -> set[tuple[str, str]]:
        """The dashboard's view of a model, and its insight."""

        def visit() -> None:
            time.sleep(1.0)  # the server keeps a view for a moment
            self._get("/models/news")
            self._get("/v1/models/news/insight")

        return self._recorder.common_calls(visit)

    def _observe_and_wait(self, agent: fb.LiveAgent) -> None:
        version, until = agent.model_version, time.monotonic() + TIMEOUT_S
        agent.observe([1.0] * DIM, 0.5)
        while agent.model_version == version:
            if time.monotonic() > until:
                raise TimeoutError("the exchange did not end")
            time.sleep(0.01)
        time.sleep(SETTLE_S)

    def _get(self, path: str) -> None:
        answer = self._http.request("GET", self._url + path, headers=self._admin)
        if answer.status != 200:
            raise RuntimeError(f"expected 200 from GET {path}, got {answer.status}: {answer.data[:300]!r}")

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        answer = self._http.request("POST", self._url + path, json=body, headers=self._admin)
        if answer.status != 201:
            raise RuntimeError(f"expected 201 from POST {path}, got {answer.status}: {answer.data[:300]!r}")
        return answer.json()


def simulate(recorder: CallRecorder) -> set[tuple[str, str]]:
    """A short run of the reference engine."""

    def play() -> None:
        rule, world = fb.FedLinUCB(dim=DIM, alpha=1.0, beta=0.5, lam=1.0), fb.worlds.uniform(dim=DIM)
        fb.simulate(rule, world, n_agents=3, n_rounds=100, seed=0, engine="reference")

    return recorder.common_calls(play)


def trace(names: list[str]) -> dict[str, set[tuple[str, str]]]:
    """The calls of each journey."""
    recorder = CallRecorder()
    recorder.install()
    found = {"simulate": simulate(recorder)} if "simulate" in names else {}
    if {"live", "watch"} & set(names):
        with tempfile.TemporaryDirectory() as folder:
            _with_server(Path(folder), lambda url, token: _visit(url, token, Path(folder), recorder, names, found))
    return found


def _visit(
    url: str,
    token: str,
    folder: Path,
    recorder: CallRecorder,
    names: list[str],
    found: dict[str, set[tuple[str, str]]],
) -> None:
    client = JourneyClient(url, token, folder, recorder)
    found["live"] = client.live()  # also where only `watch` was asked for: it needs a model that has data
    if "watch" in names:
        found["watch"] = client.watch()


def _with_server(folder: Path, visit: Callable[[str, str], None]) -> None:
    """Serve in this thread, because signals end a server, and visit from another one."""
    from fedbandit.dashboard.routes import dashboard_routes
    from fedbandit.service.process import run
    from fedbandit.service.settings import read_settings

    said: list[str] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            visit(said[-1].rpartition(" ")[2], said[0].rpartition(" ")[2])
        except BaseException as error:  # noqa: BLE001 - raised again below, where it is seen
            failures.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    def say(line: str) -> None:
        said.append(line)
        if "://" in line:
            threading.Thread(target=work, name="journeys").start()

    settings = read_settings({"data": str(folder / "server"), "port": 0, "log_level": "error"}, file=None)
    run(settings, say=say, dashboard=dashboard_routes)
    if failures:
        raise failures[0]


def main() -> None:
    """Print a line per journey."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("journey", nargs="*", help=f"{', '.join(JOURNEYS)}; default: all three")
    parser.add_argument("--list", action="store_true", help="also list the files and their functions")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    names = options.journey or list(JOURNEYS)
    if unknown := set(names) - set(JOURNEYS):
        parser.error(f"expected journeys among {', '.join(JOURNEYS)}, got {', '.join(sorted(unknown))}")
    found = trace(names)
    counts = {name: {"files": len({file for file, _ in found[name]}), "functions": len(found[name])} for name in names}
    if options.json:
        print(json.dumps(counts))
        return
    for name in names:
        print(f"{name:8}  {counts[name]['files']:3} files  {counts[name]['functions']:3} functions")
        if options.list:
            for file in sorted({file for file, _ in found[name]}):
                functions = sorted(function for other, function in found[name] if other == file)
                print(f"  {file} ({len(functions)}): {', '.join(functions)}")


if __name__ == "__main__":
    main()
