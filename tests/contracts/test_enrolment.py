"""Enrolment in every store: once for each nonce, never more uses than allowed, copies found out, rows that stay few."""

import asyncio

import numpy as np
import pytest

from fedbandit.errors import (
    AlreadyExists,
    CopiedState,
    EnrolmentEnded,
    InvalidParameter,
    Unauthenticated,
    UnknownAgent,
    UnknownEnrolment,
    UnknownModel,
)
from fedbandit.service.stores.base import PageQuery
from fedbandit.service.stores.enrolments import FOLDED, KEPT_S, Enrolment, Redemption
from tests.contracts.test_stores import NOW, anyio_backend, fleet, merged, outcome, store, token_of, upload
from tests.service.uploads import folded, settings

__all__ = ["anyio_backend", "store"]
pytestmark = pytest.mark.anyio
SECRET = b"s" * 32


def wanted(nonce: str = "n", agent: str = "web-1", **changes) -> Redemption:
    token = changes.pop("token", nonce)
    return Redemption(SECRET, nonce.encode().ljust(32, b"."), token.encode().ljust(32, b"!"), agent)._replace(**changes)


async def enrolling(store, *, now: float = NOW, **options) -> None:
    await fleet(store, "a")
    await store.create_enrolment("news", Enrolment("e", now, **options), SECRET, now=now)


async def used(store) -> int:
    (found,) = await store.enrolments("news")
    return found.n_used


async def test_the_same_nonce_gets_the_same_agent_and_uses_one(store):
    await enrolling(store, max_uses=1)
    first = await store.redeem("news", wanted(), now=NOW)
    again = await store.redeem("news", wanted(agent="web-2"), now=NOW)
    assert (first.agent, first.is_new, again.agent, again.is_new) == ("web-1", True, "web-1", False)
    assert await used(store) == 1
    who = await store.find_token(wanted().token_hash)
    assert who is not None and (who.role, who.name, who.model) == ("agent", "web-1", "news")
    agent = await store.agent("news", "web-1")
    assert (agent.enrolment, agent.created, agent.retired) == ("e", NOW, None)
    assert (await store.load("news")).n_agents == 2


async def test_concurrent_retries_of_one_nonce_make_one_agent(store):
    await enrolling(store, max_uses=3)
    found = await asyncio.gather(*(store.redeem("news", wanted(agent=f"w{i}"), now=NOW) for i in range(6)))
    assert len({item.agent for item in found}) == 1 and sum(item.is_new for item in found) == 1
    assert await used(store) == 1


async def test_no_more_uses_than_allowed_and_none_after_the_end(store):
    await enrolling(store, max_uses=2, expires=NOW + 10)
    results = await asyncio.gather(
        *(store.redeem("news", wanted(f"n{i}", f"w{i}"), now=NOW) for i in range(5)), return_exceptions=True
    )
    assert sum(isinstance(result, EnrolmentEnded) for result in results) == 3
    assert await used(store) == 2 and (await store.load("news")).n_agents == 3
    won = next(i for i, result in enumerate(results) if not isinstance(result, EnrolmentEnded))
    late = await store.redeem("news", wanted(f"n{won}", "other"), now=NOW + 20)
    assert late.agent == f"w{won}", "a retry is answered, whatever became of the enrolment"
    with pytest.raises(EnrolmentEnded, match="expired"):
        await store.redeem("news", wanted("new"), now=NOW + 10)


async def test_a_revoked_enrolment_enrols_nobody_and_its_agents_stay(store):
    await enrolling(store)
    await store.redeem("news", wanted(), now=NOW)
    await store.revoke_enrolment("news", "e")
    with pytest.raises(EnrolmentEnded, match="revoked"):
        await store.redeem("news", wanted("other", "web-2"), now=NOW)
    who = await store.find_token(wanted().token_hash)
    assert who is not None and not who.revoked
    assert (await store.redeem("news", wanted(), now=NOW)).agent == "web-1"
    with pytest.raises(UnknownEnrolment):
        await store.revoke_enrolment("news", "nothing")


async def test_a_secret_is_found_by_its_hash_and_belongs_to_one_model(store):
    await enrolling(store)
    await store.create(settings("ads"), uid="ads", now=NOW)
    who = await store.find_token(SECRET)
    assert who is not None and (who.role, who.name, who.model) == ("enrolment", "e", "news")
    with pytest.raises(Unauthenticated):
        await store.redeem("ads", wanted(), now=NOW)
    with pytest.raises(Unauthenticated):
        await store.redeem("news", wanted(secret_hash=b"x" * 32), now=NOW)
    with pytest.raises(UnknownModel):
        await store.redeem("nothing", wanted(), now=NOW)
    await store.delete("news")
    assert await store.find_token(SECRET) is None


async def test_a_name_that_is_taken_costs_no_use(store):
    await enrolling(store, max_uses=1)
    with pytest.raises(AlreadyExists):
        await store.redeem("news", wanted(agent="a"), now=NOW)
    assert await used(store) == 0
    assert (await store.redeem("news", wanted(), now=NOW)).is_new


async def test_an_agent_that_ended_or_has_another_token_is_not_given_out_again(store):
    await enrolling(store)
    await store.redeem("news", wanted(), now=NOW)
    await store.enroll("news", "web-1", b"r" * 32, now=NOW, renew=True)
    with pytest.raises(Unauthenticated, match="another token"):
        await store.redeem("news", wanted(), now=NOW)
    await store.retire("news", "web-1", on=True, now=NOW)
    with pytest.raises(Unauthenticated, match="retired"):
        await store.redeem("news", wanted(), now=NOW)
    assert await used(store) == 1


async def test_enrolments_are_listed_and_removed_long_after_their_end(store):
    await enrolling(store, expires=NOW + 1)
    await store.create_enrolment("news", Enrolment("b", NOW, "web-", 5), b"2" * 32, now=NOW)
    assert [item.name for item in await store.enrolments("news")] == ["b", "e"]
    with pytest.raises(AlreadyExists):
        await store.create_enrolment("news", Enrolment("b", NOW), b"3" * 32, now=NOW)
    later = NOW + KEPT_S + 2
    await store.create_enrolment("news", Enrolment("c", later), b"4" * 32, now=later)
    kept = await store.enrolments("news")
    assert [item.name for item in kept] == ["b", "c"], "the one that expired is gone, the one without an end stays"
    assert (kept[0].name_prefix, kept[0].max_uses, kept[0].state(later)) == ("web-", 5, "active")


# -- starts


def session(number: int, letter: str) -> str:
    return f"{number}-{letter * 32}"


async def start(store, previous: str, session: str) -> None:
    await store.start("news", "a", previous=previous, session=session)


async def test_starts_follow_one_another_and_may_be_repeated(store):
    await fleet(store, "a")
    first, second = session(1, "a"), session(2, "b")
    for previous, following in (("", first), ("", first), (first, second), (first, second)):
        await start(store, previous, following)


async def test_two_starts_from_copies_of_one_state_are_told_apart(store):
    await fleet(store, "a")
    await start(store, "", session(1, "a"))
    await start(store, session(1, "a"), session(2, "b"))
    with pytest.raises(CopiedState):
        await start(store, session(1, "a"), session(2, "c"))
    with pytest.raises(CopiedState):
        await start(store, "", session(1, "d"))
    await start(store, session(2, "b"), session(3, "e"))


async def test_a_server_that_was_restored_accepts_the_agent_that_is_ahead(store):
    await fleet(store, "a")
    await start(store, "", session(1, "a"))
    await start(store, session(4, "b"), session(5, "c"))
    with pytest.raises(CopiedState):
        await start(store, session(4, "b"), session(5, "d"))


@pytest.mark.parametrize(
    ("previous", "following"), [("", "1-xyz"), ("", session(2, "a")), (session(1, "a"), session(3, "a"))]
)
async def test_a_malformed_start_is_told(store, previous, following):
    await fleet(store, "a")
    with pytest.raises(InvalidParameter):
        await start(store, previous, following)
    with pytest.raises(UnknownAgent):
        await store.start("news", "nobody", previous="", session=session(1, "a"))


# -- retiring, pruning, folding


async def names(store, retired) -> list[str]:
    return [agent.name for agent in (await store.agents("news", PageQuery(retired=retired))).agents]


async def test_a_retired_agent_keeps_its_data_and_loses_its_token(store):
    await fleet(store, "a", "b")
    await merged(store, upload("a"), upload("b"))
    before = await store.state("news")
    await store.retire("news", "a", on=True, now=NOW)
    await store.retire("news", "a", on=True, now=NOW)
    after = await store.state("news")
    assert after.packed == before.packed
    assert (after.model.n_agents, after.model.n_retired, after.model.version) == (1, 1, 2)
    who = await store.find_token(token_of("a"))
    assert who is not None and who.revoked and who.retired
    assert isinstance(await outcome(store, upload("a", 2)), Unauthenticated)
    assert (await names(store, False), await names(store, True), await names(store, None)) == (["b"], ["a"], ["a", "b"])
    assert (await store.fleet("news", since=0.0)).n_agents == 1
    await store.retire("news", "a", on=False, now=NOW)
    assert not isinstance(await outcome(store, upload("a", 2)), Exception)
    assert ((await store.load("news")).n_agents, (await store.load("news")).n_retired) == (2, 0)


async def test_a_renewed_token_brings_a_retired_agent_back(store):
    await fleet(store, "a")
    await store.retire("news", "a", on=True, now=NOW)
    await store.enroll("news", "a", b"n" * 32, now=NOW, renew=True)
    assert ((await store.load("news")).n_agents, (await store.load("news")).n_retired) == (1, 0)
    assert await names(store, False) == ["a"]


async def test_a_retired_agent_can_still_be_forgotten(store):
    await fleet(store, "a", "b")
    await merged(store, upload("a"), upload("b"))
    await store.retire("news", "a", on=True, now=NOW)
    await store.forget("news", "a", now=NOW)
    assert (await store.state("news")).packed == folded(upload("b"))


async def test_silent_agents_are_those_without_an_upload_since(store):
    await fleet(store, "a", "b", "c")
    await store.merge("news", [upload("a")], now=NOW + 100)
    assert await store.silent("news", before=NOW + 50, limit=10) == ["b", "c"]
    assert await store.silent("news", before=NOW + 200, limit=10) == ["b", "c", "a"]
    assert await store.silent("news", before=NOW + 200, limit=1) == ["b"]
    await store.retire("news", "b", on=True, now=NOW)
    assert await store.silent("news", before=NOW + 50, limit=10) == ["c"]
    assert await store.silent("news", before=NOW, limit=10) == []


async def fold(store, before: float = NOW + 1) -> int:
    return await store.fold_retired("news", before=before, token_hash=b"f" * 32, now=NOW)


async def test_folded_agents_share_one_row_and_the_state_does_not_change(store):
    await fleet(store, "a", "b", "c", "d")
    uploads = [upload(name) for name in "abcd"]
    await merged(store, *uploads, upload("a", 2))
    for name in "ab":
        await store.retire("news", name, on=True, now=NOW)
    before = await store.state("news")
    assert await fold(store, NOW) == 0, "those retired since then stay"
    assert await fold(store) == 2 and await fold(store) == 0
    assert await store.state("news") == before
    assert await names(store, None) == [FOLDED, "c", "d"]
    total = np.frombuffer(await store.contribution("news", FOLDED))
    assert np.array_equal(total, sum(item.numbers for item in (upload("a"), upload("a", 2), upload("b"))))
    row = await store.agent("news", FOLDED)
    assert (row.n_uploads, row.n_obs, row.revoked, row.last_seen) == (3, 12, True, NOW)
    await store.retire("news", "c", on=True, now=NOW)
    assert await fold(store) == 1
    assert (await store.agent("news", FOLDED)).n_uploads == 4
    after = await store.forget("news", FOLDED, now=NOW)
    assert (await store.state("news")).packed == folded(upload("d"))
    assert (after.n_agents, after.n_retired) == (1, 3)


async def test_the_name_of_a_folded_agent_is_never_given_again(store):
    await enrolling(store)
    await merged(store, upload("a"))
    await store.retire("news", "a", on=True, now=NOW)
    await fold(store)
    for renew in (False, True):
        with pytest.raises(AlreadyExists, match="folded"):
            await store.enroll("news", "a", b"n" * 32, now=NOW, renew=renew)
    with pytest.raises(AlreadyExists, match="folded"):
        await store.redeem("news", wanted(agent="a"), now=NOW)
    assert await store.find_token(token_of("a")) is None


async def test_an_agent_in_quarantine_is_not_folded(store):
    await fleet(store, "a")
    await merged(store, upload("a"))
    await store.quarantine("news", "a", on=True, now=NOW)
    await store.retire("news", "a", on=True, now=NOW)
    assert await fold(store) == 0
    assert await names(store, True) == ["a"]
