"""What every store keeps: memory, SQLite and PostgreSQL run the same suite."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from fedbandit.algorithms.messages import Upload, digest_of, packed_bytes, stats_from_bytes
from fedbandit.core import drift as drifts
from fedbandit.core.group_sums import NO_GROUPS, GroupSums, RewardSums
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import (
    AlreadyExists,
    DimensionMismatch,
    Forbidden,
    LaterEpoch,
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
    Contact,
    Event,
    FleetSummary,
    HistoryEntry,
    PageQuery,
    Sample,
    Store,
)
from fedbandit.service.stores.checkpoints import MAX_CHECKPOINTS, Checkpoint
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


async def fleet(store: Store, *agents: str, model: str = "news", dim: int = 3, **changes) -> None:
    await store.create(settings(model, dim=dim, **changes), uid=f"uid-{model}", now=NOW)
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


async def test_a_contact_moves_last_seen_forwards_only(store):
    await fleet(store, "a", "b")
    await store.record([HistoryEntry("uid-news", Contact("a", NOW)), HistoryEntry("uid-news", Contact("nobody", NOW))])
    await store.record([HistoryEntry("uid-news", Contact("a", NOW - 5)), HistoryEntry("gone", Contact("b", NOW))])
    assert ((await store.agent("news", "a")).last_seen, (await store.agent("news", "b")).last_seen) == (NOW, None)
    await store.merge("news", [upload("a")], now=NOW + 7)
    await store.record([HistoryEntry("uid-news", Contact("a", NOW + 1))])
    assert (await store.agent("news", "a")).last_seen == NOW + 7
    assert (await store.fleet("news", since=NOW)).n_active == 1


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


def checkpoint(n_obs: int, *, version: int | None = None, generation: int = 0) -> Checkpoint:
    packed = settings().prior()[:-24] + np.array([n_obs, 0.0, 0.0]).tobytes()
    return Checkpoint(float(n_obs), n_obs if version is None else version, generation, n_obs, packed)


async def keep(store, *checkpoints):
    await store.record([HistoryEntry("uid-news", item) for item in checkpoints])
    return await store.checkpoints("news")


async def test_a_few_checkpoints_are_kept_spread_over_the_data(store):
    await fleet(store)
    assert await store.checkpoints("news") == []
    for begin in range(1, 3_001, 100):
        await keep(store, *(checkpoint(n) for n in range(begin, begin + 100)))
    found = await store.checkpoints("news")
    counts = [item.n_obs for item in found]
    assert len(counts) == MAX_CHECKPOINTS and counts == sorted(counts)
    assert found[-1] == checkpoint(counts[-1])
    gaps = np.diff([0, *counts, 3_000])
    assert gaps.max() <= 3_000 / 5
    await store.delete("news")
    await fleet(store)
    assert await store.checkpoints("news") == []


async def test_checkpoints_from_before_data_were_taken_out_are_dropped(store):
    await fleet(store)
    assert await keep(store, checkpoint(10), checkpoint(20)) == [checkpoint(10), checkpoint(20)]
    assert await keep(store, checkpoint(30, version=15)) == [checkpoint(10), checkpoint(20)]  # of a slower replica
    taken_out = checkpoint(15, version=21, generation=1)
    assert await keep(store, taken_out) == [taken_out]
    restarted = checkpoint(5, version=22, generation=1)
    assert await keep(store, restarted) == [restarted]


async def test_the_sums_that_count_come_with_most_observations_first(store):
    await fleet(store, "a", "b", "c", "d")
    await merged(store, upload("a"), upload("b"), upload("b", 2), upload("c"))
    await store.quarantine("news", "c", on=True, now=NOW)
    found = await store.counted_sums("news", limit=10)
    assert [(item.name, item.n_obs) for item in found] == [("b", 8), ("a", 4)]
    assert found[0].packed == await store.contribution("news", "b")
    assert [item.name for item in await store.counted_sums("news", limit=1)] == ["b"]
    with pytest.raises(UnknownModel):
        await store.counted_sums("nowhere", limit=1)
    with pytest.raises(UnknownModel):
        await store.checkpoints("nowhere")


# -- rewards by group


def grouped(agent: str = "a", sequence: int = 1, *, control: float = 1.0, treatment: float = 2.0):
    groups = GroupSums(RewardSums(1, control, control**2), RewardSums(2, treatment, treatment**2))
    return upload(agent, sequence)._replace(groups=groups)


def sums(groups: GroupSums) -> tuple[int, float, int, float]:
    return groups.control.n_obs, groups.control.reward_sum, groups.treatment.n_obs, groups.treatment.reward_sum


async def test_rewards_by_group_are_merged_once_and_taken_out_with_their_agent(store):
    await fleet(store, "a", "b")
    assert (await store.load("news")).groups == NO_GROUPS
    first = grouped()
    found = await merged(store, first, first, grouped("b", control=4.0))
    assert sums(found.model.groups) == (2, 5.0, 4, 4.0)
    await merged(store, first, upload("a", 2))  # a retry, and an upload without groups
    await merged(store, grouped("a", 3, treatment=7.0))
    assert sums((await store.load("news")).groups) == (3, 6.0, 6, 11.0)
    await store.quarantine("news", "b", on=True, now=NOW)
    assert sums((await store.load("news")).groups) == (2, 2.0, 4, 9.0)
    await merged(store, grouped("b", 2, control=10.0))  # counted for the agent, not for the model
    assert sums((await store.state("news")).model.groups) == (2, 2.0, 4, 9.0)
    await store.quarantine("news", "b", on=False, now=NOW)
    assert sums((await store.load("news")).groups) == (4, 16.0, 8, 13.0)
    await store.forget("news", "b", now=NOW)
    assert sums((await store.load("news")).groups) == (2, 2.0, 4, 9.0)
    assert sums((await store.models())[0].groups) == (2, 2.0, 4, 9.0)
    await store.forget("news", "a", now=NOW)
    assert (await store.load("news")).groups == NO_GROUPS


async def test_retired_agents_that_are_folded_keep_their_rewards_by_group(store):
    await fleet(store, "a", "b", "c")
    await merged(store, grouped(), grouped("b", control=4.0), grouped("c", control=16.0))
    for name in "ab":
        await store.retire("news", name, on=True, now=NOW)
    assert await store.fold_retired("news", before=NOW + 1, token_hash=b"f" * 32, now=NOW) == 2
    assert sums((await store.load("news")).groups) == (3, 21.0, 6, 6.0)
    await store.forget("news", "c", now=NOW)  # recomputed from all rows
    assert sums((await store.load("news")).groups) == (2, 5.0, 4, 4.0)


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
    refused = await outcome(store, upload()._replace(settings_id="the one before"))
    assert isinstance(refused, ModelChanged)
    assert (await store.state("news")).packed == folded()
    assert await outcome(store, upload()._replace(settings_id=(await store.load("news")).settings_id)) == Acknowledged(
        1, True
    )


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


# -- changed settings


async def test_settings_change_only_from_what_was_read(store):
    await fleet(store, "a")
    before = (await store.load("news")).settings
    after = before.changed({"beta": 0.125})
    await store.merge("news", [upload("a")], now=NOW)
    old = await store.state("news")
    assert await store.configure("news", before, after)
    assert not await store.configure("news", before, before.changed({"beta": 9.0}))
    found = await store.state("news")
    assert found.model.settings == after and found.packed == old.packed
    assert (found.model.uid, found.model.version) == (old.model.uid, old.model.version)
    assert found.model.settings_id != old.model.settings_id
    with pytest.raises(UnknownModel):
        await store.configure("nothing", before, after)


async def test_an_upload_that_was_checked_by_other_settings_is_not_merged(store):
    await fleet(store, "a")
    model = await store.load("news")
    checked = upload("a")._replace(settings_id=model.settings_id)
    await store.configure("news", model.settings, model.settings.changed({"beta": 0.125}))
    refused = (await store.merge("news", [checked], now=NOW)).outcomes[0]
    assert isinstance(refused, ModelChanged)
    again = checked._replace(settings_id=(await store.load("news")).settings_id)
    assert (await store.merge("news", [again], now=NOW)).n_merged == 1


# -- renewed tokens


async def test_a_renewed_token_may_stay_valid_for_a_while(store):
    await fleet(store, "a")
    before, new = upload("a"), b"n" * 32
    await store.enroll("news", "a", new, now=NOW, renew=True, old_until=NOW + 10)
    assert (await store.find_token(before.token_hash)).until == NOW + 10
    assert (await store.find_token(new)).until is None
    assert (await store.merge("news", [before], now=NOW + 9)).n_merged == 1
    late = (await store.merge("news", [upload("a", 2)], now=NOW + 10)).outcomes[0]
    assert isinstance(late, Forbidden)
    assert (await store.merge("news", [upload("a", 2)._replace(token_hash=new)], now=NOW + 10)).n_merged == 1
    await store.enroll("news", "a", b"m" * 32, now=NOW, renew=True)  # at once
    assert (await store.find_token(new), await store.find_token(before.token_hash)) == (None, None)
    await store.enroll("news", "a", b"k" * 32, now=NOW, renew=True, old_until=NOW + 10)
    await store.delete("news")
    assert (await store.find_token(b"m" * 32), await store.find_token(b"k" * 32)) == (None, None)


async def test_revoking_ends_both_tokens(store):
    await fleet(store, "a")
    await store.enroll("news", "a", b"n" * 32, now=NOW, renew=True, old_until=NOW + 10)
    await store.revoke("news", "a", now=NOW)
    outcomes = (await store.merge("news", [upload("a"), upload("a")._replace(token_hash=b"n" * 32)], now=NOW)).outcomes
    assert all(isinstance(found, Unauthenticated) for found in outcomes)


# -- epochs

RESTART = drifts.Restart(0.5, server_block=8)


async def books(store):
    """Merged and discarded, by the model and by its agents."""
    model = await store.load("news")
    agents = (await store.agents("news", PageQuery())).agents
    assert model.n_discarded == sum(agent.n_discarded for agent in agents)
    assert model.clock == sum(agent.n_obs for agent in agents)
    return model.clock, model.n_discarded


async def test_a_restart_begins_an_epoch_and_discards_what_was_made_before(store):
    await fleet(store, "a", "b")
    await merged(store, upload("a"), upload("b"))
    before = await store.load("news")
    after = await store.restart("news", now=NOW)
    assert (after.epoch, after.version, after.generation) == (1, before.version + 1, before.generation + 1)
    assert (await store.state("news")).packed == folded() and after.n_obs == 0
    assert await store.contribution("news", "a") is None and await store.counted_sums("news", limit=5) == []
    late = await merged(store, upload("a", 2, dropped=3))
    assert late.outcomes == [Acknowledged(2, True, outcome="older_epoch", discarded=7)] and late.packed == folded()
    assert (await merged(store, upload("a", 2, dropped=3))).outcomes == [Acknowledged(2, False, discarded=7)]
    assert await books(store) == (8, 7)
    fresh = upload("a", 3, epoch=1)
    assert (await merged(store, fresh)).packed == folded(fresh)
    assert await books(store) == (12, 7)
    assert await store.contribution("news", "a") == fresh.numbers.tobytes()


async def test_forgetting_and_quarantine_see_the_sums_of_this_epoch_only(store):
    await fleet(store, "a", "b")
    await merged(store, upload("a"), upload("b"))
    await store.restart("news", now=NOW)
    mine, other = upload("a", 2, epoch=1), upload("b", 2, epoch=1)
    await merged(store, mine, other)
    await store.quarantine("news", "a", on=True, now=NOW)
    assert (await store.state("news")).packed == folded(other)
    await store.quarantine("news", "a", on=False, now=NOW)
    assert (await store.state("news")).packed == folded(mine, other)
    await store.forget("news", "b", now=NOW)
    assert (await store.state("news")).packed == folded(mine)
    assert (await store.agent("news", "b")).n_discarded == 0


async def test_an_alarm_restarts_once_and_is_discarded(store):
    await fleet(store, "a", "b", drift=RESTART)
    await merged(store, upload("a"))
    batch = await merged(store, upload("a", 2, alarm=True), upload("b", 1), upload("b", 2, alarm=True))
    assert [(found.outcome, found.discarded) for found in batch.outcomes] == [
        ("change_alarm", 4),
        ("older_epoch", 8),
        ("older_epoch", 8),
    ]
    assert batch.model.epoch == 1 and batch.packed == folded() and [who for who, _ in batch.restarts] == ["a"]
    assert await books(store) == (4, 12)


async def test_the_server_finds_a_change_over_many_batches(store):
    await fleet(store, "a", drift=RESTART)
    rng = np.random.default_rng(0)
    epochs = []
    for sequence in range(1, 41):
        X = rng.standard_normal((4, 3))
        y = X @ np.ones(3) * (1 if sequence <= 20 else -1) + 0.1 * rng.standard_normal(4)
        made = incoming("a", sequence, epoch=epochs[-1] if epochs else 0)
        stats = packed_bytes(SufficientStats.of(X, y))
        made = made._replace(numbers=np.frombuffer(stats, dtype="<f8"), digest=digest_of(stats))
        epochs.append((await merged(store, made)).model.epoch)
    assert epochs[19] == 0 and epochs[-1] == 1 and epochs.index(1) <= 24
    assert await books(store) == (160, 0)


async def test_the_alarm_of_an_agent_in_quarantine_restarts_nothing(store):
    await fleet(store, "a", drift=RESTART)
    await store.quarantine("news", "a", on=True, now=NOW)
    batch = await merged(store, upload("a", 1, alarm=True))
    assert batch.model.epoch == 0 and batch.outcomes == [Acknowledged(1, True, excluded=True)]


async def test_a_later_epoch_is_refused_unless_agents_may_restart_the_model(store):
    await fleet(store, "a")
    assert isinstance(await outcome(store, upload("a", 1, epoch=1)), LaterEpoch)
    await store.restart("news", now=NOW)
    assert await outcome(store, upload("a", 1, epoch=1)) == Acknowledged(1, True)
    await store.create(settings("ads", drift=RESTART), uid="uid-ads", now=NOW)
    await store.enroll("ads", "a", token_of("a", "ads"), now=NOW)
    late = incoming("a", 1, token=token_of("a", "ads"), epoch=3)
    assert (await store.merge("ads", [late], now=NOW)).model.epoch == 3


async def test_discounted_sums_are_those_of_the_library(store):
    discount = drifts.Discount(10.0)
    await fleet(store, "a", "b", drift=discount)
    rule = settings(drift=discount).rule()
    server = rule.server()
    clock = 0
    for agent, sequence in (("a", 1), ("b", 1), ("a", 2), ("b", 2)):
        made = upload(agent, sequence, clock=clock)
        stats = stats_from_bytes(made.numbers.tobytes(), 3)
        batch = await merged(store, made)
        server.receive(Upload(agent, "life-1", sequence, stats, 0.5, clock=clock))
        clock = batch.model.clock - 2
        assert batch.model.clock == server.clock
        np.testing.assert_allclose(np.frombuffer(batch.packed), np.frombuffer(packed_bytes(server.stats)), rtol=1e-12)
    state = np.frombuffer((await store.state("news")).packed)
    parts = [np.frombuffer(await store.contribution("news", agent)) for agent in "ab"]
    np.testing.assert_allclose(np.frombuffer(folded()) + parts[0] + parts[1], state, rtol=1e-12, atol=1e-12)
    await store.forget("news", "b", now=NOW)
    rest = np.frombuffer((await store.state("news")).packed)
    np.testing.assert_allclose(rest, np.frombuffer(folded()) + parts[0], rtol=1e-12, atol=1e-12)
