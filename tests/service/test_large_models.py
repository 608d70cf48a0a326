"""Models of many features: what takes long for them does not run where all connections are served."""

import threading

import pytest

from fedbandit.service.admin import operations
from fedbandit.service.exchange import handler
from fedbandit.service.http import routes
from fedbandit.wire import codec
from tests.service.uploads import incoming, request

DIM = 256


@pytest.fixture
def where(monkeypatch):
    """The threads in which the long steps ran."""
    seen = {}

    def watched(owner, name):
        real = getattr(owner, name)

        def run(*args, **options):
            seen.setdefault(name, set()).add(threading.get_ident())
            return real(*args, **options)

        monkeypatch.setattr(owner, name, run)

    watched(operations, "export")
    watched(codec, "encode")
    watched(codec, "decode_request")
    watched(handler, "require_plausible")
    return seen


def test_long_steps_leave_the_event_loop_free(service, where):
    token = service.fleet("a", dim=DIM)["a"]
    loop_thread = service.portal.call(threading.get_ident)
    body = codec.encode(request(incoming("a", 1, dim=DIM), dim=DIM))
    where.clear()
    assert service.request("POST", "/v1/models/news/sync", token=token, content=body).status_code == 200
    assert service.request("GET", "/v1/models/news/state", token=token).status_code == 200
    assert service.request("GET", "/v1/models/news/export").status_code == 200
    assert set(where) == {"export", "encode", "decode_request", "require_plausible"}
    for step, threads in where.items():
        assert loop_thread not in threads, f"{step} ran in the event loop"
    assert routes.LARGE_DIM <= DIM
