"""The page of settings, from the dataclass, the comments beside its fields, and the options of `fedbandit serve`."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from fedbandit.cli.serve import serve
from fedbandit.service.settings import PREFIX, ServerSettings

HEAD = """# Settings

<!-- Written by scripts/make_reference.py from the code: `make docs` renews it, a test compares. -->

## The server

`fedbandit serve` takes settings from a TOML file (`--config`), then from the environment, then from its options; the
later wins. An unknown name in the file is an error, so is a value of the wrong type. [Running a
server](../operations.md) says when to change them. Where "option" says yes, `tls_cert` is also `--tls-cert`, and so on.

| setting | environment | option | default | meaning |
|---|---|---|---|---|
"""
CLIENTS = """
A settings file:

```toml
database = "postgresql://fedbandit@db.internal/fedbandit"
host = "0.0.0.0"
tls_cert = "/etc/fedbandit/cert.pem"
tls_key = "/etc/fedbandit/key.pem"
log_level = "warning"
```

## Clients

| environment | read by | meaning |
|---|---|---|
| `FEDBANDIT_URL` | `fedbandit models`, `agents`, `tokens`, `agent` | address of the server |
| `FEDBANDIT_TOKEN` | the same | an administrator's token; for `fedbandit agent` the agent's |
| `FEDBANDIT_CA_CERT` | `fedbandit models`, `agents`, `tokens` | a certificate authority to trust, PEM |

The library reads no environment: `fb.connect` takes everything as [arguments](../sdk.md#connecting).
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_row(field) for field in fields(ServerSettings)) + CLIENTS


def _row(field: Any) -> str:
    option = "yes" if field.name in _options() else ""
    words = meanings()[field.name]
    assert words, f"{field.name} has neither a comment nor an option with help"
    return f"| `{field.name}` | `{PREFIX}{field.name.upper()}` | {option} | {_shown(field.default)} | {words} |\n"


def meanings() -> dict[str, str]:
    """What each setting means: the option's help, else the comment beside the field."""
    comments = dict(re.findall(r"^    (\w+): [^#\n]+#\s*(.+)$", inspect.getsource(ServerSettings), re.MULTILINE))
    helps = {name: _short(text) for name, text in _options().items()}
    names = [field.name for field in fields(ServerSettings)]
    return {name: (comments.get(name) or helps.get(name, "")).replace("|", "\\|") for name in names}


def _short(text: str) -> str:
    text = re.sub(r"\s*\(default:[^)]*\)", "", text).rstrip(".")
    return text[:1].lower() + text[1:]


def _options() -> dict[str, str]:
    hints = get_type_hints(serve, include_extras=True)
    return {name: get_args(hint)[1].help or "" for name, hint in hints.items() if name != "return"}


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default}`" if default not in ("", ()) else ""
