"""A server in this process, for tests that need no real one."""

import io

import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from fedbandit.service.admin import operations
from fedbandit.service.app import make_app
from fedbandit.service.container import make_container
from fedbandit.service.settings import ServerSettings
from fedbandit.service.stores.base import Store
from fedbandit.service.stores.memory import MemoryStore
from fedbandit.service.telemetry import make_logger
from fedbandit.wire import codec
from tests.postgres import database, postgres
from tests.service.uploads import incoming, request

__all__ = ["database", "postgres"]
ADMIN_TOKEN = "admin-token-of-the-tests"


class Service:
    """The application with its client; every call is the administrator's unless another token is given."""

    def __init__(self, portal: BlockingPortal, *, store: Store | None = None, **settings) -> None:
        self.portal = portal
        self.log = io.BytesIO()
        self.now = 1000.0
        options = ServerSettings(admin_token=ADMIN_TOKEN, **settings)
        store = MemoryStore() if store is None else store
        self.container = make_container(options, make_logger("debug", self.log), store=store, clock=lambda: self.now)
        transport = httpx.ASGITransport(make_app(self.container), raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://fedbandit")

    def request(self, method, path, *, token=ADMIN_TOKEN, **options):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers.update(options.pop("headers", {}))
        return self.portal.call(lambda: self.client.request(method, path, headers=headers, **options))

    def call(self, method, path, body=None, **options):
        answer = self.request(method, path, **({} if body is None else {"json": body}), **options)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def fleet(self, *agents, model="news", **settings):
        self.call("POST", "/v1/models", {"name": model, "dim": 3, "beta": 0.5, **settings})
        add = f"/v1/models/{model}/agents"
        return {agent: self.call("POST", add, {"name": agent})["token"] for agent in agents}

    def send(self, token, agent="a", sequence=1, *, model="news", **changes):
        body = codec.encode(request(incoming(agent, sequence, **changes)))
        return self.request("POST", f"/v1/models/{model}/sync", token=token, content=body)


def running(kind=Service, **settings):
    """The application from its start to its stop, for fixtures to yield from."""
    with start_blocking_portal() as portal:
        made = kind(portal, **settings)
        portal.call(made.container.start)
        portal.call(operations.first_admin_token, made.container)
        yield made
        portal.call(made.client.aclose)
        portal.call(made.container.stop)


@pytest.fixture
def service():
    yield from running()
