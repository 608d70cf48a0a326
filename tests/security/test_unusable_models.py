"""A model on which no decision can be made is refused, and the previous model stays in use."""

import numpy as np
import pytest

import fedbandit as fb
from fedbandit.algorithms.messages import Upload, packed_bytes
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import NotReachable
from fedbandit.sdk.transport import TransportReply
from fedbandit.wire.codec import SyncReply
from tests.live import running_server
from tests.sdk.helpers import make_hub, make_live

X = np.eye(3)


def giant(reward=1e75):
    """A plausible upload that makes scores overflow."""
    Sigma, b = np.zeros((3, 3)), np.zeros(3)
    Sigma[0, 0], b[0] = 1.0, reward
    return Upload("liar", "life", 1, SufficientStats(Sigma, b, 1, reward, reward * reward), 0.7)


@pytest.mark.parametrize("sync", ["inline", "background"])
@pytest.mark.parametrize("reward", [1e75, -1e75, 1e65])
def test_one_giant_reward_stops_nobody(tmp_path, sync, reward):
    hub = make_hub()
    with make_live(hub, sync=sync, state_dir=tmp_path) as agent:
        for x in X:
            agent.observe(x, 1.0)
        agent.flush(5.0)
        before, version = agent.model.theta_hat, agent.model_version
        hub.server.receive(giant(reward))
        assert agent.refresh() is False
        for _ in range(5):
            agent.observe(agent.choose(X), 1.0)
            agent.choose(1e6 * X)
            agent.choose(X, k=3)
        agent.flush(5.0)
        np.testing.assert_array_equal(agent.model.theta_hat, before)
        status = agent.status()
        assert "no decision can rest on" in status.refused_model and "forget" in status.refused_model
        assert status.model_version == version and status.in_flight == 0
        assert status.last_error is None and status.reachable
        assert hub.server.stats.n_obs == 3 + 1 + 5  # the agent's observations still count


def test_an_agent_that_starts_on_such_a_model_begins_at_the_prior(tmp_path):
    hub = make_hub()
    hub.server.receive(giant())
    with make_live(hub, state_dir=tmp_path) as agent:
        agent.observe(agent.choose(X), 1.0)
        agent.flush(5.0)
        assert agent.status().refused_model is not None and agent.model_version == 0
        assert hub.server.stats.n_obs == 2
    with make_live(hub, state_dir=tmp_path) as agent:
        agent.choose(X)
        assert agent.status().refused_model is not None


def test_it_goes_on_with_the_fleet_as_soon_as_the_model_can_be_used_again():
    hub = make_hub()
    with make_live(hub) as agent:
        hub.server.receive(giant())
        agent.refresh()
        assert agent.status().refused_model is not None
        hub.server.receive(Upload("liar", "life", 2, giant(-1e75).stats, 0.7))  # the sums cancel
        assert agent.refresh() is True
        assert agent.status().refused_model is None and agent.model_version == 2


def test_a_state_directory_with_such_a_model_decides_again(tmp_path):
    """Earlier versions adopted and saved it."""
    hub = make_hub()
    agent = make_live(hub, state_dir=tmp_path, sync="inline")
    agent.observe(agent.choose(X), 1.0)
    agent._durable.agent.model = fb.core.ridge.RidgeModel(giant().stats + SufficientStats.prior(dim=3, lam=1.0))
    agent._durable.agent.model_version = 7
    agent.close()
    with make_live(hub, state_dir=tmp_path) as agent:
        agent.choose(X)
        assert agent.status().rounds == 1


def test_on_a_real_server(tmp_path):
    with running_server(tmp_path) as server:
        server.add_model("news")
        tokens = {name: server.add_agent("news", name) for name in ("liar", "a", "b")}
        with fb.connect(server.url, model="news", token=tokens["a"]) as first:
            answer = HttpUpload(server, tokens["liar"]).send(giant())
            if answer.status != 200:
                assert answer.status == 422  # a server with bounds rejects it
                return
            first.refresh()
            first.choose(X)
            with fb.connect(server.url, model="news", token=tokens["b"]) as second:
                second.observe(second.choose(X), 1.0)
                second.flush(5.0)


class HttpUpload:
    def __init__(self, server, token):
        self.server, self.token = server, token

    def send(self, upload):
        from fedbandit.wire.codec import CONTENT_TYPE, encode, request_of

        return self.server.request(
            "POST",
            "/v1/models/news/sync",
            token=self.token,
            body=encode(request_of(upload)),
            headers={"Content-Type": CONTENT_TYPE},
        )


def answer_with(Sigma, b=(0.0, 0.0, 0.0), version=5):
    stats = SufficientStats(np.asarray(Sigma), np.asarray(b), 4, 1.0, 2.0)
    reply = SyncReply(agent="a", version=version, acknowledged=0, dim=3, stats=packed_bytes(stats), settings="1")
    return TransportReply(reply, '"x"', 100)


INDEFINITE = [[1.0, 1e6, 0.0], [1e6, 1.0, 0.0], [0.0, 0.0, 1.0]]  # an eigenvalue of −999 999
SINGULAR = [[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 1.0]]
BELOW_RIDGE = [[2.0, 1.9, 0.0], [1.9, 2.0, 0.0], [0.0, 0.0, 1.0]]  # positive, and less than λ = 1


@pytest.mark.parametrize("Sigma", [INDEFINITE, SINGULAR, BELOW_RIDGE], ids=["indefinite", "singular", "below λ"])
def test_a_matrix_that_no_server_can_have_is_refused(Sigma):
    hub = make_hub()
    way = hub.transport("a")
    with make_live(way) as agent:
        way.state = lambda *_, **__: answer_with(Sigma)
        with pytest.raises(NotReachable, match="something else than a model"):
            agent.refresh()
        assert agent.model_version == 0
        agent.choose(X)


def test_honest_sums_are_never_refused():
    """Valid models: collinear and badly scaled features, whose ridge is lost by rounding."""
    rng = np.random.default_rng(0)
    for scale in (1e-6, 1.0, 1e4, 1e7):
        hub = make_hub()
        with make_live(hub, sync="inline") as agent:
            rows = rng.standard_normal((50, 1)) * np.array([[scale, scale, 2.0 * scale]])
            for x in rows:
                agent.observe(x, 1.0)
            assert agent.status().refused_model is None and agent.status().last_error is None
            assert agent.model_version == hub.server.version > 10
