"""The page in this process: the whole application, its clock in our hands, and a client that is on this machine."""

import httpx
import pytest

from fedbandit.dashboard.routes import page_routes
from fedbandit.service.app import make_app
from tests.service.conftest import ADMIN_TOKEN, Service, running

VIEWER = "viewer-token-of-the-tests"


class Window(Service):
    """The service with its page."""

    def __init__(self, portal, **settings) -> None:
        super().__init__(portal, **settings)
        self.app = make_app(self.parts, routes=page_routes(self.parts))
        self.client = self.client_at("http://127.0.0.1:8700")

    def client_at(self, address, *, client=("127.0.0.1", 50000)):
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=client)
        return httpx.AsyncClient(transport=transport, base_url=address)

    def show(self, path, *, token=ADMIN_TOKEN, **options):
        """A page that must be there."""
        answer = self.request("GET", path, token=token, **options)
        assert answer.status_code == 200, (answer.status_code, answer.text[:500])
        return answer.text

    def sign_in(self, token, target="/"):
        return self.request("POST", "/login", token="", data={"token": token, "next": target})


@pytest.fixture
def window():
    yield from running(Window)


@pytest.fixture
def open_window():
    yield from running(Window, open_page=True)
