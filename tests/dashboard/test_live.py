"""What a live stream sends: first everything, then only what changed, and it never grows."""

import asyncio
import json

import pytest

from fedbandit.dashboard import live
from fedbandit.dashboard.figures import Series
from fedbandit.dashboard.frame import Frame
from fedbandit.dashboard.fresh import Fresh
from fedbandit.dashboard.live import Changes, Streams
from fedbandit.dashboard.markup import Html, tag
from fedbandit.errors import Overloaded, Unauthenticated, UnknownModel

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def frame(text="one", x=(1.0, 2.0), **options):
    y = [10 * at for at in x]
    return Frame("title", Html(""), {"part": tag("p", text)}, {"line": Series(list(x), y)}, **options)


def test_a_part_is_sent_once_until_it_changes():
    changes = Changes()
    assert changes.since(frame())["parts"] == {"part": "<p>one</p>"}
    assert changes.since(frame()) == {}
    assert changes.since(frame("two"))["parts"] == {"part": "<p>two</p>"}


def test_a_line_is_sent_whole_and_then_by_its_new_points():
    changes = Changes()
    assert changes.since(frame())["series"]["line"] == {"how": "all", "x": [1.0, 2.0], "y": [10.0, 20.0]}
    more = changes.since(frame(x=(1.0, 2.0, 3.5)))["series"]["line"]
    assert more == {"how": "more", "x": [3.5], "y": [35.0]}


def test_thinning_on_the_server_sends_nothing_twice():
    changes = Changes()
    changes.since(frame(x=(1.0, 2.0, 3.0)))
    assert changes.since(frame(x=(2.0, 3.0))) == {}
    assert changes.since(frame(x=(3.0, 4.0)))["series"]["line"]["x"] == [4.0]


def test_an_empty_line_is_told_once():
    changes = Changes()
    assert changes.since(frame(x=()))["series"]["line"] == {"how": "all", "x": [], "y": []}
    assert changes.since(frame(x=())) == {}
    assert changes.since(frame(x=(5.0,)))["series"]["line"]["x"] == [5.0]


def test_a_line_that_may_change_anywhere_is_sent_whole():
    changes = Changes()
    first, second = Series([1.0, 2.0], [1.0, 2.0], append=False), Series([1.0, 3.0], [1.0, 4.0], append=False)
    assert changes.since(Frame("", Html(""), {}, {"line": first}))["series"]["line"]["how"] == "all"
    assert changes.since(Frame("", Html(""), {}, {"line": first})) == {}
    assert changes.since(Frame("", Html(""), {}, {"line": second}))["series"]["line"]["y"] == [1.0, 4.0]


class Log:
    def error(self, *_, **__):
        pass


def streams(stopping=None):
    return Streams(stopping or asyncio.Event(), lambda: 1000.0, Log())


async def welcome():
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


async def test_a_final_frame_ends_the_stream():
    async def look():
        return frame(is_final=True)

    kinds = [kind for kind, _ in await read(streams().events(look, welcome))]
    assert kinds == ["news", "over"]


async def test_what_goes_wrong_is_told_and_ends_the_stream():
    async def gone():
        raise UnknownModel("there is no model 'news'")

    async def broken():
        raise ZeroDivisionError

    assert (await read(streams().events(gone, welcome)))[0][1]["error"] == "unknown_model"
    assert (await read(streams().events(broken, welcome)))[0][1]["error"] == "internal_error"


async def test_a_visitor_whose_token_was_revoked_is_shown_out(monkeypatch):
    monkeypatch.setattr(live, "INTERVAL_S", 0.001)
    monkeypatch.setattr(live, "CHECK_S", 0.003)

    async def look():
        return frame()

    async def unwelcome():
        raise Unauthenticated("this token is not known here")

    events = await read(streams().events(look, unwelcome))
    assert events[-1][1]["error"] == "unauthenticated"


async def test_streams_end_with_the_server():
    stopping = asyncio.Event()

    async def look():
        return frame()

    async def follow():
        return await read(streams(stopping).events(look, welcome))

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.02)
    stopping.set()
    async with asyncio.timeout(2):
        assert [kind for kind, _ in await task] == ["news"]


async def test_too_many_streams_are_refused_and_make_room_when_they_end(monkeypatch):
    monkeypatch.setattr(live, "MAX_STREAMS", 1)
    made = streams()

    async def look():
        return frame()

    stream = made.events(look, welcome)
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

    fresh = Fresh(ttl_s=60)
    assert await asyncio.gather(*(fresh.get("key", make) for _ in range(10))) == [1] * 10
    assert await fresh.get("key", make) == 1
    assert await fresh.get("other", make) == 2


async def test_a_failure_is_told_and_not_remembered():
    answers = iter([ValueError("first"), 7])

    async def make():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    fresh = Fresh(ttl_s=60)
    with pytest.raises(ValueError, match="first"):
        await fresh.get("key", make)
    assert await fresh.get("key", make) == 7


async def test_a_visitor_who_leaves_does_not_take_the_answer_away():
    async def make():
        await asyncio.sleep(0.02)
        return 1

    fresh = Fresh(ttl_s=60)
    leaving = asyncio.create_task(fresh.get("key", make))
    staying = asyncio.create_task(fresh.get("key", make))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await staying == 1


async def test_the_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("fedbandit.dashboard.fresh.MAX_ENTRIES", 5)

    async def make():
        return 1

    fresh = Fresh(ttl_s=60)
    for key in range(50):
        await fresh.get(key, make)
    assert len(fresh._entries) == 5
