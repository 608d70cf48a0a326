"""Documents that are one session: their blocks run from top to bottom, in one shell, as a reader would type them.

A document is one if it has `<!-- a session: … -->`. A block marked `<!-- in the background -->` is a server in another
terminal; the next block waits until it serves. A block with `title="name"` is a file. `fb_…` stands for the admin token
that the first server printed, a port 870x for a free one, and `db.internal` for a real PostgreSQL.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path

from tests.documentation.blocks import Block, blocks_of

MARK = "<!-- a session"
DATABASES = ("postgresql://fedbandit@db.internal/fedbandit_restored", "postgresql://fedbandit@db.internal/fedbandit")
HEAD = """
set -euo pipefail
servers=()
trap 'for pid in "${servers[@]:-}"; do kill "$pid" 2>/dev/null || true; done' EXIT
serving() {  # serving LOG: wait until the server behind it listens, one minute at most
  for _ in $(seq 300); do grep -q '^fedbandit serves on' "$1" && return 0; sleep 0.2; done
  cat "$1"; return 1
}
"""


def is_session(path: Path) -> bool:
    return MARK in path.read_text(encoding="utf-8")


def script(path: Path, databases: dict[str, str]) -> str:
    """The whole session as one bash script."""
    blocks = [block for block in blocks_of(path) if not block.not_run]
    text = HEAD + "".join(_step(block, number) for number, block in enumerate(blocks))
    for placeholder, address in databases.items():
        text = re.sub(re.escape(placeholder) + r"(?![\w])", lambda _, a=address: a, text)
    for port in sorted(set(re.findall(r"\b870\d\b", text))):
        text = re.sub(rf"\b{port}\b", str(_free_port()), text)
    return text


def _step(block: Block, number: int) -> str:
    if block.title:
        return _file(block.title, block.code)
    if block.note.startswith("in the background"):
        log = f"server-{number}.log"
        inside = _file(f"server-{number}.sh", "exec " + block.code)
        return f"{inside}bash server-{number}.sh > {log} 2>&1 &\nservers+=($!); disown $!\nserving {log}\n"
    if block.language == "sh":
        return block.code.replace("fb_…", "$(sed -n 's/^admin token.*: //p' server-*.log | head -1)")
    if block.language == "python":
        return _file(f"block-{number}.py", block.code) + f"python block-{number}.py\n"
    return ""


def _file(name: str, code: str) -> str:
    return f"cat > {name} <<'END_OF_FILE'\n{code}END_OF_FILE\n"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
