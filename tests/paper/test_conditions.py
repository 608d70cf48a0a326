"""Each condition of `exogenous` and `adaptive`, with a fleet that breaks it and the same fleet that does not.

One dimension, the single action x = 1, θ* = 0, λ = 1, α = 1 and standard normal noise: an agent at the prior uploads
its second observation together with the first. The server's model then errs by ‖θ* − θ̂‖_Σ = |b|/√Σ.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pytest

import fedbandit as fb
from fedbandit import theory
from fedbandit.algorithms.messages import packed_bytes, stats_from_bytes
from fedbandit.core.radius import Evidence, Fixed
from fedbandit.sdk import LocalServer, open_agent
from fedbandit.service.exchange.ledger import IncomingUpload
from fedbandit.service.stores.memory import MemoryStore
from fedbandit.wire.settings import ModelSettings

SEEDS = range(3)
DELTA = 0.01
NO_BUFFERS = 1e-8  # an α at which every observation is uploaded, and `adaptive` is nearly OFUL's radius
EXOGENOUS = fb.radius.exogenous(noise_scale=1.0, theta_bound=0.0, delta=DELTA)


@lru_cache
def rule(alpha=1.0):
    return fb.FedLinUCB(dim=1, lam=1.0, alpha=alpha, beta=0.5)


def adaptive(n_agents):
    return fb.radius.adaptive(n_agents=n_agents, noise_scale=1.0, theta_bound=0.0, delta=DELTA)


def error_in_radii(radius, stats, *, n_uploads, alpha=1.0):
    """‖θ* − θ̂‖_Σ / β of a model with these sums."""
    rho = math.log(stats.Sigma[0, 0])
    return (
        abs(float(stats.b[0]))
        / math.sqrt(stats.Sigma[0, 0])
        / radius(Evidence(1, 1.0, alpha, rho, stats.n_obs, n_uploads))
    )


def of_server(radius, server):
    return error_in_radii(radius, server.stats, n_uploads=server.version, alpha=server.rule.alpha)


def worst(play, *radii, seeds=SEEDS, **how):
    """The smallest and the largest error over runs, for each radius."""
    runs = [[of_server(radius, play(np.random.default_rng(seed), **how)) for radius in radii] for seed in seeds]
    return [(min(column), max(column)) for column in zip(*runs, strict=True)]


# -- when a reward is booked depends on what it is: neither radius holds


def one_agent(rng, *, arrival, n=1500):
    """One agent that decides n times. A good reward is booked at once; `arrival` says what becomes of the others."""
    server, agent = rule().server(), rule().agent("a")

    def book(noise):
        upload = agent.observe([1.0], noise)
        while upload is not None:
            upload = agent.adopt(server.receive(upload))

    silent = deque()
    worst_error = 0.0
    for t, noise in enumerate(rng.standard_normal(n).tolist()):
        if arrival == "all at once" or (arrival != "after a window" and noise > 0):
            book(noise)
        else:
            silent.append((t, noise))
        window = {"never": n, "settled later": 400, "after a window": 400}.get(arrival, 0)
        while silent and silent[0][0] <= t - window:
            book(silent.popleft()[1])
        worst_error = max(worst_error, of_server(adaptive(1), server))
    return worst_error, of_server(adaptive(1), server)


def test_good_news_that_travels_faster_breaks_adaptive_too():
    # Docs: how-to/delayed-rewards.md. With M = 1 `adaptive` is OFUL's radius at δ/2: nothing covers a selection.
    never = [one_agent(np.random.default_rng(seed), arrival="never") for seed in SEEDS]
    assert all(last > 4.0 for _, last in never)
    at_once = [one_agent(np.random.default_rng(seed), arrival="all at once") for seed in SEEDS]
    assert max(error for error, _ in at_once) <= 1.0


def test_settling_silence_later_than_successes_errs_until_most_windows_are_over_and_one_window_for_all_does_not():
    later = [one_agent(np.random.default_rng(seed), arrival="settled later") for seed in SEEDS]
    assert all(error > 2.0 for error, _ in later)  # while the first window lasts only good rewards are booked
    together = [one_agent(np.random.default_rng(seed), arrival="after a window") for seed in SEEDS]
    assert max(error for error, _ in together) <= 1.0


# -- exogenous: noise is independent of the outside world


def weather(rng, *, tells, n_agents=600):
    """The weather decides who comes back for a second round; where it `tells`, it is also the sign of the noise.

    The weather is a function of the outside world, and reacts to no reward.
    """
    server = rule().server()
    for i in range(n_agents):
        sunny = rng.random() < 0.5
        first, second = rng.standard_normal(2)
        if tells:
            first = abs(first) if sunny else -abs(first)
        agent = rule().agent(str(i))
        agent.observe([1.0], first)
        if sunny:
            server.receive(agent.observe([1.0], second))
    return server


def test_noise_that_the_outside_world_knows_breaks_exogenous_and_not_adaptive():
    (least, _), (_, most) = worst(weather, EXOGENOUS, adaptive(600), tells=True)
    assert least > 2.0 and most <= 1.0
    assert worst(weather, EXOGENOUS, tells=False)[0][1] <= 1.0


# -- exogenous: when a buffer is uploaded does not react to the rewards in it


def uploads_by_hand(rng, *, reacts, n_agents=400):
    """`upload_now` after one observation: after a good one, or after every second."""
    server = rule().server()
    for i in range(n_agents):
        noise = float(rng.standard_normal())
        agent = rule().agent(str(i))
        agent.observe([1.0], noise)
        if noise > 0 if reacts else i % 2:
            server.receive(agent.upload_now())
    return server


def live_fleet(rng, *, reacts, how, n_agents=240):
    """Live agents that flush, or close, after a good reward, or every second of them; the others stay open."""
    hub = LocalServer(rule())
    still_open = []
    for i in range(n_agents):
        noise = float(rng.standard_normal())
        agent = open_agent(hub.transport(str(i)), model="local", sync="inline")
        agent.observe([1.0], noise)
        if noise > 0 if reacts else i % 2:
            getattr(agent, how)()
        still_open.append(agent)
    seen = rule().server()  # as it is now: closing the rest uploads them, and mends the mean too late
    seen.stats, seen.version = hub.server.stats, hub.server.version
    for agent in still_open:
        agent.close()
    return seen


@pytest.mark.parametrize("how", ["upload_now", "flush", "close"])
def test_an_upload_that_waits_for_a_good_reward_breaks_exogenous_and_not_adaptive(how):
    play, options = (uploads_by_hand, {}) if how == "upload_now" else (live_fleet, {"how": how})
    seeds = range(2) if options else SEEDS
    (least, _), (_, most) = worst(play, EXOGENOUS, adaptive(400), seeds=seeds, reacts=True, **options)
    assert least > 1.5 and most <= 1.0
    assert worst(play, EXOGENOUS, seeds=seeds, reacts=False, **options)[0][1] <= 1.0


# -- restarts that lose buffers


def restarts(rng, *, reacts, n=800):
    """One device without a state directory. It restarts, and loses its one buffered observation, after a bad reward."""
    server, n_lost = rule().server(), 0
    for i in range(n):
        first, second = rng.standard_normal(2).tolist()
        agent = rule().agent("device")  # a new incarnation at the prior
        agent.observe([1.0], first)
        if first < 0 if reacts else i % 2:
            n_lost += 1
            continue
        server.receive(agent.observe([1.0], second))
    server.n_lost = n_lost
    return server


def test_restarts_that_lose_bad_rewards_break_exogenous_and_adaptive_unless_m_counts_the_lost_buffers():
    (least, _), (least_adaptive, _) = worst(restarts, EXOGENOUS, adaptive(1), reacts=True)
    assert least > 2.0 and least_adaptive > 2.0
    for seed in SEEDS:
        server = restarts(np.random.default_rng(seed), reacts=True)
        assert of_server(adaptive(1 + server.n_lost), server) <= 1.0
    assert worst(restarts, EXOGENOUS, adaptive(1), reacts=False)[0][1] <= 1.0


# -- forget


@dataclass
class Service:
    """A real store with the model of these examples; agents are enrolled as they upload."""

    store: MemoryStore = field(default_factory=MemoryStore)

    async def create(self):
        settings = ModelSettings("m", 1, 1.0, 1.0, Fixed(0.5))
        await self.store.create(settings, uid="u", now=0.0)
        return self

    async def receive(self, upload):
        token = upload.agent_id.encode().ljust(32, b".")
        await self.store.enroll("m", upload.agent_id, token, now=0.0)
        numbers = np.frombuffer(packed_bytes(upload.stats), dtype="<f8")
        incoming = IncomingUpload(
            upload.agent_id, upload.incarnation, upload.sequence, upload.digest(), numbers, upload.growth, token
        )
        await self.store.merge("m", [incoming], now=0.0)

    async def stats(self):
        return stats_from_bytes((await self.store.state("m")).packed, 1)


async def forgetting(rng, *, reacts, n_agents=400):
    """Agents upload one observation each; those whose reward was bad, or every second one, are forgotten afterwards."""
    service = await Service().create()
    leaving = []
    for i in range(n_agents):
        noise = float(rng.standard_normal())
        await service.receive(rule(NO_BUFFERS).agent(str(i)).observe([1.0], noise))
        if noise < 0 if reacts else i % 2:
            leaving.append(str(i))
    for name in leaving:
        await service.store.forget("m", name, now=0.0)
    return await service.stats()


def test_forgetting_agents_for_their_rewards_breaks_exogenous_and_adaptive_and_forgetting_others_breaks_neither():
    for seed in SEEDS:
        for reacts in (True, False):
            stats = asyncio.run(forgetting(np.random.default_rng(seed), reacts=reacts))
            radii = (EXOGENOUS, adaptive(400))
            errors = [error_in_radii(radius, stats, n_uploads=400, alpha=NO_BUFFERS) for radius in radii]
            assert min(errors) > 2.0 if reacts else max(errors) <= 1.0


def test_after_a_forget_a_model_may_hold_more_than_the_server_until_the_next_exchange():
    # Point 2, Σ_loc ⪯ αΣ_m ⪯ αΣ_ser, rests on Σ_m ⪯ Σ_ser.
    async def story():
        service = await Service().create()
        first, second = rule().agent("first"), rule().agent("second")
        first.partial_fit(np.ones((99, 1)), np.zeros(99))
        await service.receive(first.in_flight)
        second.adopt(fb.Download("second", 1, await service.stats()))
        await service.store.forget("m", "first", now=0.0)
        after = await service.stats()
        assert (second.model.stats.Sigma[0, 0], after.Sigma[0, 0]) == (100.0, 1.0)
        for _ in range(100):
            assert second.observe([1.0], 0.0) is None, "the trigger compares with a model that is no more"
        assert second.local.Sigma[0, 0] == 100.0 > 1.0 * after.Sigma[0, 0]  # α = 1
        await service.receive(second.observe([1.0], 0.0))
        second.adopt(fb.Download("second", 3, await service.stats(), acknowledged=1))
        for _ in range(102):
            second.observe([1.0], 0.0)
        assert second.local.Sigma[0, 0] <= (await service.stats()).Sigma[0, 0]

    asyncio.run(story())


# -- adaptive: how many buffers the model lacks


def crossing(*, while_travelling):
    """Two agents at α = 1; the second holds 1 observation, the first adopts with or without data of its own."""
    one = fb.FedLinUCB(dim=1, lam=1.0, alpha=1.0, beta=adaptive(2))
    server, first, second = one.server(), one.agent("first"), one.agent("second")
    first.observe([1.0], 0.0)
    upload = first.observe([1.0], 0.0)
    if while_travelling:
        first.partial_fit(np.ones((3, 1)), np.zeros(3))
    download = server.receive(upload)  # Σ_ser = 3
    second.adopt(server.receive(fb.Pull("second", second.incarnation)))
    second.partial_fit(np.ones((3, 1)), np.zeros(3))
    first.adopt(download)
    buffers = [agent.local.Sigma[0, 0] for agent in (first, second)]
    return first, server, buffers


def test_mu_is_m_minus_one_only_if_the_adopting_agent_holds_nothing():
    first, server, buffers = crossing(while_travelling=False)
    assert first.in_flight is None and buffers == [0.0, 3.0]
    ratio = 1.0 + sum(buffers) / server.stats.Sigma[0, 0]  # Σ_all = ratio · Σ_ser
    assert ratio <= 1.0 + theory.buffers_missing(2) * 1.0
    without = first.beta
    first, server, buffers = crossing(while_travelling=True)
    assert first.in_flight is None and buffers == [3.0, 3.0]
    ratio = 1.0 + sum(buffers) / server.stats.Sigma[0, 0]
    assert 1.0 + theory.buffers_missing(2) * 1.0 < ratio <= 1.0 + theory.buffers_missing(2, own_buffer=True) * 1.0
    rho = math.log(server.stats.Sigma[0, 0])
    numbers = {"rho": rho, "dim": 1, "n_agents": 2, "lam": 1.0, "alpha": 1.0, "noise_scale": 1.0, "theta_bound": 0.0}
    expected = theory.adaptive_radius(**numbers, delta=DELTA, n_uploads=1, own_buffer=True)
    assert first.beta == pytest.approx(expected, rel=1e-12) and expected > without
    assert fb.load(first.to_bytes()).beta == first.beta


def test_an_upload_in_flight_is_missing_from_the_model_too():
    one = fb.FedLinUCB(dim=1, lam=1.0, alpha=1.0, beta=adaptive(2))
    server, agent = one.server(), one.agent("a")
    plain = one.agent("b")
    for x in (1.0, 1.0):
        upload = agent.observe([x], 0.0)
    assert upload is not None
    download = server.receive(fb.Pull("a", agent.incarnation))  # answered before the upload arrives
    agent.adopt(download)
    plain.adopt(fb.Download("b", download.version, download.stats))
    assert agent.beta > plain.beta


def test_a_single_agent_s_server_holds_the_first_data_of_all_so_that_mu_is_zero_whatever_is_buffered():
    assert theory.buffers_missing(1, own_buffer=True) == 0
    one = fb.FedLinUCB(dim=1, lam=1.0, alpha=1.0, beta=adaptive(1))
    server, agent = one.server(), one.agent("a")
    for x in (1.0, 1.0):
        upload = agent.observe([x], 0.0)
    agent.partial_fit(np.ones((3, 1)), np.zeros(3))
    agent.adopt(server.receive(upload))
    assert agent.local.n_obs == 3
    assert agent.beta == pytest.approx(
        theory.adaptive_radius(
            rho=math.log(3.0),
            dim=1,
            n_agents=1,
            lam=1.0,
            alpha=1.0,
            noise_scale=1.0,
            theta_bound=0.0,
            delta=DELTA,
            n_uploads=1,
        )
    )
