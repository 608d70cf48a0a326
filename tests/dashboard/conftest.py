"""The dashboard in this process: the whole application, a clock that tests set, and a client on this machine."""

import httpx
import pytest

from fedbandit.dashboard.routes import dashboard_routes
from fedbandit.service.app import make_app
from tests.service.conftest import ADMIN_TOKEN, Service, running

VIEWER = "viewer-token-of-the-tests"


class DashboardService(Service):
    """The service with its dashboard."""

    def __init__(self, portal, **settings) -> None:
        super().__init__(portal, **settings)
        self.app = make_app(self.container, routes=dashboard_routes(self.container))
        self.client = self.client_at("http://127.0.0.1:8700")

    def client_at(self, address, *, client=("127.0.0.1", 50000)):
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, client=client)
        return httpx.AsyncClient(transport=transport, base_url=address)

    def show(self, path, *, token=ADMIN_TOKEN, **options):
        """The HTML of a view that must exist."""
        answer = self.request("GET", path, token=token, **options)
        assert answer.status_code == 200, (answer.status_code, answer.text[:500])
        return answer.text

    def sign_in(self, token, target="/"):
        return self.request("POST", "/login", token="", data={"token": token, "next": target})


@pytest.fixture
def dashboard():
    yield from running(DashboardService)


@pytest.fixture
def open_dashboard():
    yield from running(DashboardService, open_dashboard=True)
