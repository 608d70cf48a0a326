"""docs/http-api.md and docs/operations.md say what the code does."""

import re
from dataclasses import fields
from pathlib import Path

from fedbandit.errors import FedbanditError
from fedbandit.service.http.error_responses import status_of
from fedbandit.service.settings import PREFIX, ServerSettings
from fedbandit.service.stores.base import SORTS

DOCS = Path(__file__).resolve().parents[2] / "docs"


def all_errors(kind: type = FedbanditError) -> set[type]:
    return {kind}.union(*(all_errors(child) for child in kind.__subclasses__()))


def test_every_route_is_documented_and_every_documented_route_exists(service):
    described = service.call("GET", "/openapi.json")["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    text = (DOCS / "http-api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `((?:GET|POST|PATCH|DELETE) [^`]+)` \|", text, re.MULTILINE)) == routes


def test_every_error_code_that_the_document_names_exists_with_its_status():
    statuses = {error.code: status_of(error("why")) for error in all_errors()}
    text = (DOCS / "http-api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d{3}) \| ([^|]+) \|", text, re.MULTILINE)
    assert len(rows) > 10
    for status, codes in rows:
        for code in re.findall(r"`(\w+)`", codes):
            if code in statuses:
                assert statuses[code] == int(status), code
            else:
                assert code in ("not_found", "method_not_allowed", "internal_error")


def test_every_setting_is_documented():
    text = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    for field in fields(ServerSettings):
        assert f"`{field.name}`" in text
        assert f"`{PREFIX}{field.name.upper()}`" in text


def test_every_sort_key_is_documented():
    text = (DOCS / "http-api.md").read_text(encoding="utf-8")
    assert all(f"`{key}`" in text for key in SORTS)


def test_every_metric_that_the_document_names_exists(service):
    tokens = service.fleet("a")
    service.send(tokens["a"])
    metrics = service.request("GET", "/metrics").text
    text = (DOCS / "operations.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(fedbandit_[a-z_]+)", text))
    assert len(named) > 5
    assert [name for name in named if name not in metrics] == []


def test_the_description_names_every_status_and_the_error_shape(service):
    document = service.call("GET", "/openapi.json")
    sync = document["paths"]["/v1/models/{model}/sync"]["post"]
    assert {"200", "401", "403", "409", "413", "422", "503"} <= set(sync["responses"])
    assert set(document["components"]["schemas"]["Problem"]["required"]) == {"error", "message"}
