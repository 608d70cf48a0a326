"""Rewards from anywhere in every store: kept once, collected by their owner alone, never two for one decision."""

import asyncio

import numpy as np
import pytest

from fedbandit.algorithms.messages import packed_bytes
from fedbandit.core.statistics import SufficientStats
from fedbandit.errors import FedbanditError, Forbidden, OwnerEnded, RewardConflict, RewardsFull, UnknownModel
from fedbandit.service.stores import rewards as rules
from fedbandit.service.stores.enrolments import FOLDED
from fedbandit.service.stores.rewards import ANSWERED_S, TOKEN_S, WAITING_S, GivenUp, Report
from tests.contracts.test_stores import NOW, anyio_backend, fleet, merged, store, upload
from tests.service.uploads import folded

__all__ = ["anyio_backend", "store"]
pytestmark = pytest.mark.anyio
OWN, OTHER = "aaaaaaaaaaaa", "bbbbbbbbbbbb"


async def report(store, *reports, now=NOW):
    outcomes, _ = await store.report("news", reports, now=now)
    return [type(item) if isinstance(item, FedbanditError) else item for item in outcomes]


async def collect(store, *answers, agent="a", prefix=OWN, now=NOW):
    return (await store.collect("news", agent, prefix, answers, now=now)).rewards


async def waiting(store) -> int:
    return (await store.load("news")).n_rewards


def given_up(reward=1.0, agent="a", made_at=NOW) -> GivenUp:
    stats = packed_bytes(SufficientStats.of([[1.0, 2.0, 0.0]], [reward]))
    return GivenUp(agent, made_at, np.frombuffer(stats, dtype="<f8"))


def by_token(number=1, reward=1.0, **changes) -> Report:
    return Report(f"{OWN}-{number}", reward, given_up(reward, **changes))


async def test_a_reward_waits_until_its_owner_has_answered(store):
    await fleet(store, "a", "b")
    assert await report(store, Report(f"{OWN}-1", 1.0), Report(f"{OTHER}-1", 2.0)) == ["waiting", "waiting"]
    assert await waiting(store) == 2
    assert await collect(store) == [(f"{OWN}-1", 1.0)]
    assert await collect(store) == [(f"{OWN}-1", 1.0)], "until it is answered"
    assert await collect(store, (f"{OWN}-1", "booked")) == []
    assert await waiting(store) == 1
    assert await report(store, Report(f"{OWN}-1", 1.0)) == ["booked"]
    assert await report(store, Report(f"{OWN}-1", 0.0)) == [RewardConflict]
    assert await collect(store) == []


async def test_a_repetition_changes_nothing_and_another_reward_is_a_conflict(store):
    await fleet(store, "a")
    same = Report(f"{OWN}-1", 1.0)
    assert await report(store, same, same, Report(f"{OWN}-1", 0.5)) == ["waiting", "waiting", RewardConflict]
    results = await asyncio.gather(*(report(store, same) for _ in range(5)))
    assert results == [["waiting"]] * 5
    assert await waiting(store) == 1


async def test_only_the_owner_collects_and_answers(store):
    await fleet(store, "a", "b")
    await report(store, Report(f"{OWN}-1", 1.0))
    await collect(store)
    with pytest.raises(Forbidden):
        await collect(store, (f"{OWN}-1", "booked"), agent="b")
    await collect(store, (f"{OWN}-1", "booked"), agent="b", prefix=OTHER)
    assert await collect(store) == [(f"{OWN}-1", 1.0)], "an answer counts for the owner's own decisions"
    with pytest.raises(UnknownModel):
        await store.collect("nothing", "a", OWN, [], now=NOW)


async def test_rewards_are_collected_oldest_first_and_in_pieces(store, monkeypatch):
    monkeypatch.setattr(rules, "MAX_COLLECTED", 2)
    await fleet(store, "a")
    for number in (3, 1, 2):
        await report(store, Report(f"{OWN}-{number}", 1.0), now=NOW + number)
    assert [decision for decision, _ in await collect(store)] == [f"{OWN}-1", f"{OWN}-2"]
    assert [decision for decision, _ in await collect(store, (f"{OWN}-1", "booked"))] == [f"{OWN}-2", f"{OWN}-3"]


async def test_what_nobody_collects_expires_and_is_counted(store):
    await fleet(store, "a")
    await report(store, Report(f"{OWN}-1", 1.0), Report(f"{OWN}-2", 1.0))
    await collect(store, (f"{OWN}-1", "not_pending"))
    _, n_expired = await store.report("news", [], now=NOW + ANSWERED_S + 1)
    assert n_expired == 0 and (await store.load("news")).n_answered == 0, "what was answered is forgotten earlier"
    _, n_expired = await store.report("news", [], now=NOW + WAITING_S + 1)
    assert n_expired == 1 and await waiting(store) == 0
    assert await report(store, Report(f"{OWN}-2", 0.0), now=NOW + WAITING_S + 1) == ["waiting"]


async def test_waiting_rewards_are_limited(store, monkeypatch):
    monkeypatch.setattr(rules, "MAX_WAITING", 2)
    monkeypatch.setattr(rules, "MAX_KEPT", 1)
    await fleet(store, "a")
    reports = [Report(f"{OWN}-{number}", 1.0) for number in range(3)]
    assert await report(store, *reports) == ["waiting", "waiting", RewardsFull]
    assert await report(store, reports[0]) == ["waiting"], "a repetition is recognised at the limit, too"
    assert await report(store, by_token(7), by_token(8)) == ["booked", RewardsFull]
    await collect(store, (f"{OWN}-0", "booked"))
    assert await report(store, reports[2]) == ["waiting"]


# -- tokens


async def test_a_token_books_once_into_the_owners_sums(store):
    await fleet(store, "a", "b")
    await merged(store, upload("a"), upload("b"))
    before = await store.state("news")
    assert await report(store, by_token(), by_token()) == ["booked", "booked"]
    assert await report(store, by_token(), by_token(reward=0.0)) == ["booked", RewardConflict]
    after = await store.state("news")
    expected = np.frombuffer(before.packed) + given_up().numbers
    assert np.array_equal(np.frombuffer(after.packed), expected)
    assert (after.model.n_obs, after.model.version, after.model.n_uploads) == (9, 3, 2)
    assert after.model.reward_sum == expected[-2] and after.model.tag != before.model.tag
    assert (await store.agent("news", "a")).n_obs == 5
    assert (await store.agent("news", "a")).sequence == 1
    total = np.frombuffer(await store.contribution("news", "a"))
    assert np.array_equal(total, upload("a").numbers + given_up().numbers)


async def test_the_next_upload_of_the_owner_is_added_to_what_a_token_booked(store):
    await fleet(store, "a")
    await merged(store, upload("a"))
    await report(store, by_token())
    await merged(store, upload("a", 2))
    both = np.frombuffer(folded(upload("a"), upload("a", 2))) + given_up().numbers
    assert np.array_equal(np.frombuffer((await store.state("news")).packed), both)
    await store.forget("news", "a", now=NOW)
    assert (await store.state("news")).packed == folded()


async def test_a_token_overrules_what_was_kept_by_its_id(store):
    await fleet(store, "a")
    assert await report(store, Report(f"{OWN}-1", 1.0), by_token()) == ["waiting", "booked"]
    assert (await waiting(store), await collect(store)) == (0, [])
    await report(store, Report(f"{OWN}-2", 0.0))
    await collect(store, (f"{OWN}-2", "not_pending"))
    assert await report(store, by_token(2)) == ["booked"], "the owner gave it up, and said so"
    assert (await store.load("news")).n_obs == 2


async def test_a_token_is_good_when_its_owner_has_retired_and_was_folded(store):
    await fleet(store, "a", "b")
    await merged(store, upload("a"))
    await collect(store)
    await store.retire("news", "a", on=True, now=NOW)
    assert await report(store, Report(f"{OWN}-1", 1.0), by_token(1)) == [OwnerEnded, "booked"]
    await store.fold_retired("news", before=NOW + 1, token_hash=b"f" * 32, now=NOW)
    assert await report(store, Report(f"{OWN}-2", 1.0), by_token(2), by_token(1)) == [OwnerEnded, "booked", "booked"]
    assert (await store.agent("news", FOLDED)).n_obs == 6
    assert (await store.load("news")).n_obs == 6
    assert await report(store, by_token(3, agent="nobody")) == ["booked"], "as if it had been folded"


async def test_nothing_of_a_forgotten_owner_is_taken(store):
    await fleet(store, "a", "b")
    await merged(store, upload("a"), upload("b"))
    await report(store, Report(f"{OWN}-1", 1.0), Report(f"{OTHER}-1", 1.0))
    await collect(store)
    after = await store.forget("news", "a", now=NOW)
    assert after == (await store.state("news")).model
    assert await waiting(store) == 1
    assert await report(store, Report(f"{OWN}-2", 1.0), by_token(3)) == [OwnerEnded, OwnerEnded]
    assert (await store.state("news")).packed == folded(upload("b"))
    assert await collect(store) == []


async def test_an_owner_in_quarantine_books_into_its_own_sum(store):
    await fleet(store, "a", "b")
    await merged(store, upload("a"), upload("b"))
    await store.quarantine("news", "a", on=True, now=NOW)
    assert await report(store, by_token()) == ["booked"]
    assert (await store.state("news")).packed == folded(upload("b"))
    await store.quarantine("news", "a", on=False, now=NOW)
    assert (await store.load("news")).n_obs == 9


async def test_an_old_token_is_refused(store):
    await fleet(store, "a")
    assert await report(store, by_token(made_at=NOW - TOKEN_S - 1)) == [OwnerEnded]
    assert await report(store, by_token(made_at=NOW - TOKEN_S + 1)) == ["booked"]
    later = NOW + TOKEN_S
    assert await report(store, by_token(made_at=NOW - TOKEN_S + 1), now=later) == ["booked"], "still remembered"
    assert (await store.load("news")).n_obs == 1


async def test_a_clock_that_was_set_ahead_and_back_books_no_token_twice(store):
    await fleet(store, "a")
    assert await report(store, by_token(1)) == ["booked"]
    ahead = NOW + 10 * 366 * 86400.0
    assert await report(store, by_token(1), now=ahead) == [OwnerEnded]
    assert await report(store, by_token(1), by_token(2)) == [OwnerEnded, OwnerEnded], "it is not known any more"
    assert (await store.load("news")).n_obs == 1
    later = NOW + 2 * 86400.0
    assert await report(store, by_token(3, made_at=later), now=later) == ["booked"], "made after all that is forgotten"
    assert await report(store, by_token(3, made_at=later), now=ahead) == [OwnerEnded]
    assert await report(store, by_token(3, made_at=later), now=later) == [OwnerEnded]
    assert (await store.load("news")).n_obs == 2


async def test_a_token_of_an_agent_whose_clock_is_ahead_is_remembered_as_long_as_it_is_valid(store):
    await fleet(store, "a")
    ahead = by_token(1, made_at=NOW + 365 * 86400.0)
    assert await report(store, ahead) == ["booked"]
    assert await report(store, ahead, now=NOW + 400 * 86400.0) == ["booked"]
    assert (await store.load("news")).n_obs == 1


async def test_concurrent_reports_with_one_token_count_once(store):
    await fleet(store, "a")
    results = await asyncio.gather(*(report(store, by_token()) for _ in range(6)))
    assert results == [["booked"]] * 6
    assert (await store.load("news")).n_obs == 1


async def test_each_model_has_a_secret_of_its_own(store):
    await fleet(store)
    first = await store.token_secret("news")
    assert len(first) == 32 and await store.token_secret("news") == first
    await fleet(store, model="ads")
    assert await store.token_secret("ads") != first
