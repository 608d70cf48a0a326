"""Metrics and logs. Labels name models, never agents; tokens appear in neither."""

from __future__ import annotations

import itertools
import logging
import re
import secrets
import sys
import time
from typing import Any, BinaryIO, Self

import msgspec
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from fedbandit.errors import Overloaded, StoreUnavailable
from fedbandit.service.fleet_metrics import FleetMetrics

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
TOKEN = re.compile(rb"fb[el]?_[A-Za-z0-9_-]{43}")  # tokens, secrets of enrolments and of sign-in links
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.exchanges = Counter("fedbandit_exchanges", "Uploads answered", ["model", "result"], registry=registry)
        self.refusals = Counter(
            "fedbandit_refusals",
            "Uploads refused, and other requests that failed, by reason",
            ["reason"],
            registry=registry,
        )
        self.store_up = Gauge("fedbandit_store_up", "Whether the store answered at this scrape", registry=registry)
        self.received = Counter("fedbandit_received_bytes", "Bytes of merged uploads", ["model"], registry=registry)
        self.downloads = Counter(
            "fedbandit_downloads", "Model downloads without an upload", ["result"], registry=registry
        )
        self.batch_size = Histogram(
            "fedbandit_batch_size", "Uploads in one transaction", buckets=SIZES, registry=registry
        )
        self.commit_seconds = Histogram(
            "fedbandit_commit_seconds", "Time from a batch to its commit", buckets=SECONDS, registry=registry
        )
        self.exchange_seconds = Histogram(
            "fedbandit_exchange_seconds", "Time from a request to its answer", buckets=SECONDS, registry=registry
        )
        self.queued = Gauge("fedbandit_queued_uploads", "Uploads queued for a commit", registry=registry)
        self.connections = Gauge("fedbandit_connections", "Open connections", registry=registry)
        self.closed_connections = Counter(
            "fedbandit_closed_connections", "Connections closed to stay within limits", ["reason"], registry=registry
        )
        self.effective_alpha = Gauge(
            "fedbandit_effective_alpha", "The alpha that the guarantee needs now", ["model"], registry=registry
        )
        self.n_obs = Gauge("fedbandit_observations", "Observations in the model", ["model"], registry=registry)
        self.rewards = Counter(
            "fedbandit_rewards",
            "Rewards reported, by status, and what owners did with them",
            ["model", "result"],
            registry=registry,
        )
        self.version = Gauge("fedbandit_model_version", "Changes of the model's state", ["model"], registry=registry)
        self.epoch = Gauge("fedbandit_model_epoch", "Restarts of the model", ["model"], registry=registry)
        self.n_discarded = Gauge(
            "fedbandit_observations_discarded",
            "Observations that count for nothing: in uploads of earlier epochs, and of alarms",
            ["model"],
            registry=registry,
        )
        self.events = Counter("fedbandit_events", "Events of models, by kind", ["kind"], registry=registry)
        self.fleet = FleetMetrics(registry)
        self._counters: dict[tuple[str, str], Counter] = {}
        self._reward_results: set[str] = set()
        # Prometheus sees an increase only after a first sample, so series with alerts start at zero.
        for reason in (StoreUnavailable.code, Overloaded.code):
            self.refusals.labels(reason)
        for result in ("sent", "unchanged"):
            self.downloads.labels(result)
        for kind in ("enrolled", "renewed", "revoked", "refused", "forgotten", "restored", "restarted"):
            self.events.labels(kind)

    def render(self) -> tuple[bytes, str]:
        """The Prometheus text format, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def count_exchange(self, model: str, result: str) -> None:
        """Count a reply to an upload."""
        counter = self._counters.get((model, result))
        if counter is None:
            counter = self._counters[model, result] = self.exchanges.labels(model, result)
        counter.inc()

    def count_reward(self, model: str, result: str, n: int = 1) -> None:
        """Count rewards that were reported, or what their owner did with them."""
        self._reward_results.add(result)
        self.rewards.labels(model, result).inc(n)

    def forget_model(self, model: str) -> None:
        """Remove the series of a deleted model."""
        self._counters.clear()
        for metric in (self.received, self.effective_alpha, self.n_obs, self.version, self.epoch, self.n_discarded):
            _remove(metric, model)
        for result in self._reward_results:
            _remove(self.rewards, model, result)
        for result in ("merged", "repeated", "discarded", "refused", "failed"):
            _remove(self.exchanges, model, result)


def _remove(metric: Counter | Gauge, *labels: str) -> None:
    try:
        metric.remove(*labels)
    except KeyError:
        return


def make_logger(level: str = "info", stream: BinaryIO | None = None) -> Any:
    """A structlog logger that writes one JSON object per line; global configuration is not touched."""
    levels = {"debug": 10, "info": 20, "warning": 30, "error": 40}
    return structlog.wrap_logger(
        structlog.BytesLogger(stream if stream is not None else sys.stderr.buffer),
        processors=[structlog.processors.ExceptionRenderer(), _Line()],
        wrapper_class=structlog.make_filtering_bound_logger(levels[level]),
        cache_logger_on_first_use=True,
    ).bind()


class _Line:
    """The last processor: level, time and JSON in one step, since every exchange writes a line."""

    def __init__(self) -> None:
        self._second = 0
        self._formatted = ""
        self._encode = msgspec.json.Encoder(enc_hook=repr).encode

    def __call__(self, _: Any, level: str, event: Any) -> bytes:
        event["level"] = level
        second, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
        if second != self._second:
            self._formatted = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        event["timestamp"] = f"{self._formatted}.{nanoseconds // 1000:06d}Z"
        line = self._encode(event)
        # A token may be given by mistake where a path or a name belongs, and those are logged.
        return TOKEN.sub(b"fb_[hidden]", line) if b"fb_" in line or b"fbe_" in line or b"fbl_" in line else line


CUT_OFF = "timeout graceful shutdown exceeded"  # uvicorn's message for requests that exceed `drain_timeout_s`


class LibraryLog(logging.Handler):
    """Writes what libraries log through `logging` as JSON lines, inside a `with` block.

    Requests that shutdown cancels after `drain_timeout_s` are warnings: clients may hold them open.
    """

    def __init__(self, log: Any) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        kind, error = record.exc_info[:2] if record.exc_info else (None, None)
        reason = {} if kind is None else {"error": kind.__name__, "reason": str(error)}
        is_error = record.levelno >= logging.ERROR and CUT_OFF not in f"{record.getMessage()} {error}"
        write = self._log.error if is_error else self._log.warning
        write("library", source=record.name, message=record.getMessage(), **reason)

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


class RequestIds:
    """Short request ids, unique across processes: a random prefix and a counter."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(4)
        self._count = itertools.count(1)

    def next(self) -> str:
        """The next id."""
        return f"{self._prefix}-{next(self._count):x}"
