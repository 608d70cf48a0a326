"""What a live stream sends: first everything, then only what changed, and it never grows."""

import asyncio
import json

import pytest

from fedbandit.dashboard import stream as live
from fedbandit.dashboard.chart_series import ChartSeries
from fedbandit.dashboard.components import RenderedView
from fedbandit.dashboard.data_sources import TtlCache
from fedbandit.dashboard.markup import Html, tag
from fedbandit.dashboard.stream import EventStreams, StreamChanges
from fedbandit.errors import Overloaded, Unauthenticated, UnknownModel

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def frame(text="one", x=(1.0, 2.0), **options):
    y = [10 * at for at in x]
    return RenderedView("title", Html(""), {"part": tag("p", text)}, {"line": ChartSeries(list(x), y)}, **options)


def test_a_part_is_sent_once_until_it_changes():
    changes = StreamChanges()
    assert changes.since(frame())["parts"] == {"part": "<p>one</p>"}
    assert changes.since(frame()) == {}
    assert changes.since(frame("two"))["parts"] == {"part": "<p>two</p>"}


def test_a_line_is_sent_whole_and_then_by_its_new_points():
    changes = StreamChanges()
    assert changes.since(frame())["series"]["line"] == {"how": "all", "x": [1.0, 2.0], "y": [10.0, 20.0]}
    more = changes.since(frame(x=(1.0, 2.0, 3.5)))["series"]["line"]
    assert more == {"how": "more", "x": [3.5], "y": [35.0]}


def test_thinning_on_the_server_sends_nothing_twice():
    changes = StreamChanges()
    changes.since(frame(x=(1.0, 2.0, 3.0)))
    assert changes.since(frame(x=(2.0, 3.0))) == {}
    assert changes.since(frame(x=(3.0, 4.0)))["series"]["line"]["x"] == [4.0]


def test_an_empty_line_is_sent_once():
    changes = StreamChanges()
    assert changes.since(frame(x=()))["series"]["line"] == {"how": "all", "x": [], "y": []}
    assert changes.since(frame(x=())) == {}
    assert changes.since(frame(x=(5.0,)))["series"]["line"]["x"] == [5.0]


def test_a_line_that_may_change_anywhere_is_sent_whole():
    changes = StreamChanges()
    first, second = ChartSeries([1.0, 2.0], [1.0, 2.0], append=False), ChartSeries([1.0, 3.0], [1.0, 4.0], append=False)
    assert changes.since(RenderedView("", Html(""), {}, {"line": first}))["series"]["line"]["how"] == "all"
    assert changes.since(RenderedView("", Html(""), {}, {"line": first})) == {}
    assert changes.since(RenderedView("", Html(""), {}, {"line": second}))["series"]["line"]["y"] == [1.0, 4.0]


class Log:
    def error(self, *_, **__):
        pass


def streams(stopping=None):
    return EventStreams(stopping or asyncio.Event(), lambda: 1000.0, Log())


async def authorised():
    return None


async def read(stream, n=100):
    """Events as (kind, data), the first line about retries left out."""
    found = []
    async for text in stream:
        if text.startswith("event:"):
            kind, data = text.strip().split("\n")
            found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        if len(found) >= n:
            break
    return found


async def test_a_failure_is_sent_and_ends_the_stream():
    async def gone():
        raise UnknownModel("there is no model 'news'")

    async def broken():
        raise ZeroDivisionError

    assert (await read(streams().events(gone, authorised)))[0][1]["error"] == "unknown_model"
    assert (await read(streams().events(broken, authorised)))[0][1]["error"] == "internal_error"


async def test_a_visitor_whose_token_was_revoked_sees_nothing_more(monkeypatch):
    monkeypatch.setattr(live, "INTERVAL_S", 0.001)
    n_frames, is_revoked = 0, False

    async def render():
        nonlocal n_frames, is_revoked
        n_frames += 1
        is_revoked = n_frames == 3
        return frame()

    async def unless_revoked():
        if is_revoked:
            raise Unauthenticated("this token is not known here")

    events = await read(streams().events(render, unless_revoked))
    assert events[-1][1]["error"] == "unauthenticated"
    assert n_frames == 3


async def test_streams_end_with_the_server():
    stopping = asyncio.Event()

    async def render():
        return frame()

    async def follow():
        return await read(streams(stopping).events(render, authorised))

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.02)
    stopping.set()
    async with asyncio.timeout(2):
        assert [kind for kind, _ in await task] == ["update"]


async def test_too_many_streams_are_refused_and_make_room_when_they_end(monkeypatch):
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    made = streams()

    async def render():
        return frame()

    stream = made.events(render, authorised)
    await anext(stream)
    with pytest.raises(Overloaded):
        made.require_room()
    await stream.aclose()
    made.require_room()


async def test_many_who_ask_at_once_get_one_answer():
    n_calls = 0

    async def make():
        nonlocal n_calls
        n_calls += 1
        await asyncio.sleep(0.01)
        return n_calls

    fresh = TtlCache(ttl_s=60)
    assert await asyncio.gather(*(fresh.get("key", make) for _ in range(10))) == [1] * 10
    assert await fresh.get("key", make) == 1
    assert await fresh.get("other", make) == 2


async def test_a_failure_is_raised_and_not_cached():
    answers = iter([ValueError("first"), 7])

    async def make():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    fresh = TtlCache(ttl_s=60)
    with pytest.raises(ValueError, match="first"):
        await fresh.get("key", make)
    assert await fresh.get("key", make) == 7


async def test_a_visitor_who_leaves_does_not_take_the_answer_away():
    async def make():
        await asyncio.sleep(0.02)
        return 1

    fresh = TtlCache(ttl_s=60)
    leaving = asyncio.create_task(fresh.get("key", make))
    staying = asyncio.create_task(fresh.get("key", make))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == 1


async def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr("fedbandit.dashboard.data_sources.MAX_ENTRIES", 5)

    async def make():
        return 1

    fresh = TtlCache(ttl_s=60)
    for key in range(50):
        await fresh.get(key, make)
    assert len(fresh._entries) == 5
