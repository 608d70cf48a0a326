"""The live protocol over HTTP, with real server processes: one on SQLite, one and two replicas on PostgreSQL."""

import itertools
import json
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
import urllib3

import fedbandit as fb
from fedbandit.algorithms.messages import digest_of
from fedbandit.wire import codec
from tests.live import LiveServer, running_server
from tests.postgres import drop_database, fresh_database
from tests.service.uploads import folded, incoming, packed, request

DEPLOYMENTS = ("sqlite", "postgres", "two-replicas")


class Deployment:
    """One or more servers on one store; calls go round, so that no two in a row reach the same replica."""

    def __init__(self, servers: list[LiveServer]) -> None:
        self.servers = servers
        self._turns = itertools.cycle(servers)
        self._lock = threading.Lock()

    def next(self) -> LiveServer:
        with self._lock:
            return next(self._turns)

    def call(self, method, path, body=None):
        return self.next().call(method, path, body)

    def fleet(self, *agents: str, **settings) -> "Fleet":
        name = f"m-{secrets.token_hex(4)}"
        self.next().add_model(name, **settings)
        return Fleet(self, name, {agent: self.next().add_agent(name, agent) for agent in agents})


class Fleet:
    """A model with its agents' tokens."""

    def __init__(self, deployment: Deployment, model: str, tokens: dict[str, str]) -> None:
        self.deployment = deployment
        self.model = model
        self.tokens = tokens

    @property
    def path(self) -> str:
        return f"/v1/models/{self.model}"

    def post(self, body: bytes, token: str) -> urllib3.BaseHTTPResponse:
        return self.deployment.next().request("POST", f"{self.path}/sync", token=token, body=body)

    def send(self, agent: str = "a", sequence: int = 1, **changes) -> urllib3.BaseHTTPResponse:
        upload = incoming(agent, sequence, **changes)
        return self.post(codec.encode(request(upload, dim=changes.get("dim", 3))), self.tokens[agent])

    def sent(self, agent: str = "a", sequence: int = 1, **changes) -> codec.SyncReply:
        answer = self.send(agent, sequence, **changes)
        assert answer.status == 200, answer.data
        return codec.decode_reply(answer.data)

    def show(self) -> dict:
        return self.deployment.call("GET", self.path)

    def state(self) -> bytes:
        return codec.decode_reply(self.deployment.next().request("GET", f"{self.path}/state").data).stats


def refusal(answer: urllib3.BaseHTTPResponse) -> tuple[int, str]:
    problem = json.loads(answer.data)
    assert set(problem) == {"error", "message"}
    assert answer.headers["content-type"] == "application/json"
    return answer.status, problem["error"]


@pytest.fixture(scope="module", params=DEPLOYMENTS)
def deployment(request, tmp_path_factory) -> Iterator[Deployment]:
    with ExitStack() as stack:
        store = "sqlite"
        if request.param != "sqlite":
            store = stack.enter_context(fresh_database(request.getfixturevalue("postgres")))
        token = "fb_" + secrets.token_urlsafe(32)
        servers = [
            stack.enter_context(running_server(tmp_path_factory.mktemp("server"), store, admin_token=token))
            for _ in range(2 if request.param == "two-replicas" else 1)
        ]
        yield Deployment(servers)


# -- exactly once


def test_a_fleet_over_http_equals_the_server_in_memory_to_the_last_bit(deployment):
    fleet = deployment.fleet("a", "b", "c", dim=4, alpha=0.3)
    rule = fb.FedLinUCB(dim=4, alpha=0.3, beta=0.5)
    memory, agents = rule.server(), [rule.agent(name) for name in "abc"]
    rng = np.random.default_rng(3)
    for turn in range(150):
        agent = agents[turn % 3]
        upload = agent.observe(agent.choose(rng.normal(size=(5, 4))), float(rng.normal()))
        if upload is None:
            continue
        answer = fleet.post(codec.encode(codec.request_of(upload)), fleet.tokens[agent.agent_id])
        live = codec.download_of(codec.decode_reply(answer.data))
        assert live == memory.receive(upload)
        agent.adopt(live)
    assert memory.version > 10
    waiting = sum(agent.local.n_obs for agent in agents)
    assert fleet.show()["n_obs"] + waiting == 150


def test_a_retry_is_answered_and_counted_once(deployment):
    fleet = deployment.fleet("a")
    first = fleet.sent("a", 1)
    again = [fleet.sent("a", 1) for _ in range(3)]
    assert {(reply.version, reply.acknowledged, reply.stats) for reply in [first, *again]} == {
        (1, 1, folded(incoming("a", 1)))
    }
    fleet.sent("a", 2)
    old = fleet.sent("a", 1)
    assert (old.version, old.acknowledged) == (2, 2)


def test_gaps_conflicts_and_stale_lives_are_409_and_change_nothing(deployment):
    fleet = deployment.fleet("a")
    assert refusal(fleet.send("a", 2)) == (409, "sequence_gap")
    fleet.sent("a", 1)
    assert refusal(fleet.send("a", 1, seed=5)) == (409, "sequence_conflict")
    assert refusal(fleet.send("a", 3)) == (409, "sequence_gap")
    fleet.sent("a", 1, incarnation="life-2")
    assert refusal(fleet.send("a", 2)) == (409, "stale_incarnation")
    assert fleet.state() == folded(incoming("a", 1), incoming("a", 1, incarnation="life-2"))
    assert fleet.show()["version"] == 2


def test_concurrent_uploads_of_many_agents_are_all_counted(deployment):
    names = [f"agent-{number}" for number in range(12)]
    fleet = deployment.fleet(*names)

    def life(name: str) -> None:
        for sequence in range(1, 9):
            assert fleet.sent(name, sequence).acknowledged == sequence

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(life, names))
    everything = [incoming(name, sequence) for name in names for sequence in range(1, 9)]
    assert fleet.state() == folded(*everything)  # integers: the order does not matter
    assert fleet.show()["version"] == len(everything)


def test_the_same_upload_at_every_replica_at_once_counts_once(deployment):
    fleet = deployment.fleet("a")
    with ThreadPoolExecutor(8) as threads:
        replies = list(threads.map(lambda _: fleet.sent("a", 1), range(16)))
    assert {reply.acknowledged for reply in replies} == {1}
    assert fleet.state() == folded(incoming("a", 1))


# -- reading


def test_a_download_has_a_tag_and_is_cheap_when_nothing_is_new(deployment):
    fleet = deployment.fleet("a")
    token = fleet.tokens["a"]

    def get(tag: str = ""):
        headers = {"If-None-Match": tag} if tag else {}
        path = f"{fleet.path}/state?incarnation=life-1"
        return deployment.next().request("GET", path, token=token, headers=headers)

    first = get()
    reply = codec.decode_reply(first.data)
    assert (reply.version, reply.acknowledged, reply.agent, reply.stats) == (0, 0, "a", folded())
    assert first.headers["content-type"] == codec.CONTENT_TYPE
    unchanged = get(first.headers["etag"])
    assert (unchanged.status, unchanged.data) == (304, b"")
    fleet.sent("a", 1)
    changed = get(first.headers["etag"])
    assert changed.status == 200
    assert codec.decode_reply(changed.data).acknowledged == 1
    assert changed.headers["etag"] != first.headers["etag"]


def test_a_model_tells_its_settings(deployment):
    radius = {"kind": "exogenous", "noise_scale": 0.3, "theta_bound": 2.0, "delta": 0.05}
    settings = {"lam": 2.0, "alpha": 0.5, "radius": radius, "features": ["x", "y", "z"], "action_bound": 10.0}
    fleet = deployment.fleet("a", dim=3, **settings)
    shown = deployment.next().call("GET", fleet.path, token=fleet.tokens["a"])
    assert {key: shown[key] for key in settings} == settings
    assert (shown["dim"], shown["n_agents"], shown["version"], shown["reward_bound"]) == (3, 1, 0, 1e9)  # the default
    assert shown["effective_alpha"] == 0.5
    assert fleet.sent("a").settings == shown["settings"]


def test_effective_alpha_follows_what_agents_report(deployment):
    fleet = deployment.fleet("a", alpha=0.5)
    fleet.sent("a", 1, growth=0.01)
    assert fleet.show()["effective_alpha"] == 0.5
    fleet.sent("a", 2, growth=1.5)
    assert fleet.show()["effective_alpha"] == pytest.approx(np.expm1(1.5))
    # More than the data of this upload allow is cut to what they do allow.
    fleet.sent("a", 3, growth=1e6)
    assert np.expm1(1.5) < fleet.show()["effective_alpha"] < 1e6


# -- what is refused


def test_what_no_data_can_give_is_422_with_a_reason(deployment):
    fleet = deployment.fleet("a", action_bound=10.0, reward_bound=5.0)
    honest = np.frombuffer(packed(1), dtype="<f8")
    for change in ({-3: 0.0}, {-3: 1.5}, {0: -1.0}, {6: 1e6}, {0: np.nan}, {1: np.inf}, {-1: -1.0}, {0: 1e9}):
        numbers = honest.copy()
        for place, value in change.items():
            numbers[place] = value
        stats = numbers.tobytes()
        body = codec.SyncRequest(
            agent="a", incarnation="x", sequence=1, digest=digest_of(stats), dim=3, stats=stats, growth=0.1
        )
        answer = fleet.post(codec.encode(body), fleet.tokens["a"])
        assert refusal(answer) in [(422, "implausible_upload"), (422, "not_finite")]
    assert fleet.show()["version"] == 0


def test_bodies_that_are_no_messages_are_400_and_long_ones_413(deployment):
    fleet = deployment.fleet("a")
    token = fleet.tokens["a"]
    good = codec.encode(request(incoming("a")))
    for body in (b"", b"nonsense", good[:-1], good + b"x", b"\xc1", b"\x91" * 500):
        assert refusal(fleet.post(body, token)) == (400, "format_error")
    assert refusal(fleet.post(bytes(100_000), token)) == (413, "body_too_large")
    assert refusal(fleet.send("a", dim=4)) in [(422, "dimension_mismatch"), (413, "body_too_large")]
    assert fleet.show()["version"] == 0


def test_a_token_reaches_its_own_model_and_identity_only(deployment):
    fleet, other = deployment.fleet("a", "b"), deployment.fleet("a")
    body = codec.encode(request(incoming("a")))
    assert refusal(fleet.post(body, fleet.tokens["b"])) == (403, "forbidden")
    assert refusal(fleet.post(body, other.tokens["a"])) == (403, "forbidden")
    assert refusal(fleet.post(body, "")) == (401, "unauthenticated")
    assert refusal(fleet.post(body, "fb_" + "x" * 43)) == (401, "unauthenticated")
    for path in (other.path, f"{other.path}/state", f"{other.path}/agents/a", f"{fleet.path}/agents/b"):
        assert refusal(deployment.next().request("GET", path, token=fleet.tokens["a"])) == (403, "forbidden")
    for path in ("/v1/models", "/status", "/metrics", f"{fleet.path}/agents", f"{fleet.path}/export"):
        assert refusal(deployment.next().request("GET", path, token=fleet.tokens["a"])) == (403, "forbidden")
    assert deployment.next().request("GET", f"{fleet.path}/agents/a", token=fleet.tokens["a"]).status == 200


def test_revoking_is_immediate_at_every_replica(deployment):
    fleet = deployment.fleet("a")
    for sequence in range(1, 5):
        fleet.sent("a", sequence)  # every replica knows the token by now
    deployment.call("POST", f"{fleet.path}/agents/a/revoke")
    for _ in range(2 * len(deployment.servers)):
        assert refusal(fleet.send("a", 5)) == (401, "unauthenticated")
        answer = deployment.next().request("GET", f"{fleet.path}/state", token=fleet.tokens["a"])
        assert refusal(answer) == (401, "unauthenticated")
    assert fleet.show()["version"] == 4


def test_a_renewed_token_replaces_the_old_one_at_every_replica(deployment):
    fleet = deployment.fleet("a")
    fleet.sent("a", 1)
    fleet.sent("a", 2)
    old = fleet.tokens["a"]
    fleet.tokens["a"] = deployment.call("POST", f"{fleet.path}/agents", {"name": "a", "renew": True})["token"]
    for _ in deployment.servers:
        assert refusal(fleet.post(codec.encode(request(incoming("a", 3))), old)) == (401, "unauthenticated")
    assert fleet.sent("a", 3).acknowledged == 3


def test_forgetting_removes_a_contribution_for_good(deployment):
    fleet = deployment.fleet("a", "b")
    fleet.sent("a", 1)
    fleet.sent("b", 1)
    fleet.sent("a", 2)
    after = deployment.call("POST", f"{fleet.path}/agents/a/forget")
    assert fleet.state() == folded(incoming("b", 1))
    assert after["version"] == 4
    for sequence in (1, 2, 3):
        answer = fleet.send("a", sequence)
        assert refusal(answer) == (409, "stale_incarnation")
        assert "forgotten" in json.loads(answer.data)["message"]
    assert fleet.sent("a", 1, incarnation="life-2").version == 5


def test_a_deleted_model_lets_nobody_in(deployment):
    fleet = deployment.fleet("a")
    fleet.sent("a", 1)
    fleet.sent("a", 2)
    deployment.call("DELETE", fleet.path)
    for _ in range(2 * len(deployment.servers)):
        assert fleet.send("a", 3).status in (401, 404)
    assert refusal(deployment.next().request("GET", fleet.path)) == (404, "unknown_model")


def test_a_model_made_again_with_another_dimension_is_known_everywhere(deployment):
    fleet = deployment.fleet("a", dim=3)
    for sequence in range(1, 4):
        fleet.sent("a", sequence)
    deployment.call("DELETE", fleet.path)
    deployment.next().add_model(fleet.model, dim=5)
    fleet.tokens["a"] = deployment.next().add_agent(fleet.model, "a")
    deadline = time.monotonic() + 10
    for _ in range(2 * len(deployment.servers)):
        # A replica that remembers the old dimension refuses once and has learnt the new one by then.
        while (answer := fleet.send("a", 1, dim=5)).status != 200 and time.monotonic() < deadline:
            assert answer.status in (413, 422)
    assert fleet.show()["version"] == 1


# -- losing nothing


def stores(param: str, request, stack: ExitStack) -> str:
    return "sqlite" if param == "sqlite" else stack.enter_context(fresh_database(request.getfixturevalue("postgres")))


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("ending", ["kill", "stop"])
def test_no_answered_upload_is_lost_when_the_server_ends_under_load(store, ending, request, tmp_path):
    names = [f"agent-{number}" for number in range(6)]
    with ExitStack() as stack:
        server = stack.enter_context(running_server(tmp_path, stores(store, request, stack)))
        fleet = Deployment([server]).fleet(*names)
        answered = dict.fromkeys(names, 0)

        def life(name: str) -> None:
            while True:
                try:
                    answer = fleet.send(name, answered[name] + 1)
                except urllib3.exceptions.HTTPError:
                    return
                if answer.status != 200:
                    assert answer.status == 503
                    return
                answered[name] += 1

        threads = [threading.Thread(target=life, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        time.sleep(1.0)
        if ending == "stop":
            assert server.stop() == 0
        else:
            server.kill()
        for thread in threads:
            thread.join()
        server.start()
        merged = {name: server.call("GET", f"{fleet.path}/agents/{name}")["sequence"] for name in names}
        assert min(answered.values()) > 0
        for name in names:
            # At most the one that was under way may be merged without an answer; a drained server answers that too.
            assert 0 <= merged[name] - answered[name] <= (1 if ending == "kill" else 0)
            assert fleet.sent(name, answered[name] + 1).acknowledged >= answered[name] + 1
        everything = [incoming(name, number) for name in names for number in range(1, answered[name] + 2)]
        assert fleet.state() == folded(*everything)


def test_a_full_queue_sheds_with_retry_after_and_recovers(tmp_path):
    names = [f"agent-{number}" for number in range(24)]
    with running_server(tmp_path, max_queue=1, max_batch=1) as server:
        server.http = urllib3.PoolManager(retries=False, maxsize=24)
        fleet = Deployment([server]).fleet(*names)
        shed = []

        def life(name: str) -> None:
            for sequence in range(1, 11):
                while (answer := fleet.send(name, sequence)).status != 200:
                    assert refusal(answer) == (503, "overloaded")
                    assert int(answer.headers["retry-after"]) >= 1
                    shed.append(name)
                    time.sleep(0.02)

        with ThreadPoolExecutor(24) as threads:
            list(threads.map(life, names))
        assert shed
        everything = [incoming(name, sequence) for name in names for sequence in range(1, 11)]
        assert fleet.state() == folded(*everything)


def test_a_server_is_not_ready_while_its_database_is_away(request, tmp_path):
    postgres = request.getfixturevalue("postgres")
    with fresh_database(postgres) as address, running_server(tmp_path, address) as server:
        assert server.request("GET", "/readyz", token="").status == 200
        drop_database(postgres, address)
        assert refusal(server.request("GET", "/readyz", token="")) == (503, "store_unavailable")
        assert refusal(server.request("GET", "/v1/models")) == (503, "store_unavailable")
        assert server.request("GET", "/healthz", token="").status == 200
