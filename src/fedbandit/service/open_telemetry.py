"""OpenTelemetry: a span per request and the Prometheus metrics, sent to a collector by OTLP over HTTP.

Spans are recorded when a request ends, so that nothing is imported or allocated where it is off. The SDK's own
environment variables (`OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_RESOURCE_ATTRIBUTES`, …) apply.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from fedbandit.errors import MissingExtra

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

TIMEOUT_S = 10.0  # of one export
INTERVAL_MS = 15_000.0  # between exports of metrics


class OpenTelemetry:
    """Exports from background threads; a collector that does not answer costs spans, never requests."""

    def __init__(self, endpoint: str, registry: CollectorRegistry, *, interval_ms: float = INTERVAL_MS) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanKind, Status, StatusCode
        except ImportError:
            raise MissingExtra("otlp_endpoint needs OpenTelemetry: install fedbandit[server,otel]") from None
        base = endpoint.rstrip("/")
        resource = Resource.create({"service.name": "fedbandit", "service.version": version("fedbandit")})
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=f"{base}/v1/traces", timeout=TIMEOUT_S)
        self._traces.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._traces.get_tracer("fedbandit")
        self._kind, self._failed = SpanKind.SERVER, Status(StatusCode.ERROR)
        reader = PeriodicExportingMetricReader(
            OTLPMetricExporter(endpoint=f"{base}/v1/metrics", timeout=TIMEOUT_S), export_interval_millis=interval_ms
        )
        self._metrics = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        register(self._metrics.get_meter("fedbandit"), registry)

    def request(self, name: str, elapsed_s: float, *, status: int, attributes: Mapping[str, Any]) -> None:
        """Record a request that ends now."""
        end = time.time_ns()
        span = self._tracer.start_span(name, kind=self._kind, start_time=end - int(1e9 * elapsed_s))
        if span.is_recording():
            span.set_attribute("http.response.status_code", status)
            for key, value in attributes.items():
                span.set_attribute(f"fedbandit.{key}", value)
            if status >= 500:
                span.set_status(self._failed)
        span.end(end_time=end)

    def close(self) -> None:
        """Export what is left; waits for the collector, so not inside the event loop."""
        self._traces.shutdown()
        self._metrics.shutdown()


def register(meter: Meter, registry: CollectorRegistry) -> None:
    """An observable instrument for each family of the registry; a histogram becomes its count and its sum."""
    for family in registry.collect():
        if family.type == "counter":
            meter.create_observable_counter(
                family.name, [_reader(registry, family, "_total")], "1", family.documentation
            )
        elif family.type == "gauge":
            meter.create_observable_gauge(family.name, [_reader(registry, family, "")], "1", family.documentation)
        elif family.type == "histogram":
            for suffix in ("_count", "_sum"):
                name = family.name + suffix
                meter.create_observable_counter(name, [_reader(registry, family, suffix)], "1", family.documentation)


def _reader(
    registry: CollectorRegistry, family: Metric, suffix: str
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    name = family.name + suffix

    def read(_: CallbackOptions) -> Iterable[Observation]:
        samples = (sample for found in registry.collect() if found.name == family.name for sample in found.samples)
        return [Observation(sample.value, sample.labels) for sample in samples if sample.name == name]

    return read
