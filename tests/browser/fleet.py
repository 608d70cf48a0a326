"""Agents that talk to a real server in this process, so that a page has something to show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import fedbandit as fb
from fedbandit.wire import codec
from tests.live import LiveServer

FEATURES = ("intercept", "sport", "politics", "culture", "science", "local", "evening", "weekend")
THETA = (0.35, 0.4, -0.25, 0.1, 0.3, -0.1, 0.15, -0.35)


class Shops:
    """Some agents of one model; shops choose articles, visitors click or do not."""

    def __init__(
        self,
        server: LiveServer,
        model: str = "news",
        names: Sequence[str] = ("shop-1", "shop-2", "shop-3"),
        *,
        alpha: float = 1.0,
        seed: int = 0,
        unsent: int = 0,
    ) -> None:
        self.server, self.model, self.unsent = server, model, unsent
        self.tokens = {name: server.add_agent(model, name) for name in names}
        rule = fb.FedLinUCB(dim=len(FEATURES), alpha=alpha, beta=0.5, lam=1.0)
        self.agents = [rule.agent(name) for name in names]
        self.rng = np.random.default_rng(seed)
        self.weights = self.rng.dirichlet(np.full(len(names), 2.0))

    def play(self, n_rounds: int) -> int:
        """Some rounds; returns the number of exchanges."""
        n_exchanges = 0
        for _ in range(n_rounds):
            agent = self.agents[self.rng.choice(len(self.agents), p=self.weights)]
            topics = self.rng.integers(0, 2, size=(10, len(FEATURES))).astype(float)
            topics[:, 0] = 1.0
            topics /= np.linalg.norm(topics, axis=1, keepdims=True)
            decision = agent.choose(topics)
            reward = float(decision.x @ THETA + 0.2 * self.rng.standard_normal())
            upload = agent.observe(decision, reward)
            if upload is not None:
                self._exchange(agent, upload)
                n_exchanges += 1
        return n_exchanges

    def _exchange(self, agent, upload) -> None:
        unsent = int(self.rng.integers(0, self.unsent + 1))
        body = codec.encode(codec.request_of(upload, model_version=agent.model_version, unsent=unsent))
        path, token = f"/v1/models/{self.model}/sync", self.tokens[agent.agent_id]
        answer = self.server.request("POST", path, token=token, body=body)
        assert answer.status == 200, answer.data
        agent.adopt(codec.download_of(codec.decode_reply(answer.data)))


def make_news(server: LiveServer, name: str = "news", **settings) -> None:
    """The model that the shops learn."""
    server.add_model(name, **{"dim": len(FEATURES), "features": list(FEATURES), "alpha": 1.0, **settings})


def make_offers(server: LiveServer, name: str = "offers", *, n_arms: int = 12, n_rounds: int = 200) -> None:
    """A model with one block per arm, and one agent that has learnt it for a while."""
    server.add_model(name, dim=4 * n_arms, arms=[f"offer-{i:03}" for i in range(n_arms)], alpha=4.0)
    token = server.add_agent(name, "till-1")
    rng = np.random.default_rng(0)
    theta = 0.3 * rng.standard_normal((n_arms, 4))
    with fb.connect(server.url, model=name, token=token, agent="till-1") as agent:
        for _ in range(n_rounds):
            context = rng.standard_normal(3) / 2
            decision = agent.choose_context(context)
            agent.observe(decision, float(theta[decision.block] @ [*context, 1.0]))
        agent.flush(30.0)
