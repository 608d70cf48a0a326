"""The server's settings: a TOML file, then the environment, then options; the later one wins."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from fedbandit.errors import InvalidParameter
from fedbandit.service.http.cors import check_origins

PREFIX = "FEDBANDIT_"
MEMORY = "memory:"
COUNTS = (
    "max_batch",
    "max_queue",
    "max_turn_ms",
    "max_inflight_mb",
    "max_outgoing_mb",
    "max_connections",
    "max_head_kb",
    "max_json_kb",
    "pool_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Storage, address and limits of a server."""

    data: str = "fedbandit-data"  # directory of the embedded store
    database: str = ""  # postgresql://… instead of a directory, or memory: for data that may be lost
    host: str = "127.0.0.1"
    port: int = 8700  # 0: any free one
    tls_cert: str = ""
    tls_key: str = ""
    client_ca: str = ""  # only clients with a certificate of this authority may connect
    insecure: bool = False  # listen beyond this machine without TLS
    open_dashboard: bool = False  # show the dashboard to anybody on this machine, without a token
    allow_origin: tuple[str, ...] = ()  # CORS: origins that may use the agents' routes; * for any
    admin_token: str = ""  # instead of one that is generated and printed at the first start
    log_level: str = "info"
    max_batch: int = 128  # uploads in one transaction
    max_queue: int = 1024  # queued uploads of one model; beyond them 503
    max_turn_ms: int = 250  # handling uploads in one iteration of the event loop; beyond it they are shed with 503
    max_inflight_mb: int = 256  # bodies in memory at one time, together
    max_outgoing_mb: int = 256  # responses that clients have not read yet, together
    max_connections: int = 10_000  # open at one time, and fewer where the system allows fewer descriptors
    max_head_kb: int = 16  # the longest request line and headers
    head_timeout_s: float = 10.0  # for a TLS handshake, and for a head to arrive
    max_json_kb: int = 1024  # the longest body of an admin call
    body_timeout_s: float = 30.0  # for a body to arrive
    drain_timeout_s: float = 30.0  # for open requests to be answered at shutdown
    pool_size: int = 8  # connections to PostgreSQL
    otlp_endpoint: str = ""  # http://collector:4318: send traces and metrics there by OTLP; needs the extra otel

    def __post_init__(self) -> None:
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise InvalidParameter(f"expected {name} ≥ 1, got {getattr(self, name)}")
        if not 0 <= self.port <= 65535:
            raise InvalidParameter(f"expected a port from 0 to 65535, got {self.port}")
        if not (self.head_timeout_s > 0 and self.body_timeout_s > 0 and self.drain_timeout_s > 0):
            raise InvalidParameter("expected head_timeout_s, body_timeout_s and drain_timeout_s above 0")
        if self.max_batch > 500:
            raise InvalidParameter(f"expected max_batch ≤ 500, got {self.max_batch}")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InvalidParameter(f"expected log_level debug, info, warning or error, got {self.log_level!r}")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise InvalidParameter("expected tls_cert and tls_key together")
        if self.client_ca and not self.tls_cert:
            raise InvalidParameter("client_ca needs tls_cert and tls_key")
        if self.database and not self.database.startswith(("postgresql://", "postgres://", MEMORY)):
            raise InvalidParameter("expected database as postgresql://…")
        if self.otlp_endpoint and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise InvalidParameter(f"expected otlp_endpoint as http://… or https://…, got {self.otlp_endpoint!r}")
        check_origins(self.allow_origin)
        if self.open_dashboard and not is_loopback(self.host):
            raise InvalidParameter(
                f"open_dashboard works on this machine only, and the server would listen on {self.host}"
            )
        if not (self.insecure or self.tls_cert or is_loopback(self.host)):
            raise InvalidParameter(
                f"refusing to listen on {self.host} without TLS: tokens would travel in the clear. Give --tls-cert and "
                f"--tls-key, or --insecure where something in front of the server does TLS"
            )

    @property
    def scheme(self) -> str:
        """The scheme of the server's URL."""
        return "https" if self.tls_cert else "http"


def read_settings(
    options: Mapping[str, Any], *, file: Path | None = None, environ: Mapping[str, str] | None = None
) -> ServerSettings:
    """Settings from a file, the environment and options; None stands for an option that was not given."""
    values: dict[str, Any] = {}
    if file is not None:
        values.update(_from_file(file))
    values.update(_from_environment(os.environ if environ is None else environ))
    given = {name: value for name, value in options.items() if value is not None}
    # A directory and a database exclude each other; naming one on the command line overrides the other from elsewhere.
    if "data" in given and "database" not in given:
        values.pop("database", None)
    return ServerSettings(**{**values, **given})


def _from_file(file: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidParameter(f"the settings file cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidParameter(f"{file} is not TOML: {error}") from None
    kinds = get_type_hints(ServerSettings)
    unknown = set(data) - set(kinds)
    if unknown:
        raise InvalidParameter(f"{file}: unknown settings {', '.join(sorted(unknown))}; known are {', '.join(kinds)}")
    return {name: _typed(name, value, kinds[name]) for name, value in data.items()}


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    kinds = get_type_hints(ServerSettings)
    names = [field.name for field in fields(ServerSettings)]
    found = {name: environ[PREFIX + name.upper()] for name in names if environ.get(PREFIX + name.upper())}
    return {name: _typed(PREFIX + name.upper(), value, kinds[name]) for name, value in found.items()}


def _typed(name: str, value: Any, kind: type) -> Any:
    """`value` as its setting's type; the environment has only text."""
    if kind is bool:
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if isinstance(value, bool):
            return value
        if str(value).lower() not in words:
            raise InvalidParameter(f"expected {name} to be true or false, got {value!r}")
        return words[str(value).lower()]
    if kind == tuple[str, ...]:
        return _several(name, value)
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise InvalidParameter(f"expected {name} as {kind.__name__}, got {value!r}") from None


def _several(name: str, value: Any) -> tuple[str, ...]:
    """A list from a file, or comma-separated text from the environment."""
    items = value.split(",") if isinstance(value, str) else value
    if not (isinstance(items, list | tuple) and all(isinstance(item, str) for item in items)):
        raise InvalidParameter(f"expected {name} as a list of strings, got {value!r}")
    return tuple(item.strip() for item in items if item.strip())


def is_loopback(host: str) -> bool:
    """Whether the address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
