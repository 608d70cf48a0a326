"""Plain HTTP to a server, for the commands that manage it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer
import urllib3

from fedbandit.errors import InvalidParameter, NotReachable, Refused
from fedbandit.sdk.transport import address_parts, check_token, reason_of, segment
from fedbandit.wire import codec

Url = Annotated[str, typer.Option("--url", envvar="FEDBANDIT_URL", help="Address of the server.")]
Token = Annotated[str, typer.Option("--token", envvar="FEDBANDIT_TOKEN", help="Token of an administrator.")]
CaCert = Annotated[
    str | None, typer.Option("--ca-cert", envvar="FEDBANDIT_CA_CERT", help="Trust this certificate authority, PEM.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DEFAULT_URL = "http://127.0.0.1:8700"
TIMES = {"created", "last_seen"}  # fields of the API that are seconds since 1970


class AdminClient:
    """A server and the token that we show it."""

    def __init__(self, url: str, token: str, ca_cert: str | None = None) -> None:
        if not token:
            raise typer.BadParameter("give --token, or set FEDBANDIT_TOKEN")
        address_parts(url)
        check_token(token, "a token as printed by `fedbandit tokens add`")
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}
        self._http = urllib3.PoolManager(retries=False, ca_certs=ca_cert, timeout=60.0)

    def call(self, method: str, *path: str, body: Any = None, query: dict[str, Any] | None = None) -> Any:
        """What the server answers, read as JSON; None when it has nothing to say."""
        data = self.fetch(method, *path, body=body, query=query)
        return json.loads(data) if data else None

    def fetch(self, method: str, *path: str, body: Any = None, query: dict[str, Any] | None = None) -> bytes:
        """The bytes of an answer; a refusal is raised with the server's own words."""
        content = None if body is None else json.dumps(body).encode()
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        address = self._address(*path)
        if query:
            address += "?" + "&".join(f"{name}={_quoted(str(value))}" for name, value in query.items())
        return self._request(method, address, content, headers)

    def send_upload(self, model: str, token: str, body: bytes) -> bytes:
        """One exchange in the name of the agent whose token this is."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": codec.CONTENT_TYPE}
        return self._request("POST", self._address("models", model, "sync"), body, headers)

    def _address(self, *path: str) -> str:
        return "/".join([self._url, "v1", *(segment(part, "model, agent or token") for part in path)])

    def _request(self, method: str, address: str, content: bytes | None, headers: dict[str, str]) -> bytes:
        try:
            answer = self._http.request(method, address, body=content, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise NotReachable(f"{self._url} cannot be reached: {reason_of(error)}") from None
        if answer.status >= 300:
            raise _refusal(answer.status, answer.data)
        return answer.data


def _quoted(value: str) -> str:
    try:
        return quote(value, safe="")
    except UnicodeEncodeError:
        raise InvalidParameter(f"expected text in UTF-8, got {value!r}") from None


def _refusal(status: int, data: bytes) -> Refused:
    try:
        problem = json.loads(data)
        return Refused(str(problem["message"]), reason=str(problem["error"]), status=status)
    except (ValueError, KeyError, TypeError):
        return Refused(f"the server answered {status}", status=status)


def print_json(value: Any) -> None:
    """One value, indented."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    """Columns that line up, also in a pipe."""
    widths = [max(len(line[place]) for line in [columns, *rows]) for place in range(len(columns))]
    for line in [columns, *rows]:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def shown(value: Any, name: str = "") -> str:
    """A value for a table cell; what `name` says is a point in time is shown in UTC.

    >>> shown(0.123456789), shown(None), shown(1794810000.0, "created")
    ('0.123457', '-', '2026-11-16 06:20:00Z')
    """
    if value is None:
        return "-"
    if name in TIMES:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
