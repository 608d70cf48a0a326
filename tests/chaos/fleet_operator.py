"""What operators do with the fleets: enrolments, retirement, pruning, folding, restarts; under faults, so with retries.

One step after the other, in a thread of the injector; what faults interrupt is completed during the recovery.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import urllib3

from tests.chaos.agent_record import DIM

MODELS: dict[str, dict[str, Any]] = {
    "pods": {},
    "shop": {"control": 0.05, "personal": "auto"},
    "moving": {"drift": {"kind": "restart", "noise_scale": 2.0}},
}
LAM, ALPHA = 1.0, 1e-4
N_SLOTS = 4  # with tokens
MAX_USES = 40
SPARE_USES = 10  # an enrolment with fewer is replaced before agents must be at work
PAUSE_S = 0.1
CALL_S = 10.0
SETTLED_S = 5.0  # after its retirement no upload of an agent is under way
PRUNE_AFTER_S = 20.0
Step = Callable[[], bool]
Name = tuple[str, str]  # model, agent


class FleetOperator:
    """`retired` has every agent that was retired at any time, `folded` its uploads and observations at the end."""

    def __init__(self, ports: list[int], admin_token: str, folder: Path) -> None:
        self.ports, self.folder = ports, folder
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.retired: set[Name] = set()
        self.folded: dict[Name, dict[str, Any]] = {}
        self.setup: dict[str, Any] = {"models": list(MODELS), "enrolments": {}, "slots": [], "reporter": ""}
        self._headers = {"Authorization": f"Bearer {admin_token}"}
        self._http = urllib3.PoolManager(retries=False, maxsize=4)
        self._steps: list[Step] = []
        self._current: dict[str, str] = {}  # name of the enrolment in use, by model
        self._since: dict[Name, float] = {}  # when a retired agent was first seen so
        self._final: dict[Name, dict[str, Any]] = {}  # rows of agents that are about to be folded
        self._n = 0
        self._lock = threading.Lock()

    # -- set-up, without faults

    def create(self) -> None:
        """Models, enrolments, the tokens of slots and of the reporter."""
        for name, options in MODELS.items():
            numbers = {"dim": DIM, "lam": LAM, "alpha": ALPHA, "beta": 0.5}
            assert self._call("POST", "/v1/models", {"name": name, **numbers, **options})[0] == 201
            assert self._enrolment(name)
        for slot in range(N_SLOTS):
            _, found = self._call("POST", "/v1/models/pods/agents", {"name": f"slot-{slot}"})
            self.setup["slots"].append(found["token"])
        _, found = self._call("POST", "/v1/tokens", {"name": "fleet-reporter", "role": "reporter"})
        self.setup["reporter"] = found["token"]
        self._publish()

    def _publish(self) -> None:
        draft = self.folder / "setup.new"
        draft.write_text(json.dumps(self.setup))
        draft.rename(self.folder / "setup.json")

    # -- steps

    def begin(self, kind: str, value: int) -> None:
        """Plan an action."""
        model = list(MODELS)[value % len(MODELS)]
        steps: dict[str, list[Step]] = {
            "retire": [lambda: self._retire(model, value)],
            "prune": [lambda: self._prune(model)],
            "fold": [lambda: self._fold(model)],
            "replace_enrolment": [lambda: self._enrolment(model)],
            "restart_fleet_model": [self._restart],
        }
        with self._lock:
            self._steps += steps[kind]

    def work(self, ending: threading.Event) -> None:
        """Run the steps until none is left, or until `ending` is set."""
        while not ending.is_set() and not self.violations:
            if not self._one():
                if not self._steps:
                    return
                ending.wait(PAUSE_S)

    def is_done(self) -> bool:
        """During the recovery: one more step; whether none is left, and enrolments have uses for all."""
        self._one()
        return not self._steps and all(self._has_uses(model) for model in MODELS)

    def _one(self) -> bool:
        with self._lock:
            step = self._steps[0] if self._steps else None
        if step is None or not step():
            return False
        with self._lock:
            self._steps.remove(step)
        return True

    def _enrolment(self, model: str) -> bool:
        """Another enrolment takes the place of the one in use, which is revoked."""
        self._n += 1
        name = f"e-{self._n}"
        body = {"name": name, "name_prefix": f"{model}-", "max_uses": MAX_USES}
        status, found = self._call("POST", f"/v1/models/{model}/enrolments", body)
        if status != 201:
            return self._again(status, found, "an enrolment")
        before, self._current[model] = self._current.get(model), name
        self.setup["enrolments"][model] = found["secret"]
        self._publish()
        self.counts["enrolments_created"] += 1
        if before is not None:
            with self._lock:
                self._steps.insert(1 if self._steps else 0, lambda: self._revoke(model, before))
        return True

    def _revoke(self, model: str, name: str) -> bool:
        status, found = self._call("POST", f"/v1/models/{model}/enrolments/{name}/revoke")
        # One that was used up or revoked long ago by a clock which was set ahead may be gone.
        if status not in (200, 404):
            return self._again(status, found, "the end of an enrolment")
        self.counts["enrolments_revoked"] += 1
        return True

    def _has_uses(self, model: str) -> bool:
        status, found = self._call("GET", f"/v1/models/{model}/enrolments")
        if status != 200:
            return False
        used = [each for each in found["enrolments"] if each["name"] == self._current[model]]
        if used and used[0]["state"] == "active" and used[0]["n_used"] <= MAX_USES - SPARE_USES:
            return True
        self._enrolment(model)
        return False

    def _retire(self, model: str, value: int) -> bool:
        """Retire an enrolled agent; one in three is taken back a second later."""
        status, found = self._call("GET", f"/v1/models/{model}/agents?per_page=500")
        if status != 200:
            return self._again(status, found, "the agents")
        enrolled = [row["name"] for row in found["agents"] if row["enrolment"]]
        if not enrolled:
            return True
        agent = enrolled[value // 3 % len(enrolled)]
        self.retired.add((model, agent))
        status, found = self._call("POST", f"/v1/models/{model}/agents/{agent}/retire")
        if status != 200:
            return self._again(status, found, "a retirement")
        self.counts["retired"] += 1
        if value // 3 % 3 == 0:
            at = time.monotonic() + 1.0
            with self._lock:
                self._steps.insert(1, lambda: time.monotonic() > at and self._unretire(model, agent))
        return True

    def _unretire(self, model: str, agent: str) -> bool:
        status, found = self._call("POST", f"/v1/models/{model}/agents/{agent}/unretire")
        if status != 200:
            return self._again(status, found, "the end of a retirement")
        self.counts["unretired"] += 1
        self._since.pop((model, agent), None)
        self._final.pop((model, agent), None)
        return True

    def _prune(self, model: str) -> bool:
        body = {"after_s": PRUNE_AFTER_S, "retire": True, "limit": 1}
        if model == "pods":  # slots with tokens are not taken back by anybody: list only
            body["retire"] = False
        status, found = self._call("POST", f"/v1/models/{model}/prune", body)
        if status != 200:
            return self._again(status, found, "pruning")
        self.counts["pruned"] += len(found["agents"]) if body["retire"] else 0
        return True

    def _fold(self, model: str) -> bool:
        """Fold retired agents into one row, when nothing of theirs is under way any more."""
        rows = self.rows(model, retired=True)
        if rows is None:
            return False
        now = time.monotonic()
        since = [self._since.setdefault((model, name), now) for name in rows if name != "(retired)"]
        if not since:
            return True
        if now - max(since) < SETTLED_S:
            return False
        self._final |= {(model, name): row for name, row in rows.items() if name != "(retired)"}
        status, found = self._call("POST", f"/v1/models/{model}/prune", {"after_s": 3e9, "fold": True})
        left = self.rows(model, retired=True)
        if left is None:  # whether the answer was lost is found out by the next try
            return False
        # A server whose clock was set back folds none of those that were retired later.
        gone = {name: row for name, row in self._final.items() if name[0] == model and name[1] not in left}
        self._final = {name: row for name, row in self._final.items() if name not in gone}
        self.folded |= gone
        self.counts["folded"] += len(gone)
        return status == 200 or self._again(status, found, "folding")

    def _restart(self) -> bool:
        status, found = self._call("POST", "/v1/models/moving/restart")
        if status != 200:
            return self._again(status, found, "a restart")
        self.counts["restarts"] += 1
        return True

    def _again(self, status: int, found: Any, words: str) -> bool:
        """Unavailable or overloaded servers are retried; other statuses are violations."""
        if status not in (0, 200, 201, 503):
            self.violations.append(f"{words} was answered {status} {found}")
        return False

    # -- requests

    def rows(self, model: str, *, retired: bool) -> dict[str, dict[str, Any]] | None:
        """The server's rows of agents by name; None if there is no answer. Those retired are remembered."""
        found: dict[str, dict[str, Any]] = {}
        for page in range(1, 100):
            query = f"retired={str(retired).lower()}&per_page=500&page={page}"
            status, answer = self._call("GET", f"/v1/models/{model}/agents?{query}")
            if status != 200:
                return None
            found |= {row["name"]: row for row in answer["agents"]}
            if len(found) >= answer["total"]:
                break
        if retired:
            self.retired.update((model, name) for name in found)
        return found

    def row(self, model: str, agent: str) -> dict[str, Any]:
        """The server's row of one agent."""
        status, found = self._call("GET", f"/v1/models/{model}/agents/{agent}")
        assert status == 200, (status, found)
        row: dict[str, Any] = found
        return row

    def report(self, model: str, rewards: list[dict[str, Any]]) -> list[str]:
        """Report rewards as an administrator would; a status or an error for each."""
        results: list[str] = []
        for begin in range(0, len(rewards), 1000):
            body = {"rewards": rewards[begin : begin + 1000]}
            status, found = self._call("POST", f"/v1/models/{model}/rewards", body)
            assert status == 200, (status, found)
            results += [each.get("error") or each["status"] for each in found["results"]]
        return results

    def enrolments(self, model: str) -> dict[str, int]:
        """Uses of each enrolment, by name."""
        status, found = self._call("GET", f"/v1/models/{model}/enrolments")
        assert status == 200, (status, found)
        return {each["name"]: each["n_used"] for each in found["enrolments"]}

    def _call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of a reply; status 0 if there is none."""
        given = {} if body is None else {"json": body}
        url = f"http://127.0.0.1:{self.ports[0]}{path}"
        try:
            answer = self._http.request(method, url, headers=self._headers, timeout=CALL_S, **given)
            return answer.status, json.loads(answer.data)
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            return 0, {}
