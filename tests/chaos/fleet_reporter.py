"""Rewards of a fleet's decisions, reported by a process that makes none: by HTTP and by `fedbandit reward`.

python -m tests.chaos.fleet_reporter URL FOLDER PACE_S, the reporter's token in `fleet/setup.json`
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import urllib3

from tests.chaos.agent_record import RecordWriter
from tests.chaos.fleet_record import Listing

N_RECENT = 30
CALL_S = 5.0
TOOL_S = 60.0


class Offers:
    """Decisions whose reward anybody may report, by their ids or tokens."""

    def __init__(self, listing: Listing, rng: random.Random) -> None:
        self._listing, self._rng = listing, rng
        self._known: list[dict[str, Any]] = []

    def pick(self) -> dict[str, Any] | None:
        """Mostly one of the last ones, sometimes any: its owner may have settled it, or be gone."""
        self._known += self._listing.new_lines()
        if not self._known:
            return None
        return self._rng.choice(self._known[-N_RECENT:] if self._rng.random() < 0.7 else self._known)

    def reward_of(self, offer: dict[str, Any]) -> float:
        """The same for whoever reports it, but for one report in twenty."""
        digest = hashlib.sha256(offer["decision"].encode()).digest()
        return float(digest[0] % 7 - 3) if self._rng.random() < 0.95 else float(self._rng.randint(-3, 3))


class Reporter:
    """Reports one reward at a time by HTTP, or many by the command line."""

    def __init__(self, url: str, folder: Path, pace_s: float) -> None:
        self.url, self.folder, self.pace_s = url, folder, pace_s
        self.rng = random.Random(os.urandom(8))
        self.token = json.loads((folder / "fleet" / "setup.json").read_text())["reporter"]
        self.http = urllib3.PoolManager(retries=False, maxsize=1)
        self.models = json.loads((folder / "fleet" / "setup.json").read_text())["models"]
        self.offers = {m: Offers(Listing(folder / "fleet" / f"{m}.offers"), self.rng) for m in self.models}
        self.files = {m: RecordWriter(folder / "fleet" / f"{m}+reporter.reports") for m in self.models}

    def run(self) -> None:
        """Report until the command to finish."""
        while True:
            command = self.command()
            if command.get("finish"):
                return
            if command.get("quiet") or command.get("checkpoint"):
                self.quiet(command)
            else:
                model = self.rng.choice(self.models)
                (self.by_tool if self.rng.random() < 0.02 else self.by_http)(model)
            time.sleep(self.rng.expovariate(1.0 / self.pace_s))

    def quiet(self, command: dict[str, Any]) -> None:
        if command.get("quiet"):
            (self.folder / "reports" / f"{command['quiet']}-quiet-reporter.json").write_text("{}")
        while self.command() == command:
            time.sleep(0.05)

    def command(self) -> dict[str, Any]:
        path = self.folder / "command.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def next_report(self, model: str, by: str) -> dict[str, Any] | None:
        """Pick a decision, and write down that its reward is about to be reported."""
        offer = self.offers[model].pick()
        if offer is None:
            return None
        reward = self.offers[model].reward_of(offer)
        self.files[model].write(decision=offer["decision"], reward=reward, token=offer.get("token"), by=by)
        return {"decision": offer.get("token") or offer["decision"], "reward": reward}

    def by_http(self, model: str) -> None:
        body = self.next_report(model, "http")
        if body is None:
            return
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            answer = self.http.request(
                "POST", f"{self.url}/v1/models/{model}/rewards", headers=headers, json=body, timeout=CALL_S
            )
            found = json.loads(answer.data)
            self.files[model].write(answer=found.get("status") or found.get("error"))
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            self.files[model].write(answer="no_answer")

    def by_tool(self, model: str) -> None:
        found = [self.next_report(model, "tool") for _ in range(20)]
        text = "\n".join(json.dumps(each) for each in found if each is not None)
        command = [sys.executable, "-m", "fedbandit.cli.main", "reward", model, "--file", "-", "--json"]
        environment = {**os.environ, "FEDBANDIT_URL": self.url, "FEDBANDIT_TOKEN": self.token}
        done = subprocess.run(
            command, input=text, env=environment, capture_output=True, text=True, timeout=TOOL_S, check=False
        )
        if "Traceback" in done.stderr:
            raise RuntimeError(done.stderr)
        results = json.loads(done.stdout) if done.returncode == 0 else []
        for each in results:
            self.files[model].write(answer=each.get("error") or each["status"])


if __name__ == "__main__":
    Reporter(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])).run()
