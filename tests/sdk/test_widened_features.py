"""Features that are added to a model: old sums stay valid, agents of the old width go on, kills lose nothing."""

from contextlib import suppress

import numpy as np
import pytest

import fedbandit as fb
from fedbandit import errors
from fedbandit.sdk.journal import journal as journals
from fedbandit.wire.codec import decode_request
from tests.live import running_server
from tests.postgres import database, postgres
from tests.sdk.helpers import as_if_killed, everything_about

__all__ = ["database", "postgres"]
OLD, WIDE = 3, 5


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server")) as server:
        yield server


def padded(rows: np.ndarray) -> np.ndarray:
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, WIDE - rows.shape[-1])])


def connect(server, model: str, token: str, **options):
    return fb.connect(server.url, model=model, token=token, **{"sync": "inline", **options})


def sums_of(seen: list[tuple[np.ndarray, float]], lam: float) -> fb.SufficientStats:
    rows, rewards = np.array([padded(x) for x, _ in seen]), np.array([reward for _, reward in seen])
    return fb.SufficientStats.prior(dim=WIDE, lam=lam) + fb.SufficientStats.of(rows, rewards)


def assert_same(found: fb.SufficientStats, expected: fb.SufficientStats) -> None:
    np.testing.assert_allclose(found.Sigma, expected.Sigma, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.b, expected.b, rtol=1e-9, atol=1e-9)
    assert found.n_obs == expected.n_obs
    assert found.reward_sum == pytest.approx(expected.reward_sum, abs=1e-9)


def play(agent, rng, n: int, dim: int = OLD) -> list[tuple[np.ndarray, float]]:
    seen = []
    for _ in range(n):
        decision = agent.choose(rng.standard_normal((4, dim)))
        reward = float(rng.standard_normal())
        agent.observe(decision, reward)
        seen.append((decision.x, reward))
    return seen


KINDS = {
    "plain": {},
    "personal": {"personal": "auto"},
    "control": {"control": 0.3},
    "restart": {"drift": {"kind": "restart", "noise_scale": 1.0}},
    "discount": {"drift": {"kind": "discount", "horizon": 50.0}},
    "thompson": {"policy": "thompson"},
}


@pytest.mark.parametrize(
    "kind", [kind if kind == "plain" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_a_widened_model_is_one_of_the_full_width_with_zeros(server, tmp_path, kind):
    """Two models, one of them wide from the start: the same choices, exchanges and sums all along."""
    rng, name = np.random.default_rng(7), f"equal-{kind}"
    for model, dim in ((f"{name}-narrow", OLD), (f"{name}-wide", WIDE)):
        server.add_model(model, dim=dim, lam=0.5, alpha=0.3, beta=0.7, **KINDS[kind])
    tokens = {model: server.add_agent(model, "a") for model in (f"{name}-narrow", f"{name}-wide")}
    options = [{"model": model, "token": token, "state_dir": tmp_path / model} for model, token in tokens.items()]
    chosen: dict[str, list[list[float]]] = {model: [] for model in tokens}

    def rounds(agents, n: int, dim: int) -> None:
        for _ in range(n):
            rows, reward = rng.standard_normal((4, dim)), float(rng.standard_normal())
            for agent, model in zip(agents, tokens, strict=True):
                given = rows if agent.model.dim == rows.shape[1] else padded(rows)
                with_default = {"default": 0} if kind == "control" else {}
                decision = agent.choose(given, **with_default)
                # The random numbers of a policy and of the control group come from the incarnation, which differs.
                x = given[decision.index if kind not in ("control", "thompson") else 1]
                agent.observe(x, reward)
                chosen[model].append(x[:OLD].tolist())

    agents = [connect(server, **each) for each in options]
    rounds(agents, 20, OLD)
    server.call("POST", f"/v1/models/{name}-narrow/features", {"features": WIDE - OLD})
    for agent in agents:
        agent.close()
    for model in tokens:  # the first upload after a change of settings is told to come again
        with connect(server, model, server.add_agent(model, "b")) as other:
            other.observe(np.ones(WIDE), 1.0)
            other.flush()
    agents = [connect(server, **each) for each in options]
    rounds(agents, 15, WIDE)
    narrow, wide = tokens
    assert chosen[narrow] == chosen[wide]
    for agent in agents:
        agent.flush()
        agent.refresh()
    assert_same(agents[0].model.stats, agents[1].model.stats)
    rows = rng.standard_normal((6, WIDE))
    np.testing.assert_allclose(agents[0].scores(rows).upper, agents[1].scores(rows).upper, rtol=1e-9, atol=1e-9)
    for agent in agents:
        agent.close()
    counts = [server.call("GET", f"/v1/models/{model}") for model in tokens]
    assert counts[0]["n_obs"] == counts[1]["n_obs"] == 36
    assert counts[0]["n_uploads"] == pytest.approx(counts[1]["n_uploads"], abs=1)  # connecting again counts anew
    shares = server.call("GET", f"/v1/models/{narrow}/insight")
    assert shares["prior_share"] == pytest.approx(server.call("GET", f"/v1/models/{wide}/insight")["prior_share"])


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_agents_of_the_old_width_go_on_and_lose_nothing(tmp_path, request, store):
    store = store if store == "sqlite" else request.getfixturevalue("database")
    rng = np.random.default_rng(2)
    with running_server(tmp_path, store=store) as server:
        server.add_model("shop", dim=OLD, features=["a", "b", "c"], alpha=0.2, beta=0.5)
        tokens = {name: server.add_agent("shop", name) for name in ("kept", "memory")}
        kept = connect(server, "shop", tokens["kept"], state_dir=tmp_path / "kept")
        memory = connect(server, "shop", tokens["memory"])
        seen = play(kept, rng, 20) + play(memory, rng, 20)
        waiting, given_up = kept.choose(rng.standard_normal((4, OLD))), memory.choose(rng.standard_normal((4, OLD)))
        sealed = memory.token(given_up)
        before = server.call("GET", "/v1/models/shop")
        wider = server.call("POST", "/v1/models/shop/features", {"features": ["d", "e"]})
        assert (wider["dim"], wider["features"], wider["n_obs"]) == (WIDE, list("abcde"), before["n_obs"])
        for agent in (kept, memory):
            seen += play(agent, rng, 10)
            with suppress(errors.Refused):
                agent.flush()
            assert agent.status().last_error_code == "settings_changed"
            seen += play(agent, rng, 5)  # goes on, more than one upload
        kept.close()
        memory.close()  # has no state directory: what it holds is sent now
        with connect(server, "shop", tokens["kept"], state_dir=tmp_path / "kept") as agent:
            assert agent.features == tuple("abcde")
            agent.observe(waiting, 2.0)  # the application has it from before
            seen.append((waiting.x, 2.0))
            seen += play(agent, rng, 10, WIDE)
            agent.flush()
            assert server.call("POST", "/v1/models/shop/rewards", {"decision": sealed, "reward": 1.5})
            seen.append((given_up.x, 1.5))
            agent.refresh()
            assert_same(agent.model.stats, sums_of(seen, 1.0))
        after = server.call("POST", "/v1/models/shop/agents/memory/forget")
        assert after["n_obs"] == sum(1 for _ in seen) - 36
        for page in ("/", "/models/shop", "/models/shop/agents/kept"):
            assert server.request("GET", page).status in (200, 303)


@pytest.mark.parametrize("reply", ["lost", "arrived"])
def test_an_upload_in_flight_travels_again_as_it_was(server, tmp_path, reply):
    """The server merged it, and the answer was lost; under the new width it is the same bytes, and recognised."""
    model, rng = f"flight-{reply}", np.random.default_rng(3)
    server.add_model(model, dim=OLD, alpha=1e6, beta=0.5)
    token = server.add_agent(model, "a")
    agent = connect(server, model, token, state_dir=tmp_path / "a")
    seen = play(agent, rng, 9)
    bodies, really = [], agent._client.transport.sync

    def sync(body, *, timeout_s):
        bodies.append(body)
        answer = really(body, timeout_s=timeout_s)
        if reply == "lost":
            raise errors.NotReachable("the answer was lost")
        return answer

    agent._client.transport.sync = sync
    with suppress(errors.NotReachable):
        agent.flush(timeout_s=0.1)
    assert agent.status().in_flight == (9 if reply == "lost" else 0)
    pending = [agent.choose(rng.standard_normal((3, OLD))) for _ in range(3)]
    killed = as_if_killed(tmp_path / "a", tmp_path / "killed")
    agent._client.transport.sync = really
    server.call("POST", f"/v1/models/{model}/features", {"features": 2})
    with connect(server, model, token, state_dir=killed) as wider:
        assert wider.status().in_flight in (0, 9)
        if reply == "lost":
            again = wider._client._prepare(True)
            assert again is not None and (again.dim, again.digest) == (OLD, decode_request(bodies[0]).digest)
        for decision in pending:
            wider.observe(wider.pending.get(decision.id), 1.0)
            seen.append((decision.x, 1.0))
        seen += play(wider, rng, 4, WIDE)
        wider.flush()
        wider.refresh()
        assert_same(wider.model.stats, sums_of(seen, 1.0))
    assert server.call("GET", f"/v1/models/{model}")["n_obs"] == len(seen)
    agent.close()


class Killed(Exception):
    """As if the process ended here."""


@pytest.mark.parametrize("at", ["before the snapshot", "before the ring", "after the ring"])
def test_a_kill_while_the_state_is_widened_loses_nothing(server, tmp_path, monkeypatch, at):
    model, rng = "kill-" + at.replace(" ", "-"), np.random.default_rng(4)
    server.add_model(model, dim=OLD, alpha=1e6, beta=0.5)
    token = server.add_agent(model, "a")
    with connect(server, model, token, state_dir=tmp_path / "a") as agent:
        seen = play(agent, rng, 6)
        agent.partial_fit(np.eye(OLD), [1.0, 2.0, 3.0])
        seen += [(row, reward) for row, reward in zip(np.eye(OLD), (1.0, 2.0, 3.0), strict=True)]
        pending = [agent.choose(rng.standard_normal((3, OLD))) for _ in range(5)]
    server.call("POST", f"/v1/models/{model}/features", {"features": 2})
    name = {"before the snapshot": "_replace_pending", "before the ring": "_use_wider_ring"}.get(at, "tidy")

    def die(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(journals.Journal, name, die)
        with pytest.raises(Killed):
            connect(server, model, token, state_dir=tmp_path / "a")
    url = server.url if at == "before the snapshot" else "http://127.0.0.1:1"  # the new width is known by then
    with fb.connect(url, model=model, token=token, state_dir=tmp_path / "a", sync="inline") as agent:
        assert agent.model.dim == WIDE
        made = agent.choose(rng.standard_normal((3, WIDE)))
        numbers = [int(decision.id.rpartition("-")[2]) for decision in (*pending, made)]
        assert numbers[-1] > max(numbers[:-1])
        for decision in pending[:3]:
            agent.observe(agent.pending.get(decision.id), 2.0)
            seen.append((decision.x, 2.0))
        about = everything_about(agent)
    with connect(server, model, token, state_dir=tmp_path / "a") as agent:
        assert everything_about(agent)["waiting"] == about["waiting"]
        agent.observe(agent.pending.get(made.id), 1.0)
        seen.append((made.x, 1.0))
        for decision in pending[3:]:
            agent.observe(agent.pending.get(decision.id), 3.0)
            seen.append((decision.x, 3.0))
        agent.flush()
        agent.refresh()
        assert_same(agent.model.stats, sums_of(seen, 1.0))


def test_uploads_that_a_restored_server_lacks_are_sent_again_as_they_were(tmp_path):
    from fedbandit.sdk.agent_snapshot import kept_of, upload_of

    narrow = fb.FedLinUCB(dim=OLD, alpha=0.0, beta=0.5).agent("a", incarnation="i")
    wide = fb.FedLinUCB(dim=WIDE, alpha=0.0, beta=0.5).agent("a", incarnation="i")
    upload = narrow.observe(np.arange(3.0), 2.0)
    found = upload_of(kept_of(upload, narrow), wide)
    assert (found.width, found.stats.dim) == (OLD, WIDE)
    np.testing.assert_array_equal(found.stats.Sigma[:OLD, :OLD], upload.stats.Sigma)
    assert kept_of(found, wide).packed == kept_of(upload, narrow).packed


def test_a_model_may_be_widened_more_than_once(server, tmp_path):
    rng = np.random.default_rng(5)
    server.add_model("twice", dim=OLD, alpha=0.2, beta=0.5)
    tokens = [server.add_agent("twice", name) for name in "ab"]
    agents = [connect(server, "twice", token, state_dir=tmp_path / token[-6:]) for token in tokens]
    seen = play(agents[0], rng, 5) + play(agents[1], rng, 5)
    agents[1].close()
    for _ in range(2):
        server.call("POST", "/v1/models/twice/features", {"features": 1})
        server.call("PATCH", "/v1/models/twice", {"beta": 0.4})
    seen += play(agents[0], rng, 5)
    agents[0].close()
    for token in tokens:
        with connect(server, "twice", token, state_dir=tmp_path / token[-6:]) as agent:
            seen += play(agent, rng, 5, WIDE)
            agent.flush()
            agent.refresh()
    assert_same(agent.model.stats, sums_of(seen, 1.0))
    assert agent._durable.settings.radius.beta == 0.4


def test_what_cannot_be_added_has_a_name(server, tmp_path):
    server.add_model("named", dim=2, features=["a", "b"])
    server.add_model("unnamed", dim=2)
    server.add_model("blocks", dim=4, arms=["x", "y"])
    for model, added in (
        ("named", ["b"]),
        ("named", []),
        ("named", ["c\n"]),
        ("named", 2),
        ("unnamed", ["c"]),
        ("unnamed", 0),
        ("unnamed", -1),
        ("unnamed", 4095),
        ("blocks", ["z"]),
        ("blocks", 1),
    ):
        answer = server.request("POST", f"/v1/models/{model}/features", json={"features": added})
        assert answer.status in (400, 422), (model, added)
        assert answer.json()["message"], (model, added)
    assert server.request("POST", "/v1/models/nobody/features", json={"features": 1}).status == 404
    assert server.call("GET", "/v1/models/named")["dim"] == 2
    token = server.add_agent("named", "a")
    with connect(server, "named", token) as agent, pytest.raises(errors.Refused, match="features"):
        agent._client.transport.sync(_upload_of(1), timeout_s=5.0)  # a width that the model never had


def _upload_of(dim: int) -> bytes:
    from fedbandit.wire.codec import encode, request_of

    agent = fb.FedLinUCB(dim=dim, alpha=0.0, beta=0.5).agent("a")
    return encode(request_of(agent.observe(np.ones(dim), 1.0)))
