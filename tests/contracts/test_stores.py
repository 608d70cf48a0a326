"""What every store keeps: memory, SQLite and PostgreSQL run the same suite."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from fedbandit.errors import (
    AlreadyExists,
    DimensionMismatch,
    Forbidden,
    ModelChanged,
    SequenceConflict,
    SequenceGap,
    StaleIncarnation,
    Unauthenticated,
    UnknownAgent,
    UnknownModel,
)
from fedbandit.service.exchange.ledger import Acknowledged
from fedbandit.service.stores.base import (
    MAX_EVENTS,
    MAX_SAMPLES,
    Event,
    FleetSummary,
    HistoryEntry,
    PageQuery,
    Sample,
    Store,
)
from fedbandit.service.stores.memory import MemoryStore
from fedbandit.service.stores.postgres import PostgresStore
from fedbandit.service.stores.sqlite.store import SqliteStore
from tests.service.uploads import TOKEN, folded, incoming, settings

pytestmark = pytest.mark.anyio
NOW = 1000.0


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request, tmp_path) -> AsyncIterator[Store]:
    made = {
        "memory": MemoryStore,
        "sqlite": lambda: SqliteStore(tmp_path / "data"),
        "postgres": lambda: PostgresStore(request.getfixturevalue("database")),
    }[request.param]()
    await made.open()
    yield made
    await made.close()


async def fleet(store: Store, *agents: str, model: str = "news", dim: int = 3) -> None:
    await store.create(settings(model, dim=dim), uid=f"uid-{model}", now=NOW)
    for agent in agents:
        await store.enroll(model, agent, token_of(agent, model), now=NOW)


def token_of(agent: str, model: str = "news") -> bytes:
    return TOKEN if (agent, model) == ("a", "news") else f"{model}/{agent}".encode().ljust(32, b".")


def upload(agent: str = "a", sequence: int = 1, **changes):
    return incoming(agent, sequence, token=token_of(agent), **changes)


async def merged(store: Store, *uploads, model: str = "news"):
    return await store.merge(model, uploads, now=NOW)


async def outcome(store: Store, upload):
    return (await merged(store, upload)).outcomes[0]


# -- models


async def test_a_new_model_is_at_its_prior(store):
    await fleet(store)
    state = await store.state("news")
    assert state.packed == folded()
    assert (state.model.version, state.model.n_obs, state.model.n_agents) == (0, 0, 0)
    assert state.model.settings == settings()


async def test_models_are_listed_by_name_and_deleted_with_everything(store):
    await fleet(store, "a")
    await store.create(settings("ads"), uid="other", now=NOW)
    assert [model.settings.name for model in await store.models()] == ["ads", "news"]
    await store.delete("news")
    assert [model.settings.name for model in await store.models()] == ["ads"]
    assert await store.find_token(TOKEN) is None
    with pytest.raises(UnknownModel):
        await store.load("news")
    with pytest.raises(UnknownModel):
        await store.delete("news")


async def test_a_name_is_taken_once(store):
    await fleet(store, "a")
    with pytest.raises(AlreadyExists):
        await store.create(settings(), uid="again", now=NOW)
    with pytest.raises(AlreadyExists):
        await store.enroll("news", "a", b"x" * 32, now=NOW)


async def test_a_model_made_again_has_another_settings_id(store):
    await fleet(store)
    before = (await store.load("news")).settings_id
    await store.delete("news")
    await store.create(settings(), uid="second", now=NOW)
    assert (await store.load("news")).settings_id != before


@pytest.mark.parametrize("call", ["load", "state", "delete", "events", "samples"])
async def test_an_unknown_model_is_told(store, call):
    with pytest.raises(UnknownModel):
        await getattr(store, call)("nothing")


async def test_an_unknown_model_refuses_every_upload(store):
    with pytest.raises(UnknownModel):
        await merged(store, upload(), model="nothing")


# -- exchanges


async def test_uploads_are_added_in_order_to_the_last_bit(store):
    await fleet(store, "a", "b", dim=5)
    rng = np.random.default_rng(1)
    uploads = []
    for sequence in range(1, 6):
        for agent in ("a", "b"):
            x = rng.normal(size=(3, 5)) * 10.0 ** rng.integers(-5, 6)
            uploads.append(real_upload(agent, sequence, x, rng.normal(size=3)))
    for batch in (uploads[:1], uploads[1:6], uploads[6:]):
        await merged(store, *batch)
    state = await store.state("news")
    assert state.packed == folded(*uploads, dim=5)
    assert (state.model.version, state.model.n_uploads, state.model.n_obs) == (10, 10, 30)


def real_upload(agent, sequence, X, y):
    from fedbandit.algorithms.messages import digest_of, packed_bytes
    from fedbandit.core.statistics import SufficientStats
    from fedbandit.service.exchange.ledger import IncomingUpload

    stats = packed_bytes(SufficientStats.of(X, y))
    numbers = np.frombuffer(stats, dtype="<f8")
    return IncomingUpload(agent, "life", sequence, digest_of(stats), numbers, 0.5, token_of(agent), n_bytes=len(stats))


async def test_a_batch_answers_every_upload_with_the_state_after_all(store):
    await fleet(store, "a", "b")
    result = await merged(store, upload("a"), upload("b"), upload("a", 2))
    assert result.outcomes == [Acknowledged(2, True), Acknowledged(1, True), Acknowledged(2, True)]
    assert result.packed == (await store.state("news")).packed
    assert result.model == await store.load("news")
    assert result.n_merged == 3


async def test_a_retry_changes_nothing_and_is_acknowledged(store):
    await fleet(store, "a")
    await merged(store, upload(), upload(sequence=2))
    before = await store.state("news")
    assert await outcome(store, upload(sequence=2)) == Acknowledged(2, False)
    assert await outcome(store, upload(sequence=1)) == Acknowledged(2, False)
    assert await store.state("news") == before


async def test_the_same_upload_twice_in_one_batch_counts_once(store):
    await fleet(store, "a")
    result = await merged(store, upload(), upload())
    assert result.outcomes == [Acknowledged(1, True), Acknowledged(1, False)]
    assert result.packed == folded(upload())


async def test_a_gap_is_refused(store):
    await fleet(store, "a")
    assert isinstance(await outcome(store, upload(sequence=2)), SequenceGap)
    assert (await store.load("news")).version == 0


async def test_other_content_under_a_merged_sequence_is_refused(store):
    await fleet(store, "a")
    await merged(store, upload())
    assert isinstance(await outcome(store, upload(seed=99)), SequenceConflict)
    assert (await store.state("news")).packed == folded(upload())


async def test_a_new_incarnation_retires_the_old_one(store):
    await fleet(store, "a")
    second = upload(incarnation="life-2")
    await merged(store, upload())
    assert await outcome(store, second) == Acknowledged(1, True)
    assert isinstance(await outcome(store, upload(sequence=2)), StaleIncarnation)
    assert isinstance(await outcome(store, upload()), StaleIncarnation)
    assert (await store.state("news")).packed == folded(upload(), second)
    assert (await store.agent("news", "a")).n_uploads == 2


async def test_a_new_incarnation_in_the_same_batch_retires_the_old_one(store):
    await fleet(store, "a")
    result = await merged(store, upload(), upload(incarnation="life-2"), upload(sequence=2))
    assert result.outcomes[:2] == [Acknowledged(0, True), Acknowledged(1, True)]
    assert isinstance(result.outcomes[2], StaleIncarnation)


async def test_one_bad_upload_leaves_the_others_of_its_batch_alone(store):
    await fleet(store, "a", "b", "c")
    result = await merged(store, upload("a"), upload("b", 7), upload("c"))
    assert isinstance(result.outcomes[1], SequenceGap)
    assert result.packed == folded(upload("a"), upload("c"))


async def test_the_row_decides_whose_token_it_is(store):
    await fleet(store, "a", "b")
    assert isinstance(await outcome(store, incoming("b", token=TOKEN)), Forbidden)
    assert isinstance(await outcome(store, incoming("nobody", token=TOKEN)), Forbidden)
    await store.revoke("news", "a", now=NOW)
    assert isinstance(await outcome(store, upload("a")), Unauthenticated)
    assert (await store.load("news")).version == 0


async def test_an_upload_of_another_dimension_is_refused(store):
    await fleet(store, "a")
    assert isinstance(await outcome(store, upload(dim=4)), DimensionMismatch)


async def test_an_agent_is_seen_with_its_sums(store):
    await fleet(store, "a", "b")
    await store.merge("news", [upload(), upload("b"), upload(sequence=2, growth=2.0)], now=2000.0)
    agent = await store.agent("news", "a")
    total = await store.contribution("news", "a")
    assert total is not None
    assert (agent.n_uploads, agent.sequence, agent.last_seen, agent.created) == (2, 2, 2000.0, NOW)
    assert agent.n_obs == int(np.frombuffer(total)[-3]) == 8
    assert (agent.growth, agent.growth_most) == (2.0, 2.0)
    await merged(store, upload(sequence=3, growth=0.5))
    agent, model = await store.agent("news", "a"), await store.load("news")
    assert (agent.growth, agent.growth_most, model.growth.most) == (0.5, 2.0, 2.0), "the largest ever stays"
    total = await store.contribution("news", "a")
    assert np.array_equal(np.frombuffer(total), sum(upload(sequence=i).numbers for i in (1, 2, 3)))
    assert await store.contribution("news", "b") == upload("b").numbers.tobytes()


async def test_effective_alpha_is_what_agents_reported(store):
    await fleet(store, "a")
    assert (await store.load("news")).effective_alpha == 1.0
    await merged(store, upload(growth=0.1))
    assert (await store.load("news")).effective_alpha == 1.0
    await merged(store, upload(sequence=2, growth=2.0))
    assert (await store.load("news")).effective_alpha == pytest.approx(np.expm1(2.0))


async def test_effective_alpha_is_that_of_recent_uploads(store):
    await fleet(store, "a")
    await merged(store, upload(growth=3.0))
    for first in (2, 514):
        await store.merge("news", [upload(sequence=i, growth=0.1) for i in range(first, first + 512)], now=NOW)
    model = await store.load("news")
    assert model.effective_alpha == 1.0, "after 1024 smaller ones a large growth is no longer recent"
    assert model.growth.most == 3.0


async def test_concurrent_batches_are_all_counted(store):
    await fleet(store, *"abcdefgh")
    uploads = [upload(agent) for agent in "abcdefgh"]
    await asyncio.gather(*(merged(store, item) for item in uploads))
    state = await store.state("news")
    assert state.packed == folded(*uploads)  # integers: the order does not matter
    assert state.model.version == 8


async def test_concurrent_retries_count_once(store):
    await fleet(store, "a")
    results = await asyncio.gather(*(merged(store, upload()) for _ in range(6)))
    assert sum(result.n_merged for result in results) == 1
    assert (await store.state("news")).packed == folded(upload())


# -- forgetting


async def test_forgetting_leaves_what_the_others_gave(store):
    await fleet(store, "a", "b", "c")
    await merged(store, upload("a"), upload("b"), upload("c"), upload("b", 2))
    after = await store.forget("news", "b", now=NOW)
    state = await store.state("news")
    assert state.packed == folded(upload("a"), upload("c"))
    assert after == state.model
    assert (after.version, after.n_obs) == (5, 8)
    agent = await store.agent("news", "b")
    assert (agent.n_obs, agent.n_uploads, agent.sequence) == (0, 0, 0)
    assert await store.contribution("news", "b") is None


async def test_no_retry_brings_a_forgotten_contribution_back(store):
    await fleet(store, "a")
    await merged(store, upload(), upload(sequence=2))
    await store.forget("news", "a", now=NOW)
    for sequence in (1, 2, 3):
        refused = await outcome(store, upload(sequence=sequence))
        assert isinstance(refused, StaleIncarnation)
        assert "forgotten" in str(refused)
    assert (await store.state("news")).packed == folded()


async def test_all_lives_of_an_agent_are_forgotten(store):
    await fleet(store, "a")
    await merged(store, upload(), upload(incarnation="life-2"))
    await store.forget("news", "a", now=NOW)
    assert (await store.state("news")).packed == folded()
    for life in ("life-1", "life-2"):
        assert isinstance(await outcome(store, upload(incarnation=life)), StaleIncarnation)


async def test_a_forgotten_agent_may_begin_anew(store):
    await fleet(store, "a")
    await merged(store, upload())
    await store.forget("news", "a", now=NOW)
    again = upload(incarnation="life-2")
    assert await outcome(store, again) == Acknowledged(1, True)
    assert (await store.state("news")).packed == folded(again)


async def test_forgetting_an_agent_without_uploads_is_harmless(store):
    await fleet(store, "a", "b")
    await merged(store, upload("b"))
    await store.forget("news", "a", now=NOW)
    assert (await store.state("news")).packed == folded(upload("b"))


# -- agents and tokens


async def test_tokens_are_found_by_their_hash(store):
    await fleet(store, "a")
    assert await store.put_token("admin", "admin", b"1" * 32, now=NOW)
    assert await store.put_token("page", "viewer", b"2" * 32, now=NOW)
    found = [await store.find_token(token) for token in (TOKEN, b"1" * 32, b"2" * 32, b"3" * 32)]
    assert [(who.role, who.name, who.model) for who in found[:3] if who is not None] == [
        ("agent", "a", "news"),
        ("admin", "admin", ""),
        ("viewer", "page", ""),
    ]
    assert found[3] is None


async def test_a_token_name_is_taken_once_unless_it_is_replaced(store):
    assert await store.put_token("admin", "admin", b"1" * 32, now=NOW)
    assert not await store.put_token("admin", "admin", b"2" * 32, now=NOW)
    assert await store.find_token(b"2" * 32) is None
    assert await store.put_token("admin", "admin", b"2" * 32, now=NOW, replace=True)
    assert await store.find_token(b"1" * 32) is None


async def test_a_token_that_was_dropped_is_not_found_any_more(store):
    await store.put_token("page", "viewer", b"1" * 32, now=NOW)
    await store.put_token("admin", "admin", b"2" * 32, now=NOW)
    assert [(who.role, who.name) for who in await store.tokens()] == [("admin", "admin"), ("viewer", "page")]
    assert await store.drop_token("page")
    assert not await store.drop_token("page")
    assert await store.find_token(b"1" * 32) is None
    assert await store.find_token(b"2" * 32) is not None


async def test_a_fleet_is_summed_up(store):
    await fleet(store, "a", "b", "c", "d")
    await store.merge("news", [upload("a", unsent=7), upload("b")], now=2000.0)
    await store.merge("news", [upload("c", unsent=3)], now=3000.0)
    await store.revoke("news", "b", now=3000.0)
    summed = await store.fleet("news", since=2500.0)
    assert (summed.n_agents, summed.n_active, summed.n_silent, summed.n_revoked) == (4, 1, 1, 1)
    assert (summed.n_with_unsent, summed.unsent, summed.last_seen) == (2, 10, 3000.0)


async def test_revoking_is_seen_at_once_and_renewing_undoes_it(store):
    await fleet(store, "a")
    await store.revoke("news", "a", now=NOW)
    who = await store.find_token(TOKEN)
    assert who is not None and who.revoked
    await store.enroll("news", "a", b"n" * 32, now=NOW, renew=True)
    assert await store.find_token(TOKEN) is None
    who = await store.find_token(b"n" * 32)
    assert who is not None and not who.revoked
    assert (await store.load("news")).n_agents == 1


@pytest.mark.parametrize("call", ["agent", "contribution", "revoke", "forget"])
async def test_an_unknown_agent_is_told(store, call):
    await fleet(store)
    options = {"now": NOW} if call in ("revoke", "forget") else {}
    with pytest.raises(UnknownAgent):
        await getattr(store, call)("news", "nobody", **options)
    with pytest.raises(UnknownModel):
        await getattr(store, call)("nothing", "nobody", **options)


async def test_agents_are_paged_sorted_and_searched(store):
    names = [f"shop-{number:02}" for number in range(12)] + ["Depot"]
    await fleet(store, *names)
    await merged(store, upload("shop-03"), upload("shop-03", 2), upload("shop-07"))

    async def page(**query):
        found = await store.agents("news", PageQuery(**query))
        return [agent.name for agent in found.agents], found.total

    assert await page(per_page=3) == (["Depot", "shop-00", "shop-01"], 13)
    assert await page(per_page=5, page=3) == (["shop-09", "shop-10", "shop-11"], 13)
    assert await page(sort="-n_uploads", per_page=3) == (["shop-03", "shop-07", "Depot"], 13)
    assert await page(sort="-name", per_page=1) == (["shop-11"], 13)
    assert await page(search="DEP") == (["Depot"], 1)
    assert await page(search="shop-1") == (["shop-10", "shop-11"], 2)
    assert await page(search="%") == ([], 0)
    for sort in ("last_seen", "created", "growth", "unsent", "mean_reward", "n_obs"):
        assert (await page(sort=sort))[1] == 13


# -- history


def event(number: int) -> Event:
    return Event(float(number), "refused", "a", f"reason {number}")


def sample(number: int) -> Sample:
    return Sample(float(number), number, number, 0.5, number, 8 * number, 1.5, 0.25)


async def test_history_is_kept_in_order(store):
    await fleet(store)
    notes = [
        HistoryEntry("uid-news", event(1)),
        HistoryEntry("uid-news", sample(1)),
        HistoryEntry("uid-news", event(2)),
        HistoryEntry("gone", event(3)),
    ]
    await store.record(notes)
    await store.record([HistoryEntry("uid-news", sample(2))])
    assert await store.events("news") == [event(2), event(1)]
    assert await store.events("news", limit=1) == [event(2)]
    assert await store.samples("news") == [sample(1), sample(2)]


async def test_history_is_bounded(store):
    await fleet(store)
    for begin in range(0, 3 * MAX_SAMPLES, 200):
        numbers = range(begin, begin + 200)
        await store.record([HistoryEntry("uid-news", make(number)) for number in numbers for make in (event, sample)])
    events, samples = await store.events("news", limit=10_000), await store.samples("news")
    assert len(events) == MAX_EVENTS
    assert events[0] == event(3 * MAX_SAMPLES - 1)
    assert MAX_SAMPLES // 2 < len(samples) <= MAX_SAMPLES
    assert samples[-1] == sample(3 * MAX_SAMPLES - 1)
    assert [item.at for item in samples] == sorted(item.at for item in samples)
    assert samples[0].at < MAX_SAMPLES  # the old ones are sparse, not gone


# -- the fleet in a few numbers


async def test_a_fleet_is_counted(store):
    await fleet(store, "a", "b", "c")
    empty = await store.fleet("news", since=NOW)
    assert (empty.n_agents, empty.n_active, empty.n_silent, empty.last_seen) == (3, 0, 3, None)
    await store.merge("news", [upload("a")._replace(unsent=7), upload("b")._replace(unsent=0)], now=NOW)
    await store.revoke("news", "c", now=NOW)
    found = await store.fleet("news", since=NOW)
    assert (found.n_agents, found.n_active, found.n_silent, found.n_revoked) == (3, 2, 1, 1)
    assert (found.n_with_unsent, found.unsent, found.last_seen) == (1, 7, NOW)
    assert (await store.fleet("news", since=NOW + 1)).n_active == 0
    await store.create(settings("ads"), uid="ads", now=NOW)
    assert await store.fleet("ads", since=NOW) == FleetSummary()
    with pytest.raises(UnknownModel):
        await store.fleet("nowhere", since=NOW)


# -- names, and models of the same name


async def test_an_upload_that_was_checked_for_another_model_of_this_name_is_not_merged(store):
    await fleet(store, "a")
    refused = await outcome(store, upload()._replace(uid="the one before"))
    assert isinstance(refused, ModelChanged)
    assert (await store.state("news")).packed == folded()
    assert await outcome(store, upload()._replace(uid="uid-news")) == Acknowledged(1, True)


async def test_a_name_with_a_nul_names_nothing(store):
    await fleet(store, "a")
    for call in (store.load, store.state, store.delete, store.events, store.samples):
        with pytest.raises(UnknownModel):
            await call("ne\0ws")
    with pytest.raises(UnknownModel):
        await merged(store, upload(), model="ne\0ws")
    with pytest.raises(UnknownAgent):
        await store.agent("news", "a\0")
    with pytest.raises(UnknownAgent):
        await store.forget("news", "a\0", now=NOW)
    assert await store.drop_token("a\0") is False
