"""A small HTTP server in front of a hub that does to clients what networks and proxies do."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedbandit.errors import Refused
from fedbandit.sdk import LocalServer
from fedbandit.sdk.transport import TransportReply
from fedbandit.wire.codec import CONTENT_TYPE, encode

Scripted = tuple[int, dict[str, str], bytes]


class Stub:
    """`script` answers come before honest ones; "drop" cuts the connection after the hub has worked."""

    def __init__(self, hub: LocalServer, token: str = "secret-token") -> None:
        self.hub = hub
        self.token = token
        self.script: deque[Scripted | str] = deque()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.connections: set[Any] = set()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                stub.handle(self, b"")

            def do_POST(self) -> None:
                stub.handle(self, self.rfile.read(int(self.headers["Content-Length"])))

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def handle(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        self.requests.append((handler.command, handler.path, dict(handler.headers)))
        self.connections.add(handler.client_address)
        step = self.script.popleft() if self.script else "honest"
        if isinstance(step, tuple):
            return self.reply(handler, *step)
        try:
            status, headers, content = self.honest(handler, body)
        except Refused as error:
            content = json.dumps({"error": error.reason, "message": str(error)}).encode()
            status, headers = error.status, {"Content-Type": "application/json"}
        if step == "drop":
            handler.close_connection = True
            handler.connection.close()
            return None
        return self.reply(handler, status, headers, content)

    def honest(self, handler: BaseHTTPRequestHandler, body: bytes) -> Scripted:
        if handler.headers.get("Authorization") != f"Bearer {self.token}":
            raise Refused("who are you?", reason="unauthenticated", status=401)
        way = self.hub.transport("a")
        parts = urlsplit(handler.path)
        if not parts.path.startswith(f"/v1/models/{self.hub.name}"):
            raise Refused("no such model", reason="unknown_model", status=404)
        if parts.path.endswith("/sync"):
            return self.message(way.sync(body, timeout_s=1.0))
        if parts.path.endswith("/state"):
            incarnation = parse_qs(parts.query)["incarnation"][0]
            answer = way.state(incarnation, handler.headers.get("If-None-Match"), timeout_s=1.0)
            return (304, {}, b"") if answer is None else self.message(answer)
        return 200, {"Content-Type": "application/json"}, json.dumps(way.describe(timeout_s=1.0)).encode()

    def message(self, answer: TransportReply) -> Scripted:
        return 200, {"Content-Type": CONTENT_TYPE, "ETag": answer.tag or ""}, encode(answer.reply)

    def reply(self, handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: bytes) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)


@contextmanager
def running_stub(hub: LocalServer) -> Iterator[Stub]:
    stub = Stub(hub)
    thread = threading.Thread(target=stub.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        stub.server.shutdown()
        stub.server.server_close()
        thread.join()
