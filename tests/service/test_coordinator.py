"""The queue between requests and the store: nobody waits for ever, nothing is taken that cannot be served."""

import asyncio
import io
import json

import pytest

from fedbandit.errors import Overloaded, StoreUnavailable
from fedbandit.service.container import make_container
from fedbandit.service.settings import ServerSettings
from fedbandit.service.stores.memory import MemoryStore
from fedbandit.service.telemetry import make_logger
from tests.service.uploads import TOKEN, incoming, settings

pytestmark = pytest.mark.anyio
LATE_S = 10.0


class HeldStore(MemoryStore):
    """A store whose merges wait until they may go on, and fail when they shall."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.failure: Exception | None = None

    async def merge(self, *args, **options):
        await self.may_go_on.wait()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return await super().merge(*args, **options)


class Place:
    """A coordinator on such a store, with a model and agents."""

    def __init__(self, **changes) -> None:
        self.log = io.BytesIO()
        self.store = HeldStore()
        self.container = make_container(ServerSettings(**changes), make_logger("info", self.log), store=self.store)
        self.coordinator = self.container.coordinator

    async def start(self, n_agents=1):
        await self.container.start()
        await self.store.create(settings(), uid="u", now=0.0)
        for n in range(n_agents):
            await self.store.enroll("news", f"agent-{n}", TOKEN[:-4] + n.to_bytes(4, "big"), now=0.0)

    def send(self, n=0, sequence=1):
        upload = incoming(f"agent-{n}", sequence, token=TOKEN[:-4] + n.to_bytes(4, "big"))
        return asyncio.create_task(self.coordinator.receive("news", upload))

    def queued(self):
        text, _ = self.container.metrics.render()
        (line,) = [line for line in text.decode().splitlines() if line.startswith("fedbandit_queued_uploads ")]
        return float(line.split()[-1])


async def until(check):
    async with asyncio.timeout(LATE_S):
        while not check():
            await asyncio.sleep(0.001)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.parametrize("failure", [ZeroDivisionError("planted"), OSError("disk"), MemoryError(), AssertionError()])
async def test_an_unexpected_failure_of_the_store_is_answered_and_the_queue_goes_on(failure):
    place = Place(max_batch=2)
    await place.start(n_agents=5)
    place.store.failure = failure
    sent = [place.send(n) for n in range(5)]
    async with asyncio.timeout(LATE_S):
        answers = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(answer) for answer in answers[:2]] == [StoreUnavailable] * 2
    assert [answer.acknowledged.sequence for answer in answers[2:]] == [1, 1, 1]
    (told,) = [
        entry for line in place.log.getvalue().splitlines() if (entry := json.loads(line))["event"] == "merge_failed"
    ]
    assert told["error"] == type(failure).__name__
    for n in (0, 1):  # what was not merged can be sent again
        assert (await place.send(n)).acknowledged.is_new
    await place.container.stop()


async def test_a_draining_server_takes_no_uploads_and_finishes_those_it_has():
    place = Place()
    await place.start(n_agents=3)
    place.store.may_go_on.clear()
    taken = place.send(0)
    await until(lambda: place.queued() == 0 and place.coordinator._queues)
    stopping = asyncio.create_task(place.coordinator.drain())
    await until(lambda: place.coordinator.overload_reason("news") is not None)
    for model in ("news", "another"):
        assert "shutting down" in place.coordinator.overload_reason(model)
    with pytest.raises(Overloaded, match="shutting down"):
        await place.send(1)
    assert not stopping.done()
    place.store.may_go_on.set()
    async with asyncio.timeout(LATE_S):
        assert (await taken).acknowledged.sequence == 1
        await stopping
    with pytest.raises(Overloaded, match="shutting down"):
        await place.send(2)
    assert (await place.store.load("news")).n_uploads == 1
    await place.container.stop()


async def test_the_queue_of_a_model_is_as_long_as_its_limit_and_no_longer():
    place = Place(max_queue=3, max_batch=1)
    await place.start(n_agents=6)
    await place.store.create(settings("other"), uid="v", now=0.0)
    place.store.may_go_on.clear()
    sent = [place.send(0)]
    await until(lambda: place.coordinator._queues and place.queued() == 0)  # it is being merged
    for n in (1, 2, 3):
        assert place.coordinator.overload_reason("news") is None
        sent.append(place.send(n))
        await until(lambda n=n: place.queued() == n)
    assert "3 uploads" in place.coordinator.overload_reason("news")
    assert place.coordinator.overload_reason("other") is None
    with pytest.raises(Overloaded, match="3 uploads to model 'news'"):
        await place.send(4)
    place.store.may_go_on.set()
    async with asyncio.timeout(LATE_S):
        assert len(await asyncio.gather(*sent)) == 4
    assert (await place.send(4)).acknowledged.is_new
    await place.container.stop()
