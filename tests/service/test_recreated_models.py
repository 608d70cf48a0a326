"""A model that was deleted and created again under its name: nothing that was cached of the old one counts."""

import asyncio

import pytest

from fedbandit.service.stores.memory import MemoryStore
from fedbandit.service.stores.postgres import PostgresStore
from fedbandit.service.stores.sqlite.store import SqliteStore
from fedbandit.wire import codec
from tests.service.conftest import Service, running
from tests.service.uploads import incoming, request

STRICT = {"reward_bound": 0.1}  # less than the rewards of the uploads below
WIDE = {"reward_bound": 100.0}


@pytest.fixture(params=["memory", "sqlite", "two replicas on postgres"])
def replicas(request, tmp_path):
    """The server that an administrator calls, and the one that agents call."""
    if request.param == "two replicas on postgres":
        address = request.getfixturevalue("database")
        first = running(store=PostgresStore(address, pool_size=2))
        second = running(store=PostgresStore(address, pool_size=2))
        yield next(first), next(second)
        for server in (first, second):
            next(server, None)
        return
    store = MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "data")
    server = running(store=store)
    made = next(server)
    yield made, made
    next(server, None)


def recreate(server: Service, **bounds) -> str:
    server.call("DELETE", "/v1/models/news")
    return server.fleet("a", **bounds)["a"]


def test_the_bounds_of_a_new_model_hold_at_once(replicas):
    one, other = replicas
    token = one.fleet("a", **WIDE)["a"]
    assert other.send(token).status_code == 200
    token = recreate(one, **STRICT)
    refused = other.send(token)
    assert (refused.status_code, refused.json()["error"]) == (422, "implausible_upload")
    assert one.call("GET", "/v1/models/news")["n_obs"] == 0


def test_honest_uploads_are_not_refused_by_the_bounds_of_a_deleted_model(replicas):
    one, other = replicas
    token = one.fleet("a", **STRICT)["a"]
    assert other.send(token).status_code == 422
    token = recreate(one, **WIDE)
    assert other.send(token).status_code == 200


def test_another_dimension_is_known_at_once(replicas):
    one, other = replicas
    token = one.fleet("a", dim=5)["a"]
    assert other.send(token).status_code == 422
    token = recreate(one)
    assert other.send(token).status_code == 200


def test_settings_that_were_read_before_a_model_was_recreated_decide_nothing(replicas):
    """A slow read of the old settings ends after the new ones were read: the next upload is not checked by them."""
    one, other = replicas
    token = recreated_during_a_slow_read(one, other, WIDE, STRICT, 422)
    first = other.send(token)
    second = other.send(token)
    assert {first.status_code, second.status_code} <= {422, 503}
    assert second.json()["error"] == "implausible_upload"
    assert one.call("GET", "/v1/models/news")["n_obs"] == 0


def test_settings_that_were_read_before_a_model_was_recreated_refuse_nothing(replicas):
    """The other way round: what only the old bounds forbid is to be sent again, and then it is merged."""
    one, other = replicas
    token = recreated_during_a_slow_read(one, other, STRICT, WIDE, 200, late_agent="another")
    answers = [other.send(token, sequence=2) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [503, 200]
    assert answers[0].json()["error"] == "model_changed"
    assert one.call("GET", "/v1/models/news")["n_obs"] == 8


def recreated_during_a_slow_read(
    one: Service, other: Service, old: dict, new: dict, status: int, *, late_agent: str = "a"
) -> str:
    """The new agent's token, where the settings of the deleted model came last into the cache of `other`."""
    before = one.fleet("a", **old)["a"]
    load = other.container.store.load
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(model):
        found = await load(model)
        begun.set()
        await go_on.wait()
        return found

    other.container.store.load = slow
    with other.portal.wrap_async_context_manager(_task(other, before, late_agent)) as late:
        other.portal.call(begun.wait)
        other.container.store.load = load
        token = recreate(one, **new)
        assert other.send(token).status_code == status
        other.portal.call(go_on.set)
        other.portal.call(late.wait)
    return token


class _task:  # noqa: N801 - used like a function
    """An upload that travels while the test goes on."""

    def __init__(self, server: Service, token: str, agent: str) -> None:
        self.server, self.token, self.agent = server, token, agent
        self.done = asyncio.Event()

    async def __aenter__(self):
        async def send():
            await self.server.client.post(
                "/v1/models/news/sync",
                headers={"Authorization": f"Bearer {self.token}"},
                content=codec.encode(request(incoming(self.agent))),
            )
            self.done.set()

        self.task = asyncio.get_running_loop().create_task(send())
        return self

    async def wait(self) -> None:
        await asyncio.wait_for(self.done.wait(), 10)

    async def __aexit__(self, *_):
        self.task.cancel()
