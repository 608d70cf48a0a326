"""The checks of `fedbandit doctor`: packages by extra, a server, a token, a state directory. All are read-only."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path

from fedbandit.errors import FormatError, NotReachable
from fedbandit.http_client import HttpClient, HttpReply, api_path, check_token
from fedbandit.sdk.journal.layout import APPLICATION_ID, VERSION, read_position
from fedbandit.sdk.journal.observation_log import read_log
from fedbandit.sdk.journal.pending_ring import boot_id

EXTRAS = {  # what people install, and what for
    "cli": "all commands",
    "server": "a server with its dashboard",
    "postgres": "a server on PostgreSQL",
    "lab": "studies, advice, the compiled simulator",
    "data": "real data sets, the demo",
    "ray": "studies on a cluster",
    "otel": "OpenTelemetry traces and metrics of a server",
    "openfeature": "decisions as OpenFeature flags",
}
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?:\[(?P<extras>[^]]*)\])?\s*(?:>=\s*(?P<least>[0-9.]+))?")
TIMEOUT_S = 5.0
MAX_SKEW_S = 60.0
MIN_FREE_MB = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer. `state` is ok, missing (an extra that nobody need have), skipped, warning or failed."""

    topic: str
    name: str
    state: str
    words: str
    advice: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain values."""
        return asdict(self)


# -- packages


def packages() -> Iterator[Finding]:
    """One finding for the base install and one for each extra."""
    wanted = metadata.requires("fedbandit") or []
    yield _installed("base", "agents, fb.connect, the commands agent and doctor", _of_extra(wanted, ""))
    for extra, purpose in EXTRAS.items():
        yield _installed(extra, purpose, _of_extra(wanted, extra))


def _of_extra(wanted: list[str], extra: str) -> dict[str, str]:
    """Package -> least version; an extra may name other extras of ours."""
    found: dict[str, str] = {}
    for line in wanted:
        requirement, _, marker = line.partition(";")
        named = re.search(r"""extra\s*==\s*["']([\w-]+)["']""", marker)
        match = REQUIREMENT.match(requirement.strip())
        if (named[1] if named else "") != extra or match is None:
            continue
        if match["name"] == "fedbandit":
            for other in (match["extras"] or "").split(","):
                found |= _of_extra(wanted, other.strip())
        else:
            found[match["name"]] = match["least"] or "0"
    return found


def _installed(extra: str, purpose: str, wanted: dict[str, str]) -> Finding:
    problems = [problem for name, least in wanted.items() if (problem := _problem_of(name, least))]
    if not problems:
        return Finding("packages", extra, "ok", purpose)
    state = "failed" if extra == "base" else "missing"
    name, place = ("fedbandit", ".") if extra == "base" else (f"fedbandit[{extra}]", f".[{extra}]")
    advice = f"install {name} (in a checkout: pip install '{place}')"
    return Finding("packages", extra, state, f"{purpose}: {', '.join(problems)}", advice)


def _problem_of(name: str, least: str) -> str:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed"
    return f"{name} {version} is older than {least}" if _numbers(version) < _numbers(least) else ""


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.split("+")[0])[:3]]


# -- a server


class ServerProbe:
    """Short requests to a server, with the token only where the token is checked."""

    def __init__(self, url: str, token: str, ca_cert: str | None) -> None:
        if token:
            check_token(token, "a token as printed by `fedbandit tokens add` or `fedbandit agents add`")
        self._anonymous = HttpClient(url, ca=ca_cert)
        self._known = HttpClient(url, token=token, ca=ca_cert)
        self.url, self.exposes_token = self._known.address, self._known.exposes_token

    def get(self, path: str, *, with_token: bool = True) -> HttpReply:
        """The response, whatever its status."""
        client = self._known if with_token else self._anonymous
        return client.request("GET", path, timeout_s=TIMEOUT_S)


def server(probe: ServerProbe) -> Iterator[Finding]:
    """Whether it answers, is ready, is encrypted, and has a clock that agrees with ours."""
    try:
        alive, ready = probe.get("/healthz", with_token=False), probe.get("/readyz", with_token=False)
    except NotReachable as error:
        advice = "check the address, that `fedbandit serve` runs, and that no firewall or proxy blocks it"
        yield Finding("server", "reachable", "failed", str(error), advice)
        return
    if alive.status != 200 or (alive.json_object() or {}).get("status") != "ok":
        words = f"{probe.url} answers {alive.status} to /healthz; something else may be listening there"
        yield Finding("server", "reachable", "failed", words)
        return
    yield Finding("server", "reachable", "ok", probe.url)
    if ready.status == 200:
        yield Finding("server", "ready", "ok", "its store answers")
    else:
        words = str((ready.json_object() or {}).get("message", ready.status))
        yield Finding("server", "ready", "failed", words, "see the server's log")
    yield _encrypted(probe.url, exposes_token=probe.exposes_token)
    yield _clock(ready.headers.get("date"), time.time())


def _encrypted(url: str, *, exposes_token: bool) -> Finding:
    if not exposes_token:
        words = "https" if url.startswith("https") else "not needed on this machine"
        return Finding("server", "encrypted", "ok", words)
    return Finding("server", "encrypted", "warning", "tokens are sent unencrypted", "use https (docs/deployment.md)")


def _clock(date: str | None, now: float) -> Finding:
    """Whether the clocks agree: no statistics depend on it; certificates and logs do."""
    if date is None:
        return Finding("server", "clock", "skipped", "the server sends no date")
    skew = parsedate_to_datetime(date).timestamp() + 0.5 - now
    words = f"within {abs(skew) + 1:.0f} s of ours" if abs(skew) < MAX_SKEW_S else f"{skew:+.0f} s from ours"
    good = abs(skew) < MAX_SKEW_S
    return Finding("server", "clock", "ok" if good else "warning", words, "" if good else "set one of the two by NTP")


# -- a token


def token(probe: ServerProbe, model: str | None) -> Iterator[Finding]:
    """Whether the server knows it, as what, and for which model."""
    status = probe.get("/status")
    if status.status == 401:
        advice = "make a new one: `fedbandit agents add MODEL NAME --renew`, or `fedbandit tokens add NAME`"
        yield Finding("token", "known", "failed", _told(status), advice)
        return
    if status.status == 200:
        role = "admin" if probe.get("/v1/tokens").status == 200 else "viewer"
        yield Finding("token", "known", "ok", f"role {role}")
        if model:
            yield _model(probe.get(api_path("models", model)), model)
        return
    if status.status != 403:
        yield Finding("token", "known", "failed", _told(status))
        return
    if not model:
        yield Finding("token", "known", "ok", "role agent; --model MODEL also checks its model")
        return
    yield Finding("token", "known", "ok", "role agent")
    yield _model(probe.get(api_path("models", model)), model)


def _model(reply: HttpReply, model: str) -> Finding:
    if reply.status != 200:
        return Finding("token", f"model {model}", "failed", _told(reply), "is it another model's token?")
    shown = reply.json_object() or {}
    whose = f"agent {shown['agent']}, " if "agent" in shown else ""
    words = f"{whose}{shown['dim']} features, version {shown['version']}, {shown['n_obs']:,} observations"
    return Finding("token", f"model {model}", "ok", words)


def _told(reply: HttpReply) -> str:
    problem = reply.json_object() or {}
    return f"{reply.status} {problem.get('error', '')}: {problem.get('message', 'not an answer of fedbandit')}"


# -- a state directory


def state_dir(path: Path) -> Iterator[Finding]:
    """Whether an agent can use the directory, and which agent does. Opened for reading only."""
    if not path.exists():
        parent = next(folder for folder in path.absolute().parents if folder.exists())
        good = os.access(parent, os.W_OK)
        words = (
            "does not exist yet; the first connect creates it" if good else f"cannot be made: {parent} is not writable"
        )
        yield Finding("state_dir", str(path), "ok" if good else "failed", words)
        return
    if not (path.is_dir() and os.access(path, os.W_OK | os.X_OK)):
        yield Finding("state_dir", str(path), "failed", "is not a directory that this user can write")
        return
    yield _journal(path)
    free = shutil.disk_usage(path).free >> 20
    yield Finding("state_dir", "disk", "ok" if free >= MIN_FREE_MB else "warning", f"{free:,} MB free")


def _journal(path: Path) -> Finding:
    file = path / "journal.db"
    if not file.exists():
        return Finding("state_dir", str(path), "ok", "empty; the first connect fills it")
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=2.0)) as db:
            state, words = _read(db, path)
    except (sqlite3.Error, OSError, FormatError) as error:
        state, words = "failed", f"the journal is damaged: {error}"
    advice = "" if state == "ok" else "keep a copy, then begin anew in another directory (docs/sdk.md)"
    return Finding("state_dir", str(path), state, words, advice)


def _read(db: sqlite3.Connection, path: Path) -> tuple[str, str]:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if application != APPLICATION_ID:
        return "failed", "journal.db is some other database"
    if version != VERSION:
        return "failed", f"the journal has format {version}, this fedbandit reads format {VERSION}"
    if verdict != "ok":
        return "failed", f"the journal is damaged: {verdict}"
    owner = db.execute("SELECT agent, model FROM state").fetchone()
    if owner is None:
        return "ok", "nobody yet; journal sound"
    return (
        "ok",
        f"agent {owner[0]} of model {owner[1]}; journal sound, {_n_logged(db, path):,} records since its snapshot",
    )


def _n_logged(db: sqlite3.Connection, path: Path) -> int:
    position = read_position(db)
    if position is None:
        raise FormatError("its snapshot has no position in the log")
    log, lost_power = path / "observations", position.boot != boot_id()
    found = read_log(log.read_bytes(), log_id=position.log_id, since=position.at, lost_power=lost_power, path=log)
    return len(found.bodies)
