"""A model that is deleted and created again with other bounds, under running agents and filled caches of every replica.

A strict generation refuses rewards that a wide one accepts. Each replica is sent such a reward right before the old
model is deleted, and right after the new one was created: it must apply the bounds of the current model.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import urllib3

from fedbandit.algorithms.messages import Upload, stats_from_bytes
from fedbandit.wire.codec import CONTENT_TYPE, decode_reply, encode, numbers_of, request_of
from tests.chaos.agent_record import DIM, AgentRecord, n_packed, pack
from tests.chaos.recreated_model_agent import REMADE
from tests.chaos.schedule import TENANT

STRICT, WIDE, REWARD = 5.0, 1000.0, 50.0  # the reward is between the two bounds; other agents stay below both
LAM = 1.0
PAUSE_S = 0.1
CALL_S = 5.0
READY_S = 60.0
Step = Callable[[], bool]


class Sender:
    """A minimal agent at one replica: it retries each upload until it is answered."""

    def __init__(self, port: int, name: str, token: str) -> None:
        self.port, self.name, self.token = port, name, token
        self.sequence = 0

    def body(self) -> tuple[bytes, np.ndarray]:
        """The next upload, and its numbers."""
        numbers = pack(np.ones((1, DIM)), np.array([REWARD]))
        stats = stats_from_bytes(numbers.tobytes(), DIM)
        return encode(request_of(Upload(self.name, f"life-of-{self.name}", self.sequence + 1, stats, 0.5))), numbers


class ModelRecreation:
    """Generations of one model; steps that faults interrupt are completed during the recovery."""

    def __init__(self, ports: list[int], admin_token: str, folder: Path) -> None:
        self.ports, self.folder = ports, folder
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.generation = 0
        self.record: AgentRecord | None = None
        self.sums = np.zeros(n_packed())
        self._admin_token = admin_token
        self._http = urllib3.PoolManager(retries=False, maxsize=4)
        self._senders: list[Sender] = []
        self._steps: list[Step] = []
        self._n_names = 0
        self._at = 0  # the replica in use
        self._kill: Callable[[], None] | None = None

    @property
    def bound(self) -> float:
        """The reward bound of the current or next model."""
        return WIDE if self.generation % 2 else STRICT

    def recreate(self, ending: threading.Event, at: int, kill: Callable[[], None] | None = None) -> None:
        """Delete the model and create it with the other bound, at replica `at`; `kill` runs during the deletion."""
        self.begin(at, kill)
        self.work(ending)

    def begin(self, at: int, kill: Callable[[], None] | None = None) -> None:
        """Plan the steps."""
        self._at = at % len(self.ports)
        self._kill = kill
        probes = [lambda n=n: self._send(n) for n in range(len(self.ports))]
        enrol = [lambda n=n: self._enrol(n) for n in range(len(self.ports))]
        warm = probes if self.generation else []
        self._steps += [*warm, self._delete, self._create, *enrol, *probes, self._publish]

    def work(self, ending: threading.Event | None = None) -> None:
        """Run the steps until none is left, or until `ending` is set."""
        while self._steps and not self.violations and not (ending is not None and ending.is_set()):
            if self._steps[0]():
                self._steps.pop(0)
            else:
                time.sleep(PAUSE_S)
                self._at = (self._at + 1) % len(self.ports)

    def is_done(self) -> bool:
        """During the recovery: run one more step without faults; whether none is left."""
        self._kill = None
        if self._steps and self._steps[0]():
            self._steps.pop(0)
        return not self._steps

    # -- steps: each returns whether it is done

    def _delete(self) -> bool:
        kill, self._kill = self._kill, None
        if kill is not None:
            kill()
        status, code, _ = self._call("DELETE", "")
        if status not in (204, 404):
            return self._again(status, code, "DELETE")
        self.generation += 1
        self.sums, self._senders, self.record = np.zeros(n_packed()), [], None
        self.counts["deleted"] += 1
        return True

    def _create(self) -> bool:
        body = {"name": REMADE, "dim": DIM, "lam": LAM, "alpha": 1e-4, "beta": 0.5, "reward_bound": self.bound}
        status, code, _ = self._call("POST", None, body)
        if status not in (201, 409):  # 409: created by an earlier attempt whose reply was lost
            return self._again(status, code, "POST model")
        self.counts["created"] += 1
        return True

    def _enrol(self, n: int) -> bool:
        token = self._new_agent(f"sender-{n}")
        if token is None:
            return False
        self._senders.append(Sender(self.ports[n], self._name, token))
        return True

    def _send(self, n: int) -> bool:
        """Send a reward that only wide generations accept to replica n."""
        sender = self._senders[n]
        body, numbers = sender.body()
        headers = {"Content-Type": CONTENT_TYPE, "Authorization": f"Bearer {sender.token}"}
        status, code, _ = self._request("POST", sender.port, f"/v1/models/{REMADE}/sync", headers, body=body)
        if status == 200 and self.bound == WIDE:
            sender.sequence += 1
            self.sums = self.sums + numbers
            self.counts["taken"] += 1
            return True
        if (status, code) == (422, "implausible_upload") and self.bound == STRICT:
            self.counts["refused"] += 1
            return True
        if status == 200:
            self.violations.append(f"a reward of {REWARD:g} was merged by a model with the bound {self.bound:g}")
        if status == 422:
            self.violations.append(f"a reward of {REWARD:g} was refused ({code}) in spite of the bound {self.bound:g}")
        return self._again(status, code, "upload")

    def _publish(self) -> bool:
        """Publish the new model to its agent."""
        token = self._new_agent(TENANT)
        if token is None:
            return False
        self.record = AgentRecord(self.folder / f"{TENANT}-{self.generation}.record")
        draft = self.folder / f"{REMADE}.draft"
        draft.write_text(json.dumps({"generation": self.generation, "token": token}))
        draft.rename(self.folder / f"{REMADE}.json")
        return True

    def _new_agent(self, prefix: str) -> str | None:
        """The token of a new agent; a name whose reply was lost is not used again."""
        self._n_names += 1
        self._name = f"{prefix}-{self._n_names}"
        status, code, found = self._call("POST", "/agents", {"name": self._name})
        if status != 201:
            self._again(status, code, "POST agent")
            return None
        token: str = found["token"]
        return token

    def _again(self, status: int, code: str, words: str) -> bool:
        """Unavailable or overloaded servers are retried; other statuses are violations."""
        if status not in (0, 200, 422, 503):
            self.violations.append(f"{REMADE} {self.generation}: {words} was answered {status} {code}")
        return False

    # -- what must hold

    def check(self, report: dict[str, Any]) -> Iterator[str]:
        """Every replica has the model of this generation, with all that its agents sent and nothing else."""
        assert self.record is not None
        prior = np.concatenate([(LAM * np.eye(DIM))[np.triu_indices(DIM)], np.zeros(DIM + 3)])
        total = prior + self.sums + self.record.update().seen(report["rounds"])
        headers = {"Authorization": f"Bearer {self._admin_token}"}
        for port in self.ports:
            self._wait_until_ready(port)
            _, _, model = self._request("GET", port, f"/v1/models/{REMADE}", headers)
            if not model or model["reward_bound"] != self.bound:
                yield f"the replica on {port} has another model than generation {self.generation}: {model}"
            answer = self._http.request("GET", f"http://127.0.0.1:{port}/v1/models/{REMADE}/state", headers=headers)
            found = numbers_of(decode_reply(answer.data))
            if not np.array_equal(found, total):
                yield f"generation {self.generation} of {REMADE} holds {found.tolist()} instead of {total.tolist()}"
        yield from (f"{TENANT}: {words}" for words in self.record.violations)

    # -- requests

    def _wait_until_ready(self, port: int) -> None:
        """A replica that was stopped just before a checkpoint may still be starting."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            with suppress(urllib3.exceptions.HTTPError):
                if self._http.request("GET", f"http://127.0.0.1:{port}/readyz", timeout=2.0).status == 200:
                    return
            time.sleep(0.1)

    def _call(self, method: str, path: str | None, body: Any = None) -> tuple[int, str, Any]:
        """As administrator; `path` is below the model, None for the list of models."""
        address = "/v1/models" if path is None else f"/v1/models/{REMADE}{path}"
        headers = {"Authorization": f"Bearer {self._admin_token}"}
        return self._request(method, self.ports[self._at], address, headers, json=body)

    def _request(
        self, method: str, port: int, path: str, headers: dict[str, str], **options: Any
    ) -> tuple[int, str, Any]:
        """Status, error code and JSON of a reply; status 0 if there is none."""
        given = {name: value for name, value in options.items() if value is not None}
        url = f"http://127.0.0.1:{port}{path}"
        try:
            answer = self._http.request(method, url, headers=headers, timeout=CALL_S, **given)
        except (urllib3.exceptions.HTTPError, OSError):
            return 0, "", None
        try:
            found = json.loads(answer.data)
        except ValueError:
            found = {}
        return answer.status, str(found.get("error", "")), found
