"""Traces and metrics of a real server process, as a collector receives them by OTLP over HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedbandit.errors import InvalidParameter
from fedbandit.service.settings import ServerSettings
from fedbandit.wire import codec
from tests.live import running_server
from tests.service.uploads import incoming, request

pytest.importorskip("opentelemetry.sdk")


class Collector(ThreadingHTTPServer):
    """Keeps what arrives, decoded."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.spans: list = []
        self.metrics: dict = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        elif self.path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.server.metrics |= {item.name: item for scope in resource.scope_metrics for item in scope.metrics}
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def attributes(span) -> dict:
    return {item.key: item.value.string_value or item.value.int_value for item in span.attributes}


def test_a_collector_receives_a_span_per_exchange_and_the_metrics(tmp_path: Path, collector: Collector) -> None:
    with running_server(tmp_path, environment={"FEDBANDIT_OTLP_ENDPOINT": collector.url}) as server:
        server.add_model("news", dim=3)
        token = server.add_agent("news", "a")
        for sequence, status in ((1, 200), (1, 200), (7, 409)):
            body = codec.encode(request(incoming("a", sequence)))
            assert server.request("POST", "/v1/models/news/sync", token=token, body=body).status == status
        server.stop()  # exports what is left
    exchanges = [attributes(span) for span in collector.spans if span.name == "exchange"]
    assert [found["fedbandit.result"] for found in exchanges] == ["merged", "repeated", "refused"]
    assert exchanges[2]["fedbandit.error"] == "sequence_gap" and exchanges[2]["http.response.status_code"] == 409
    assert {found["fedbandit.model"] for found in exchanges} == {"news"}
    assert any(span.name == "POST request" for span in collector.spans)
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in collector.spans)
    points = collector.metrics["fedbandit_exchanges"].sum.data_points
    found = {tuple(item.value.string_value for item in point.attributes): point.as_double for point in points}
    assert found == {("news", "merged"): 1.0, ("news", "repeated"): 1.0, ("news", "refused"): 1.0}
    assert collector.metrics["fedbandit_exchange_seconds_count"].sum.data_points[0].as_double == 3.0
    text = server.log() + str(collector.spans)
    assert token not in text


def test_a_collector_that_is_down_costs_no_exchange(tmp_path: Path) -> None:
    with running_server(tmp_path, environment={"FEDBANDIT_OTLP_ENDPOINT": "http://127.0.0.1:9"}) as server:
        server.add_model("news", dim=3)
        token = server.add_agent("news", "a")
        body = codec.encode(request(incoming("a", 1)))
        assert server.request("POST", "/v1/models/news/sync", token=token, body=body).status == 200


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="otlp_endpoint"):
        ServerSettings(otlp_endpoint="collector:4318")
