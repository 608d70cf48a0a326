"""Libraries under the server log through `logging`; their words come as lines like ours."""

import asyncio
import io
import json
import logging

from fedbandit.service.admin.auth import new_token
from fedbandit.service.telemetry import LibraryLog, make_logger


def test_a_librarys_traceback_becomes_one_line_with_a_reason() -> None:
    stream = io.BytesIO()
    library = logging.getLogger("some.pool")
    with LibraryLog(make_logger(stream=stream)):
        try:
            raise ConnectionResetError("the database is shutting down")
        except OSError:
            library.warning("no connection for %s", "now", exc_info=True)
        library.info("not worth a line")
    (line,) = stream.getvalue().splitlines()
    found = json.loads(line)
    assert (found["event"], found["source"], found["message"]) == ("library", "some.pool", "no connection for now")
    assert (found["error"], found["reason"]) == ("ConnectionResetError", "the database is shutting down")


def test_requests_that_a_stop_cuts_off_are_a_warning() -> None:
    stream = io.BytesIO()
    library = logging.getLogger("uvicorn.error")
    with LibraryLog(make_logger(stream=stream)):
        library.error("Cancel %s running task(s), timeout graceful shutdown exceeded", 3)
        try:
            raise asyncio.CancelledError("Task cancelled, timeout graceful shutdown exceeded")
        except asyncio.CancelledError:
            library.error("Exception in ASGI application", exc_info=True)
        library.error("something else")
    assert [json.loads(line)["level"] for line in stream.getvalue().splitlines()] == ["warning", "warning", "error"]


def test_afterwards_the_process_logs_as_before() -> None:
    before = list(logging.getLogger().handlers)
    with LibraryLog(make_logger(stream=io.BytesIO())):
        assert logging.getLogger().handlers != before
    assert logging.getLogger().handlers == before


def test_a_token_that_was_put_into_a_path_is_not_logged(service):
    token = service.fleet("a")["a"]
    assert len(token) == len(new_token())
    for path in (f"/v1/models/{token}", f"/v1/models/{token}/sync", f"/{token}", f"/v1/models/news/agents/{token}"):
        service.request("POST", path, token=token, content=b"x")
        service.request("GET", path)
    logged = service.log.getvalue().decode()
    assert "fb_[hidden]" in logged
    assert token not in logged
