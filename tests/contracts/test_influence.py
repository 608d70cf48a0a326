"""What one agent can do to a model, on every store: quarantine, limits, and how much is kept of its incarnations."""

from pathlib import Path

import numpy as np
import pytest

from fedbandit.algorithms.messages import digest_of, packed_bytes
from fedbandit.core.ridge import RidgeModel
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import ImplausibleUpload, RateExceeded, ShareExceeded, StaleIncarnation, UnknownAgent
from fedbandit.service.exchange import ledger
from fedbandit.service.exchange.influence_limits import BURST_S
from fedbandit.service.exchange.ledger import Acknowledged, IncomingUpload
from fedbandit.service.insight import ModelInsight
from fedbandit.service.stores import memory, postgres
from fedbandit.service.stores.sqlite import transactions
from fedbandit.wire.settings import DEFAULT_BOUND, DEFAULT_MAX_RATE
from tests.contracts.test_stores import NOW, anyio_backend, fleet, merged, outcome, store, token_of, upload
from tests.service.uploads import folded, settings

__all__ = ["anyio_backend", "store"]
pytestmark = pytest.mark.anyio


def of_rows(agent: str, X, y, *, sequence: int = 1, incarnation: str = "life-1") -> IncomingUpload:
    stats = packed_bytes(SufficientStats.of(np.atleast_2d(np.asarray(X, dtype=float)), np.asarray(y, dtype=float)))
    numbers = np.frombuffer(stats, dtype="<f8")
    return IncomingUpload(agent, incarnation, sequence, digest_of(stats), numbers, 0.5, token_of(agent))


def counted(agent: str, n_obs: float, *, sequence: int = 1) -> IncomingUpload:
    """Many observations of nothing, as a liar sends them."""
    numbers = np.zeros(3 * 4 // 2 + 3 + 3)
    numbers[-3] = n_obs
    return IncomingUpload(agent, "life-1", sequence, digest_of(numbers.tobytes()), numbers, 0.0, token_of(agent))


# -- quarantine


async def test_quarantine_takes_a_contribution_out_and_release_puts_it_back(store):
    await fleet(store, "a", "b")
    await merged(store, upload("a"), upload("b"), upload("b", 2))
    after = await store.quarantine("news", "b", on=True, now=NOW)
    state = await store.state("news")
    assert state.packed == folded(upload("a"))
    assert after == state.model
    assert (after.n_obs, after.version, after.generation) == (4, 4, 1)
    agent = await store.agent("news", "b")
    assert (agent.quarantined, agent.n_obs, agent.sequence) == (True, 8, 2)
    after = await store.quarantine("news", "b", on=False, now=NOW)
    assert (await store.state("news")).packed == folded(upload("a"), upload("b"), upload("b", 2))
    assert (after.version, after.generation, after.n_obs) == (5, 2, 12)
    assert not (await store.agent("news", "b")).quarantined


async def test_uploads_of_an_agent_in_quarantine_are_counted_once_and_kept_apart(store):
    await fleet(store, "a", "b")
    await merged(store, upload("a"), upload("b"))
    await store.quarantine("news", "b", on=True, now=NOW)
    assert await outcome(store, upload("b", 2)) == Acknowledged(2, True, excluded=True)
    assert await outcome(store, upload("b", 2)) == Acknowledged(2, False, excluded=True)
    state = await store.state("news")
    assert state.packed == folded(upload("a"))
    assert (state.model.n_obs, (await store.agent("news", "b")).n_obs) == (4, 8)
    # The books balance: what the model has and what is kept apart is all that was merged.
    kept = np.frombuffer(await store.contribution("news", "b"), dtype="<f8")
    everything = np.frombuffer(folded(upload("a"), upload("b"), upload("b", 2)), dtype="<f8")
    assert np.array_equal(np.frombuffer(state.packed, dtype="<f8") + kept, everything)
    await store.quarantine("news", "b", on=False, now=NOW)
    assert (await store.state("news")).packed == everything.tobytes()


async def test_quarantine_twice_changes_nothing(store):
    await fleet(store, "a", "b")
    await merged(store, upload("a"), upload("b"))
    first = await store.quarantine("news", "b", on=True, now=NOW)
    assert await store.quarantine("news", "b", on=True, now=NOW) == first
    assert await store.quarantine("news", "a", on=False, now=NOW) == first
    with pytest.raises(UnknownAgent):
        await store.quarantine("news", "nobody", on=True, now=NOW)


async def test_an_agent_in_quarantine_can_be_forgotten_and_stays_in_quarantine(store):
    await fleet(store, "a", "b")
    await merged(store, upload("a"), upload("b"))
    await store.quarantine("news", "b", on=True, now=NOW)
    after = await store.forget("news", "b", now=NOW)
    assert (after.generation, (await store.agent("news", "b")).quarantined) == (2, True)
    await merged(store, upload("b", incarnation="life-2"))
    assert (await store.state("news")).packed == folded(upload("a"))
    await store.forget("news", "a", now=NOW)  # others' sums are added again, without those in quarantine
    assert (await store.state("news")).packed == folded()


async def test_the_fleet_counts_agents_in_quarantine(store):
    await fleet(store, "a", "b", "c")
    await store.quarantine("news", "b", on=True, now=NOW)
    assert (await store.fleet("news", since=0.0)).n_quarantined == 1
    await store.delete("news")
    await fleet(store, "a", "b")
    assert (await store.fleet("news", since=0.0)).n_quarantined == 0


# -- tags: has anything been taken out?


async def test_a_weak_tag_is_good_until_data_are_taken_out(store):
    await fleet(store, "a", "b")
    first = f"W/{(await merged(store, upload('a'))).model.tag}"
    model = (await merged(store, upload("b"))).model
    assert model.has_all_of(first)
    assert not model.has_all_of(model.tag)  # a strong tag is compared as it is
    assert not (await store.quarantine("news", "b", on=True, now=NOW)).has_all_of(first)
    assert not model.has_all_of("W/*") and not model.has_all_of('W/"99-00000000-0123456789abcdef-0"')


async def test_a_weak_tag_of_a_later_version_is_not_good(store):
    """A server that was restored from an older backup lacks what the agent has."""
    await fleet(store, "a")
    before = (await merged(store, upload("a"))).model
    after = (await merged(store, upload("a", 2))).model
    assert not before.has_all_of(f"W/{after.tag}")


# -- limits


async def test_an_agent_cannot_count_more_than_it_can_have_observed(store):
    await fleet(store, "a")
    most = DEFAULT_MAX_RATE * BURST_S
    refused = await outcome(store, counted("a", most + 1))
    assert isinstance(refused, RateExceeded)
    assert 0 < refused.retry_after_s < 1
    assert await outcome(store, counted("a", most)) == Acknowledged(1, True)
    second = counted("a", 10 * DEFAULT_MAX_RATE, sequence=2)
    assert isinstance(await outcome(store, second), RateExceeded)
    later = await store.merge("news", [second], now=NOW + 11.0)
    assert later.outcomes == [Acknowledged(2, True)]


async def test_the_rate_is_a_setting_of_the_model(store):
    await store.create(settings(max_rate=0.001), uid="slow", now=NOW)
    await store.enroll("news", "a", token_of("a"), now=NOW)
    assert isinstance(await outcome(store, upload("a")), RateExceeded)  # 4 observations, and 3.6 in an hour
    assert (await store.load("news")).to_dict()["max_rate"] == 0.001


async def test_a_model_that_limits_shares_refuses_whoever_would_have_more(store):
    await store.create(settings(max_share=0.5), uid="shared", now=NOW)
    for agent in ("a", "b"):
        await store.enroll("news", agent, token_of(agent), now=NOW)
    X, y = 3.0 * np.eye(3), np.ones(3)
    assert isinstance(await outcome(store, of_rows("a", X, y)), ShareExceeded)  # 90 % of Σ = I + 9 I
    assert (await store.state("news")).packed == folded()
    assert await outcome(store, of_rows("a", X[:1], y[:1])) == Acknowledged(1, True)
    assert await outcome(store, of_rows("b", X[1:2], y[1:2])) == Acknowledged(1, True)
    for agent in ("a", "b"):
        share = ModelInsight(await store.state("news")).share(await store.contribution("news", agent))
        assert share <= 0.5


async def test_without_a_limit_one_agent_may_have_all(store):
    await fleet(store, "a")
    assert await outcome(store, of_rows("a", 3.0 * np.eye(3), np.ones(3))) == Acknowledged(1, True)


async def test_what_is_merged_leaves_a_model_that_can_decide(store):
    """Within the widest bounds and at a tiny λ one upload would make every score infinite: it is refused by name."""
    await store.create(settings(lam=1e-60, action_bound=1e30, reward_bound=1e30), uid="tiny", now=NOW)
    await store.enroll("news", "a", token_of("a"), now=NOW)
    refused = await outcome(store, of_rows("a", [1e-30, 0.0, 0.0], [1e30]))
    assert isinstance(refused, ImplausibleUpload) and "scores" in str(refused)
    assert await outcome(store, of_rows("a", [1e-30, 0.0, 0.0], [1e3])) == Acknowledged(1, True)


@pytest.mark.parametrize("seed", range(5))
def test_the_norm_of_an_estimate_is_below_its_bound(seed):
    """‖θ̂‖ ≤ √(Σr²)/(2√λ), attained by one action of length √λ."""
    rng = np.random.default_rng(seed)
    lam = 10.0 ** rng.uniform(-6, 3)
    X, y = rng.normal(size=(7, 3)) * 10.0 ** rng.uniform(-4, 4, size=(7, 1)), rng.normal(size=7)
    stats = SufficientStats.prior(dim=3, lam=lam) + SufficientStats.of(X, y)
    bound = np.sqrt(stats.reward_sq_sum / lam) / 2.0
    assert np.linalg.norm(RidgeModel(stats).theta_hat) <= bound * (1 + 1e-9)
    x = np.sqrt(lam) * np.eye(3)[:1]
    sharp = SufficientStats.prior(dim=3, lam=lam) + SufficientStats.of(x, np.ones(1))
    assert np.linalg.norm(RidgeModel(sharp).theta_hat) == pytest.approx(0.5 / np.sqrt(lam))


def test_models_have_bounds_whether_somebody_set_them_or_not():
    assert settings().bounds.action_bound == settings().bounds.reward_bound == DEFAULT_BOUND
    assert settings(reward_bound=2.0).bounds.reward_bound == 2.0
    assert settings().to_dict()["reward_bound"] is None  # what was declared: the dashboard tests only that


# -- incarnations


async def test_only_the_newest_incarnations_of_an_agent_are_remembered(store, monkeypatch):
    for module in (ledger, memory, postgres, transactions):
        monkeypatch.setattr(module, "MAX_RETIRED", 3)
    await fleet(store, "a")
    for number in range(8):
        batch = [upload(incarnation=f"life-{number}")]
        assert (await store.merge("news", batch, now=NOW + number)).outcomes == [Acknowledged(1, True)]
    for number in (4, 5, 6):  # three are remembered besides the current one
        assert isinstance(await outcome(store, upload(incarnation=f"life-{number}", sequence=2)), StaleIncarnation)
    assert await n_retired(store) == 3
    await store.forget("news", "a", now=NOW + 9)
    assert await n_retired(store) == 3


def test_the_number_of_remembered_incarnations_is_the_one_that_is_promised():
    threats = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
    assert f"more than {ledger.MAX_RETIRED:,} of its incarnations".replace(",", " ") in threats


async def n_retired(store) -> int:
    if hasattr(store, "_models"):
        return len(store._models["news"].retired)
    if hasattr(store, "_pool"):
        async with store._connection() as connection:
            return await connection.fetchval("SELECT COUNT(*) FROM retired")
    return await store._read.run(lambda connection: connection.execute("SELECT COUNT(*) FROM retired").fetchone()[0])
